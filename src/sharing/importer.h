// Blocks of other processes: opened once each, however often their handle is opened, and counted.
#pragma once

#include <cuda.h>

#include "memory/blocks/owner.h"
#include "sharing/ipc_handle.h"

namespace kvshim::sharing {

// cuIpcOpenMemHandle with a handle of kvshim's; NULL: one that was damaged. Errors: 201 without a
// context and in the process that made the handle; 1 for whatever does not exist (any more), with
// the reason in the log; 800 when the exporter seems alive and cannot be reached; 217 where the
// current device cannot access the exporter's; 2; the driver's. *out only on success.
CUresult open_handle(CUdeviceptr* out, const IpcHandle* handle, unsigned flags) noexcept;

// cuIpcCloseMemHandle of something that open_handle gave. False: not that, the driver's word.
bool close_opened(CUdeviceptr address, CUresult* result) noexcept;

// The context is gone, and what was opened in it.
void close_all_of(const Owner& owner) noexcept;

void forget_imports() noexcept;  // in a forked child

}  // namespace kvshim::sharing
