// The program: lists the checks, runs every group in a process of its own (an isolated check in
// one for itself), and keeps the score.
// Exit code 0: all passed; 1: something failed; 77: no driver here.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "batch.h"
#include "gpu.h"
#include "runner.h"

namespace contract {
namespace {

const char* const kGroups[] = {
    "first_contact", "lookup",  "allocation", "pitch",       "free",        "threads",
    "contexts",      "meminfo", "attributes", "range",       "memset",      "copies",
    "capture",       "async",   "vmm_own",    "managed_own", "host_memory", "errors",
    "exit",          "fork",    "limits",     "ipc",         "peers"};

std::size_t rank(const std::string& group) {
  const auto* found = std::find(std::begin(kGroups), std::end(kGroups), group);
  return static_cast<std::size_t>(found - std::begin(kGroups));
}

bool chosen(const Case& check) {
  const std::string full = std::string(check.group) + " / " + check.name;
  if (!options.group.empty() && options.group != check.group) return false;
  if (!options.run.empty() && options.run != check.name && options.run != full) return false;
  return options.only.empty() || full.find(options.only) != std::string::npos;
}

std::vector<std::size_t> chosen_in_order() {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < all_cases().size(); ++i) {
    if (chosen(all_cases()[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [](std::size_t a, std::size_t b) {
    return rank(all_cases()[a].group) < rank(all_cases()[b].group);
  });
  return order;
}

// ---- the score ----------------------------------------------------------------------------------

// Preloaded, what nobody has measured yet must still be what the bare driver answers.
void compare_with_bare(std::size_t index, Verdict& verdict,
                       std::map<std::size_t, Verdict>& bare_verdicts) {
  const Verdict& bare = bare_verdicts[index];
  if (verdict.kind != Verdict::passed) return;
  if (bare.kind == Verdict::failed) {
    verdict.kind = Verdict::failed;
    verdict.failures.push_back("the bare run of this check fails, so there is nothing to compare");
    return;
  }
  if (bare.observations == verdict.observations || all_cases()[index].traits.differs_because)
    return;
  verdict.kind = Verdict::failed;
  const std::size_t count = std::max(bare.observations.size(), verdict.observations.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string was = i < bare.observations.size() ? bare.observations[i] : "nothing";
    const std::string is = i < verdict.observations.size() ? verdict.observations[i] : "nothing";
    if (was != is) verdict.failures.push_back("bare: " + was + "; preloaded: " + is);
  }
}

struct Score {
  int passed = 0, failed = 0, skipped = 0;
};

void print(const Case& check, Verdict& verdict, Score& score) {
  const std::string full = std::string(check.group) + " / " + check.name;
  if (verdict.kind == Verdict::failed && check.traits.open_because && preloaded()) {
    verdict.kind = Verdict::skipped;
    verdict.reason = std::string("open: ") + check.traits.open_because;
  }
  if (verdict.kind == Verdict::passed) {
    ++score.passed;
    if (options.verbose) std::printf("pass    %s\n", full.c_str());
  } else if (verdict.kind == Verdict::skipped) {
    ++score.skipped;
    std::printf("skip    %s: %s\n", full.c_str(), verdict.reason.c_str());
  } else {
    ++score.failed;
    std::printf("FAIL    %s\n", full.c_str());
  }
  if (verdict.kind != Verdict::passed) {
    for (const std::string& text : verdict.failures) std::printf("          %s\n", text.c_str());
  }
  if (options.observe) {
    for (const std::string& text : verdict.observations) {
      std::printf("observe %s: %s\n", full.c_str(), text.c_str());
    }
  }
  std::fflush(stdout);
}

// The number of devices, or minus the exit code of the probe.
int probe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  const int pid = start_self({"--probe"}, false, {{ends[1], kReportFd}});
  close(ends[1]);
  unsigned char count = 0;
  const bool answered = read(ends[0], &count, 1) == 1;
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && answered) return count;
  return WIFEXITED(status) && WEXITSTATUS(status) == 77 ? -77 : -1;
}

int run_all() {
  const int devices = probe();
  if (devices <= 0) {
    std::printf("%s\n0 passed, %d failed, 0 skipped\n",
                devices == -77 ? "nothing can be checked here" : "the driver cannot be used",
                devices == -77 ? 0 : 1);
    return -devices;
  }
  const std::vector<std::size_t> order = chosen_in_order();
  std::vector<std::vector<std::size_t>> batches;
  Score score;
  for (const std::size_t index : order) {
    const Case& check = all_cases()[index];
    if (has(check.traits, needs2) && devices < 2) {
      Verdict lacking{Verdict::skipped, "needs two GPUs", {}, {}};
      print(check, lacking, score);
      continue;
    }
    const bool alone = has(check.traits, isolated);
    auto joins = [&](const std::vector<std::size_t>& batch) {
      const Case& first = all_cases()[batch.front()];
      return !alone && !has(first.traits, isolated) && std::strcmp(first.group, check.group) == 0;
    };
    auto found = std::find_if(batches.begin(), batches.end(), joins);
    if (found == batches.end()) {
      batches.push_back({index});
    } else {
      found->push_back(index);
    }
  }
  for (const std::vector<std::size_t>& batch : batches) {
    std::map<std::size_t, Verdict> verdicts, bare_verdicts;
    run_batch(batch, false, verdicts);
    if (preloaded()) {
      std::vector<std::size_t> again;
      std::copy_if(batch.begin(), batch.end(), std::back_inserter(again),
                   [](std::size_t i) { return has(all_cases()[i].traits, observes); });
      if (!again.empty()) run_batch(again, true, bare_verdicts);
      for (const std::size_t i : again) compare_with_bare(i, verdicts[i], bare_verdicts);
    }
    for (const std::size_t i : batch) print(all_cases()[i], verdicts[i], score);
  }
  std::printf("%d passed, %d failed, %d skipped\n", score.passed, score.failed, score.skipped);
  return score.failed == 0 ? 0 : 1;
}

void list_checks() {
  for (const std::size_t index : chosen_in_order()) {
    const Case& check = all_cases()[index];
    std::printf("%s\t%s", check.group, check.name.c_str());
    if (check.traits.differs_because) std::printf("\tdiffers: %s", check.traits.differs_because);
    if (check.traits.open_because) std::printf("\topen: %s", check.traits.open_because);
    if (has(check.traits, needs2)) std::printf("\tneeds two GPUs");
    std::printf("\n");
  }
}

const char kHelp[] =
    "contract: what a host program may rely on in the CUDA driver API\n"
    "  --list               group, name, and whether and why it differs when preloaded\n"
    "  --group=NAME         only this group\n"
    "  --only=TEXT          only checks whose \"group / name\" contains TEXT\n"
    "  --run NAME           only the check of this name\n"
    "  --via=getproc|dlsym  how the driver's functions are found (default getproc)\n"
    "  --size-large=BYTES   a size at or over the threshold when preloaded (default 64 MiB)\n"
    "  --observe            print what the checks record\n"
    "  --verbose            print the checks that pass\n";

std::vector<std::size_t> parse_indices(const char* text) {
  std::vector<std::size_t> indices;
  while (*text != '\0') {
    char* end = nullptr;
    indices.push_back(std::strtoul(text, &end, 10));
    text = *end == ',' ? end + 1 : end;
  }
  return indices;
}

int main_of(int argc, char** argv) {
  // Kernels loaded at their first launch could wait for one that waits for the host.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    auto value = [&](const char* prefix, std::string& into) {
      if (!word.starts_with(prefix)) return false;
      into = word.substr(std::strlen(prefix));
      return true;
    };
    std::string large;
    if (word == "--list") {
      options.list = true;
    } else if (word == "--verbose") {
      options.verbose = true;
    } else if (word == "--observe") {
      options.observe = true;
    } else if (word == "--run" && i + 1 < argc) {
      options.run = argv[++i];
    } else if (word == "--probe") {
      return probe_driver(kReportFd);
    } else if (word == "--child" && i + 1 < argc) {
      fcntl(kReportFd, F_SETFD, FD_CLOEXEC);  // scenes must not hold the pipe open
      return run_checks(parse_indices(argv[i + 1]), kReportFd);
    } else if (word == "--scene" && i + 1 < argc) {
      return run_scene_here(argv[i + 1], std::vector<std::string>(argv + i + 2, argv + argc));
    } else if (value("--size-large=", large)) {
      options.large = std::strtoull(large.c_str(), nullptr, 0);
    } else if (!value("--only=", options.only) && !value("--group=", options.group) &&
               !value("--via=", options.via)) {
      std::fputs(kHelp, word == "--help" ? stdout : stderr);
      return word == "--help" ? 0 : 1;
    }
  }
  if (options.large < 8 * kMiB || options.large > 128 * kMiB || options.large % kMiB != 0) {
    std::fputs("--size-large: whole MiB between 8 MiB and 128 MiB, in bytes\n", stderr);
    return 1;
  }
  if (options.via != "getproc" && options.via != "dlsym") {
    std::fputs("--via: getproc or dlsym\n", stderr);
    return 1;
  }
  if (!options.list) return run_all();
  list_checks();
  return 0;
}

}  // namespace
}  // namespace contract

int main(int argc, char** argv) {
  return contract::main_of(argc, argv);
}
