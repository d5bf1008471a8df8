// Legacy IPC: kvshim's handles for vmm blocks, the driver's for everything else.
#include "sharing/ipc.h"
#include "hooks/hook.h"

using namespace kvshim;

namespace {

template <typename Real>
CUresult open(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags, Real real) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (!pass_through(guard) && sharing::open_mem_handle(out, handle, flags, &result)) return result;
  return real();
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr ptr) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (!pass_through(guard) && sharing::get_mem_handle(handle, ptr, &result)) return result;
  return real::cuIpcGetMemHandle(handle, ptr);
}

KVSHIM_HOOK_DEF CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle,
                                            unsigned flags) {
  return open(out, handle, flags, [&] { return real::cuIpcOpenMemHandle(out, handle, flags); });
}

KVSHIM_HOOK_DEF CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle,
                                               unsigned flags) {
  return open(out, handle, flags, [&] { return real::cuIpcOpenMemHandle_v2(out, handle, flags); });
}

KVSHIM_HOOK_DEF CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (!pass_through(guard) && sharing::close_mem_handle(ptr, &result)) return result;
  return real::cuIpcCloseMemHandle(ptr);
}
