// A driver whose cuGetProcAddress answers with internal addresses that no symbol carries.
#include <cstdint>
#include <cstring>

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

STUB_EXPORT int cuMemAlloc(unsigned*, unsigned) {
  return 111;
}  // the ABI before CUDA 3.2
STUB_EXPORT int cuMemAlloc_v2(void*, unsigned long) {
  return 222;
}
STUB_EXPORT int cuMemAllocManaged(void*, unsigned long, unsigned) {
  return 333;
}
STUB_EXPORT int cuMemsetD8_v2(std::uint64_t, unsigned char, unsigned long) {
  return 444;
}
STUB_EXPORT int cuMemsetD8_v2_ptds(std::uint64_t, unsigned char, unsigned long) {
  return 445;
}
STUB_EXPORT int cuInit(unsigned) {
  return 0;
}

namespace {

int internal_alloc(void*, unsigned long) {
  return 1222;
}
int internal_memset(std::uint64_t, unsigned char, unsigned long) {
  return 1444;
}
int internal_init(unsigned) {
  return 1000;
}

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

STUB_EXPORT int cuGetProcAddress_v2(const char* symbol, void** out, int version, std::uint64_t,
                                    int* status) {
  *out = nullptr;
  if (std::strcmp(symbol, "cuMemAlloc") == 0) {
    *out = version >= 3020 ? address(&internal_alloc) : address(&cuMemAlloc);
  } else if (std::strcmp(symbol, "cuMemAllocManaged") == 0) {
    *out = address(&cuMemAllocManaged);
  } else if (std::strcmp(symbol, "cuMemsetD8") == 0) {
    *out = address(&internal_memset);
  } else if (std::strcmp(symbol, "cuInit") == 0) {
    *out = address(&internal_init);
  }
  if (status != nullptr) *status = *out == nullptr ? 1 : 0;
  return 0;
}
