// The names of hooks.def, and what cuGetProcAddress is asked to get each of them.
#pragma once

#include <cstring>
#include <string>

namespace preload {

inline constexpr const char* kHooked[] = {
#define KVSHIM_HOOK(name, parameters, arguments) #name,
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
};

inline bool is_hooked(const char* name) {
  for (const char* const hooked : kHooked) {
    if (std::strcmp(hooked, name) == 0) return true;
  }
  return false;
}

inline bool is_per_thread(const std::string& name) {
  return name.ends_with("_ptds") || name.ends_with("_ptsz");
}

// "cuMemsetD8_v2_ptds" -> "cuMemsetD8"
inline std::string base_of(std::string name) {
  if (is_per_thread(name)) name.resize(name.size() - 5);
  const std::size_t at = name.rfind("_v");
  if (at != std::string::npos &&
      name.find_first_not_of("0123456789", at + 2) == std::string::npos) {
    name.resize(at);
  }
  return name;
}

}  // namespace preload
