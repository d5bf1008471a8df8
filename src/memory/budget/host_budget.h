// How much host memory this process may take without waking the OOM killer: native cuMemAlloc fails
// politely when memory is short, and placing pages by CPU must not kill the server instead.
#pragma once

#include <cstdint>

namespace kvshim {
class Ledger;
}

namespace kvshim::host_budget {

struct Budget {
  std::uint64_t available = 0;  // the least of all the limits below, in bytes
  const char* limited_by = "";  // "MemAvailable", "the cgroup memory limit", "RLIMIT_AS", ...
  std::uint64_t claimed = 0;    // taken off already: what others are about to take of that limit
};

// Reads /proc/meminfo, the limits of this process's cgroup (v2 and v1, its ancestors too, less what
// they use already, page cache that can be dropped not counted), RLIMIT_AS and, for memory that
// must come from one NUMA node (-1: any), what that node has free. What does not exist does not
// limit; without /proc/meminfo the kernel's count of free memory does. While no descriptor or page
// can be had to read them, nothing is available. Costs some tens of microseconds: for large blocks
// only. With a ledger its bytes are claimed of every limit, and what others have claimed is taken
// off.
//
// `mapped`: the block has its addresses already, so that RLIMIT_AS has no say any more.
enum class Mapped : bool { no, yes };
Budget measure(int node = -1, Ledger* ledger = nullptr, Mapped mapped = Mapped::no) noexcept;

// The file whose lock lets one process decide at a time (Ledger::begin).
const char* decision_file(char (&name)[256]) noexcept;

// For tests: from now on a copy of the file system's /proc and /sys below `root` ("": the real
// one).
void look_below(const char* root) noexcept;

}  // namespace kvshim::host_budget
