// What KVSHIM_THRESHOLD may say and what becomes of a mistake in it: never a threshold of a few
// bytes, under which everything would be managed. And what kvshim writes: nothing in a process that
// allocates no CUDA memory, each fall-back once, an account that can be read.
#include <dirent.h>
#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "host.h"

using namespace cases;

CASE("a threshold that cannot be understood: one line with name and value, the default is used") {
  const char* const bad[] = {"",    "4X",           "50%", "-1",   "+1",    "0x10",
                             "1e9", "99999999999G", "4 G", "NaN",  "1.3B",  "4",
                             "G",   "4GiBx",        "08",  "4,5G", "4G 4G", "nevr"};
  for (const std::string value : bad) {
    const Result result = run(kPreloaded, "three_sizes", {{"KVSHIM_THRESHOLD", value}});
    EXPECT_IN(result.ended(0), "\"" + value + "\"" + result.show());
    EXPECT_IN(result.count("cuMemAllocManaged") == 0, "\"" + value + "\"");
    const auto lines = result.lines("KVSHIM_THRESHOLD=\"" + value + "\" is not understood");
    EXPECT_IN(lines.size() == 1, "\"" + value + "\"\n" + result.err);
    EXPECT_IN(!lines.empty() && lines[0].find("using the default 2GiB") != std::string::npos,
              result.err);
  }
}
SCENE(three_sizes) {
  use_device();
  for (const std::size_t bytes : {std::size_t{5}, std::size_t{100000}, 70 * kMiB}) {
    OK(cuMemFree(allocate(bytes)));
  }
  return 0;
}

CASE("thresholds that are understood decide, and are echoed in bytes") {
  const struct {
    const char* value;
    const char* echo;
    std::size_t managed;  // of 5 bytes, 100,000 bytes and 70 MiB
  } rows[] = {{"4G", "4294967296", 0},
              {"4g", "4294967296", 0},
              {"4Gi", "4294967296", 0},
              {"4GB", "4294967296", 0},
              {"4GiB", "4294967296", 0},
              {"4096M", "4294967296", 0},
              {"4096m", "4294967296", 0},
              {"4294967296", "4294967296", 0},
              {"  4G ", "4294967296", 0},
              {"4G\n", "4294967296", 0},
              {"1.5G", "1610612736", 0},
              {"08G", "8589934592", 0},
              {"70M", "73400320", 1},
              {"71680K", "73400320", 1},
              {"73400321", "73400321", 0},
              {"64KiB", "65536", 2},
              {"4B", "4", 3},
              {"0", "0", 3},
              {"0m", "0", 3},
              {"never", "never", 0}};
  for (const auto& row : rows) {
    const Result result =
        run(kPreloaded, "three_sizes", {{"KVSHIM_THRESHOLD", row.value}, {"KVSHIM_LOG", "info"}});
    EXPECT_IN(result.ended(0) && result.count("cuMemAllocManaged") == row.managed,
              std::string(row.value) + result.show());
    const auto lines = result.lines("KVSHIM_THRESHOLD = ");
    EXPECT_IN(lines.size() == 1 && lines[0].find(row.echo) != std::string::npos,
              std::string(row.value) + "\n" + result.err);
  }
}

CASE("a process without any CUDA call: no file, no thread, no output, no descriptor") {
  const std::string file = work_folder() + "/never.%p.log";
  const Result bare = run(kBare, "no_cuda");
  for (const char* const level : {"warn", "debug"}) {
    const Result result =
        run(kPreloaded, "no_cuda",
            {{"KVSHIM_LOG", level}, {"KVSHIM_SUMMARY", "1"}, {"KVSHIM_LOG_FILE", file}});
    EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
    EXPECT_IN(result.out == bare.out, difference(bare.out, result.out));
    EXPECT_IN(result.calls.empty(), result.show());
    EXPECT(
        !std::filesystem::exists(work_folder() + "/never." + std::to_string(result.pid) + ".log"));
  }
}
namespace {
int entries_of(const char* folder) {
  int count = 0;
  DIR* const open = opendir(folder);
  for (const dirent* entry; open != nullptr && (entry = readdir(open)) != nullptr;) {
    count += entry->d_name[0] != '.';
  }
  if (open != nullptr) closedir(open);
  return count;
}
}  // namespace
SCENE(no_cuda) {
  dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  dlsym(RTLD_DEFAULT, "puts");
  std::printf("threads %d\n", entries_of("/proc/self/task"));
  std::printf("descriptors %d\n", entries_of("/proc/self/fd"));
  return 0;
}

CASE(
    "a mistake in the settings is reported by a process that allocates, not by one that looks up") {
  const Environment wrong = {{"KVSHIM_THRESHOLD", "nonsense"}, {"KVSHIM_TRESHOLD", "4G"}};
  const Result looks_up = run(kPreloaded, "no_cuda", wrong);
  EXPECT_IN(looks_up.ended(0) && looks_up.err.empty(), looks_up.show());
  const Result allocates = run(kPreloaded, "three_sizes", wrong);
  EXPECT_IN(allocates.lines("KVSHIM_").size() == 2, allocates.show());
}

