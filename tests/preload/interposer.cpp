// Another interposer, as profilers and overlays are written: it defines dlsym and a driver
// function, and gets the dlsym behind its own by version, since a plain look-up of dlsym would be
// its own.
#include <dlfcn.h>

#include <cstring>

#if defined(__x86_64__)
static constexpr const char* kVersion = "GLIBC_2.2.5";
#else
static constexpr const char* kVersion = "GLIBC_2.17";
#endif

extern "C" {

int interposer_calls = 0;

void* interposer_next_dlsym() {
  return dlvsym(RTLD_NEXT, "dlsym", kVersion);
}
void* interposer_next_dlvsym() {
  return dlvsym(RTLD_NEXT, "dlvsym", kVersion);
}
// As the interposer itself looks something up.
void* interposer_find(void* handle, const char* name) {
  static const auto next = reinterpret_cast<void* (*)(void*, const char*)>(interposer_next_dlsym());
  return next == nullptr ? nullptr : next(handle, name);
}

int cuMemAlloc_v2(void* out, unsigned long bytes) {
  static const auto next =
      reinterpret_cast<int (*)(void*, unsigned long)>(interposer_find(RTLD_NEXT, "cuMemAlloc_v2"));
  ++interposer_calls;
  return next == nullptr ? 3 : next(out, bytes);
}

void* dlsym(void* handle, const char* name) noexcept {
  if (handle != RTLD_NEXT && std::strcmp(name, "cuMemAlloc_v2") == 0) {
    return reinterpret_cast<void*>(&cuMemAlloc_v2);
  }
  return interposer_find(handle, name);
}

}  // extern "C"
