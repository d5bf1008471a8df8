// Other processes: scenes, and starting copies of this program.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>

#include "gpu.h"
#include "runner.h"

extern char** environ;

namespace contract {

static std::map<std::string, Scene>& scenes() {
  static std::map<std::string, Scene> all;
  return all;
}

SceneRegistration::SceneRegistration(const char* name, Scene scene) {
  scenes()[name] = scene;
}

int run_scene_here(const std::string& name, const std::vector<std::string>& arguments) {
  const auto found = scenes().find(name);
  if (found == scenes().end()) return 99;
  if (const char* problem = resolve_driver(options.via == "dlsym")) {
    std::fprintf(stderr, "%s\n", problem);
    return 98;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return found->second(arguments);
  } catch (const StopCheck&) {
    return 97;
  }
}

std::vector<std::string> inherited_arguments() {
  return {"--via=" + options.via, "--size-large=" + std::to_string(options.large)};
}

// LD_PRELOAD without libkvshim: how a preloaded run asks what the bare driver would have said.
static std::string without_kvshim(const char* list) {
  std::string kept, text(list), word;
  text += ':';
  for (const char c : text) {
    if (c != ':' && c != ' ') {
      word += c;
      continue;
    }
    if (!word.empty() && word.find("kvshim") == std::string::npos) {
      kept += (kept.empty() ? "" : ":") + word;
    }
    word.clear();
  }
  return kept;
}

int start_self(const std::vector<std::string>& arguments, bool bare,
               const std::vector<std::pair<int, int>>& fds) {
  // Everything that needs the heap happens before the fork: the parent may have threads.
  std::vector<std::string> words{"contract"};
  for (const std::string& word : inherited_arguments()) words.push_back(word);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    std::string text(*variable);
    if (bare && text.starts_with("LD_PRELOAD=")) {
      text = "LD_PRELOAD=" + without_kvshim(text.c_str() + std::strlen("LD_PRELOAD="));
      if (text == "LD_PRELOAD=") continue;
    }
    variables.push_back(text);
  }
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(96);
  for (const auto& [from, to] : fds) {  // without close-on-exec
    if (from == to ? fcntl(to, F_SETFD, 0) < 0 : dup2(from, to) < 0) _exit(96);
  }
  execve("/proc/self/exe", argv.data(), envp.data());
  _exit(95);
}

std::string show(const Outcome& outcome) {
  std::string text = outcome.hung ? "hung"
                     : outcome.signal != 0
                         ? std::string("ended by signal ") + strsignal(outcome.signal)
                         : "exit code " + std::to_string(outcome.code);
  return text + (outcome.output.empty() ? "" : ", said: " + outcome.output);
}

Process::Process(const std::string& scene, const std::vector<std::string>& arguments) {
  int input[2], output[2];
  REQUIRE(pipe2(input, O_CLOEXEC) == 0);
  REQUIRE(pipe2(output, O_CLOEXEC) == 0);
  std::vector<std::string> words{"--scene", scene};
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_ = start_self(words, false, {{input[0], 0}, {output[1], 1}});
  close(input[0]);
  close(output[1]);
  in_ = input[1];
  out_ = output[0];
  signal(SIGPIPE, SIG_IGN);
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(in_);
  close(out_);
}

void Process::say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(in_, text.data(), text.size()) < 0) return;  // it is gone: hear() and wait() will tell
}

// Adds what is there to `buffer`; false at the end of the file or of the time.
static bool read_more(int fd, std::string& buffer, double seconds) {
  pollfd waiting{fd, POLLIN, 0};
  if (poll(&waiting, 1, seconds > 0 ? static_cast<int>(seconds * 1000) : 0) <= 0) return false;
  char bytes[4096];
  const ssize_t got = read(fd, bytes, sizeof bytes);
  if (got <= 0) return false;
  buffer.append(bytes, static_cast<std::size_t>(got));
  return true;
}

std::string Process::hear(double seconds) {
  const Clock clock;
  std::size_t end = buffer_.find('\n');
  while (end == std::string::npos) {
    if (!read_more(out_, buffer_, seconds - clock.seconds())) return "";
    end = buffer_.find('\n');
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

void Process::kill_with(int number) {
  kill(pid_, number);
}

Outcome Process::wait(double seconds) {
  Outcome outcome;
  const Clock clock;
  while (read_more(out_, buffer_, seconds - clock.seconds())) {
  }
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (clock.seconds() > seconds) {
      outcome.hung = true;
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    sleep_for(0.002);
  }
  pid_ = -1;
  outcome.output = buffer_;
  while (!outcome.output.empty() && outcome.output.back() == '\n') outcome.output.pop_back();
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

Outcome run_scene(const std::string& scene, const std::vector<std::string>& arguments,
                  double seconds) {
  Process process(scene, arguments);
  return process.wait(seconds);
}

}  // namespace contract
