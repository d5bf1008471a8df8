// fmt, header-only, without exceptions, locale or anything else that needs the C++ runtime: the
// preloaded library may depend on libc only (freestanding.cpp has the rest of that story). Include
// this instead of <fmt/...>. No floating point: it would bring libm, snprintf and 30 KB of tables.
// Print whole units (milliseconds, bytes) or format_size().
#pragma once

#define FMT_HEADER_ONLY 1
#define FMT_STATIC_THOUSANDS_SEPARATOR ','
#define FMT_USE_FLOAT 0
#define FMT_USE_DOUBLE 0
#define FMT_USE_LONG_DOUBLE 0
#define FMT_USE_FLOAT128 0
#define FMT_EXCEPTIONS 0
#define FMT_THROW(x) __builtin_trap()
#define FMT_ASSERT(condition, message) ((condition) ? (void)0 : __builtin_trap())
#include <fmt/core.h>

#include <cstddef>

namespace kvshim {

// Formats into a fixed buffer as a C string; what does not fit is cut. Returns the buffer.
template <std::size_t Size, typename... Args>
const char* format_into(char (&buffer)[Size], fmt::format_string<Args...> format, Args&&... args) {
  const auto end = fmt::format_to_n(buffer, Size - 1, format, static_cast<Args&&>(args)...);
  *end.out = '\0';
  return buffer;
}

}  // namespace kvshim
