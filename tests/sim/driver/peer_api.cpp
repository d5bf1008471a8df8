// Which devices reach each other, and the switch per context.
#include "driver/call.h"

namespace {

using namespace sim;

bool connected(int from, int to) {
  return from != to && state().p2p[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

bool valid(CUdevice device) {
  return primary_context(device) != nullptr;
}

}  // namespace

KVSIM_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Call call({"cuDeviceCanAccessPeer"});
  call.args("device=%d peer=%d", device, peer);
  return call.run(kInit, [&](Lock&) {
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device) || !valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = connected(device, peer) ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                           CUdevice source, CUdevice target) {
  Call call({"cuDeviceGetP2PAttribute"});
  call.args("attribute=%d source=%d target=%d", static_cast<int>(attribute), source, target);
  return call.run(kInit, [&](Lock&) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(source) || !valid(target) || source == target) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = connected(source, target) ? 1 : 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

KVSIM_API CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned flags) {
  Call call({"cuCtxEnablePeerAccess"});
  call.args("peer=%p flags=%u", static_cast<void*>(peer_handle), flags);
  return call.run(kContext, [&](Lock&) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    Context* peer = find_context(peer_handle);
    if (peer == nullptr || !peer->active) return CUDA_ERROR_INVALID_CONTEXT;
    if (!connected(context->device, peer->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return context->peers.insert(peer->device).second ? CUDA_SUCCESS
                                                      : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

KVSIM_API CUresult cuCtxDisablePeerAccess(CUcontext peer_handle) {
  Call call({"cuCtxDisablePeerAccess"});
  call.args("peer=%p", static_cast<void*>(peer_handle));
  return call.run(kContext, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    Context* peer = find_context(peer_handle);
    if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return context->peers.erase(peer->device) == 1 ? CUDA_SUCCESS
                                                   : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}
