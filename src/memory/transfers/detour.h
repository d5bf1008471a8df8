// A copy in a context of one device with a vmm block of another one, which the driver has refused
// with 1 for want of access: the same copy by another way.
#pragma once

#include "driver/capture.h"
#include "driver/contexts.h"
#include "memory/blocks/owner.h"

namespace kvshim {

// What follows on a refusal. `again`: ask the driver once more (a device has gained access);
// `done`: carried out another way, with its own result; `stands`: the 1 is right.
enum class Retry : unsigned char { stands, again, done };

// The context that the stream's work runs in.
struct Running {
  CUcontext context = nullptr;
  CUdevice device = -1;  // -1: the driver does not say
};
Running running_in(CUstream stream) noexcept;

// Runs `call`, which gives work to a stream of the owner's context, between what `stream` (of
// `running`) has been given already and what comes after it. Never in a stream of the program's:
// that one may capture, or wait for what only comes after this call.
template <typename Call>
CUresult detour(const Running& running, CUstream stream, bool wait, Owner& owner,
                Call call) noexcept {
  const driver::RelaxedCapture relaxed;  // waiting would end another stream's capture
  CUevent before = nullptr;
  CUevent after = nullptr;
  CUresult code = driver::within(running.context, [&] {
    const CUresult made = driver::cuEventCreate(&before, CU_EVENT_DISABLE_TIMING);
    return made == CUDA_SUCCESS ? driver::cuEventRecord(before, stream) : made;
  });
  if (code == CUDA_SUCCESS) {
    code = driver::within(owner.context(), [&] {
      CUstream aside = nullptr;
      CUresult step = owner.take_stream(&aside);
      if (step != CUDA_SUCCESS) return step;
      step = driver::cuEventCreate(&after, CU_EVENT_DISABLE_TIMING);
      if (step == CUDA_SUCCESS) step = driver::cuStreamWaitEvent(aside, before, 0);
      if (step == CUDA_SUCCESS) step = call(aside);
      if (step == CUDA_SUCCESS) step = driver::cuEventRecord(after, aside);
      if (step == CUDA_SUCCESS && wait) step = driver::cuStreamSynchronize(aside);
      owner.give_stream(aside);
      return step;
    });
  }
  if (code == CUDA_SUCCESS) {
    code = driver::within(running.context,
                          [&] { return driver::cuStreamWaitEvent(stream, after, 0); });
  }
  if (before != nullptr) driver::cuEventDestroy_v2(before);
  if (after != nullptr) driver::cuEventDestroy_v2(after);
  return code;
}

}  // namespace kvshim
