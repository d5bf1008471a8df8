// The kinds of memory a block can become. Names are what options, logs and the summary print.
#pragma once

#include <cstdint>

namespace kvshim {

enum class Kind : std::uint8_t {
  native,   // the driver's own cuMemAlloc
  vmm,      // cuMemCreate + cuMemMap: physical pages that never move and can be exported
  managed,  // cuMemAllocManaged, placed and zeroed by the CPU
};
inline constexpr unsigned kKindCount = 3;

constexpr const char* kind_name(Kind kind) {
  constexpr const char* names[kKindCount] = {"native", "vmm", "managed"};
  return names[static_cast<unsigned>(kind)];
}

}  // namespace kvshim
