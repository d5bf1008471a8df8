// A host program in small: it loads "weights" in many blocks, allocates one big KV cache, and
// serves requests that write to the cache, compute on it and read it back, checking every result. A
// plain program of the CUDA driver API: nothing here knows of kvshim, which is the point.
//
//   serve [--weights MiB] [--kv MiB] [--requests N]
//   serve --probe      exit 0 if there is a driver with a device, 77 if not; prints nothing
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../tests/contract/kernels.h"

namespace {

// The driver's functions, looked up by their exact names as any library does that does not link
// libcuda: cuda.h's macros turn cuMemAlloc into cuMemAlloc_v2, in the type and in the text.
#define SERVE_TEXT(name) SERVE_TEXT_OF(name)
#define SERVE_TEXT_OF(name) #name
// clang-format off
#define SERVE_FUNCTIONS(X) \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuModuleUnload) \
  X(cuMemAlloc) X(cuMemFree) X(cuMemGetInfo) X(cuMemsetD8Async) X(cuMemcpyHtoDAsync) \
  X(cuMemcpyDtoHAsync) X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamDestroy) \
  X(cuLaunchKernel)
// clang-format on

struct Driver {
#define SERVE_MEMBER(name) decltype(&::name) name##_ = nullptr;
  SERVE_FUNCTIONS(SERVE_MEMBER)
#undef SERVE_MEMBER
};
Driver driver;

bool load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
#define SERVE_LOOK_UP(name)                                                               \
  driver.name##_ = reinterpret_cast<decltype(&::name)>(dlsym(library, SERVE_TEXT(name))); \
  if (driver.name##_ == nullptr) {                                                        \
    std::fprintf(stderr, "serve: the driver has no %s\n", SERVE_TEXT(name));              \
    return false;                                                                         \
  }
  SERVE_FUNCTIONS(SERVE_LOOK_UP)
#undef SERVE_LOOK_UP
  return true;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver.cuGetErrorName_(result, &name);
  std::fprintf(stderr, "serve: %s: %s\n", what, name != nullptr ? name : "unknown error");
  std::exit(1);
}
#define CALL(name, ...) check(driver.name##_(__VA_ARGS__), #name)

void expect(std::uint64_t found, std::uint64_t wanted, const char* what) {
  if (found == wanted) return;
  std::fprintf(stderr, "serve: %s: %llu instead of %llu\n", what,
               static_cast<unsigned long long>(found), static_cast<unsigned long long>(wanted));
  std::exit(1);
}

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

constexpr std::size_t kMiB = 1u << 20;

struct Sizes {
  std::size_t weights = 512 * kMiB;
  std::size_t kv = 1024 * kMiB;
  unsigned requests = 4;
};

// The three kernels, each over `words` 32-bit words.
class Kernels {
 public:
  explicit Kernels(CUstream stream) : stream_(stream) {
    CALL(cuModuleLoadData, &module_, contract::kKernelText);
    CALL(cuModuleGetFunction, &fill_, module_, "kv_fill");
    CALL(cuModuleGetFunction, &add_, module_, "kv_add");
    CALL(cuModuleGetFunction, &sum_, module_, "kv_sum");
    CALL(cuMemAlloc, &total_, sizeof(std::uint64_t));
  }
  void unload() {
    CALL(cuMemFree, total_);
    CALL(cuModuleUnload, module_);
  }

  void fill(CUdeviceptr data, std::uint64_t words, std::uint32_t value) {
    void* arguments[] = {&data, &words, &value};
    launch(fill_, arguments);
  }
  void add(CUdeviceptr data, std::uint64_t words, std::uint32_t value) {
    void* arguments[] = {&data, &words, &value};
    launch(add_, arguments);
  }
  // The sum of all words, brought to the host.
  std::uint64_t sum(CUdeviceptr data, std::uint64_t words) {
    CALL(cuMemsetD8Async, total_, 0, sizeof(std::uint64_t), stream_);
    void* arguments[] = {&data, &words, &total_};
    launch(sum_, arguments);
    std::uint64_t result = 0;
    CALL(cuMemcpyDtoHAsync, &result, total_, sizeof(result), stream_);
    CALL(cuStreamSynchronize, stream_);
    return result;
  }

 private:
  void launch(CUfunction function, void** arguments) {
    CALL(cuLaunchKernel, function, 256, 1, 1, 256, 1, 1, 0, stream_, arguments, nullptr);
  }

  CUstream stream_;
  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr, add_ = nullptr, sum_ = nullptr;
  CUdeviceptr total_ = 0;
};

struct Block {
  CUdeviceptr data;
  std::size_t bytes;
};

// Blocks of 1 to 64 MiB, as the tensors of a model's layers are, each filled with its own number.
std::vector<Block> load_weights(Kernels& kernels, std::size_t total) {
  const auto start = Clock::now();
  std::vector<Block> weights;
  std::size_t loaded = 0;
  for (unsigned n = 0; loaded < total; ++n) {
    std::size_t bytes = kMiB << (n % 7);
    if (bytes > total - loaded) bytes = total - loaded;
    Block block{0, bytes};
    CALL(cuMemAlloc, &block.data, bytes);
    kernels.fill(block.data, bytes / 4, n + 1);
    weights.push_back(block);
    loaded += bytes;
  }
  CALL(cuCtxSynchronize, );
  std::printf("weights    %zu MiB in %zu blocks, %.1f ms\n", loaded / kMiB, weights.size(),
              milliseconds_since(start));
  return weights;
}

