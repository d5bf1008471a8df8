// cuStream*: creation, waiting, callbacks; and what a stream handle means.
#include <algorithm>

#include "driver/call.h"

namespace sim {
namespace {

Stream* add_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = state().next_id++;
  std::erase_if(context.streams,
                [](const auto& s) { return s->destroyed && s->queue.empty() && !s->worker; });
  context.streams.push_back(stream);
  state().streams.insert(stream.get());
  return stream.get();
}

Stream* per_thread_stream(Context& context) {
  auto& mine = this_thread().default_streams;
  for (auto& [owner, stream] : mine) {
    // A stream of a context that was reset is gone, and its address may be another stream's now.
    if (owner == &context && state().streams.count(stream) != 0 && stream->context == owner &&
        stream->per_thread)
      return stream;
  }
  Stream* stream = add_stream(context, CU_STREAM_DEFAULT, 0);
  stream->per_thread = true;
  mine.emplace_back(&context, stream);
  return stream;
}

}  // namespace

Stream* legacy_stream(Context& context) {
  for (const auto& stream : context.streams) {
    if (stream->legacy) return stream.get();
  }
  Stream* stream = add_stream(context, CU_STREAM_DEFAULT, 0);
  stream->legacy = true;
  return stream;
}

Stream* find_stream(const Api& api, CUstream handle, CUresult* why) {
  *why = CUDA_SUCCESS;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Context* context = current_context(why);
    if (context == nullptr) return nullptr;
    const bool mine = handle == CU_STREAM_PER_THREAD || (handle == nullptr && api.per_thread);
    return mine ? per_thread_stream(*context) : legacy_stream(*context);
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (state().streams.count(stream) == 0) {
    *why = CUDA_ERROR_INVALID_HANDLE;
    return nullptr;
  }
  *why = stream->context->dead;
  return *why == CUDA_SUCCESS ? stream : nullptr;
}

}  // namespace sim

namespace {

using namespace sim;

CUresult create(Api api, CUstream* out, unsigned flags, int priority) {
  Call call(api);
  call.args("flags=%u priority=%d", flags, priority);
  return call.run(kContext, [&](Lock&) {
    if (out == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    legacy_stream(*context);
    *out = reinterpret_cast<CUstream>(add_stream(*context, flags, priority));
    return CUDA_SUCCESS;
  });
}

CUresult destroy(Api api, CUstream handle) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    auto* stream = reinterpret_cast<Stream*>(handle);
    if (state().streams.count(stream) == 0 || stream->legacy || stream->per_thread)
      return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != nullptr) {
      stream->capture->dead = true;
      stream->capture->active = false;
      stream->capture = nullptr;
    }
    state().streams.erase(stream);
    stream->destroyed = true;
    return CUDA_SUCCESS;
  });
}

CUresult synchronize(Api api, CUstream handle) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_stream_wait(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    Context* context = stream->context;
    wait_stream(lock, *stream);
    return context->dead;
  });
}

CUresult query(Api api, CUstream handle) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_stream_wait(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    return stream_idle(*stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

// A host function in stream order. `in_callback` makes every driver call from it fail.
template <typename Function>
CUresult host_work(Lock& lock, Stream& stream, Function function) {
  return submit(
      lock, stream, CU_GRAPH_NODE_TYPE_HOST, {},
      [function](Context&) {
        Thread& thread = this_thread();
        thread.in_callback = true;
        function();
        thread.in_callback = false;
        return CUDA_SUCCESS;
      },
      false);
}

CUresult launch_host(Api api, CUstream handle, CUhostFn function, void* data) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    return host_work(lock, *stream, [function, data] { function(data); });
  });
}

CUresult add_callback(Api api, CUstream handle, CUstreamCallback callback, void* data,
                      unsigned flags) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    return host_work(lock, *stream, [=] { callback(handle, CUDA_SUCCESS, data); });
  });
}

// Queries of one stream: `read` fills the caller's output.
template <typename Out, typename Read>
CUresult ask(Api api, CUstream handle, Out* out, Read read) {
  Call call(api);
  call.args("stream=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    *out = read(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult get_flags(Api api, CUstream s, unsigned* out) {
  return ask(api, s, out, [](Stream& x) { return x.flags; });
}
CUresult get_priority(Api api, CUstream s, int* out) {
  return ask(api, s, out, [](Stream& x) { return x.priority; });
}
CUresult get_id(Api api, CUstream s, unsigned long long* out) {
  return ask(api, s, out, [](Stream& x) { return static_cast<unsigned long long>(x.id); });
}
CUresult get_context(Api api, CUstream s, CUcontext* out) {
  return ask(api, s, out, [](Stream& x) { return to_handle(x.context); });
}
CUresult get_device(Api api, CUstream s, CUdevice* out) {
  return ask(api, s, out, [](Stream& x) { return x.context->device; });
}

}  // namespace

KVSIM_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return create({"cuStreamCreate"}, out, flags, 0);
}
KVSIM_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return create({"cuStreamCreateWithPriority"}, out, flags, priority);
}
KVSIM_API CUresult cuStreamDestroy(CUstream s) {
  return destroy({"cuStreamDestroy"}, s);
}
KVSIM_API CUresult cuStreamDestroy_v2(CUstream s) {
  return destroy({"cuStreamDestroy_v2"}, s);
}
KVSIM_TWIN(cuStreamSynchronize, cuStreamSynchronize_ptsz, synchronize, (CUstream s), (s))
KVSIM_TWIN(cuStreamQuery, cuStreamQuery_ptsz, query, (CUstream s), (s))
KVSIM_TWIN(cuStreamGetFlags, cuStreamGetFlags_ptsz, get_flags, (CUstream s, unsigned* f), (s, f))
KVSIM_TWIN(cuStreamGetPriority, cuStreamGetPriority_ptsz, get_priority, (CUstream s, int* p),
           (s, p))
KVSIM_TWIN(cuStreamGetId, cuStreamGetId_ptsz, get_id, (CUstream s, unsigned long long* i), (s, i))
KVSIM_TWIN(cuStreamGetCtx, cuStreamGetCtx_ptsz, get_context, (CUstream s, CUcontext* c), (s, c))
KVSIM_TWIN(cuStreamGetDevice, cuStreamGetDevice_ptsz, get_device, (CUstream s, CUdevice* d), (s, d))
KVSIM_TWIN(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, launch_host,
           (CUstream s, CUhostFn function, void* data), (s, function, data))
KVSIM_TWIN(cuStreamAddCallback, cuStreamAddCallback_ptsz, add_callback,
           (CUstream s, CUstreamCallback callback, void* data, unsigned flags),
           (s, callback, data, flags))
