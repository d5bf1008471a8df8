// The few macros of the simulation's own tests: a failed check prints and counts, nothing stops.
#pragma once

#include <cstdio>

inline int g_failed = 0;
inline int g_checked = 0;

#define CHECK(condition)                                                  \
  do {                                                                    \
    ++g_checked;                                                          \
    if (!(condition)) {                                                   \
      ++g_failed;                                                         \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                     \
  } while (0)

// The code of a driver or runtime call.
#define CODE(call, code)                                                                         \
  do {                                                                                           \
    ++g_checked;                                                                                 \
    const int code_ = static_cast<int>(call);                                                    \
    if (code_ != (code)) {                                                                       \
      ++g_failed;                                                                                \
      std::printf("%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, code_, (int)(code)); \
    }                                                                                            \
  } while (0)
#define OK(call) CODE(call, 0)

inline int report(const char* name) {
  std::printf("%s: %d checks, %d failed\n", name, g_checked, g_failed);
  return g_failed == 0 ? 0 : 1;
}
