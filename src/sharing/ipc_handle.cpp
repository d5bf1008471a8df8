// See ipc_handle.h.
#include "sharing/ipc_handle.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/format.h"
#include "base/lock.h"

namespace kvshim::sharing {

namespace {

constexpr std::uint64_t kFamily = 0x6370496d69687376;  // "vshimIpc" in memory
constexpr std::uint64_t kMagic = kFamily + 1;          // plus the version; 255 of them
constexpr std::uint64_t kVersions = 256;

constinit Lock lock;
constinit bool known = false;
constinit IpcHandle me{};

std::uint64_t hash(const void* data, std::size_t bytes) noexcept {  // FNV-1a
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t value = 0xcbf29ce484222325;
  for (std::size_t index = 0; index < bytes; ++index) {
    value = (value ^ at[index]) * 0x100000001b3;
  }
  return value;
}

// The file's beginning as a C string; "" where it cannot be read.
template <std::size_t Size>
std::size_t read_text(const char* path, char (&text)[Size]) noexcept {
  text[0] = '\0';
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, text, Size - 1);
  close(file);
  const std::size_t length = got > 0 ? static_cast<std::size_t>(got) : 0;
  text[length] = '\0';
  return length;
}

struct Status {
  std::uint64_t start = 0;  // 0: cannot be read
  bool ended = false;       // only waiting to be reaped
};

Status status_of(std::uint32_t pid) noexcept {
  char path[32];
  char text[1024];
  format_into(path, "/proc/{}/stat", pid);
  Status status;
  if (read_text(path, text) == 0) return status;
  // State is field 3, the number of threads 20, start 22; the second one, in brackets, may hold
  // anything.
  const char* at = strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return status;
  const bool zombie = at[2] == 'Z' || at[2] == 'X';
  for (int field = 2; at != nullptr && field < 20; ++field) at = strchr(at + 1, ' ');
  // A main thread that has ended is one too, while others run on.
  status.ended = zombie && (at == nullptr || strncmp(at, " 1 ", 3) == 0 || at[1] == '0');
  for (int field = 20; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  if (at == nullptr) return status;
  for (++at; *at >= '0' && *at <= '9'; ++at) {
    status.start = status.start * 10 + static_cast<unsigned>(*at - '0');
  }
  return status;
}

std::uint64_t random_word() noexcept {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) {
    value = clock_us() * 0x9e3779b97f4a7c15 ^ (static_cast<std::uint64_t>(getpid()) << 32);
  }
  return value;
}

}  // namespace

bool has_ended(const IpcHandle& handle) noexcept {
  const auto pid = static_cast<pid_t>(handle.pid);
  if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) return true;
  const Status status = status_of(handle.pid);
  return status.ended || (status.start != 0 && handle.start != 0 && status.start != handle.start);
}

IpcHandle self() noexcept {
  const Guard guard(lock);
  if (known) return me;
  char text[64];
  const std::size_t length = read_text("/proc/sys/kernel/random/boot_id", text);
  struct stat name_space {};
  me = {};
  me.boot = hash(text, length);
  me.pid = static_cast<std::uint32_t>(getpid());
  me.start = status_of(me.pid).start;
  me.nonce = random_word();
  if (stat("/proc/self/ns/pid", &name_space) == 0) {
    me.pid_namespace = static_cast<std::uint32_t>(name_space.st_ino);
  }
  known = true;
  return me;
}

Origin parse(const CUipcMemHandle& raw, IpcHandle* out) noexcept {
  memcpy(out, &raw, sizeof(*out));
  if (out->magic - kFamily >= kVersions) return Origin::driver;
  const bool whole = out->checksum == hash(out, offsetof(IpcHandle, checksum));
  return whole && out->magic == kMagic ? Origin::ours : Origin::damaged;
}

void seal(IpcHandle handle, CUipcMemHandle* out) noexcept {
  handle.magic = kMagic;
  handle.checksum = hash(&handle, offsetof(IpcHandle, checksum));
  memcpy(out, &handle, sizeof(handle));
}

void forget_self() noexcept {
  lock.renew();
  known = false;
}

}  // namespace kvshim::sharing
