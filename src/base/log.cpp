// Writing a line. Everything here must be harmless in somebody else's process: no heap, no lock, no
// stdio, no signal, errno kept, no file before there is something to say, and no descriptor of the
// host's ever taken for ours.
//
// System calls are made directly where glibc's wrapper would be a thread cancellation point (write,
// open) or would bind to a recent symbol version (fstat moved in glibc 2.33, fcntl in 2.28).
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/ascii.h"

namespace kvshim::log {
namespace {

constexpr const char* kLevelNames[] = {"off", "error", "warn", "info", "debug"};
constexpr int kStderr = 2;

// ---- descriptors ----

// A reader of standard error that went away must not end the host: its SIGPIPE would come out of a
// call that natively writes nothing. So the signal of our own write is blocked and taken back.
void put(int fd, const char* text, std::size_t length) {
  sigset_t raised, before, pending;
  sigemptyset(&raised);
  sigaddset(&raised, SIGPIPE);
  sigaddset(&raised, SIGXFSZ);  // a file at RLIMIT_FSIZE
  sigemptyset(&pending);
  sigpending(&pending);
  if (sigprocmask(SIG_BLOCK, &raised, &before) != 0) return;

  int ours = 0;         // the signal that our write brought
  while (length > 0) {  // once, but for signals and pipes that are full
    const long written = syscall(SYS_write, fd, text, length);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) ours = SIGPIPE;
    if (written < 0 && errno == EFBIG) ours = SIGXFSZ;
    if (written <= 0) break;
    text += written;
    length -= static_cast<std::size_t>(written);
  }

  if (ours != 0 && sigismember(&pending, ours) != 1) {
    constexpr std::size_t kKernelSetBytes = 8;
    const timespec no_wait{};
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, ours);
    while (syscall(SYS_rt_sigtimedwait, &only, nullptr, &no_wait, kKernelSetBytes) < 0 &&
           errno == EINTR) {
    }
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

void close_fd(int fd) {
  syscall(SYS_close, fd);
}

// Appends `text` to `out` without passing `end`.
char* append(char* out, const char* end, const char* text, std::size_t length) {
  const auto room = static_cast<std::size_t>(end - out);
  if (length > room) length = room;
  memcpy(out, text, length);
  return out + length;
}

// KVSHIM_LOG_FILE with the process id in place of each %p, opened for appending. -1 and errno if
// that fails. O_NONBLOCK: a FIFO without a reader is an error, not a hang.
int open_file(const char* pattern, int pid) {
  char path[4096];
  const char* const end = path + sizeof(path) - 1;
  char digits[16];
  const auto number = fmt::format_to_n(digits, sizeof(digits), "{}", pid);
  char* out = path;
  for (const char* c = pattern; *c != '\0'; ++c) {
    if (c[0] == '%' && c[1] == 'p') {
      out = append(out, end, digits, number.size);
      ++c;
    } else {
      out = append(out, end, c, 1);
    }
  }
  *out = '\0';
  if (out == end) {
    errno = ENAMETOOLONG;
    return -1;
  }
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, 0644));
  if (fd >= 0 && fd <= kStderr) {
    // The host closed a standard descriptor. Taking its number would put the host's output into
    // our file.
    const int higher = static_cast<int>(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kStderr + 1));
    close_fd(fd);
    fd = higher;
  }
  return fd;
}

const char* reason(int error) {
  switch (error) {
    case EACCES:
      return "permission denied";
    case EISDIR:
      return "it is a directory";
    case ENOENT:
      return "no such directory";
    case ENOTDIR:
      return "a part of the path is not a directory";
    case ENAMETOOLONG:
      return "the path is too long";
    case ENOSPC:
      return "no space left";
    case EROFS:
      return "read-only file system";
    case EMFILE:
      return "too many open files";
    default:
      return "open failed";
  }
}

// ---- the log file ----

// One word: the process that opened it, and what became of that. In a forked child the word still
// names the parent. `device` and `inode` are written before the word says kFirst and more.
constinit std::atomic<std::uint64_t> opened{0};
constinit std::atomic<std::uint64_t> device{0};
constinit std::atomic<std::uint64_t> inode{0};
enum : std::uint32_t { kNone, kOpening, kFailed, kFirst };  // kFirst + n: open as descriptor n

