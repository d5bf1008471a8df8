// Carries out the work of streams in real time. A stream's queue is served by a thread that lives
// as long as there is work; short work with nothing in front of it is done by the caller.
#include "driver/work.h"

#include <algorithm>
#include <thread>

#include "driver/control.h"
#include "driver/state.h"

namespace sim {
namespace {

bool ready(const Work& work) {
  return std::all_of(work.after.begin(), work.after.end(), [](const auto& w) { return w->done; });
}

// Does the front of the queue. The lock is released while the body runs.
void carry_out(Lock& lock, Stream& stream, const std::shared_ptr<Work>& work) {
  work->started = true;
  Context& context = *stream.context;
  CUresult error = CUDA_SUCCESS;
  if (work->body && !work->poisoned && context.dead == CUDA_SUCCESS && !deinitialised()) {
    lock.unlock();
    error = work->body(*work);
    lock.lock();
  }
  if (error != CUDA_SUCCESS && context.dead == CUDA_SUCCESS) {
    kill_device(context.device, error);
    ++state().counters.illegal_accesses;
    complain("work failed with %d: the contexts of device %d are dead", static_cast<int>(error),
             context.device);
  }
  work->done = true;
  work->finished = std::chrono::steady_clock::now();
  work->after.clear();
  work->body = nullptr;
  stream.queue.pop_front();
  state().progress.notify_all();
}

void serve(Stream* stream) {
  State& s = state();
  Lock lock(s.mutex);
  while (!stream->queue.empty()) {
    const std::shared_ptr<Work> work = stream->queue.front();
    if (work->started || !ready(*work)) {
      s.progress.wait(lock);
      continue;
    }
    carry_out(lock, *stream, work);
  }
  stream->worker = false;
}

void start_worker(Stream& stream) {
  if (stream.worker) return;
  stream.worker = true;
  std::thread(serve, &stream).detach();
}

void depend_on(Work& work, const Stream& stream) {
  if (stream.last != nullptr && !stream.last->done) work.after.push_back(stream.last);
}

}  // namespace

void enqueue(Lock& lock, Stream& stream, std::shared_ptr<Work> work) {
  Context& context = *stream.context;
  work->stream = &stream;
  if (stream.legacy) {
    for (const auto& other : context.streams) {
      if (other.get() != &stream && other->blocking()) depend_on(*work, *other);
    }
  } else if (stream.blocking()) {
    for (const auto& other : context.streams) {
      if (other->legacy) depend_on(*work, *other);
    }
  }
  stream.queue.push_back(work);
  stream.last = work;
  if (work->may_run_inline && stream.queue.front() == work && ready(*work)) {
    carry_out(lock, stream, work);
    if (!stream.queue.empty()) start_worker(stream);
    return;
  }
  start_worker(stream);
}

void wait_work(Lock& lock, const std::shared_ptr<Work>& work) {
  if (work == nullptr) return;
  state().progress.wait(lock, [&] { return work->done || deinitialised(); });
}

void wait_stream(Lock& lock, Stream& stream) {
  std::vector<std::shared_ptr<Work>> last{stream.last};
  if (stream.legacy) {
    for (const auto& other : stream.context->streams) {
      if (other->blocking()) last.push_back(other->last);
    }
  }
  for (const auto& work : last) wait_work(lock, work);
}

void wait_context(Lock& lock, Context& context) {
  std::vector<std::shared_ptr<Work>> last;
  for (const auto& stream : context.streams) last.push_back(stream->last);
  // The primary context has the work of its green ones too (cuCtxSynchronize's documentation).
  for (const auto& other : state().contexts) {
    if (!context.primary || !other->green || other->device != context.device) continue;
    for (const auto& stream : other->streams) last.push_back(stream->last);
  }
  for (const auto& work : last) wait_work(lock, work);
}

bool stream_idle(Stream& stream) {
  if (stream.last != nullptr && !stream.last->done) return false;
  if (!stream.legacy) return true;
  return std::all_of(
      stream.context->streams.begin(), stream.context->streams.end(),
      [](const auto& s) { return !s->blocking() || s->last == nullptr || s->last->done; });
}

void check_in_flight(Address base, std::size_t size, const char* what) {
  State& s = state();
  const auto check = [&](Context& context) {
    for (const auto& stream : context.streams) {
      for (const auto& work : stream->queue) {
        const bool hit = std::any_of(work->ranges.begin(), work->ranges.end(),
                                     [&](const Range& r) { return r.overlaps(base, size); });
        if (!hit || work->done || work->poisoned) continue;
        work->poisoned = true;
        ++s.counters.violations;
        kill_device(context.device, CUDA_ERROR_ILLEGAL_ADDRESS);
        complain("%s of 0x%llx (%zu bytes) while work refers to it", what,
                 static_cast<unsigned long long>(base), size);
      }
    }
  };
  for (Device& d : s.devices) check(d.primary);
  for (const auto& context : s.contexts) check(*context);
}

}  // namespace sim
