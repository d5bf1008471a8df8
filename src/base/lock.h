// A mutex that can be constant-initialised, needs no C++ runtime, and can be made new again in a
// forked child. Never held while in the driver, in a log write or in a callback.
#pragma once

#include <pthread.h>

namespace kvshim {

class Lock {
 public:
  constexpr Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void acquire() noexcept { pthread_mutex_lock(&mutex_); }
  void release() noexcept { pthread_mutex_unlock(&mutex_); }
  // Only for the single thread of a forked child: whoever held the lock does not exist there.
  void renew() noexcept { mutex_ = PTHREAD_MUTEX_INITIALIZER; }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class Guard {
 public:
  explicit Guard(Lock& lock) noexcept : lock_(lock) { lock_.acquire(); }
  ~Guard() { lock_.release(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Lock& lock_;
};

}  // namespace kvshim
