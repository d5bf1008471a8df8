// One process that runs a batch of checks, as the parent sees it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace contract {

struct Verdict {
  enum Kind { none, passed, failed, skipped } kind = none;
  std::string reason;
  std::vector<std::string> failures, observations;
};

inline constexpr int kReportFd = 3;  // where a child writes its events

// Runs the batch to its end, with a new process after each crash or hang. Bare: without kvshim.
void run_batch(std::vector<std::size_t> batch, bool bare, std::map<std::size_t, Verdict>& verdicts);

}  // namespace contract
