// How much host memory a managed block may take without waking the OOM killer: native cuMemAlloc
// fails politely when memory is short, and placing pages by CPU must not kill the server instead.
#pragma once

#include <cstdint>

namespace kvshim::host_budget {

struct Budget {
  std::uint64_t available = 0;  // the least of all the limits below, in bytes
  const char* limited_by = "";  // "MemAvailable", "the cgroup memory limit", "RLIMIT_AS"
};

// Reads /proc/meminfo, the limits of this process's cgroup (v2 and v1, its ancestors too, less what
// they use already, page cache that can be dropped not counted) and RLIMIT_AS. Whatever cannot be
// read does not limit. Costs some tens of microseconds: for large blocks only.
Budget measure() noexcept;

// For tests: the same on a copy of the file system's /proc and /sys/fs/cgroup below `root`.
Budget measure_at(const char* root) noexcept;

}  // namespace kvshim::host_budget
