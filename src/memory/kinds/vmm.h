// The vmm kind: one physical allocation, mapped once. Its pages never move while it lives, and it
// can be exported with the device's proved handle type.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "driver/device.h"

namespace kvshim::vmm {

struct Mapping {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;                  // physical, a multiple of the device's granularity
  CUmemGenericAllocationHandle handle = 0;  // 0: of several handles, kept by the mapping alone
};

// Creates, reserves, maps and gives the device itself access: exactly one handle, however large
// (a buffer of many handles copies and memsets a quarter slower, measured). `bytes` is rounded up.
// On failure everything done so far is undone in reverse and *out is left alone. Errors: the
// driver's; CUDA_ERROR_NOT_SUPPORTED once the device has refused VMM memory for good. Needs no
// context and never waits.
CUresult create(driver::Device& device, std::uint64_t bytes, Mapping* out) noexcept;

// Unmaps, releases, frees the address range. The caller has made sure that no work uses it. A step
// that the driver refuses is logged; an address whose unmapping failed is never given back. False:
// the physical memory was not given back either, and is lost.
bool destroy(const Mapping& mapping) noexcept;

}  // namespace kvshim::vmm