CASE("a process that asks the driver and allocates nothing: no file, no thread, no output") {
  const std::string file = work_folder() + "/asks.%p.log";
  const Result bare = run(kBare, "only_asks");
  for (const char* const level : {"warn", "info"}) {
    const Result result =
        run(kPreloaded, "only_asks",
            {{"KVSHIM_LOG", level}, {"KVSHIM_SUMMARY", "1"}, {"KVSHIM_LOG_FILE", file}});
    EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
    EXPECT_IN(result.out == bare.out, difference(bare.out, result.out));
    EXPECT_IN(result.count("cuMemCreate") == 0 && result.count("cuMemAlloc_v2") == 0,
              result.show());
    const std::string made = work_folder() + "/asks." + std::to_string(result.pid) + ".log";
    EXPECT_IN(!std::filesystem::exists(made), std::string(level) + ":\n" + read_file(made));
  }
}
SCENE(only_asks) {
  use_device();
  std::size_t free = 0, total = 0;
  unsigned type = 0;
  void* function = nullptr;
  OK(cuMemGetInfo(&free, &total));
  cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000);
  OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, nullptr));
  OK(cuMemFree(0));
  std::printf("threads %d\n", entries_of("/proc/self/task"));
  return 0;
}

CASE("no thread of kvshim's lives on after a managed block, a memset, a free") {
  const Result bare = run(kBare, "threads_after");
  const Result result = run(kPreloaded, "threads_after",
                            {{"KVSHIM_THRESHOLD", "64MiB"}, {"KVSHIM_ZERO_THREADS", "8"}});
  EXPECT_IN(bare.ended(0) && result.ended(0), result.show());
  EXPECT_IN(result.out == bare.out && result.err.empty(), difference(bare.out, result.out));
}
SCENE(threads_after) {
  use_device();
  const CUdeviceptr block = allocate(128 * kMiB);
  OK(cuMemsetD8(block, 1, 128 * kMiB));
  OK(cuCtxSynchronize());
  // The simulated driver has one thread a stream; a few milliseconds for threads that are ending.
  usleep(20000);
  std::printf("descriptors %d\n", entries_of("/proc/self/fd"));
  std::printf("threads %d\n", entries_of("/proc/self/task"));
  OK(cuMemFree(block));
  return 0;
}

CASE("the account: kinds with blocks, bytes and peaks, the largest under the threshold, devices") {
  const Result result = run(kPreloaded, "account", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.tables == 1 && summary.pid == result.pid, result.err);
  const auto managed = summary.kinds["managed"], vmm = summary.kinds["vmm"];
  EXPECT_IN(managed.blocks == 3 && managed.live == 1, summary.text);
  EXPECT_IN(managed.bytes == "208 MiB" && managed.live_bytes == "64 MiB", summary.text);
  EXPECT_IN(managed.peak_bytes == "144 MiB", summary.text);
  EXPECT_IN(vmm.blocks == 11 && vmm.live == 0, summary.text);
  EXPECT_IN(vmm.live_bytes == "0 B" && vmm.peak_bytes == "20 MiB", summary.text);
  EXPECT_IN(summary.says("64 MiB and more: managed; less: vmm (largest of these: 20 MiB)"),
            summary.text);
  EXPECT_IN(summary.says("placed and zeroed by the CPU: 208 MiB in "), summary.text);
  EXPECT_IN(summary.says("memset of managed blocks by the CPU: 2 calls, 74 MiB in "), summary.text);
  EXPECT_IN(summary.says("device 0: ") && summary.says("POSIX FD"), summary.text);
  EXPECT_IN(!summary.says("device 1") && !summary.says("bypassed"), summary.text);
  EXPECT_IN(!summary.says("another kind") && !summary.says("out of memory"), summary.text);
}
SCENE(account) {
  use_device();
  const CUdeviceptr first = allocate(64 * kMiB), second = allocate(80 * kMiB);
  OK(cuMemsetD8(first, 1, 64 * kMiB));
  OK(cuMemsetD32Async(second, 1, 10 * kMiB / 4, nullptr));
  OK(cuMemFree(second));
  OK(cuMemFree(first));
  allocate(64 * kMiB);
  for (int round = 0; round < 10; ++round) OK(cuMemFree(allocate(1000)));
  OK(cuMemFree(allocate(20 * kMiB)));
  return 0;
}

CASE("other kinds by KVSHIM_LARGE and KVSHIM_SMALL appear under their names") {
  const Result result =
      run(kPreloaded, "account",
          small_threshold({{"KVSHIM_LARGE", "native"}, {"KVSHIM_SMALL", "managed"}}));
  EXPECT_IN(result.ended(0), result.show());
  auto kinds = summary_of(result.err).kinds;
  EXPECT_IN(kinds["native"].blocks == 3 && kinds["managed"].blocks == 11 && kinds.size() == 2,
            result.err);
}

CASE("out of memory stands in the account; nothing is said of it at the usual level") {
  const Result result = run(kPreloaded, "too_much", small_threshold({{"KVSIM_MEMORY", "40M"}}));
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(summary_of(result.err).says("2 requests answered with out of memory"), result.err);
  EXPECT_IN(result.lines("] warn").empty() && result.lines("] error").empty(), result.err);
}
SCENE(too_much) {
  use_device();
  CUdeviceptr block = 0;
  CODE(cuMemAlloc(&block, 50 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  CODE(cuMemAlloc(&block, 60 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemFree(allocate(20 * kMiB)));
  return 0;
}

CASE("KVSHIM_SUMMARY=0 with the level warn: a program that works says nothing at all") {
  const Result result = run(kPreloaded, "account", {{"KVSHIM_THRESHOLD", "64MiB"}});
  EXPECT_IN(result.ended(0) && result.err.empty() && result.out.empty(), result.show());
}

CASE("KVSHIM_LOG=off silences everything but the account that was asked for") {
  const Result result =
      run(kPreloaded, "account",
          {{"KVSHIM_THRESHOLD", "nonsense"}, {"KVSHIM_LOG", "off"}, {"KVSIM_ATTR", "0:89=0"}});
  EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
}
