// Stream-ordered allocation: the pools stay the driver's, counted; at and over the threshold they
// are routed like cuMemAlloc if KVSHIM_ASYNC=route. The per-thread twins forward to their twin.
#include "base/options.h"
#include "base/sizes.h"
#include "hooks/hook.h"
#include "memory/route.h"
#include "telemetry/counters.h"

using namespace kvshim;
using driver::StreamZero;

namespace {

bool is_large(std::size_t bytes) {
  return options().threshold != kNever && bytes >= options().threshold;
}

void count(std::size_t bytes) {
  telemetry::counters.pool.add(bytes);
  engine::note_use();
  if (is_large(bytes)) telemetry::counters.pool_large.add(bytes);
}

// A block that exists at once is also there in stream order. Not while the stream captures: then
// the allocation is a node of the graph.
bool may_route(const CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  if (out == nullptr || options().async != AsyncPolicy::route || !is_large(bytes)) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver::cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

template <typename Real>
CUresult allocate(CUdeviceptr* out, std::size_t bytes, CUstream stream, StreamZero zero,
                  Real real) {
  const Reentry guard;
  if (pass_through(guard)) return real();
  if (may_route(out, bytes, driver::resolve_stream(stream, zero))) {
    return engine::allocate(out, bytes);
  }
  const CUresult code = once_more(real, guard);
  if (code == CUDA_SUCCESS) count(bytes);
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
