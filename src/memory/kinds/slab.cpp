// See slab.h. First fit over a bitmap per slab. A slab remembers an upper bound of its longest free
// run, so that slabs without room for a request are passed over without looking at their bitmap.
#include "memory/kinds/slab.h"

#include <sys/mman.h>

#include <bit>
#include <new>

#include "base/sizes.h"
#include "memory/blocks/registry.h"
#include "memory/peers.h"

namespace kvshim {

class Slab {
 public:
  Slab(const vmm::Mapping& mapping, std::uint64_t units) noexcept
      : mapping_(mapping), units_(units), free_(units), longest_(units) {}

  static std::size_t record_bytes(std::uint64_t units) noexcept {
    return sizeof(Slab) + (units + 63) / 64 * sizeof(std::uint64_t);
  }

  const vmm::Mapping& mapping() const noexcept { return mapping_; }
  std::uint64_t units() const noexcept { return units_; }
  std::uint64_t free_units() const noexcept { return free_; }
  bool full() const noexcept { return free_ == 0; }
  bool empty() const noexcept { return free_ == units_; }
  bool may_hold(std::uint64_t count) const noexcept { return longest_ >= count; }

  // The first run of `count` free units, marked used; -1 where there is none.
  std::int64_t take(std::uint64_t count) noexcept {
    std::uint64_t at = first_free_;
    bool skipped = false;
    while (at < units_) {
      const std::uint64_t start = next_free(at);
      if (start >= units_) break;
      const std::uint64_t end = next_used(start, start + count);
      if (end - start >= count) {
        mark(start, count, true);
        free_ -= count;
        if (!skipped) first_free_ = start + count;
        return static_cast<std::int64_t>(start);
      }
      if (!skipped) first_free_ = start;
      skipped = true;
      at = end;
    }
    longest_ = count - 1;
    return -1;
  }

  void give(std::uint64_t start, std::uint64_t count) noexcept {
    mark(start, count, false);
    free_ += count;
    longest_ = free_;  // an upper bound is enough
    if (start < first_free_) first_free_ = start;
  }

  Slab* next = nullptr;
  Slab* previous = nullptr;
  bool sealed = false;  // see SlabAllocator::seal; never among those with room

 private:
  std::uint64_t* words() noexcept { return reinterpret_cast<std::uint64_t*>(this + 1); }

  std::uint64_t next_free(std::uint64_t at) noexcept { return seek(at, units_, ~0ull); }
  std::uint64_t next_used(std::uint64_t at, std::uint64_t limit) noexcept {
    return seek(at, limit < units_ ? limit : units_, 0);
  }
  // First unit in [at, limit) whose bit, xored with `flip`, is set; `limit` where there is none.
  std::uint64_t seek(std::uint64_t at, std::uint64_t limit, std::uint64_t flip) noexcept {
    while (at < limit) {
      const std::uint64_t word = (words()[at / 64] ^ flip) >> (at % 64);
      if (word != 0) {
        const std::uint64_t found = at + static_cast<std::uint64_t>(std::countr_zero(word));
        return found < limit ? found : limit;
      }
      at = (at / 64 + 1) * 64;
    }
    return limit;
  }

  void mark(std::uint64_t start, std::uint64_t count, bool used) noexcept {
    for (std::uint64_t at = start; at < start + count;) {
      const std::uint64_t bit = at % 64;
      const std::uint64_t here = 64 - bit < start + count - at ? 64 - bit : start + count - at;
      const std::uint64_t mask = (here == 64 ? ~0ull : (1ull << here) - 1) << bit;
      if (used) {
        words()[at / 64] |= mask;
      } else {
        words()[at / 64] &= ~mask;
      }
      at += here;
    }
  }

