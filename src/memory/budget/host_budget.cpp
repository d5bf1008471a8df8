// Reads the limits on host memory from /proc, the cgroup tree and getrlimit, without heap or stdio;
// see host_budget.h. Decides nothing.
#include "memory/budget/host_budget.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "base/sizes.h"
#include "memory/budget/ledger.h"

namespace kvshim::host_budget {

namespace {

constexpr std::uint64_t kUnlimited = ~0ull;

// Room to read in, a mapping of its own: the caller's stack may be small, and /proc/self/cgroup can
// have a path of 4 KiB in each of a dozen lines. Pages that nothing is read into cost nothing.
struct Room {
  char cgroup[64 * kKiB];
  char text[8 * kKiB];  // all that is asked for stands in front
  char name[8 * kKiB];  // of a file
  char directory[5 * kKiB];
};

// A measurement under way. `ledger` may be NULL: then claims of others are not asked for.
struct Measuring {
  Budget budget{kUnlimited, "nothing", 0};
  const char* root;
  Ledger* ledger;
  Room* room = nullptr;
  bool blind = false;  // a limit that exists could not be read

  Measuring(const char* below, Ledger* claims) noexcept : root(below), ledger(claims) {
    void* pages =
        mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED) room = static_cast<Room*>(pages);
  }
  ~Measuring() {
    if (room != nullptr) munmap(room, sizeof(Room));
  }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

  // The file's text, or NULL. The kernel gives such files in pieces.
  template <std::size_t kSize>
  const char* read_into(char (&text)[kSize], const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      blind =
          blind || errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENAMETOOLONG;
      return nullptr;
    }
    std::size_t length = 0;
    ssize_t got = 0;
    do {
      got = read(file, text + length, kSize - 1 - length);
      if (got > 0) length += static_cast<std::size_t>(got);
    } while (got > 0 && length < kSize - 1);
    close(file);
    if (got < 0 && length == 0) return nullptr;
    text[length] = '\0';
    return text;
  }
  const char* read_text(const char* path) noexcept { return read_into(room->text, path); }

  // What others have claimed of the limit in this file. To be asked before usage is read.
  std::uint64_t claimed(const char* file) noexcept {
    return ledger != nullptr ? ledger->enter(file) : 0;
  }
  void limit(std::uint64_t bytes, const char* by, std::uint64_t claimed) noexcept {
    bytes = bytes > claimed ? bytes - claimed : 0;
    if (bytes < budget.available) budget = {bytes, by, claimed};
  }
};

// The number at `text`; kUnlimited where there is none ("max").
std::uint64_t number(const char* text) noexcept {
  if (text == nullptr) return kUnlimited;
  while (*text == ' ' || *text == '\t') ++text;
  if (*text < '0' || *text > '9') return kUnlimited;
  std::uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    const auto digit = static_cast<std::uint64_t>(*text - '0');
    if (value > (kUnlimited - digit) / 10) return kUnlimited;
    value = value * 10 + digit;
  }
  return value;
}

// The number behind `key` at the start of a line ("MemAvailable:", "inactive_file ").
std::uint64_t field(const char* text, const char* key) noexcept {
  const std::size_t length = strlen(key);
  for (const char* line = text; line != nullptr; line = strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (strncmp(line, key, length) == 0) return number(line + length);
  }
  return kUnlimited;
}

// One cgroup directory (room->directory): limit less usage, where page cache that the kernel drops
// first is no usage.
void limit_by_directory(Measuring& m, const char* limit_file, const char* usage_file,
                        const char* cache_key) noexcept {
  char(&name)[sizeof(m.room->name)] = m.room->name;
  const char* directory = m.room->directory;
  const std::uint64_t most = number(m.read_text(format_into(name, "{}/{}", directory, limit_file)));
  if (most == kUnlimited || most > (1ull << 60)) return;  // v1 writes 2^63 - 4096 for "no limit"
  const std::uint64_t claimed = m.claimed(name);
  std::uint64_t used = number(m.read_text(format_into(name, "{}/{}", directory, usage_file)));
  if (used == kUnlimited) return;
  if (const char* text = m.read_text(format_into(name, "{}/memory.stat", directory))) {
    const std::uint64_t cache = field(text, cache_key);
    if (cache != kUnlimited) used = used > cache ? used - cache : 0;
  }
  m.limit(most > used ? most - used : 0, "the cgroup memory limit", claimed);
}

