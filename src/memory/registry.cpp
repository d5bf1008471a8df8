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
struct Tables {
  Map blocks;
  Map slabs;
  Map opened;  // by the base of the mapping
};
constinit std::atomic<bool> built{false};
alignas(Tables) constinit unsigned char storage[sizeof(Tables)] = {};
constinit std::atomic<std::uint64_t> next_id{1};

Tables& tables() noexcept {  // with the lock held
  if (!built.load(std::memory_order_relaxed)) {
    new (storage) Tables;
    built.store(true, std::memory_order_relaxed);
  }
  return *std::launder(reinterpret_cast<Tables*>(storage));
}

// The record that starts at or before `address`, or NULL.
Block* before(Map& map, CUdeviceptr address) noexcept {
  auto after = map.upper_bound(address);
  return after == map.begin() ? nullptr : &(--after)->second;
}

bool covers(const Block* block, CUdeviceptr address) noexcept {
  return block != nullptr && address - block->base < block->bytes;
}

Block* block_at(CUdeviceptr address) noexcept {
  Block* block = before(tables().blocks, address);
  if (!covers(block, address)) block = before(tables().opened, address);
  return covers(block, address) ? block : nullptr;
}

}  // namespace

bool reserve() noexcept {
  // One node for every thread that may stand between its reserve and its insert; a block may bring a
  // slab with it.
  constexpr std::size_t kNodes = 1024;
  const Guard guard(lock);
  return pool.reserve(kNodes);
}

void insert(const Block& block) noexcept {
  const Guard guard(lock);
  Block& record = tables().blocks.insert_or_assign(block.base, block).first->second;
  if (record.id == 0) record.id = next_id.fetch_add(1, std::memory_order_relaxed);
}

bool take(CUdeviceptr base, Block* out) noexcept {
  const Guard guard(lock);
  Map& blocks = tables().blocks;
  const auto found = blocks.find(base);
  if (found == blocks.end()) return false;
  *out = found->second;
  blocks.erase(found);
  return true;
}

Place find(CUdeviceptr address, Block* out) noexcept {
  const Guard guard(lock);
  if (const Block* block = before(tables().blocks, address)) {
    if (address - block->base < block->bytes) {
      *out = *block;
      return Place::block;
    }
    if (address - block->base < block->mapping.bytes) return Place::hole;
  }
  if (covers(before(tables().slabs, address), address)) return Place::hole;
  const Block* opened = before(tables().opened, address);
  if (opened == nullptr || address - opened->mapping.base >= opened->mapping.bytes) {
    return Place::foreign;
  }
  if (!covers(opened, address)) return Place::hole;
  *out = *opened;
  return Place::block;
}

bool set_sync_memops(CUdeviceptr address, bool on) noexcept {
  const Guard guard(lock);
  Block* block = block_at(address);
  if (block != nullptr) block->sync_memops = on;
  return block != nullptr;
}

bool take_any_of(const Owner& owner, Block* out) noexcept {
  const Guard guard(lock);
  Map& blocks = tables().blocks;
  for (auto at = blocks.begin(); at != blocks.end(); ++at) {
    if (at->second.owner != &owner) continue;
    *out = at->second;
    blocks.erase(at);
    return true;
  }
  return false;
}

std::uint32_t mark_exported(CUdeviceptr base, std::uint64_t id, std::uint32_t slot) noexcept {
  const Guard guard(lock);
  Map& blocks = tables().blocks;
  const auto found = blocks.find(base);
  if (found == blocks.end() || found->second.id != id) return 0;
  if (found->second.export_slot == 0) found->second.export_slot = slot;
  return found->second.export_slot;
}

void insert_opened(const Block& block) noexcept {
  const Guard guard(lock);
  Block& record = tables().opened.insert_or_assign(block.mapping.base, block).first->second;
  if (record.id == 0) record.id = next_id.fetch_add(1, std::memory_order_relaxed);
}

void remove_opened(const Block& block) noexcept {
  const Guard guard(lock);
  tables().opened.erase(block.mapping.base);
}

void insert_slab(CUdeviceptr base, std::uint64_t bytes) noexcept {
  Block slab;
  slab.base = base;
  slab.bytes = bytes;
  const Guard guard(lock);
  tables().slabs.insert_or_assign(base, slab);
}

void remove_slab(CUdeviceptr base) noexcept {
  const Guard guard(lock);
  tables().slabs.erase(base);
}

std::uint64_t size() noexcept {
  const Guard guard(lock);
  return tables().blocks.size();
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<kNodeBytes>;
  built.store(false, std::memory_order_relaxed);
}

}  // namespace kvshim::registry
