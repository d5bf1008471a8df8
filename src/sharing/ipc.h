// Legacy IPC on vmm blocks, for the hooks. Each function answers "not mine" with false: then the
// driver has the word, in both directions (its own handles, its own memory).
#pragma once

#include <cuda.h>

namespace kvshim::sharing {

// cuIpcGetMemHandle.
bool get_mem_handle(CUipcMemHandle* out, CUdeviceptr address, CUresult* result) noexcept;
// cuIpcOpenMemHandle. `out` may be NULL. Waits at most a second, for a process that does not
// answer.
bool open_mem_handle(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags,
                     CUresult* result) noexcept;
// cuIpcCloseMemHandle: the last close waits for the work of the context that opened the memory.
bool close_mem_handle(CUdeviceptr address, CUresult* result) noexcept;

}  // namespace kvshim::sharing
