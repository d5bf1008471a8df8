// The memfd behind the simulated devices, its free list, and the address space tricks around it.
#include "driver/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "driver/state.h"

namespace sim {
namespace {

constexpr std::size_t kUnit = std::size_t{64} << 10;  // ranges of the arena are multiples of this
constexpr std::uint64_t kArenaBytes = std::uint64_t{1} << 42;
constexpr const char* kArenaName = "kvsim-memory";

// An exported descriptor says what it is by its file position: (offset, size, device), in units.
// The position lies in the open file description, so it survives dup, fork and SCM_RIGHTS.
constexpr unsigned kFieldBits = 26;
off_t encode(const Backing& b) {
  return static_cast<off_t>((b.offset / kUnit) | ((b.size / kUnit) << kFieldBits) |
                            (static_cast<std::uint64_t>(b.device + 1) << (2 * kFieldBits)));
}

bool open_arena() {
  Arena& arena = state().arena;
  if (arena.fd >= 0) return true;
  const int fd = memfd_create(kArenaName, MFD_CLOEXEC);
  if (fd < 0) return false;
  // Out of the way of programs that count on the lowest numbers.
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, 700);
  if (high >= 0) close(fd);
  arena.fd = high >= 0 ? high : fd;
  const std::size_t table = kAliveSlots * sizeof(std::uint64_t);
  if (ftruncate(arena.fd, kArenaBytes) != 0) return false;
  void* slots = mmap(nullptr, table, PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd, 0);
  if (slots == MAP_FAILED) return false;
  arena.slots = static_cast<std::uint64_t*>(slots);
  arena.free[round_up(table, kUnit)] = kArenaBytes - round_up(table, kUnit);
  return true;
}

bool take_range(std::size_t size, std::uint64_t* offset) {
  auto& free = state().arena.free;
  for (auto it = free.begin(); it != free.end(); ++it) {
    if (it->second < size) continue;
    *offset = it->first;
    const std::uint64_t rest = it->second - size;
    const std::uint64_t next = it->first + size;
    free.erase(it);
    if (rest > 0) free[next] = rest;
    return true;
  }
  return false;
}

void return_range(std::uint64_t offset, std::size_t size) {
  auto& free = state().arena.free;
  auto next = free.lower_bound(offset);
  if (next != free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free.erase(before);
    }
  }
  if (next != free.end() && offset + size == next->first) {
    size += next->second;
    free.erase(next);
  }
  free[offset] = size;
}

char* map_bytes(int fd, std::uint64_t offset, std::size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                 static_cast<off_t>(offset));
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

}  // namespace

Backing::~Backing() {
  if (bytes == nullptr) return;
  munmap(bytes, round_up(size, kUnit));
  if (imported) return;
  State& s = state();
  (device >= 0 ? s.devices[static_cast<std::size_t>(device)].used : s.host_used) -= size;
  if (exported || s.arena.fd < 0) return;
  const std::size_t whole = round_up(size, kUnit);
  fallocate(s.arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(whole));
  return_range(offset, whole);
}

std::shared_ptr<Backing> allocate_backing(int device, std::size_t size) {
  State& s = state();
  if (!open_arena()) return nullptr;
  if (device >= 0) {
    const Device& d = s.devices[static_cast<std::size_t>(device)];
    if (size > d.memory || d.used > d.memory - size) return nullptr;
  } else if (size > s.host_memory || s.host_used > s.host_memory - size) {
    return nullptr;
  }
  const std::size_t whole = round_up(size, kUnit);
  auto backing = std::make_shared<Backing>();
  if (!take_range(whole, &backing->offset)) return nullptr;
  backing->device = device;
  backing->size = size;
  backing->bytes = map_bytes(s.arena.fd, backing->offset, whole);
  if (backing->bytes == nullptr) {
    return_range(backing->offset, whole);
    return nullptr;
  }
  (device >= 0 ? s.devices[static_cast<std::size_t>(device)].used : s.host_used) += size;
  if (device >= 0) make_way(device);
  return backing;
}

int export_backing(Backing& backing) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", state().arena.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  lseek(fd, encode(backing), SEEK_SET);
  backing.exported = true;
  return fd;
}

std::shared_ptr<Backing> import_backing(int fd) {
  char path[64];
  char target[128] = {};
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  if (readlink(path, target, sizeof(target) - 1) < 0) return nullptr;
  if (std::strstr(target, kArenaName) == nullptr) return nullptr;
  const off_t position = lseek(fd, 0, SEEK_CUR);
  const std::uint64_t mask = (std::uint64_t{1} << kFieldBits) - 1;
  const auto word = static_cast<std::uint64_t>(position);
  const std::uint64_t offset = (word & mask) * kUnit;
  const std::uint64_t size = ((word >> kFieldBits) & mask) * kUnit;
  if (position <= 0 || size == 0) return nullptr;
  auto backing = std::make_shared<Backing>();
  backing->bytes = map_bytes(fd, offset, size);
  if (backing->bytes == nullptr) return nullptr;
  backing->device = static_cast<int>(word >> (2 * kFieldBits)) - 1;
  backing->offset = offset;
  backing->size = size;
  backing->imported = true;
  return backing;
}

int arena_fd() {
  return open_arena() ? state().arena.fd : -1;
}

std::uint64_t* alive_slots() {
  return open_arena() ? state().arena.slots : nullptr;
}

namespace {
int open_foreign(int pid, int fd) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  return open(path, O_RDWR | O_CLOEXEC);
}
}  // namespace

std::shared_ptr<Backing> open_foreign_backing(int pid, int fd, std::uint64_t offset,
                                              std::size_t size, int device) {
  const int opened = open_foreign(pid, fd);
  if (opened < 0) return nullptr;
  auto backing = std::make_shared<Backing>();
  backing->bytes = map_bytes(opened, offset, round_up(size, kUnit));
  close(opened);
  if (backing->bytes == nullptr) return nullptr;
  backing->device = device;
  backing->offset = offset;
  backing->size = size;
  backing->imported = true;
  return backing;
}

std::uint64_t read_foreign_slot(int pid, int fd, unsigned slot) {
  const int opened = open_foreign(pid, fd);
  if (opened < 0) return 0;
  std::uint64_t serial = 0;
  if (pread(opened, &serial, sizeof(serial), static_cast<off_t>(slot * sizeof(serial))) !=
      static_cast<ssize_t>(sizeof(serial)))
    serial = 0;
  close(opened);
  return serial;
}

}  // namespace sim
