// How much host memory is safe to take, on made-up /proc and /sys/fs/cgroup trees.
#include "memory/host_budget.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "base/sizes.h"
#include "support/catch.h"

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
  host_budget::Budget measure() const { return host_budget::measure_at(path_.c_str()); }

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

TEST_CASE("what cannot be read does not limit") {
  Root root;
  CHECK(root.measure().available == ~0ull);
}

TEST_CASE("this machine has some memory to give") {
  const auto budget = host_budget::measure();
  CHECK(budget.available > 0);
  CHECK(budget.available < (1ull << 50));
}
