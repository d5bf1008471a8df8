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
  bool taken;  // some thread is asking its event or releasing it; the entry stays in the list
  Entry* next;
};

constinit Lock lock;
constinit NodePool<sizeof(Entry)> pool;
constinit Entry* head = nullptr;
constinit std::atomic<unsigned> count{0};

// The first entry from `at` on that nobody else works on and that `wanted` accepts, marked taken.
template <typename Wanted>
Entry* take_from(Entry* at, Wanted wanted) noexcept {
  const Guard guard(lock);
  for (Entry* entry = at == nullptr ? head : at->next; entry != nullptr; entry = entry->next) {
    if (entry->taken || !wanted(entry->block)) continue;
    entry->taken = true;
    return entry;
  }
  return nullptr;
}

void untake(Entry* entry) noexcept {
  const Guard guard(lock);
  entry->taken = false;
}

// Removes an entry that this thread has taken: its memory is released by now.
void remove(Entry* gone) noexcept {
  const Guard guard(lock);
  for (Entry** link = &head; *link != nullptr; link = &(*link)->next) {
    if (*link != gone) continue;
    *link = gone->next;
    break;
  }
  pool.give(gone);
  count.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

bool add(const Block& block, CUevent event) noexcept {
  const Guard guard(lock);
  void* node = pool.take();
  if (node == nullptr) return false;
  head = new (node) Entry{block, event, false, head};
  count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::uint64_t reap() noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return 0;
  const driver::RelaxedCapture relaxed;  // asking an event would end a capture in another mode
  std::uint64_t bytes = 0;
  // The walk stands on the last entry that is not ready; taken, so that nobody removes it.
  Entry* left = nullptr;
  while (Entry* entry = take_from(left, [](const Block&) { return true; })) {
    if (driver::cuEventQuery(entry->event) != CUDA_SUCCESS) {
      if (left != nullptr) untake(left);
      left = entry;
      continue;
    }
    driver::cuEventDestroy_v2(entry->event);
    release(entry->block);
    bytes += entry->block.bytes;
    remove(entry);
  }
  if (left != nullptr) untake(left);
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
  const auto owned = [&](const Block& block) { return block.owner == &owner; };
  while (Entry* entry = take_from(nullptr, owned)) {
    if (entry->block.kind == Kind::vmm) release(entry->block);  // the others went with the context
    remove(entry);
  }
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<sizeof(Entry)>;
  head = nullptr;
  count.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::retired
