// A memory cgroup below this process's own, of either version, for cases that need a real limit.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cases.h"

namespace cases {

inline bool put(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return done;
}

// `path` is empty where this machine gives none away.
class Cgroup {
 public:
  explicit Cgroup(std::size_t limit) : limit_(std::to_string(limit)) {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line) && path.empty();) {
      const std::size_t first = line.find(':'), second = line.find(':', first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      const std::string own = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
      const std::string name = own + "/kvshim-case-" + std::to_string(getpid());
      if (controllers.empty()) {
        make("/sys/fs/cgroup" + name, "memory.max");
      } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
        make("/sys/fs/cgroup/memory" + name, "memory.limit_in_bytes");
      }
    }
  }
  ~Cgroup() {
    for (int round = 0; !path.empty() && rmdir(path.c_str()) != 0 && round < 50; ++round) {
      usleep(10000);
    }
  }
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  bool killed() const {
    return read_file(path + "/memory.oom_control").find("oom_kill 1") != std::string::npos ||
           read_file(path + "/memory.events").find("oom_kill 1") != std::string::npos;
  }
  // In a scene: this process moves into the cgroup that CASE_CGROUP names.
  static bool enter() {
    return put(std::string(std::getenv("CASE_CGROUP")) + "/cgroup.procs", std::to_string(getpid()));
  }
  std::string path;

 private:
  void make(const std::string& folder, const char* file) {
    if (mkdir(folder.c_str(), 0755) != 0) return;
    if (put(folder + "/" + file, limit_)) {
      path = folder;
    } else {
      rmdir(folder.c_str());
    }
  }
  std::string limit_;
};

}  // namespace cases
