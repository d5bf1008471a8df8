// Starts a child, follows its events, and turns its crash or silence into a failed check.
#include "batch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpu.h"
#include "runner.h"

namespace contract {
namespace {

constexpr double kCheckSeconds = 20;
constexpr double kStartSeconds = 60;  // exec, loading the driver, and nothing else

// On a machine with more to do than it has processors, everything takes as much longer.
double patience(double seconds) {
  double load = 0;
  if (getloadavg(&load, 1) != 1) return seconds;
  const double share = load / static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return seconds * std::clamp(share, 1.0, 10.0);
}

class Child {
 public:
  Child(const std::vector<std::size_t>& indices, bool bare) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::string list;
    for (const std::size_t index : indices)
      list += (list.empty() ? "" : ",") + std::to_string(index);
    pid_ = start_self({"--child", list}, bare, {{ends[1], kReportFd}});
    close(ends[1]);
    fd_ = ends[0];
  }
  ~Child() { close(fd_); }

  // One event, or false when the child is gone or said nothing for so long.
  bool next(std::string& line, double seconds, bool& silent) {
    const Clock clock;
    silent = false;
    waited_ = seconds;
    for (;;) {
      if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      pollfd waiting{fd_, POLLIN, 0};
      const double left = std::max(0.0, seconds - clock.seconds());
      const int ready = poll(&waiting, 1, static_cast<int>(left * 1000));
      if (ready == 0) {
        silent = true;
        return false;
      }
      char bytes[4096];
      const ssize_t got = read(fd_, bytes, sizeof bytes);
      if (got <= 0) return false;
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
  }

  // How it ended. A process stuck inside the driver may survive SIGKILL: do not wait for ever.
  std::string end(bool silent) {
    if (silent) kill(pid_, SIGKILL);
    const Clock clock;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (clock.seconds() > 10) {
        kill(pid_, SIGKILL);
        return silent ? "hung, and does not die" : "does not exit after its last check";
      }
      usleep(1000);
    }
    if (silent) return "hung: nothing for " + std::to_string(static_cast<int>(waited_)) + " s";
    if (WIFSIGNALED(status)) return std::string("crashed: ") + strsignal(WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) return "exited with " + std::to_string(WEXITSTATUS(status));
    return "";
  }

 private:
  int pid_ = -1, fd_ = -1;
  double waited_ = 0;
  std::string buffer_;
};

}  // namespace

void run_batch(std::vector<std::size_t> batch, bool bare,
               std::map<std::size_t, Verdict>& verdicts) {
  while (!batch.empty()) {
    Child child(batch, bare);
    std::string line;
    bool silent = false, finished = false, broken = false;
    std::size_t current = batch.front(), ran = 0;
    bool inside = false;
    double allowed = kStartSeconds;
    while (child.next(line, patience(allowed), silent)) {
      const std::size_t space = line.find(' ');
      const std::string word = line.substr(0, space);
      const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
      Verdict& verdict = verdicts[current];
      allowed = kCheckSeconds;
      if (word == "begin") {
        current = std::strtoul(rest.c_str(), nullptr, 10);
        verdicts[current] = {};
        inside = true;
        ++ran;
      } else if (word == "fail") {
        verdict.failures.push_back(rest);
      } else if (word == "observe") {
        verdict.observations.push_back(rest);
      } else if (word == "done") {
        finished = true;
        inside = false;
      } else if (word == "broken") {
        verdict.failures.push_back(rest);
        broken = true;
      } else {
        verdict.kind = word == "pass"   ? Verdict::passed
                       : word == "skip" ? Verdict::skipped
                                        : Verdict::failed;
        verdict.reason = rest;
        inside = false;
      }
    }
    const std::string how = child.end(silent);
    if (finished && how.empty()) return;
    Verdict& verdict = verdicts[current];
    verdict.kind = Verdict::failed;
    verdict.failures.push_back(inside     ? how
                               : finished ? "after the last check of this process: " + how
                               : broken   ? "cannot run"
                                          : "between checks: " + how);
    if (finished) return;
    batch.erase(batch.begin(),
                batch.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(ran, 1)));
  }
}

}  // namespace contract
