// cuCtx* and cuDevicePrimaryCtx*.
#include "driver/call.h"

namespace {

using namespace sim;

void activate(Context& context) {
  if (context.active && context.id != 0) return;
  context.active = true;
  context.id = state().next_id++;
}

CUresult create(Api api, CUcontext* out, unsigned flags, CUdevice device, unsigned version) {
  Call call(api);
  call.args("flags=%u device=%d", flags, device);
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const CUresult dead = state().devices[static_cast<std::size_t>(device)].dead;
    if (dead != CUDA_SUCCESS) return dead;
    auto context = std::make_unique<Context>();
    context->device = device;
    context->flags = flags;
    context->version = version;
    activate(*context);
    context->id = state().next_id++;
    this_thread().stack.push_back(context.get());
    *out = to_handle(context.get());
    state().contexts.push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUresult release_primary(Api api, CUdevice device) {
  Call call(api);
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock& lock) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (context->retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retains == 0 && context->active) close_context(lock, *context);
    return CUDA_SUCCESS;
  });
}

CUresult reset_primary(Api api, CUdevice device) {
  Call call(api);
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock& lock) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    // References stay counted: a release after a reset succeeds. The next retain activates it
    // again.
    if (context->active) close_context(lock, *context);
    return CUDA_SUCCESS;
  });
}

