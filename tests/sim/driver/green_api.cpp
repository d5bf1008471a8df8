// Green contexts: a share of a device's multiprocessors under the primary context. As documented;
// what the documentation leaves open (who owns memory allocated there) is simulated as the primary
// context's.
#include <cstring>

#include "driver/attributes.h"
#include "driver/call.h"

namespace {

using namespace sim;

constexpr unsigned kSmallest = 8;  // multiprocessors of the smallest share

CUdevResource share(unsigned units) {
  CUdevResource resource;
  std::memset(&resource, 0, sizeof(resource));
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = units;
  resource.sm.minSmPartitionSize = kSmallest;
  resource.sm.smCoscheduledAlignment = kSmallest;
  return resource;
}

struct Description {
  unsigned units;
};

Context* green(void* handle) {
  Context* context = find_context(static_cast<CUcontext>(handle));
  return context != nullptr && context->green ? context : nullptr;
}

}  // namespace

KVSIM_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* out,
                                          CUdevResourceType type) {
  Call call({"cuDeviceGetDevResource"});
  call.args("device=%d type=%d", device, static_cast<int>(type));
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *out = share(
        static_cast<unsigned>(device_attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)));
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDevSmResourceSplitByCount(CUdevResource* out, unsigned* groups,
                                               const CUdevResource* from, CUdevResource* rest,
                                               unsigned, unsigned least) {
  Call call({"cuDevSmResourceSplitByCount"});
  return call.run(kInit, [&](Lock&) {
    if (groups == nullptr || from == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (from->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const auto each =
        static_cast<unsigned>(round_up(least < kSmallest ? kSmallest : least, kSmallest));
    const unsigned possible = from->sm.smCount / each;
    if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (out == nullptr) {
      *groups = possible;
      return CUDA_SUCCESS;
    }
    if (*groups > possible) *groups = possible;
    for (unsigned i = 0; i < *groups; ++i) out[i] = share(each);
    if (rest != nullptr) *rest = share(from->sm.smCount - *groups * each);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources,
                                             unsigned count) {
  Call call({"cuDevResourceGenerateDesc"});
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || resources == nullptr || count != 1) return CUDA_ERROR_INVALID_VALUE;
    if (resources->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    // Never given back: the interface has no call for it.
    *out = reinterpret_cast<CUdevResourceDesc>(new Description{resources->sm.smCount});
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc description, CUdevice device,
                                    unsigned flags) {
  Call call({"cuGreenCtxCreate"});
  call.args("device=%d flags=%u", device, flags);
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || description == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM)
      return CUDA_ERROR_INVALID_VALUE;
    Context* primary = primary_context(device);
    if (primary == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (!primary->active || primary->id == 0) primary->id = state().next_id++;
    primary->active = true;
    ++primary->retains;
    auto context = std::make_unique<Context>();
    context->device = device;
    context->green = true;
    context->id = state().next_id++;
    *out = reinterpret_cast<CUgreenCtx>(context.get());
    state().contexts.push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  Call call({"cuCtxFromGreenCtx"});
  call.args("green=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = green(handle);
    if (context == nullptr || !context->active) return CUDA_ERROR_INVALID_CONTEXT;
    *out = to_handle(context);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  Call call({"cuGreenCtxDestroy"});
  call.args("green=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    Context* context = green(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    close_context(lock, *context);
    Context* primary = primary_context(context->device);
    if (primary->retains > 0 && --primary->retains == 0 && primary->active)
      close_context(lock, *primary);
    return CUDA_SUCCESS;
  });
}
