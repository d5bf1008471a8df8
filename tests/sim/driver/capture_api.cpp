// cuStreamBeginCapture ... cuStreamEndCapture, and the thread's capture mode.
#include <algorithm>

#include "driver/call.h"

namespace {

using namespace sim;

CUresult begin(Api api, CUstream handle, CUstreamCaptureMode mode) {
  Call call(api);
  call.args("stream=%p mode=%d", static_cast<void*>(handle), static_cast<int>(mode));
  return call.run(kInit, [&](Lock&) {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
      return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_legacy_use(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_unique<Capture>();
    capture->id = state().next_id++;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->context = stream->context;
    capture->graph = new Graph;
    stream->capture = capture.get();
    state().captures.push_back(std::move(capture));
    return CUDA_SUCCESS;
  });
}

CUresult begin_global(Api api, CUstream handle) {
  return begin(api, handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult end(Api api, CUstream handle, CUgraph* out) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    if (stream->legacy || stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    Capture* capture = stream->capture;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    const bool wrong_thread = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                              capture->thread != std::this_thread::get_id();
    capture->active = false;
    stream->capture = nullptr;
    for (Stream* other : capture->joined) other->capture = nullptr;
    *out = nullptr;
    if (capture->dead || wrong_thread || !capture->unmerged.empty()) {
      delete capture->graph;
      capture->graph = nullptr;
      if (wrong_thread) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
      return capture->dead ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    state().graphs.insert(capture->graph);
    *out = reinterpret_cast<CUgraph>(capture->graph);
    return CUDA_SUCCESS;
  });
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->dead ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// `more` fills what the newer forms of cuStreamGetCaptureInfo add.
template <typename More>
CUresult info(Api api, CUstream handle, CUstreamCaptureStatus* status, More more) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_legacy_use(*stream, false);
    if (refused != CUDA_SUCCESS) return refused;
    *status = status_of(*stream);
    more(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult is_capturing(Api api, CUstream handle, CUstreamCaptureStatus* status) {
  return info(api, handle, status, [](Stream&) {});
}
CUresult info_v1(Api api, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return info(api, handle, status, [&](Stream& stream) {
    if (id != nullptr && stream.capture != nullptr) *id = stream.capture->id;
  });
}
CUresult info_v2(Api api, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                 CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return info(api, handle, status, [&](Stream& stream) {
    if (stream.capture == nullptr) return;
    if (id != nullptr) *id = stream.capture->id;
    if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream.capture->graph);
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
  });
}
CUresult info_v3(Api api, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                 CUgraph* graph, const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                 size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return info_v2(api, handle, status, id, graph, dependencies, count);
}

}  // namespace

KVSIM_TWIN(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, begin_global, (CUstream s), (s))
KVSIM_TWIN(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, begin,
           (CUstream s, CUstreamCaptureMode m), (s, m))
KVSIM_TWIN(cuStreamEndCapture, cuStreamEndCapture_ptsz, end, (CUstream s, CUgraph* g), (s, g))
KVSIM_TWIN(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, is_capturing,
           (CUstream s, CUstreamCaptureStatus* status), (s, status))
KVSIM_TWIN(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz, info_v1,
           (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id), (s, status, id))
KVSIM_TWIN(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, info_v2,
           (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* g,
            const CUgraphNode** d, size_t* n),
           (s, status, id, g, d, n))
KVSIM_TWIN(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, info_v3,
           (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* g,
            const CUgraphNode** d, const CUgraphEdgeData** e, size_t* n),
           (s, status, id, g, d, e, n))

KVSIM_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  Call call({"cuThreadExchangeStreamCaptureMode"});
  return call.run(kInit, [&](Lock&) {
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, this_thread().capture_mode);
    return CUDA_SUCCESS;
  });
}
