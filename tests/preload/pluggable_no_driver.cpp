// The pluggable allocator where there is no driver at all: NULL, a line in the log, and no crash.
#include "check.h"
#include "kvshim/kvshim.h"

int main() {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) preload::skip("a driver is installed");
  void* const library = dlopen(KVSHIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 1;
  const auto allocate = reinterpret_cast<decltype(&kvshim_malloc)>(dlsym(library, "kvshim_malloc"));
  const auto release = reinterpret_cast<decltype(&kvshim_free)>(dlsym(library, "kvshim_free"));
  EXPECT(allocate != nullptr && release != nullptr);
  EXPECT(allocate(4096, 0, nullptr) == nullptr);
  release(reinterpret_cast<void*>(0x1000), 4096, 0, nullptr);
  return preload::result();
}
