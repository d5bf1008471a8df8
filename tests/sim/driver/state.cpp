// The life of the simulator: built at first use, replaced in a forked child, deaf after exit.
#include "driver/state.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "driver/control.h"

namespace sim {
namespace {

std::atomic<State*> g_state{nullptr};
std::atomic<Control*> g_control{nullptr};
std::atomic<bool> g_forked{false};
std::atomic<bool> g_initialised{false};  // cuInit has succeeded in this process
std::atomic<bool> g_ended{false};
std::atomic<bool> g_ready{false};
thread_local bool t_building = false;
std::atomic<std::uint64_t> g_generation{0};
std::mutex g_build;

void build() {
  auto* control = new Control;
  auto* state = new State;
  state->generation = ++g_generation;
  g_control = control;
  g_state = state;
  t_building = true;  // this thread alone may see the unfinished state
  read_environment();
  t_building = false;
  for (std::size_t i = 0; i < state->devices.size(); ++i) {
    Device& d = state->devices[i];
    d.primary.device = static_cast<int>(i);
    d.primary.primary = true;
    d.primary.active = false;
    d.default_pool.device = static_cast<int>(i);
    d.default_pool.is_default = true;
    d.default_pool.access.insert(static_cast<int>(i));
    d.pool = &d.default_pool;
  }
  g_ready.store(true, std::memory_order_release);
}

void build_once() {
  static const bool fork_handler = [] {
    return pthread_atfork(nullptr, nullptr, [] {
             // The parent's threads and locks are gone: leave its objects where they are.
             new (&g_build) std::mutex;
             g_ready = false;
             // A child made before cuInit may still use CUDA, one made after may not.
             g_forked = g_initialised && std::getenv("KVSIM_FORK_OK") == nullptr;
           }) == 0;
  }();
  (void)fork_handler;
  const std::lock_guard lock(g_build);
  if (!g_ready) build();
}

void end() {
  g_ended = true;
}
__attribute__((destructor)) void unload() {
  end();
}

}  // namespace

State& state() {
  if (!g_ready.load(std::memory_order_acquire) && !t_building) build_once();
  return *g_state.load(std::memory_order_relaxed);
}

Control& control() {
  if (!g_ready.load(std::memory_order_acquire) && !t_building) build_once();
  return *g_control.load(std::memory_order_relaxed);
}

// As the real driver: what runs at exit after the handlers registered since cuInit is answered 4.
void initialised() {
  g_initialised = true;
  static const bool registered = std::atexit(end) == 0;
  (void)registered;
}

bool after_fork() {
  return g_forked;
}
bool deinitialised() {
  return g_ended;
}

Thread& this_thread() {
  static thread_local Thread* mine = nullptr;
  const std::uint64_t generation = state().generation;
  if (mine == nullptr) mine = new Thread;
  if (mine->generation != generation) {
    *mine = Thread{};
    mine->generation = generation;
  }
  return *mine;
}

}  // namespace sim
