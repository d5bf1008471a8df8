// A decode loop over more KV cache than the device has memory for, on the simulated driver, whose
// managed pages move between host memory and the device: what one pass moves, drives out and reads
// in place, and what that would cost. A plain program of the driver API: which memory its blocks
// become is kvshim's business. scripts/thrash.sh runs it under each policy.
//
//   oversubscribe [--weights MiB] [--cache MiB] [--layers N] [--passes N]
//
// Exit 77 on a real driver: there oversubscription can hang a machine, and is not shown but done.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../tests/contract/kernels.h"
#include "../tests/sim/sim.h"

namespace {

constexpr std::size_t kMiB = 1u << 20;

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) \
  X(cuMemAlloc) X(cuMemFree) X(cuDeviceTotalMem) X(cuLaunchKernel)
// clang-format on

struct Driver {
#define MEMBER(name) decltype(&::name) name##_ = nullptr;
  FUNCTIONS(MEMBER)
#undef MEMBER
  decltype(&::kvsim_get_traffic) get_traffic = nullptr;
  decltype(&::kvsim_clear_traffic) clear_traffic = nullptr;
};
Driver driver;

bool load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
#define LOOK_UP(name) \
  driver.name##_ = reinterpret_cast<decltype(&::name)>(dlsym(library, TEXT(name)));
  FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  driver.get_traffic =
      reinterpret_cast<decltype(driver.get_traffic)>(dlsym(library, "kvsim_get_traffic"));
  driver.clear_traffic =
      reinterpret_cast<decltype(driver.clear_traffic)>(dlsym(library, "kvsim_clear_traffic"));
  return driver.get_traffic != nullptr && driver.clear_traffic != nullptr;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "oversubscribe: %s: %d\n", what, static_cast<int>(result));
  std::exit(1);
}
#define CALL(name, ...) check(driver.name##_(__VA_ARGS__), #name)

struct Sizes {
  std::size_t weights = 32, cache = 160, layers = 5, passes = 3;  // MiB, MiB
};

struct Layer {
  CUdeviceptr weights = 0;
  CUdeviceptr cache = 0;
};

// Tens of a second, as a table wants them: what the figures of an H200 over PCIe make of a pass
// (docs/residency.md): 10 GB/s to move a page, 51 to read it in place, 4400 at home.
double milliseconds(const kvsim_traffic& met) {
  return static_cast<double>(met.fetched) / 10e6 + static_cast<double>(met.in_place) / 51e6 +
         static_cast<double>(met.local) / 4400e6;
}

int run(const Sizes& sizes) {
  if (!load_driver()) {
    std::fprintf(stderr, "oversubscribe: not the simulated driver: not run\n");
    return 77;
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction sum = nullptr;
  CUdeviceptr total = 0;
  std::size_t memory = 0;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDeviceTotalMem, &memory, device);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CALL(cuModuleLoadData, &module, contract::kKernelText);
  CALL(cuModuleGetFunction, &sum, module, "kv_sum");
  CALL(cuMemAlloc, &total, sizeof(std::uint64_t));

  const std::size_t weight_bytes = sizes.weights * kMiB / sizes.layers / 4 * 4;
  const std::size_t cache_bytes = sizes.cache * kMiB / sizes.layers / 4 * 4;
  std::printf("device %zu MiB, weights %zu MiB, KV cache %zu MiB in %zu blocks\n", memory / kMiB,
              sizes.weights, sizes.cache, sizes.layers);
  std::vector<Layer> layers(sizes.layers);
  for (Layer& layer : layers) {
    for (const auto& [where, bytes] :
         {std::pair{&layer.weights, weight_bytes}, std::pair{&layer.cache, cache_bytes}}) {
      const CUresult code = driver.cuMemAlloc_(where, bytes);
      if (code != CUDA_SUCCESS) {
        std::printf("refused  a block of %zu MiB: code %d\n", bytes / kMiB, static_cast<int>(code));
        return 0;
      }
    }
  }

  const auto read = [&](CUdeviceptr data, std::uint64_t bytes) {
    std::uint64_t words = bytes / 4;
    void* arguments[] = {&data, &words, &total};
    CALL(cuLaunchKernel, sum, 64, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
  };
  for (std::size_t pass = 1; pass <= sizes.passes; ++pass) {
    driver.clear_traffic();
    for (const Layer& layer : layers) {
      read(layer.weights, weight_bytes);
      read(layer.cache, cache_bytes);
    }
    CALL(cuCtxSynchronize, );
    kvsim_traffic met;
    driver.get_traffic(device, &met);
    // A page that has to make way although the next pass wants it again.
    const bool thrashes = pass > 1 && met.evicted > 0;
    std::printf(
        "pass %zu  fetched %llu evicted %llu in-place %llu on-device %llu MiB, about %.1f ms%s\n",
        pass, static_cast<unsigned long long>(met.fetched / kMiB),
        static_cast<unsigned long long>(met.evicted / kMiB),
        static_cast<unsigned long long>(met.in_place / kMiB),
        static_cast<unsigned long long>(met.local / kMiB), milliseconds(met),
        thrashes ? ", thrashes" : "");
  }
  for (const Layer& layer : layers) {
    CALL(cuMemFree, layer.weights);
    CALL(cuMemFree, layer.cache);
  }
  CALL(cuMemFree, total);
  CALL(cuDevicePrimaryCtxRelease, device);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Sizes sizes;
  for (int at = 1; at < count; at += 2) {
    const unsigned long value = at + 1 < count ? std::strtoul(arguments[at + 1], nullptr, 10) : 0;
    std::size_t* into = std::strcmp(arguments[at], "--weights") == 0  ? &sizes.weights
                        : std::strcmp(arguments[at], "--cache") == 0  ? &sizes.cache
                        : std::strcmp(arguments[at], "--layers") == 0 ? &sizes.layers
                        : std::strcmp(arguments[at], "--passes") == 0 ? &sizes.passes
                                                                      : nullptr;
    if (into == nullptr || value == 0 || value > 1u << 20) {
      std::fprintf(
          stderr, "usage: oversubscribe [--weights MiB] [--cache MiB] [--layers N] [--passes N]\n");
      return 2;
    }
    *into = value;
  }
  return run(sizes);
}
