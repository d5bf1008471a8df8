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

// What the driver answers to a call that needs a working current context: 201 without one, 709 when
// it was destroyed, its error (700) when it is broken. Asked by cuMemGetInfo, which is allowed in
// every capture mode and leaves a capture alive (measured).
CUresult current_context_state() noexcept;

// The primary context of a device if it is active, else NULL: asking for it would create it.
CUcontext primary_context(CUdevice device) noexcept;
// The program has retained it.
void note_primary(CUdevice device, CUcontext context) noexcept;
void forget_primaries() noexcept;  // in a forked child

}  // namespace kvshim::driver
