// Contexts, and what each thread has current.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "driver/work.h"

namespace sim {

struct Context {
  int device = 0;
  std::uint64_t id = 0;
  unsigned flags = 0;
  unsigned version = 3020;
  bool primary = false;
  bool green = false;  // a share of the device's units; its memory is the primary context's
  bool active = true;  // false: destroyed, or a primary context that nobody retains
  unsigned retains = 0;
  CUresult dead = CUDA_SUCCESS;  // a sticky error
  std::vector<std::shared_ptr<Stream>> streams;
  std::set<int> peers;  // devices whose native memory this context may access
  std::size_t limits[16] = {};
};

// What belongs to one thread. Never destroyed, so that late calls find it.
struct Thread {
  std::uint64_t generation = 0;  // of the state it was made for: a forked child starts again
  std::vector<Context*> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_callback = false;
  std::vector<std::pair<Context*, Stream*>> default_streams;
};

Thread& this_thread();
// The current context: null and 201 without one, 709 when destroyed, its sticky error when dead.
Context* current_context(CUresult* why);
Context* find_context(CUcontext handle);
Context* primary_context(int device);
// The context that memory allocated in this one belongs to.
Context& memory_owner(Context& context);
// A fault of the device: every context on it answers this code from now on, later ones too.
void kill_device(int device, CUresult error);
// Ends everything a context owns: waits, frees its memory, its streams. The object stays.
void close_context(Lock& lock, Context& context);
inline CUcontext to_handle(Context* context) {
  return reinterpret_cast<CUcontext>(context);
}

}  // namespace sim
