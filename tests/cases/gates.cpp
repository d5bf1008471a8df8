// Lock order. kvshim never holds a lock of its own while it is inside the driver: each driver call
// it makes waits here until another thread has done something through kvshim. And it takes none of
// the loader's in a CUDA call.
#include <dlfcn.h>

#include <thread>

#include "host.h"

using namespace cases;

namespace {

// A thread enters `call`, which is held in the driver at `gate`; meanwhile this one does
// `meanwhile` through kvshim. A lock held over the driver call would keep it until the gate gives
// up after 10 s.
template <typename Call, typename Meanwhile>
void while_held(const char* gate, CUcontext context, Call call, Meanwhile meanwhile) {
  kvsim_hold(gate);
  std::thread held([&] {
    OK(cuCtxSetCurrent(context));
    call();
  });
  for (int round = 0; round < 50000 && kvsim_waiting(gate) == 0; ++round) usleep(100);
  if (kvsim_waiting(gate) == 0) fail(__FILE__, __LINE__, std::string("nobody came to ") + gate);
  meanwhile();
  kvsim_release(gate);
  held.join();
  if (kvsim_gate_timeouts() != 0) fail(__FILE__, __LINE__, std::string("held at ") + gate);
}

// Everything that must answer at any time. What itself needs the held call is left out.
void ask(CUdeviceptr known) {
  std::size_t free = 0, total = 0, size = 0;
  CUdeviceptr base = 0;
  unsigned type = 0;
  OK(cuMemGetInfo(&free, &total));
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, known));
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  void* data[] = {&size};
  OK(cuPointerGetAttributes(1, &attribute, data, known));
  OK(cuMemGetAddressRange(&base, &size, known));
  EXPECT(base == known);
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != nullptr);
  void* function = nullptr;
  OK(cuGetProcAddress_v2("cuMemFree", &function, 12000, 0, nullptr));
  OK(cuMemsetD8Async(known, 1, 100, nullptr));
}

}  // namespace

CASE("no lock is held in any driver call of allocation and free: queries and look-ups go on") {
  const Result result = run(kPreloaded, "queries", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(queries) {
  const CUcontext context = use_device();
  const CUdeviceptr known = allocate(3 * kMiB);
  const auto meanwhile = [&] { ask(known); };
  CUdeviceptr block = 0;
  const auto alloc = [&](std::size_t bytes) {
    return [&, bytes] { OK(cuMemAlloc(&block, bytes)); };
  };
  const auto release = [&] { OK(cuMemFree(block)); };
  for (const char* const gate :
       {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    while_held(gate, context, alloc(3 * kMiB), meanwhile);
    OK(cuMemFree(block));
  }
  while_held("cuMemAllocManaged", context, alloc(64 * kMiB), meanwhile);
  while_held("cuMemFree_v2", context, release, meanwhile);
  for (const char* const gate : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
    OK(cuMemAlloc(&block, 3 * kMiB));
    while_held(gate, context, release, meanwhile);
  }
  // A slab of small blocks is made, and one is freed, likewise.
  while_held("cuMemMap", context, alloc(5000), meanwhile);
  while_held("cuMemFree_v2", context, release, meanwhile);
  return 0;
}

CASE("other threads allocate and free while one is held in the driver") {
  const Result result = run(kPreloaded, "work", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(work) {
  const CUcontext context = use_device();
  CUdeviceptr block = 0;
  const CUdeviceptr small = allocate(600);  // its slab has room
  const auto meanwhile = [&] {
    for (int round = 0; round < 20; ++round) OK(cuMemFree(allocate(600)));
    OK(cuMemFree(allocate(64 * kMiB)));
  };
  while_held(
      "cuMemCreate", context, [&] { OK(cuMemAlloc(&block, 3 * kMiB)); }, meanwhile);
  while_held(
      "cuMemUnmap", context, [&] { OK(cuMemFree(block)); }, meanwhile);
  while_held(
      "cuMemMap", context, [&] { OK(cuMemAlloc(&block, 2 * kMiB - 512)); }, meanwhile);
  OK(cuMemFree(small));
  return 0;
}

CASE(
    "cuMemCreate and cuMemFree that wait until another thread has asked something get their turn") {
  const Environment holds[] = {
      {{"KVSIM_HOLD", "cuMemCreate=cuMemGetInfo_v2"}},
      {{"KVSIM_HOLD", "cuMemCreate=cuPointerGetAttribute"}},
      {{"KVSIM_HOLD", "cuMemFree_v2=cuMemGetInfo_v2"}},
      {{"KVSIM_HOLD", "cuMemAllocManaged=cuPointerGetAttributes"}},
  };
  for (const Environment& hold : holds) {
    const Result result = run(kPreloaded, "turns", small_threshold(hold));
    EXPECT_IN(result.ended(0) && result.seconds < 8, hold[0].second + result.show());
  }
}
SCENE(turns) {
  const CUcontext context = use_device();
  std::atomic<bool> done{false};
  std::thread asking([&] {
    OK(cuCtxSetCurrent(context));
    while (!done) {
      std::size_t free = 0, total = 0;
      unsigned type = 0;
      CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
      void* data[] = {&type};
      OK(cuMemGetInfo(&free, &total));
      cuPointerGetAttribute(&type, attribute, 0x1000);
      cuPointerGetAttributes(1, &attribute, data, 0x1000);
      EXPECT(dlsym(RTLD_DEFAULT, "cuMemFree_v2") != nullptr);
      usleep(100);
    }
  });
  for (const std::size_t bytes : {std::size_t{800}, 3 * kMiB, 64 * kMiB}) {
    OK(cuMemFree(allocate(bytes)));
  }
  done = true;
  asking.join();
  EXPECT(kvsim_gate_timeouts() == 0);
  return 0;
}

CASE("a host function that calls a hooked function is answered as without kvshim, no deadlock") {
  const Result bare = run(kBare, "callback", small_threshold());
  const Result preloaded = run(kPreloaded, "callback", small_threshold());
  EXPECT_IN(bare.ended(0) && preloaded.ended(0), bare.show() + preloaded.show());
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
}
SCENE(callback) {
  use_device();
  static CUdeviceptr block = allocate(64 * kMiB);
  OK(cuMemsetD8Async(block, 1, 64 * kMiB, nullptr));  // on kvshim itself a host function
  const auto inside = [](void*) {
    std::size_t free = 0, total = 0, size = 0;
    unsigned type = 0;
    CUdeviceptr other = 0;
    say("info", cuMemGetInfo(&free, &total));
    say("attribute", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    say("range", cuMemGetAddressRange(&other, &size, block));
    say("alloc", cuMemAlloc(&other, 100));
    say("alloc large", cuMemAlloc(&other, 64 * kMiB));
    say("memset", cuMemsetD8(block, 1, 100));
    say("free", cuMemFree(block));
  };
  OK(cuLaunchHostFunc(nullptr, inside, nullptr));
  OK(cuCtxSynchronize());
  OK(cuMemFree(block));
  return 0;
}

CASE("the first CUDA calls on a thread that a library's constructor waits for: no deadlock") {
  for (const How how : {kBare, kPreloaded}) {
    const Result result = run(how, "constructor", small_threshold());
    EXPECT_IN(result.ended(0), result.show());
  }
}
SCENE(constructor) {
  void* const plugin = dlopen(CONSTRUCTOR_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  EXPECT(plugin != nullptr);
  if (plugin == nullptr) return 1;
  CODE(*static_cast<int*>(dlsym(plugin, "plugin_result")), 0);
  return 0;
}
