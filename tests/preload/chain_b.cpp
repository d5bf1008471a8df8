// Second of the two libraries: nothing follows it.
#include <dlfcn.h>

extern "C" {

const char* foo() {
  static int depth = 0;
  if (++depth > 1) return "b, which found itself";
  return dlsym(RTLD_NEXT, "foo") == nullptr ? "b" : "b, which found another after it";
}

// For the program to refer to, so that a linker with --as-needed by default keeps this library.
void chain_b() {}

}  // extern "C"
