// See zero.h.
#include "driver/zero.h"

#include "driver/capture.h"
#include "driver/functions.h"

namespace kvshim::driver {

CUresult zero(CUdeviceptr base, std::uint64_t bytes) noexcept {
  const RelaxedCapture relaxed;
  CUstream stream = nullptr;
  CUresult code = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  if (code != CUDA_SUCCESS) return code;
  code = cuMemsetD8Async(base, 0, bytes, stream);
  const CUresult done = cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
  return code != CUDA_SUCCESS ? code : done;
}

}  // namespace kvshim::driver