// This process's cgroup and all its ancestors up to the mount, each may limit. In a container the
// path of /proc/self/cgroup may not exist below the mount: then the mount itself is the cgroup.
void limit_by_cgroup(Measuring& m, const char* mount, const char* relative, const char* limit_file,
                     const char* usage_file, const char* cache_key) noexcept {
  char* directory = m.room->directory;
  format_into(m.room->directory, "{}{}{}", m.root, mount, relative);
  const std::size_t top = strlen(m.root) + strlen(mount);
  for (std::size_t length = strlen(directory); length >= top && length > 0;) {
    directory[length] = '\0';
    limit_by_directory(m, limit_file, usage_file, cache_key);
    if (length == top) break;
    do {
      --length;
    } while (length > top && directory[length] != '/');
  }
}

void limit_by_cgroups(Measuring& m) noexcept {
  if (m.read_into(m.room->cgroup, format_into(m.room->name, "{}/proc/self/cgroup", m.root)) ==
      nullptr) {
    return;
  }
  // Lines are "id:controllers:path"; version 2 has id 0 and no controllers.
  for (char* line = m.room->cgroup; *line != '\0';) {
    char* end = strchr(line, '\n');
    if (end != nullptr) *end = '\0';
    char* controllers = strchr(line, ':');
    char* where = controllers != nullptr ? strchr(controllers + 1, ':') : nullptr;
    if (where != nullptr) {
      *where++ = '\0';
      ++controllers;
      if (strncmp(where, "/..", 3) == 0 || strcmp(where, "/") == 0) where = const_cast<char*>("");
      if (*controllers == '\0') {
        limit_by_cgroup(m, "/sys/fs/cgroup", where, "memory.max", "memory.current",
                        "inactive_file ");
      } else if (strstr(controllers, "memory") != nullptr) {
        limit_by_cgroup(m, "/sys/fs/cgroup/memory", where, "memory.limit_in_bytes",
                        "memory.usage_in_bytes", "total_inactive_file ");
      }
    }
    if (end == nullptr) break;
    line = end + 1;
  }
}

void limit_by_address_space(Measuring& m) noexcept {
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return;
  const std::uint64_t pages = number(m.read_text("/proc/self/statm"));
  const std::uint64_t used =
      pages != kUnlimited ? pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
  // Its own alone: no other process counts on it.
  m.limit(most.rlim_cur > used ? most.rlim_cur - used : 0, "RLIMIT_AS", 0);
}

// The first node of a list such as "0-1,8" that comes after `node`; -1: none.
int next_in(const char* list, int node) noexcept {
  while (*list >= '0' && *list <= '9') {
    char* end = nullptr;
    const int first = static_cast<int>(strtol(list, &end, 10));
    const int last = *end == '-' ? static_cast<int>(strtol(end + 1, &end, 10)) : first;
    if (node < last) return node < first ? first : node + 1;
    list = *end == ',' ? end + 1 : end;
  }
  return -1;
}

struct Nodes {
  char list[256];
  bool there;

  Nodes(Measuring& m, const char* which) noexcept
      : there(m.read_into(list, format_into(m.room->name, "{}/sys/devices/system/node/{}", m.root,
                                            which)) != nullptr) {}
  int after(int node) const noexcept { return there ? next_in(list, node) : -1; }
  bool has(int node) const noexcept { return after(node - 1) == node; }
};

