// See contexts.h.
#include "driver/contexts.h"

namespace kvshim::driver {

CUdevice current_device() noexcept {
  CUdevice ordinal = -1;
  return cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? ordinal : -1;
}

CUdevice device_of(CUcontext context) noexcept {
  CUdevice ordinal = -1;
  if (context == nullptr) return ordinal;
  return within(context, [&] { return cuCtxGetDevice(&ordinal); }) == CUDA_SUCCESS ? ordinal : -1;
}

CUcontext primary_context(CUdevice device) noexcept {
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active == 0) {
    return nullptr;
  }
  if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

}  // namespace kvshim::driver
