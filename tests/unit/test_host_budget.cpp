// How much host memory is safe to take, on made-up /proc and /sys/fs/cgroup trees.
#include "memory/budget/host_budget.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/sizes.h"
#include "memory/budget/ledger.h"
#include "memory/budget/spill.h"
#include "support/catch.h"
#include "support/child.h"

using namespace kvshim;
namespace files = std::filesystem;

namespace {

class Root {
 public:
  Root() {
    char name[] = "/tmp/kvshim-budget-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Root() { files::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    const files::path file = path_ + name;
    files::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const char* path() const { return path_.c_str(); }
  host_budget::Budget measure(int node = -1, Ledger* ledger = nullptr) const {
    host_budget::look_below(path_.c_str());
    const host_budget::Budget budget = host_budget::measure(node, ledger);
    host_budget::look_below("");
    return budget;
  }

 private:
  std::string path_;
};

const std::string kMeminfo =
    "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\n";

}  // namespace

TEST_CASE("MemAvailable limits where no cgroup does") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/\n");
  root.write("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 5\n");
  const auto budget = root.measure();
  CHECK(budget.available == 8 * kGiB);
  CHECK(std::string(budget.limited_by) == "MemAvailable");
}

TEST_CASE("the cgroup v2 limit less its usage counts, page cache that can be dropped does not") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/pod/server\n");
  root.write("/sys/fs/cgroup/pod/server/memory.max", "2147483648\n");
  root.write("/sys/fs/cgroup/pod/server/memory.current", "1610612736\n");
  root.write("/sys/fs/cgroup/pod/server/memory.stat", "anon 1\ninactive_file 1073741824\nx 1\n");
  const auto budget = root.measure();
  CHECK(budget.available == 2 * kGiB - 512 * kMiB);
  CHECK(std::string(budget.limited_by) == "the cgroup memory limit");
}

TEST_CASE("an ancestor's limit counts, and max is none") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/pod/server\n");
  root.write("/sys/fs/cgroup/pod/server/memory.max", "max\n");
  root.write("/sys/fs/cgroup/pod/server/memory.current", "5\n");
  root.write("/sys/fs/cgroup/pod/memory.max", "1073741824\n");
  root.write("/sys/fs/cgroup/pod/memory.current", "0\n");
  CHECK(root.measure().available == kGiB);
}

TEST_CASE("in a container whose cgroup path is not visible the mount itself counts") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/../../outside\n");
  root.write("/sys/fs/cgroup/memory.max", "3221225472\n");
  root.write("/sys/fs/cgroup/memory.current", "0\n");
  CHECK(root.measure().available == 3 * kGiB);
}

TEST_CASE("cgroup v1 limits are read, and its enormous number is no limit") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/x\n");
  root.write("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "4294967296\n");
  root.write("/sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "1073741824\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  CHECK(root.measure().available == 3 * kGiB);
}

TEST_CASE("a path of any length in any line of /proc/self/cgroup is found") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  std::string path;
  for (int depth = 0; depth < 14; ++depth)
    path += "/" + std::string(200, static_cast<char>('a' + depth));
  std::string lines;
  for (const char* controller : {"cpuset", "cpu,cpuacct", "devices", "memory"}) {
    lines += "5:" + std::string(controller) + ":" + path + "\n";
  }
  REQUIRE(lines.find("memory") > 8192);
  root.write("/proc/self/cgroup", lines);
  root.write("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes", "2147483648\n");
  root.write("/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes", "1073741824\n");
  CHECK(root.measure().available == kGiB);
}

TEST_CASE("without /proc the kernel's own count of free memory limits") {
  Root root;
  const auto budget = root.measure();
  CHECK(budget.available > 0);
  CHECK(budget.available < (1ull << 50));
  CHECK(std::string(budget.limited_by).find("no /proc/meminfo") != std::string::npos);
}

TEST_CASE("while no descriptor is free nothing is available, and the line says so") {
  const auto child = test::in_child({{"KVSHIM_LOG", "warn"}}, [] {
    if (host_budget::measure().available == 0) return 1;
    rlimit few{};
    getrlimit(RLIMIT_NOFILE, &few);
    few.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &few);
    spill::Promise promise(0, kGiB, "managed");
    promise.refuse(LogLevel::warn);
    if (promise.granted()) return 2;
    few.rlim_cur = few.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    return host_budget::measure().available == 0 ? 3 : 0;
  });
  CHECK(child.status == 0);
  CHECK(child.lines().find("a limit that cannot be read (no file descriptor?) leaves 0 bytes") !=
        std::string::npos);
}

