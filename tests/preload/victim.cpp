// A program whose own exported functions have names that an interposer could be using inside. Each
// of them ends the program if kvshim calls it; kvshim's must not replace them either.
#include "check.h"

#define VICTIM(name)                                                               \
  extern "C" __attribute__((visibility("default"))) int name(int own) {            \
    if (own != 4711) {                                                             \
      std::fputs(#name "() of the program was called by somebody else\n", stderr); \
      std::abort();                                                                \
    }                                                                              \
    return own;                                                                    \
  }
#define VICTIMS(X)                                                                                 \
  X(log_line)                                                                                      \
  X(real_dlsym)                                                                                    \
  X(real_dlvsym) X(init) X(get_proc_address) X(options) X(symbol) X(handle) X(find_hook)           \
      X(hook_table) X(decide) X(kvshim_decide_dlsym) X(kvshim_decide_dlvsym) X(kvshim_thunk_dlsym) \
          X(allocate) X(release) X(route) X(lookup)
VICTIMS(VICTIM)

// The same with C++ names.
namespace kvshim {
__attribute__((visibility("default"))) const void* find_hook(const char*) {
  std::abort();
}
__attribute__((visibility("default"))) void* options() {
  std::abort();
}
namespace driver {
__attribute__((visibility("default"))) void* handle() {
  std::abort();
}
__attribute__((visibility("default"))) void* symbol(const char*) {
  std::abort();
}
__attribute__((visibility("default"))) void* real_dlsym(void*, const char*) {
  std::abort();
}
}  // namespace driver
}  // namespace kvshim

int main() {
  volatile int own = 4711;
#define CALL(name)           \
  EXPECT(name(own) == 4711); \
  EXPECT(!preload::in_kvshim(dlsym(RTLD_DEFAULT, #name)));
  VICTIMS(CALL)
  void* const driver = dlopen(STUB_CUDA, RTLD_NOW | RTLD_LOCAL);
  using Function = int (*)(void*, unsigned long);
  const auto hooked = reinterpret_cast<Function>(dlsym(driver, "cuMemAlloc_v2"));
  EXPECT(preload::in_kvshim(reinterpret_cast<void*>(hooked)));
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemFree_v2") == nullptr);
  return preload::result();
}
