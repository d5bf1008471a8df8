// The rules of stream capture: which calls it forbids, and recording instead of running.
#include "driver/capture.h"

#include <algorithm>

#include "driver/state.h"

namespace sim {

CUresult refuse_unsafe_call() {
  const CUstreamCaptureMode mine = this_thread().capture_mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state().captures) {
    if (!capture->active || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool local = capture->thread == std::this_thread::get_id();
    const bool concerns_others =
        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mine == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!local && !concerns_others) continue;
    capture->dead = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult refuse_context_sync(Context& context) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state().captures) {
    if (!capture->active || capture->context != &context) continue;
    capture->dead = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult refuse_legacy_use(Stream& stream, bool kill) {
  if (!stream.legacy) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state().captures) {
    if (!capture->active || capture->context != stream.context) continue;
    if (!capture->origin->blocking()) continue;
    if (kill) capture->dead = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult refuse_stream_wait(Stream& stream) {
  const CUresult refused = refuse_legacy_use(stream);
  if (refused != CUDA_SUCCESS) return refused;
  if (stream.capture != nullptr) {
    stream.capture->dead = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return refuse_unsafe_call();
}

CUresult submit(Lock& lock, Stream& stream, CUgraphNodeType type, std::vector<Range> ranges,
                std::function<CUresult(Context&)> run, bool may_run_inline) {
  const CUresult refused = refuse_legacy_use(stream);
  if (refused != CUDA_SUCCESS) return refused;
  if (stream.capture != nullptr) {
    if (stream.capture->dead) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    auto node = std::make_shared<Node>();
    node->type = type;
    node->run = std::move(run);
    node->ranges = std::move(ranges);
    stream.capture->graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
  }
  auto work = std::make_shared<Work>();
  work->ranges = std::move(ranges);
  work->may_run_inline = may_run_inline;
  work->body = [run = std::move(run)](const Work& w) { return run(*w.stream->context); };
  enqueue(lock, stream, work);
  return stream.context->dead;
}

}  // namespace sim
