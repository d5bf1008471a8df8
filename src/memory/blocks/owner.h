// A context that owns blocks, as cuMemAlloc's memory has an owner: which device, how to wait for
// all its work with the native driver's verdict, and its slabs.
//
// The wait. A native cuMemFree waits for the owner context's work, from any thread, and fails with
// 900 while a stream captures in a mode that forbids it; in a relaxed capture it waits and the
// capture survives. cuMemUnmap waits for nothing, and cuCtxSynchronize kills a relaxed capture
// (measured, docs/driver-notes.md). So every owner keeps a spare native block of a few bytes:
// freeing it *is* the wait, with the native answer in every mode.
#pragma once

#include <cuda.h>

#include <atomic>

#include "base/lock.h"
#include "driver/device.h"
#include "memory/kinds/slab.h"

namespace kvshim {

class Owner {
 public:
  constexpr Owner() = default;

  CUcontext context() const noexcept { return context_.load(std::memory_order_relaxed); }
  driver::Device& device() const noexcept { return *device_; }
  SlabAllocator& slabs() noexcept { return slabs_; }

  // Makes sure that a later wait finds a spare block. Called with this context current, by the
  // allocation that makes a wait necessary. Failure is not an error: the wait has another way.
  void stock_spare() noexcept;

  // Waits for all work of this context and answers as cuMemFree would: 900 in a forbidding capture
  // (which dies, as natively), 4 while the driver shuts down. Any thread, with or without a
  // context. *gone is set when the context no longer exists: then nothing uses its memory any more.
  CUresult wait_idle(bool* gone) noexcept;

  // Who owns what is allocated while this context is current: itself, or for a green context the
  // primary one. NULL when that one has ended.
  Owner* home() noexcept {
    if (home_ == nullptr) return this;
    return home_->context() != nullptr ? home_ : nullptr;
  }

  // The context was destroyed: nothing finds this owner any more.
  void end() noexcept { context_.store(nullptr, std::memory_order_relaxed); }
  // After that: its spares and its stream went with the context, its slabs go back to the driver.
  void abandon() noexcept;

  // A stream of this context that the program does not know, for work that kvshim does in its
  // place. Idle, so that nothing else of the program's is waited for. With this context current,
  // and given back when the work is in it. Errors: the driver's.
  CUresult take_stream(CUstream* stream) noexcept;
  void give_stream(CUstream stream) noexcept;

  // cuMemFreeAsync of a spare block on `stream`: the native verdict on freeing there. No waiting.
  CUresult verdict_async(CUstream stream) noexcept;

 private:
  friend class Owners;

  CUresult take_spare(CUdeviceptr* spare) noexcept;
  void give_spare(CUdeviceptr spare) noexcept;
  CUresult allocate_spare(CUdeviceptr* spare) noexcept;

  std::atomic<CUcontext> context_{nullptr};  // NULL again once it is destroyed
  unsigned long long id_ = 0;                // contexts are recycled by address; the id never is
  driver::Device* device_ = nullptr;
  Owner* home_ = nullptr;  // NULL: itself
  Owner* next_ = nullptr;
  // Two spares: the second one keeps the driver's 2 MiB page of small blocks alive, so that a pair
  // of free and allocate costs 3 us and not 90.
  std::atomic<CUdeviceptr> spares_[2] = {};
  std::atomic<CUstream> stream_{nullptr};  // the one given back last; it may have work to do yet
  SlabAllocator slabs_;
};

class Owners {
 public:
  // The owner record of the calling thread's current context, made on first sight. In a green
  // context (a share of the device's units) that is the record of the context which the driver
  // names as the owner of memory allocated there. Errors: the driver's (201 without a context, 3
  // before cuInit, 4 at shutdown), 2 when no record can be made.
  CUresult current(Owner** out) noexcept;

  // The record of `context` as it is now; NULL where kvshim made none. No driver call but for its
  // id.
  Owner* find(CUcontext context) const noexcept;

  // All owners, newest first; a record is never freed, so walking needs no lock.
  Owner* first() const noexcept { return first_.load(std::memory_order_acquire); }
  static Owner* next(const Owner& owner) noexcept { return owner.next_; }

  void forget() noexcept;  // in a forked child

 private:
  Owner* make(CUcontext context, driver::Device& device, Owner* home) noexcept;

  std::atomic<Owner*> first_{nullptr};
  Lock lock_;
};

extern constinit Owners owners;

}  // namespace kvshim
