// Walks over the loaded objects and forks: a child finds the loader unlocked, and nobody waits for
// ever.
#include "driver/loader_walk.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace kvshim::driver {
namespace {

std::atomic<int> walks{0};
std::atomic<bool> inside{false};
std::atomic<bool> left{false};

int first(dl_phdr_info*, std::size_t, void*) {
  ++walks;
  return 1;
}
int brief(dl_phdr_info*, std::size_t, void*) {
  usleep(2000);
  ++walks;
  return 1;
}
int slow(dl_phdr_info*, std::size_t, void*) {
  inside = true;
  usleep(200000);
  left = true;
  return 1;
}

bool ends_well(pid_t child) {
  int status = -1;
  for (int round = 0; waitpid(child, &status, WNOHANG) == 0; ++round) {
    if (round == 5000) kill(child, SIGKILL);
    usleep(1000);
  }
  return status == 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_CASE("a fork waits for the walk of another thread, and its child can load a library") {
  inside = left = false;
  std::thread other([] { for_each_object(slow, nullptr); });
  while (!inside) usleep(100);
  const pid_t child = fork();
  if (child == 0) {
    for_each_object(first, nullptr);
    _exit(dlopen("libresolv.so.2", RTLD_NOW) == nullptr);
  }
  CHECK(left);
  CHECK(ends_well(child));
  other.join();
}

TEST_CASE("a fork gets through between threads that walk in a row") {
  walks = 0;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      while (!done) for_each_object(brief, nullptr);
    });
  }
  while (walks < 10) usleep(100);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) _exit(0);
  CHECK(seconds_since(start) < 2);
  CHECK(ends_well(child));
  const int before = walks;
  while (walks == before) usleep(100);  // and they go on
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a fork handler may walk, on both sides of the fork") {
  static std::atomic<int> handled{0};
  static std::atomic<bool> on{true};  // a handler stays for ever
  const auto walk = [] {
    if (!on) return;
    for_each_object(first, nullptr);
    ++handled;
  };
  for_each_object(first, nullptr);  // the handlers of walks stand before this one
  pthread_atfork(walk, walk, walk);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) _exit(handled == 2 ? 0 : 1);
  on = false;
  CHECK(handled == 2);
  CHECK(seconds_since(start) < 2);
  CHECK(ends_well(child));
}

// What a signal handler that forks does. The child is not asked for more than to be there.
TEST_CASE("a fork inside a walk of its own thread goes on after a while") {
  static pid_t child;
  const auto forks = [](dl_phdr_info*, std::size_t, void*) {
    child = fork();
    if (child == 0) _exit(0);
    return 1;
  };
  const auto start = std::chrono::steady_clock::now();
  for_each_object(forks, nullptr);
  CHECK(seconds_since(start) < 10);
  CHECK(ends_well(child));
  for_each_object(first, nullptr);
  const pid_t next = fork();
  if (next == 0) _exit(dlopen("libresolv.so.2", RTLD_NOW) == nullptr);
  CHECK(ends_well(next));
}

}  // namespace
}  // namespace kvshim::driver
