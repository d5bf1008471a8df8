// Which context a thread has, and what ending a context means.
#include "driver/context.h"

#include "driver/state.h"

namespace sim {

Context* find_context(CUcontext handle) {
  State& s = state();
  for (Device& d : s.devices) {
    if (to_handle(&d.primary) == handle) return &d.primary;
  }
  for (const auto& context : s.contexts) {
    if (to_handle(context.get()) == handle) return context.get();
  }
  return nullptr;
}

Context* primary_context(int device) {
  State& s = state();
  if (device < 0 || static_cast<std::size_t>(device) >= s.devices.size()) return nullptr;
  return &s.devices[static_cast<std::size_t>(device)].primary;
}

Context& memory_owner(Context& context) {
  return context.green ? *primary_context(context.device) : context;
}

Context* current_context(CUresult* why) {
  Thread& thread = this_thread();
  *why = CUDA_ERROR_INVALID_CONTEXT;
  if (thread.stack.empty()) return nullptr;
  Context* context = thread.stack.back();
  if (context == nullptr) return nullptr;
  *why = context->active ? context->dead : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return *why == CUDA_SUCCESS ? context : nullptr;
}

void kill_device(int device, CUresult error) {
  State& s = state();
  Device& d = s.devices[static_cast<std::size_t>(device)];
  if (d.dead != CUDA_SUCCESS) return;
  d.dead = error;
  d.primary.dead = error;
  for (const auto& context : s.contexts) {
    if (context->device == device) context->dead = error;
  }
}

void close_context(Lock& lock, Context& context) {
  State& s = state();
  if (context.dead == CUDA_SUCCESS) wait_context(lock, context);
  std::vector<std::shared_ptr<Block>> mine;
  for (const auto& [base, block] : s.blocks) {
    if (block->owner == &context && block->kind != BlockKind::registered) mine.push_back(block);
  }
  for (const auto& block : mine) {
    check_in_flight(block->base, block->bytes, "destroying the context");
    drop_block(block);
  }
  // Destroyed streams stay as long as work is left in them, so they move to a place of no return.
  for (const auto& stream : context.streams) {
    stream->destroyed = true;
    s.streams.erase(stream.get());
    if (!stream->queue.empty()) new std::shared_ptr<Stream>(stream);
  }
  context.streams.clear();
  context.peers.clear();
  context.active = false;
}

}  // namespace sim
