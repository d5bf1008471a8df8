// See kept_fd.h.
#include "sharing/kept_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvshim::sharing {

int copy_up(int fd) noexcept {
  rlimit limit{};
  int floor = 1024;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 2 < 1024) {
    floor = static_cast<int>(limit.rlim_cur / 2);
  }
  return fcntl(fd, F_DUPFD_CLOEXEC, floor);
}

int move_up(int fd) noexcept {
  if (fd < 0) return -1;
  const int high = copy_up(fd);
  close(fd);
  return high;
}

KeptFd keep_fd(int fd) noexcept {
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) return {fd, 0, 0};
  return {fd, status.st_dev, status.st_ino};
}

bool is_kept(const KeptFd& kept) noexcept {
  struct stat now {};
  return kept.fd >= 0 && fstat(kept.fd, &now) == 0 && now.st_dev == kept.device &&
         now.st_ino == kept.inode;
}

void close_kept(const KeptFd& kept) noexcept {
  if (is_kept(kept)) close(kept.fd);
}

}  // namespace kvshim::sharing
