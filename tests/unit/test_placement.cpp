// What the CPU writes, and only there.
#include "memory/kinds/placement.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "base/sizes.h"
#include "support/catch.h"

using namespace kvshim;

namespace {

// Anonymous memory with a guard byte pattern around the range under test.
struct Range {
  explicit Range(std::size_t size) : bytes(size) {
    all = static_cast<unsigned char*>(mmap(nullptr, size + 2 * kMargin, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(all, 0xaa, size + 2 * kMargin);
  }
  ~Range() { munmap(all, bytes + 2 * kMargin); }
  unsigned char* start() const { return all + kMargin; }
  bool margins_untouched() const {
    for (std::size_t i = 0; i < kMargin; ++i) {
      if (all[i] != 0xaa || all[kMargin + bytes + i] != 0xaa) return false;
    }
    return true;
  }
  static constexpr std::size_t kMargin = 4096;
  std::size_t bytes;
  unsigned char* all;
};

}  // namespace

TEST_CASE("every byte of a range is written, none outside it, for odd sizes and many threads") {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4095}, std::size_t{1} << 20, (std::size_t{64} << 20) + 12345}) {
    Range range(bytes);
    placement::fill(range.start(), bytes, {0, 1}, -1);
    bool zero = true;
    for (std::size_t i = 0; i < bytes; ++i) zero = zero && range.start()[i] == 0;
    CHECK(zero);
    CHECK(range.margins_untouched());
  }
}

TEST_CASE("two and four byte patterns repeat from the first element to the last") {
  constexpr std::size_t kBytes = (std::size_t{40} << 20) + 8;
  Range range(kBytes);
  placement::fill(range.start(), kBytes, {0x0102, 2}, -1);
  CHECK(range.start()[0] == 0x02);
  CHECK(range.start()[1] == 0x01);
  CHECK(range.start()[kBytes - 2] == 0x02);
  placement::fill(range.start(), kBytes, {0x01020304, 4}, 0);
  bool right = true;
  for (std::size_t i = 0; i < kBytes; ++i) right = right && range.start()[i] == 4 - i % 4;
  CHECK(right);
  CHECK(range.margins_untouched());
}

TEST_CASE("rows of a 2D fill leave the bytes between them alone") {
  Range range(100 * 64);
  placement::fill_2d(range.start(), 64, 10, 100, {7, 1}, -1);
  bool right = true;
  for (std::size_t row = 0; row < 100; ++row) {
    for (std::size_t column = 0; column < 64; ++column) {
      right = right && range.start()[row * 64 + column] == (column < 10 ? 7 : 0xaa);
    }
  }
  CHECK(right);
  CHECK(range.margins_untouched());
}

TEST_CASE("many rows are shared among threads, each row once") {
  constexpr std::size_t kRows = 700000;
  Range range(kRows * 64);
  placement::fill_2d(range.start(), 64, 60, kRows, {7, 1}, 0);
  bool right = true;
  for (std::size_t row = 0; row < kRows; ++row) {
    right = right && range.start()[row * 64] == 7 && range.start()[row * 64 + 59] == 7 &&
            range.start()[row * 64 + 60] == 0xaa;
  }
  CHECK(right);
  CHECK(range.margins_untouched());
}

TEST_CASE("small ranges take one thread and large ones at most what is asked for") {
  CHECK(placement::thread_count(1) == 1);
  CHECK(placement::thread_count(8 * kMiB) == 1);
  CHECK(placement::thread_count(std::size_t{64} << 30) <= 16);
}

TEST_CASE("the host's signal handlers do not run on the placing threads") {
  static pid_t handler_thread = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { handler_thread = gettid(); };
  struct sigaction before {};
  REQUIRE(sigaction(SIGALRM, &action, &before) == 0);
  ualarm(2000, 0);
  Range range(std::size_t{256} << 20);
  for (int i = 0; i < 4; ++i) placement::fill(range.start(), range.bytes, {0, 1}, -1);
  usleep(10000);
  CHECK(handler_thread == gettid());
  sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE(
    "a fault of a placing thread reaches the host's handler; other signals stay blocked there") {
  // Crash reporters, and programs that map pages when they are touched, handle SIGSEGV.
  static std::atomic<int> faults{0};
  static sigset_t mask;
  static unsigned char* page = nullptr;
  static pid_t faulted = 0;
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler's mask is the thread's
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    const auto* at = static_cast<unsigned char*>(info->si_addr);
    if (at < page || at >= page + 4096) _exit(9);
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    faulted = gettid();
    ++faults;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
  };
  struct sigaction before {};
  Range range(std::size_t{64} << 20);
  REQUIRE(placement::thread_count(range.bytes) > 1);
  page = range.start() + (range.bytes / 2);
  REQUIRE(mprotect(page, 4096, PROT_NONE) == 0);
  REQUIRE(sigaction(SIGSEGV, &action, &before) == 0);
  placement::fill(range.start(), range.bytes, {5, 1}, -1);
  sigaction(SIGSEGV, &before, nullptr);
  CHECK(faults == 1);
  CHECK(faulted != gettid());
  CHECK(page[4095] == 5);
  for (const int own : {SIGSYS, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) {
    CHECK(sigismember(&mask, own) == 0);
  }
  for (const int others : {SIGTERM, SIGINT, SIGALRM, SIGPROF, SIGUSR1, SIGCHLD, SIGPIPE}) {
    CHECK(sigismember(&mask, others) == 1);
  }
}
