// See registry.h. An ordered map, since queries come with interior addresses. Its nodes come from a
// pool of our own: no use of the host's heap under the lock.
#include "memory/blocks/registry.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <new>

#include "base/lock.h"
#include "base/pool.h"
#include "memory/blocks/owner.h"

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

using SlabMap = std::map<CUdeviceptr, MappedRange, std::less<CUdeviceptr>,
                         PoolAllocator<std::pair<const CUdeviceptr, MappedRange>>>;

// Built on first use, never destroyed: foreign constructors come before us, destructors after.
struct Tables {
  Map blocks;
  SlabMap slabs;
  Map opened;  // by IPC; by the base of the mapping
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
template <typename AnyMap>
typename AnyMap::mapped_type* before(AnyMap& map, CUdeviceptr address) noexcept {
  auto after = map.upper_bound(address);
  return after == map.begin() ? nullptr : &(--after)->second;
}

// The bounds of all vmm ranges so far. They only grow: a range that is gone may still be asked
// about.
constinit std::atomic<CUdeviceptr> lowest{~CUdeviceptr{0}};
constinit std::atomic<CUdeviceptr> highest{0};

void cover(CUdeviceptr base, std::uint64_t bytes) noexcept {  // with the lock held
  if (base < lowest.load(std::memory_order_relaxed)) {
    lowest.store(base, std::memory_order_relaxed);
  }
  if (base + bytes > highest.load(std::memory_order_relaxed)) {
    highest.store(base + bytes, std::memory_order_relaxed);
  }
}

bool covers(const Block* block, CUdeviceptr address) noexcept {
  return block != nullptr && address - block->base < block->bytes;
}

Place place_at(CUdeviceptr address, const Block** out) noexcept {
  if (const Block* block = before(tables().blocks, address)) {
    if (address - block->base < block->bytes) {
      *out = block;
      return Place::block;
    }
    if (address - block->base < block->mapping.bytes) return Place::hole;
  }
  const MappedRange* slab = before(tables().slabs, address);
  if (slab != nullptr && address - slab->base < slab->bytes) return Place::hole;
  const Block* opened = before(tables().opened, address);
  if (opened == nullptr || address - opened->mapping.base >= opened->mapping.bytes) {
    return Place::foreign;
  }
  if (address - opened->base >= opened->bytes) return Place::hole;
  *out = opened;
  return Place::block;
}

Spot spot_at(CUdeviceptr address) noexcept {
  if (!may_be_vmm(address)) return {};
  const Block* block = nullptr;
  const Place place = place_at(address, &block);
  if (place != Place::block) return {place};
  return {place, block->kind, block->bytes - (address - block->base)};
}

MappedRange range_of(const Block& block) noexcept {
  return {block.mapping.base, block.mapping.bytes,
          block.opened ? block.home : block.owner->device().ordinal(), block.id};
}

// Blocks in a slab, native and managed ones have no mapping of their own; memory of a device that
// this process does not see is nobody's to share.
bool has_range(const Block& block) noexcept {
  return block.mapping.bytes != 0 && (!block.opened || block.home >= 0);
}

const MappedRange& range_of(const MappedRange& slab) noexcept {
  return slab;
}
bool has_range(const MappedRange&) noexcept {
  return true;
}

// The ranges of one table in order.
constexpr CUdeviceptr kEnd = ~CUdeviceptr{0};
template <typename AnyMap>
class Walk {
 public:
  Walk(const AnyMap& map, CUdeviceptr after) noexcept
      : at_(map.upper_bound(after)), end_(map.end()) {
    skip();
  }
  CUdeviceptr at() const noexcept { return at_ == end_ ? kEnd : at_->first; }
  MappedRange take() noexcept {
    const MappedRange range = range_of(at_->second);
    ++at_;
    skip();
    return range;
  }