const char* node_file(Measuring& m, int node) noexcept {
  return format_into(m.room->name, "{}/sys/devices/system/node/node{}/meminfo", m.root, node);
}

// Free pages of one node, and its page cache that the kernel drops first, in bytes; kUnlimited:
// not known. Lines are "Node 0 key".
std::uint64_t free_of_node(Measuring& m, int node) noexcept {
  char key[48];
  const char* text = m.read_text(node_file(m, node));
  if (text == nullptr) return kUnlimited;
  const std::uint64_t free = field(text, format_into(key, "Node {} MemFree:", node));
  const std::uint64_t cache = field(text, format_into(key, "Node {} Inactive(file):", node));
  if (free == kUnlimited) return kUnlimited;
  return (free + (cache != kUnlimited ? cache : 0)) * kKiB;
}

// Where CPU and GPU share page tables (Grace), the GPU's own memory is a NUMA node without
// processors, and MemAvailable counts it.
std::uint64_t free_without_processors(Measuring& m) noexcept {
  const Nodes memory(m, "has_memory");
  const Nodes processors(m, "has_cpu");
  std::uint64_t sum = 0;
  if (!processors.there) return 0;
  for (int node = memory.after(-1); node >= 0; node = memory.after(node)) {
    const std::uint64_t free = processors.has(node) ? 0 : free_of_node(m, node);
    if (free != kUnlimited) sum += free;
  }
  return sum;
}

void limit_by_machine(Measuring& m) noexcept {
  format_into(m.room->name, "{}/proc/meminfo", m.root);
  const std::uint64_t claimed = m.claimed(m.room->name);
  const char* text = m.read_text(m.room->name);
  const std::uint64_t kib = text != nullptr ? field(text, "MemAvailable:") : kUnlimited;
  if (kib != kUnlimited) {
    const std::uint64_t elsewhere = free_without_processors(m);
    const std::uint64_t bytes = kib * kKiB;
    m.limit(bytes > elsewhere ? bytes - elsewhere : 0, "MemAvailable", claimed);
    return;
  }
  // No /proc, or none for us: less is known, and something must bind.
  struct sysinfo machine {};
  if (sysinfo(&machine) != 0) return;
  m.limit(std::uint64_t{machine.freeram} * machine.mem_unit,
          "the machine's free memory (no /proc/meminfo)", claimed);
}

// Where all memory is one node's MemAvailable says it better: the figures of the node know less of
// what the kernel can drop, and in a virtual machine that was given more memory while it ran they
// stay behind (seen: 23 GiB of 252).
void limit_by_node(Measuring& m, int node) noexcept {
  const Nodes memory(m, "has_memory");
  if (memory.there && memory.after(memory.after(-1)) < 0) return;
  const std::uint64_t claimed = m.claimed(node_file(m, node));
  const std::uint64_t free = free_of_node(m, node);
  if (free != kUnlimited) m.limit(free, "its NUMA node's free memory", claimed);
}

constinit std::atomic<const char*> files_below{""};

}  // namespace

void look_below(const char* root) noexcept {
  files_below.store(root, std::memory_order_release);
}

Budget measure(int node, Ledger* ledger, Mapped mapped) noexcept {
  Measuring m(files_below.load(std::memory_order_acquire), ledger);
  if (m.room == nullptr) return {0, "the lack of a page to read the limits in", 0};
  limit_by_machine(m);
  limit_by_cgroups(m);
  if (node >= 0) limit_by_node(m, node);
  if (*m.root == '\0' && mapped == Mapped::no) limit_by_address_space(m);
  if (m.blind) return {0, "a limit that cannot be read (no file descriptor?)", 0};
  return m.budget;
}

const char* decision_file(char (&name)[256]) noexcept {
  return format_into(name, "{}/proc/meminfo", files_below.load(std::memory_order_acquire));
}

}  // namespace kvshim::host_budget
