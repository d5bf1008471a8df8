// KVSHIM_RULES: an ordered list that says which kind of memory a block becomes, first match wins.
// The grammar, its parser and the matching; docs/rules.md is for readers. What a rule asks for
// (sizes, counts, the library) is handed in: nothing here knows where it comes from. No heap.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kind.h"

namespace kvshim {

// What a condition is about, in the order of kSubjectNames (rules.cpp). `nth` and `after` look at
// the process, their twins at the device; all four count what was allocated before this block, and
// stand last.
enum class Subject : std::uint8_t { size, device, nth, device_nth, after, device_after };
inline constexpr unsigned kSubjectCount = 6;

struct Range {
  std::uint64_t from = 0;
  std::uint64_t to = ~0ull;  // included
  bool holds(std::uint64_t value) const { return value >= from && value <= to; }
};

struct Rule {
  static constexpr unsigned kLibraryMax = 64;  // with its end

  Range ranges[kSubjectCount];
  char library[kLibraryMax]{};  // a pattern for the file name; empty: any
  Kind kind = Kind::native;
};

struct Rules {
  static constexpr unsigned kMax = 32;

  unsigned count = 0;
  bool counting = false;  // some rule depends on what was allocated before
  Rule list[kMax];
};

// A rule without any condition.
bool matches_all(const Rule& rule);

// Why a text was refused: the character (from 1) and what should have stood there.
struct RuleError {
  unsigned at = 0;
  const char* expected = "";
};

// Parses the whole text. False: refused, *into untouched, *error filled. An empty text has no
// rules.
bool parse_rules(std::string_view text, Rules* into, RuleError* error);

// A rule as it was understood, in the grammar itself.
struct RuleText {
  char text[256];
};
RuleText describe(const Rule& rule);

// `name` against a pattern with * (any characters) and ? (one character).
bool matches_pattern(std::string_view name, std::string_view pattern);

// The number, from 1, of the first rule that holds; 0 where none does. `values` are in the order of
// Subject. `library` is called at most once, and only if a rule depends on it: it returns the file
// name of the library that asked, "" where that is not known.
template <typename Library>
unsigned first_match(const Rules& rules, const std::uint64_t (&values)[kSubjectCount],
                     Library library) {
  std::string_view name;
  bool asked = false;
  for (unsigned index = 0; index < rules.count; ++index) {
    const Rule& rule = rules.list[index];
    bool holds = true;
    for (unsigned i = 0; i < kSubjectCount; ++i) holds = holds && rule.ranges[i].holds(values[i]);
    if (holds && rule.library[0] != '\0') {
      if (!asked) name = library();
      asked = true;
      holds = !name.empty() && matches_pattern(name, rule.library);
    }
    if (holds) return index + 1;
  }
  return 0;
}

}  // namespace kvshim
