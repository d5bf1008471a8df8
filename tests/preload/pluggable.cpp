// kvshim as a pluggable allocator: opened by dlopen in a program that nobody preloaded anything
// into and that has not even loaded the driver, or with kvshim preloaded. Run with
// KVSHIM_THRESHOLD=64MiB; an argument names the way: preloaded, opened, disabled, dry.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "kvshim/kvshim.h"

namespace {

void* driver = nullptr;
using Malloc = decltype(&kvshim_malloc);
using Free = decltype(&kvshim_free);
Malloc allocate = nullptr;
Free release = nullptr;

template <typename Function>
Function find(const char* name) {
  void* const found = dlsym(driver, name);
  EXPECT_TEXT(found != nullptr, name);
  return reinterpret_cast<Function>(found);
}

size_t logged(const char* name) {
  return find<uint64_t (*)(const char*)>("kvsim_log_count")(name);
}
void inject(const char* rules) {
  EXPECT(find<int (*)(const char*)>("kvsim_fail")(rules) == 0);
}
CUcontext current() {
  CUcontext context = nullptr;
  EXPECT(find<CUresult (*)(CUcontext*)>("cuCtxGetCurrent")(&context) == CUDA_SUCCESS);
  return context;
}
int device_of(void* block) {
  int ordinal = -1;
  const auto ask =
      find<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>("cuPointerGetAttribute");
  EXPECT(ask(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(block)) ==
         CUDA_SUCCESS);
  return ordinal;
}

std::atomic<bool> ran{false};
void slow(void*) {
  usleep(50000);
  ran = true;
}

// Nothing may be taken from the environment of the others: names look up to what they were.
void others_are_left_alone(bool preloaded) {
  void* const found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  EXPECT_TEXT(found == nullptr, preload::object_of(found));  // the driver is loaded RTLD_LOCAL
  EXPECT_TEXT(preload::in_kvshim(dlsym(driver, "cuMemAlloc_v2")) == preloaded,
              preload::object_of(dlsym(driver, "cuMemAlloc_v2")));
}

void kinds(bool routed) {
  const size_t creates = logged("cuMemCreate"), managed = logged("cuMemAllocManaged");
  void* const medium = allocate(4u << 20, 0, nullptr);
  void* const large = allocate(64u << 20, 0, nullptr);
  EXPECT(medium != nullptr && large != nullptr && device_of(medium) == 0);
  EXPECT(logged("cuMemCreate") - creates == (routed ? 1 : 0));
  EXPECT(logged("cuMemAllocManaged") - managed == (routed ? 1 : 0));
  if (routed) EXPECT(static_cast<char*>(large)[(64u << 20) - 1] == 0);
  release(medium, 4u << 20, 0, nullptr);
  release(large, 64u << 20, 0, nullptr);
  EXPECT(logged("cuMemUnmap") == (routed ? 1 : 0));
  release(nullptr, 0, 0, nullptr);
  EXPECT(allocate(0, 0, nullptr) == nullptr);
}

void contexts() {
  // A thread without a context gets the primary one; one on another device keeps its own.
  void* block = nullptr;
  std::thread([&] {
    EXPECT(current() == nullptr);
    block = allocate(4096, 1, nullptr);
    EXPECT(block != nullptr && device_of(block) == 1);
    const CUcontext mine = current();
    EXPECT(mine != nullptr);
    void* const elsewhere = allocate(4096, 0, nullptr);
    EXPECT(elsewhere != nullptr && device_of(elsewhere) == 0 && current() == mine);
    release(elsewhere, 4096, 0, nullptr);
    EXPECT(current() == mine);
  }).join();
  std::thread([&] { release(block, 4096, 1, nullptr); }).join();
  EXPECT(allocate(4096, 99, nullptr) == nullptr);
  EXPECT(allocate(4096, -1, nullptr) == nullptr);
}

CUresult reset(int device) {
  return find<CUresult (*)(CUdevice)>("cuDevicePrimaryCtxReset_v2")(device);
}

// As after cudaDeviceReset: the next call makes the primary context anew, whoever had retained it.
void reset_of_the_programs_context() {
  std::thread([] {
    CUcontext context = nullptr;
    EXPECT(find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 1) ==
           CUDA_SUCCESS);
    EXPECT(find<CUresult (*)(CUcontext)>("cuCtxSetCurrent")(context) == CUDA_SUCCESS);
    EXPECT(allocate(4096, 1, nullptr) != nullptr);
    EXPECT(reset(1) == CUDA_SUCCESS);
    void* const block = allocate(4096, 1, nullptr);
    EXPECT(block != nullptr && device_of(block) == 1);
    release(block, 4096, 1, nullptr);
  }).join();
}
void reset_of_our_context() {
  // In a thread without a context, in one of another device, and where it is current.
  const auto works = [](int device) {
    void* const block = allocate(4u << 20, device, nullptr);
    EXPECT(block != nullptr && device_of(block) == device);
    release(block, 4u << 20, device, nullptr);
  };
  EXPECT(reset(0) == CUDA_SUCCESS);
  std::thread([&] { works(0); }).join();
  std::thread([&] {
    works(1);
    EXPECT(reset(0) == CUDA_SUCCESS);
    works(0);
  }).join();
  works(0);
  EXPECT(reset(0) == CUDA_SUCCESS);
  works(0);
  // A context of the program's own that has ended stays the program's business.
  std::thread([] {
    CUcontext own = nullptr;
    EXPECT(find<CUresult (*)(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&own, 0, 0) ==
           CUDA_SUCCESS);
    const auto set = find<CUresult (*)(CUcontext)>("cuCtxSetCurrent");
    EXPECT(find<CUresult (*)(CUcontext)>("cuCtxDestroy_v2")(own) == CUDA_SUCCESS);
    EXPECT(set(own) == CUDA_SUCCESS);
    EXPECT(allocate(4096, 0, nullptr) == nullptr);
  }).join();
}

