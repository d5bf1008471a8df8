// What dlsym and dlvsym answer: a hook exactly where the lookup would have found the driver's
// function, the truth everywhere else.
#include "check.h"

namespace {

using Function = int (*)(void*, unsigned long);

void* find(void* in, const char* name) {
  return dlsym(in, name);
}

bool undefined(void* in, const char* name) {
  dlerror();
  if (dlsym(in, name) != nullptr) return false;
  const char* const message = dlerror();
  return message != nullptr && std::strstr(message, name) != nullptr && dlerror() == nullptr;
}

}  // namespace

int main() {
  using preload::in_kvshim;
  using preload::object_of;
  const bool disabled = std::getenv("KVSHIM_DISABLE") != nullptr;
  const auto is_hook = [disabled](void* found) {
    return disabled ? std::strcmp(object_of(found), "libcuda.so.1") == 0 : in_kvshim(found);
  };
  void* const program = dlopen(nullptr, RTLD_LAZY);
  void* const libc = dlopen("libc.so.6", RTLD_LAZY);

  // No driver in the process: kvshim's own exports do not show.
  EXPECT(undefined(RTLD_DEFAULT, "cuMemAlloc_v2"));
  EXPECT(undefined(program, "cuMemAlloc_v2"));
  EXPECT(undefined(libc, "cuMemAlloc_v2"));
  EXPECT(dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "GLIBC_2.17") == nullptr);

  // Another library's function of that name is that library's.
  void* const other = dlopen(OTHER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT(other != nullptr);
  dlerror();
  const auto others = reinterpret_cast<Function>(find(other, "cuMemAlloc_v2"));
  EXPECT(dlerror() == nullptr);  // the search for a driver that is not there left nothing behind
  EXPECT(others != nullptr && others(nullptr, 0) == 77);

  void* const driver = dlopen(STUB_CUDA, RTLD_NOW | RTLD_LOCAL);
  EXPECT(driver != nullptr);
  void* const hooked = find(driver, "cuMemAlloc_v2");
  EXPECT_TEXT(is_hook(hooked), object_of(hooked));
  EXPECT(hooked != nullptr && reinterpret_cast<Function>(hooked)(nullptr, 1) == 222);
  EXPECT(find(driver, "cuMemAlloc_v2") == hooked);
  // The old ABI under the plain name, names without a hook, names the driver does not have.
  EXPECT(std::strcmp(object_of(find(driver, "cuMemAlloc")), "libcuda.so.1") == 0);
  EXPECT(std::strcmp(object_of(find(driver, "cuInit")), "libcuda.so.1") == 0);
  EXPECT(std::strcmp(object_of(find(driver, "cuGetExportTable")), "libcuda.so.1") == 0);
  EXPECT(undefined(driver, "cuMemFree_v2"));
  EXPECT(undefined(driver, "cuNoSuchFunction"));
  // A driver loaded RTLD_LOCAL (Python's ctypes) is not global.
  EXPECT(undefined(RTLD_DEFAULT, "cuMemAlloc_v2"));
  EXPECT(reinterpret_cast<Function>(find(other, "cuMemAlloc_v2"))(nullptr, 0) == 77);

  EXPECT(dlopen(STUB_CUDA, RTLD_NOW | RTLD_GLOBAL) != nullptr);
  EXPECT(is_hook(find(RTLD_DEFAULT, "cuMemAlloc_v2")));
  EXPECT(is_hook(find(program, "cuMemAlloc_v2")));
  EXPECT(std::strcmp(object_of(find(RTLD_DEFAULT, "cuInit")), "libcuda.so.1") == 0);
  EXPECT(undefined(RTLD_DEFAULT, "cuMemFree_v2"));

  // The lookup functions asked for by name are kvshim's, so that what they find is hooked as well.
  void* const again = find(libc, "dlsym");
  EXPECT_TEXT(in_kvshim(again), object_of(again));
  EXPECT(in_kvshim(find(libc, "dlvsym")));
  EXPECT(in_kvshim(find(RTLD_DEFAULT, "dlsym")));
  EXPECT(std::strncmp(object_of(find(libc, "dlerror")), "libc.so", 7) == 0);
  using Lookup = void* (*)(void*, const char*);
  EXPECT(reinterpret_cast<Lookup>(again)(driver, "cuMemAlloc_v2") == hooked);
  return preload::result();
}
