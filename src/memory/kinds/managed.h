// The managed kind: unified memory whose pages the CPU places and zeroes, so that it lives in host
// memory and moves to the GPU by page faults, as far as it is used and fits.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "driver/device.h"

namespace kvshim::managed {

// Errors: CUDA_ERROR_NOT_SUPPORTED where the device cannot (said once per device; take another
// kind), CUDA_ERROR_OUT_OF_MEMORY when the host lacks the memory (128 MiB or 2% of what it has left
// are not touched), found before a page is touched or, where other processes take it meanwhile,
// while pages are placed, with one line of arithmetic; else the driver's. Blocks while pages are
// placed.
CUresult create(driver::Device& device, std::uint64_t bytes, CUdeviceptr* out) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::managed