constexpr std::uint64_t pack(int pid, std::uint32_t what) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(pid)) << 32 | what;
}
constexpr int pid_of(std::uint64_t word) {
  return static_cast<int>(word >> 32);
}
constexpr std::uint32_t what_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word);
}
constexpr int fd_of(std::uint64_t word) {
  return static_cast<int>(what_of(word) - kFirst);
}

// A host that closes descriptors it does not know (daemons do) may get our number for a file of its
// own: check before every write that it is still the file we opened.
bool still_ours(int fd) {
  struct stat now;
  return syscall(SYS_fstat, fd, &now) == 0 &&
         now.st_dev == device.load(std::memory_order_relaxed) &&
         now.st_ino == inode.load(std::memory_order_relaxed);
}

struct Target {
  int fd;
  bool close_after;
};

Target open_and_remember(const char* pattern, int pid, std::uint64_t before) {
  const int fd = open_file(pattern, pid);
  struct stat found {};
  if (fd < 0 || syscall(SYS_fstat, fd, &found) != 0) {
    const int error = errno;
    opened.store(pack(pid, kFailed), std::memory_order_release);
    log::error("KVSHIM_LOG_FILE=\"{}\": {} (error {}); writing to standard error instead", pattern,
               reason(error), error);
    return {kStderr, false};
  }
  // The parent's file, under its own pid: a forked child has no use for it.
  if (what_of(before) >= kFirst && still_ours(fd_of(before))) close_fd(fd_of(before));
  device.store(found.st_dev, std::memory_order_relaxed);
  inode.store(found.st_ino, std::memory_order_relaxed);
  opened.store(pack(pid, kFirst + static_cast<std::uint32_t>(fd)), std::memory_order_release);
  return {fd, false};
}

Target target() {
  const char* pattern = options().log_file;
  if (pattern[0] == '\0') return {kStderr, false};
  const int pid = getpid();
  const bool inherited = strstr(pattern, "%p") == nullptr;  // parent and child share one file

  std::uint64_t word = opened.load(std::memory_order_acquire);
  if (inherited || pid_of(word) == pid) {
    if (what_of(word) == kFailed) return {kStderr, false};
    if (what_of(word) >= kFirst && still_ours(fd_of(word))) return {fd_of(word), false};
  }
  if (what_of(word) != kOpening &&
      opened.compare_exchange_strong(word, pack(pid, kOpening), std::memory_order_acq_rel))
    return open_and_remember(pattern, pid, word);

  // Another thread is opening it, or was when this process was forked: no waiting, this line opens
  // the file for itself.
  const int fd = open_file(pattern, pid);
  return fd < 0 ? Target{kStderr, false} : Target{fd, true};
}

void emit(const char* text, std::size_t length) {
  const int saved_errno = errno;
  const Target to = target();
  put(to.fd, text, length);
  if (to.close_after) close_fd(to.fd);
  errno = saved_errno;
}

}  // namespace

bool enabled(LogLevel level) {
  return level != LogLevel::off && level <= options().log;
}

void write(LogLevel level, const char* text, std::size_t length) {
  char line[kLineMax];
  const auto prefix = fmt::format_to_n(line, sizeof(line), "kvshim[{}] {}: ", getpid(),
                                       kLevelNames[static_cast<unsigned>(level)]);
  char* const start = prefix.out;
  char* const last = line + sizeof(line) - 1;  // room for the newline
  char* out = append(start, last, text, length);
  // One line stays one line, whatever a path or a value has in it.
  for (char* c = start; c != out; ++c)
    if (ascii::is_control(*c)) *c = '?';
  if (length > static_cast<std::size_t>(out - start)) memcpy(out - 3, "...", 3);
  *out++ = '\n';
  emit(line, static_cast<std::size_t>(out - line));
}

void write_raw(const char* text, std::size_t length) {
  emit(text, length);
}

}  // namespace kvshim::log
