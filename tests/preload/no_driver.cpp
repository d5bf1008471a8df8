// A program with weak references to the driver, on a machine without one. The loader binds them to
// kvshim's exports, so the program believes that a driver is there: calling one says "not
// initialised", as the first call of any CUDA program may, and does not crash.
#include "check.h"

extern "C" {
#define KVSHIM_HOOK(name, parameters, arguments) \
  __attribute__((weak)) int name(long, long, long, long, long, long, long);
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
}

int main() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr)
    preload::skip("a driver is loaded");
  long out = 42;
  const long address = reinterpret_cast<long>(&out);
#define KVSHIM_HOOK(name, parameters, arguments)                                              \
  EXPECT_TEXT(&name != nullptr && preload::in_kvshim(reinterpret_cast<void*>(&name)), #name); \
  EXPECT_TEXT(name(0, 0, 0, 0, 0, 0, 0) == 3, #name);
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
  EXPECT(cuMemAlloc_v2(address, 4096, 0, 0, 0, 0, 0) == 3 && out == 42);
  EXPECT(cuMemAlloc_v2(address, 8L << 30, 0, 0, 0, 0, 0) == 3 && out == 42);
  EXPECT(cuMemAllocManaged(address, 4096, 1, 0, 0, 0, 0) == 3 && out == 42);
  EXPECT(cuMemFree_v2(0x7f0000000000, 0, 0, 0, 0, 0, 0) == 3);
  // Asked by name, there is no driver.
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == nullptr);
  return preload::result();
}
