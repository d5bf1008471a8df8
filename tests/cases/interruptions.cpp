// What comes to a thread from outside while it is in kvshim, and to the threads that kvshim starts:
// cancellation, a sandbox that answers system calls with SIGSYS. And threads with hardly any stack.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <cerrno>
#include <fstream>

#include "host.h"

using namespace cases;

namespace {

CUcontext context = nullptr;

// Runs `body` on a thread of its own and returns how it ended.
template <typename Body>
void* ended(Body body) {
  pthread_t thread;
  void* result = nullptr;
  const auto run = [](void* argument) -> void* {
    OK(cuCtxSetCurrent(context));
    (*static_cast<Body*>(argument))();
    return nullptr;
  };
  OK(pthread_create(&thread, nullptr, run, &body));
  OK(pthread_join(thread, &result));
  return result;
}

// A call that is made with a cancellation pending, and the thread's end at the first cancellation
// point behind it.
template <typename Call>
void cancelled_behind(const char* what, Call call) {
  int marks = 0;
  void* const end = ended([&] {
    OK(pthread_cancel(pthread_self()));
    call();
    ++marks;
    pthread_testcancel();
    ++marks;
  });
  if (end != PTHREAD_CANCELED || marks != 1) {
    fail(__FILE__, __LINE__, std::string(what) + ": " + std::to_string(marks) + " marks");
  }
}

}  // namespace

CASE("a pending cancellation waits until the call is over: nothing half-made, nothing lost") {
  const Result result = run(kPreloaded, "cancelled", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.kinds["managed"].blocks == 2 && summary.kinds["managed"].live == 0, result.err);
  EXPECT_IN(summary.kinds["vmm"].live == 0, result.err);
}
SCENE(cancelled) {
  context = use_device();
  CUdeviceptr block = 0;
  for (const std::size_t bytes : {64 * kMiB, 3 * kMiB, std::size_t{1000}}) {
    cancelled_behind("allocation", [&] { OK(cuMemAlloc(&block, bytes)); });
    cancelled_behind("memset", [&] { OK(cuMemsetD8(block, 1, bytes)); });
    cancelled_behind("free", [&] { OK(cuMemFree(block)); });
  }
  cancelled_behind("allocation", [&] { OK(cuMemAlloc(&block, 64 * kMiB)); });
  cancelled_behind("stream-ordered free", [&] { OK(cuMemFreeAsync(block, nullptr)); });
  cancelled_behind(
      "refusal", [&] { CODE(cuMemAlloc(&block, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY); });
  // A thread that has turned cancellation off finds it off.
  void* const end = ended([&] {
    int state = 0;
    OK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr));
    OK(pthread_cancel(pthread_self()));
    OK(cuMemFree(allocate(1000)));
    pthread_testcancel();
    OK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state));
    EXPECT(state == PTHREAD_CANCEL_DISABLE);
  });
  EXPECT(end == nullptr);
  kvsim_counts counts;
  kvsim_get_counts(&counts);
  EXPECT(counts.managed_blocks == 0);
  return 0;
}

CASE("a thread cancelled from outside in the middle of an allocation or a free ends behind it") {
  const Result result = run(kPreloaded, "cancelled_inside", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(summary_of(result.err).kinds["managed"].live == 0, result.err);
}
SCENE(cancelled_inside) {
  context = use_device();
  static CUdeviceptr block = 0;
  static int marks = 0;
  const auto alloc = [](void*) -> void* {
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&block, 64 * kMiB));
    ++marks;
    for (;;) pause();
  };
  const auto release = [](void*) -> void* {
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(block));
    ++marks;
    for (;;) pause();
  };
  const struct {
    const char* gate;
    void* (*run)(void*);
  } rounds[] = {{"cuMemAllocManaged", alloc}, {"cuMemFree_v2", release}};
  for (const auto& round : rounds) {
    pthread_t thread;
    void* end = nullptr;
    marks = 0;
    kvsim_hold(round.gate);
    OK(pthread_create(&thread, nullptr, round.run, nullptr));
    for (int tries = 0; tries < 50000 && kvsim_waiting(round.gate) == 0; ++tries) usleep(100);
    EXPECT(kvsim_waiting(round.gate) == 1);
    OK(pthread_cancel(thread));
    kvsim_release(round.gate);
    OK(pthread_join(thread, &end));
    EXPECT(end == PTHREAD_CANCELED);
    EXPECT(marks == 1);
  }
  OK(cuMemFree(allocate(64 * kMiB)));  // nothing is locked, nothing is left
  kvsim_counts counts;
  kvsim_get_counts(&counts);
  EXPECT(counts.managed_blocks == 0);
  return 0;
}

