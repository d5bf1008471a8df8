// VMM handles as the sharing code sees them.
#pragma once

#include "driver/memory.h"

namespace sim {

std::shared_ptr<Handle> find_handle(CUmemGenericAllocationHandle value);
CUmemGenericAllocationHandle add_handle(std::shared_ptr<Backing> backing,
                                        const CUmemAllocationProp& prop);
bool is_host_location(CUmemLocationType type);

}  // namespace sim
