// Gates of a call that do not depend on what it does.
#include "driver/call.h"

#include <cstdarg>
#include <cstdio>

namespace sim {

Call& Call::args(const char* format, ...) {
  char line[512];
  va_list list;
  va_start(list, format);
  const int n = std::vsnprintf(line, sizeof(line), format, list);
  va_end(list);
  if (n > 0) text_ = line;
  return *this;
}

CUresult Call::enter(unsigned needs) {
  if (deinitialised()) return CUDA_ERROR_DEINITIALIZED;
  if (after_fork() && (needs & kInit) != 0) return CUDA_ERROR_NOT_INITIALIZED;
  if (this_thread().in_callback && (needs & kCallback) == 0) return CUDA_ERROR_NOT_PERMITTED;
  if ((needs & kInit) != 0) {
    Lock lock(state().mutex);
    if (!state().initialised) return CUDA_ERROR_NOT_INITIALIZED;
  }
  pass_gate(api_.name);
  return CUDA_SUCCESS;
}

CUresult Call::check(unsigned needs) {
  if ((needs & kContext) == kContext) {
    CUresult why = CUDA_SUCCESS;
    if (current_context(&why) == nullptr) return why;
  }
  return (needs & kUnsafe) != 0 ? refuse_unsafe_call() : CUDA_SUCCESS;
}

}  // namespace sim
