// The options: each one's default, what it takes and what it refuses; read once, whatever happens.
#include "base/options.h"

#include <pthread.h>

#include <cstring>
#include <set>
#include <string>

#include "base/log.h"
#include "base/sizes.h"
#include "support/catch.h"
#include "support/child.h"
#include "support/malloc_count.h"

namespace kvshim {
namespace {

using test::in_child;

// Parses an environment that holds one variable.
const char* one_name = nullptr;
const char* one_text = nullptr;

struct Parsed {
  Options options{};
  Origin origin = Origin::default_value;
};

Parsed parse_one(const char* name, const char* text) {
  one_name = name;
  one_text = text;
  Parsed parsed;
  Origin origins[64];
  REQUIRE(option_table().count <= 64);
  parse_options([](const char* env) { return strcmp(env, one_name) == 0 ? one_text : nullptr; },
                &parsed.options, origins);
  for (unsigned i = 0; i < option_table().count; ++i)
    if (strcmp(option_table().begin_[i].env, name) == 0) parsed.origin = origins[i];
  return parsed;
}

const Options defaults() {
  return parse_one("KVSHIM_THRESHOLD", nullptr).options;
}

// `text` gives `value`, in any case and with blanks around it.
template <typename T, typename V>
void takes(const char* name, T Options::*field, const char* text, V value) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(toupper(c));
  for (const std::string& written : {std::string(text), upper, " " + std::string(text) + "\n"}) {
    CAPTURE(name, written);
    const Parsed parsed = parse_one(name, written.c_str());
    CHECK(parsed.origin == Origin::environment);
    CHECK(parsed.options.*field == static_cast<T>(value));
  }
}

template <typename T>
void refuses(const char* name, T Options::*field, std::initializer_list<const char*> texts) {
  for (const char* text : texts) {
    CAPTURE(name, text);
    const Parsed parsed = parse_one(name, text);
    CHECK(parsed.origin == Origin::refused);
    CHECK(parsed.options.*field == defaults().*field);
  }
}

}  // namespace

TEST_CASE("an empty environment gives the documented defaults") {
  const Options options = defaults();
  CHECK(options.disable == false);
  CHECK(options.threshold == 2 * kGiB);
  CHECK(options.large == Kind::managed);
  CHECK(options.small == Kind::vmm);
  CHECK(options.async == AsyncPolicy::native);
  CHECK(options.rules.count == 0u);
  CHECK(options.spill == SpillPolicy::threshold);
  CHECK(options.ceiling == kNever);
  CHECK(options.dry_run == false);
  CHECK(options.ipc == IpcPolicy::emulate);
  CHECK(options.handle == HandleChoice::automatic);
  CHECK(options.zero_threads == 0u);
  CHECK(options.memset == MemsetBy::cpu);
  CHECK(options.advice == Advice::automatic);
  CHECK(options.prefetch == 0);
  CHECK(options.log == LogLevel::warn);
  CHECK(std::string(options.log_file).empty());
  CHECK(options.summary == Summary::off);
  CHECK(options.host_limit == kAuto);
  CHECK(options.host_reserve == kAuto);
  CHECK(options.spill_limit == kAuto);
  CHECK(options.meminfo == MemInfo::real);
  CHECK(options.nvml == false);
}

TEST_CASE("every default text of the table is accepted by its own parser") {
  for (const OptionInfo& option : option_table()) {
    CAPTURE(option.env);
    Options options{};
    CHECK(option.parse(option.default_text, &options));
  }
}

TEST_CASE("the table's rows are complete, and no name appears twice") {
  std::set<std::string> names;
  for (const OptionInfo& option : option_table()) {
    CAPTURE(option.env);
    CHECK(std::string(option.env).rfind("KVSHIM_", 0) == 0);
    CHECK(names.insert(option.env).second);
    CHECK(std::set<std::string>{"size", "choice", "bool", "count", "text", "rules"}.count(
              option.type) == 1);
    CHECK(std::string(option.doc).size() > 20);
    CHECK(std::string(option.doc).back() == '.');
    CHECK_FALSE(std::string(option.allowed).empty());
  }
}

TEST_CASE("a refused text leaves the option untouched") {
  for (const OptionInfo& option : option_table()) {
    CAPTURE(option.env);
    if (strcmp(option.type, "text") == 0) continue;
    unsigned char before[sizeof(Options)], after[sizeof(Options)];
    Options options{};
    memset(static_cast<void*>(&options), 0x5a, sizeof(options));
    memcpy(before, &options, sizeof(options));
    CHECK_FALSE(option.parse("no such thing", &options));
    memcpy(after, &options, sizeof(options));
    CHECK(memcmp(before, after, sizeof(before)) == 0);
  }
}

