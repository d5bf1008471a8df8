// fork. A child of a process that used CUDA gets the driver's own answer; where the driver starts
// afresh (here a setting of the simulated one) kvshim does too: no hang, whatever lock another
// thread of the parent held, no block of the parent's, its own account. And whatever the driver
// does, a child can load libraries: kvshim holds none of the loader's locks at the moment of a
// fork.
#include <dlfcn.h>
#include <sys/wait.h>

#include <thread>

#include "host.h"
#include "nvml.h"

using namespace cases;

namespace {

// The child's exit code; minus its signal; -1000 when it had to be killed.
int wait_for(pid_t child) {
  int status = 0;
  for (int round = 0; waitpid(child, &status, WNOHANG) == 0; ++round) {
    if (round == 8000) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1000;
    }
    usleep(1000);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// In the child: everything works, and nothing of the parent's is known.
[[noreturn]] void child_works(CUdeviceptr of_parent) {
  use_device();
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, 64 * kMiB}) {
    const CUdeviceptr block = allocate(bytes);
    EXPECT(managed(block) == (bytes == 64 * kMiB));
    OK(cuMemsetD8(block, 1, bytes));
    OK(cuMemFree(block));
  }
  if (of_parent != 0) CODE(cuMemFree(of_parent), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr left = allocate(5 * kMiB);
  EXPECT(left != 0);
  std::exit(0);
}

Result run_forking(const char* scene, Environment more = {}) {
  more.emplace_back("KVSIM_FORK_OK", "1");
  return run(kPreloaded, scene, small_threshold(std::move(more)));
}

}  // namespace

CASE("a child of a process that used CUDA gets the driver's code for that, and ends in peace") {
  const Result bare = run(kBare, "used", small_threshold());
  const Result preloaded = run(kPreloaded, "used", small_threshold());
  EXPECT_IN(bare.ended(0) && preloaded.ended(0), bare.show() + preloaded.show());
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
  EXPECT_IN(preloaded.lines("] summary").size() == 1, preloaded.err);
}
SCENE(used) {
  use_device();
  const CUdeviceptr small = allocate(4096), large = allocate(64 * kMiB);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr block = 0;
    say("init", cuInit(0));
    say("alloc", cuMemAlloc(&block, 4096));
    say("alloc large", cuMemAlloc(&block, 64 * kMiB));
    say("free small", cuMemFree(small));
    say("free large", cuMemFree(large));
    say("memset", cuMemsetD8(large, 1, 4096));
    std::exit(5);
  }
  say("child", wait_for(child));
  OK(cuMemFree(small));
  OK(cuMemFree(large));
  return 0;
}

CASE("a child after only cuInit, or after only a look-up, allocates and has its own account") {
  for (const char* const scene : {"after_init", "after_lookup"}) {
    const Result result = run_forking(scene);
    EXPECT_IN(result.ended(0), result.show());
    const Summary summary = summary_of(result.err);
    EXPECT_IN(summary.tables == 1 && summary.pid != result.pid, result.show());
  }
}
SCENE(after_init) {
  OK(cuInit(0));
  const pid_t child = fork();
  if (child == 0) child_works(0);
  return wait_for(child);
}
SCENE(after_lookup) {
  void* function = nullptr;
  OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, nullptr));
  const pid_t child = fork();
  if (child == 0) child_works(0);
  return wait_for(child);
}

CASE(
    "a child with a fresh driver: a record of its own, the parent's memory neither known nor "
    "freed") {
  const Result result = run_forking("fresh");
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("] summary").size() == 2, result.err);
  Summary parent = summary_of(result.err);  // written last
  EXPECT_IN(parent.pid == result.pid, result.err);
  EXPECT_IN(parent.kinds["managed"].blocks == 1 && parent.kinds["managed"].live == 0, parent.text);
  Summary child = summary_of(result.err.substr(0, result.err.rfind("kvshim[")));
  EXPECT_IN(child.kinds["vmm"].blocks == 3 && child.kinds["vmm"].live == 1, child.text);
  EXPECT_IN(child.kinds["vmm"].live_bytes == "5 MiB", child.text);
}
SCENE(fresh) {
  use_device();
  const CUdeviceptr large = allocate(64 * kMiB), medium = allocate(3 * kMiB);
  const pid_t child = fork();
  if (child == 0) child_works(medium);
  OK(wait_for(child));
  OK(cuMemsetD8(large, 1, 64 * kMiB));
  OK(cuMemFree(large));
  OK(cuMemFree(medium));
  return 0;
}