TEST_CASE("once a block has its addresses, RLIMIT_AS has no say any more") {
  const auto child = test::in_child({}, [] {
    rlimit most{};
    getrlimit(RLIMIT_AS, &most);
    most.rlim_cur = kGiB;
    setrlimit(RLIMIT_AS, &most);
    const host_budget::Budget before = host_budget::measure();
    const host_budget::Budget after = host_budget::measure(-1, nullptr, host_budget::Mapped::yes);
    if (std::string(before.limited_by) != "RLIMIT_AS" || before.available >= kGiB) return 1;
    return std::string(after.limited_by) == "RLIMIT_AS" ? 2 : 0;
  });
  CHECK(child.status == 0);
}

TEST_CASE("this machine has some memory to give") {
  const auto budget = host_budget::measure();
  CHECK(budget.available > 0);
  CHECK(budget.available < (1ull << 50));
}

TEST_CASE("the free memory of a NUMA node limits what must come from it, and nothing else") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/sys/devices/system/node/node1/meminfo",
             "Node 1 MemTotal:       4194304 kB\nNode 1 MemFree:        1048576 kB\n"
             "Node 1 Inactive(file):  524288 kB\n");
  CHECK(root.measure().available == 8 * kGiB);
  CHECK(root.measure(0).available == 8 * kGiB);
  const auto budget = root.measure(1);
  CHECK(budget.available == kGiB + 512 * kMiB);
  CHECK(std::string(budget.limited_by) == "its NUMA node's free memory");
  for (const char* several : {"0-1\n", "1,8\n"}) {
    root.write("/sys/devices/system/node/has_memory", several);
    CHECK(root.measure(1).available == kGiB + 512 * kMiB);
  }
  // Of a machine with one node MemAvailable says more.
  root.write("/sys/devices/system/node/has_memory", "1\n");
  CHECK(root.measure(1).available == 8 * kGiB);
}

TEST_CASE("memory of nodes without processors, as that of a Grace's GPU, is nobody's to take") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/sys/devices/system/node/has_memory", "0-2,8\n");
  for (const int node : {0, 1, 2, 8}) {
    const std::string name = std::to_string(node);
    root.write(
        ("/sys/devices/system/node/node" + name + "/meminfo").c_str(),
        ("Node " + name + " MemFree:  1048576 kB\nNode " + name + " Inactive(file): 524288 kB\n")
            .c_str());
  }
  CHECK(root.measure().available == 8 * kGiB);  // which have processors is not known
  root.write("/sys/devices/system/node/has_cpu", "0\n");
  CHECK(root.measure().available == 8 * kGiB - 3 * (kGiB + 512 * kMiB));
  root.write("/sys/devices/system/node/has_cpu", "0-1,8\n");
  CHECK(root.measure().available == 8 * kGiB - (kGiB + 512 * kMiB));
  root.write("/sys/devices/system/node/has_cpu", "0-8\n");
  CHECK(root.measure().available == 8 * kGiB);
}

TEST_CASE("what others have claimed of a limit is taken off that limit alone") {
  Root root;
  root.write("/proc/meminfo", kMeminfo);
  root.write("/proc/self/cgroup", "0::/a\n");
  root.write("/sys/fs/cgroup/a/memory.max", "2147483648\n");
  root.write("/sys/fs/cgroup/a/memory.current", "0\n");
  Ledger mine(kGiB);
  CHECK(root.measure(-1, &mine).available == 2 * kGiB);
  Ledger neighbour(kGiB + 512 * kMiB);  // in the same cgroup
  CHECK(root.measure(-1, &neighbour).available == kGiB);
  auto budget = root.measure(-1, &mine);
  CHECK(budget.available == 512 * kMiB);
  CHECK(budget.claimed == kGiB + 512 * kMiB);
  // One in another cgroup counts where both take from: the machine's memory.
  root.write("/proc/self/cgroup", "0::/b\n");
  Ledger elsewhere(4 * kGiB);
  CHECK(root.measure(-1, &elsewhere).available == 8 * kGiB - 2 * kGiB - 512 * kMiB);
  root.write("/proc/self/cgroup", "0::/a\n");
  budget = root.measure(-1, &mine);
  CHECK(budget.available == 512 * kMiB);
  CHECK(std::string(budget.limited_by) == "the cgroup memory limit");
}

