// The options: the table of options.def made into parsers and printers, and one reading of the
// environment. Reading must not log (the log asks for the options): values are published first and
// talked about afterwards, in options_report.cpp.
#include "base/options.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "base/ascii.h"
#include "base/format.h"
#include "base/sizes.h"

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
    {"auto", SpillPolicy::automatic},
    {"threshold", SpillPolicy::threshold},
    {"pressure", SpillPolicy::pressure},
    {"both", SpillPolicy::both},
};
constexpr Word<Summary> kSummaries[] = {
    {"auto", Summary::automatic},
    {"0", Summary::off},
    {"1", Summary::on},
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
constexpr const auto& words_of(const Summary*) {
  return kSummaries;
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

template <typename... Args>
OptionText value_text(fmt::format_string<Args...> format, Args&&... args) {
  OptionText result{};
  fmt::format_to_n(result.text, sizeof(result.text) - 1, format, static_cast<Args&&>(args)...);
  return result;
}

template <typename T>
OptionText show(T value) {
  for (const auto& word : words_of(&value))
    if (word.value == value) return value_text("{}", word.text);
  return {};
}
OptionText show(std::uint64_t value) {
  if (value == kNever) return value_text("never");
  if (value == kAuto) return value_text("auto");
  return value_text("{} bytes ({})", value, format_size(value).c_str());
}
OptionText show(unsigned value) {
  return value == 0 ? value_text("auto") : value_text("{}", value);
}
OptionText show(const Rules& value) {
  return value_text("{} rules", value.count);
}
OptionText show(const char* value) {
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
#define KVSHIM_OPTION(field, type, env, default_text, allowed, doc)                          \
  {env,                                                                                      \
   type_name(static_cast<type*>(nullptr)),                                                   \
   default_text,                                                                             \
   allowed,                                                                                  \
   doc,                                                                                      \
   [](const char* text, Options* into) { return parse_value(text, allowed, &into->field); }, \
   [](const Options& from) { return show(from.field); }},
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
  if (into->spill == SpillPolicy::automatic) {
    into->spill = into->meminfo == MemInfo::with_spill ? SpillPolicy::both : SpillPolicy::threshold;
  }
  if (into->summary == Summary::automatic) {
    const bool on = into->log >= LogLevel::info || into->dry_run;
    into->summary = on ? Summary::on : Summary::off;
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

}  // namespace kvshim
