// A program with two interposers: kvshim, and one that gets the next dlsym by version. Run with
// "before" or "after": where the other one stands in LD_PRELOAD; or "alone": without kvshim. On the
// simulated driver it also allocates; the stand-in of four functions only answers. Without cuda.h,
// for aarch64.sh.
#include <initializer_list>

#include "check.h"

extern "C" {
extern int interposer_calls;
void* interposer_next_dlsym();
void* interposer_next_dlvsym();
void* interposer_find(void* handle, const char* name);
}

namespace {

using CUresult = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct Context*;
constexpr CUresult CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1;
constexpr int CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;

bool in(const void* address, const char* object) {
  return std::strncmp(preload::object_of(address), object, std::strlen(object)) == 0;
}
bool in_libc(const void* address) {
  return in(address, "libc.so") || in(address, "libdl.so");
}

template <typename Function>
Function find(void* driver, const char* name) {
  return reinterpret_cast<Function>(dlsym(driver, name));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const bool before = std::strcmp(arguments[1], "before") == 0;
  const bool alone = std::strcmp(arguments[1], "alone") == 0;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (driver == nullptr) preload::skip("no driver to look into");

  // The first in the chain answers the program, and the program's dlsym is the first one's.
  const char* const first = before || alone ? "libinterposer" : "libkvshim";
  void* const alloc = dlsym(driver, "cuMemAlloc_v2");
  EXPECT_TEXT(in(reinterpret_cast<void*>(&dlsym), first),
              preload::object_of(reinterpret_cast<void*>(&dlsym)));
  EXPECT_TEXT(in(alloc, first), preload::object_of(alloc));

  // Before kvshim, "the next dlsym" is kvshim's, or all that this interposer hands on would pass
  // kvshim by. Behind kvshim, it is the C library's, and the driver's functions are the driver's.
  void* const next[] = {interposer_next_dlsym(), interposer_next_dlvsym()};
  for (const void* const function : next) {
    EXPECT_TEXT(before ? in(function, "libkvshim") : in_libc(function),
                preload::object_of(function));
  }
  void* const found = interposer_find(driver, "cuMemAlloc_v2");
  EXPECT_TEXT(in(found, before ? "libkvshim" : "libcuda"), preload::object_of(found));
  EXPECT(interposer_find(driver, "cuNoSuchFunction") == nullptr);
  void* const strange = interposer_find(RTLD_DEFAULT, "puts");
  EXPECT_TEXT(in_libc(strange), preload::object_of(strange));

  CUdeviceptr block = 0;
  const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(alloc);
  const auto retain = find<CUresult (*)(CUcontext*, int)>(driver, "cuDevicePrimaryCtxRetain");
  if (retain == nullptr) {
    EXPECT(allocate(&block, 100) == 222);  // the stand-in's answer
    EXPECT(interposer_calls == (before || alone ? 1 : 0));
    return preload::result();
  }

  // Each function is found anew, so that one that passes kvshim by does not fit the others.
  CUcontext context = nullptr;
  EXPECT(find<CUresult (*)(unsigned)>(driver, "cuInit")(0) == CUDA_SUCCESS);
  EXPECT(retain(&context, 0) == CUDA_SUCCESS);
  EXPECT(find<CUresult (*)(CUcontext)>(driver, "cuCtxSetCurrent")(context) == CUDA_SUCCESS);
  const auto attribute =
      find<CUresult (*)(void*, int, CUdeviceptr)>(driver, "cuPointerGetAttribute");
  const auto release = find<CUresult (*)(CUdeviceptr)>(driver, "cuMemFree_v2");
  EXPECT_TEXT(in(reinterpret_cast<void*>(release), alone ? "libcuda" : "libkvshim"),
              preload::object_of(reinterpret_cast<void*>(release)));
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{64} << 20}) {
    unsigned managed = 9;
    EXPECT(allocate(&block, bytes) == CUDA_SUCCESS);
    EXPECT(attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, block) == CUDA_SUCCESS);
    EXPECT(managed == (!alone && bytes > 1000 ? 1u : 0u));
    EXPECT(release(block) == CUDA_SUCCESS);
    EXPECT(release(block) == CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT(interposer_calls == (before || alone ? 2 : 0));
  return preload::result();
}
