// cuEvent* and cuStreamWaitEvent.
#include "driver/call.h"

namespace {

using namespace sim;

std::shared_ptr<Event> find_event(CUevent handle) {
  auto& events = state().events;
  const auto it = events.find(reinterpret_cast<Event*>(handle));
  return it == events.end() ? nullptr : it->second;
}

std::shared_ptr<Work> marker() {
  auto work = std::make_shared<Work>();
  work->may_run_inline = true;
  return work;
}

CUresult record(Api api, CUevent handle, CUstream stream_handle) {
  Call call(api);
  call.args("event=%p stream=%p", static_cast<void*>(handle), static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    const auto event = find_event(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    if (stream->context != event->context) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult refused = refuse_legacy_use(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->capture != nullptr) {
      if (stream->capture->dead) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      event->capture = stream->capture;
      event->captured_on = stream;
      return CUDA_SUCCESS;
    }
    event->capture = nullptr;
    event->work = marker();
    enqueue(lock, *stream, event->work);
    return CUDA_SUCCESS;
  });
}

CUresult record_with_flags(Api api, CUevent event, CUstream stream, unsigned) {
  return record(api, event, stream);
}

CUresult wait_event(Api api, CUstream stream_handle, CUevent handle, unsigned flags) {
  Call call(api);
  call.args("stream=%p event=%p", static_cast<void*>(stream_handle), static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    if (flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    const auto event = find_event(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_legacy_use(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (event->capture != nullptr) {
      Capture* capture = event->capture;
      if (!capture->active) return CUDA_ERROR_CAPTURED_EVENT;
      if (stream->capture == nullptr) {
        stream->capture = capture;
        capture->joined.push_back(stream);
        capture->unmerged.push_back(stream);
      } else if (stream->capture != capture) {
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      } else {
        std::erase(capture->unmerged, event->captured_on);
      }
      return CUDA_SUCCESS;
    }
    if (stream->capture != nullptr) {
      stream->capture->dead = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (event->work == nullptr || event->work->done) return CUDA_SUCCESS;
    auto work = marker();
    work->after.push_back(event->work);
    enqueue(lock, *stream, work);
    return CUDA_SUCCESS;
  });
}

CUresult destroy(Api api, CUevent handle) {
  Call call(api);
  call.args("event=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    return state().events.erase(reinterpret_cast<Event*>(handle)) == 1 ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult elapsed(Api api, float* milliseconds, CUevent start, CUevent end) {
  Call call(api);
  return call.run(kInit, [&](Lock&) {
    const auto first = find_event(start);
    const auto second = find_event(end);
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (first == nullptr || second == nullptr || first->work == nullptr ||
        second->work == nullptr || ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0)
      return CUDA_ERROR_INVALID_HANDLE;
    if (!first->work->done || !second->work->done) return CUDA_ERROR_NOT_READY;
    const std::chrono::duration<float, std::milli> span =
        second->work->finished - first->work->finished;
    *milliseconds = span.count();
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVSIM_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  Call call({"cuEventCreate"});
  call.args("flags=%u", flags);
  return call.run(kContext, [&](Lock&) {
    if (out == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    auto event = std::make_shared<Event>();
    event->context = current_context(&why);
    event->flags = flags;
    *out = reinterpret_cast<CUevent>(event.get());
    state().events[event.get()] = event;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuEventQuery(CUevent handle) {
  Call call({"cuEventQuery"});
  call.args("event=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    const auto event = find_event(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->context->dead != CUDA_SUCCESS) return event->context->dead;
    if (event->capture != nullptr) {
      if (event->capture->active) event->capture->dead = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    const CUresult refused = refuse_unsafe_call();
    if (refused != CUDA_SUCCESS) return refused;
    const bool done = event->work == nullptr || event->work->done;
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

KVSIM_API CUresult cuEventSynchronize(CUevent handle) {
  Call call({"cuEventSynchronize"});
  call.args("event=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    const auto event = find_event(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture != nullptr) {
      if (event->capture->active) event->capture->dead = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    const CUresult refused = refuse_unsafe_call();
    if (refused != CUDA_SUCCESS) return refused;
    wait_work(lock, event->work);
    return event->context->dead;
  });
}

KVSIM_API CUresult cuEventDestroy(CUevent e) {
  return destroy({"cuEventDestroy"}, e);
}
KVSIM_API CUresult cuEventDestroy_v2(CUevent e) {
  return destroy({"cuEventDestroy_v2"}, e);
}
KVSIM_API CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return elapsed({"cuEventElapsedTime"}, ms, start, end);
}
KVSIM_API CUresult cuEventElapsedTime_v2(float* ms, CUevent start, CUevent end) {
  return elapsed({"cuEventElapsedTime_v2"}, ms, start, end);
}
KVSIM_TWIN(cuEventRecord, cuEventRecord_ptsz, record, (CUevent e, CUstream s), (e, s))
KVSIM_TWIN(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, record_with_flags,
           (CUevent e, CUstream s, unsigned f), (e, s, f))
KVSIM_TWIN(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, wait_event,
           (CUstream s, CUevent e, unsigned f), (s, e, f))
