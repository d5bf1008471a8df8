// The few helpers of the preload tests. No framework: these programs run under LD_PRELOAD and must
// not bring lookups, threads or exit handlers of their own.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace preload {

inline int failures = 0;

// Prints what was expected and goes on, so that one run shows every failure.
inline void expect(bool holds, const char* what, const char* detail, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: expected: %s%s%s\n", file, line, what, detail[0] ? "; got " : "",
               detail);
}
#define EXPECT(condition) preload::expect((condition), #condition, "", __FILE__, __LINE__)
#define EXPECT_TEXT(condition, detail) \
  preload::expect((condition), #condition, (detail), __FILE__, __LINE__)

inline int result() {
  if (failures == 0) std::puts("ok");
  return failures == 0 ? 0 : 1;
}

// The file name of the object that an address lies in; "none" for NULL or no object.
inline const char* object_of(const void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0) return "none";
  const char* const slash = std::strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}
// The exported name at exactly this address; "none" where there is no such symbol.
inline const char* name_of(const void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0) return "none";
  return info.dli_sname == nullptr || info.dli_saddr != address ? "none" : info.dli_sname;
}
inline bool in_kvshim(const void* address) {
  return std::strncmp(object_of(address), "libkvshim", 9) == 0;
}

// Skipped is not passed: exit code 77, with the reason.
[[noreturn]] inline void skip(const char* why) {
  std::printf("SKIP: %s\n", why);
  std::exit(77);
}

}  // namespace preload
