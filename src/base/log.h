// The one way this library says something. Lines go to standard error (or KVSHIM_LOG_FILE) with a
// single write(2), prefixed "kvshim[pid] level: ". No heap, no lock, no stdio; works before the
// driver is initialised and inside any thread; errno comes back as it was.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>

#include "base/format.h"
#include "base/options.h"

namespace kvshim::log {

inline constexpr std::size_t kLineMax = 1024;  // longer lines are cut and end in "..."

// True when a line of this level would be written. Check it before doing work for a message.
bool enabled(LogLevel level);

// Writes one line: prefix, text, newline. `level` off is not a level.
void write(LogLevel level, const char* text, std::size_t length);
// Writes text as it is (the summary's table): no prefix, one write, ignores the level.
void write_raw(const char* text, std::size_t length);

// Not inlined: its line buffer must not become part of the stack frame of callers that say nothing.
template <typename... Args>
[[gnu::noinline, gnu::cold]] void print(LogLevel level, fmt::format_string<Args...> format,
                                        Args&&... args) {
  static_assert(!(std::is_floating_point_v<std::remove_cvref_t<Args>> || ...),
                "no floating point in a message (format.h): print whole units or format_size()");
  if (!enabled(level)) return;
  char line[kLineMax];
  const auto end = fmt::format_to_n(line, sizeof(line), format, static_cast<Args&&>(args)...);
  write(level, line, end.size < sizeof(line) ? end.size : sizeof(line));
}
#define KVSHIM_LOG_LEVEL(name)                                                                \
  template <typename... Args>                                                                 \
  void name(fmt::format_string<Args...> format, Args&&... args) {                             \
    if (enabled(LogLevel::name)) print(LogLevel::name, format, static_cast<Args&&>(args)...); \
  }
KVSHIM_LOG_LEVEL(error)
KVSHIM_LOG_LEVEL(warn)
KVSHIM_LOG_LEVEL(info)
KVSHIM_LOG_LEVEL(debug)
#undef KVSHIM_LOG_LEVEL

// A message worth saying once (or a few times) per process: `if (seen.first()) log::warn(...)`.
class Once {
 public:
  bool first() {
    return !said_.load(std::memory_order_relaxed) &&
           !said_.exchange(true, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> said_{false};
};

}  // namespace kvshim::log
