// See retired.h. A short list: stream-ordered frees of cuMemAlloc memory are rare.
#include "memory/retired.h"

#include <atomic>
#include <new>

#include "base/lock.h"
#include "base/pool.h"
#include "driver/capture.h"
#include "driver/functions.h"
#include "memory/owner.h"
#include "memory/release.h"

namespace kvshim::retired {

namespace {

struct Entry {
  Block block;
  CUevent event;
  Entry* next;
};

constinit Lock lock;
constinit NodePool<sizeof(Entry)> pool;
constinit Entry* head = nullptr;
constinit std::atomic<unsigned> count{0};

Entry* take_all() noexcept {
  const Guard guard(lock);
  Entry* all = head;
  head = nullptr;
  return all;
}

void put_back(Entry* entry) noexcept {
  const Guard guard(lock);
  entry->next = head;
  head = entry;
}

}  // namespace

bool add(const Block& block, CUevent event) noexcept {
  const Guard guard(lock);
  void* node = pool.take();
  if (node == nullptr) return false;
  head = new (node) Entry{block, event, head};
  count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::uint64_t reap() noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return 0;
  const driver::RelaxedCapture relaxed;  // asking an event would end a capture in another mode
  std::uint64_t bytes = 0;
  for (Entry* entry = take_all(); entry != nullptr;) {
    Entry* next = entry->next;
    if (driver::cuEventQuery(entry->event) == CUDA_SUCCESS) {
      driver::cuEventDestroy_v2(entry->event);
      release(entry->block);
      bytes += entry->block.bytes;
      const Guard guard(lock);
      pool.give(entry);
      count.fetch_sub(1, std::memory_order_relaxed);
    } else {
      put_back(entry);
    }
    entry = next;
  }
  return bytes;
}

bool contains(CUdeviceptr base) noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return false;
  const Guard guard(lock);
  for (const Entry* entry = head; entry != nullptr; entry = entry->next) {
    if (entry->block.base == base) return true;
  }
  return false;
}

void drop(const Owner& owner) noexcept {
  for (Entry* entry = take_all(); entry != nullptr;) {
    Entry* next = entry->next;
    if (entry->block.owner == &owner) {
      if (entry->block.kind == Kind::vmm) release(entry->block);  // the others went with the context
      const Guard guard(lock);
      pool.give(entry);
      count.fetch_sub(1, std::memory_order_relaxed);
    } else {
      put_back(entry);
    }
    entry = next;
  }
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<sizeof(Entry)>;
  head = nullptr;
  count.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::retired
