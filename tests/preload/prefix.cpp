// Names that begin with "cu" and are not the driver's reach the library they were asked of,
// wherever libkvshim.so lies and even after its file is gone (PREFIX_UNLINK names the file to
// remove).
#include <unistd.h>

#include "check.h"

extern "C" int cudnnCreate(void** handle);

int main() {
  if (const char* const path = std::getenv("PREFIX_UNLINK")) EXPECT(unlink(path) == 0);
  EXPECT(preload::in_kvshim(reinterpret_cast<void*>(&dlsym)));
  EXPECT(cudnnCreate(nullptr) == 9);
  void* const engine = dlopen(PREFIX_ENGINE, RTLD_NOW | RTLD_LOCAL);
  EXPECT(engine != nullptr);
  const char* const names[] = {"curl_easy_init", "cublasCreate_v2", "cufftPlan1d", "cuserid_",
                               "cuMemAlloc_v2x", "cuMemAlloc_v",    "cu"};
  int number = 0;
  for (const char* const name : names) {
    using Function = int (*)();
    const auto function = reinterpret_cast<Function>(dlsym(engine, name));
    EXPECT_TEXT(function != nullptr && function() == ++number, name);
    // The engine is local: without a handle these names do not exist.
    EXPECT_TEXT(dlsym(RTLD_DEFAULT, name) == nullptr, name);
  }
  // cuserid is a real function of glibc.
  EXPECT(std::strncmp(preload::object_of(dlsym(RTLD_DEFAULT, "cuserid")), "libc.so", 7) == 0);
  return preload::result();
}
