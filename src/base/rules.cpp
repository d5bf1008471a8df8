// The grammar of KVSHIM_RULES (docs/rules.md) and what its conditions mean; see rules.h.
//
//   rules     = [ rule { ";" rule } [ ";" ] ]
//   rule      = ( "*" | condition { "," condition } ) ":" kind
//   condition = name operator value
#include "base/rules.h"

#include <string.h>

#include "base/ascii.h"
#include "base/format.h"
#include "base/options.h"
#include "base/sizes.h"

namespace kvshim {
namespace {

constexpr std::string_view kSubjectNames[kSubjectCount] = {"size",       "device", "nth",
                                                           "device_nth", "after",  "device_after"};
constexpr std::string_view kLibraryName = "lib";

constexpr const char* kWantCondition =
    "a condition (size, device, lib, nth, device_nth, after or device_after) or *";
constexpr const char* kWantMore = "',' and another condition, or ':' and a kind of memory";
constexpr const char* kWantSize = "a size such as 512MiB, or a range such as 1GiB..8GiB";
constexpr const char* kWantNumber = "a whole number, or a range such as 0..3";

constexpr bool is_size(Subject subject) {
  return subject == Subject::size || subject == Subject::after || subject == Subject::device_after;
}
constexpr bool is_held(Subject subject) {
  return subject == Subject::after || subject == Subject::device_after;
}
// Blocks count from 1; devices and sizes from 0.
constexpr std::uint64_t least(Subject subject) {
  return subject == Subject::nth || subject == Subject::device_nth ? 1 : 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && ascii::is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && ascii::is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool parse_number(std::string_view text, std::uint64_t* number) {
  text = trimmed(text);
  std::uint64_t value = 0;
  for (const char c : text) {
    if (!ascii::is_digit(c) || __builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, static_cast<unsigned>(c - '0'), &value)) {
      return false;
    }
  }
  *number = value;
  return !text.empty();
}

class Parser {
 public:
  Parser(std::string_view text, RuleError* error) : text_(text), error_(error) {}

  bool parse(Rules* rules) {
    skip_blanks();
    while (!at_end()) {
      if (rules->count == Rules::kMax) return refuse(at_, "no more than 32 rules");
      if (!parse_rule(&rules->list[rules->count])) return false;
      ++rules->count;
      if (at_end()) break;
      if (!take(';')) return refuse(at_, "';' and another rule, or the end");
      skip_blanks();
    }
    rules->counting = counting_;
    return true;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }

  bool refuse(std::size_t at, const char* expected) {
    *error_ = {static_cast<unsigned>(at) + 1, expected};
    return false;
  }

  void skip_blanks() {
    while (!at_end() && ascii::is_space(text_[at_])) ++at_;
  }

  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    skip_blanks();
    return true;
  }

  // Letters and underscores: the name of a condition or a kind.
  std::string_view take_word() {
    const std::size_t start = at_;
    while (!at_end() && (text_[at_] == '_' ||
                         (ascii::lower(text_[at_]) >= 'a' && ascii::lower(text_[at_]) <= 'z'))) {
      ++at_;
    }
    const std::string_view word = text_.substr(start, at_ - start);
    skip_blanks();
    return word;
  }

  // Up to the end of the condition, without the blanks around it.
  std::string_view take_value() {
    const std::size_t end = text_.find_first_of(",:;", at_);
    const std::string_view value =
        text_.substr(at_, (end == std::string_view::npos ? text_.size() : end) - at_);
    at_ += value.size();
    return trimmed(value);
  }

  bool parse_rule(Rule* rule) {
    seen_ = 0;
    if (!take('*')) {
      do {
        if (!parse_condition(rule)) return false;
      } while (take(','));
    }
    if (!take(':')) return refuse(at_, seen_ == 0 ? "':' and a kind of memory" : kWantMore);
    const std::size_t start = at_;
    if (!parse_kind(take_word(), &rule->kind)) {
      return refuse(start, "a kind of memory: managed, host, vmm or native");
    }
    return true;
  }

  bool parse_condition(Rule* rule) {
    const std::size_t start = at_;
    const std::string_view word = take_word();
    if (same_word(word, kLibraryName)) return once(kSubjectCount, start) && parse_library(rule);
    for (unsigned i = 0; i < kSubjectCount; ++i) {
      if (!same_word(word, kSubjectNames[i])) continue;
      counting_ = counting_ || static_cast<Subject>(i) >= Subject::nth;
      return once(i, start) && parse_range(static_cast<Subject>(i), &rule->ranges[i]);
    }
    return refuse(start, kWantCondition);
  }

  bool once(unsigned condition, std::size_t start) {
    if ((seen_ >> condition & 1) != 0) return refuse(start, "each condition once in a rule");
    seen_ |= 1u << condition;
    return true;
  }

  bool parse_library(Rule* rule) {
    if (!take('=')) return refuse(at_, "=");
    const std::size_t start = at_;
    const std::string_view value = take_value();
    bool good = !value.empty() && value.size() < Rule::kLibraryMax;
    for (const char c : value) good = good && c != '/' && !ascii::is_space(c);
    if (!good) {
      return refuse(start,
                    "a file name (no path) of at most 63 characters, in which * and ? may stand");
    }
    memcpy(rule->library, value.data(), value.size());
    rule->library[value.size()] = '\0';
    return true;
  }

