// Runs a piece of a test in a forked child and brings back what it wrote to standard error and how
// it ended: for things that happen once per process (reading the options) or end one.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

namespace kvshim::test {

struct ChildResult {
  int status = -1;  // the exit status, or minus the signal that ended it
  pid_t pid = 0;
  std::string err;
  // The lines of `err` with "[pid]" in place of the child's process id.
  std::string lines() const {
    std::string text = err;
    const std::string id = "[" + std::to_string(pid) + "]";
    for (auto at = text.find(id); at != std::string::npos; at = text.find(id, at + 1))
      text.replace(at, id.size(), "[pid]");
    return text;
  }
};

using Environment = std::initializer_list<std::pair<const char*, const char*>>;

// `body` runs in the child, in an environment without any KVSHIM_* but these; what it returns (or
// 0) is the exit status. It must not use the test framework.
template <typename Body>
ChildResult in_child(Environment environment, Body body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    for (char** entry = environ; *entry != nullptr;) {
      const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
      if (name.rfind("KVSHIM_", 0) == 0)
        unsetenv(name.c_str());
      else
        ++entry;
    }
    for (const auto& [name, value] : environment) setenv(name, value, 1);
    int status = 0;
    if constexpr (std::is_void_v<decltype(body())>)
      body();
    else
      status = body();
    _exit(status);
  }
  close(ends[1]);
  ChildResult result;
  result.pid = pid;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    result.err.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

}  // namespace kvshim::test
