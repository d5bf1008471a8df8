// Resolves the driver. Nothing here knows whether the driver is real, simulated or interposed.
#include "driver.h"

#include <dlfcn.h>

#include <cstring>
#include <string>

namespace contract {

Driver cu;

void* driver_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

void* by_name(const char* abi_name) {
  return driver_library() == nullptr ? nullptr : dlsym(driver_library(), abi_name);
}

void* by_version(const char* name, int version, cuuint64_t flags) {
  static const auto ask =
      reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(by_name("cuGetProcAddress_v2"));
  if (ask == nullptr) return nullptr;
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (ask(name, &function, version, flags, &status) != CUDA_SUCCESS) return nullptr;
  return function;
}

static void* find(bool by_dlsym, const char* member, const char* name, int version,
                  cuuint64_t flags) {
  if (!by_dlsym) return by_version(name, version, flags);
  // The first form of a function has no suffix in the library; `_v1` is this suite's name for it.
  std::string exported(member);
  if (exported.ends_with("_v1")) exported.resize(exported.size() - 3);
  return by_name(exported.c_str());
}

const char* resolve_driver(bool by_dlsym) {
  if (driver_library() == nullptr) return "libcuda.so.1 cannot be opened";
  const char* missing = nullptr;
#define CONTRACT_FUNCTION(member, type, name, version, flags)                        \
  cu.member = reinterpret_cast<type>(find(by_dlsym, #member, name, version, flags)); \
  if (cu.member == nullptr && missing == nullptr) missing = "the driver lacks " #member;
#include "driver.def"
#undef CONTRACT_FUNCTION
#define CONTRACT_FUNCTION(member, type, name, version, flags) \
  cu.member = reinterpret_cast<type>(find(by_dlsym, #member, name, version, flags));
#include "driver_newer.def"
#undef CONTRACT_FUNCTION
  return missing;
}

}  // namespace contract
