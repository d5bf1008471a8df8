// The list of blocks that were freed in stream order, oldest first; see retired.h. Entries stay in
// the list, marked, while a thread works on them: contains() must know them until they are gone.
#include "memory/blocks/retired.h"

#include <sched.h>

#include <atomic>
#include <new>

#include "base/lock.h"
#include "base/pool.h"
#include "driver/capture.h"
#include "driver/functions.h"
#include "memory/blocks/owner.h"
#include "memory/release.h"

namespace kvshim::retired {

struct Entry {
  Block block;
  CUevent event;  // NULL: its context is gone, so the work is done
  CUcontext event_context;
  bool taken;    // some thread is asking its event or releasing it
  bool leaving;  // being released: what lies at its address may be somebody else's by now
  Entry* next;
};

namespace {

// How many entries that are not ready a walk looks at before it gives up, where nobody is short of
// memory: a long queue behind a slow stream must not make every allocation slow.
constexpr unsigned kMisses = 8;
constexpr unsigned kAll = ~0u;

constinit Lock lock;
constinit NodePool<sizeof(Entry)> pool;
constinit Entry* head = nullptr;
constinit Entry** tail = &head;
constinit std::atomic<unsigned> count{0};

void append(Entry* entry) noexcept {  // with the lock held
  entry->next = nullptr;
  *tail = entry;
  tail = &entry->next;
  count.fetch_add(1, std::memory_order_relaxed);
}

void unlink(Entry** link) noexcept {  // with the lock held
  Entry* gone = *link;
  *link = gone->next;
  if (tail == &gone->next) tail = link;
  count.fetch_sub(1, std::memory_order_relaxed);
}

// The first entry behind `at` (NULL: from the start) that nobody works on and `wanted` accepts.
template <typename Wanted>
Entry* take_behind(Entry* at, Wanted wanted) noexcept {
  const Guard guard(lock);
  for (Entry* entry = at == nullptr ? head : at->next; entry != nullptr; entry = entry->next) {
    if (entry->taken || !wanted(entry->block)) continue;
    entry->taken = true;
    return entry;
  }
  return nullptr;
}

void untake(Entry* entry) noexcept {
  if (entry == nullptr) return;
  const Guard guard(lock);
  entry->taken = false;
}

void remove(Entry* gone) noexcept {
  const Guard guard(lock);
  for (Entry** link = &head; *link != nullptr; link = &(*link)->next) {
    if (*link != gone) continue;
    unlink(link);
    break;
  }
  pool.give(gone);
}

// Anything but "not ready" is final: an event whose context failed or is gone never comes.
bool has_come(const Entry& entry) noexcept {
  return entry.event == nullptr || driver::cuEventQuery(entry.event) != CUDA_ERROR_NOT_READY;
}

void set_leaving(Entry* entry, bool leaving) noexcept {
  const Guard guard(lock);
  entry->leaving = leaving;
}

// A managed block may be refused by the driver: then it waits on.
bool give_back(Entry* entry) noexcept {
  set_leaving(entry, true);
  if (release(entry->block) == CUDA_SUCCESS) return true;
  set_leaving(entry, false);
  return false;
}

template <typename Wanted>
std::uint64_t reap_where(unsigned most_misses, Wanted wanted) noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return 0;
  const driver::RelaxedCapture relaxed;  // asking an event would end a capture in another mode
  std::uint64_t bytes = 0;
  unsigned misses = 0;
  Entry* left = nullptr;  // the walk stands on it: taken, so that nobody removes it
  while (misses < most_misses) {
    Entry* entry = take_behind(left, wanted);
    if (entry == nullptr) break;
    if (!has_come(*entry) || !give_back(entry)) {
      untake(left);
      left = entry;
      ++misses;
      continue;
    }
    if (entry->event != nullptr) driver::cuEventDestroy_v2(entry->event);
    bytes += entry->block.bytes;
    remove(entry);
  }
  untake(left);
  return bytes;
}

bool belongs(const Entry& entry, const Owner* owner, CUcontext context) noexcept {
  return (owner != nullptr && entry.block.owner == owner) || entry.event_context == context;
}

}  // namespace

bool add(const Block& block, CUevent event, CUcontext event_context) noexcept {
  const Guard guard(lock);
  void* node = pool.take();
  if (node == nullptr) return false;
  append(new (node) Entry{block, event, event_context, false, false, nullptr});
  return true;
}

std::uint64_t reap(const Owner* owner) noexcept {
  return reap_where(kMisses, [&](const Block& block) {
    return is_mapping(block.kind) || (owner != nullptr && block.owner == owner);
  });
}

std::uint64_t reap_all() noexcept {
  return reap_where(kAll, [](const Block& block) { return is_mapping(block.kind); });
}

std::uint64_t reap_kind(Kind kind) noexcept {
  return reap_where(kAll, [&](const Block& block) { return block.kind == kind; });
}

bool wait_for_others() noexcept {
  for (bool waited = false;; waited = true) {
    bool busy = false;
    {
      const Guard guard(lock);
      for (const Entry* entry = head; entry != nullptr; entry = entry->next) {
        busy = busy || (entry->taken && is_mapping(entry->block.kind));
      }
    }
    if (!busy) return waited;
    sched_yield();
  }
}

bool contains(CUdeviceptr base) noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return false;
  const Guard guard(lock);
  for (const Entry* entry = head; entry != nullptr; entry = entry->next) {
    if (entry->block.base == base) return true;
  }
  return false;
}

bool covers(CUdeviceptr address) noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return false;
  const Guard guard(lock);
  for (const Entry* entry = head; entry != nullptr; entry = entry->next) {
    if (!entry->leaving && address - entry->block.base < entry->block.bytes) return true;
  }
  return false;
}

Entry* detach(const Owner* owner, CUcontext context) noexcept {
  if (count.load(std::memory_order_relaxed) == 0) return nullptr;
  Entry* chain = nullptr;
  for (;;) {
    bool busy = false;
    {
      const Guard guard(lock);
      for (Entry** link = &head; *link != nullptr;) {
        Entry* entry = *link;
        if (!belongs(*entry, owner, context)) {
          link = &entry->next;
        } else if (entry->taken) {
          busy = true;
          link = &entry->next;
        } else {
          unlink(link);
          entry->next = chain;
          chain = entry;
        }
      }
    }
    if (!busy) return chain;
    sched_yield();  // a thread is just releasing one of them: it must not do so after the context
  }
}

void settle(Entry* chain, const Owner* owner, CUcontext context, bool destroyed) noexcept {
  while (chain != nullptr) {
    Entry* entry = chain;
    chain = chain->next;
    if (destroyed && entry->event_context == context) entry->event = nullptr;  // it died with it
    const bool ends = destroyed && owner != nullptr && entry->block.owner == owner;
    if (ends) {
      if (entry->event != nullptr) driver::cuEventDestroy_v2(entry->event);
      if (is_mapping(entry->block.kind)) {
        release(entry->block);
      } else {
        return_budget(entry->block);  // the memory went with the context
      }
    }
    const Guard guard(lock);
    if (ends) {
      pool.give(entry);
    } else {
      append(entry);
    }
  }
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<sizeof(Entry)>;
  head = nullptr;
  tail = &head;
  count.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::retired
