// Small blocks share physical pages, as the native allocator's do: a slab is one vmm mapping of the
// device's granularity (2 MiB), cut into units of 512 bytes. One allocator per owner context.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "base/lock.h"
#include "driver/device.h"
#include "memory/kinds/vmm.h"

namespace kvshim {

class Slab;  // slab.cpp

class SlabAllocator {
 public:
  static constexpr std::uint64_t kUnit = 512;  // native alignment
  // Empty slabs that are kept for the next small block; the rest goes back to the driver.
  static constexpr unsigned kKeptEmpty = 8;

  struct Place {
    CUdeviceptr base = 0;
    Slab* slab = nullptr;
  };

  constexpr SlabAllocator() = default;

  // A place for `bytes` (1 .. granularity - 1), 512-byte aligned. A new slab is created when none
  // has room; errors are vmm::create's, with *out untouched.
  CUresult allocate(driver::Device& device, std::uint64_t bytes, Place* out) noexcept;

  // Gives the place back. The caller has waited for all work that uses it.
  void free(const Place& place, std::uint64_t bytes) noexcept;

  // No block that comes later shares these pages, and they go back to the driver with the last one
  // that does: another process is about to see them. Bytes that stay unused count as taken.
  void seal(Slab* slab) noexcept;

  // Gives every empty slab back to the driver; returns the bytes that came free.
  std::uint64_t trim() noexcept;

  // Bytes of this allocator's slabs that no block uses and one may still get.
  std::uint64_t free_bytes() const noexcept { return free_bytes_.load(std::memory_order_relaxed); }

  // The whole mapping that a place belongs to.
  static const vmm::Mapping& mapping(const Slab& slab) noexcept;

 private:
  bool allocate_from_existing(std::uint64_t units, Place* out) noexcept;
  void link(Slab* slab) noexcept;
  void unlink(Slab* slab) noexcept;

  Lock lock_;
  Slab* with_room_ = nullptr;  // slabs with at least one free unit, most recently freed into first
  unsigned empty_ = 0;         // how many of them have no block at all
  std::atomic<std::uint64_t> free_bytes_{0};
};

}  // namespace kvshim
