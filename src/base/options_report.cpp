// What is said about the options: values that were refused, names that nobody knows, what was set.
#include <stdlib.h>
#include <unistd.h>

#include <string_view>

#include "base/log.h"
#include "base/options.h"

extern char** environ;

namespace kvshim {
namespace {

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
  const OptionTable table = option_table();
  for (unsigned i = 0; i < table.count; ++i) {
    if (option_origin(i) != Origin::refused) continue;
    const OptionInfo& option = table.begin_[i];
    const char* value = secure_getenv(option.env);
    if (value != nullptr && std::string_view(option.type) == "rules") {
      report_refused_rules(option, value);
      continue;
    }
    const std::string_view shown = std::string_view(value != nullptr ? value : "").substr(0, 128);
    const bool bare = std::string_view(option.type) == "size" && !shown.empty() &&
                      shown.find_first_not_of("0123456789") == shown.npos;
    log::error("{}=\"{}\" is not understood ({}{}); using the default {}", option.env,
               fmt::string_view(shown.data(), shown.size()), option.allowed,
               bare ? "; a size has a unit: 512M" : "",
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
    for (const OptionInfo& option : option_table()) {
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

// What was set and cannot do anything.
void report_idle(const Options& now) {
  for (unsigned index = 0; index + 1 < now.rules.count; ++index) {
    if (!matches_all(now.rules.list[index])) continue;
    log::warn("KVSHIM_RULES: rule {} takes every block: what stands behind it is never asked",
              index + 1);
    break;
  }
  if (now.nvml && now.meminfo == MemInfo::real) {
    log::warn("KVSHIM_NVML=1 has no effect without KVSHIM_MEMINFO=virtual");
  }
  if (now.dry_run && now.meminfo == MemInfo::with_spill) {
    log::warn("KVSHIM_MEMINFO=virtual adds nothing in a dry run (KVSHIM_DRY_RUN)");
  }
}

// As they were understood: sizes in bytes never hide a lost unit.
void report_rules(const Rules& rules) {
  for (unsigned index = 0; index < rules.count; ++index) {
    log::info("rule {}: {}", index + 1, describe(rules.list[index]).text);
  }
}

}  // namespace

void log_mistakes() {
  static constinit log::Once said;
  if (!said.first()) return;
  const Options& now = options();
  report_refused();
  report_unknown();
  report_idle(now);
}

void log_options() {
  static constinit log::Once said;
  if (!said.first()) return;
  const Options& now = options();
  log_mistakes();
  if (!log::enabled(LogLevel::info)) return;
  constexpr const char* origin_texts[] = {"default", "from the environment",
                                          "default, the environment's value was refused"};
  unsigned index = 0;
  for (const OptionInfo& option : option_table()) {
    const Origin origin = option_origin(index++);
    const bool worth_it =
        origin != Origin::default_value || std::string_view(option.env) == "KVSHIM_THRESHOLD";
    log::print(worth_it ? LogLevel::info : LogLevel::debug, "{} = {}, {}", option.env,
               option.show(now).text, origin_texts[static_cast<unsigned>(origin)]);
  }
  report_rules(now.rules);
}

}  // namespace kvshim
