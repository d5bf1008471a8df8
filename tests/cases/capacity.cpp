// What a program is told of a device's memory, and engines that plan with it (CASES 95, 96).
#include <dlfcn.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

#include "cgroup.h"
#include "host.h"
#include "nvml.h"

using namespace cases;

namespace {

// A device of 512 MiB, 256 MiB of host memory beside it.
Environment with_virtual(Environment more = {}) {
  for (const auto& [name, value] : Environment{{"KVSHIM_MEMINFO", "virtual"},
                                               {"KVSHIM_HOST_LIMIT", "256MiB"},
                                               {"KVSHIM_THRESHOLD", "32MiB"},
                                               {"KVSIM_MEMORY", "512M"},
                                               {"KVSIM_DEVICES", "1"},
                                               {"KVSHIM_SUMMARY", "1"}}) {
    if (std::none_of(more.begin(), more.end(), [&](const auto& set) { return set.first == name; }))
      more.emplace_back(name, value);
  }
  return more;
}

struct Info {
  std::size_t free = 0, total = 0;
};
Info info() {
  Info now;
  OK(cuMemGetInfo(&now.free, &now.total));
  EXPECT(now.free <= now.total);
  EXPECT(now.total != 0);
  std::size_t device = 0;
  OK(cuDeviceTotalMem(&device, 0));
  EXPECT(device == now.total);
  return now;
}

// The program itself checks that a block of the cache takes what is written.
void use(CUdeviceptr block, std::size_t bytes) {
  OK(cuMemsetD8(block, 0x5a, bytes));
  unsigned char ends[2] = {};
  OK(cuMemcpyDtoH(&ends[0], block, 1));
  OK(cuMemcpyDtoH(&ends[1], block + bytes - 1, 1));
  EXPECT(ends[0] == 0x5a && ends[1] == 0x5a);
}

// An engine that sizes itself as vLLM does: a snapshot, weights, a profile run, the assertion that
// nobody else gave memory back meanwhile, and a cache of all that the utilisation leaves.
int engine(std::size_t layers) {
  use_device();
  OK(cuMemFree(allocate(1000)));
  const Info start = info();
  std::vector<CUdeviceptr> weights;
  for (int layer = 0; layer < 6; ++layer) weights.push_back(allocate(20 * kMiB));

  std::size_t least = info().free;
  for (int run = 0; run < 2; ++run) {
    const CUdeviceptr activations = allocate(24 * kMiB);
    OK(cuMemsetD8(activations, 1, 24 * kMiB));
    least = std::min(least, info().free);
    OK(cuMemFree(activations));
  }
  const Info profiled = info();
  EXPECT(start.free > profiled.free);  // vLLM: "Error in memory profiling", and its end
  EXPECT(profiled.total == start.total);
  const std::size_t peak = start.free - least;
  EXPECT(peak >= 144 * kMiB && peak <= 150 * kMiB);

  const std::size_t wanted = start.total / 10 * 9;
  EXPECT(wanted > peak);
  const std::size_t each = (wanted - peak) / layers / kMiB * kMiB;
  std::printf("total %zu cache %zu\n", start.total / kMiB, each * layers / kMiB);
  std::vector<CUdeviceptr> cache;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    CUdeviceptr block = 0;
    const CUresult code = cuMemAlloc(&block, each);
    if (code != CUDA_SUCCESS) return code;  // an engine ends here
    cache.push_back(block);
  }
  const Info full = info();
  EXPECT(full.total == start.total);
  // Where the simulation counts pages of managed memory on the device as free, the fall is less.
  EXPECT(profiled.free - full.free >= (layers == 1 ? 0 : each * layers));
  EXPECT(profiled.free - full.free <= (each + 2 * kMiB) * layers + 8 * kMiB);  // whole pages
  for (const CUdeviceptr block : cache) use(block, each);
  const CUdeviceptr activations = allocate(24 * kMiB);  // the first request
  OK(cuMemFree(activations));
  for (const CUdeviceptr block : cache) OK(cuMemFree(block));
  const Info after = info();
  EXPECT(after.free + 4 * kMiB >= profiled.free);
  for (const CUdeviceptr block : weights) OK(cuMemFree(block));
  EXPECT(info().free + 4 * kMiB >= start.free);
  EXPECT(info().free <= start.free);
  return 0;
}

}  // namespace

