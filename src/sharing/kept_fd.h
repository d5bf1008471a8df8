// Descriptors that stay open in somebody else's process, out of the way of its own. A program that
// closes numbers it does not know (daemons do) may get one of them for a file of its own: what is
// no longer the file that was put there is neither used nor closed.
#pragma once

#include <cstdint>

namespace kvshim::sharing {

// A copy of `fd` out of the low numbers, which belong to the program (select, closing loops, fixed
// numbers in scripts), and close-on-exec. -1 when the table is full up there.
int copy_up(int fd) noexcept;
// The same in place of `fd`, which is closed in any case.
int move_up(int fd) noexcept;

struct KeptFd {
  int fd = -1;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
};

KeptFd keep_fd(int fd) noexcept;  // -1 stays -1
// Still the file that was kept. Open files of one device node look the same (the driver's do).
bool is_kept(const KeptFd& kept) noexcept;
void close_kept(const KeptFd& kept) noexcept;

}  // namespace kvshim::sharing
