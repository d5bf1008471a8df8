// Reads the limits on host memory from /proc, the cgroup tree and getrlimit, without heap or stdio;
// see host_budget.h. Decides nothing.
#include "memory/budget/host_budget.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "base/sizes.h"
#include "memory/budget/ledger.h"

namespace kvshim::host_budget {

namespace {

constexpr std::uint64_t kUnlimited = ~0ull;
constexpr std::size_t kPathMax = 512;

// The front of a file. The caller's stack may be small.
template <std::size_t kSize>
struct Front {
  char data[kSize];
  bool read_from(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t got = read(file, data, sizeof(data) - 1);
    close(file);
    if (got < 0) return false;
    data[got] = '\0';
    return true;
  }
};

using Text = Front<2048>;  // all that is asked for stands there

// The number at `text`; kUnlimited where there is none ("max").
std::uint64_t number(const char* text) noexcept {
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

std::uint64_t file_number(const char* name) noexcept {
  Text text;
  return text.read_from(name) ? number(text.data) : kUnlimited;
}

// A measurement under way. `ledger` may be NULL: then claims of others are not asked for.
struct Measuring {
  Budget budget{kUnlimited, "nothing", 0};
  Ledger* ledger = nullptr;

  // What others have claimed of the limit in this file. To be asked before usage is read.
  std::uint64_t claimed(const char* file) noexcept {
    return ledger != nullptr ? ledger->enter(file) : 0;
  }
  void limit(std::uint64_t bytes, const char* by, std::uint64_t claimed) noexcept {
    bytes = bytes > claimed ? bytes - claimed : 0;
    if (bytes < budget.available) budget = {bytes, by, claimed};
  }
};

// One cgroup directory: limit less usage, where page cache that the kernel drops first is no usage.
void limit_by_directory(Measuring* measuring, const char* directory, const char* limit_file,
                        const char* usage_file, const char* cache_key) noexcept {
  char name[kPathMax];
  const std::uint64_t most = file_number(format_into(name, "{}/{}", directory, limit_file));
  if (most == kUnlimited || most > (1ull << 60)) return;  // v1 writes 2^63 - 4096 for "no limit"
  const std::uint64_t claimed = measuring->claimed(name);
  std::uint64_t used = file_number(format_into(name, "{}/{}", directory, usage_file));
  if (used == kUnlimited) return;
  Text text;
  if (text.read_from(format_into(name, "{}/memory.stat", directory))) {
    const std::uint64_t cache = field(text.data, cache_key);
    if (cache != kUnlimited) used = used > cache ? used - cache : 0;
  }
  measuring->limit(most > used ? most - used : 0, "the cgroup memory limit", claimed);
}

// This process's cgroup and all its ancestors up to the mount, each may limit. In a container the
// path of /proc/self/cgroup may not exist below the mount: then the mount itself is the cgroup.
void limit_by_cgroup(Measuring* measuring, const char* root, const char* mount,
                     const char* relative, const char* limit_file, const char* usage_file,
                     const char* cache_key) noexcept {
  char directory[kPathMax];
  format_into(directory, "{}{}{}", root, mount, relative);
  const std::size_t top = strlen(root) + strlen(mount);
  for (std::size_t length = strlen(directory); length >= top && length > 0;) {
    directory[length] = '\0';
    limit_by_directory(measuring, directory, limit_file, usage_file, cache_key);
    if (length == top) break;
    do {
      --length;
    } while (length > top && directory[length] != '/');
  }
}

void limit_by_cgroups(Measuring* measuring, const char* root) noexcept {
  char name[kPathMax];
  Text text;
  if (!text.read_from(format_into(name, "{}/proc/self/cgroup", root))) return;
  // Lines are "id:controllers:path"; version 2 has id 0 and no controllers.
  for (char* line = text.data; *line != '\0';) {
    char* end = strchr(line, '\n');
    if (end != nullptr) *end = '\0';
    char* controllers = strchr(line, ':');
    char* where = controllers != nullptr ? strchr(controllers + 1, ':') : nullptr;
    if (where != nullptr) {
      *where++ = '\0';
      ++controllers;
      if (strncmp(where, "/..", 3) == 0 || strcmp(where, "/") == 0) where = const_cast<char*>("");
      if (*controllers == '\0') {
        limit_by_cgroup(measuring, root, "/sys/fs/cgroup", where, "memory.max", "memory.current",
                        "inactive_file ");
      } else if (strstr(controllers, "memory") != nullptr) {
        limit_by_cgroup(measuring, root, "/sys/fs/cgroup/memory", where, "memory.limit_in_bytes",
                        "memory.usage_in_bytes", "total_inactive_file ");
      }
    }
    if (end == nullptr) break;
    line = end + 1;
  }
}

void limit_by_address_space(Measuring* measuring) noexcept {
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return;
  Text text;
  std::uint64_t used = 0;
  if (text.read_from("/proc/self/statm")) {
    used = number(text.data) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  // Its own alone: no other process counts on it.
  measuring->limit(most.rlim_cur > used ? most.rlim_cur - used : 0, "RLIMIT_AS", 0);
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
  Front<256> list;
  bool there = false;

  Nodes(const char* root, const char* which) noexcept {
    char name[kPathMax];
    there = list.read_from(format_into(name, "{}/sys/devices/system/node/{}", root, which));
  }
  int after(int node) const noexcept { return there ? next_in(list.data, node) : -1; }
  bool has(int node) const noexcept { return after(node - 1) == node; }
};

const char* node_file(char (&name)[kPathMax], const char* root, int node) noexcept {
  return format_into(name, "{}/sys/devices/system/node/node{}/meminfo", root, node);
}

// Free pages of one node, and its page cache that the kernel drops first, in bytes; kUnlimited:
// not known. Lines are "Node 0 key".
std::uint64_t free_of_node(const char* root, int node) noexcept {
  char name[kPathMax];
  char key[48];
  Text text;
  if (!text.read_from(node_file(name, root, node))) return kUnlimited;
  const std::uint64_t free = field(text.data, format_into(key, "Node {} MemFree:", node));
  const std::uint64_t cache = field(text.data, format_into(key, "Node {} Inactive(file):", node));
  if (free == kUnlimited) return kUnlimited;
  return (free + (cache != kUnlimited ? cache : 0)) * kKiB;
}

// Where CPU and GPU share page tables (Grace), the GPU's own memory is a NUMA node without
// processors, and MemAvailable counts it.
std::uint64_t free_without_processors(const char* root) noexcept {
  const Nodes memory(root, "has_memory");
  const Nodes processors(root, "has_cpu");
  std::uint64_t sum = 0;
  if (!processors.there) return 0;
  for (int node = memory.after(-1); node >= 0; node = memory.after(node)) {
    const std::uint64_t free = processors.has(node) ? 0 : free_of_node(root, node);
    if (free != kUnlimited) sum += free;
  }
  return sum;
}

void limit_by_machine(Measuring* measuring, const char* root) noexcept {
  char name[kPathMax];
  Text text;
  const std::uint64_t claimed = measuring->claimed(format_into(name, "{}/proc/meminfo", root));
  if (!text.read_from(name)) return;
  const std::uint64_t kib = field(text.data, "MemAvailable:");
  if (kib == kUnlimited) return;
  const std::uint64_t elsewhere = free_without_processors(root);
  const std::uint64_t bytes = kib * kKiB;
  measuring->limit(bytes > elsewhere ? bytes - elsewhere : 0, "MemAvailable", claimed);
}

// Where all memory is one node's MemAvailable says it better: the figures of the node know less of
// what the kernel can drop, and in a virtual machine that was given more memory while it ran they
// stay behind (seen: 23 GiB of 252).
void limit_by_node(Measuring* measuring, const char* root, int node) noexcept {
  const Nodes memory(root, "has_memory");
  if (memory.there && memory.after(memory.after(-1)) < 0) return;
  char name[kPathMax];
  const std::uint64_t claimed = measuring->claimed(node_file(name, root, node));
  const std::uint64_t free = free_of_node(root, node);
  if (free != kUnlimited) measuring->limit(free, "its NUMA node's free memory", claimed);
}

constinit std::atomic<const char*> files_below{""};

}  // namespace

void look_below(const char* root) noexcept {
  files_below.store(root, std::memory_order_release);
}

Budget measure(int node, Ledger* ledger) noexcept {
  const char* const root = files_below.load(std::memory_order_acquire);
  Measuring measuring;
  measuring.ledger = ledger;
  limit_by_machine(&measuring, root);
  limit_by_cgroups(&measuring, root);
  if (node >= 0) limit_by_node(&measuring, root, node);
  if (*root == '\0') limit_by_address_space(&measuring);
  return measuring.budget;
}

const char* decision_file(char (&name)[256]) noexcept {
  return format_into(name, "{}/proc/meminfo", files_below.load(std::memory_order_acquire));
}

}  // namespace kvshim::host_budget
