// The options: the table of options.def made into parsers, one reading of the environment, and the
// lines that say what was refused. Reading must not log (the log asks for the options): values are
// published first and talked about afterwards.
#include "base/options.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "base/ascii.h"
#include "base/log.h"
#include "base/sizes.h"

extern char** environ;

namespace kvshim {
namespace {

constexpr std::size_t kTextMax = 4096;  // PATH_MAX: the longest text option, with its end
constexpr unsigned kThreadsMax = 64;

// ---- words ----

template <typename T>
struct Word {
  const char* text;
  T value;
};

constexpr Word<bool> kBools[] = {{"0", false}, {"1", true}};
constexpr Word<Kind> kKinds[] = {
    {kind_name(Kind::managed), Kind::managed},
    {kind_name(Kind::host), Kind::host},
    {kind_name(Kind::vmm), Kind::vmm},
    {kind_name(Kind::native), Kind::native},
};
constexpr Word<LogLevel> kLevels[] = {
    {"off", LogLevel::off},   {"error", LogLevel::error}, {"warn", LogLevel::warn},
    {"info", LogLevel::info}, {"debug", LogLevel::debug},
};
constexpr Word<MemsetBy> kMemsets[] = {{"cpu", MemsetBy::cpu}, {"device", MemsetBy::device}};
constexpr Word<Advice> kAdvices[] = {
    {"auto", Advice::automatic},
    {"none", Advice::none},
    {"host", Advice::host},
    {"device", Advice::device},
};
constexpr Word<AsyncPolicy> kAsyncs[] = {
    {"native", AsyncPolicy::native},
    {"route", AsyncPolicy::route},
};
constexpr Word<IpcPolicy> kIpcs[] = {{"emulate", IpcPolicy::emulate}, {"off", IpcPolicy::off}};
constexpr Word<PeerPolicy> kPeers[] = {
    {"auto", PeerPolicy::automatic},
    {"enabled", PeerPolicy::enabled},
    {"off", PeerPolicy::off},
};
constexpr Word<MemInfo> kMemInfos[] = {{"real", MemInfo::real}, {"virtual", MemInfo::with_spill}};
constexpr Word<SpillPolicy> kSpills[] = {
    {"threshold", SpillPolicy::threshold},
    {"pressure", SpillPolicy::pressure},
    {"both", SpillPolicy::both},
};
constexpr Word<HandleChoice> kHandles[] = {
    {"auto", HandleChoice::automatic},
    {"fabric", HandleChoice::fabric},
    {"posix", HandleChoice::posix},
    {"none", HandleChoice::none},
};

constexpr const auto& words_of(const bool*) {
  return kBools;
}
constexpr const auto& words_of(const Kind*) {
  return kKinds;
}
constexpr const auto& words_of(const LogLevel*) {
  return kLevels;
}
constexpr const auto& words_of(const MemsetBy*) {
  return kMemsets;
}
constexpr const auto& words_of(const Advice*) {
  return kAdvices;
}
constexpr const auto& words_of(const AsyncPolicy*) {
  return kAsyncs;
}
constexpr const auto& words_of(const IpcPolicy*) {
  return kIpcs;
}
constexpr const auto& words_of(const PeerPolicy*) {
  return kPeers;
}
constexpr const auto& words_of(const MemInfo*) {
  return kMemInfos;
}
constexpr const auto& words_of(const SpillPolicy*) {
  return kSpills;
}
constexpr const auto& words_of(const HandleChoice*) {
  return kHandles;
}

std::string_view trimmed(std::string_view view) {
  while (!view.empty() && ascii::is_space(view.front())) view.remove_prefix(1);
  while (!view.empty() && ascii::is_space(view.back())) view.remove_suffix(1);
  return view;
}

// ---- one parser and one printer for each type of option ----

template <typename T>
bool parse_word(std::string_view text, T* value) {
  for (const auto& word : words_of(value)) {
    if (!same_word(trimmed(text), word.text)) continue;
    *value = word.value;
    return true;
  }
  return false;
}

template <typename T>
bool parse_value(const char* text, std::string_view, T* value) {
  return parse_word(text, value);
}

// A size. "never" and "auto" are sizes only where the option's allowed values say so.
bool parse_value(const char* text, std::string_view allowed, std::uint64_t* value) {
  constexpr Word<std::uint64_t> words[] = {{"never", kNever}, {"auto", kAuto}};
  for (const auto& word : words) {
    if (allowed.find(word.text) == std::string_view::npos) continue;
    if (!same_word(trimmed(text), word.text)) continue;
    *value = word.value;
    return true;
  }
  return parse_size(text, value);
}

// A count of threads: 0 stands for auto.
bool parse_value(const char* text, std::string_view, unsigned* value) {
  const std::string_view digits = trimmed(text);
  if (same_word(digits, "auto")) {
    *value = 0;
    return true;
  }
  unsigned count = 0;
  for (const char c : digits) {
    if (!ascii::is_digit(c)) return false;
    count = count * 10 + static_cast<unsigned>(c - '0');
    if (count > kThreadsMax) return false;
  }
  if (count == 0) return false;
  *value = count;
  return true;
}

bool parse_value(const char* text, std::string_view, const char** value) {
  if (strlen(text) >= kTextMax) return false;
  *value = text;
  return true;
}

bool parse_value(const char* text, std::string_view, Rules* value) {
  RuleError error;
  return parse_rules(text, value, &error);
}

struct ValueText {
  char text[96];
};

template <typename... Args>
ValueText value_text(fmt::format_string<Args...> format, Args&&... args) {
  ValueText result{};
  fmt::format_to_n(result.text, sizeof(result.text) - 1, format, static_cast<Args&&>(args)...);
  return result;
}

template <typename T>
ValueText show(T value) {
  for (const auto& word : words_of(&value))
    if (word.value == value) return value_text("{}", word.text);
  return {};
}
ValueText show(std::uint64_t value) {
  if (value == kNever) return value_text("never");
  if (value == kAuto) return value_text("auto");
  return value_text("{} bytes ({})", value, format_size(value).c_str());
}
ValueText show(unsigned value) {
  return value == 0 ? value_text("auto") : value_text("{}", value);
}
ValueText show(const Rules& value) {
  return value_text("{} rules", value.count);
}
ValueText show(const char* value) {
  return value_text("\"{}\"", value);
}

constexpr const char* type_name(const bool*) {
  return "bool";
}
constexpr const char* type_name(const std::uint64_t*) {
  return "size";
}
constexpr const char* type_name(const unsigned*) {
  return "count";
}
constexpr const char* type_name(const char* const*) {
  return "text";
}
constexpr const char* type_name(const Rules*) {
  return "rules";
}
template <typename Enum>
constexpr const char* type_name(const Enum*) {
  return "choice";
}

// ---- the table ----

constexpr OptionInfo kTable[] = {
#define KVSHIM_OPTION(field, type, env, default_text, allowed, doc) \
  {env,                                                             \
   type_name(static_cast<type*>(nullptr)),                          \
   default_text,                                                    \
   allowed,                                                         \
   doc,                                                             \
   [](const char* text, Options* into) { return parse_value(text, allowed, &into->field); }},
#include "base/options.def"
#undef KVSHIM_OPTION
};
constexpr unsigned kCount = sizeof(kTable) / sizeof(kTable[0]);

// ---- the process's options ----

// Read by whoever comes first; 0: not yet, -1: ready, else the process that is publishing. A child
// forked in that instant finds its parent's id there and publishes for itself.
constinit std::atomic<std::int64_t> state{0};
constexpr std::int64_t kReady = -1;
constinit Options current{};
constinit Origin origins[kCount]{};
constinit char log_file_text[kTextMax]{};

// NULL for everything in a privileged program (set-user-ID, file capabilities): whoever starts such
// a program must not choose where it writes.
const char* from_environment(const char* env) {
  return secure_getenv(env);
}

// The host may change its environment later, so text is copied.
void publish(const Options& parsed, const Origin* from) {
  current = parsed;
  memcpy(log_file_text, parsed.log_file, strlen(parsed.log_file) + 1);
  current.log_file = log_file_text;
  memcpy(origins, from, sizeof(origins));
}

// ---- what was refused ----

// Rules are long: the place in them, and what is there.
void report_refused_rules(const OptionInfo& option, std::string_view text) {
  Rules rules;
  RuleError error;
  if (parse_rules(text, &rules, &error)) return;  // the program has changed it since
  const std::string_view rest = text.substr(error.at - 1).substr(0, 40);
  log::error("{} is refused as a whole, no rule is used: expected {} at character {}{}{}{}",
             option.env, error.expected, error.at, rest.empty() ? ", the end" : ": \"",
             fmt::string_view(rest.data(), rest.size()), rest.empty() ? "" : "\"");
}

void report_refused() {
  for (unsigned i = 0; i < kCount; ++i) {
    if (origins[i] != Origin::refused) continue;
    const OptionInfo& option = kTable[i];
    const char* value = from_environment(option.env);
    if (value != nullptr && std::string_view(option.type) == "rules") {
      report_refused_rules(option, value);
      continue;
    }
    const std::string_view shown = std::string_view(value != nullptr ? value : "").substr(0, 128);
    log::error("{}=\"{}\" is not understood ({}); using the default {}", option.env,
               fmt::string_view(shown.data(), shown.size()), option.allowed,
               option.default_text[0] != '\0' ? option.default_text : "\"\"");
  }
}

// Edits (insert, delete, replace) that turn one name into the other.
unsigned distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kLongest = 64;
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  unsigned row[kLongest + 1];
  for (unsigned j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    unsigned diagonal = row[0];
    row[0] = static_cast<unsigned>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const unsigned replace = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      const unsigned shift = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
      diagonal = row[j];
      row[j] = replace < shift ? replace : shift;
    }
  }
  return row[b.size()];
}

