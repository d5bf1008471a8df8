// One function of the real driver. The pointer is found at the first call, whenever that is: there
// is no start-up order to get wrong. Calling it costs one atomic load and an indirect call.
#pragma once

#include <cuda.h>

#include <atomic>

#include "driver/libcuda.h"

namespace kvshim::driver {

template <typename Signature>
class Function;

template <typename... Args>
class Function<CUresult(Args...)> {
 public:
  using Pointer = CUresult (*)(Args...);

  explicit constexpr Function(const char* name) : name_(name) {}

  // The driver's answer; CUDA_ERROR_NOT_INITIALIZED where no driver is loaded (what a program with
  // a weak reference sees), CUDA_ERROR_NOT_SUPPORTED where this driver lacks the function.
  CUresult operator()(Args... args) const noexcept {
    Pointer function = find();
    if (function != nullptr) [[likely]]
      return function(args...);
    return loaded() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
  }
  bool exists() const noexcept { return find() != nullptr; }

 private:
  Pointer find() const noexcept {
    Pointer function = pointer_.load(std::memory_order_acquire);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<Pointer>(symbol(name_));
      if (function != nullptr) pointer_.store(function, std::memory_order_release);
    }
    return function;
  }

  const char* name_;
  mutable std::atomic<Pointer> pointer_{nullptr};
};

}  // namespace kvshim::driver
