// What a simulated device says of itself.
#pragma once

#include "driver/cuda_abi.h"

namespace sim {

// The value of an attribute after overrides; 0 for one that fails or is unknown.
int device_attribute(int device, int attribute);
// The same with the code that the query gives.
CUresult query_device_attribute(int device, int attribute, int* value);

}  // namespace sim
