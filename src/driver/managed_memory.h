// cuMemAdvise and cuMemPrefetchAsync, whose place is a CUdevice in the first form and a
// CUmemLocation in the one since CUDA 12.2. From CUDA 13 on the plain names mean the second form:
// so which one a driver has is asked of cuGetProcAddress with the version that changed it, and
// never left to a header. No policy.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace kvshim::driver {

// A place that pages can be told about.
struct MemoryPlace {
  static constexpr MemoryPlace host() { return {-1}; }
  static constexpr MemoryPlace on(CUdevice device) { return {device}; }
  CUdevice device;  // -1: the CPU
};

CUresult advise(CUdeviceptr start, std::size_t bytes, CUmem_advise advice,
                MemoryPlace place) noexcept;
// Does not wait.
CUresult prefetch(CUdeviceptr start, std::size_t bytes, MemoryPlace place,
                  CUstream stream) noexcept;

}  // namespace kvshim::driver