SCENE(engine_of_16_layers) {
  return engine(16);
}
SCENE(engine_of_one_block) {
  return engine(1);
}

CASE("an engine that sizes itself as vLLM does plans with device and host memory, and lives") {
  for (const char* const scene : {"engine_of_16_layers", "engine_of_one_block"}) {
    const Result result = run(kPreloaded, scene, with_virtual());
    EXPECT_IN(result.ended(0), scene + result.show());
    EXPECT_IN(result.out.find("total 768 ") != std::string::npos, result.out);
    // More than the device has: 0.9 of 768 MiB less the profile's peak.
    std::size_t cache = 0;
    std::sscanf(result.out.c_str(), "total 768 cache %zu", &cache);
    EXPECT_IN(cache > 512 && cache < 560, result.out);
    EXPECT_IN(result.lines(" warn: ").empty() && result.lines(" error: ").empty(), result.err);
    const Summary summary = summary_of(result.err);
    EXPECT_IN(summary.says("device 0: has 512 MiB, free when last asked: ") &&
                  summary.says("the program was told of 256 MiB more"),
              result.err);
    EXPECT_IN(summary.says("device 0: in host memory 0 B now, "), result.err);
    EXPECT_IN(result.seconds < 15, result.show());
  }
}

CASE(
    "one variable is enough: the same engine with KVSHIM_MEMINFO=virtual and no threshold of its "
    "own") {
  for (const char* const scene : {"engine_of_16_layers", "engine_of_one_block"}) {
    for (const char* const large : {"managed", "host", "vmm"}) {
      const Result result = run(
          kPreloaded, scene, with_virtual({{"KVSHIM_THRESHOLD", "2GiB"}, {"KVSHIM_LARGE", large}}));
      EXPECT_IN(result.ended(0), result.show());
      EXPECT_IN(result.out.find("total 768 cache 5") != std::string::npos, result.out);
      EXPECT_IN(result.lines(" warn: ").empty() && result.lines(" error: ").empty(), result.err);
      // The device first: only what it has no room for is anywhere else.
      const Summary summary = summary_of(result.err);
      EXPECT_IN(summary.says("why: pressure: ") || summary.says("why: fallback: 1 blocks"),
                result.err);
    }
  }
}

CASE("what is told at the first question is said, and why it is nothing") {
  const auto told = [](Environment more) {
    more.emplace_back("KVSHIM_LOG", "info");
    return run(kPreloaded, "asks_only", with_virtual(std::move(more)));
  };
  const Result result = told({});
  EXPECT_IN(result.ended(0), result.show());
  const std::string line = "device 0: the program is told of 256 MiB more than it has (limited by ";
  EXPECT_IN(result.lines(line + "KVSHIM_HOST_LIMIT; 1 devices)").size() == 1, result.err);
  EXPECT_IN(told({{"KVSHIM_SPILL_LIMIT", "64MiB"}})
                    .lines("64 MiB more than it has (limited by "
                           "KVSHIM_SPILL_LIMIT")
                    .size() == 1,
            result.err);
  const Result nothing = told({{"KVSHIM_CEILING", "0"}});
  EXPECT_IN(nothing.lines("warn: device 0: KVSHIM_MEMINFO=virtual adds nothing").size() == 1,
            nothing.err);
  // A program that only asks learns of a slip of the pen all the same.
  const Result slip =
      run(kPreloaded, "asks_only",
          {{"KVSHIM_MEMINFO", "vitual"}, {"KVSHIM_TRESHOLD", "1G"}, {"KVSHIM_HOST_LIMIT", "5"}});
  EXPECT_IN(slip.ended(0), slip.show());
  EXPECT_IN(slip.lines("KVSHIM_MEMINFO=\"vitual\" is not understood").size() == 1, slip.err);
  EXPECT_IN(slip.lines("the nearest one is KVSHIM_THRESHOLD").size() == 1, slip.err);
  EXPECT_IN(slip.lines("a size has a unit: 512M").size() == 1, slip.err);
}
SCENE(asks_only) {
  use_device();
  info();
  info();
  return 0;
}

