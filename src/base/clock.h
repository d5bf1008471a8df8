// Microseconds of a clock that only goes forward. For the account of what took how long.
#pragma once

#include <time.h>

#include <cstdint>

namespace kvshim {

inline std::uint64_t clock_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace kvshim