 private:
  void skip() noexcept {
    while (at_ != end_ && !has_range(at_->second)) ++at_;
  }
  typename AnyMap::const_iterator at_;
  typename AnyMap::const_iterator end_;
};

Block* block_at(CUdeviceptr address) noexcept {
  Block* block = before(tables().blocks, address);
  if (!covers(block, address)) block = before(tables().opened, address);
  return covers(block, address) ? block : nullptr;
}

}  // namespace

bool reserve() noexcept {
  // One node for every thread that may stand between its reserve and its insert; a block may bring
  // a slab with it.
  constexpr std::size_t kNodes = 1024;
  const Guard guard(lock);
  return pool.reserve(kNodes);
}

void insert(const Block& block) noexcept {
  const Guard guard(lock);
  Block& record = tables().blocks.insert_or_assign(block.base, block).first->second;
  if (record.id == 0) record.id = next_id.fetch_add(1, std::memory_order_relaxed);
  if (block.mapping.bytes != 0) cover(block.mapping.base, block.mapping.bytes);
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
  const Block* block = nullptr;
  const Place place = place_at(address, &block);
  if (place == Place::block) *out = *block;
  return place;
}

void look(CUdeviceptr a, Spot* at_a, CUdeviceptr b, Spot* at_b) noexcept {
  const Guard guard(lock);
  *at_a = spot_at(a);
  *at_b = spot_at(b);
}

bool set_sync_memops(CUdeviceptr address, bool on) noexcept {
  const Guard guard(lock);
  Block* block = block_at(address);
  if (block != nullptr) block->sync_memops = on;
  return block != nullptr;
}

bool take_next_of(const Owner& owner, CUdeviceptr from, Block* out) noexcept {
  const Guard guard(lock);
  Map& blocks = tables().blocks;
  for (auto at = blocks.lower_bound(from); at != blocks.end(); ++at) {
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
  cover(block.mapping.base, block.mapping.bytes);
}

void remove_opened(const Block& block) noexcept {
  const Guard guard(lock);
  tables().opened.erase(block.mapping.base);
}

void insert_slab(CUdeviceptr base, std::uint64_t bytes, CUdevice device) noexcept {
  const Guard guard(lock);
  const std::uint64_t id = next_id.fetch_add(1, std::memory_order_relaxed);
  tables().slabs.insert_or_assign(base, MappedRange{base, bytes, device, id});
  cover(base, bytes);
}

void remove_slab(CUdeviceptr base) noexcept {
  const Guard guard(lock);
  tables().slabs.erase(base);
}

bool may_be_vmm(CUdeviceptr address) noexcept {
  return address >= lowest.load(std::memory_order_relaxed) &&
         address < highest.load(std::memory_order_relaxed);
}

unsigned mappings_after(CUdeviceptr after, MappedRange* out, unsigned room) noexcept {
  const Guard guard(lock);
  const Tables& all = tables();
  Walk<Map> blocks(all.blocks, after);
  Walk<Map> opened(all.opened, after);
  Walk<SlabMap> slabs(all.slabs, after);
  for (unsigned count = 0;; ++count) {
    const CUdeviceptr first = std::min({blocks.at(), opened.at(), slabs.at()});
    if (count == room || first == kEnd) return count;
    out[count] = first == blocks.at()  ? blocks.take()
                 : first == slabs.at() ? slabs.take()
                                       : opened.take();
  }
}

bool is_mapped(const MappedRange& range) noexcept {
  const auto is_it = [&](const auto& map) {
    const auto found = map.find(range.base);
    if (found == map.end() || !has_range(found->second)) return false;
    const MappedRange other = range_of(found->second);
    return other.bytes == range.bytes && other.device == range.device &&
           (range.id == 0 || range.id == other.id);
  };
  const Guard guard(lock);
  return is_it(tables().slabs) || is_it(tables().blocks) || is_it(tables().opened);
}

std::uint64_t size() noexcept {
  const Guard guard(lock);
  return tables().blocks.size();
}

void forget() noexcept {
  lock.renew();
  new (&pool) NodePool<kNodeBytes>;
  built.store(false, std::memory_order_relaxed);
  lowest.store(~CUdeviceptr{0}, std::memory_order_relaxed);
  highest.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::registry
