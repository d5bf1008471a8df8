// Contexts: which device one belongs to, and calls made in another one than the thread's current.
#pragma once

#include "driver/functions.h"

namespace kvshim::driver {

// Runs `call` with `context` current on this thread and puts back what was current before.
template <typename Call>
CUresult within(CUcontext context, Call call) noexcept {
  CUresult code = cuCtxPushCurrent_v2(context);
  if (code != CUDA_SUCCESS) return code;
  code = call();
  CUcontext popped = nullptr;
  cuCtxPopCurrent_v2(&popped);
  return code;
}

// The device of a context, of the current one; -1 where the driver does not say.
CUdevice device_of(CUcontext context) noexcept;
CUdevice current_device() noexcept;

// The primary context of a device if it is active, else NULL: asking for it would create it.
CUcontext primary_context(CUdevice device) noexcept;

}  // namespace kvshim::driver
