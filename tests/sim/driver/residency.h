// Managed memory in two tiers: each page lies in host memory or on one device, which holds as many
// as its memory leaves room for. What H200 over PCIe showed (docs/driver-notes.md):
//   - a page that a device uses moves there, unless it prefers the CPU and the device maps it;
//   - where there is no room the page that was used longest ago goes back to host memory first;
//   - native and VMM memory drives managed pages out, never the other way round.
// The limit: the CPU's own accesses are not seen, so they move nothing back.
#pragma once

#include "driver/memory.h"

namespace sim {

// Bytes of the memory operations of one device, as kvsim_traffic says.
struct Traffic {
  std::uint64_t fetched = 0;
  std::uint64_t evicted = 0;
  std::uint64_t in_place = 0;
  std::uint64_t local = 0;
};

// The managed pages that a device holds, longest unused first.
struct Tier {
  struct Ref {
    Block* block;
    std::size_t page;
  };
  std::map<std::uint64_t, Ref> pages;
  Traffic traffic;
};

// A kernel, memset or copy of `device` uses this memory.
void use(const Piece& piece, int device);
// A prefetch: pages go to a device, or to host memory (-1).
void move_pages(Block& block, Address address, std::size_t size, int where);
// The device's own memory has grown: managed pages make way.
void make_way(int device);
// The block is gone.
void forget_pages(Block& block);

std::size_t bytes_on_device(const Block& block, Address address, std::size_t size);
// Bytes of all managed blocks that a device holds.
std::size_t managed_on_device(int device);

}  // namespace sim
