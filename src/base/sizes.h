// Sizes as people write and read them. One grammar for every size option; docs/options.md states
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvshim {

inline constexpr std::uint64_t kKiB = 1ull << 10;
inline constexpr std::uint64_t kMiB = 1ull << 20;
inline constexpr std::uint64_t kGiB = 1ull << 30;
inline constexpr std::uint64_t kNever = ~0ull;      // a threshold that no size reaches
inline constexpr std::uint64_t kAuto = kNever - 1;  // a size that kvshim chooses

// Rounds up to a multiple of `step` (any positive number). Saturates at the largest multiple.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  const std::uint64_t rest = value % step;
  if (rest == 0) return value;
  const std::uint64_t add = step - rest;
  return value > ~0ull - add ? ~0ull - (~0ull % step) : value + add;
}

// Grammar: [space] digits [ "." digits ] [ unit ] [space], unit one of B K M G T, the last four
// with an optional "i" and/or "B", in either case, always powers of 1024 (GB = GiB = 2^30). Whole
// bytes only; a bare number from 1 to 4095 is refused because it is nearly always a lost unit.
// Returns false and leaves *bytes alone when the text is anything else (sign, hex, exponent, %,
// overflow, empty, space before the unit). No heap, no locale.
bool parse_size(std::string_view text, std::uint64_t* bytes);

// "512 B", "1.5 MiB", "2 GiB": at most two decimals, trailing zeros dropped.
// The text lives in the returned object; no heap.
struct SizeText {
  char text[24];
  const char* c_str() const { return text; }
};
SizeText format_size(std::uint64_t bytes);

}  // namespace kvshim
