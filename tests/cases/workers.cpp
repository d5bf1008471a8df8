// Settings and worker processes. KVSHIM_* count when they are set before the first CUDA call, by
// the program itself too; later they do not. A forked worker keeps what its parent had read, one
// that is started anew reads for itself, and every account carries its process's number.
#include <spawn.h>
#include <sys/wait.h>

#include "host.h"

using namespace cases;

extern char** environ;

namespace {

int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

CASE("settings made by the program before its first CUDA call work") {
  const Result result = run(kPreloaded, "set_before");
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.count("cuMemAllocManaged bytes=67108864") == 1, result.show());
  EXPECT_IN(summary_of(result.err).pid == result.pid, result.err);
}
SCENE(set_before) {
  setenv("KVSHIM_THRESHOLD", "64MiB", 1);
  setenv("KVSHIM_SUMMARY", "1", 1);
  use_device();
  EXPECT(managed(allocate(64 * kMiB)));
  return 0;
}

CASE("settings changed after the first hooked call have no effect, removed ones neither") {
  const Result result = run(kPreloaded, "set_after", {{"KVSHIM_THRESHOLD", "64MiB"}});
  EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
  EXPECT_IN(result.count("cuMemAllocManaged bytes=67108864") == 2, result.show());
}
SCENE(set_after) {
  use_device();
  EXPECT(managed(allocate(64 * kMiB)));
  setenv("KVSHIM_THRESHOLD", "never", 1);
  setenv("KVSHIM_DISABLE", "1", 1);
  setenv("KVSHIM_SUMMARY", "1", 1);
  EXPECT(managed(allocate(64 * kMiB)));
  unsetenv("KVSHIM_THRESHOLD");
  EXPECT(!managed(allocate(63 * kMiB)));
  return 0;
}

CASE("a forked worker keeps the parent's settings and writes an account of its own") {
  const Result result = run(kPreloaded, "forks", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  const auto accounts = result.lines("] summary");
  const std::string child = result.out.substr(0, result.out.find('\n'));
  EXPECT_IN(accounts.size() == 1 && accounts[0] == "kvshim[" + child + "] summary", result.show());
}
SCENE(forks) {
  const pid_t child =
      fork();  // before any CUDA call, as launchers do; the parent allocates nothing
  if (child == 0) {
    use_device();
    EXPECT(managed(allocate(64 * kMiB)));
    std::exit(0);
  }
  std::printf("%d\n", static_cast<int>(child));
  OK(wait_for(child));
  return 0;
}

CASE("a worker forked from a process that had read its settings keeps them") {
  const Result result = run(kPreloaded, "forks_late", small_threshold({{"KVSIM_FORK_OK", "1"}}));
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("] summary").size() == 2, result.err);
  const Summary last = summary_of(result.err);  // the parent's: one block, not the child's too
  EXPECT_IN(last.pid == result.pid && last.text.find("64 MiB") != std::string::npos, result.err);
  EXPECT_IN(!last.says("128 MiB"), result.err);
}
SCENE(forks_late) {
  use_device();
  allocate(64 * kMiB);
  setenv("KVSHIM_THRESHOLD", "never", 1);
  const pid_t child = fork();
  if (child == 0) {
    use_device();
    EXPECT(managed(allocate(64 * kMiB)));
    std::exit(0);
  }
  OK(wait_for(child));
  return 0;
}

CASE("a spawned worker inherits the preload and reads its settings for itself") {
  const Result result = run(kPreloaded, "spawns", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  const auto accounts = result.lines("] summary");
  EXPECT_IN(accounts.size() == 2, result.err);
  const std::string child = "kvshim[" + result.out.substr(0, result.out.find('\n')) + "] summary";
  EXPECT_IN(!accounts.empty() && accounts[0] == child, result.show());
  EXPECT_IN(summary_of(result.err).pid == result.pid, result.show());
}
SCENE(spawns) {
  use_device();
  EXPECT(managed(allocate(64 * kMiB)));
  setenv("KVSHIM_THRESHOLD", "32MiB", 1);
  char program[] = "/proc/self/exe";
  char scene[] = "worker";
  char flag[] = "--scene";
  char* arguments[] = {program, flag, scene, nullptr};
  pid_t child = 0;
  OK(posix_spawn(&child, program, nullptr, nullptr, arguments, environ));
  std::printf("%d\n", static_cast<int>(child));
  OK(wait_for(child));
  return 0;
}
SCENE(worker) {
  use_device();
  EXPECT(managed(allocate(32 * kMiB)));
  return 0;
}

CASE("with %p every process of a family has a log file of its own") {
  const std::string pattern = work_folder() + "/family.%p.log";
  const Result result = run(kPreloaded, "spawns", small_threshold({{"KVSHIM_LOG_FILE", pattern}}));
  EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
  const std::string child = result.out.substr(0, result.out.find('\n'));
  for (const std::string& pid : {std::to_string(result.pid), child}) {
    const std::string text = read_file(work_folder() + "/family." + pid + ".log");
    const Summary summary = summary_of(text);
    EXPECT_IN(summary.tables == 1 && std::to_string(summary.pid) == pid, pid + "\n" + text);
  }
}

CASE("a disabled process writes no account, whatever else is set") {
  const Result result =
      run(kPreloaded, "plain", small_threshold({{"KVSHIM_DISABLE", "1"}, {"KVSHIM_LOG", "debug"}}));
  EXPECT_IN(result.ended(0) && result.err.empty(), result.show());
  EXPECT_IN(result.count("cuMemAlloc_v2 bytes=67108864") == 1, result.show());
}
SCENE(plain) {
  use_device();
  EXPECT(!managed(allocate(64 * kMiB)));
  return 0;
}
