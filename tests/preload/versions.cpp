// Programs bound to dlsym's base version (built before glibc 2.34) and to its newer default both
// reach kvshim's.
#include "check.h"

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#else
#define BASE "GLIBC_2.17"
#endif

extern "C" {
void* dlsym_base(void* handle, const char* name);
void* dlsym_new(void* handle, const char* name);
void* dlvsym_base(void* handle, const char* name, const char* version);
}
__asm__(".symver dlsym_base, dlsym@" BASE);
__asm__(".symver dlsym_new, dlsym@GLIBC_2.34");
__asm__(".symver dlvsym_base, dlvsym@" BASE);

int main() {
  using preload::in_kvshim;
  EXPECT(in_kvshim(reinterpret_cast<void*>(&dlsym_base)));
  EXPECT(in_kvshim(reinterpret_cast<void*>(&dlsym_new)));
  EXPECT(in_kvshim(reinterpret_cast<void*>(&dlvsym_base)));
  void* const driver = dlopen(STUB_CUDA, RTLD_NOW | RTLD_LOCAL);
  EXPECT(driver != nullptr);
  EXPECT(in_kvshim(dlsym_base(driver, "cuMemAlloc_v2")));
  EXPECT(in_kvshim(dlsym_new(driver, "cuMemAlloc_v2")));
  void* const libc = dlopen("libc.so.6", RTLD_LAZY);
  EXPECT(in_kvshim(dlvsym_base(libc, "dlsym", BASE)));
  EXPECT(in_kvshim(dlvsym_base(libc, "dlsym", "GLIBC_2.34")));
  EXPECT(in_kvshim(dlvsym_base(RTLD_DEFAULT, "dlsym", BASE)));
  EXPECT(dlvsym_base(libc, "puts", BASE) == dlsym(libc, "puts"));
  return preload::result();
}
