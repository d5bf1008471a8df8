// C++ imitations of the kernels that the project's host programs load as PTX.
#pragma once

#include <cstring>
#include <vector>

#include "driver/context.h"

namespace sim {

inline constexpr unsigned kMaxParams = 3;

struct KernelParams {
  std::uint64_t value[kMaxParams] = {};
};

struct Kernel {
  const char* name;
  unsigned param_bytes[kMaxParams];  // 0: not there
  std::vector<Range> (*ranges)(const KernelParams&);
  CUresult (*run)(const KernelParams&, Context&);
};

// Null: no kernel of that name.
const Kernel* find_kernel(const char* name);

}  // namespace sim
