// fork: a child of a process that used CUDA cannot use it, but lives and ends in peace; a child
// made earlier is a program like any other; the parent never notices.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gpu.h"

using namespace contract;

namespace {

// The child's exit code, or a negative number: -signal, or -1000 when it hung.
int wait_for(pid_t child) {
  const Clock clock;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (clock.seconds() > 8) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1000;
    }
    sleep_for(0.002);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void say(const char* what, int code) {
  std::printf("%s %d\n", what, code);
  std::fflush(stdout);
}

bool everything_works() {
  for (const std::size_t bytes : {small_size().bytes, medium_size().bytes, large_size().bytes}) {
    const Block block(bytes);
    CALL(cu.cuMemsetD8(block, 3, bytes));
    if (!holds_byte(block, bytes, 3)) return false;
  }
  return true;
}

void expect_scene(const char* scene) {
  const Outcome outcome = run_scene(scene, {}, 17);
  if (outcome.hung || outcome.signal != 0 || outcome.code != 0) {
    fail(__FILE__, __LINE__, std::string(scene) + ": " + show(outcome));
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

}  // namespace

CHECK_CASE("fork", "what a child of a process that used CUDA is told", no_context | observes) {
  expect_scene("fork_used");
}
SCENE("fork_used", fork_used) {
  use_primary();
  const Block small(small_size().bytes), large(large_size().bytes);
  write_bytes(large, pattern(4096, 1));
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr ptr = 0;
    std::size_t free = 0, total = 0;
    say("init", cu.cuInit(0));
    say("alloc", cu.cuMemAlloc(&ptr, 4096));
    say("alloc large", cu.cuMemAlloc(&ptr, large_size().bytes));
    say("info", cu.cuMemGetInfo(&free, &total));
    say("free of the parent's small block", cu.cuMemFree(small));
    say("free of the parent's large block", cu.cuMemFree(large));
    say("free of 0", cu.cuMemFree(0));
    _exit(5);
  }
  say("child", wait_for(child));
  if (read_bytes(large, 4096) != pattern(4096, 1)) return 2;
  return everything_works() ? 0 : 3;
}

CHECK_CASE("fork", "a child that only exits, with its exit handlers", no_context | observes) {
  expect_scene("fork_exit");
}
SCENE("fork_exit", fork_exit) {
  use_primary();
  const Block small(small_size().bytes), large(large_size().bytes);
  const pid_t child = fork();
  if (child == 0) std::exit(6);
  say("child", wait_for(child));
  return everything_works() ? 0 : 3;
}

CHECK_CASE("fork", "a child made before cuInit uses CUDA, and so does its parent", no_context) {
  expect_scene("fork_before");
}
SCENE("fork_before", fork_before) {
  by_version("cuMemAlloc", 12000);
  const pid_t child = fork();
  if (child == 0) {
    use_primary();
    _exit(everything_works() ? 5 : 6);
  }
  use_primary();
  const bool mine = everything_works();
  return wait_for(child) == 5 && mine ? 0 : 4;
}

CHECK_CASE("fork", "a child made after a refused call before cuInit uses CUDA", no_context) {
  expect_scene("fork_refused");
}
SCENE("fork_refused", fork_refused) {
  CUdeviceptr ptr = 0;
  if (cu.cuMemAlloc(&ptr, large_size().bytes) != CUDA_ERROR_NOT_INITIALIZED) return 2;
  const pid_t child = fork();
  if (child == 0) {
    use_primary();
    _exit(everything_works() ? 5 : 6);
  }
  return wait_for(child) == 5 ? 0 : 4;
}

CHECK_CASE("fork", "forks while threads allocate and free: no child hangs", no_context) {
  expect_scene("fork_threads");
}
SCENE("fork_threads", fork_threads) {
  const CUcontext context = use_primary();
  std::atomic<bool> done{false};
  std::thread threads[3];
  for (unsigned id = 0; id < 3; ++id) {
    threads[id] = std::thread([&, id] {
      cu.cuCtxSetCurrent(context);
      while (!done) {
        CUdeviceptr ptr = 0;
        cu.cuMemAlloc(&ptr, id == 0 ? 3 * kMiB : 5000);
        cu.cuMemFree(ptr);
      }
    });
  }
  int bad = 0;
  for (int round = 0; round < 15; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(5);
    if (wait_for(child) != 5) ++bad;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  return bad == 0 && everything_works() ? 0 : 4;
}

CHECK_CASE("fork", "a child that starts another program", no_context) {
  expect_scene("fork_exec");
}
SCENE("fork_exec", fork_exec) {
  use_primary();
  const Block large(large_size().bytes);
  if (std::system("exit 3") != 3 << 8) return 2;
  return everything_works() ? 0 : 3;
}

CHECK_CASE("fork", "the parent ends before the child", no_context) {
  expect_scene("fork_orphan");
}
SCENE("fork_orphan", fork_orphan) {
  use_primary();
  const Block large(large_size().bytes);
  const pid_t child = fork();
  if (child == 0) {
    close(STDOUT_FILENO);
    sleep_for(0.2);
    _exit(0);
  }
  return 0;
}
