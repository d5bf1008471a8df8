// See detour.h.
#include "memory/transfers/detour.h"

namespace kvshim {

Running running_in(CUstream stream) noexcept {
  Running running;
  if (driver::cuStreamGetCtx(stream, &running.context) != CUDA_SUCCESS) {
    driver::cuCtxGetCurrent(&running.context);
  }
  running.device = driver::device_of(running.context);
  return running;
}

}  // namespace kvshim
