// Zeroes written by the current device.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kvshim::driver {

// Done when it returns, so that every stream finds the zeroes. In a stream of its own: the legacy
// one would wait for the program's work, and cannot be used at all while a blocking stream
// captures, not even in relaxed mode.
CUresult zero(CUdeviceptr base, std::uint64_t bytes) noexcept;

}  // namespace kvshim::driver
