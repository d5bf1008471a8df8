// Driver error codes as text, for log lines only.
#pragma once

#include <cuda.h>

namespace kvshim::driver {

// "CUDA_ERROR_OUT_OF_MEMORY"; static storage, never NULL.
const char* error_name(CUresult code) noexcept;

}  // namespace kvshim::driver
