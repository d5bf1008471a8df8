// The log: one line, one write, and harmless in a process that closed, broke or reused descriptors.
#include "base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/child.h"
#include "support/malloc_count.h"

namespace kvshim {
namespace {

using test::in_child;

// A directory of its own, removed at the end.
class Directory {
 public:
  Directory() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~Directory() {
    for (const std::string& name : names()) unlink(at(name).c_str());
    rmdir(path_);
  }
  std::string at(const std::string& name) const { return std::string(path_) + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    DIR* directory = opendir(path_);
    while (const dirent* entry = readdir(directory))
      if (entry->d_name[0] != '.') found.push_back(entry->d_name);
    closedir(directory);
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string text(const std::string& name) const {
    std::ostringstream all;
    all << std::ifstream(at(name)).rdbuf();
    return all.str();
  }

 private:
  char path_[32] = "/tmp/kvshim-log-XXXXXX";
};

std::string line_of(pid_t pid, const char* rest) {
  return "kvshim[" + std::to_string(pid) + "] " + rest + "\n";
}

}  // namespace

TEST_CASE("a line carries the process id and the level") {
  const auto child = in_child({{"KVSHIM_LOG", "debug"}}, [] {
    log::error("e {}", 1);
    log::warn("w {}", "two");
    log::info("i {:#x}", 255);
    log::debug("d");
  });
  CHECK(child.lines() ==
        "kvshim[pid] error: e 1\nkvshim[pid] warn: w two\nkvshim[pid] info: i 0xff\n"
        "kvshim[pid] debug: d\n");
}

TEST_CASE("lines above the level are not written") {
  const auto say_all = [] {
    log::error("e");
    log::warn("w");
    log::info("i");
    log::debug("d");
    return log::enabled(LogLevel::off) ? 1 : 0;
  };
  CHECK(in_child({{"KVSHIM_LOG", "off"}}, say_all).lines().empty());
  CHECK(in_child({{"KVSHIM_LOG", "error"}}, say_all).lines() == "kvshim[pid] error: e\n");
  CHECK(in_child({}, say_all).lines() == "kvshim[pid] error: e\nkvshim[pid] warn: w\n");
  CHECK(in_child({}, say_all).status == 0);
}

TEST_CASE("raw text ignores the level and gets no prefix") {
  const auto child = in_child({{"KVSHIM_LOG", "off"}}, [] { log::write_raw("a\nb\n", 4); });
  CHECK(child.err == "a\nb\n");
}

TEST_CASE("a line that is too long is cut, and says so") {
  const std::string text(5000, 'x');
  const auto child = in_child({}, [&] { log::warn("{}", text); });
  CHECK(child.err.size() == log::kLineMax);
  CHECK(child.err.substr(child.err.size() - 5) == "x...\n");
  CHECK(child.err.find('\n') == child.err.size() - 1);
  const auto exact = in_child({}, [&] { log::write(LogLevel::warn, text.c_str(), 900); });
  CHECK(exact.err.substr(exact.err.size() - 4) == "xxx\n");
}

TEST_CASE("a message with control characters stays one line") {
  const auto child = in_child({}, [] { log::warn("a\nb\tc\033d{}", "\x7f\xc3\xa9"); });
  CHECK(child.lines() == "kvshim[pid] warn: a?b?c?d?\xc3\xa9\n");
}

TEST_CASE("errno survives a line, and the heap is not touched") {
  Directory directory;
  for (const std::string& file : {std::string(), directory.at("f.%p"), directory.at("no/such")}) {
    CAPTURE(file);
    const auto child = in_child({{"KVSHIM_LOG_FILE", file.c_str()}}, [] {
      errno = 42;
      const auto calls = test::heap_calls_in([] { log::warn("hello {}", 7); });
      return calls == 0 && errno == 42 ? 0 : 1;
    });
    CHECK(child.status == 0);
  }
}

TEST_CASE("a closed standard error is no trouble") {
  const auto child = in_child({}, [] {
    close(2);
    errno = 3;
    log::warn("nobody hears this");
    log::write_raw("nor this\n", 9);
    return errno == 3 ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(child.err.empty());
}

TEST_CASE("a reader of standard error that went away does not end the host") {
  const auto child = in_child({}, [] {
    int ends[2];
    if (pipe(ends) != 0) return 9;
    close(ends[0]);
    dup2(ends[1], 2);
    signal(SIGPIPE, SIG_DFL);
    log::warn("into the void");
    sigset_t pending;
    sigpending(&pending);
    if (sigismember(&pending, SIGPIPE)) return 1;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&mask, SIGPIPE) ? 2 : 0;
  });
  CHECK(child.status == 0);
}

TEST_CASE("a SIGPIPE of the host's own that was pending stays pending") {
  const auto child = in_child({}, [] {
    int ends[2];
    if (pipe(ends) != 0) return 9;
    close(ends[0]);
    dup2(ends[1], 2);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    sigprocmask(SIG_BLOCK, &only, nullptr);
    raise(SIGPIPE);
    log::warn("into the void");
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) ? 0 : 1;
  });
  CHECK(child.status == 0);
}

TEST_CASE("a full pipe that does not block loses the line, not the host's time") {
  const auto child = in_child({}, [] {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0) return 9;
    const std::string fill(4096, 'x');
    while (write(ends[1], fill.data(), fill.size()) > 0) {
    }
    dup2(ends[1], 2);
    log::warn("no room");
    return 0;
  });
  CHECK(child.status == 0);
}

TEST_CASE("the log file is made by the first line, not before") {
  Directory directory;
  const auto silent =
      in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] { log::info("not now"); });
  CHECK(silent.status == 0);
  CHECK(directory.names().empty());
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] {
    log::warn("one");
    log::warn("two");
  });
  CHECK(child.err.empty());
  CHECK(directory.text("log") == line_of(child.pid, "warn: one") + line_of(child.pid, "warn: two"));
}

