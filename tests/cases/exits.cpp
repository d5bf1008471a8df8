// The end of a process: host programs free in static destructors, exit handlers and thread-local
// destructors, after the driver has shut down or before. They get the driver's codes, nothing
// crashes, and kvshim itself asks the driver for nothing.
#include <dlfcn.h>
#include <signal.h>

#include <thread>

#include "host.h"

using namespace cases;

namespace {

struct Blocks {
  CUdeviceptr small = 0, medium = 0, large = 0;
};

Blocks three() {
  Blocks blocks;
  blocks.small = allocate(4096);
  blocks.medium = allocate(3 * kMiB);
  blocks.large = allocate(64 * kMiB);
  return blocks;
}

// All that a destructor may do: free, allocate, ask, look a function up.
void everything(const char* where, const Blocks& blocks) {
  say(where, 0);
  say("dlsym", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != nullptr);
  say("dlsym of no such name", dlsym(RTLD_DEFAULT, "no_such_name") != nullptr);
  CUdeviceptr block = 0;
  const CUresult small = cuMemAlloc(&block, 4096);
  say("alloc small", small);
  if (small == CUDA_SUCCESS) say("free small", cuMemFree(block));
  const CUresult large = cuMemAlloc(&block, 64 * kMiB);
  say("alloc large", large);
  if (large == CUDA_SUCCESS) say("free large", cuMemFree(block));
  say("memset", cuMemsetD8(blocks.large, 1, 100));
  say("free", cuMemFree(blocks.small));
  say("free", cuMemFree(blocks.medium));
  say("free", cuMemFree(blocks.large));
  say("again", cuMemFree(blocks.large));
}

Blocks shared;
struct Last {
  ~Last() {
    if (shared.small != 0) everything("static destructor", shared);
  }
} last;  // made before cuInit: goes after the driver's own end

// Bare and preloaded the process must end alike and say the same.
void same(const char* scene, int code) {
  const Result bare = run(kBare, scene, small_threshold());
  const Result preloaded = run(kPreloaded, scene, small_threshold());
  EXPECT_IN(bare.ended(code), bare.show());
  EXPECT_IN(preloaded.ended(code), preloaded.show());
  EXPECT_IN(!bare.out.empty() && bare.out == preloaded.out, difference(bare.out, preloaded.out));
  EXPECT_IN(summary_of(preloaded.err).tables == 1, preloaded.err);
}

}  // namespace

CASE("calls in the destructor of a static object made before cuInit") {
  same("static_early", 3);
}
SCENE(static_early) {
  use_device();
  shared = three();
  return 3;
}

CASE("calls in the destructor of a static object made after cuInit") {
  same("static_late", 4);
}
SCENE(static_late) {
  use_device();
  static struct Holder {
    Blocks blocks = three();
    ~Holder() { everything("late static destructor", blocks); }
  } holder;
  return 4;
}

CASE("calls in an exit handler registered before the first allocation") {
  same("handler", 5);
}
SCENE(handler) {
  use_device();
  static Blocks blocks;
  std::atexit([] { everything("exit handler", blocks); });
  blocks = three();
  std::exit(5);
}

CASE("calls in thread-local destructors, of a thread that ends and of the main thread") {
  same("of_threads", 6);
}
SCENE(of_threads) {
  const CUcontext context = use_device();
  struct Holder {
    Blocks blocks;
    ~Holder() {
      if (blocks.small != 0) everything("thread-local destructor", blocks);
    }
  };
  static thread_local Holder holder;
  std::thread([context] {
    OK(cuCtxSetCurrent(context));
    holder.blocks = three();
  }).join();
  holder.blocks = three();
  return 6;
}

CASE("exit from a second thread, with calls in handlers and destructors") {
  same("second", 7);
}
SCENE(second) {
  const CUcontext context = use_device();
  static Blocks blocks;
  std::atexit([] { everything("exit handler", blocks); });
  blocks = three();
  std::thread([context] {
    OK(cuCtxSetCurrent(context));
    shared = three();
    std::exit(7);
  }).join();
  return 1;
}

CASE("_exit and SIGTERM end a process at once, and nothing is written then") {
  const Result left = run(kPreloaded, "leave", small_threshold());
  EXPECT_IN(left.ended(8) && left.err.empty(), left.show());
  const Result killed = run(kPreloaded, "terminate", small_threshold());
  EXPECT_IN(!killed.hung && killed.signal == SIGTERM && killed.err.empty(), killed.show());
}
SCENE(leave) {
  use_device();
  three();
  _exit(8);
}
SCENE(terminate) {
  use_device();
  three();
  raise(SIGTERM);
  return 0;
}

CASE("at exit kvshim asks the driver for nothing, and live blocks are left to it") {
  const Result result = run(kPreloaded, "live", small_threshold());
  EXPECT_IN(result.ended(9), result.show());
  EXPECT_IN(!result.calls.empty() && result.calls.back().starts_with("cuDriverGetVersion"),
            result.show());
  const Summary summary = summary_of(result.err);
  EXPECT_IN(summary.tables == 1, result.err);
  EXPECT_IN(summary.says("managed"), summary.text);
}
SCENE(live) {
  use_device();
  three();
  int version = 0;
  OK(cuDriverGetVersion(&version));
  return 9;
}

CASE("exit while another thread allocates and frees") {
  const Result result = run(kPreloaded, "racing", small_threshold());
  EXPECT_IN(result.ended(10), result.show());
}
SCENE(racing) {
  const CUcontext context = use_device();
  for (int number = 0; number < 3; ++number) {
    std::thread([context, number] {
      cuCtxSetCurrent(context);
      for (;;) {
        CUdeviceptr block = 0;
        if (cuMemAlloc(&block, number == 0 ? 3 * kMiB : 5000) == CUDA_SUCCESS) cuMemFree(block);
      }
    }).detach();
  }
  usleep(100000);
  std::exit(10);
}
