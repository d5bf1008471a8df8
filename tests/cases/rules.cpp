// Where blocks go, in whole programs: rules by the library that asked, rules and stream-ordered
// allocations, dry runs, a block that is most of the device, memory pressure in a real program.
#include <dlfcn.h>

#include <cstring>

#include "host.h"

using namespace cases;

namespace {
// "became" lines of a debug log: size, kind, reason.
bool became(const Result& result, std::size_t bytes, const char* kind, const char* why) {
  const auto lines = result.lines(std::to_string(bytes) + " bytes on device 0 became " + kind);
  return !lines.empty() && lines[0].find(std::string("(") + why + ")") != std::string::npos;
}
}  // namespace

CASE(
    "rules by library: through the shared runtime and through the driver, the first stranger "
    "asks") {
  const Result result =
      run(kPreloaded, "askers",
          {{"KVSHIM_RULES", "lib=libasker_nccl*:native; lib=libasker_*:managed; lib=cases_*:vmm"},
           {"KVSHIM_SMALL", "native"},
           {"KVSHIM_LOG", "debug"}});
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(became(result, 1 * kMiB, "native", "rule 1"), result.err);
  EXPECT_IN(became(result, 2 * kMiB, "native", "rule 1"), result.err);
  EXPECT_IN(became(result, 3 * kMiB, "managed", "rule 2"), result.err);
  EXPECT_IN(became(result, 4 * kMiB, "managed", "rule 2"), result.err);
  EXPECT_IN(became(result, 5 * kMiB, "vmm", "rule 3"), result.err);
}
CASE("without a rule by library the stack is not looked at, and no rule means the threshold") {
  const Result result = run(kPreloaded, "askers", {{"KVSHIM_LOG", "debug"}});
  EXPECT_IN(result.ended(0) && became(result, 1 * kMiB, "vmm", "threshold"), result.show());
}
SCENE(askers) {
  use_device();
  std::size_t bytes = kMiB;
  for (const char* const path : {ASKER_NCCL, ASKER_OTHER}) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != nullptr);
    if (library == nullptr) return 1;
    const auto runtime =
        reinterpret_cast<void* (*)(std::size_t)>(dlsym(library, "asker_by_runtime"));
    const auto driver =
        reinterpret_cast<CUdeviceptr (*)(std::size_t)>(dlsym(library, "asker_by_driver"));
    void* const first = runtime(bytes);
    EXPECT(first != nullptr);
    const CUdeviceptr second = driver(bytes + kMiB);
    EXPECT(second != 0);
    OK(cuMemFree(reinterpret_cast<CUdeviceptr>(first)));
    OK(cuMemFree(second));
    bytes += 2 * kMiB;
  }
  OK(cuMemFree(allocate(bytes)));
  return 0;
}

CASE("a bad rule: said once, loudly; the threshold decides alone") {
  const Result result =
      run(kPreloaded, "three_blocks", small_threshold({{"KVSHIM_RULES", "*:native; size>4X:vmm"}}));
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("KVSHIM_RULES is refused as a whole").size() == 1, result.err);
  EXPECT_IN(result.lines("at character 16: \"4X:vmm\"").size() == 1, result.err);
  auto kinds = summary_of(result.err).kinds;
  EXPECT_IN(kinds["managed"].blocks == 1 && kinds["vmm"].blocks == 2, result.err);
}
SCENE(three_blocks) {
  use_device();
  for (const std::size_t bytes : {std::size_t{4096}, 16 * kMiB, 80 * kMiB}) {
    OK(cuMemFree(allocate(bytes)));
  }
  return 0;
}

CASE("the account says why, rule by rule, and which rules made no block") {
  const Result result = run(
      kPreloaded, "three_blocks",
      small_threshold({{"KVSHIM_RULES", "size=4KiB:native; device=7:vmm; size>=80MiB:managed"}}));
  EXPECT_IN(result.ended(0), result.show());
  const Summary summary = summary_of(result.err);
  EXPECT_IN(summary.says("why: rule 1, size=4KiB:native: 1 blocks, 4 KiB"), summary.text);
  EXPECT_IN(summary.says("why: rule 3, size>=80MiB:managed: 1 blocks, 80 MiB"), summary.text);
  EXPECT_IN(summary.says("why: threshold: 1 blocks, 16 MiB"), summary.text);
  EXPECT_IN(summary.says("rule 2, device=7:vmm, made no block"), summary.text);
}

CASE(
    "a dry run: the same driver calls for memory as bare, and an account of what would have "
    "moved") {
  const Result bare = run(kBare, "every_way");
  const Result result =
      run(kPreloaded, "every_way",
          {{"KVSHIM_DRY_RUN", "1"}, {"KVSHIM_THRESHOLD", "64MiB"}, {"KVSHIM_ASYNC", "route"}});
  EXPECT_IN(bare.ended(0) && result.ended(0), result.show());
  for (const char* const name :
       {"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync",
        "cuMemCreate", "cuMemAllocManaged", "cuMemsetD8_v2", "cuLaunchHostFunc"}) {
    EXPECT_IN(result.count(name) == bare.count(name), std::string(name) + result.show());
  }
  EXPECT_IN(result.out == bare.out, difference(bare.out, result.out));
  Summary summary = summary_of(result.err);
  EXPECT_IN(result.lines("summary of a dry run: nothing was moved").size() == 1, result.err);
  const auto managed = summary.kinds["managed"], vmm = summary.kinds["vmm"];
  EXPECT_IN(managed.blocks == 3 && managed.live == 0, summary.text);
  EXPECT_IN(managed.peak_bytes == "128 MiB" && managed.bytes == "320 MiB", summary.text);
  EXPECT_IN(vmm.blocks == 1, summary.text);
  EXPECT_IN(summary.kinds.count("native") == 0 && summary.says("why: threshold: 4 blocks"),
            summary.text);
}
SCENE(every_way) {
  use_device();
  CUdeviceptr block = 0;
  std::size_t pitch = 0;
  OK(cuMemFree(allocate(4096)));
  const CUdeviceptr large = allocate(128 * kMiB);
  OK(cuMemsetD8(large, 1, 128 * kMiB));
  OK(cuMemFree(large));
  OK(cuMemAllocPitch(&block, &pitch, kMiB, 128, 4));
  std::printf("pitch %zu\n", pitch);
  OK(cuMemFree(block));
  OK(cuMemAllocAsync(&block, 64 * kMiB, nullptr));
  OK(cuMemFreeAsync(block, nullptr));
  OK(cuMemAllocAsync(&block, 4096, nullptr));
  OK(cuMemFreeAsync(block, nullptr));
  OK(cuCtxSynchronize());
  return 0;
}

