// Streams, events, capture and graphs.
#include "cudart/runtime.h"

using cudart::note;

CUDART_API cudaError_t cudaStreamCreate(cudaStream_t* s) {
  RETURN_DRIVER(cuStreamCreate_(s, 0));
}
CUDART_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  RETURN_DRIVER(cuStreamCreate_(s, flags));
}
CUDART_API cudaError_t cudaStreamDestroy(cudaStream_t s) {
  RETURN_DRIVER(cuStreamDestroy_(s));
}

CUDART_API cudaError_t cudaEventCreate(cudaEvent_t* e) {
  RETURN_DRIVER(cuEventCreate_(e, 0));
}
CUDART_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  RETURN_DRIVER(cuEventCreate_(e, flags));
}
CUDART_API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  RETURN_DRIVER(cuEventDestroy_(e));
}
CUDART_API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  RETURN_DRIVER(cuEventSynchronize_(e));
}
CUDART_API cudaError_t cudaEventQuery(cudaEvent_t e) {
  RETURN_DRIVER(cuEventQuery_(e));
}

CUDART_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr) return note(cudaErrorInvalidValue);
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  return note(cudart::driver().cuThreadExchangeStreamCaptureMode_(
      reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
CUDART_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                            unsigned long long flags) {
  RETURN_DRIVER(cuGraphInstantiateWithFlags_(exec, graph, flags));
}
CUDART_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  RETURN_DRIVER(cuGraphDestroy_(graph));
}
CUDART_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RETURN_DRIVER(cuGraphExecDestroy_(exec));
}

// With the legacy default stream, and with the per-thread one.
#define STREAM_CALLS(suffix, member)                                                              \
  CUDART_API cudaError_t cudaStreamSynchronize##suffix(cudaStream_t s) {                          \
    RETURN_DRIVER(cuStreamSynchronize_##member(s));                                               \
  }                                                                                               \
  CUDART_API cudaError_t cudaStreamQuery##suffix(cudaStream_t s) {                                \
    RETURN_DRIVER(cuStreamQuery_##member(s));                                                     \
  }                                                                                               \
  CUDART_API cudaError_t cudaStreamWaitEvent##suffix(cudaStream_t s, cudaEvent_t e,               \
                                                     unsigned flags) {                            \
    RETURN_DRIVER(cuStreamWaitEvent_##member(s, e, flags));                                       \
  }                                                                                               \
  CUDART_API cudaError_t cudaEventRecord##suffix(cudaEvent_t e, cudaStream_t s) {                 \
    RETURN_DRIVER(cuEventRecord_##member(e, s));                                                  \
  }                                                                                               \
  CUDART_API cudaError_t cudaLaunchHostFunc##suffix(cudaStream_t s, cudaHostFn_t f, void* data) { \
    RETURN_DRIVER(cuLaunchHostFunc_##member(s, f, data));                                         \
  }                                                                                               \
  CUDART_API cudaError_t cudaStreamBeginCapture##suffix(cudaStream_t s,                           \
                                                        cudaStreamCaptureMode mode) {             \
    RETURN_DRIVER(cuStreamBeginCapture_##member(s, static_cast<CUstreamCaptureMode>(mode)));      \
  }                                                                                               \
  CUDART_API cudaError_t cudaStreamEndCapture##suffix(cudaStream_t s, cudaGraph_t* graph) {       \
    RETURN_DRIVER(cuStreamEndCapture_##member(s, graph));                                         \
  }                                                                                               \
  CUDART_API cudaError_t cudaStreamIsCapturing##suffix(cudaStream_t s,                            \
                                                       cudaStreamCaptureStatus* status) {         \
    RETURN_DRIVER(                                                                                \
        cuStreamIsCapturing_##member(s, reinterpret_cast<CUstreamCaptureStatus*>(status)));       \
  }                                                                                               \
  CUDART_API cudaError_t cudaGraphLaunch##suffix(cudaGraphExec_t exec, cudaStream_t s) {          \
    RETURN_DRIVER(cuGraphLaunch_##member(exec, s));                                               \
  }

STREAM_CALLS(, )
STREAM_CALLS(_ptsz, _ptsz_)

CUDART_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (const cudaError_t error = cudart::with_context(); error != cudaSuccess) return note(error);
  PFN_cuEventElapsedTime_v2000 elapsed = nullptr;
  auto& d = cudart::driver();
  const CUresult found = d.get_proc_address("cuEventElapsedTime",
                                            reinterpret_cast<void**>(&elapsed), 12080, 0, nullptr);
  if (found != CUDA_SUCCESS || elapsed == nullptr) return note(cudaErrorNotSupported);
  return note(elapsed(ms, start, end));
}
