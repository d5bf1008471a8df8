// cuGetProcAddress under a driver that answers with addresses no symbol carries: kvshim then goes
// by the requested version and stream flag, and leaves alone what it cannot be sure of.
#include <cuda.h>

#include "check.h"

namespace {

CUresult (*get)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*) = nullptr;

void* answer(const char* base, int version, cuuint64_t flags = 0) {
  void* out = nullptr;
  auto status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  EXPECT(get(base, &out, version, flags, &status) == CUDA_SUCCESS);
  EXPECT((status == CU_GET_PROC_ADDRESS_SUCCESS) == (out != nullptr));
  return out;
}

bool is_hook(void* found, const char* name) {
  return preload::in_kvshim(found) && std::strcmp(preload::name_of(found), name) == 0;
}

}  // namespace

int main() {
  void* const driver = dlopen(STUB_HIDDEN, RTLD_NOW | RTLD_LOCAL);
  EXPECT(driver != nullptr);
  if (driver == nullptr) return preload::result();
  get = reinterpret_cast<decltype(get)>(dlsym(driver, "cuGetProcAddress_v2"));
  EXPECT(preload::in_kvshim(reinterpret_cast<void*>(get)));

  EXPECT(is_hook(answer("cuMemAlloc", 3020), "cuMemAlloc_v2"));
  EXPECT(is_hook(answer("cuMemAlloc", 12000), "cuMemAlloc_v2"));
  EXPECT(is_hook(answer("cuMemAllocManaged", 12000), "cuMemAllocManaged"));
  EXPECT(is_hook(answer("cuMemsetD8", 7000, 0), "cuMemsetD8_v2"));
  EXPECT(is_hook(answer("cuMemsetD8", 7000, 2), "cuMemsetD8_v2_ptds"));
  // Per-thread twins came with 7.0; before, the flag has no meaning.
  EXPECT(is_hook(answer("cuMemsetD8", 3020, 2), "cuMemsetD8_v2"));

  // The old ABI has a symbol of its own and no hook; where it has none, it is unknown.
  EXPECT(std::strcmp(preload::name_of(answer("cuMemAlloc", 2000)), "cuMemAlloc") == 0);
  EXPECT(!preload::in_kvshim(answer("cuMemAlloc", 2000)));
  EXPECT(!preload::in_kvshim(answer("cuMemsetD8", 2000)));
  // A version after the headers kvshim was built with may mean an ABI it does not know.
  EXPECT(!preload::in_kvshim(answer("cuMemAlloc", 99000)));
  EXPECT(!preload::in_kvshim(answer("cuInit", 12000)));
  EXPECT(answer("cuMemFree", 12000) == nullptr);
  return preload::result();
}
