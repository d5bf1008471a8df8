// Reads the limits on host memory from /proc, the cgroup tree and getrlimit, without heap or stdio;
// see host_budget.h. Decides nothing.
#include "memory/host_budget.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/format.h"
#include "base/sizes.h"

namespace kvshim::host_budget {

namespace {

constexpr std::uint64_t kUnlimited = ~0ull;
constexpr std::size_t kPathMax = 512;

struct Text {
  char data[2048];  // all that is asked for stands in front; the caller's stack may be small
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

void limit(Budget* budget, std::uint64_t bytes, const char* by) noexcept {
  if (bytes < budget->available) *budget = {bytes, by};
}

// One cgroup directory: limit less usage, where page cache that the kernel drops first is no usage.
void limit_by_directory(Budget* budget, const char* directory, const char* limit_file,
                        const char* usage_file, const char* cache_key) noexcept {
  char name[kPathMax];
  const std::uint64_t most = file_number(format_into(name, "{}/{}", directory, limit_file));
  if (most == kUnlimited || most > (1ull << 60)) return;  // v1 writes 2^63 - 4096 for "no limit"
  std::uint64_t used = file_number(format_into(name, "{}/{}", directory, usage_file));
  if (used == kUnlimited) return;
  Text text;
  if (text.read_from(format_into(name, "{}/memory.stat", directory))) {
    const std::uint64_t cache = field(text.data, cache_key);
    if (cache != kUnlimited) used = used > cache ? used - cache : 0;
  }
  limit(budget, most > used ? most - used : 0, "the cgroup memory limit");
}

// This process's cgroup and all its ancestors up to the mount, each may limit. In a container the
// path of /proc/self/cgroup may not exist below the mount: then the mount itself is the cgroup.
void limit_by_cgroup(Budget* budget, const char* root, const char* mount, const char* relative,
                     const char* limit_file, const char* usage_file,
                     const char* cache_key) noexcept {
  char directory[kPathMax];
  format_into(directory, "{}{}{}", root, mount, relative);
  const std::size_t top = strlen(root) + strlen(mount);
  for (std::size_t length = strlen(directory); length >= top && length > 0;) {
    directory[length] = '\0';
    limit_by_directory(budget, directory, limit_file, usage_file, cache_key);
    if (length == top) break;
    do {
      --length;
    } while (length > top && directory[length] != '/');
  }
}

void limit_by_cgroups(Budget* budget, const char* root) noexcept {
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
        limit_by_cgroup(budget, root, "/sys/fs/cgroup", where, "memory.max", "memory.current",
                        "inactive_file ");
      } else if (strstr(controllers, "memory") != nullptr) {
        limit_by_cgroup(budget, root, "/sys/fs/cgroup/memory", where, "memory.limit_in_bytes",
                        "memory.usage_in_bytes", "total_inactive_file ");
      }
    }
    if (end == nullptr) break;
    line = end + 1;
  }
}

void limit_by_address_space(Budget* budget) noexcept {
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return;
  Text text;
  std::uint64_t used = 0;
  if (text.read_from("/proc/self/statm")) {
    used = number(text.data) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  limit(budget, most.rlim_cur > used ? most.rlim_cur - used : 0, "RLIMIT_AS");
}

}  // namespace

Budget measure_at(const char* root) noexcept {
  Budget budget{kUnlimited, "nothing"};
  char name[kPathMax];
  Text text;
  if (text.read_from(format_into(name, "{}/proc/meminfo", root))) {
    const std::uint64_t kib = field(text.data, "MemAvailable:");
    if (kib != kUnlimited) limit(&budget, kib * kKiB, "MemAvailable");
  }
  limit_by_cgroups(&budget, root);
  if (*root == '\0') limit_by_address_space(&budget);
  return budget;
}

Budget measure() noexcept {
  return measure_at("");
}

}  // namespace kvshim::host_budget
