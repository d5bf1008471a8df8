// The end of a process: whatever is still alive then, it ends as it would without kvshim.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gpu.h"

using namespace contract;

namespace {

struct Three {
  CUdeviceptr small = 0, medium = 0, large = 0;
};

Three allocate_three() {
  Three three;
  CALL(cu.cuMemAlloc(&three.small, small_size().bytes));
  CALL(cu.cuMemAlloc(&three.medium, medium_size().bytes));
  CALL(cu.cuMemAlloc(&three.large, large_size().bytes));
  CALL(cu.cuMemsetD8(three.large, 1, large_size().bytes));
  return three;
}

void say(const char* what, int code) {
  char line[100];
  const int length = std::snprintf(line, sizeof line, "%s %d\n", what, code);
  if (write(STDOUT_FILENO, line, static_cast<std::size_t>(length)) < 0) _exit(90);
}

void free_three(const char* when, const Three& three) {
  std::string label(when);
  say((label + " small").c_str(), cu.cuMemFree(three.small));
  say((label + " medium").c_str(), cu.cuMemFree(three.medium));
  say((label + " large").c_str(), cu.cuMemFree(three.large));
}

// The scene ends with this exit code, in time and without a signal; what it said is observed.
void expect_exit(const char* scene, int code, const std::vector<std::string>& arguments = {}) {
  const Outcome outcome = run_scene(scene, arguments, 12);
  if (outcome.hung || outcome.signal != 0 || outcome.code != code) {
    fail(
        __FILE__, __LINE__,
        std::string(scene) + ": " + show(outcome) + ", expected exit code " + std::to_string(code));
  }
  std::string line;
  for (const char c : outcome.output + "\n") {
    if (c != '\n') {
      line += c;
    } else if (!line.empty()) {
      observe("said", line);
      line.clear();
    }
  }
}

Three atexit_three;

}  // namespace

CHECK_CASE("exit", "main returns while blocks live", no_context) {
  expect_exit("exit_live", 7);
}
SCENE("exit_live", exit_live) {
  use_primary();
  allocate_three();
  return 7;
}

CHECK_CASE("exit", "a process that uses CUDA says nothing on its standard output", no_context) {
  const Outcome outcome = run_scene("exit_live", {}, 12);
  EXPECT(outcome.output.empty());
}

CHECK_CASE("exit", "_exit while blocks live", no_context) {
  expect_exit("exit_now", 8);
}
SCENE("exit_now", exit_now) {
  use_primary();
  allocate_three();
  _exit(8);
}

CHECK_CASE("exit", "quick_exit while blocks live", no_context) {
  expect_exit("exit_quick", 9);
}
SCENE("exit_quick", exit_quick) {
  use_primary();
  allocate_three();
  std::quick_exit(9);
}

CHECK_CASE("exit", "exit from a second thread while blocks live", no_context) {
  expect_exit("exit_thread", 10);
}
SCENE("exit_thread", exit_thread) {
  use_primary();
  allocate_three();
  std::thread([] { std::exit(10); }).detach();
  for (;;) sleep_for(1);
}

CHECK_CASE("exit", "frees in an atexit handler registered before cuInit", no_context | observes) {
  expect_exit("exit_atexit_early", 11);
}
SCENE("exit_atexit_early", exit_atexit_early) {
  std::atexit([] { free_three("atexit", atexit_three); });
  use_primary();
  atexit_three = allocate_three();
  std::exit(11);
}

CHECK_CASE("exit", "frees in an atexit handler registered after cuInit", no_context | observes) {
  expect_exit("exit_atexit_late", 12);
}
SCENE("exit_atexit_late", exit_atexit_late) {
  use_primary();
  atexit_three = allocate_three();
  std::atexit([] { free_three("atexit", atexit_three); });
  std::exit(12);
}

CHECK_CASE("exit", "frees in the destructor of a static object made before cuInit",
           no_context | observes) {
  expect_exit("exit_static", 13);
}
SCENE("exit_static", exit_static) {
  static struct Holder {
    Three three;
    ~Holder() { free_three("static", three); }
  } holder;
  use_primary();
  holder.three = allocate_three();
  return 13;
}

CHECK_CASE("exit", "frees in the destructor of a static object made after cuInit",
           no_context | observes) {
  expect_exit("exit_static_late", 14);
}
SCENE("exit_static_late", exit_static_late) {
  use_primary();
  static struct Holder {
    Three three;
    ~Holder() { free_three("static", three); }
  } holder{allocate_three()};
  return 14;
}

