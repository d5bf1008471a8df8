// First of two libraries that define the same functions and hand on to "the next". The LLVM and
// Intel OpenMP runtimes do this with ompt_start_tool when they are loaded.
#include <dlfcn.h>

extern "C" {

const char* foo() {
  static int depth = 0;
  if (++depth > 1) return "a, which found itself";
  using Function = const char* (*)();
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "foo"));
  return next == nullptr ? "a, which found nothing" : next();
}

__attribute__((weak)) void* ompt_start_tool(unsigned version, const char* runtime) {
  static int depth = 0;
  if (++depth > 1) return &depth;  // found itself; without this line: for ever
  using Function = void* (*)(unsigned, const char*);
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "ompt_start_tool"));
  return next == nullptr ? nullptr : next(version, runtime);
}

// The same by way of dlvsym; asks for a function of the C library.
void* next_puts(const char* version) {
  return dlvsym(RTLD_NEXT, "puts", version);
}

}  // extern "C"
