// What every scene begins with: a context, blocks, a stream that is kept busy.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "cases.h"
#include "sim.h"

namespace cases {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

inline CUcontext use_device(int device = 0) {
  CUcontext context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

inline CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr block = 0;
  OK(cuMemAlloc(&block, bytes));
  EXPECT(block != 0);
  return block;
}

inline bool managed(CUdeviceptr block) {
  unsigned answer = 0;
  OK(cuPointerGetAttribute(&answer, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
  return answer != 0;
}

// A line on standard output past the heap and stdio, for the end of a process.
inline void say(const char* what, long code) {
  char line[160];
  const int length = std::snprintf(line, sizeof(line), "%s %ld\n", what, code);
  if (write(STDOUT_FILENO, line, static_cast<std::size_t>(length)) < 0) _exit(90);
}

// A threshold that small tests can afford to pass, and an account at the end.
inline Environment small_threshold(Environment more = {}) {
  more.emplace_back("KVSHIM_THRESHOLD", "64MiB");
  more.emplace_back("KVSHIM_SUMMARY", "1");
  return more;
}

}  // namespace cases
