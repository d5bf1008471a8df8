// The managed kind: unified memory whose pages the CPU places and zeroes, so that it lives in host
// memory and moves to the GPU by page faults, as far as it is used and fits.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "driver/device.h"

namespace kvshim::managed {

// Errors: CUDA_ERROR_NOT_SUPPORTED where the device cannot (said once per device; take another
// kind), CUDA_ERROR_OUT_OF_MEMORY when the host lacks the memory (memory/budget/spill.h), found
// before a page is touched or, where others take it meanwhile, while pages are placed, with one
// line of arithmetic; else the driver's. Blocks while pages are placed.
//
// With KVSHIM_MEMINFO=virtual the program was promised the device's memory too. A block over the
// host's budget then lies on the device: all of it (out of memory: take another kind), or its first
// part, where it is larger than what the device has free. `spilled`: the bytes in host memory,
// promised by memory/budget/spill.h; give them back with the block.
CUresult create(driver::Device& device, std::uint64_t bytes, CUdeviceptr* out,
                std::uint64_t* spilled) noexcept;

}  // namespace kvshim::managed