CHECK_CASE("exit", "frees in the destructor of a thread-local object", no_context | observes) {
  expect_exit("exit_thread_local", 15);
}
SCENE("exit_thread_local", exit_thread_local) {
  static thread_local struct Holder {
    Three three;
    ~Holder() {
      if (three.small != 0) free_three("thread-local", three);
    }
  } holder;
  use_primary();
  on_thread([] {
    use_primary();
    holder.three = allocate_three();
  });
  holder.three = allocate_three();
  return 15;
}

CHECK_CASE("exit", "every kind of call in an atexit handler registered before cuInit",
           no_context | observes) {
  expect_exit("exit_calls", 16);
}
SCENE("exit_calls", exit_calls) {
  std::atexit([] {
    CUdeviceptr ptr = 0, base = 0;
    std::size_t bytes = 0, total = 0;
    unsigned type = 0;
    say("alloc small", cu.cuMemAlloc(&ptr, 4096));
    say("alloc large", cu.cuMemAlloc(&ptr, option_large()));
    say("info", cu.cuMemGetInfo(&bytes, &total));
    say("range", cu.cuMemGetAddressRange(&base, &bytes, atexit_three.large));
    say("attribute",
        cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, atexit_three.large));
    say("memset", cu.cuMemsetD8(atexit_three.large, 0, 64));
    say("free of 0", cu.cuMemFree(0));
    say("look-up", by_version("cuMemAlloc", 12000) != nullptr);
  });
  use_primary();
  atexit_three = allocate_three();
  std::exit(16);
}

CHECK_CASE("exit", "while a kernel runs", no_context) {
  const Clock clock;
  expect_exit("exit_busy", 17);
  EXPECT(clock.seconds() < 10);
}
SCENE("exit_busy", exit_busy) {
  use_primary();
  allocate_three();
  spin(nullptr, 0.5);
  return 17;
}

CHECK_CASE("exit", "while another thread allocates and frees", no_context) {
  expect_exit("exit_racing", 18);
}
SCENE("exit_racing", exit_racing) {
  const CUcontext context = use_primary();
  allocate_three();
  std::thread([context] {
    cu.cuCtxSetCurrent(context);
    for (;;) {
      CUdeviceptr ptr = 0;
      if (cu.cuMemAlloc(&ptr, 5000) != CUDA_SUCCESS) sleep_for(1);
      cu.cuMemFree(ptr);
    }
  }).detach();
  sleep_for(0.1);
  _exit(18);
}

CHECK_CASE("exit", "SIGTERM ends the process at once, as ever", no_context) {
  Process process("exit_wait");
  EXPECT(process.hear(12) == "ready");
  process.kill_with(SIGTERM);
  const Outcome outcome = process.wait(8);
  if (outcome.hung || outcome.signal != SIGTERM) fail(__FILE__, __LINE__, show(outcome));
}
SCENE("exit_wait", exit_wait) {
  use_primary();
  allocate_three();
  std::printf("ready\n");
  for (;;) sleep_for(1);
}

CHECK_CASE("exit", "the program's own SIGTERM handler is called", no_context) {
  Process process("exit_handler");
  EXPECT(process.hear(12) == "ready");
  process.kill_with(SIGTERM);
  const Outcome outcome = process.wait(8);
  if (outcome.code != 19) fail(__FILE__, __LINE__, show(outcome));
}
SCENE("exit_handler", exit_handler) {
  signal(SIGTERM, [](int) { _exit(19); });
  use_primary();
  allocate_three();
  std::printf("ready\n");
  for (;;) sleep_for(1);
}

CHECK_CASE("exit", "a process that never calls CUDA", no_context) {
  expect_exit("exit_none", 20);
}
SCENE("exit_none", exit_none) {
  return 20;
}

CHECK_CASE("exit", "a process that only calls cuInit", no_context) {
  expect_exit("exit_init", 21);
}
SCENE("exit_init", exit_init) {
  return cu.cuInit(0) == CUDA_SUCCESS ? 21 : 1;
}

CHECK_CASE("exit", "a process that releases its primary context first", no_context | observes) {
  expect_exit("exit_released", 22);
}
SCENE("exit_released", exit_released) {
  use_primary();
  const Three three = allocate_three();
  say("release", cu.cuDevicePrimaryCtxRelease(first_device()));
  free_three("after", three);
  return 22;
}
