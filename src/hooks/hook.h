// What every wrapper includes: the real functions of all hooked names, and the way to define a
// hook. A wrapper is a few lines and clever in none: guard, out-parameter check, engine call.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "base/reentry.h"
#include "driver/function.h"
#include "driver/functions.h"
#include "driver/newer_types.h"
#include "memory/engine.h"

// cuda.h makes these the v2 forms; both exist.
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDeviceTotalMem
#undef cuGetProcAddress
#undef cuIpcOpenMemHandle
#undef cuMemGetInfo
#undef cuMemcpy3DBatchAsync
#undef cuMemcpyBatchAsync

namespace kvshim::real {

#define KVSHIM_HOOK(name, params, args) \
  inline constinit driver::Function<CUresult params> name{#name};
#include "hooks/hooks.def"
#undef KVSHIM_HOOK

}  // namespace kvshim::real

// Not noexcept: cuda.h has declared them already, without.
extern "C" {
#define KVSHIM_HOOK(name, params, args) CUresult name params;
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
}

// Exported under exactly the driver's name; the linker script lists the same names.
#define KVSHIM_HOOK_DEF extern "C" __attribute__((visibility("default")))

namespace kvshim {

// True when this call is the engine's own, or the library is off: it belongs to the driver.
inline bool pass_through(const Reentry& guard) noexcept {
  return guard.nested() || !engine::active();
}

// An allocation that stays the driver's must not fail for want of what kvshim holds back.
template <typename Real>
CUresult once_more(Real real, const Reentry& guard) noexcept {
  const CUresult code = real();
  if (code != CUDA_ERROR_OUT_OF_MEMORY || pass_through(guard) || !engine::make_room()) return code;
  return real();
}

}  // namespace kvshim
