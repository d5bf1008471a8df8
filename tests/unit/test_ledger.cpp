// Claims on a common limit: seen by others, gone with the process that made them, no trace left.
#include "memory/budget/ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/sizes.h"
#include "memory/budget/host_budget.h"
#include "support/catch.h"

using namespace kvshim;

namespace {

class File {
 public:
  File() { close(mkstemp(name)); }
  ~File() { unlink(name); }
  char name[40] = "/tmp/kvshim-ledger-XXXXXX";
};

int open_files() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A process that claims and then waits for its end.
class Claimant {
 public:
  Claimant(const char* file, std::uint64_t bytes) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
      Ledger ledger(bytes);
      ledger.enter(file);
      if (write(ready[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
  }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
  ~Claimant() { kill(); }
  pid_t pid;
};

}  // namespace

TEST_CASE("what one claims the other sees, less what was touched since, until it is given up") {
  const File file;
  const int before = open_files();
  {
    Ledger first(3 * kGiB);
    CHECK(first.enter(file.name) == 0);
    CHECK(first.enter(file.name) == 0);  // not its own
    Ledger second(kGiB);
    CHECK(second.enter(file.name) == 3 * kGiB);
    CHECK(first.enter(file.name) == kGiB);
    first.took(kGiB);
    CHECK(second.enter(file.name) == 2 * kGiB);
    first.took(2 * kGiB);
    CHECK(second.enter(file.name) == 0);
    second.drop();
    CHECK(first.enter(file.name) == 0);
  }
  CHECK(open_files() == before);
}

TEST_CASE("many claims at once are all seen, wherever their ranges lie") {
  const File file;
  std::vector<std::unique_ptr<Ledger>> ledgers;
  for (std::uint64_t index = 0; index < 40; ++index) {
    ledgers.push_back(std::make_unique<Ledger>((index + 1) * kMiB));
    CHECK(ledgers.back()->enter(file.name) == index * (index + 1) / 2 * kMiB);
  }
  for (std::uint64_t index = 0; index < 40; index += 2) ledgers[index].reset();
  Ledger last(kMiB);
  CHECK(last.enter(file.name) == 20 * 21 * kMiB);
}

TEST_CASE("a process that is killed claims nothing any more, and leaves no file") {
  const File file;
  Claimant other(file.name, 5 * kGiB);
  Ledger mine(kGiB);
  CHECK(mine.enter(file.name) == 5 * kGiB);
  other.kill();
  CHECK(mine.enter(file.name) == 0);
  struct stat status {};
  REQUIRE(stat(file.name, &status) == 0);
  CHECK(status.st_size == 0);
}

TEST_CASE("the files that state the limits of this machine take claims") {
  std::vector<std::string> files = {"/proc/meminfo"};
  if (access("/sys/devices/system/node/node0/meminfo", R_OK) == 0) {
    files.emplace_back("/sys/devices/system/node/node0/meminfo");
  }
  for (const std::string& file : files) {
    CAPTURE(file);
    Claimant other(file.c_str(), 3 * kMiB);
    Ledger mine(kMiB);
    CHECK(mine.enter(file.c_str()) >= 3 * kMiB);
  }
}

TEST_CASE("a file that takes no claims claims nothing, and a claim in vain is no error") {
  Ledger ledger(kGiB);
  CHECK(ledger.enter("/no/such/file") == 0);
  ledger.took(kMiB);
  char file[256];
  ledger.begin("/no/such/file");
  ledger.end();
  CHECK(std::string(host_budget::decision_file(file)) == "/proc/meminfo");
}

TEST_CASE("a child forked while a claim is held does not keep it alive") {
  const File file;
  pid_t child = 0;
  {
    Ledger ledger(kGiB);
    ledger.enter(file.name);
    ledger.begin(file.name);
    child = fork();
    if (child == 0) {
      for (;;) pause();
    }
  }
  Ledger mine(kMiB);
  CHECK(mine.enter(file.name) == 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("nor does it where the parent is killed, once the child has forgotten") {
  const File file;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    Ledger ledger(kGiB);
    ledger.enter(file.name);
    ledger.begin(file.name);
    const pid_t child = fork();
    if (child == 0) {
      Ledger::forget();
      const pid_t self = getpid();
      if (write(ready[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
      for (;;) pause();
    }
    for (;;) pause();
  }
  pid_t child = 0;
  REQUIRE(read(ready[0], &child, sizeof(child)) == sizeof(child));
  Ledger mine(kMiB);
  CHECK(mine.enter(file.name) == kGiB);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  CHECK(mine.enter(file.name) == 0);
  kill(child, SIGKILL);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("one decides at a time, and a turn that never ends is waited for only a little") {
  const File file;
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        Ledger ledger(kMiB);
        ledger.begin(file.name);
        const int now = ++inside;
        if (now > most) most = now;
        usleep(50);
        --inside;
        ledger.end();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most == 1);
  Ledger stuck(kMiB);
  stuck.begin(file.name);
  Ledger other(kMiB);
  other.begin(file.name);  // comes back
}
