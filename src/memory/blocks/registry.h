// Every live block that kvshim made, by address. The order rules of the whole engine:
//   - insert after the real allocation succeeded (room for the record is reserved before it),
//   - take (remove) before the real free; put back when the driver refuses the free,
//   - never hold the lock while in the driver, in a log write or in a callback.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/kind.h"
#include "memory/kinds/slab.h"

namespace kvshim {

class Owner;

struct Block {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;  // as requested; what the host program may use
  Kind kind = Kind::native;
  std::uint64_t spilled = 0;    // bytes of it that the spill budget counts (memory/budget/spill.h)
  Kind planned = Kind::native;  // in a dry run: what it would have become
  Owner* owner = nullptr;       // the context that allocated it; never NULL
  vmm::Mapping mapping;         // vmm blocks with a handle of their own
  Slab* slab = nullptr;         // vmm blocks that share one
  std::uint64_t id = 0;         // never given twice in this process; registry::insert assigns it
  bool sync_memops = false;     // what the program set; VMM memory itself cannot keep it
  bool opened = false;          // another process's, opened by IPC: not to be freed, only closed
  CUdevice home = -1;           // of such a block: whose memory it is; -1: no device seen here
  std::uint32_t export_slot = 0;  // where src/sharing/ keeps its IPC handle; 0: it has none
};

// A live vmm mapping, of one block or a slab, this process's own or opened by IPC.
struct MappedRange {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;  // as mapped
  CUdevice device = 0;      // whose memory it is
  std::uint64_t id = 0;     // never given twice; 0: not known
};

// What an address is to the host program. A hole is memory of kvshim's that no live block covers:
// the rest of a slab, a freed small block, the rounding behind a large one. The driver thinks it is
// mapped; to the program it is an address that nobody allocated.
enum class Place : std::uint8_t { foreign, block, hole };

namespace registry {

// Makes room for one more record, so that insert cannot fail. False: the host is out of memory.
bool reserve() noexcept;
void insert(const Block& block) noexcept;
// Removes the block that starts at `base` and copies it out. False where there is none.
bool take(CUdeviceptr base, Block* out) noexcept;
// What lies at `address`; for a block, a copy of its record.
Place find(CUdeviceptr address, Block* out) noexcept;
// Changes the sync_memops flag of the block that `address` lies in. False where there is none.
bool set_sync_memops(CUdeviceptr address, bool on) noexcept;
// Removes the next block of `owner` at or behind `from` and copies it out. False when it has none.
bool take_next_of(const Owner& owner, CUdeviceptr from, Block* out) noexcept;
std::uint64_t size() noexcept;

// The block at `base` with this id has an IPC handle from now on. Returns the slot that its record
// has then (an earlier one wins), 0 where the block is gone.
std::uint32_t mark_exported(CUdeviceptr base, std::uint64_t id, std::uint32_t slot) noexcept;

// Blocks opened by IPC, known by their whole mapping. find() knows them, take() does not.
void insert_opened(const Block& block) noexcept;
void remove_opened(const Block& block) noexcept;
// False for an address outside of everything that vmm blocks and slabs ever covered: host memory in
// general. Two loads, for calls that are too frequent to look every pointer up.
bool may_be_vmm(CUdeviceptr address) noexcept;

// What lies at an address, for callers that need no whole record.
struct Spot {
  Place place = Place::foreign;
  Kind kind = Kind::native;
  std::uint64_t left = 0;  // bytes from the address to the end of the block
};
// Two addresses under one lock.
void look(CUdeviceptr a, Spot* at_a, CUdeviceptr b, Spot* at_b) noexcept;

// Live mappings in the order of their addresses, the first `room` of those behind `after` (0: all).
// Returns how many; fewer than `room` are the last ones.
unsigned mappings_after(CUdeviceptr after, MappedRange* out, unsigned room) noexcept;
// True while exactly this mapping is live; by its id, where it is known, not another at its place.
bool is_mapped(const MappedRange& range) noexcept;

// The ranges of slabs, so that holes in them are known.
void insert_slab(CUdeviceptr base, std::uint64_t bytes, CUdevice device = 0) noexcept;
void remove_slab(CUdeviceptr base) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace registry
}  // namespace kvshim
