// The native allocator: blocks under 2 MiB share 2 MiB pages, larger ones take whole pages.
#include "driver/memory.h"
#include "driver/state.h"

namespace sim {
namespace {

Chunk* new_chunk(Context& context, std::size_t size) {
  auto backing = allocate_backing(context.device, size);
  if (backing == nullptr) return nullptr;
  const Address base = reserve_addresses(size, kPage);
  if (base == 0) return nullptr;
  auto chunk = std::make_unique<Chunk>();
  chunk->base = base;
  chunk->size = size;
  chunk->context = &context;
  chunk->backing = std::move(backing);
  chunk->free[0] = size;
  Chunk* raw = chunk.get();
  state().chunks[base] = std::move(chunk);
  return raw;
}

bool take(Chunk& chunk, std::size_t size, std::size_t* offset) {
  for (auto it = chunk.free.begin(); it != chunk.free.end(); ++it) {
    if (it->second < size) continue;
    *offset = it->first;
    const std::size_t rest = it->second - size;
    chunk.free.erase(it);
    if (rest > 0) chunk.free[*offset + size] = rest;
    return true;
  }
  return false;
}

void put_back(Chunk& chunk, std::size_t offset, std::size_t size) {
  auto next = chunk.free.lower_bound(offset);
  if (next != chunk.free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      chunk.free.erase(before);
    }
  }
  if (next != chunk.free.end() && offset + size == next->first) {
    size += next->second;
    chunk.free.erase(next);
  }
  chunk.free[offset] = size;
}

}  // namespace

std::shared_ptr<Block> allocate_native(Context& current, std::size_t bytes, BlockKind kind) {
  Context& context = memory_owner(current);
  if (bytes > (std::size_t{1} << 46)) return nullptr;
  std::size_t taken = round_up(bytes, kSmall);
  std::size_t offset = 0;
  Chunk* chunk = nullptr;
  if (taken < kPage) {
    for (const auto& [base, candidate] : state().chunks) {
      if (candidate->context != &context || candidate->size != kPage) continue;
      if (take(*candidate, taken, &offset)) {
        chunk = candidate.get();
        break;
      }
    }
  } else {
    taken = round_up(bytes, kPage);
  }
  if (chunk == nullptr) {
    chunk = new_chunk(context, taken < kPage ? kPage : taken);
    if (chunk == nullptr) return nullptr;
    take(*chunk, taken, &offset);
  }
  auto block = add_block(kind, chunk->base + offset, bytes, &context, context.device);
  block->taken = taken;
  block->chunk = chunk;
  block->backing = chunk->backing;
  block->memory = chunk->backing->bytes + offset;
  return block;
}

void drop_block(const std::shared_ptr<Block>& block) {
  State& s = state();
  s.blocks.erase(block->base);
  if (block->pool != nullptr) block->pool->used -= block->taken;
  Chunk* chunk = block->chunk;
  if (chunk == nullptr) return;
  put_back(*chunk, block->base - chunk->base, block->taken);
  block->chunk = nullptr;
  block->backing.reset();
  if (chunk->free.size() == 1 && chunk->free.begin()->second == chunk->size) {
    return_addresses(chunk->base, chunk->size);
    s.chunks.erase(chunk->base);
  }
}

}  // namespace sim
