// The address tables: look-ups, access checks, and the bookkeeping of blocks.
#include "driver/memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "driver/residency.h"
#include "driver/state.h"

namespace sim {
namespace {

constexpr Address kNullPage = 65536;  // nothing lies below; a stray small number is no pointer

// Whether this accessor may reach a block that is not VMM memory.
bool may_access(const Block& block, const Accessor& who) {
  switch (block.kind) {
    case BlockKind::managed:
    case BlockKind::host:
    case BlockKind::registered:
      return true;
    case BlockKind::pool:
      if (who.engine == Accessor::Engine::peer_copy) return true;
      return block.device == who.context->device || block.pool->access.count(who.context->device);
    case BlockKind::native:
      // Copies stage through the host where they must; kernels and memsets need the peer mapping.
      return who.engine != Accessor::Engine::kernel || block.device == who.context->device ||
             memory_owner(*who.context).peers.count(block.device) != 0;
    case BlockKind::ipc:
      // Only the device that opened it: cuCtxEnablePeerAccess does not open it to others (measured
      // on two H200: 700).
      return who.engine != Accessor::Engine::kernel || block.device == who.context->device ||
             block.opened_on.count(who.context->device) != 0;
  }
  return false;
}

bool may_access(const Mapping& mapping, const Accessor& who) {
  const auto allowed = [&](int device) {
    const auto it = mapping.access.find(device);
    return it != mapping.access.end() && it->second != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  };
  if (allowed(who.context->device)) return true;
  // cuMemcpyPeer works from the side of the device that owns the memory.
  return who.engine == Accessor::Engine::peer_copy && allowed(mapping.handle->backing->device);
}

std::size_t host_extent(Address address, std::size_t size) {
  // A plain host range ends where the next device range begins.
  State& s = state();
  const auto next = s.reservations.lower_bound(address);
  if (next != s.reservations.end() && next->first < address + size) return next->first - address;
  return size;
}

}  // namespace

HeldPieces::~HeldPieces() {
  const Lock lock(state().mutex);
  list.clear();
}

Block::~Block() {
  forget_pages(*this);
  if (slot != 0 && alive_slots() != nullptr) alive_slots()[slot] = 0;
  if (kind == BlockKind::managed || (kind == BlockKind::host && taken > 0)) {
    munmap(memory, taken);
  }
  if (kind == BlockKind::ipc) return_addresses(base / kPage * kPage, taken);
}

std::shared_ptr<Block> find_block(Address address) {
  State& s = state();
  auto it = s.blocks.upper_bound(address);
  if (it == s.blocks.begin()) return nullptr;
  --it;
  const auto& block = it->second;
  return address - block->base < std::max<std::size_t>(block->bytes, 1) ? block : nullptr;
}

Mapping* find_mapping(Address address) {
  State& s = state();
  auto it = s.mappings.upper_bound(address);
  if (it == s.mappings.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &it->second : nullptr;
}

bool in_reservation(Address address) {
  State& s = state();
  auto it = s.reservations.upper_bound(address);
  if (it == s.reservations.begin()) return false;
  --it;
  return address - it->first < it->second.size;
}

bool is_device_address(Address address) {
  const auto block = find_block(address);
  if (block != nullptr) return true;
  if (find_mapping(address) != nullptr || in_reservation(address)) return true;
  State& s = state();
  auto it = s.chunks.upper_bound(address);
  return it != s.chunks.begin() && address - std::prev(it)->first < std::prev(it)->second->size;
}

bool resolve(Address address, std::size_t size, const Accessor& who, std::vector<Piece>* pieces) {
  const bool from_host = !is_device_address(address);
  while (size > 0) {
    Piece piece{};
    piece.address = address;
    piece.on = kUntracked;
    if (const auto block = find_block(address)) {
      if (!may_access(*block, who)) return false;
      const std::size_t into = address - block->base;
      piece.bytes = block->memory + into;
      piece.size = block->bytes - into;
      piece.keep = block->backing != nullptr ? std::shared_ptr<void>(block->backing) : block;
      if (block->kind == BlockKind::managed) piece.managed = block;
      const bool of_host = block->kind == BlockKind::host || block->kind == BlockKind::registered;
      piece.on = of_host ? kHostMemory : block->device;
      if (size > piece.size) return false;  // past the end of the block
    } else if (const Mapping* mapping = find_mapping(address)) {
      if (!may_access(*mapping, who)) return false;
      const std::size_t into = address - mapping->base;
      piece.bytes = mapping->handle->backing->bytes + mapping->offset + into;
      piece.size = mapping->size - into;
      piece.keep = mapping->handle->backing;
      piece.on = mapping->handle->backing->device;
    } else if (!from_host || who.engine == Accessor::Engine::kernel || address < kNullPage) {
      return false;
    } else {
      piece.bytes = reinterpret_cast<char*>(address);
      piece.size = host_extent(address, size);
    }
    piece.size = std::min(piece.size, size);
    address += piece.size;
    size -= piece.size;
    pieces->push_back(std::move(piece));
  }
  return true;
}

std::shared_ptr<Block> add_block(BlockKind kind, Address base, std::size_t bytes, Context* owner,
                                 int device) {
  auto block = std::make_shared<Block>();
  block->kind = kind;
  block->base = base;
  block->bytes = bytes;
  block->owner = owner == nullptr ? nullptr : &memory_owner(*owner);
  block->device = device;
  block->id = state().next_id++;
  state().blocks[base] = block;
  return block;
}

}  // namespace sim
