// Stream-ordered allocation: the pools stay the driver's, counted; at and over the threshold they
// are routed like cuMemAlloc if KVSHIM_ASYNC=route. The per-thread twins forward to their twin.
#include "base/options.h"
#include "hooks/hook.h"
#include "memory/routing/route.h"
#include "telemetry/counters.h"

using namespace kvshim;
using driver::StreamZero;

namespace {

void count(std::size_t bytes) {
  telemetry::counters.pool.add(bytes);
  engine::note_use();
  if (over_threshold(bytes, options())) telemetry::counters.pool_large.add(bytes);
}

// A block that exists at once is also there in stream order. Not while the stream captures: then
// the allocation is a node of the graph.
bool may_route(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver::cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

template <typename Real>
CUresult allocate(CUdeviceptr* out, std::size_t bytes, CUstream stream, StreamZero zero,
                  Real real) {
  const Reentry guard;
  if (pass_through(guard)) return real();
  stream = driver::resolve_stream(stream, zero);
  const bool sensible = out != nullptr && bytes != 0;
  const bool takes = sensible && engine::takes_async(bytes) && may_route(stream);
  if (takes && !options().dry_run) return engine::allocate(out, bytes);
  const CUresult code = once_more(real, guard);
  if (code == CUDA_ERROR_OUT_OF_MEMORY && sensible && engine::takes_async_spill(bytes) &&
      may_route(stream)) {
    return engine::allocate(out, bytes);
  }
  if (code == CUDA_SUCCESS && takes) {
    engine::note_dry(*out, bytes);
  } else if (code == CUDA_SUCCESS) {
    count(bytes);
  }
  return code;
}

template <typename Real>
CUresult free(CUdeviceptr ptr, CUstream stream, StreamZero zero, Real real) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (!pass_through(guard) && ptr != 0 &&
      engine::free_async(ptr, driver::resolve_stream(stream, zero), &result)) {
    return result;
  }
  return real();
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  return allocate(out, bytes, stream, StreamZero::legacy,
                  [&] { return real::cuMemAllocAsync(out, bytes, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, std::size_t bytes,
                                              CUstream stream) {
  return allocate(out, bytes, stream, StreamZero::per_thread,
                  [&] { return real::cuMemAllocAsync_ptsz(out, bytes, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes,
                                                 CUmemoryPool pool, CUstream stream) {
  return allocate(out, bytes, stream, StreamZero::legacy,
                  [&] { return real::cuMemAllocFromPoolAsync(out, bytes, pool, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, std::size_t bytes,
                                                      CUmemoryPool pool, CUstream stream) {
  return allocate(out, bytes, stream, StreamZero::per_thread,
                  [&] { return real::cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
  return free(ptr, stream, StreamZero::legacy, [&] { return real::cuMemFreeAsync(ptr, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream) {
  return free(ptr, stream, StreamZero::per_thread,
              [&] { return real::cuMemFreeAsync_ptsz(ptr, stream); });
}
