// The end of a context: natively its memory goes with it, so kvshim's blocks do.
#include "driver/contexts.h"
#include "hooks/hook.h"

using namespace kvshim;

namespace {

// Destroys by `real`; when the driver did it, the context's blocks are gone.
template <typename Real>
CUresult destroy(CUcontext context, Real real) {
  const Reentry guard;
  if (pass_through(guard) || context == nullptr) return real();
  const engine::Destruction destruction = engine::before_destroy(context);
  const CUresult code = real();
  engine::after_destroy(destruction, code == CUDA_SUCCESS);
  return code;
}

bool is_active(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  return driver::cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

// The last release destroys it; earlier ones do not.
template <typename Real>
CUresult release(CUdevice device, Real real) {
  const Reentry guard;
  if (pass_through(guard)) return real();
  const engine::Destruction destruction = engine::before_destroy(driver::primary_context(device));
  const CUresult code = real();
  engine::after_destroy(destruction, code == CUDA_SUCCESS && !is_active(device));
  return code;
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuCtxDestroy(CUcontext context) {
  return destroy(context, [&] { return real::cuCtxDestroy(context); });
}

KVSHIM_HOOK_DEF CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(context, [&] { return real::cuCtxDestroy_v2(context); });
}

// Releases the primary context too, which may end with it.
KVSHIM_HOOK_DEF CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  const Reentry guard;
  CUcontext context = nullptr;
  if (pass_through(guard) || driver::cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS) {
    return real::cuGreenCtxDestroy(green);
  }
  const CUdevice device = driver::device_of(context);
  const engine::Destruction own = engine::before_destroy(context);
  const engine::Destruction primary = engine::before_destroy(driver::primary_context(device));
  const CUresult code = real::cuGreenCtxDestroy(green);
  engine::after_destroy(own, code == CUDA_SUCCESS);
  engine::after_destroy(primary, code == CUDA_SUCCESS && !is_active(device));
  return code;
}

KVSHIM_HOOK_DEF CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  const CUresult code = real::cuDevicePrimaryCtxRetain(out, device);
  if (code == CUDA_SUCCESS) driver::note_primary(device, *out);
  return code;
}

KVSHIM_HOOK_DEF CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release(device, [&] { return real::cuDevicePrimaryCtxRelease(device); });
}

KVSHIM_HOOK_DEF CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release(device, [&] { return real::cuDevicePrimaryCtxRelease_v2(device); });
}

KVSHIM_HOOK_DEF CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return destroy(driver::primary_context(device),
                 [&] { return real::cuDevicePrimaryCtxReset(device); });
}

KVSHIM_HOOK_DEF CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return destroy(driver::primary_context(device),
                 [&] { return real::cuDevicePrimaryCtxReset_v2(device); });
}
