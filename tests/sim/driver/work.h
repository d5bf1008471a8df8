// Asynchronous work: operations, the streams that order them, and the threads that carry them out.
// Everything is called with the state's lock held; a Work body runs without it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/cuda_abi.h"

namespace sim {

struct Context;
struct Stream;
struct Capture;
using Lock = std::unique_lock<std::mutex>;

struct Range {
  Address base;
  std::size_t size;
  bool overlaps(Address other, std::size_t bytes) const {
    return base < other + bytes && other < base + size;
  }
};

// One operation of a stream: a kernel, a copy, an event. `body` returns the error that kills the
// context (0 for none).
struct Work {
  std::function<CUresult(const Work&)> body;
  std::vector<Range>
      ranges;  // addresses it refers to; freeing one of them too early is a violation
  std::vector<std::shared_ptr<Work>> after;
  Stream* stream = nullptr;
  bool may_run_inline = false;  // short: the calling thread does it when nothing is in front
  bool started = false;
  bool done = false;
  bool poisoned = false;  // its memory went away
  std::chrono::steady_clock::time_point finished;
};

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  bool legacy = false;
  bool per_thread = false;
  bool destroyed = false;
  bool worker = false;  // a thread serves the queue now
  std::deque<std::shared_ptr<Work>> queue;
  std::shared_ptr<Work> last;
  Capture* capture = nullptr;
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Work> work;  // the record, null before the first
  Capture* capture = nullptr;  // recorded in this capture
  Stream* captured_on = nullptr;
};

// The stream that a handle means for the current thread and context. Null: no such stream, or no
// context for a default stream (*why says 400 or 201).
Stream* find_stream(const Api& api, CUstream handle, CUresult* why);
Stream* legacy_stream(Context& context);

// Puts work at the end of a stream, after what the legacy stream's rules demand. May run it.
void enqueue(Lock& lock, Stream& stream, std::shared_ptr<Work> work);
// Waits; the lock is released meanwhile.
void wait_work(Lock& lock, const std::shared_ptr<Work>& work);
void wait_stream(Lock& lock, Stream& stream);
void wait_context(Lock& lock, Context& context);
bool stream_idle(Stream& stream);

// Called when [base, base + size) is about to disappear: counts and reports unfinished work that
// refers to it, and kills the contexts concerned.
void check_in_flight(Address base, std::size_t size, const char* what);

}  // namespace sim
