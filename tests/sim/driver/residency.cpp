// See residency.h.
#include "driver/residency.h"

#include <algorithm>

#include "driver/state.h"

namespace sim {
namespace {

Device& device_at(int ordinal) {
  return state().devices[static_cast<std::size_t>(ordinal)];
}

void to_host(Block& block, std::size_t page) {
  ManagedPage& at = block.pages[page];
  if (at.device >= 0) device_at(at.device).tier.pages.erase(at.stamp);
  at = {};
}

// Sends the page that was used longest ago back. False: the device holds none.
bool evict_one(Device& device) {
  if (device.tier.pages.empty()) return false;
  const Tier::Ref oldest = device.tier.pages.begin()->second;
  to_host(*oldest.block, oldest.page);
  device.tier.traffic.evicted += kPage;
  return true;
}

bool has_room(const Device& device, std::size_t pages) {
  return device.used + pages * kPage <= device.memory;
}

// Puts the page at the end of the device's order of use. False: no managed page fits on it.
bool to_device(Block& block, std::size_t page, int ordinal) {
  Device& device = device_at(ordinal);
  ManagedPage& at = block.pages[page];
  const bool there = at.device == ordinal;
  if (!there) {
    while (!has_room(device, device.tier.pages.size() + 1)) {
      if (!evict_one(device)) return false;
    }
    device.tier.traffic.fetched += kPage;
  }
  to_host(block, page);
  at = {ordinal, state().next_use++};
  device.tier.pages[at.stamp] = {&block, page};
  return true;
}

struct PageRange {
  std::size_t first, last;
};
PageRange pages_of(const Block& block, Address address, std::size_t size) {
  const std::size_t last = (address - block.base + size + kPage - 1) / kPage;
  return {(address - block.base) / kPage, std::min(last, block.pages.size())};
}

void use_page(Block& block, std::size_t page, int ordinal) {
  Traffic& traffic = device_at(ordinal).tier.traffic;
  const bool there = block.pages[page].device == ordinal;
  const bool stays = !there && block.preferred == -1 && block.accessed_by.count(ordinal) != 0;
  if (stays || !to_device(block, page, ordinal)) {
    traffic.in_place += kPage;
  } else if (there) {
    traffic.local += kPage;
  }
}

}  // namespace

void use(const Piece& piece, int device) {
  if (piece.managed == nullptr) {
    Traffic& traffic = device_at(device).tier.traffic;
    if (piece.on == kHostMemory) traffic.in_place += piece.size;
    if (piece.on == device) traffic.local += piece.size;
    return;
  }
  const PageRange range = pages_of(*piece.managed, piece.address, piece.size);
  for (std::size_t page = range.first; page < range.last; ++page) {
    use_page(*piece.managed, page, device);
  }
}

void move_pages(Block& block, Address address, std::size_t size, int where) {
  const PageRange range = pages_of(block, address, size);
  for (std::size_t page = range.first; page < range.last; ++page) {
    if (where < 0) {
      to_host(block, page);
    } else {
      to_device(block, page, where);
    }
  }
}

void make_way(int ordinal) {
  Device& device = device_at(ordinal);
  while (!has_room(device, device.tier.pages.size()) && evict_one(device)) {
  }
}

void forget_pages(Block& block) {
  for (std::size_t page = 0; page < block.pages.size(); ++page) to_host(block, page);
}

std::size_t bytes_on_device(const Block& block, Address address, std::size_t size) {
  std::size_t sum = 0;
  const Address end = std::min(address + size, block.base + block.bytes);
  for (Address at = std::max(address, block.base); at < end;) {
    const std::size_t page = (at - block.base) / kPage;
    const Address next = std::min(end, block.base + (page + 1) * kPage);
    if (page < block.pages.size() && block.pages[page].device >= 0) sum += next - at;
    at = next;
  }
  return sum;
}

std::size_t managed_on_device(int device) {
  return device_at(device).tier.pages.size() * kPage;
}

}  // namespace sim
