// Other libraries with a hand in CUDA memory in the same process: each allocation is counted once
// by each that sees it, whoever is named first; the account says who is there and what to do.
#include <dlfcn.h>

#include <filesystem>
#include <thread>

#include "host.h"

using namespace cases;

namespace {

constexpr int kWays = 5;
constexpr const char* kNeighbours[] = {NEIGHBOUR_LOOKUP, NEIGHBOUR_PLAIN};

// LD_PRELOAD with kvshim and another library, in this order or the other.
std::string both(const char* other, bool other_first) {
  const std::string a = other, b = KVSHIM_LIBRARY;
  return other_first ? a + ":" + b : b + ":" + a;
}

std::string said(const Result& result) {
  const auto at = result.out.find("neighbour ");
  return at == std::string::npos ? "nothing"
                                 : result.out.substr(at, result.out.find('\n', at) - at);
}

// A library of that name, to load or preload.
std::string named(const std::string& name) {
  const std::string path = work_folder() + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::filesystem::copy_file(ONLY_THERE, path, std::filesystem::copy_options::skip_existing);
  return path;
}

}  // namespace

CASE(
    "kvshim and another hook of dlsym, cuGetProcAddress and cuMemAlloc: each call once, both "
    "orders") {
  for (const char* other : kNeighbours) {
    const std::string alone = said(run(kBare, "all_ways", {{"LD_PRELOAD", other}}));
    EXPECT_IN(alone == (other == kNeighbours[0] ? "neighbour 15 15" : "neighbour 6 6"), alone);
    for (const bool other_first : {true, false}) {
      const Result result =
          run(kPreloaded, "all_ways",
              {{"LD_PRELOAD", both(other, other_first)}, {"KVSHIM_SUMMARY", "1"}});
      EXPECT_IN(result.ended(0), result.show());
      auto kinds = summary_of(result.err).kinds;
      EXPECT_IN(kinds["vmm"].blocks == 3 * kWays && kinds["vmm"].live == 0, result.show());
      // Each block is one piece of VMM memory, and the driver's own allocator made none of them.
      EXPECT_IN(result.count("cuMemCreate size=4194304 ") == 3 * kWays, result.show());
      EXPECT_IN(result.count("cuMemAlloc_v2 bytes=3145728 ") == 0, result.show());
      EXPECT_IN(result.lines("freed that was allocated past").empty(), result.err);
      // Before kvshim it sees what it sees without kvshim; after it, kvshim's calls pass it by.
      EXPECT_IN(said(result) == (other_first ? alone : "neighbour 0 0"),
                said(result) + " " + alone);
    }
  }
}
SCENE(all_ways) {
  using Alloc = CUresult (*)(CUdeviceptr*, std::size_t);
  using Free = CUresult (*)(CUdeviceptr);
  using GetV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
  using GetV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  use_device();
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto v1 = reinterpret_cast<GetV1>(dlsym(driver, "cuGetProcAddress"));
  const auto v2 = reinterpret_cast<GetV2>(dlsym(driver, "cuGetProcAddress_v2"));
  void* alloc[kWays] = {reinterpret_cast<void*>(static_cast<Alloc>(&cuMemAlloc)),
                        dlsym(driver, "cuMemAlloc_v2"), dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")};
  void* free[kWays] = {reinterpret_cast<void*>(static_cast<Free>(&cuMemFree)),
                       dlsym(driver, "cuMemFree_v2"), dlsym(RTLD_DEFAULT, "cuMemFree_v2")};
  OK(v1("cuMemAlloc", &alloc[3], 3020, 0));
  OK(v1("cuMemFree", &free[3], 3020, 0));
  OK(v2("cuMemAlloc", &alloc[4], 12000, 0, nullptr));
  OK(v2("cuMemFree", &free[4], 12000, 0, nullptr));
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr blocks[kWays] = {};
    for (int way = 0; way < kWays; ++way) {
      OK(reinterpret_cast<Alloc>(alloc[way])(&blocks[way], 3 * kMiB));
      EXPECT(blocks[way] != 0);
    }
    // What came by one way goes by another.
    for (int way = 0; way < kWays; ++way) {
      OK(reinterpret_cast<Free>(free[way])(blocks[(way + round) % kWays]));
    }
  }
  const auto count = [](const char* name) {
    void* const found = dlsym(RTLD_DEFAULT, name);
    return found == nullptr ? -1 : reinterpret_cast<int (*)()>(found)();
  };
  std::printf("neighbour %d %d\n", count("neighbour_allocations"), count("neighbour_frees"));
  return 0;
}