CASE("KVSHIM_ASYNC=route: rules take stream-ordered allocations too, native leaves them") {
  const Result result =
      run(kPreloaded, "pools",
          small_threshold(
              {{"KVSHIM_ASYNC", "route"}, {"KVSHIM_RULES", "size=4KiB:vmm; size=80MiB:native"}}));
  EXPECT_IN(result.ended(0), result.show());
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.kinds["vmm"].blocks == 1 && summary.kinds["managed"].blocks == 1, summary.text);
  EXPECT_IN(summary.says("81 MiB in 2 stream-ordered allocations"), summary.text);
}
SCENE(pools) {
  use_device();
  for (const std::size_t bytes : {std::size_t{4096}, kMiB, 64 * kMiB, 80 * kMiB}) {
    CUdeviceptr block = 0;
    OK(cuMemAllocAsync(&block, bytes, nullptr));
    OK(cuMemFreeAsync(block, nullptr));
  }
  OK(cuCtxSynchronize());
  return 0;
}

CASE("KVSHIM_SPILL=pressure: a program that needs more than the device has gets it") {
  const Environment small_device = {
      {"KVSIM_MEMORY", "256M"}, {"KVSHIM_SUMMARY", "1"}, {"KVSHIM_ASYNC", "route"}};
  const Result bare = run(kPreloaded, "more_than_there_is", small_device);
  EXPECT_IN(bare.ended(0) && bare.out == "refused\n", bare.show());
  Environment pressure = small_device;
  pressure.emplace_back("KVSHIM_SPILL", "pressure");
  const Result result = run(kPreloaded, "more_than_there_is", pressure);
  EXPECT_IN(result.ended(0) && result.out == "4 blocks, right\n", result.show());
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.kinds["managed"].blocks >= 2, summary.text);
  EXPECT_IN(summary.says("why: pressure: "), summary.text);
  EXPECT_IN(!summary.says("requests answered with out of memory"), summary.text);
}
SCENE(more_than_there_is) {
  use_device();
  CUdeviceptr blocks[4] = {};
  for (int i = 0; i < 4; ++i) {
    const CUresult code = i == 3 ? cuMemAllocAsync(&blocks[i], 100 * kMiB, nullptr)
                                 : cuMemAlloc(&blocks[i], 100 * kMiB);
    if (code != CUDA_SUCCESS) {
      CODE(code, CUDA_ERROR_OUT_OF_MEMORY);
      std::printf("refused\n");
      return 0;
    }
    OK(cuMemsetD8(blocks[i], static_cast<unsigned char>(i + 1), 100 * kMiB));
  }
  OK(cuCtxSynchronize());
  bool right = true;
  for (int i = 0; i < 4; ++i) {
    unsigned char last = 0;
    OK(cuMemcpyDtoH(&last, blocks[i] + 100 * kMiB - 1, 1));
    right = right && last == i + 1;
    OK(i == 3 ? cuMemFreeAsync(blocks[i], nullptr) : cuMemFree(blocks[i]));
  }
  std::printf("4 blocks, %s\n", right ? "right" : "wrong");
  return 0;
}

CASE(
    "a block of most of the device: one line with the remedy; the ceiling keeps it out of the "
    "host") {
  const Environment small_device = small_threshold({{"KVSIM_MEMORY", "200M"}});
  const Result result = run(kPreloaded, "preallocates", small_device);
  EXPECT_IN(result.ended(0), result.show());
  const auto lines = result.lines("XLA_PYTHON_CLIENT_PREALLOCATE=false");
  EXPECT_IN(lines.size() == 1 && lines[0].find("is 75% of device 0 and managed") != lines[0].npos,
            result.err);
  Environment ceiling = small_device;
  ceiling.emplace_back("KVSHIM_CEILING", "140MiB");
  const Result kept = run(kPreloaded, "preallocates", ceiling);
  auto kinds = summary_of(kept.err).kinds;
  EXPECT_IN(kept.ended(0) && kinds["vmm"].blocks == 2 && kinds["managed"].blocks == 1, kept.show());
  EXPECT_IN(summary_of(kept.err).says("why: ceiling: 2 blocks, 300 MiB"), kept.err);
}
SCENE(preallocates) {
  use_device();
  OK(cuMemFree(allocate(100 * kMiB)));
  OK(cuMemFree(allocate(150 * kMiB)));
  OK(cuMemFree(allocate(150 * kMiB)));
  return 0;
}
