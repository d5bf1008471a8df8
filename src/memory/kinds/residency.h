// Where the pages of a managed block are to live: advice to the driver (KVSHIM_ADVICE) and a first
// move to the GPU (KVSHIM_PREFETCH). Wishes: whatever the driver answers, the block is good.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/options.h"
#include "driver/device.h"

namespace kvshim::residency {

// The advice for managed blocks of this device; never `automatic`.
//   host where CPU and GPU share page tables (Grace): the GPU reads the CPU's memory at hundreds of
//     GB/s, and its own memory is left to what must be there;
//   none elsewhere: over PCIe a page costs 10 GB/s once and then nothing, while a page that must
//   stay
//     in host memory costs 50 GB/s at every read (measured, docs/residency.md).
Advice advice_for(const driver::Device& device) noexcept;

// True for blocks that KVSHIM_PREFETCH moves to the GPU.
bool prefetched(std::uint64_t bytes) noexcept;

// After the CPU has placed the block: gives the advice, moves it if it is to be moved and fits, and
// waits for that. The first managed block, and the first that together with the others is more than
// the devices hold, bring one log line about what that costs. A context of the device is current.
void settle(const driver::Device& device, CUdeviceptr base, std::uint64_t bytes) noexcept;

}  // namespace kvshim::residency
