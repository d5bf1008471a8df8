// Managed blocks take host memory, and the CPU touches every page: what the machine or its cgroup
// does not have must be refused with code 2 before a page is touched, or the kernel kills the
// program. And devices on which the CPU must not touch managed memory.
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <thread>

#include "cgroup.h"
#include "host.h"

using namespace cases;

namespace {

const Environment kFromOneGiB = {
    {"KVSHIM_THRESHOLD", "1GiB"}, {"KVSIM_MEMORY", "64G"}, {"KVSHIM_SUMMARY", "1"}};

}  // namespace

CASE("4 GiB over the threshold in a cgroup of 2 GiB: code 2, nothing killed, life goes on") {
  const Cgroup group(2 * kGiB);
  if (group.path.empty()) return skip("no memory cgroup can be made here");
  Environment environment = kFromOneGiB;
  environment.emplace_back("CASE_CGROUP", group.path);
  const Result result = run(kPreloaded, "confined", environment);
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("refused: the cgroup memory limit leaves").size() == 1, result.err);
  EXPECT_IN(summary_of(result.err).says("1 requests answered with out of memory"), result.err);
  EXPECT_IN(result.count("cuMemAllocManaged bytes=4294967296") == 1, result.show());  // the host's
  EXPECT_IN(!group.killed(), group.path);
}
SCENE(confined) {
  if (!Cgroup::enter()) return 3;
  use_device();
  CUdeviceptr block = 77;
  CODE(cuMemAlloc(&block, 4 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(block == 77);
  // The driver itself would have taken it: pages come with the first touch.
  OK(cuMemAllocManaged(&block, 4 * kGiB, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemFree(block));
  OK(cuMemFree(allocate(100 * kMiB)));
  return 0;
}

// Blocks of this size until one is refused; the program goes on.
void fill_up(std::size_t bytes) {
  std::size_t made = 0;
  CUdeviceptr block = 77, last = 0;
  CUresult code = CUDA_SUCCESS;
  for (; made < 4 * kGiB / bytes; ++made, last = block) {
    code = cuMemAlloc(&block, bytes);
    if (code != CUDA_SUCCESS) break;
  }
  CODE(code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(block == (made == 0 ? 77 : last));
  say("blocks", static_cast<long>(made));
  OK(cuMemFree(allocate(kMiB)));  // vmm
  if (made == 0) return;
  OK(cuMemFree(last));
  OK(cuMemAlloc(&block, bytes));
}

CASE("blocks each too small to be worth measuring end with code 2 in a cgroup of 2 GiB") {
  for (const char* const mib : {"63", "50", "7"}) {
    const Cgroup group(2 * kGiB);
    if (group.path.empty()) return skip("no memory cgroup can be made here");
    const Result result = run(kPreloaded, "filling",
                              {{"KVSHIM_THRESHOLD", "2MiB"},
                               {"KVSIM_MEMORY", "64G"},
                               {"CASE_CGROUP", group.path},
                               {"CASE_MIB", mib}});
    EXPECT_IN(result.ended(0), mib + (" MiB: " + result.show()));
    EXPECT_IN(!group.killed(), group.path);
    // Not by giving up early: three quarters of the limit were used.
    long made = 0;
    std::sscanf(result.out.c_str(), "blocks %ld", &made);
    EXPECT_IN(made * std::atol(mib) > 1536, result.show());
  }
}
SCENE(filling) {
  if (!Cgroup::enter()) return 3;
  use_device();
  fill_up(static_cast<std::size_t>(std::atol(std::getenv("CASE_MIB"))) * kMiB);
  return 0;
}

CASE("processes that fill one cgroup at the same time all end with code 2, none is killed") {
  for (const char* const mib : {"1500", "63", "7"}) {
    const Cgroup group(2 * kGiB);
    if (group.path.empty()) return skip("no memory cgroup can be made here");
    const Result result = run(kPreloaded, "filling_together",
                              {{"KVSHIM_THRESHOLD", "2MiB"},
                               {"KVSIM_MEMORY", "64G"},
                               {"CASE_CGROUP", group.path},
                               {"CASE_MIB", mib}});
    EXPECT_IN(result.ended(0), mib + (" MiB: " + result.show()));
    EXPECT_IN(!group.killed(), group.path);
  }
}
SCENE(filling_together) {
  if (!Cgroup::enter()) return 3;
  const std::size_t bytes = static_cast<std::size_t>(std::atol(std::getenv("CASE_MIB"))) * kMiB;
  int start[2], refused[2], over[2];
  for (int* const ends : {start, refused, over}) OK(pipe(ends));
  for (int child = 0; child < 4; ++child) {
    if (fork() != 0) continue;
    for (const int end : {start[1], refused[0], over[1]}) close(end);
    use_device();
    char byte = 0;
    CUdeviceptr block = 77;
    CUresult code = CUDA_SUCCESS;
    EXPECT(read(start[0], &byte, 1) == 0);
    for (int made = 0; made < 2048 && code == CUDA_SUCCESS; ++made) {
      code = cuMemAlloc(&block, bytes);
    }
    CODE(code, CUDA_ERROR_OUT_OF_MEMORY);
    const CUresult small = cuMemFree(allocate(kMiB));
    close(refused[1]);
    EXPECT(read(over[0], &byte, 1) == 0);  // what it has stays until all have been refused
    _exit(code == CUDA_ERROR_OUT_OF_MEMORY && small == CUDA_SUCCESS ? 0 : 1);
  }
  char byte = 0;
  close(start[1]);
  close(refused[1]);
  EXPECT(read(refused[0], &byte, 1) == 0);
  close(over[1]);
  for (int status = 0; wait(&status) > 0;) OK(status);
  return 0;
}

CASE("threads that ask at once share what the host has: some get 2, the process lives") {
  const Cgroup group(2 * kGiB);
  if (group.path.empty()) return skip("no memory cgroup can be made here");
  Environment environment = kFromOneGiB;
  environment.emplace_back("KVSHIM_THRESHOLD", "64MiB");
  environment.emplace_back("CASE_CGROUP", group.path);
  const Result result = run(kPreloaded, "at_once", environment);
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(!group.killed(), group.path);
}
SCENE(at_once) {
  if (!Cgroup::enter()) return 3;
  const CUcontext context = use_device();
  OK(cuMemFree(allocate(64 * kMiB)));
  kvsim_hold("cuMemAllocManaged");  // whoever is let through to it has placed nothing yet
  std::atomic<int> made{0}, refused{0};
  std::thread threads[8];
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      OK(cuCtxSetCurrent(context));
      CUdeviceptr block = 0;
      const CUresult code = cuMemAlloc(&block, 400 * kMiB);
      made += code == CUDA_SUCCESS;
      refused += code == CUDA_ERROR_OUT_OF_MEMORY;
    });
  }
  const auto through = [] { return static_cast<int>(kvsim_waiting("cuMemAllocManaged")); };
  for (int round = 0; round < 50000 && through() + refused < 8; ++round) usleep(100);
  EXPECT(through() == 4 && refused == 4);
  kvsim_release("cuMemAllocManaged");
  for (std::thread& thread : threads) thread.join();
  EXPECT(made == 4);
  return 0;
}

CASE("under ulimit -v the block that does not fit is refused with 2, one that fits is made") {
  const Result result = run(kPreloaded, "limited", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("refused: RLIMIT_AS leaves").size() == 1, result.err);
}
SCENE(limited) {
  use_device();
  OK(cuMemFree(allocate(64 * kMiB)));
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * 4096 + 512 * kMiB;
  const rlimit both{limit, limit};
  OK(setrlimit(RLIMIT_AS, &both));
  CUdeviceptr block = 77;
  CODE(cuMemAlloc(&block, kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(block == 77);
  OK(cuMemFree(allocate(64 * kMiB)));
  return 0;
}

CASE(
    "2^50, 2^62 and all there is: code 2 at every threshold, at once, and the next request works") {
  for (const char* const threshold : {"1GiB", "never", "0"}) {
    Environment environment = kFromOneGiB;
    environment.emplace_back("KVSHIM_THRESHOLD", threshold);
    const Result result = run(kPreloaded, "probes", environment);
    EXPECT_IN(result.ended(0), threshold + result.show());
    EXPECT(result.seconds < 5);
  }
}
SCENE(probes) {
  use_device();
  for (const std::size_t bytes : {std::size_t{1} << 50, std::size_t{1} << 62, ~std::size_t{0},
                                  ~std::size_t{0} - 4095, 100 * kGiB * 1024}) {
    CUdeviceptr block = 77;
    CODE(cuMemAlloc(&block, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(block == 77);
  }
  OK(cuMemFree(allocate(5000)));
  return 0;
}

SCENE(plain_large) {
  use_device();
  OK(cuMemFree(allocate(128 * kMiB)));
  return 0;
}

CASE("how long the placing took is said, with the threads, and stands in the account") {
  const Result result =
      run(kPreloaded, "plain_large",
          small_threshold({{"KVSHIM_LOG", "info"}, {"KVSHIM_ZERO_THREADS", "2"}}));
  EXPECT_IN(result.ended(0), result.show());
  const auto lines = result.lines("placed 128 MiB of managed memory");
  EXPECT_IN(lines.size() == 1 && lines[0].ends_with(" ms with 2 threads"), result.err);
  const Summary summary = summary_of(result.err);
  EXPECT_IN(summary.says("placed and zeroed by the CPU: 128 MiB in "), result.err);
  EXPECT_IN(summary.says(" ms (") && summary.says(" GB/s)"), result.err);
}

CASE("devices without managed memory for CPU and GPU at once: never taken there, said once") {
  const struct {
    const char* variable;
    const char* value;
    bool asked;                                 // whether the driver is asked at all
  } rows[] = {{"KVSIM_ATTR", "0:89=0", false},  // CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
              {"KVSIM_ATTR", "0:83=0", false},  // CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
              {"KVSIM_ATTR", "0:83=!1,0:89=!1", false},
              {"KVSIM_FAIL", "cuMemAllocManaged:1:801:*", true},
              {"KVSIM_FAIL", "cuMemAllocManaged:1:1:*", true}};
  for (const auto& row : rows) {
    const Result result =
        run(kPreloaded, "unmanaged", small_threshold({{row.variable, row.value}}));
    EXPECT_IN(result.ended(0), std::string(row.value) + result.show());
    EXPECT_IN(result.count("cuMemAllocManaged") == (row.asked ? 1u : 0u), result.show());
    EXPECT_IN(result.lines("become vmm there").size() == 1, std::string(row.value) + result.err);
    EXPECT_IN(summary_of(result.err).kinds["vmm"].blocks == 5, result.err);
  }
}
SCENE(unmanaged) {
  use_device();
  for (int round = 0; round < 5; ++round) {
    const CUdeviceptr block = allocate(64 * kMiB);
    EXPECT(!managed(block));
    OK(cuMemsetD8(block, 1, 64 * kMiB));
    OK(cuMemFree(block));
  }
  return 0;
}

CASE("devices that refuse VMM memory, or addresses for it: native for good, said once") {
  const char* const failures[] = {"cuMemCreate:1:801:*", "cuMemAddressReserve:1:801:*",
                                  "cuMemMap:1:801:*", "cuMemSetAccess:1:800:*"};
  for (const char* const failure : failures) {
    const Result result = run(kPreloaded, "no_vmm", small_threshold({{"KVSIM_FAIL", failure}}));
    EXPECT_IN(result.ended(0), failure + result.show());
    EXPECT_IN(result.lines("native cuMemAlloc").size() == 1, failure + result.err);
    auto kinds = summary_of(result.err).kinds;
    EXPECT_IN(kinds["native"].blocks == 40 && kinds.count("vmm") == 0, failure + result.err);
    EXPECT_IN(result.count("cuMemCreate") <= 6, result.show());
  }
}
SCENE(no_vmm) {
  use_device();
  for (int round = 0; round < 20; ++round) {
    OK(cuMemFree(allocate(5000)));
    OK(cuMemFree(allocate(3 * kMiB)));
  }
  return 0;
}

CASE("fabric refused in any way: one trial, one info line, nothing at the usual level") {
  for (const char* const code : {"800", "801", "1", "999"}) {
    for (const char* const level : {"warn", "info"}) {
      const Result result =
          run(kPreloaded, "no_vmm", {{"KVSIM_FABRIC", code}, {"KVSHIM_LOG", level}});
      EXPECT_IN(result.ended(0), result.show());
      EXPECT_IN(result.lines("refused fabric handle").size() == (*level == 'i' ? 1u : 0u),
                result.err);
      if (*level == 'w') EXPECT_IN(result.err.empty(), result.err);
      std::size_t trials = 0;
      for (const std::string& call : result.calls_of("cuMemCreate")) {
        trials += call.find("handles=8") != std::string::npos;
      }
      EXPECT_IN(trials == 1, result.show());
    }
  }
}
