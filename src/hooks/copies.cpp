// cuMemcpy of linear memory, of rectangles and of boxes, in all forms but the batches. The driver
// does the work; see memory/transfers/copies.h for what is refused before it and what follows on
// its refusal.
#include "memory/transfers/copies.h"
#include "hooks/hook.h"

using namespace kvshim;
using copies::Box;
using copies::Form;
using copies::Linear;
using copies::Rectangle;
using copies::Retry;
using copies::Verdict;
using driver::StreamZero;

namespace {

template <typename Copy, typename Real>
CUresult finish(const Copy& copy, Real real) {
  CUresult code = real();
  // "Again" is said once for a device, and the access gained then need not be what was lacking.
  while (code == CUDA_ERROR_INVALID_VALUE && copies::retry(copy, &code) == Retry::again) {
    code = real();
  }
  return code;
}

template <typename Copy, typename Real>
CUresult run(const Copy& copy, Real real) {
  const Reentry guard;
  if (pass_through(guard)) return real();
  switch (copies::judge(copy)) {
    case Verdict::forward:
      return real();
    case Verdict::refused:
      return CUDA_ERROR_INVALID_VALUE;
    case Verdict::ours:
      break;
  }
  return finish(copy, real);
}

// Only the end of a block counts.
template <typename Real>
CUresult bounded(const Linear& copy, Real real) {
  const Reentry guard;
  if (!pass_through(guard) && copies::judge(copy) == Verdict::refused) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return real();
}

template <typename Real>
CUresult rectangle(const CUDA_MEMCPY2D* what, CUstream stream, StreamZero zero, bool wait,
                   Real real) {
  if (what == nullptr) return real();
  return run(Rectangle{what, driver::resolve_stream(stream, zero), wait}, real);
}

template <typename Real>
CUresult box(const CUDA_MEMCPY3D* what, CUstream stream, StreamZero zero, bool wait, Real real) {
  if (what == nullptr) return real();
  return run(Box{what, driver::resolve_stream(stream, zero), wait}, real);
}

CUdeviceptr at_side(CUdeviceptr device) {
  return device;
}
CUdeviceptr at_side(const void* host) {
  return reinterpret_cast<CUdeviceptr>(host);
}

}  // namespace

// A blocking form with its per-thread twin, and an Async form with its own.
#define KVSHIM_COPY(name, suffix, To, From, form)                                           \
  KVSHIM_HOOK_DEF CUresult name##suffix(To to, From from, std::size_t bytes) {              \
    return run(Linear{at_side(to), at_side(from), bytes, CU_STREAM_LEGACY, true, form},     \
               [&] { return real::name##suffix(to, from, bytes); });                        \
  }                                                                                         \
  KVSHIM_HOOK_DEF CUresult name##suffix##_ptds(To to, From from, std::size_t bytes) {       \
    return run(Linear{at_side(to), at_side(from), bytes, CU_STREAM_PER_THREAD, true, form}, \
               [&] { return real::name##suffix##_ptds(to, from, bytes); });                 \
  }                                                                                         \
  KVSHIM_HOOK_DEF CUresult name##Async##suffix(To to, From from, std::size_t bytes,         \
                                               CUstream stream) {                           \
    return run(Linear{at_side(to), at_side(from), bytes,                                    \
                      driver::resolve_stream(stream, StreamZero::legacy), false, form},     \
               [&] { return real::name##Async##suffix(to, from, bytes, stream); });         \
  }                                                                                         \
  KVSHIM_HOOK_DEF CUresult name##Async##suffix##_ptsz(To to, From from, std::size_t bytes,  \
                                                      CUstream stream) {                    \
    return run(Linear{at_side(to), at_side(from), bytes,                                    \
                      driver::resolve_stream(stream, StreamZero::per_thread), false, form}, \
               [&] { return real::name##Async##suffix##_ptsz(to, from, bytes, stream); });  \
  }

KVSHIM_COPY(cuMemcpy, , CUdeviceptr, CUdeviceptr, Form::any)
KVSHIM_COPY(cuMemcpyHtoD, _v2, CUdeviceptr, const void*, Form::to_device)
KVSHIM_COPY(cuMemcpyDtoH, _v2, void*, CUdeviceptr, Form::to_host)
KVSHIM_COPY(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr, Form::on_device)

KVSHIM_HOOK_DEF CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* what) {
  return rectangle(what, nullptr, StreamZero::legacy, true,
                   [&] { return real::cuMemcpy2D_v2(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* what) {
  return rectangle(what, nullptr, StreamZero::per_thread, true,
                   [&] { return real::cuMemcpy2D_v2_ptds(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* what) {
  return rectangle(what, nullptr, StreamZero::legacy, true,
                   [&] { return real::cuMemcpy2DUnaligned_v2(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* what) {
  return rectangle(what, nullptr, StreamZero::per_thread, true,
                   [&] { return real::cuMemcpy2DUnaligned_v2_ptds(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* what, CUstream stream) {
  return rectangle(what, stream, StreamZero::legacy, false,
                   [&] { return real::cuMemcpy2DAsync_v2(what, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* what, CUstream stream) {
  return rectangle(what, stream, StreamZero::per_thread, false,
                   [&] { return real::cuMemcpy2DAsync_v2_ptsz(what, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* what) {
  return box(what, nullptr, StreamZero::legacy, true, [&] { return real::cuMemcpy3D_v2(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* what) {
  return box(what, nullptr, StreamZero::per_thread, true,
             [&] { return real::cuMemcpy3D_v2_ptds(what); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* what, CUstream stream) {
  return box(what, stream, StreamZero::legacy, false,
             [&] { return real::cuMemcpy3DAsync_v2(what, stream); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* what, CUstream stream) {
  return box(what, stream, StreamZero::per_thread, false,
             [&] { return real::cuMemcpy3DAsync_v2_ptsz(what, stream); });
}

// The program names the contexts, so there is no other way to try.
KVSHIM_HOOK_DEF CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                      CUcontext from_context, std::size_t bytes) {
  return bounded(Linear{to, from, bytes, CU_STREAM_LEGACY, true},
                 [&] { return real::cuMemcpyPeer(to, to_context, from, from_context, bytes); });
}

KVSHIM_HOOK_DEF CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                           CUcontext from_context, std::size_t bytes) {
  return bounded(Linear{to, from, bytes, CU_STREAM_PER_THREAD, true}, [&] {
    return real::cuMemcpyPeer_ptds(to, to_context, from, from_context, bytes);
  });
}

KVSHIM_HOOK_DEF CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                           CUcontext from_context, std::size_t bytes,
                                           CUstream stream) {
  const CUstream named = driver::resolve_stream(stream, StreamZero::legacy);
  return bounded(Linear{to, from, bytes, named, false}, [&] {
    return real::cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream);
  });
}

KVSHIM_HOOK_DEF CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context,
                                                CUdeviceptr from, CUcontext from_context,
                                                std::size_t bytes, CUstream stream) {
  const CUstream named = driver::resolve_stream(stream, StreamZero::per_thread);
  return bounded(Linear{to, from, bytes, named, false}, [&] {
    return real::cuMemcpyPeerAsync_ptsz(to, to_context, from, from_context, bytes, stream);
  });
}
