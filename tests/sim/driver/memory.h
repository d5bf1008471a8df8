// What lives at device addresses: blocks (one allocation call each), VMM handles, reservations and
// mappings, and how an access by a device or a copy is checked and resolved to bytes.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver/arena.h"
#include "driver/work.h"

namespace sim {

struct Pool;

// Two MiB (or more) of native memory of one context, cut into blocks.
struct Chunk {
  Address base = 0;
  std::size_t size = 0;
  Context* context = nullptr;
  std::shared_ptr<Backing> backing;
  std::map<std::size_t, std::size_t> free;  // offset -> bytes
};

// A 2 MiB page of managed memory: in host memory, or on one device (residency.h).
struct ManagedPage {
  int device = -1;          // -1: in host memory
  std::uint64_t stamp = 0;  // its place in that device's order of use
};

enum class BlockKind { native, managed, host, registered, pool, ipc };

struct Block {
  BlockKind kind = BlockKind::native;
  Address base = 0;
  std::size_t bytes = 0;  // as requested
  std::size_t taken = 0;  // what it occupies
  Context* owner = nullptr;
  int device = 0;
  std::uint64_t id = 0;
  char* memory = nullptr;            // the bytes
  std::shared_ptr<Backing> backing;  // keeps them; null for host and managed memory
  Chunk* chunk = nullptr;            // native and pool
  bool sync_memops = false;
  unsigned host_flags = 0;
  // managed
  std::vector<ManagedPage> pages;
  int preferred = -2;         // device, -1 the CPU, -2 nowhere
  std::set<int> accessed_by;  // devices, -1 the CPU
  bool read_mostly = false;
  int last_prefetch = -2;
  // stream-ordered
  bool free_queued = false;
  Pool* pool = nullptr;
  // ipc: how often opened; exported: the slot that says this block is alive
  unsigned opens = 0;
  std::set<int> opened_on;  // devices with lazy peer access to it
  unsigned slot = 0;
  std::uint64_t serial = 0;

  ~Block();
};

// A VMM allocation. References: the creator's, one for each RetainAllocationHandle, one a mapping.
struct Handle {
  CUmemGenericAllocationHandle value = 0;
  CUmemAllocationProp prop{};
  std::shared_ptr<Backing> backing;
  unsigned references = 1;  // those that cuMemRelease gives back
  std::uint64_t id = 0;
};

struct Mapping {
  Address base = 0;
  std::size_t size = 0;
  std::size_t offset = 0;
  std::shared_ptr<Handle> handle;
  std::map<int, CUmemAccess_flags> access;  // device ordinal, kHostMemory for the CPU
};

struct Reservation {
  Address base = 0;
  std::size_t size = 0;
};

struct Pool {
  int device = 0;
  bool is_default = false;
  bool destroyed = false;
  CUmemPoolProps props{};
  std::uint64_t release_threshold = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  std::set<int> access;
};

// Who reaches for memory.
struct Accessor {
  enum class Engine { kernel, copy, peer_copy } engine;  // kernel: memsets too
  Context* context;
};

inline constexpr int kUntracked = -3;  // the program's own host memory

struct Piece {
  char* bytes;
  std::size_t size;
  std::shared_ptr<void> keep;
  std::shared_ptr<Block> managed;  // set when the piece is managed memory
  int on;                          // else: the device, kHostMemory, or kUntracked
  Address address;
};

// Pieces used by work in progress. They are let go under the lock, which must not be held then.
struct HeldPieces {
  std::vector<Piece> list;
  HeldPieces() = default;
  HeldPieces(const HeldPieces&) = delete;
  HeldPieces& operator=(const HeldPieces&) = delete;
  ~HeldPieces();
};

// Looks up what an address belongs to. Null when nothing.
std::shared_ptr<Block> find_block(Address address);
Mapping* find_mapping(Address address);
bool in_reservation(Address address);

// The bytes of [address, address + size) for this accessor. False: some part of it does not exist
// or may not be accessed. Plain host memory is fine for copies, never for kernels.
bool resolve(Address address, std::size_t size, const Accessor& who, std::vector<Piece>* pieces);
// True when a device owns or maps the address (not plain host memory).
bool is_device_address(Address address);

std::shared_ptr<Block> add_block(BlockKind kind, Address base, std::size_t bytes, Context* owner,
                                 int device);
// Takes native memory for a context (or a pool). Null: out of memory.
std::shared_ptr<Block> allocate_native(Context& context, std::size_t bytes, BlockKind kind);
// Removes a block from the tables and gives its memory back.
void drop_block(const std::shared_ptr<Block>& block);

}  // namespace sim
