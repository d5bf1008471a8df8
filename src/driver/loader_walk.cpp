// See loader_walk.h.
#include "driver/loader_walk.h"

#include <pthread.h>
#include <time.h>

#include <atomic>

namespace kvshim::driver {

namespace {

// Walks read, a fork writes. Walks that come while a fork waits stand behind it: threads that
// allocate in a row would never let it through.
constinit pthread_rwlock_t walks = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
constinit std::atomic<bool> registered{false};
bool forking = false;  // `walks` is held for a fork, by the thread that reads this

// Nobody waits for ever: a signal handler may fork inside its own thread's walk, and another
// library's fork handler may wait for a thread that waits here. Who has waited this long goes on,
// and the child takes its chance, as it does without kvshim.
constexpr time_t kPatienceSeconds = 3;

timespec deadline() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  time.tv_sec += kPatienceSeconds;
  return time;
}

void before_fork() {
  const timespec until = deadline();
  forking = pthread_rwlock_clockwrlock(&walks, CLOCK_MONOTONIC, &until) == 0;
}

void after_fork() {
  if (!forking) return;
  forking = false;
  pthread_rwlock_unlock(&walks);
}

// Who held it does not exist here, and the child's thread has another id than the one that did.
void in_forked_child() {
  forking = false;
  walks = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

}  // namespace

LoaderWalk::LoaderWalk() noexcept {
  // Not with the engine's handler: look-ups come before the engine is used, and where it never is.
  if (!registered.load(std::memory_order_acquire) &&
      !registered.exchange(true, std::memory_order_acq_rel)) {
    pthread_atfork(before_fork, after_fork, in_forked_child);
  }
  held_ = pthread_rwlock_tryrdlock(&walks) == 0;
  if (held_) [[likely]]
    return;
  // Of the forking thread itself (a fork handler that uses CUDA) this answers EDEADLK at once.
  const timespec until = deadline();
  held_ = pthread_rwlock_clockrdlock(&walks, CLOCK_MONOTONIC, &until) == 0;
}

LoaderWalk::~LoaderWalk() {
  if (held_) pthread_rwlock_unlock(&walks);
}

void for_each_object(int (*visit)(dl_phdr_info*, std::size_t, void*), void* argument) noexcept {
  const LoaderWalk walk;
  dl_iterate_phdr(visit, argument);
}

}  // namespace kvshim::driver
