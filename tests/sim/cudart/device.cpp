// Devices, peers and IPC.
#include <cstring>

#include "cudart/runtime.h"

using cudart::address_of;
using cudart::note;

CUDART_API cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  return note(cudart::driver().cuDeviceGetCount_(count));
}

CUDART_API cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return note(cudaErrorInvalidValue);
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  CUdevice current = 0;
  const bool have = cudart::driver().cuCtxGetDevice_(&current) == CUDA_SUCCESS;
  *device = have ? current : cudart::current_device();
  return cudaSuccess;
}

CUDART_API cudaError_t cudaSetDevice(int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return error;
  if (device < 0 || device >= count) return note(cudaErrorInvalidDevice);
  cudart::set_current_device(device);
  // Since runtime 12 this initialises the device and makes its primary context current.
  cudart::driver().cuCtxSetCurrent_(nullptr);
  return note(cudart::with_context());
}

CUDART_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  return note(cudart::driver().cuDeviceGetAttribute_(
      value, static_cast<CUdevice_attribute>(attribute), device));
}

CUDART_API cudaError_t cudaDeviceSynchronize(void) {
  RETURN_DRIVER(cuCtxSynchronize_());
}

CUDART_API cudaError_t cudaDeviceReset(void) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  cudart::driver().cuCtxSetCurrent_(nullptr);
  return note(cudart::driver().cuDevicePrimaryCtxReset_(cudart::current_device()));
}

CUDART_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  return note(cudart::driver().cuDeviceCanAccessPeer_(can, device, peer));
}

namespace {

// The primary context of another device, retained for the peer call and never released.
cudaError_t peer_context(int device, CUcontext* context) {
  if (const cudaError_t error = cudart::with_context(); error != cudaSuccess) return error;
  return static_cast<cudaError_t>(cudart::driver().cuDevicePrimaryCtxRetain_(context, device));
}

}  // namespace

CUDART_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUcontext context = nullptr;
  if (const cudaError_t error = peer_context(peer, &context); error != cudaSuccess)
    return note(error);
  return note(cudart::driver().cuCtxEnablePeerAccess_(context, flags));
}

CUDART_API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  CUcontext context = nullptr;
  if (const cudaError_t error = peer_context(peer, &context); error != cudaSuccess)
    return note(error);
  return note(cudart::driver().cuCtxDisablePeerAccess_(context));
}

CUDART_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  RETURN_DRIVER(cuIpcGetMemHandle_(reinterpret_cast<CUipcMemHandle*>(handle), address_of(p)));
}

CUDART_API cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle driver_handle;
  std::memcpy(&driver_handle, &handle, sizeof(driver_handle));
  RETURN_DRIVER(cuIpcOpenMemHandle_(reinterpret_cast<CUdeviceptr*>(p), driver_handle, flags));
}

CUDART_API cudaError_t cudaIpcCloseMemHandle(void* p) {
  RETURN_DRIVER(cuIpcCloseMemHandle_(address_of(p)));
}