void waits_for_the_stream() {
  const auto create = find<CUresult (*)(CUstream*, unsigned)>("cuStreamCreate");
  const auto launch = find<CUresult (*)(CUstream, CUhostFn, void*)>("cuLaunchHostFunc");
  CUstream stream = nullptr;
  EXPECT(create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (const size_t bytes : {size_t{4096}, size_t{4} << 20, size_t{64} << 20}) {
    ran = false;
    void* const block = allocate(bytes, 0, stream);
    EXPECT(launch(stream, slow, nullptr) == CUDA_SUCCESS);
    release(block, bytes, 0, stream);
    EXPECT(ran.load());
  }
  // A stream of another context than the block's: of device 1.
  void* const block = allocate(4u << 20, 0, nullptr);
  const auto push = find<CUresult (*)(CUcontext)>("cuCtxPushCurrent_v2");
  const auto pop = find<CUresult (*)(CUcontext*)>("cuCtxPopCurrent_v2");
  CUcontext context = nullptr;
  EXPECT(find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 1) ==
         CUDA_SUCCESS);
  EXPECT(push(context) == CUDA_SUCCESS);
  CUstream other = nullptr;
  EXPECT(create(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  ran = false;
  EXPECT(launch(other, slow, nullptr) == CUDA_SUCCESS);
  EXPECT(pop(&context) == CUDA_SUCCESS);
  release(block, 4u << 20, 0, other);
  EXPECT(ran.load());
}

void captures() {
  const auto create = find<CUresult (*)(CUstream*, unsigned)>("cuStreamCreate");
  const auto begin = find<CUresult (*)(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
  const auto end = find<CUresult (*)(CUstream, CUgraph*)>("cuStreamEndCapture");
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    EXPECT(create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    void* const before = allocate(4u << 20, 0, stream);
    EXPECT(begin(stream, mode) == CUDA_SUCCESS);
    void* const block = allocate(4u << 20, 0, stream);
    EXPECT(block != nullptr);
    release(before, 4u << 20, 0, stream);
    release(block, 4u << 20, 0, nullptr);
    EXPECT(end(stream, &graph) == CUDA_SUCCESS);
  }
}

void failures() {
  const auto counts = [](const char* name) { return logged(name); };
  inject("cuMemCreate:1:2:*,cuMemAlloc_v2:1:2:*,cuMemAllocManaged:1:2:*");
  EXPECT(allocate(4u << 20, 0, nullptr) == nullptr);
  EXPECT(allocate(64u << 20, 0, nullptr) == nullptr);
  find<void (*)()>("kvsim_fail_none")();
  EXPECT(allocate(~size_t{0} / 2, 0, nullptr) == nullptr);
  inject("cuDevicePrimaryCtxRetain:1:2:*");
  std::thread([] { EXPECT(allocate(4096, 2, nullptr) == nullptr); }).join();
  find<void (*)()>("kvsim_fail_none")();
  // A free that the driver refuses keeps the block; a pointer that nobody made is only reported.
  void* const block = allocate(4u << 20, 0, nullptr);
  const size_t unmapped = counts("cuMemUnmap");
  inject("cuMemFree_v2:1:719:*");
  release(block, 4u << 20, 0, nullptr);
  find<void (*)()>("kvsim_fail_none")();
  EXPECT(counts("cuMemUnmap") == unmapped);
  release(block, 4u << 20, 0, nullptr);
  release(reinterpret_cast<void*>(0x123000), 4096, 0, nullptr);
}

// The statistics, by a caller of an older and of a newer header too.
void statistics(void* library, bool routed, bool counted) {
  const auto stats =
      reinterpret_cast<decltype(&kvshim_get_stats)>(dlsym(library, "kvshim_get_stats"));
  const auto device_stats = reinterpret_cast<decltype(&kvshim_get_device_stats)>(
      dlsym(library, "kvshim_get_device_stats"));
  EXPECT(stats != nullptr && device_stats != nullptr);
  if (stats == nullptr || device_stats == nullptr) return;
  kvshim_stats before{}, during{}, after{};
  EXPECT(stats(&before, sizeof(before)) == 0);
  void* const small = allocate(3u << 20, 0, nullptr);
  void* const large = allocate(64u << 20, 0, nullptr);
  EXPECT(stats(&during, sizeof(during)) == 0);
  kvshim_device_stats device{};
  EXPECT(device_stats(0, &device, sizeof(device)) == 0);
  release(small, 3u << 20, 0, nullptr);
  release(large, 64u << 20, 0, nullptr);
  EXPECT(stats(&after, sizeof(after)) == 0);
  if (counted) {
    EXPECT(during.vmm.live - before.vmm.live == 1 && after.vmm.live == before.vmm.live);
    EXPECT(during.vmm.live_bytes - before.vmm.live_bytes == 3u << 20);
    EXPECT(during.managed.live_bytes - before.managed.live_bytes == 64u << 20);
    EXPECT(during.managed.blocks - before.managed.blocks == 1);
    EXPECT(after.managed.live == before.managed.live && after.managed.peak_bytes >= 64u << 20);
  } else {
    EXPECT(std::memcmp(&before, &after, sizeof(before)) == 0);
  }
  if (routed) {
    EXPECT(device.total == 8ull << 30 && device.told == 0);
    EXPECT(device.spilled.live_bytes >= 64u << 20);
  }
  struct {
    kvshim_stats known;
    uint64_t newer = 7;
  } larger;
  EXPECT(stats(&larger.known, sizeof(larger)) == 0 && larger.newer == 0);
  uint64_t few[2] = {7, 7};
  EXPECT(stats(reinterpret_cast<kvshim_stats*>(few), sizeof(few[0])) == 0 && few[1] == 7);
  EXPECT(stats(nullptr, sizeof(before)) == 1 && stats(&before, 0) == 1);
  EXPECT(device_stats(-1, &device, sizeof(device)) == 1);
  EXPECT(device_stats(1 << 20, &device, sizeof(device)) == 1);
}

}  // namespace

int main(int, char** arguments) {
  const char* const way = arguments[1];
  const bool preloaded = std::strcmp(way, "preloaded") == 0;
  const bool routed = preloaded || std::strcmp(way, "opened") == 0;
  void* library = dlopen(KVSHIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT_TEXT(library != nullptr, dlerror());
  if (library == nullptr) return 1;
  allocate = reinterpret_cast<Malloc>(dlsym(library, "kvshim_malloc"));
  release = reinterpret_cast<Free>(dlsym(library, "kvshim_free"));
  if (allocate == nullptr || release == nullptr) return 1;
  EXPECT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == nullptr);  // it finds the driver itself
  void* const first = allocate(4096, 0, nullptr);
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT(first != nullptr && driver != nullptr);
  if (driver == nullptr) return 1;
  if (dlsym(driver, "kvsim_fail") == nullptr) preload::skip("no simulated driver");
  release(first, 4096, 0, nullptr);
  others_are_left_alone(preloaded);
  kinds(routed);
  statistics(library, routed, std::strcmp(way, "disabled") != 0);
  if (routed) {
    reset_of_the_programs_context();
    contexts();
    waits_for_the_stream();
    captures();
    failures();
    reset_of_our_context();
    EXPECT(find<uint64_t (*)()>("kvsim_violations")() == 0);
  }
  EXPECT(dlclose(library) == 0);
  allocate(4096, 0, nullptr);  // closed is not gone: fork and exit handlers point into it
  return preload::result();
}
