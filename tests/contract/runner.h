// Between the program's two halves: the parent that starts processes and keeps the score, and the
// child that runs checks and tells the parent through a pipe, one line an event.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "contract.h"

namespace contract {

struct Options {
  std::string only, group, via = "getproc", run;
  std::size_t large = 64u << 20;
  bool list = false, verbose = false, observe = false;
};
extern Options options;

// Child: runs these checks in order. Events go to `fd`: "begin N", "fail TEXT", "observe TEXT",
// "pass N", "failed N", "skip N REASON".
int run_checks(const std::vector<std::size_t>& indices, int fd);

// Child: 0 when there is a driver with a device, 77 when not, 1 when the driver lacks a function.
// Writes the number of devices, as one byte, to `fd`.
int probe_driver(int fd);

// Child: runs one scene.
int run_scene_here(const std::string& name, const std::vector<std::string>& arguments);

// Arguments that make a re-executed copy of this program reach the driver the same way.
std::vector<std::string> inherited_arguments();

// fork + exec of this program. `fds` maps the child's descriptors: {parent's, child's}.
int start_self(const std::vector<std::string>& arguments, bool bare,
               const std::vector<std::pair<int, int>>& fds);

}  // namespace contract