  bool parse_range(Subject subject, Range* range) {
    const bool less = !is_held(subject) && take('<');
    const bool more = !less && !is_held(subject) && take('>');
    const bool equal = take('=');
    if (!less && !more && !equal) return refuse(at_, is_held(subject) ? "=" : "=, <, <=, > or >=");

    const std::size_t start = at_;
    const std::string_view value = take_value();
    const std::size_t dots = value.find("..");
    const bool is_range = equal && !less && !more && !is_held(subject) && dots != value.npos;
    Range read;
    if (!parse_one(subject, is_range ? value.substr(0, dots) : value, start, &read.from)) {
      return false;
    }
    read.to = read.from;
    if (is_range && !parse_one(subject, value.substr(dots + 2), start + dots + 2, &read.to)) {
      return false;
    }
    if (read.to < read.from) return refuse(start, "a range that does not end before it begins");

    if (less) {
      if (!equal && read.to == least(subject)) return refuse(start, "more: nothing is below that");
      *range = {0, equal ? read.to : read.to - 1};
    } else if (more) {
      if (!equal && read.from == ~0ull) return refuse(start, "less: nothing is above that");
      *range = {equal ? read.from : read.from + 1, ~0ull};
    } else {
      *range = {read.from, is_held(subject) ? ~0ull : read.to};
    }
    return true;
  }

  bool parse_one(Subject subject, std::string_view text, std::size_t start, std::uint64_t* value) {
    if (is_size(subject)) {
      if (parse_size(text, value)) return true;
      return refuse(start, is_held(subject) ? "a size such as 60GiB" : kWantSize);
    }
    if (!parse_number(text, value)) return refuse(start, kWantNumber);
    return *value >= least(subject) || refuse(start, "a number from 1 on");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  unsigned seen_ = 0;  // conditions of this rule, one bit each
  bool counting_ = false;
  RuleError* error_;
};

// A size that can be read back exactly.
struct Exact {
  char text[32];
};
Exact exact(Subject subject, std::uint64_t value) {
  Exact result{};
  if (!is_size(subject)) {
    format_into(result.text, "{}", value);
    return result;
  }
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  unsigned unit = 0;
  while (unit < 4 && value != 0 && value % 1024 == 0) {
    value /= 1024;
    ++unit;
  }
  format_into(result.text, "{}{}", value, units[unit]);
  return result;
}

}  // namespace

bool parse_rules(std::string_view text, Rules* into, RuleError* error) {
  Rules rules;
  if (!Parser(text, error).parse(&rules)) return false;
  *into = rules;
  return true;
}

RuleText describe(const Rule& rule) {
  RuleText result{};
  std::size_t length = 0;
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    const std::size_t room = sizeof(result.text) - 1 - length;
    const auto end =
        fmt::format_to_n(result.text + length, room, format, static_cast<Args&&>(args)...);
    length += end.size < room ? end.size : room;
  };
  const char* comma = "";
  for (unsigned i = 0; i < kSubjectCount; ++i) {
    const auto subject = static_cast<Subject>(i);
    const Range& range = rule.ranges[i];
    if (range.from == 0 && range.to == ~0ull) continue;
    const fmt::string_view name(kSubjectNames[i].data(), kSubjectNames[i].size());
    const Exact from = exact(subject, range.from);
    const Exact to = exact(subject, range.to);
    // "more than 1GiB" is not to read as a number of bytes.
    const bool more = range.from % kKiB == 1 && is_size(subject);
    const bool less = range.to % kKiB == kKiB - 1 && is_size(subject);
    if (range.from == range.to) {
      add("{}{}={}", comma, name, from.text);
    } else if (range.to == ~0ull) {
      add("{}{}{}{}", comma, name,
          is_held(subject) ? "="
          : more           ? ">"
                           : ">=",
          more ? exact(subject, range.from - 1).text : from.text);
    } else if (range.from == 0) {
      add("{}{}{}{}", comma, name,
          less ? "<" : "<=", less ? exact(subject, range.to + 1).text : to.text);
    } else {
      add("{}{}={}..{}", comma, name, from.text, to.text);
    }
    comma = ",";
  }
  if (rule.library[0] != '\0') {
    add("{}lib={}", comma, rule.library);
    comma = ",";
  }
  add("{}:{}", comma[0] == '\0' ? "*" : "", kind_name(rule.kind));
  return result;
}

bool matches_all(const Rule& rule) {
  for (const Range& range : rule.ranges) {
    if (range.from != 0 || range.to != Range{}.to) return false;
  }
  return rule.library[0] == '\0';
}

bool matches_pattern(std::string_view name, std::string_view pattern) {
  std::size_t n = 0;
  std::size_t p = 0;
  std::size_t star = pattern.npos;  // the last * and how much of the name it has swallowed
  std::size_t swallowed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace kvshim