TEST_CASE("the log file is appended to") {
  Directory directory;
  std::ofstream(directory.at("log")) << "before\n";
  const auto child =
      in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] { log::warn("after"); });
  CHECK(directory.text("log") == "before\n" + line_of(child.pid, "warn: after"));
}

TEST_CASE("the log file is not inherited by programs the host starts") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] {
    log::warn("one");
    for (int fd = 3; fd < 64; ++fd) {
      struct stat found {};
      if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size == 0) continue;
      const int flags = fcntl(fd, F_GETFL);
      if ((flags & O_APPEND) == 0 || (flags & O_ACCMODE) != O_WRONLY) continue;
      return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? 0 : 1;
    }
    return 2;
  });
  CHECK(child.status == 0);
}

TEST_CASE("with %p every process has its own file, a forked child too") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log.%p.txt").c_str()}}, [] {
    log::warn("parent");
    const pid_t pid = fork();
    if (pid == 0) {
      log::warn("child {}", getpid());
      log::warn("again");
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    log::warn("parent, after child {}", pid);
  });
  CHECK(child.err.empty());
  const auto names = directory.names();
  REQUIRE(names.size() == 2);
  const std::string own = "log." + std::to_string(child.pid) + ".txt";
  const std::string other = names[0] == own ? names[1] : names[0];
  const pid_t grandchild = std::stoi(other.substr(4));
  CHECK(
      directory.text(own) ==
      line_of(child.pid, "warn: parent") +
          line_of(child.pid, ("warn: parent, after child " + std::to_string(grandchild)).c_str()));
  CHECK(directory.text(other) ==
        line_of(grandchild, ("warn: child " + std::to_string(grandchild)).c_str()) +
            line_of(grandchild, "warn: again"));
}

TEST_CASE("without %p a forked child goes on in the same file") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] {
    log::warn("parent");
    const pid_t pid = fork();
    if (pid == 0) {
      log::warn("child");
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
  });
  const std::string text = directory.text("log");
  CHECK(text.find("warn: parent\n") != std::string::npos);
  CHECK(text.find("warn: child\n") != std::string::npos);
  CHECK(directory.names().size() == 1);
}