// A misspelled variable would otherwise be a silent default.
void report_unknown() {
  constexpr std::string_view prefix = "KVSHIM_";
  // Read by scripts/kvshim-entrypoint.sh, not by the library.
  constexpr std::string_view elsewhere[] = {"KVSHIM_LIB", "KVSHIM_REQUIRE"};
  if (environ == nullptr) return;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view name(*entry);
    name = name.substr(0, name.find('='));
    if (name.substr(0, prefix.size()) != prefix) continue;
    bool known = false;
    for (const std::string_view other : elsewhere) known = known || name == other;
    const char* nearest = "";
    unsigned least = ~0u;
    for (const OptionInfo& option : kTable) {
      const unsigned edits = distance(name, option.env);
      known = known || name == option.env;
      if (edits >= least) continue;
      least = edits;
      nearest = option.env;
    }
    if (known) continue;
    name = name.substr(0, 128);
    const fmt::string_view shown(name.data(), name.size());
    // A third of what stands after the prefix: a slip of the pen, not another word.
    if (least * 3 <= name.size() - prefix.size()) {
      log::warn("{} is not an option and has no effect; the nearest one is {}", shown, nearest);
    } else {
      log::warn("{} is not an option and has no effect (docs/options.md lists them)", shown);
    }
  }
}