TEST_CASE("KVSHIM_DISABLE and KVSHIM_SUMMARY") {
  takes("KVSHIM_DISABLE", &Options::disable, "0", false);
  takes("KVSHIM_DISABLE", &Options::disable, "1", true);
  refuses("KVSHIM_DISABLE", &Options::disable, {"", "2", "01", "yes", "true", "on", "-1"});
  takes("KVSHIM_SUMMARY", &Options::summary, "1", Summary::on);
  takes("KVSHIM_SUMMARY", &Options::summary, "0", Summary::off);
  takes("KVSHIM_SUMMARY", &Options::summary, "auto", Summary::off);  // with the log's default
  refuses("KVSHIM_SUMMARY", &Options::summary, {"", "y", "10"});
}

TEST_CASE("KVSHIM_THRESHOLD is a size, zero or never") {
  takes("KVSHIM_THRESHOLD", &Options::threshold, "512MiB", 512 * kMiB);
  takes("KVSHIM_THRESHOLD", &Options::threshold, "4g", 4 * kGiB);
  takes("KVSHIM_THRESHOLD", &Options::threshold, "1.5G", 3 * kGiB / 2);
  takes("KVSHIM_THRESHOLD", &Options::threshold, "0", 0);
  takes("KVSHIM_THRESHOLD", &Options::threshold, "never", kNever);
}

TEST_CASE("a threshold that cannot be understood becomes the default, never a tiny one") {
  refuses("KVSHIM_THRESHOLD", &Options::threshold,
          {"", " ", "4", "4X", "-1", "+1", "0x10", "1e9", "99999999999G", "50%", "4 G", "NaN",
           "nevermore", "never 4G", "auto", "inf"});
}

TEST_CASE("KVSHIM_ADVICE and KVSHIM_PREFETCH say where managed pages live") {
  takes("KVSHIM_ADVICE", &Options::advice, "none", Advice::none);
  takes("KVSHIM_ADVICE", &Options::advice, "host", Advice::host);
  takes("KVSHIM_ADVICE", &Options::advice, "Device", Advice::device);
  refuses("KVSHIM_ADVICE", &Options::advice, {"", "gpu", "1"});
  takes("KVSHIM_PREFETCH", &Options::prefetch, "4GiB", 4 * kGiB);
  refuses("KVSHIM_PREFETCH", &Options::prefetch, {"", "never", "all", "-1"});
}

TEST_CASE("KVSHIM_LARGE and KVSHIM_SMALL name a kind of memory") {
  takes("KVSHIM_LARGE", &Options::large, "managed", Kind::managed);
  takes("KVSHIM_LARGE", &Options::large, "vmm", Kind::vmm);
  takes("KVSHIM_LARGE", &Options::large, "native", Kind::native);
  takes("KVSHIM_LARGE", &Options::large, "host", Kind::host);
  takes("KVSHIM_SMALL", &Options::small, "managed", Kind::managed);
  takes("KVSHIM_SMALL", &Options::small, "vmm", Kind::vmm);
  takes("KVSHIM_SMALL", &Options::small, "native", Kind::native);
  refuses("KVSHIM_LARGE", &Options::large, {"", "hosts", "uvm", "manage", "managed,vmm", "0"});
  refuses("KVSHIM_SMALL", &Options::small, {"", "posix", "vm m"});
}

TEST_CASE("KVSHIM_ASYNC, KVSHIM_MEMSET and KVSHIM_HANDLE take their words only") {
  takes("KVSHIM_ASYNC", &Options::async, "native", AsyncPolicy::native);
  takes("KVSHIM_ASYNC", &Options::async, "route", AsyncPolicy::route);
  refuses("KVSHIM_ASYNC", &Options::async, {"", "1", "routed", "managed"});
  takes("KVSHIM_IPC", &Options::ipc, "emulate", IpcPolicy::emulate);
  takes("KVSHIM_IPC", &Options::ipc, "OFF", IpcPolicy::off);
  refuses("KVSHIM_IPC", &Options::ipc, {"", "0", "1", "native"});
  takes("KVSHIM_MEMSET", &Options::memset, "cpu", MemsetBy::cpu);
  takes("KVSHIM_MEMSET", &Options::memset, "device", MemsetBy::device);
  refuses("KVSHIM_MEMSET", &Options::memset, {"", "gpu", "host"});
  takes("KVSHIM_HANDLE", &Options::handle, "auto", HandleChoice::automatic);
  takes("KVSHIM_HANDLE", &Options::handle, "fabric", HandleChoice::fabric);
  takes("KVSHIM_HANDLE", &Options::handle, "posix", HandleChoice::posix);
  takes("KVSHIM_HANDLE", &Options::handle, "none", HandleChoice::none);
  refuses("KVSHIM_HANDLE", &Options::handle, {"", "fd", "automatic"});
}