  vmm::Mapping mapping_;
  std::uint64_t units_;
  std::uint64_t free_;
  std::uint64_t longest_;         // no free run is longer
  std::uint64_t first_free_ = 0;  // no unit before it is free
};

namespace {

std::uint64_t units_for(std::uint64_t bytes) noexcept {
  return (bytes + SlabAllocator::kUnit - 1) / SlabAllocator::kUnit;
}

// The record is plain zeroed memory of its own, outside the host's heap.
Slab* make_record(const vmm::Mapping& mapping) noexcept {
  const std::uint64_t units = mapping.bytes / SlabAllocator::kUnit;
  void* memory = mmap(nullptr, Slab::record_bytes(units), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Slab(mapping, units);
}

void destroy(Slab* slab) noexcept {
  registry::remove_slab(slab->mapping().base);
  vmm::destroy(slab->mapping());
  munmap(slab, Slab::record_bytes(slab->units()));
}

}  // namespace

const vmm::Mapping& SlabAllocator::mapping(const Slab& slab) noexcept {
  return slab.mapping();
}

void SlabAllocator::link(Slab* slab) noexcept {
  slab->previous = nullptr;
  slab->next = with_room_;
  if (with_room_ != nullptr) with_room_->previous = slab;
  with_room_ = slab;
}

void SlabAllocator::unlink(Slab* slab) noexcept {
  if (slab->previous != nullptr) slab->previous->next = slab->next;
  if (slab->next != nullptr) slab->next->previous = slab->previous;
  if (with_room_ == slab) with_room_ = slab->next;
}

bool SlabAllocator::allocate_from_existing(std::uint64_t units, Place* out) noexcept {
  for (Slab* slab = with_room_; slab != nullptr; slab = slab->next) {
    if (!slab->may_hold(units)) continue;
    const bool was_empty = slab->empty();
    const std::int64_t unit = slab->take(units);
    if (unit < 0) continue;
    if (was_empty) --empty_;
    if (slab->full()) unlink(slab);
    free_bytes_.fetch_sub(units * kUnit, std::memory_order_relaxed);
    *out = {slab->mapping().base + static_cast<std::uint64_t>(unit) * kUnit, slab};
    return true;
  }
  return false;
}

CUresult SlabAllocator::allocate(driver::Device& device, std::uint64_t bytes, Place* out) noexcept {
  const std::uint64_t units = units_for(bytes);
  {
    const Guard guard(lock_);
    if (allocate_from_existing(units, out)) return CUDA_SUCCESS;
  }
  vmm::Mapping mapping;
  const CUresult code = vmm::create(device, device.granularity(), &mapping);
  if (code != CUDA_SUCCESS) return code;
  Slab* slab = make_record(mapping);
  if (slab == nullptr) {
    vmm::destroy(mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  registry::insert_slab(mapping.base, mapping.bytes, device.ordinal());
  peers::share({mapping.base, mapping.bytes, device.ordinal()});
  const Guard guard(lock_);
  link(slab);
  ++empty_;
  free_bytes_.fetch_add(mapping.bytes, std::memory_order_relaxed);
  allocate_from_existing(units, out);
  return CUDA_SUCCESS;
}

void SlabAllocator::free(const Place& place, std::uint64_t bytes) noexcept {
  Slab* slab = place.slab;
  const std::uint64_t units = units_for(bytes);
  {
    const Guard guard(lock_);
    const bool was_full = slab->full();
    slab->give((place.base - slab->mapping().base) / kUnit, units);
    if (!slab->sealed) {
      free_bytes_.fetch_add(units * kUnit, std::memory_order_relaxed);
      if (was_full) link(slab);
    }
    if (!slab->empty()) return;
    if (!slab->sealed) {
      if (empty_ < kKeptEmpty) {
        ++empty_;
        return;
      }
      unlink(slab);
      free_bytes_.fetch_sub(slab->mapping().bytes, std::memory_order_relaxed);
    }
  }
  destroy(slab);
}

void SlabAllocator::seal(Slab* slab) noexcept {
  const Guard guard(lock_);
  if (slab->sealed) return;
  slab->sealed = true;
  if (slab->full()) return;
  unlink(slab);
  free_bytes_.fetch_sub(slab->free_units() * kUnit, std::memory_order_relaxed);
}

std::uint64_t SlabAllocator::trim() noexcept {
  Slab* surplus = nullptr;
  std::uint64_t bytes = 0;
  {
    const Guard guard(lock_);
    for (Slab* slab = with_room_; slab != nullptr;) {
      Slab* next = slab->next;
      if (slab->empty()) {
        unlink(slab);
        slab->next = surplus;
        surplus = slab;
        bytes += slab->mapping().bytes;
      }
      slab = next;
    }
    empty_ = 0;
    free_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  while (surplus != nullptr) {
    Slab* next = surplus->next;
    destroy(surplus);
    surplus = next;
  }
  return bytes;
}

}  // namespace kvshim
