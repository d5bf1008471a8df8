// The frame around every entry point: is a call allowed now, does a test want it to fail or wait,
// and the line in the log.
#pragma once

#include <string>

#include "driver/control.h"
#include "driver/state.h"

namespace sim {

enum Needs : unsigned {
  kNothing = 0,      // works before cuInit
  kInit = 1,         // 3 before cuInit
  kContext = 2 | 1,  // 201 without a current context, its error when it is dead
  kUnsafe = 4,       // refused while a stream captures
  kCallback = 8,     // allowed in a host callback
};

class Call {
 public:
  explicit Call(Api api) : api_(api) {}

  Call& args(const char* format, ...) __attribute__((format(printf, 2, 3)));
  Call& about(const Subject& subject) {
    subject_ = subject;
    return *this;
  }

  // Runs `body(lock)` with the state's lock held, unless something forbids it.
  template <typename Body>
  CUresult run(unsigned needs, Body body) {
    CUresult injected = CUDA_SUCCESS;
    bool after_work = false;
    CUresult result = enter(needs);
    if (result == CUDA_SUCCESS && take_failure(api_.name, subject_, &injected, &after_work) &&
        !after_work)
      result = injected;
    if (result == CUDA_SUCCESS) {
      Lock lock(state().mutex);
      result = check(needs);
      if (result == CUDA_SUCCESS) result = body(lock);
    }
    if (after_work) result = injected;
    record_call(api_.name, text_, result);
    return result;
  }

 private:
  CUresult enter(unsigned needs);
  CUresult check(unsigned needs);

  Api api_;
  Subject subject_;
  std::string text_;
};

}  // namespace sim