TEST_CASE("KVSHIM_SPILL, KVSHIM_CEILING and KVSHIM_DRY_RUN") {
  takes("KVSHIM_SPILL", &Options::spill, "threshold", SpillPolicy::threshold);
  takes("KVSHIM_SPILL", &Options::spill, "pressure", SpillPolicy::pressure);
  takes("KVSHIM_SPILL", &Options::spill, "both", SpillPolicy::both);
  refuses("KVSHIM_SPILL", &Options::spill, {"", "1", "none", "never"});
  takes("KVSHIM_CEILING", &Options::ceiling, "64GiB", 64 * kGiB);
  takes("KVSHIM_CEILING", &Options::ceiling, "never", kNever);
  refuses("KVSHIM_CEILING", &Options::ceiling, {"", "64", "80%"});
  takes("KVSHIM_DRY_RUN", &Options::dry_run, "1", true);
  refuses("KVSHIM_DRY_RUN", &Options::dry_run, {"", "yes"});
}

TEST_CASE("a bad rule: none is used, and one line says where and what was expected") {
  const auto child = in_child({{"KVSHIM_RULES", "*:vmm; size=1GiB..8GiX:managed"}}, [] {
    log_options();
    return options().rules.count == 0 && options().threshold == 2 * kGiB ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(child.lines() ==
        "kvshim[pid] error: KVSHIM_RULES is refused as a whole, no rule is used: expected a size "
        "such as 512MiB, or a range such as 1GiB..8GiB at character 19: \"8GiX:managed\"\n");
  const auto at_end = in_child({{"KVSHIM_RULES", "*"}}, [] { log_options(); });
  CHECK(at_end.lines() ==
        "kvshim[pid] error: KVSHIM_RULES is refused as a whole, no rule is used: expected ':' and "
        "a kind of memory at character 2, the end\n");
}

TEST_CASE("rules that are understood are written down at info level, sizes exactly") {
  const auto child = in_child({{"KVSHIM_LOG", "info"}, {"KVSHIM_RULES", "size>1GiB:managed;*:vmm"}},
                              [] { log_options(); });
  CHECK(child.lines().find("info: KVSHIM_RULES = 2 rules, from the environment\n") !=
        std::string::npos);
  CHECK(child.lines().find("info: rule 1: size>1GiB:managed\n") != std::string::npos);
  CHECK(child.lines().find("info: rule 2: *:vmm\n") != std::string::npos);
  CHECK(in_child({{"KVSHIM_RULES", " "}}, [] { log_options(); }).err.empty());
}

TEST_CASE("KVSHIM_ZERO_THREADS is auto or 1 to 64") {
  takes("KVSHIM_ZERO_THREADS", &Options::zero_threads, "auto", 0u);
  takes("KVSHIM_ZERO_THREADS", &Options::zero_threads, "1", 1u);
  takes("KVSHIM_ZERO_THREADS", &Options::zero_threads, "08", 8u);
  takes("KVSHIM_ZERO_THREADS", &Options::zero_threads, "64", 64u);
  refuses("KVSHIM_ZERO_THREADS", &Options::zero_threads,
          {"", "0", "65", "-1", "+4", "4.0", "0x4", "4 4", "99999999999999999999", "all"});
}

TEST_CASE("the limits on host memory are sizes or auto, and only one of them may be never") {
  takes("KVSHIM_HOST_LIMIT", &Options::host_limit, "64GiB", 64 * kGiB);
  takes("KVSHIM_HOST_LIMIT", &Options::host_limit, "0", 0);
  takes("KVSHIM_HOST_LIMIT", &Options::host_limit, "auto", kAuto);
  takes("KVSHIM_HOST_RESERVE", &Options::host_reserve, "512MiB", 512 * kMiB);
  takes("KVSHIM_SPILL_LIMIT", &Options::spill_limit, "never", kNever);
  takes("KVSHIM_SPILL_LIMIT", &Options::spill_limit, "auto", kAuto);
  refuses("KVSHIM_HOST_LIMIT", &Options::host_limit, {"never", "", "64", "-1", "automatic"});
  refuses("KVSHIM_HOST_RESERVE", &Options::host_reserve, {"never", "5%"});
  refuses("KVSHIM_SPILL_LIMIT", &Options::spill_limit, {"none", "12"});
  refuses("KVSHIM_THRESHOLD", &Options::threshold, {"auto"});
}

TEST_CASE("KVSHIM_MEMINFO is real or virtual, KVSHIM_NVML 0 or 1") {
  takes("KVSHIM_MEMINFO", &Options::meminfo, "real", MemInfo::real);
  takes("KVSHIM_MEMINFO", &Options::meminfo, "virtual", MemInfo::with_spill);
  refuses("KVSHIM_MEMINFO", &Options::meminfo, {"", "0", "1", "virtually"});
  takes("KVSHIM_NVML", &Options::nvml, "1", true);
  refuses("KVSHIM_NVML", &Options::nvml, {"yes"});
}

TEST_CASE("KVSHIM_LOG is a level") {
  takes("KVSHIM_LOG", &Options::log, "off", LogLevel::off);
  takes("KVSHIM_LOG", &Options::log, "error", LogLevel::error);
  takes("KVSHIM_LOG", &Options::log, "warn", LogLevel::warn);
  takes("KVSHIM_LOG", &Options::log, "info", LogLevel::info);
  takes("KVSHIM_LOG", &Options::log, "debug", LogLevel::debug);
  refuses("KVSHIM_LOG", &Options::log, {"", "warning", "3", "verbose", "trace"});
}

TEST_CASE("KVSHIM_LOG_FILE is taken as written, and refused when no path can be that long") {
  const Parsed parsed = parse_one("KVSHIM_LOG_FILE", " /tmp/a b.%p ");
  CHECK(parsed.origin == Origin::environment);
  CHECK(std::string(parsed.options.log_file) == " /tmp/a b.%p ");
  const std::string endless(5000, 'x');
  CHECK(parse_one("KVSHIM_LOG_FILE", endless.c_str()).origin == Origin::refused);
}

TEST_CASE("a refused value is reported once, with its name, the value and what is allowed") {
  const auto child = in_child({{"KVSHIM_THRESHOLD", "4X"}}, [] {
    options();
    log_options();
    log::warn("still {}", "here");
    return options().threshold == 2 * kGiB && option_origin(1) == Origin::refused ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(child.lines() ==
        "kvshim[pid] error: KVSHIM_THRESHOLD=\"4X\" is not understood (a size such as 512MiB or "
        "4G, 0 for every block, or never); using the default 2GiB\n"
        "kvshim[pid] warn: still here\n");
}

TEST_CASE("a refused value stays on one line, whatever it holds") {
  const auto child =
      in_child({{"KVSHIM_LARGE", "a\nkvshim[1] error: b\033[2J"}}, [] { log_options(); });
  CHECK(child.lines() ==
        "kvshim[pid] error: KVSHIM_LARGE=\"a?kvshim[1] error: b?[2J\" is not understood (managed, "
        "host, "
        "vmm or native); using the default managed\n");
}

TEST_CASE("KVSHIM_LOG=off also silences refusals, and a refused KVSHIM_LOG does not") {
  CHECK(
      in_child({{"KVSHIM_LOG", "off"}, {"KVSHIM_SMALL", "x"}}, [] { log_options(); }).err.empty());
  const auto child = in_child({{"KVSHIM_LOG", "loud"}}, [] { log_options(); });
  CHECK(child.lines() ==
        "kvshim[pid] error: KVSHIM_LOG=\"loud\" is not understood (off, error, warn, info or "
        "debug); using the default warn\n");
}

TEST_CASE("a misspelled variable is named with the nearest option") {
  const auto child = in_child({{"KVSHIM_TRESHOLD", "4G"},
                               {"KVSHIM_REQUIRE", "1"},
                               {"KVSHIM_LIB", "/x"},
                               {"KVSHIMMER", "1"}},
                              [] { log_options(); });
  CHECK(child.lines() ==
        "kvshim[pid] warn: KVSHIM_TRESHOLD is not an option and has no effect; the nearest one is "
        "KVSHIM_THRESHOLD\n");
}

TEST_CASE("correct options are read without a word") {
  const auto child =
      in_child({{"KVSHIM_THRESHOLD", "4G"}, {"KVSHIM_LARGE", "vmm"}, {"KVSHIM_SUMMARY", "1"}}, [] {
        const Options& now = options();
        return now.threshold == 4 * kGiB && now.large == Kind::vmm && now.summary == Summary::on
                   ? 0
                   : 1;
      });
  CHECK(child.status == 0);
  CHECK(child.err.empty());
}

TEST_CASE("what the host sets before the first call counts, and nothing after it") {
  const auto child = in_child({{"KVSHIM_LOG_FILE", "/tmp/first"}}, [] {
    setenv("KVSHIM_THRESHOLD", "1G", 1);
    const bool before = options().threshold == kGiB;
    setenv("KVSHIM_THRESHOLD", "3G", 1);
    setenv("KVSHIM_LOG_FILE", "/tmp/other", 1);
    const bool after = options().threshold == kGiB;
    unsetenv("KVSHIM_LOG_FILE");
    return before && after && strcmp(options().log_file, "/tmp/first") == 0 ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK(child.err.empty());
}

TEST_CASE("the options are inherited by a forked child") {
  const auto child = in_child({{"KVSHIM_THRESHOLD", "1G"}, {"KVSHIM_TYPO", "1"}}, [] {
    log_options();
    setenv("KVSHIM_THRESHOLD", "3G", 1);
    const pid_t pid = fork();
    if (pid == 0) log_options();
    if (pid == 0) _exit(options().threshold == kGiB ? 0 : 1);
    int status = 0;
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
  });
  CHECK(child.status == 0);
  const std::string said = child.lines();  // the parent's warning, not repeated by the child
  CHECK(said.find("KVSHIM_TYPO") != std::string::npos);
  CHECK(said.find('\n') == said.size() - 1);
}

TEST_CASE("many threads that ask first get the same options and one report") {
  for (int round = 0; round < 20; ++round) {
    const auto child = in_child({{"KVSHIM_THRESHOLD", "3G"}, {"KVSHIM_SMALL", "?"}}, [] {
      static pthread_barrier_t gate;
      pthread_barrier_init(&gate, nullptr, 8);
      pthread_t threads[8];
      for (pthread_t& thread : threads)
        pthread_create(
            &thread, nullptr,
            [](void*) -> void* {
              pthread_barrier_wait(&gate);
              log_options();
              return options().threshold == 3 * kGiB ? nullptr : &gate;
            },
            nullptr);
      int wrong = 0;
      for (pthread_t thread : threads) {
        void* result = nullptr;
        pthread_join(thread, &result);
        wrong += result != nullptr;
      }
      return wrong;
    });
    CHECK(child.status == 0);
    const std::string said = child.lines();
    CHECK(said.find("KVSHIM_SMALL=\"?\"") != std::string::npos);
    CHECK(said.find('\n') == said.size() - 1);
  }
}

TEST_CASE("the parsed threshold is echoed in bytes at info level, everything at debug") {
  const auto info =
      in_child({{"KVSHIM_LOG", "info"}, {"KVSHIM_THRESHOLD", "1.5G"}}, [] { log_options(); });
  CHECK(info.lines() ==
        "kvshim[pid] info: KVSHIM_THRESHOLD = 1610612736 bytes (1.5 GiB), from the environment\n"
        "kvshim[pid] info: KVSHIM_LOG = info, from the environment\n");
  const auto debug =
      in_child({{"KVSHIM_LOG", "debug"}, {"KVSHIM_THRESHOLD", "never"}}, [] { log_options(); });
  const std::string said = debug.lines();
  CHECK(said.find("info: KVSHIM_THRESHOLD = never, from") != std::string::npos);
  CHECK(said.find("debug: KVSHIM_ZERO_THREADS = auto, default\n") != std::string::npos);
  CHECK(said.find("debug: KVSHIM_HANDLE = auto, default\n") != std::string::npos);
  CHECK(said.find("debug: KVSHIM_LOG_FILE = \"\", default\n") != std::string::npos);
  CHECK(in_child({}, [] { log_options(); }).err.empty());
}

TEST_CASE("reading and reporting options takes nothing from the heap and keeps errno") {
  const auto child = in_child({{"KVSHIM_THRESHOLD", "4X"}, {"KVSHIM_TYPO", "1"}}, [] {
    errno = 77;
    const auto calls = test::heap_calls_in([] {
      options();
      log_options();
    });
    return calls == 0 && errno == 77 ? 0 : 1;
  });
  CHECK(child.status == 0);
  CHECK_FALSE(child.err.empty());
}

}  // namespace kvshim
