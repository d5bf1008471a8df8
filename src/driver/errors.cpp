// See errors.h. The driver itself knows the names of its codes, newer ones than our headers too.
#include "driver/errors.h"

#include "driver/functions.h"

namespace kvshim::driver {

const char* error_name(CUresult code) noexcept {
  const char* name = nullptr;
  if (cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) return "unknown error";
  return name;
}

}  // namespace kvshim::driver
