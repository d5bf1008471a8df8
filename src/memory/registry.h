// Every live block that kvshim made, by address. The order rules of the whole engine:
//   - insert after the real allocation succeeded (room for the record is reserved before it),
//   - take (remove) before the real free; put back when the driver refuses the free,
//   - never hold the lock while in the driver, in a log write or in a callback.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/kind.h"
#include "memory/slab.h"

namespace kvshim {

class Owner;

struct Block {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;  // as requested; what the host program may use
  Kind kind = Kind::native;
  Owner* owner = nullptr;   // the context that allocated it; never NULL
  vmm::Mapping mapping;     // vmm blocks with a handle of their own
  Slab* slab = nullptr;     // vmm blocks that share one
};

namespace registry {

// Makes room for one more record, so that insert cannot fail. False: the host is out of memory.
bool reserve() noexcept;
void insert(const Block& block) noexcept;
// Removes the block that starts at `base` and copies it out. False where there is none.
bool take(CUdeviceptr base, Block* out) noexcept;
// Copies out the block that `address` lies in. False where there is none.
bool find(CUdeviceptr address, Block* out) noexcept;
std::uint64_t size() noexcept;

void forget() noexcept;  // in a forked child

}  // namespace registry
}  // namespace kvshim
