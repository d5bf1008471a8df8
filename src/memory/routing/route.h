// The policy: which kind of memory an allocation becomes, and why.
#pragma once

#include <cstdint>

#include "base/options.h"
#include "base/sizes.h"
#include "base/why.h"

namespace kvshim {

struct Route {
  Kind kind = Kind::native;
  Why why = Why::threshold;
  std::uint8_t rule = 0;  // its number, from 1, if a rule decided
};

// For a log line: "rule 2", "threshold".
struct WhyText {
  char text[24];
};
WhyText why_text(const Route& route) noexcept;

// Kinds whose pages may lie in host memory.
constexpr bool uses_host(Kind kind) noexcept {
  return kind != Kind::native && kind != Kind::vmm;
}

// At and over the threshold (0: every size, kNever: none; none too with KVSHIM_SPILL=pressure).
inline bool over_threshold(std::uint64_t bytes, const Options& options) noexcept {
  return options.threshold != kNever && bytes >= options.threshold &&
         options.spill != SpillPolicy::pressure;
}

// What blocks become that device memory cannot take.
inline Kind spill_kind(const Options& options) noexcept {
  return uses_host(options.large) ? options.large : Kind::managed;
}
inline bool may_spill(std::uint64_t bytes, const Options& options) noexcept {
  return options.spill != SpillPolicy::threshold && bytes < options.ceiling;
}

// May a block become this kind by a rule, the options or KVSHIM_SPILL? Not asked: whether a device
// has it.
bool reachable(Kind kind, const Options& options) noexcept;

// The rule that would decide for a block on this device now (from 1), 0 where none does. May walk
// the stack for the library that asked.
unsigned matching_rule(std::uint64_t bytes, int device, const Options& options) noexcept;

// Rules, then the threshold; over both the ceiling. Takes the block's place among those that rules
// count: tally::cancel gives it back where no block is made.
Route route(std::uint64_t bytes, int device, const Options& options) noexcept;

}  // namespace kvshim