CASE("the same from many threads at once, from the first call on") {
  for (const bool other_first : {true, false}) {
    const Result result =
        run(kPreloaded, "threads",
            {{"LD_PRELOAD", both(NEIGHBOUR_LOOKUP, other_first)}, {"KVSHIM_SUMMARY", "1"}});
    EXPECT_IN(result.ended(0), result.show());
    EXPECT_IN(summary_of(result.err).kinds["vmm"].blocks == 8 * 50, result.err);
  }
}
SCENE(threads) {
  const CUcontext context = use_device();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      OK(cuCtxSetCurrent(context));
      for (int i = 0; i < 50; ++i) OK(cuMemFree(allocate(1000)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

CASE("a known neighbour is named in the account, with its place and the remedy; others are not") {
  struct Known {
    const char* file;
    const char* name;
    const char* first;  // said when it is named before kvshim
    const char* last;   // and when after
  };
  constexpr Known kKnown[] = {
      {"libvgpu.so", "HAMi-core", "counts what kvshim keeps in host memory", "quota does not hold"},
      {"libvgpu-control.so", "vgpu-manager", "set it that much higher", "quota does not hold"},
      {"libcuda-control.so", "vcuda-controller", "set it that much higher", "before libkvshim.so"},
      {"libgemhook.so.1", "Gemini", "set it that much higher", "before libkvshim.so"},
      {"libnvshare.so", "nvshare", "nothing is left for kvshim", "preload one of the two"},
      {"torch_memory_saver_hook_mode_preload_cu13.abi3.so", "torch_memory_saver", "past kvshim",
       "past kvshim"},
      {"kvcached/_C.abi3.so", "kvcached", "past kvshim", "past kvshim"},
      {"kvcached/vmm_ops.cpython-312-x86_64-linux-gnu.so", "kvcached", "past kvshim",
       "past kvshim"},
      {"libsanitizer-collection.so", "Compute Sanitizer", "KVSHIM_SMALL=native",
       "KVSHIM_SMALL=native"},
      {"libcuda-injection.so", "Nsight Compute", "--replay-mode", "--replay-mode"},
      {"libToolsInjection64.so", "Nsight Systems", "nothing to do", "nothing to do"},
  };
  for (const Known& known : kKnown) {
    const std::string file = named(known.file);
    for (const bool first : {true, false}) {
      const Result result =
          run(kPreloaded, "one_block",
              {{"LD_PRELOAD", both(file.c_str(), first)}, {"KVSHIM_SUMMARY", "1"}});
      const Summary summary = summary_of(result.err);
      EXPECT_IN(result.ended(0) && summary.tables == 1, result.show());
      EXPECT_IN(summary.says(std::string("neighbour ") + known.name), summary.text);
      EXPECT_IN(summary.says(first ? "loaded before kvshim" : "loaded after kvshim"), summary.text);
      EXPECT_IN(summary.says(first ? known.first : known.last), summary.text);
    }
    // A plugin of the program's comes after, and is found as well.
    const Result late = run(kPreloaded, "one_block", {{"LOADS", file}, {"KVSHIM_SUMMARY", "1"}});
    EXPECT_IN(late.ended(0) && summary_of(late.err).says("loaded after kvshim"), late.show());
  }
  for (const char* other : {"libvgpusched.so", "xlibvgpu.so", "libvgpu.so.d/libx.so",
                            "other/_C.abi3.so", "libmemray.so"}) {
    const Result result =
        run(kPreloaded, "one_block", {{"LOADS", named(other)}, {"KVSHIM_SUMMARY", "1"}});
    EXPECT_IN(result.ended(0) && !summary_of(result.err).says("neighbour"), result.show());
  }
}
SCENE(one_block) {
  if (const char* path = std::getenv("LOADS")) {
    EXPECT(dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr);
  }
  use_device();
  OK(cuMemFree(allocate(4096)));
  return 0;
}
