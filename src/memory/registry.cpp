// See registry.h. An ordered map, since queries come with interior addresses. Its nodes come from a
// pool of our own: no use of the host's heap under the lock.
#include "memory/registry.h"

#include <atomic>
#include <map>
#include <new>

#include "base/lock.h"
#include "base/pool.h"

namespace kvshim::registry {

namespace {

constinit Lock lock;
// Large enough for a node of std::map<CUdeviceptr, Block>: colour, three links, the pair.
constexpr std::size_t kNodeBytes = sizeof(Block) + sizeof(CUdeviceptr) + 48;
constinit NodePool<kNodeBytes> pool;

// Nodes one at a time from the pool. `reserve` has made sure that there is one.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>&) noexcept {}
  T* allocate(std::size_t) noexcept {
    static_assert(sizeof(T) <= kNodeBytes);
    return static_cast<T*>(pool.take());
  }
  void deallocate(T* node, std::size_t) noexcept { pool.give(node); }
  bool operator==(const PoolAllocator&) const = default;
};

using Map = std::map<CUdeviceptr, Block, std::less<CUdeviceptr>,
                     PoolAllocator<std::pair<const CUdeviceptr, Block>>>;

// Built on first use, never destroyed: foreign constructors come before us, destructors after.
constinit std::atomic<bool> built{false};
alignas(Map) constinit unsigned char storage[sizeof(Map)] = {};

Map& map() noexcept {  // with the lock held
  auto* made = std::launder(reinterpret_cast<Map*>(storage));
  if (!built.load(std::memory_order_relaxed)) {
    made = new (storage) Map;
    built.store(true, std::memory_order_relaxed);
  }
  return *made;
}

}  // namespace

bool reserve() noexcept {
  // One node for every thread that may stand between its reserve and its insert.
  constexpr std::size_t kThreads = 1024;
  const Guard guard(lock);
  return pool.reserve(kThreads);
}

void insert(const Block& block) noexcept {
  const Guard guard(lock);
  map().insert_or_assign(block.base, block);
}

bool take(CUdeviceptr base, Block* out) noexcept {
  const Guard guard(lock);
  const auto found = map().find(base);
  if (found == map().end()) return false;
  *out = found->second;
  map().erase(found);
  return true;
}

bool find(CUdeviceptr address, Block* out) noexcept {
  const Guard guard(lock);
  auto after = map().upper_bound(address);
  if (after == map().begin()) return false;
  const Block& block = (--after)->second;
  if (address - block.base >= block.bytes) return false;
  *out = block;
  return true;
}

std::uint64_t size() noexcept {
  const Guard guard(lock);
  return map().size();
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<kNodeBytes>;
  built.store(false, std::memory_order_relaxed);
}

}  // namespace kvshim::registry
