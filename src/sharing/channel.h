// How a peer gets at a block that another process offers. First without that process's help:
// pidfd_open and pidfd_getfd, which the kernel allows where ptrace is. Where it refuses (EPERM in
// containers, ENOSYS before Linux 5.6, Yama's ptrace_scope, another pid namespace): over the
// exporter's socket (server.h). Nothing here waits longer than a second.
#pragma once

#include "sharing/board.h"
#include "sharing/ipc_handle.h"

namespace kvshim::sharing {

enum class Fetched : std::uint8_t {
  ok,
  gone,     // the process or the block is not there (any more)
  blocked,  // the process seems alive, and no way to it is open
};

// On success *fd is the caller's to close (-1 for a fabric handle). `why` is set to a constant text
// that says what was found otherwise.
Fetched fetch(const IpcHandle& handle, Offer* offer, int* fd, const char** why) noexcept;

}  // namespace kvshim::sharing