CASE("fork while another thread is inside cuMemCreate, cuMemAllocManaged or cuMemFree") {
  for (const char* const scene : {"in_create", "in_managed", "in_free", "in_unmap"}) {
    const Result result = run_forking(scene);
    EXPECT_IN(result.ended(0), scene + result.show());
  }
}
namespace {
int fork_at_gate(const char* gate, std::size_t bytes, bool in_free) {
  const CUcontext context = use_device();
  OK(cuMemFree(allocate(5000)));
  CUdeviceptr block = in_free ? allocate(bytes) : 0;
  kvsim_hold(gate);
  std::thread other([&] {
    OK(cuCtxSetCurrent(context));
    OK(in_free ? cuMemFree(block) : cuMemAlloc(&block, bytes));
  });
  while (kvsim_waiting(gate) == 0) usleep(100);
  const pid_t child = fork();
  if (child == 0) child_works(0);
  const int code = wait_for(child);
  kvsim_release(gate);
  other.join();
  if (!in_free) OK(cuMemFree(block));
  EXPECT(kvsim_gate_timeouts() == 0);
  return code;
}
}  // namespace
SCENE(in_create) {
  return fork_at_gate("cuMemCreate", 3 * kMiB, false);
}
SCENE(in_managed) {
  return fork_at_gate("cuMemAllocManaged", 64 * kMiB, false);
}
SCENE(in_free) {
  return fork_at_gate("cuMemFree_v2", 64 * kMiB, true);
}
SCENE(in_unmap) {
  return fork_at_gate("cuMemUnmap", 3 * kMiB, true);
}

CASE("forks in a row while threads allocate and free: every child works") {
  const Result result = run_forking("busy");
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(busy) {
  const CUcontext context = use_device();
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      OK(cuCtxSetCurrent(context));
      while (!done) {
        CUdeviceptr block = 0;
        OK(cuMemAlloc(&block, number == 0 ? 3 * kMiB : 700));
        OK(cuMemFree(block));
      }
    });
  }
  int bad = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      use_device();
      OK(cuMemFree(allocate(700)));
      OK(cuMemFree(allocate(3 * kMiB)));
      _exit(0);
    }
    bad += wait_for(child) != 0;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  return bad;
}

// glibc does not renew the lock that dl_iterate_phdr holds (dl_load_write_lock; 2.36): a child
// whose parent forks while another thread is in there hangs in dlopen.
CASE("a child can load a library, whatever kvshim looks up in other threads of the parent") {
  const struct {
    How how;
    const char* scene;
    Environment more;
  } rows[] = {
      {kPreloaded, "loads_beside_nvml", {{"KVSHIM_NVML", "1"}, {"KVSHIM_MEMINFO", "virtual"}}},
      {kPreloaded, "loads_beside_rules", {{"KVSHIM_RULES", "lib=nothing:vmm;*:vmm"}}},
      {kBare, "loads_beside_public", {}}};
  for (const auto& row : rows) {
    Environment more = row.more;
    more.emplace_back("KVSIM_DEVICES", "1");
    const Result result = run(row.how, row.scene, more);
    EXPECT_IN(result.ended(0), row.scene + result.show());
  }
}
namespace {
// Children beside a thread that does nothing but `call`.
template <typename Call>
int loads_beside(Call call) {
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  std::atomic<bool> done{false};
  std::thread other([&] {
    OK(cuCtxSetCurrent(context));
    while (!done) call();
  });
  int bad = 0;
  for (int round = 0; round < 400 && bad == 0; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(dlopen("libresolv.so.2", RTLD_NOW) == nullptr);
    bad += wait_for(child) != 0;
  }
  done = true;
  other.join();
  return bad;
}
}  // namespace
SCENE(loads_beside_nvml) {
  use_device();
  const Nvml nvml;
  OK(nvml.nvmlInit_v2());
  const nvmlDevice_t device = nvml.device(0);
  return loads_beside([&] {
    nvmlMemory_t memory;
    OK(nvml.nvmlDeviceGetMemoryInfo(device, &memory));
  });
}
SCENE(loads_beside_rules) {
  use_device();
  return loads_beside([] { OK(cuMemFree(allocate(4096))); });
}
SCENE(loads_beside_public) {
  use_device();
  void* const library = dlopen(KVSHIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT(library != nullptr);
  if (library == nullptr) return 1;
  const auto allocate_ =
      reinterpret_cast<void* (*)(std::size_t, int, CUstream)>(dlsym(library, "kvshim_malloc"));
  const auto free_ =
      reinterpret_cast<void (*)(void*, std::size_t, int, CUstream)>(dlsym(library, "kvshim_free"));
  return loads_beside([&] { free_(allocate_(4096, 0, nullptr), 4096, 0, nullptr); });
}
