// From a route to a block: the kinds' own ways, the fall from one kind to the next, the spill under
// pressure. Knows nothing of tables and counts: the engine keeps those.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "memory/blocks/owner.h"
#include "memory/blocks/registry.h"
#include "memory/routing/route.h"

namespace kvshim {

// Blocks that share a page of the device are no host blocks: nobody needs a page of host memory
// each. They become `instead`.
Kind suited(Kind kind, std::uint64_t bytes, const driver::Device& device, Kind instead) noexcept;

// Makes `bytes` of the routed kind, or of one that it falls to, and fills in the block's memory and
// kind; route->why says what became of it. A block that device memory cannot take goes to host
// memory instead of failing, where the user wants that. Out of memory there too is the same 2.
CUresult make_or_spill(Route* route, Owner& owner, std::uint64_t bytes, Block* block) noexcept;

}  // namespace kvshim
