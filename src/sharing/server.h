// The socket way to a block's descriptor, for peers that the kernel does not let take it themselves
// (channel.h): an abstract unix socket named by this process's nonce, and a thread that answers on
// it. Both exist from the first handle given out; a forked child has neither.
#pragma once

#include <cuda.h>

#include "sharing/board.h"
#include "sharing/ipc_handle.h"

struct sockaddr_un;

namespace kvshim::sharing {

// A peer sends the handle; this comes back, with the descriptor where there is one.
struct Answer {
  std::uint64_t magic;   // kAnswerMagic
  std::uint32_t status;  // 0: there it is; 1: no such block
  std::uint32_t reserved;
  Offer offer;
};
inline constexpr std::uint64_t kAnswerMagic = 0x317265736e417049;  // "IpAnser1" in memory

// The address for a nonce; returns its length.
unsigned server_address(std::uint64_t nonce, sockaddr_un* out) noexcept;

// Makes socket and thread unless they are there. Without them (no thread, no descriptor to be had)
// handles still work where pidfd_getfd is allowed; the next call tries again.
void start_server() noexcept;

void forget_server() noexcept;  // in a forked child

}  // namespace kvshim::sharing
