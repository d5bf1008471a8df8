// The CPU writes to managed memory, with several threads. First touch places a page in host memory;
// this is also how a cuMemset on a managed block is carried out without moving it to the device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvshim::placement {

// What to write: `width` bytes (1, 2 or 4) of `value` again and again.
struct Pattern {
  std::uint32_t value = 0;
  unsigned width = 1;
};

// Fills [start, start + bytes) and returns when it is done. Large ranges are cut into contiguous
// parts aligned to 2 MiB, one per thread (threads that take turns at small pieces are five times
// slower: they fight over the same page tables, measured); the threads run on the CPUs of
// `numa_node` where this process may use some of them (-1: anywhere it may run). Start and bytes
// are multiples of the pattern's width. The threads end before it returns and take no signals.
void fill(void* start, std::size_t bytes, Pattern pattern, int numa_node) noexcept;

// Rows of a 2D memset: `height` rows of `width_bytes`, `pitch` bytes apart.
void fill_2d(void* start, std::size_t pitch, std::size_t width_bytes, std::size_t height,
             Pattern pattern, int numa_node) noexcept;

// How many threads fill() would use for a range of this size.
unsigned thread_count(std::size_t bytes) noexcept;

}  // namespace kvshim::placement