CASE(
    "a block that may not take the host memory told: 2, and one line that says what would let it") {
  const auto refused = [](Environment more) {
    return run(kPreloaded, "many_small", with_virtual(std::move(more)));
  };
  const Result kept = refused({{"KVSHIM_SPILL", "threshold"}});
  EXPECT_IN(kept.ended(0), kept.show());
  EXPECT_IN(
      kept.lines("refused: device 0 has no room for it. 256 MiB of host memory").size() == 1 &&
          kept.lines("KVSHIM_SPILL=both lets it in").size() == 1,
      kept.err);
  const Result ceiling = refused({{"KVSHIM_CEILING", "8MiB"}});
  EXPECT_IN(ceiling.ended(0), ceiling.show());
  EXPECT_IN(ceiling.lines("KVSHIM_CEILING keeps it out of them").size() == 1, ceiling.err);
  // Nothing of the kind where nothing was told, and where the block goes there.
  const Result real = refused({{"KVSHIM_MEMINFO", "real"}});
  EXPECT_IN(real.ended(0) && real.lines("refused").empty(), real.show());
  const Result both = refused({});
  EXPECT_IN(both.out == "48\n" && both.lines("of host memory that the program was told").empty(),
            both.show());
  EXPECT_IN(kept.out != both.out && kept.out == real.out, kept.out + real.out);
}
SCENE(many_small) {
  use_device();
  std::vector<CUdeviceptr> blocks;
  for (CUdeviceptr block = 0; blocks.size() < 48; blocks.push_back(block)) {
    if (cuMemAlloc(&block, 15 * kMiB) != CUDA_SUCCESS) break;  // 720 MiB of 768 in all
  }
  for (const CUdeviceptr block : blocks) use(block, 15 * kMiB);
  std::printf("%zu\n", blocks.size());
  CUdeviceptr once_more = 0;
  if (blocks.size() < 48) EXPECT(cuMemAlloc(&once_more, 15 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
  return 0;
}

CASE("host memory that the driver has not, though the budget has it: the device takes the block") {
  const Result result = run(kPreloaded, "host_runs_short",
                            with_virtual({{"KVSHIM_LARGE", "host"}, {"KVSIM_HOST_MEMORY", "64M"}}));
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("the driver has no more memory of NUMA node 0").size() >= 1, result.err);
  // With the device's figures alone it is the user's word that counts: host or nothing.
  const Result real = run(
      kPreloaded, "host_runs_short",
      with_virtual(
          {{"KVSHIM_LARGE", "host"}, {"KVSIM_HOST_MEMORY", "64M"}, {"KVSHIM_MEMINFO", "real"}}));
  EXPECT_IN(real.ended(CUDA_ERROR_OUT_OF_MEMORY), real.show());
}
SCENE(host_runs_short) {
  use_device();
  const CUdeviceptr first = allocate(40 * kMiB);
  CUdeviceptr second = 0;
  const CUresult code = cuMemAlloc(&second, 40 * kMiB);
  if (code != CUDA_SUCCESS) return code;
  use(first, 40 * kMiB);
  use(second, 40 * kMiB);
  OK(cuMemFree(second));
  OK(cuMemFree(first));
  return 0;
}

CASE("with real figures the same engine plans with the device alone") {
  Environment environment =
      with_virtual({{"KVSHIM_MEMINFO", "real"}, {"KVSHIM_THRESHOLD", "never"}});
  const Result result = run(kPreloaded, "engine_of_16_layers", environment);
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.out.find("total 512 cache 3") != std::string::npos, result.out);
  EXPECT_IN(result.err.find("was told") == std::string::npos, result.err);
}

