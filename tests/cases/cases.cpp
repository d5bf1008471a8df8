// See cases.h. Usage: program [name of a case], or program --scene NAME.
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

extern char** environ;

namespace cases {

namespace {

struct Entry {
  std::string name;
  void (*check)();
  int (*scene)();
};

std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

std::atomic<int> failures{0};
bool skipped = false;

constexpr double kLimit = 20;

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Folder {
  Folder() {
    char name[] = "/tmp/kvshim-cases-XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (getpid() == owner) std::filesystem::remove_all(path, ignored);
  }
  pid_t owner = getpid();
  std::string path;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Reads both pipes until the process has ended. What a grandchild writes after that is lost.
void follow(Result* result, int out, int err) {
  const double begun = now();
  int status = 0;
  for (bool ended = false; !ended;) {
    ended = waitpid(result->pid, &status, WNOHANG) == result->pid;
    if (!ended && now() - begun > kLimit) {
      result->hung = true;
      kill(result->pid, SIGKILL);
      waitpid(result->pid, &status, 0);
      ended = true;
    }
    pollfd fds[] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
    while (poll(fds, 2, ended ? 0 : 5) > 0 && ((fds[0].revents | fds[1].revents) & POLLIN) != 0) {
      char buffer[4096];
      for (pollfd& fd : fds) {
        if ((fd.revents & POLLIN) == 0) continue;
        const ssize_t got = read(fd.fd, buffer, sizeof(buffer));
        if (got > 0) (fd.fd == out ? result->out : result->err).append(buffer, got);
      }
    }
    if (!ended) usleep(500);
  }
  result->seconds = now() - begun;
  if (WIFEXITED(status)) result->code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result->signal = WTERMSIG(status);
}

int run_scene(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.scene == nullptr || entry.name != "scene " + name) continue;
    const int code = entry.scene();
    return failures == 0 ? code : 99;
  }
  std::fprintf(stderr, "no scene %s\n", name.c_str());
  return 98;
}

}  // namespace

Register::Register(const char* name, void (*body)()) {
  entries().push_back({name, body, nullptr});
}
Register::Register(const char* name, int (*body)()) {
  entries().push_back({name, nullptr, body});
}

void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::printf("%s:%d: %s\n", file, line, what.c_str());
  std::fflush(stdout);
}

void note(const std::string& text) {
  std::printf("  %s\n", text.c_str());
}

void skip(const std::string& why) {
  skipped = true;
  std::printf("SKIP: %s\n", why.c_str());
}

const std::string& work_folder() {
  static const Folder folder;
  return folder.path;
}

std::string difference(const std::string& bare, const std::string& preloaded) {
  const auto left = split(bare), right = split(preloaded);
  std::string text;
  for (std::size_t i = 0; i < left.size() || i < right.size(); ++i) {
    const std::string a = i < left.size() ? left[i] : "-", b = i < right.size() ? right[i] : "-";
    if (a != b) text += "  bare: " + a + "\n  preloaded: " + b + "\n";
  }
  return text;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> Result::calls_of(const std::string& start) const {
  std::vector<std::string> found;
  for (const std::string& call : calls) {
    if (call.starts_with(start) &&
        (call.size() == start.size() || start.ends_with(' ') || call[start.size()] == ' ')) {
      found.push_back(call);
    }
  }
  return found;
}

std::vector<std::string> Result::lines(const std::string& text) const {
  std::vector<std::string> found;
  for (const std::string& line : split(err)) {
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}

std::string Result::show() const {
  std::string text = hung          ? "hung"
                     : signal != 0 ? "signal " + std::to_string(signal)
                                   : "exit code " + std::to_string(code);
  text += "\n" + (out.size() > 1500 ? "... " + out.substr(out.size() - 1500) : out) + err;
  const std::size_t from = calls.size() > 15 ? calls.size() - 15 : 0;
  text += "the driver's last calls:\n";
  for (std::size_t i = from; i < calls.size(); ++i) text += "  " + calls[i] + "\n";
  return text;
}

Result run(How how, const std::string& scene, const Environment& more, const std::string& program) {
  static int number = 0;
  const std::string log = work_folder() + "/driver-" + std::to_string(++number) + ".log";
  Environment changes = {{"KVSIM_LOG", log}};
  if (how == kPreloaded) changes.emplace_back("LD_PRELOAD", KVSHIM_LIBRARY);
  changes.insert(changes.end(), more.begin(), more.end());

  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  Result result;
  result.pid = fork();
  if (result.pid == 0) {
    dup2(out[1], 1);
    dup2(err[1], 2);
    for (const auto& [name, value] : changes) setenv(name.c_str(), value.c_str(), 1);
    char* arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>("--scene"),
                         const_cast<char*>(scene.c_str()), nullptr};
    execv(program.c_str(), arguments);
    _exit(97);
  }
  close(out[1]);
  close(err[1]);
  follow(&result, out[0], err[0]);
  close(out[0]);
  close(err[0]);
  result.calls = split(read_file(log));
  return result;
}

void exec_scene(const char* scene) {
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, const_cast<char*>("--scene"), const_cast<char*>(scene), nullptr};
  execv(program, arguments);
  _exit(97);
}

// "kvshim[4711] summary", then rows of two blanks; the first rows are the table of kinds.
Summary summary_of(const std::string& text) {
  Summary summary;
  bool inside = false;
  for (const std::string& line : split(text)) {
    int pid = 0, end = 0;
    if (std::sscanf(line.c_str(), "kvshim[%d] summary%n", &pid, &end) == 1 && end > 0) {
      const int tables = summary.tables + 1;
      summary = {};
      summary.tables = tables;
      summary.pid = pid;
      inside = true;
      continue;
    }
    inside = inside && line.starts_with("  ");
    if (!inside) continue;
    summary.text += line + "\n";
    char name[16] = "", sizes[6][16] = {};
    Summary::Kind kind;
    if (std::sscanf(line.c_str(), "  %15s %lu %lu %15s %15s %15s %15s %15s %15s", name,
                    &kind.blocks, &kind.live, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                    sizes[5]) == 9) {
      kind.bytes = std::string(sizes[0]) + " " + sizes[1];
      kind.live_bytes = std::string(sizes[2]) + " " + sizes[3];
      kind.peak_bytes = std::string(sizes[4]) + " " + sizes[5];
      summary.kinds[name] = kind;
    }
  }
  return summary;
}

}  // namespace cases

int main(int count, char** arguments) {
  using namespace cases;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count == 3 && std::strcmp(arguments[1], "--scene") == 0) return run_scene(arguments[2]);
  int passed = 0, failed = 0, left_out = 0;
  for (const Entry& entry : entries()) {
    if (entry.check == nullptr || (count == 2 && entry.name != arguments[1])) continue;
    failures = 0;
    skipped = false;
    entry.check();
    const char* const how = failures != 0 ? "FAILED" : skipped ? "skipped" : "ok";
    std::printf("%s: %s\n", how, entry.name.c_str());
    ++(failures != 0 ? failed : skipped ? left_out : passed);
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, left_out);
  if (passed + failed == 0) return left_out != 0 ? 77 : 1;
  return failed == 0 ? 0 : 1;
}
