// Why a block became the kind that it is. Names are what logs and the summary print.
#pragma once

#include <cstdint>

namespace kvshim {

enum class Why : std::uint8_t {
  threshold,  // KVSHIM_THRESHOLD, over or under it
  rule,       // KVSHIM_RULES
  ceiling,    // KVSHIM_CEILING kept it out of host memory
  pressure,   // KVSHIM_SPILL: device memory could not take it
  fallback,   // the device lacks the kind, or was short of memory for it
};
inline constexpr unsigned kWhyCount = 5;

constexpr const char* why_name(Why why) {
  constexpr const char* names[kWhyCount] = {"threshold", "rule", "ceiling", "pressure", "fallback"};
  return names[static_cast<unsigned>(why)];
}

}  // namespace kvshim