CASE("an engine that asks for more than it was told gets code 2 and one line, and may go on") {
  const Result result = run(kPreloaded, "greedy", with_virtual());
  EXPECT_IN(result.ended(0), result.show());
  const auto lines = result.lines("refused: ");
  EXPECT_IN(lines.size() == 1 &&
                lines[0].find("told with KVSHIM_MEMINFO=virtual leaves") != std::string::npos,
            result.err);
  EXPECT_IN(result.count("cuMemAllocManaged") == 0, result.show());
}
SCENE(greedy) {
  use_device();
  OK(cuMemFree(allocate(1000)));
  const Info before = info();
  CUdeviceptr block = 77;
  CODE(cuMemAlloc(&block, before.free + 4 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(block == 77);
  EXPECT(info().free == before.free);
  OK(cuMemFree(allocate(8 * kMiB)));
  return 0;
}

// ---- every place that says how much memory there is ----

CASE("all places that say how much memory there is agree, and say the truth with real") {
  const struct {
    const char* meminfo;
    const char* nvml;
    const char* says;  // CUDA's total, NVML's total less what the driver keeps
  } rows[] = {{"virtual", "1", "768 768"},
              {"virtual", "0", "768 512"},
              {"real", "1", "512 512"},
              {"real", "0", "512 512"}};
  for (const auto& row : rows) {
    const Result result = run(kPreloaded, "places",
                              with_virtual({{"KVSHIM_MEMINFO", row.meminfo},
                                            {"KVSHIM_NVML", row.nvml},
                                            {"KVSIM_DEVICES", "2"},
                                            {"KVSHIM_SPILL_LIMIT", "256MiB"}}));
    EXPECT_IN(result.ended(0), std::string(row.meminfo) + row.nvml + result.show());
    EXPECT_IN(result.out == std::string(row.says) + "\n", row.meminfo + result.out);
  }
  const Result off =
      run(kPreloaded, "places", with_virtual({{"KVSHIM_DISABLE", "1"}, {"KVSHIM_NVML", "1"}}));
  EXPECT_IN(off.out == "512 512\n", off.show());
}
SCENE(places) {
  const Nvml nvml;
  constexpr std::size_t kKept = 512 * kMiB;  // what the driver keeps, in NVML's total
  const auto ask = [&](unsigned index) {
    const nvmlDevice_t device = nvml.device(index);
    nvmlMemory_t memory{};
    nvmlMemory_v2_t second{};
    second.version = 0x02000028;
    OK(nvml.nvmlDeviceGetMemoryInfo(device, &memory));
    OK(nvml.nvmlDeviceGetMemoryInfo_v2(device, &second));
    EXPECT(second.total == memory.total && second.free == memory.free);
    EXPECT(memory.free + memory.used == memory.total);
    EXPECT(second.free + second.used + second.reserved == second.total);
    EXPECT(memory.free <= memory.total);
    nvmlMemory_v2_t old{};
    old.version = 0x01000028;
    CODE(nvml.nvmlDeviceGetMemoryInfo_v2(device, &old), 25);
    return memory;
  };

  // Before cuInit nobody knows which device of CUDA's that is: NVML's own figures.
  OK(nvml.nvmlInit_v2());
  EXPECT(ask(0).total == 512 * kMiB + kKept);
  use_device();
  int count = 0;
  OK(cuDeviceGetCount(&count));
  const auto index = static_cast<unsigned>(count) - 1;  // NVML counts the other way round
  OK(cuMemFree(allocate(1000)));
  const Info before = info();
  const nvmlMemory_t nvml_before = ask(index);
  const CUdeviceptr spilled = allocate(64 * kMiB);
  const CUdeviceptr own = allocate(20 * kMiB);
  const nvmlMemory_t nvml_after = ask(index);
  EXPECT(nvml_after.total == nvml_before.total);
  if (before.total != 512 * kMiB) EXPECT(before.free - info().free == 84 * kMiB);
  const bool same = nvml_before.total - kKept == before.total;
  if (same && before.total != 512 * kMiB) {
    EXPECT(nvml_before.free - nvml_after.free == 84 * kMiB);
  }
  OK(cuMemFree(spilled));
  OK(cuMemFree(own));
  EXPECT(ask(index).free == nvml_before.free);
  // The device that CUDA does not show.
  EXPECT(ask(static_cast<unsigned>(count)).total == 4 * kGiB + kKept);

  // The forms of CUDA before 3.2, of which 32 bits are asked.
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
  using Info32 = CUresult (*)(unsigned*, unsigned*);
  using Total32 = CUresult (*)(unsigned*, CUdevice);
  unsigned free32 = 0, total32 = 0, device32 = 0;
  OK(reinterpret_cast<Info32>(dlsym(cuda, "cuMemGetInfo"))(&free32, &total32));
  OK(reinterpret_cast<Info32>(dlsym(cuda, "cuMemGetInfo"))(nullptr, nullptr));
  OK(reinterpret_cast<Total32>(dlsym(cuda, "cuDeviceTotalMem"))(&device32, 0));
  EXPECT(total32 == before.total && device32 == before.total && free32 <= total32);
  std::size_t nothing = 7;
  CODE(cuDeviceTotalMem(&nothing, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT(nothing == 7);
  CODE(cuDeviceTotalMem(nullptr, 0), CUDA_ERROR_INVALID_VALUE);

  std::printf("%zu %llu\n", before.total / kMiB, (nvml_before.total - kKept) / kMiB);
  return 0;
}

CASE("NVML and CUDA agree on what is free while kvshim keeps memory for later blocks") {
  const Result result =
      run(kPreloaded, "kept", with_virtual({{"KVSHIM_NVML", "1"}, {"KVSHIM_SUMMARY", "0"}}));
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(kept) {
  const CUcontext primary = use_device();
  const Nvml nvml;
  OK(nvml.nvmlInit_v2());
  const nvmlDevice_t device = nvml.device(0);
  // NVML is asked first: what CUDA's own question sets in motion must not be needed.
  const auto agree = [&](const char* when) {
    nvmlMemory_t memory{};
    nvmlMemory_v2_t second{};
    second.version = 0x02000028;
    OK(nvml.nvmlDeviceGetMemoryInfo(device, &memory));
    OK(nvml.nvmlDeviceGetMemoryInfo_v2(device, &second));
    const Info cuda = info();
    EXPECT_IN(memory.free == cuda.free && second.free == cuda.free,
              std::string(when) + ": " + std::to_string(memory.free) + ", " +
                  std::to_string(second.free) + ", CUDA " + std::to_string(cuda.free));
    EXPECT(memory.free + memory.used == memory.total);
    EXPECT(second.free + second.used + second.reserved == second.total);
  };
  agree("at first");
  CUcontext other = nullptr;
  OK(cuCtxCreate_v4(&other, nullptr, 0, 0));
  for (const CUcontext context : {primary, other}) {
    OK(cuCtxSetCurrent(context));
    const CUdeviceptr small = allocate(4096), medium = allocate(20 * kMiB);
    agree("allocated");
    OK(cuMemFree(small));
    OK(cuMemFree(medium));
    agree("freed");
  }
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemFreeAsync(allocate(20 * kMiB), stream));
  OK(cuStreamSynchronize(stream));
  agree("freed in stream order");
  return 0;
}

CASE("more than 32 bits can say is told to the forms of CUDA before 3.2 as the most they can") {
  const Result result = run(kPreloaded, "narrow", with_virtual({{"KVSIM_MEMORY", "8G"}}));
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(narrow) {
  use_device();
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
  unsigned free32 = 0, total32 = 0, device32 = 0;
  OK(reinterpret_cast<CUresult (*)(unsigned*, unsigned*)>(dlsym(cuda, "cuMemGetInfo"))(&free32,
                                                                                       &total32));
  OK(reinterpret_cast<CUresult (*)(unsigned*, CUdevice)>(dlsym(cuda, "cuDeviceTotalMem"))(&device32,
                                                                                          0));
  EXPECT(free32 == ~0u && total32 == ~0u && device32 == ~0u);
  return 0;
}

CASE("by default each device that the process sees is told an equal share") {
  for (const char* const devices : {"1", "2", "4"}) {
    const Result result = run(kPreloaded, "share", with_virtual({{"KVSIM_DEVICES", devices}}));
    EXPECT_IN(result.ended(0), result.show());
    EXPECT_IN(result.out == std::to_string(512 + 256 / std::atoi(devices)) + "\n",
              devices + result.out);
  }
}
SCENE(share) {
  OK(cuInit(0));
  std::size_t total = 0;
  OK(cuDeviceTotalMem(&total, 0));  // before there is a context
  std::printf("%zu\n", total / kMiB);
  use_device();
  EXPECT(info().total == total);
  return 0;
}

CASE("a program linked with NVML reaches it through kvshim, and is told what the option says") {
  for (const char* const nvml : {"0", "1"}) {
    const Result result =
        run(kPreloaded, "nvml_linked",
            with_virtual({{"KVSHIM_NVML", nvml}, {"KVSIM_DEVICES", "2"}}), NVML_LINKED);
    EXPECT_IN(result.ended(0), result.show());
    EXPECT_IN(result.out == (*nvml == '1' ? "1152 1152\n" : "1024 1024\n"), nvml + result.out);
  }
}

CASE("where no NVML is loaded there is none to be found, whatever the option says") {
  for (const char* const nvml : {"0", "1"}) {
    const Result result = run(kPreloaded, "no_nvml", with_virtual({{"KVSHIM_NVML", nvml}}));
    EXPECT_IN(result.ended(0), result.show());
  }
}
SCENE(no_nvml) {
  for (const char* const name : {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"}) {
    EXPECT(dlsym(RTLD_DEFAULT, name) == nullptr);
    EXPECT(dlsym(dlopen(nullptr, RTLD_LAZY), name) == nullptr);
  }
  return 0;
}

// ---- two processes ----

CASE(
    "two processes in a cgroup of 2 GiB that each ask for 1.25 GiB at once: one has it, none "
    "dies") {
  const Cgroup group(2 * kGiB);
  if (group.path.empty()) return skip("no memory cgroup can be made here");
  const Result result = run(kPreloaded, "both",
                            {{"KVSHIM_THRESHOLD", "1GiB"},
                             {"KVSHIM_LOG", "info"},
                             {"KVSIM_MEMORY", "64G"},
                             {"CASE_CGROUP", group.path}});
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(!group.killed(), group.path);
  EXPECT_IN(result.out.find("got 1 refused 1") != std::string::npos, result.show());
  EXPECT_IN(result.lines("refused: the cgroup memory limit leaves").size() == 1, result.err);
}
SCENE(both) {
  if (!Cgroup::enter()) return 3;
  int got = 0, refused = 0, other = 0;
  int start[2];
  EXPECT(pipe(start) == 0);
  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    if (child == 0) {
      close(start[1]);
      use_device();
      CUdeviceptr block = 0;
      char byte = 0;
      if (read(start[0], &byte, 1) != 0) _exit(5);
      const CUresult code = cuMemAlloc(&block, kGiB + kGiB / 4);
      // Both live at the same time, whoever is first.
      usleep(1500000);
      _exit(static_cast<int>(code));
    }
  }
  usleep(200000);
  close(start[1]);  // now
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ++(code == 0 ? got : code == CUDA_ERROR_OUT_OF_MEMORY ? refused : other);
  }
  std::printf("got %d refused %d other %d\n", got, refused, other);
  return other == 0 ? 0 : 1;
}

CASE("nothing of the claims is left when a block is placed or refused: no descriptor, no lock") {
  const Result result = run(kPreloaded, "leaves_nothing", with_virtual());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(leaves_nothing) {
  const auto held = [] {
    int count = 0;
    for (int fd = 0; fd < 2048; ++fd) {
      char target[256] = {};
      const std::string name = "/proc/self/fd/" + std::to_string(fd);
      if (readlink(name.c_str(), target, sizeof(target) - 1) <= 0) continue;
      count += std::string(target).find("/proc/meminfo") == 0 ||
               std::string(target).find("/sys/fs/cgroup") == 0;
    }
    return count;
  };
  use_device();
  const CUdeviceptr block = allocate(128 * kMiB);
  EXPECT(held() == 0);
  CUdeviceptr refused = 0;
  CODE(cuMemAlloc(&refused, 4 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(held() == 0);
  OK(cuMemFree(block));
  return 0;
}
