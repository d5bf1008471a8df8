// See contexts.h.
#include "driver/contexts.h"

#include <atomic>

#include "driver/device.h"

namespace kvshim::driver {

namespace {

// As the program has retained them. To retain one here, for a moment, would be to destroy it where
// the program's last release falls into that moment.
constinit std::atomic<CUcontext> primaries[kMaxDevices] = {};

}  // namespace

CUdevice current_device() noexcept {
  CUdevice ordinal = -1;
  return cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? ordinal : -1;
}

CUdevice device_of(CUcontext context) noexcept {
  CUdevice ordinal = -1;
  if (context == nullptr) return ordinal;
  return within(context, [&] { return cuCtxGetDevice(&ordinal); }) == CUDA_SUCCESS ? ordinal : -1;
}

CUresult current_context_state() noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  return cuMemGetInfo_v2(&free, &total);
}

void note_primary(CUdevice device, CUcontext context) noexcept {
  if (device < 0 || device >= kMaxDevices) return;
  primaries[device].store(context, std::memory_order_release);
}

void forget_primaries() noexcept {
  for (std::atomic<CUcontext>& primary : primaries) {
    primary.store(nullptr, std::memory_order_relaxed);
  }
}

CUcontext primary_context(CUdevice device) noexcept {
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active == 0) {
    return nullptr;
  }
  if (device >= 0 && device < kMaxDevices) {
    context = primaries[device].load(std::memory_order_acquire);
    if (context != nullptr) return context;
  }
  // Nobody's retain came past us: a green context's, or that of code which bypasses the preload.
  if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

}  // namespace kvshim::driver
