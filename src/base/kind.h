// The kinds of memory a block can become. Names are what options, logs and the summary print.
#pragma once

#include <cstdint>

namespace kvshim {

enum class Kind : std::uint8_t {
  native,   // the driver's own cuMemAlloc
  vmm,      // cuMemCreate + cuMemMap: physical pages that never move and can be exported
  managed,  // cuMemAllocManaged, placed and zeroed by the CPU
  host,  // VMM memory of the host's NUMA node nearest the device: it never moves, the GPU reads it
         // there
};
inline constexpr unsigned kKindCount = 4;

constexpr const char* kind_name(Kind kind) {
  constexpr const char* names[kKindCount] = {"native", "vmm", "managed", "host"};
  return names[static_cast<unsigned>(kind)];
}

// Kinds made of VMM mappings. The driver knows neither their end nor their owner, and does not wait
// before it unmaps them: for all that the registry stands in.
constexpr bool is_mapping(Kind kind) {
  return kind == Kind::vmm || kind == Kind::host;
}

}  // namespace kvshim