[[gnu::noinline, gnu::cold]] void read_environment() {
  const int saved_errno = errno;
  Options parsed{};
  Origin from[kCount];
  parse_options(from_environment, &parsed, from);

  const std::int64_t self = getpid();
  std::int64_t seen = state.load(std::memory_order_acquire);
  while (seen != kReady) {
    if (seen == self) {  // another thread is copying a few bytes
      sched_yield();
      seen = state.load(std::memory_order_acquire);
    } else if (state.compare_exchange_strong(seen, self, std::memory_order_acq_rel)) {
      publish(parsed, from);
      state.store(kReady, std::memory_order_release);
      break;
    }
  }
  errno = saved_errno;
}

// As they were understood: sizes in bytes never hide a lost unit.
void report_rules(const Rules& rules) {
  for (unsigned index = 0; index < rules.count; ++index) {
    log::info("rule {}: {}", index + 1, describe(rules.list[index]).text);
  }
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (ascii::lower(a[i]) != ascii::lower(b[i])) return false;
  return true;
}

bool parse_kind(std::string_view text, Kind* kind) {
  return parse_word(text, kind);
}

OptionTable option_table() {
  return {kTable, kCount};
}

void parse_options(const char* (*lookup)(const char* env), Options* into, Origin* from) {
  for (unsigned i = 0; i < kCount; ++i) {
    const OptionInfo& option = kTable[i];
    option.parse(option.default_text, into);
    const char* text = lookup(option.env);
    from[i] = text == nullptr            ? Origin::default_value
              : option.parse(text, into) ? Origin::environment
                                         : Origin::refused;
  }
}

const Options& options() {
  if (state.load(std::memory_order_acquire) != kReady) [[unlikely]]
    read_environment();
  return current;
}

Origin option_origin(unsigned index) {
  options();
  return index < kCount ? origins[index] : Origin::default_value;
}

void log_options() {
  static constinit log::Once said;
  if (!said.first()) return;
  options();
  report_refused();
  report_unknown();
  constexpr const char* origin_texts[] = {"default", "from the environment",
                                          "default, the environment's value was refused"};
  const Options& now = options();
  if (!log::enabled(LogLevel::info)) return;
  unsigned index = 0;
  const auto say = [&](std::string_view env, const ValueText& value) {
    const Origin origin = origins[index++];
    const bool worth_it = origin != Origin::default_value || env == "KVSHIM_THRESHOLD";
    const LogLevel level = worth_it ? LogLevel::info : LogLevel::debug;
    log::print(level, "{} = {}, {}", fmt::string_view(env.data(), env.size()), value.text,
               origin_texts[static_cast<unsigned>(origin)]);
  };
#define KVSHIM_OPTION(field, type, env, default_text, allowed, doc) say(env, show(now.field));
#include "base/options.def"
#undef KVSHIM_OPTION
  report_rules(now.rules);
}

}  // namespace kvshim
