// Marks "this thread is inside kvshim", so that whatever the driver or the loader calls back into a
// hooked name goes straight to the real function. Eight bytes of initial-exec TLS at most.
#pragma once

namespace kvshim {

class Reentry {
 public:
  Reentry() noexcept : nested_(depth_++ != 0) {}
  ~Reentry() { --depth_; }
  Reentry(const Reentry&) = delete;
  Reentry& operator=(const Reentry&) = delete;

  bool nested() const noexcept { return nested_; }

 private:
  static constinit thread_local int depth_ __attribute__((tls_model("initial-exec")));
  bool nested_;
};

}  // namespace kvshim
