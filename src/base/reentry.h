// Marks "this thread is inside kvshim", so that whatever the driver or the loader calls back into a
// hooked name goes straight to the real function. Eight bytes of initial-exec TLS at most.
#pragma once

#include <pthread.h>

namespace kvshim {

class Reentry {
 public:
  // A thread that is cancelled inside would leave half-made blocks behind: cancellation waits.
  Reentry() noexcept : nested_(depth_++ != 0) {
    if (!nested_) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
  }
  ~Reentry() {
    --depth_;
    if (!nested_) pthread_setcancelstate(cancel_state_, nullptr);
  }
  Reentry(const Reentry&) = delete;
  Reentry& operator=(const Reentry&) = delete;

  bool nested() const noexcept { return nested_; }

 private:
  static constinit thread_local int depth_ __attribute__((tls_model("initial-exec")));
  bool nested_;
  int cancel_state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace kvshim