CASE("a sandbox that answers the placing threads' system calls with SIGSYS ends nobody") {
  if (!std::ifstream("/sys/devices/system/node/node0/cpulist")) {
    return skip("no NUMA node to bind threads to");
  }
  const Result result =
      run(kPreloaded, "sandboxed", small_threshold({{"KVSHIM_ZERO_THREADS", "4"}}));
  if (result.ended(77)) return skip("no seccomp filter can be set here");
  EXPECT_IN(result.ended(0), result.show());
}
namespace {
std::atomic<int> trapped{0};

// From now on the answer to these two system calls.
bool filter(unsigned one, unsigned other, unsigned answer) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, one, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{5, rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// As sandboxes do: the call is not made, the caller is told EPERM.
void refuse_call(int, siginfo_t*, void* state) {
  mcontext_t& machine = static_cast<ucontext_t*>(state)->uc_mcontext;
#if defined(__x86_64__)
  machine.gregs[REG_RAX] = -EPERM;
#else
  machine.regs[0] = static_cast<unsigned long long>(-EPERM);
#endif
  ++trapped;
}
}  // namespace
SCENE(sandboxed) {
  use_device();
  struct sigaction action {};
  action.sa_sigaction = refuse_call;
  action.sa_flags = SA_SIGINFO;
  OK(sigaction(SIGSYS, &action, nullptr));
  if (!filter(SYS_sched_setaffinity, SYS_sched_setaffinity, SECCOMP_RET_TRAP)) return 77;
  const CUdeviceptr block = allocate(64 * kMiB);
  EXPECT(trapped > 0);  // the placing threads did run into it
  const int before = trapped;
  OK(cuMemsetD8(block, 7, 64 * kMiB));
  EXPECT(trapped > before);
  unsigned char last = 0;
  OK(kvsim_peek(block + 64 * kMiB - 1, &last, 1));
  EXPECT(last == 7);
  OK(cuMemFree(block));
  return 0;
}

CASE("where no thread can be started the caller places every page itself") {
  const Result result =
      run(kPreloaded, "threadless", small_threshold({{"KVSHIM_ZERO_THREADS", "4"}}));
  if (result.ended(77)) return skip("no seccomp filter can be set here");
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(threadless) {
  use_device();
  if (!filter(SYS_clone, SYS_clone3, SECCOMP_RET_ERRNO | EAGAIN)) return 77;
  pthread_t thread;
  const auto nothing = [](void*) -> void* { return nullptr; };
  CODE(pthread_create(&thread, nullptr, nothing, nullptr), EAGAIN);
  const CUdeviceptr block = allocate(64 * kMiB);
  EXPECT(kvsim_resident_on_host(block, 64 * kMiB) == 64 * kMiB);
  OK(cuMemFree(block));
  return 0;
}

CASE("threads with the smallest stack there is allocate, set, free and are refused, and say so") {
  for (const char* const level : {"warn", "debug"}) {
    const Result result = run(kPreloaded, "small_stack", small_threshold({{"KVSHIM_LOG", level}}));
    EXPECT_IN(result.ended(0), level + (": " + result.show()));
    EXPECT_IN(result.lines("refused: ").size() == 1, result.err);
  }
}
SCENE(small_stack) {
  context = use_device();
  const auto work = [](void*) -> void* {
    CUdeviceptr block = 0;
    std::size_t free = 0, total = 0;
    OK(cuCtxSetCurrent(context));
    for (const std::size_t bytes : {64 * kMiB, 3 * kMiB, std::size_t{1000}}) {
      for (const bool in_order : {false, true}) {
        OK(cuMemAlloc(&block, bytes));
        OK(cuMemsetD8(block, 1, bytes));
        OK(in_order ? cuMemFreeAsync(block, nullptr) : cuMemFree(block));
      }
    }
    OK(cuMemGetInfo(&free, &total));
    CODE(cuMemAlloc(&block, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread;
  OK(pthread_attr_init(&attributes));
  OK(pthread_attr_setstacksize(&attributes,
                               static_cast<std::size_t>(sysconf(_SC_THREAD_STACK_MIN))));
  OK(pthread_create(&thread, &attributes, work, nullptr));  // the first to allocate
  OK(pthread_join(thread, nullptr));
  return 0;
}