// In a child: the options are read there.
TEST_CASE("the line of a refusal says what was asked, what is left, by which limit, and why") {
  const auto child = test::in_child({{"KVSHIM_HOST_RESERVE", "40MiB"}, {"KVSHIM_LOG", "warn"}}, [] {
    Root root;
    root.write("/proc/meminfo", "MemAvailable:     512000 kB\n");
    host_budget::look_below(root.path());
    const spill::Promise other(0, 100 * kMiB, "managed");
    const spill::Promise promise(0, 400 * kMiB, "host");
    promise.refuse(LogLevel::warn);
    return promise.granted() || !other.granted() ? 1 : 0;
  });
  CHECK(child.status == 0);
  CHECK(child.lines() ==
        "kvshim[pid] warn: a host block of 419430400 bytes (400 MiB) refused: MemAvailable leaves "
        "524288000 bytes (500 MiB), 100 MiB are promised to other blocks, 40 MiB stay in reserve: "
        "377487360 bytes for it (before a page was touched)\n");
}

TEST_CASE("after a refusal small blocks are measured one by one") {
  const auto child = test::in_child({{"KVSHIM_HOST_RESERVE", "40MiB"}, {"KVSHIM_LOG", "off"}}, [] {
    Root root;
    host_budget::look_below(root.path());
    root.write("/proc/meminfo", "MemAvailable:     1024000 kB\n");  // 1000 MiB
    const auto granted = [] { return spill::Promise(0, kMiB, "managed").granted(); };
    for (int block = 0; block < 20; ++block) {
      if (!granted()) return 1;
    }
    root.write("/proc/meminfo", "MemAvailable:     40960 kB\n");  // the reserve, and no more
    for (int block = 0; block < 8 && granted(); ++block) {
    }
    for (int block = 0; block < 40; ++block) {
      if (granted()) return 2;
    }
    root.write("/proc/meminfo", "MemAvailable:     1024000 kB\n");
    return granted() && granted() ? 0 : 3;
  });
  CHECK(child.status == 0);
}

TEST_CASE("a program that is refused again and again does not fill the log") {
  const auto child = test::in_child({{"KVSHIM_LOG", "warn"}}, [] {
    Root root;
    host_budget::look_below(root.path());
    root.write("/proc/meminfo", "MemAvailable:     1000 kB\n");
    for (int block = 0; block < 300; ++block) {
      spill::Promise(0, 9 * kMiB, "managed").refuse(LogLevel::warn);
    }
  });
  CHECK(child.status == 0);
  const std::string lines = child.lines();
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 100);
}

TEST_CASE("no remedy by the kind of large blocks where pressure has sent the block to the host") {
  const auto child = test::in_child({{"KVSHIM_SPILL", "pressure"}, {"KVSHIM_LOG", "warn"}}, [] {
    Root root;
    root.write("/proc/meminfo", "MemAvailable:     512000 kB\n");
    host_budget::look_below(root.path());
    spill::Promise(0, 800 * kMiB, "managed").refuse(LogLevel::warn);
    return 0;
  });
  CHECK(child.lines().find("refused") != std::string::npos);
  CHECK(child.lines().find("KVSHIM_LARGE") == std::string::npos);
}

TEST_CASE(
    "without an option a twentieth stays in reserve, 128 MiB to 16 GiB; no limit is no limit") {
  const auto child = test::in_child({{"KVSHIM_LOG", "off"}}, [] {
    Root root;
    host_budget::look_below(root.path());
    root.write("/proc/meminfo", "MemAvailable:     1024000 kB\n");  // 1000 MiB
    const auto granted = [](std::uint64_t bytes) {
      return spill::Promise(0, bytes, "managed").granted();
    };
    if (granted(873 * kMiB) || !granted(872 * kMiB)) return 1;
    root.write("/proc/meminfo", "MemAvailable:     4096000 kB\n");  // 4000 MiB
    if (granted(3801 * kMiB) || !granted(3800 * kMiB)) return 4;
    root.write("/proc/meminfo", "MemAvailable:     1073741824 kB\n");  // 1 TiB
    if (granted(1009 * kGiB) || !granted(1008 * kGiB)) return 2;
    return granted(1ull << 50) || granted(~0ull) ? 3 : 0;
  });
  CHECK(child.status == 0);
}
