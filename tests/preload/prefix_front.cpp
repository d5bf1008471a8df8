// Like libcudnn.so.9: a front library whose function loads the engine and hands on to the engine's
// function of the same name.
#include <dlfcn.h>

extern "C" int cudnnCreate(void** handle) {
  static int depth = 0;
  if (++depth > 1) return -1;  // handed back to itself
  void* const engine = dlopen(PREFIX_ENGINE, RTLD_NOW | RTLD_LOCAL);
  if (engine == nullptr) return -2;
  using Function = int (*)(void**);
  const auto next = reinterpret_cast<Function>(dlsym(engine, "cudnnCreate"));
  return next == nullptr ? -3 : next(handle);
}