TEST_CASE("a log file that cannot be opened is named once, and lines go to standard error") {
  Directory directory;
  const std::string path = directory.at("missing/log");
  const auto child = in_child({{"KVSHIM_LOG_FILE", path.c_str()}}, [] {
    log::warn("one");
    log::warn("two");
  });
  CHECK(child.lines() == "kvshim[pid] error: KVSHIM_LOG_FILE=\"" + path +
                             "\": no such directory (error 2); writing to standard error instead\n"
                             "kvshim[pid] warn: one\nkvshim[pid] warn: two\n");
}

TEST_CASE("a log path that is a FIFO without a reader does not hang the host") {
  Directory directory;
  REQUIRE(mkfifo(directory.at("fifo").c_str(), 0600) == 0);
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("fifo").c_str()}}, [] {
    alarm(10);
    log::warn("one");
  });
  CHECK(child.status == 0);
  CHECK(child.err.find("warn: one\n") != std::string::npos);
}

TEST_CASE("a descriptor that the host closed and used again is not written to") {
  Directory directory;
  const std::string host_file = directory.at("host");
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [&] {
    log::warn("one");
    for (int fd = 3; fd < 64; ++fd) close(fd);
    for (int n = 0; n < 8; ++n) open(host_file.c_str(), O_RDWR | O_CREAT, 0600);
    log::warn("two");
  });
  CHECK(directory.text("host").empty());
  CHECK(directory.text("log") == line_of(child.pid, "warn: one") + line_of(child.pid, "warn: two"));
}

TEST_CASE("the log file never takes the number of a closed standard descriptor") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] {
    close(0);
    close(1);
    close(2);
    log::warn("one");
    return fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0 ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(directory.text("log") == line_of(child.pid, "warn: one"));
}

TEST_CASE("no descriptor left means standard error, not a lost line") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log").c_str()}}, [] {
    const rlimit none{3, 3};
    setrlimit(RLIMIT_NOFILE, &none);
    log::warn("one");
  });
  CHECK(child.err.find("too many open files") != std::string::npos);
  CHECK(child.err.find("warn: one\n") != std::string::npos);
}

TEST_CASE("lines of many threads do not mix, and none is lost while the file is being opened") {
  Directory directory;
  const auto child = in_child({{"KVSHIM_LOG_FILE", directory.at("log.%p").c_str()}}, [] {
    pthread_t threads[8];
    for (pthread_t& thread : threads)
      pthread_create(
          &thread, nullptr,
          [](void*) -> void* {
            for (int n = 0; n < 50; ++n) log::warn("abcdefghijklmnopqrstuvwxyz");
            return nullptr;
          },
          nullptr);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    int open_files = 0;
    for (int fd = 3; fd < 64; ++fd) {
      const int flags = fcntl(fd, F_GETFL);
      open_files += flags >= 0 && (flags & O_APPEND) != 0 && (flags & O_NONBLOCK) != 0;
    }
    return open_files == 1 ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(child.err.empty());
  std::string all;
  for (const std::string& name : directory.names()) all += directory.text(name);
  std::istringstream lines(all);
  std::string line;
  int count = 0;
  const std::string expected = line_of(child.pid, "warn: abcdefghijklmnopqrstuvwxyz");
  while (std::getline(lines, line)) {
    ++count;
    if (line + "\n" != expected) FAIL("mixed line: " << line);
  }
  CHECK(count == 400);
}

TEST_CASE("a message said once is said once") {
  static log::Once seen;
  CHECK(seen.first());
  CHECK_FALSE(seen.first());
}

}  // namespace kvshim

TEST_CASE("a log file at the program's file size limit does not end the program") {
  char path[] = "/tmp/kvshim-limit-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0);
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("KVSHIM_LOG_FILE", path, 1);
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) _exit(2);
    kvshim::log::error("no room for this");
    _exit(7);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));  // SIGXFSZ would have killed it
  CHECK(WEXITSTATUS(status) == 7);
  close(file);
  unlink(path);
}