CUresult set_primary_flags(Api api, CUdevice device, unsigned flags) {
  Call call(api);
  call.args("device=%d flags=%u", device, flags);
  return call.run(kInit, [&](Lock&) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    context->flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult destroy(Api api, CUcontext handle) {
  Call call(api);
  call.args("context=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = find_context(handle);
    if (context == nullptr || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    close_context(lock, *context);
    auto& stack = this_thread().stack;
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult push(Api api, CUcontext handle) {
  Call call(api);
  call.args("context=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = find_context(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    this_thread().stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult pop(Api api, CUcontext* out) {
  Call call(api);
  return call.run(kInit, [&](Lock&) {
    auto& stack = this_thread().stack;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out != nullptr) *out = to_handle(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

// The context that a call with an explicit context argument means; null is the current one.
CUresult chosen_context(CUcontext handle, Context** context) {
  CUresult why = CUDA_SUCCESS;
  if (handle == nullptr) {
    *context = current_context(&why);
    return why;
  }
  *context = find_context(handle);
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return (*context)->active ? (*context)->dead : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult synchronize(Api api, CUcontext handle) {
  Call call(api);
  return call.run(kInit, [&](Lock& lock) {
    Context* context = nullptr;
    CUresult result = chosen_context(handle, &context);
    if (result != CUDA_SUCCESS) return result;
    result = refuse_context_sync(*context);
    if (result != CUDA_SUCCESS) return result;
    wait_context(lock, *context);
    return context->dead;
  });
}

CUresult get_device(Api api, CUdevice* device, CUcontext handle) {
  Call call(api);
  return call.run(kInit, [&](Lock&) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    const CUresult result = chosen_context(handle, &context);
    // A dead or destroyed context still knows its device.
    if (context == nullptr && (handle != nullptr || this_thread().stack.empty())) return result;
    if (context == nullptr) context = this_thread().stack.back();
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult context_create_v1(CUcontext* out, unsigned flags, CUdevice device)
    KVSIM_SYMBOL("cuCtxCreate") __attribute__((visibility("default")));
CUresult context_create_v1(CUcontext* out, unsigned flags, CUdevice device) {
  return create({"cuCtxCreate"}, out, flags, device, 3010);
}
KVSIM_API CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return create({"cuCtxCreate_v2"}, out, flags, device, 3020);
}
KVSIM_API CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int, unsigned flags,
                                  CUdevice device) {
  return create({"cuCtxCreate_v3"}, out, flags, device, 3020);
}
KVSIM_API CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned flags,
                                  CUdevice device) {
  return create({"cuCtxCreate_v4"}, out, flags, device, 3020);
}
KVSIM_API CUresult cuCtxDestroy(CUcontext handle) {
  return destroy({"cuCtxDestroy"}, handle);
}
KVSIM_API CUresult cuCtxDestroy_v2(CUcontext handle) {
  return destroy({"cuCtxDestroy_v2"}, handle);
}
KVSIM_API CUresult cuCtxPushCurrent(CUcontext handle) {
  return push({"cuCtxPushCurrent"}, handle);
}
KVSIM_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return push({"cuCtxPushCurrent_v2"}, handle);
}
KVSIM_API CUresult cuCtxPopCurrent(CUcontext* out) {
  return pop({"cuCtxPopCurrent"}, out);
}
KVSIM_API CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  return pop({"cuCtxPopCurrent_v2"}, out);
}

KVSIM_API CUresult cuCtxSetCurrent(CUcontext handle) {
  Call call({"cuCtxSetCurrent"});
  call.args("context=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    auto& stack = this_thread().stack;
    Context* context = handle == nullptr ? nullptr : find_context(handle);
    if (handle != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    // A destroyed context can be made current: what is called with it then answers 709.
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxGetCurrent(CUcontext* out) {
  Call call({"cuCtxGetCurrent"});
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto& stack = this_thread().stack;
    *out = stack.empty() ? nullptr : to_handle(stack.back());
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxGetDevice(CUdevice* device) {
  return get_device({"cuCtxGetDevice"}, device, nullptr);
}
KVSIM_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  return get_device({"cuCtxGetDevice_v2"}, device, context);
}
KVSIM_API CUresult cuCtxSynchronize(void) {
  return synchronize({"cuCtxSynchronize"}, nullptr);
}
KVSIM_API CUresult cuCtxSynchronize_v2(CUcontext context) {
  return synchronize({"cuCtxSynchronize_v2"}, context);
}

KVSIM_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  Call call({"cuCtxGetId"});
  return call.run(kInit, [&](Lock&) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    const CUresult result = chosen_context(handle, &context);
    if (context != nullptr) *id = context->id;
    return result;
  });
}

KVSIM_API CUresult cuCtxGetFlags(unsigned* flags) {
  Call call({"cuCtxGetFlags"});
  return call.run(kContext, [&](Lock&) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = this_thread().stack.back()->flags;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  Call call({"cuCtxGetApiVersion"});
  return call.run(kInit, [&](Lock&) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = nullptr;
    const CUresult result = chosen_context(handle, &context);
    if (context != nullptr) *version = context->version;
    return result;
  });
}

KVSIM_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Call call({"cuCtxSetLimit"});
  return call.run(kContext, [&](Lock&) {
    if (static_cast<unsigned>(limit) >= 16) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    this_thread().stack.back()->limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  Call call({"cuCtxGetLimit"});
  return call.run(kContext, [&](Lock&) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (static_cast<unsigned>(limit) >= 16) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = this_thread().stack.back()->limits[limit];
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call({"cuCtxGetStreamPriorityRange"});
  return call.run(kContext, [&](Lock&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Call call({"cuDevicePrimaryCtxRetain"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    Context* context = primary_context(device);
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (context->dead != CUDA_SUCCESS && !context->active) return context->dead;
    activate(*context);
    ++context->retains;
    *out = to_handle(context);
    return CUDA_SUCCESS;
  });
}
KVSIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_primary({"cuDevicePrimaryCtxRelease"}, device);
}
KVSIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary({"cuDevicePrimaryCtxRelease_v2"}, device);
}
KVSIM_API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset_primary({"cuDevicePrimaryCtxReset"}, device);
}
KVSIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset_primary({"cuDevicePrimaryCtxReset_v2"}, device);
}
KVSIM_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return set_primary_flags({"cuDevicePrimaryCtxSetFlags"}, device, flags);
}
KVSIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return set_primary_flags({"cuDevicePrimaryCtxSetFlags_v2"}, device, flags);
}
KVSIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  Call call({"cuDevicePrimaryCtxGetState"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != nullptr) *flags = context->flags;
    if (active != nullptr) *active = context->active ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
