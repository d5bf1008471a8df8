// The policy: which kind of memory an allocation becomes.
#pragma once

#include <cstdint>

#include "base/options.h"
#include "base/sizes.h"

namespace kvshim {

// At and over the threshold the large kind, below it the small one. A threshold of 0 makes every
// block large; kNever makes none.
inline Kind route(std::uint64_t bytes, const Options& options) noexcept {
  const bool large = options.threshold != kNever && bytes >= options.threshold;
  return large ? options.large : options.small;
}

}  // namespace kvshim
