// See detour.h.
#include "memory/detour.h"

namespace kvshim {

bool only_the_driver(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver::cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Running running_in(CUstream stream) noexcept {
  Running running;
  if (driver::cuStreamGetCtx(stream, &running.context) != CUDA_SUCCESS) {
    driver::cuCtxGetCurrent(&running.context);
  }
  running.device = driver::device_of(running.context);
  return running;
}

}  // namespace kvshim