void check_weights(Kernels& kernels, const std::vector<Block>& weights) {
  for (std::size_t n = 0; n < weights.size(); ++n) {
    const std::uint64_t words = weights[n].bytes / 4;
    expect(kernels.sum(weights[n].data, words), words * (n + 1), "a block of weights");
  }
}

// One request: a prompt from the host into its slot of the cache, some steps that change the slot,
// the slot's sum, and its last words back.
void serve(Kernels& kernels, CUstream stream, CUdeviceptr slot, std::size_t bytes,
           unsigned number) {
  const auto start = Clock::now();
  const std::uint64_t words = bytes / 4;
  const std::size_t prompt_words = 4096;
  constexpr unsigned kSteps = 16;

  expect(kernels.sum(slot, words), 0, "an unused part of the KV cache");
  const std::vector<std::uint32_t> prompt(prompt_words, number);
  CALL(cuMemcpyHtoDAsync, slot, prompt.data(), prompt_words * 4, stream);
  for (unsigned step = 0; step < kSteps; ++step) kernels.add(slot, words, 1);
  expect(kernels.sum(slot, words), words * kSteps + prompt_words * number, "a request's cache");

  std::uint32_t tail[4] = {};
  CALL(cuMemcpyDtoHAsync, tail, slot + bytes - sizeof(tail), sizeof(tail), stream);
  CALL(cuStreamSynchronize, stream);
  for (const std::uint32_t word : tail) expect(word, kSteps, "the end of a request's cache");
  std::printf("request %u  %zu MiB of cache, %u steps, result right, %.1f ms\n", number,
              bytes / kMiB, kSteps, milliseconds_since(start));
}

int run(const Sizes& sizes) {
  if (!load_driver()) {
    std::fprintf(stderr, "serve: no CUDA driver (libcuda.so.1) here\n");
    return 77;
  }
  CALL(cuInit, 0);
  CUdevice device = 0;
  CUcontext context = nullptr;
  char name[96] = "";
  std::size_t free_bytes = 0, total_bytes = 0;
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDeviceGetName, name, sizeof(name), device);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CALL(cuMemGetInfo, &free_bytes, &total_bytes);
  std::printf("device     %s, %zu of %zu MiB free\n", name, free_bytes / kMiB, total_bytes / kMiB);
  if (sizes.weights + sizes.kv > free_bytes) {
    std::fprintf(stderr, "serve: %zu MiB asked for: too much for this device\n",
                 (sizes.weights + sizes.kv) / kMiB);
    return 1;
  }

  CUstream stream = nullptr;
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  Kernels kernels(stream);
  const std::vector<Block> weights = load_weights(kernels, sizes.weights);

  const auto start = Clock::now();
  CUdeviceptr kv = 0;
  CALL(cuMemAlloc, &kv, sizes.kv);
  CALL(cuMemsetD8Async, kv, 0, sizes.kv, stream);
  CALL(cuStreamSynchronize, stream);
  std::printf("KV cache   %zu MiB in one block, zeroed, %.1f ms\n", sizes.kv / kMiB,
              milliseconds_since(start));

  const std::size_t slot = sizes.kv / sizes.requests / 16 * 16;
  for (unsigned request = 0; request < sizes.requests; ++request)
    serve(kernels, stream, kv + request * slot, slot, request + 1);

  check_weights(kernels, weights);
  std::printf("weights    unchanged\n");

  CALL(cuMemFree, kv);
  for (const Block& block : weights) CALL(cuMemFree, block.data);
  kernels.unload();
  CALL(cuStreamDestroy, stream);
  CALL(cuDevicePrimaryCtxRelease, device);
  std::printf("done       everything freed, all results right\n");
  return 0;
}

int probe() {
  int devices = 0;
  const bool found = load_driver() && driver.cuInit_(0) == CUDA_SUCCESS &&
                     driver.cuDeviceGetCount_(&devices) == CUDA_SUCCESS && devices > 0;
  return found ? 0 : 77;
}

// A whole number of something, from 1; 0 if it is not one.
unsigned long number(const char* text) {
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && value < (1ul << 24) ? value : 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count == 2 && std::strcmp(arguments[1], "--probe") == 0) return probe();
  Sizes sizes;
  for (int at = 1; at < count; at += 2) {
    const std::string option = arguments[at];
    const unsigned long value = at + 1 < count ? number(arguments[at + 1]) : 0;
    if (option == "--weights" && value > 0) {
      sizes.weights = value * kMiB;
    } else if (option == "--kv" && value > 0) {
      sizes.kv = value * kMiB;
    } else if (option == "--requests" && value > 0 && value <= 1024) {
      sizes.requests = static_cast<unsigned>(value);
    } else {
      std::fprintf(stderr, "usage: serve [--weights MiB] [--kv MiB] [--requests N] | --probe\n");
      return 2;
    }
  }
  return run(sizes);
}
