// See board.h.
#include "sharing/board.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace kvshim::sharing {

namespace {

// A memfd over RLIMIT_FSIZE ends the process with SIGXFSZ: so no more lines than the limit allows.
std::uint32_t allowed_lines() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= kBoardBytes) return kLines;
  if (limit.rlim_cur < kLinesAt) return 0;
  return static_cast<std::uint32_t>((limit.rlim_cur - kLinesAt) / sizeof(Line));
}

}  // namespace

bool Board::open(std::uint64_t nonce) noexcept {
  lines = allowed_lines();
  if (lines < 2) return false;  // the first one is never used
  const int file = move_up(memfd_create("kvshim-ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file < 0) return false;
  void* mapped = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes())) == 0) {
    mapped = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  if (mapped == MAP_FAILED) {
    close(file);
    return false;
  }
  fd = keep_fd(file);
  memory = static_cast<unsigned char*>(mapped);
  const BoardHeader header{kBoardMagic, nonce};
  memcpy(memory, &header, sizeof(header));
  // A peer holds this descriptor for a moment. From here on only this mapping writes.
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0) {
    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  }
  return true;
}

void Board::close_inherited() noexcept {
  close_kept(fd);
  if (memory != nullptr) munmap(memory, bytes());
  fd = {};
  memory = nullptr;
}

bool is_board(int fd, std::uint64_t nonce) noexcept {
  // The number comes from a handle that anybody may have made up: look before reading, since
  // reading a device or a pipe takes something away.
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) < kLinesAt ||
      static_cast<std::uint64_t>(status.st_size) > kBoardBytes) {
    return false;
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  BoardHeader header{};
  return pread(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)) &&
         header.magic == kBoardMagic && header.nonce == nonce;
}

bool read_line(int fd, std::uint32_t slot, std::uint64_t block, Offer* out) noexcept {
  if (slot >= kLines) return false;
  unsigned char bytes[sizeof(Line)];
  const auto at = static_cast<off_t>(kLinesAt + std::uint64_t{slot} * sizeof(Line));
  if (pread(fd, bytes, sizeof(bytes), at) != static_cast<ssize_t>(sizeof(bytes))) return false;
  std::uint64_t found = 0;
  memcpy(&found, bytes, sizeof(found));
  memcpy(out, bytes + offsetof(Line, offer), sizeof(*out));
  return found == block && found != 0;
}

}  // namespace kvshim::sharing
