// A line now and then while a large block is placed: hundreds of gigabytes take minutes, and
// whoever waits for a server to start should see why.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/log.h"
#include "base/sizes.h"

namespace kvshim {

class Progress {
 public:
  // `doing`: "placing a managed block".
  Progress(const char* doing, std::uint64_t bytes) noexcept
      : doing_(doing), bytes_(bytes), begun_(clock_us()), said_(begun_) {}

  void at(std::uint64_t done) noexcept {
    const std::uint64_t now = clock_us();
    if (done >= bytes_ || now - said_ < every_us) return;
    said_ = now;
    log::info("{}: {} of {} after {} s", doing_, format_size(done).c_str(),
              format_size(bytes_).c_str(), (now - begun_) / 1'000'000);
  }
  std::uint64_t spent_us() const noexcept { return clock_us() - begun_; }

  static inline constinit std::uint64_t every_us = 5'000'000;  // tests have less patience

 private:
  const char* doing_;
  std::uint64_t bytes_;
  std::uint64_t begun_;
  std::uint64_t said_;
};

}  // namespace kvshim
