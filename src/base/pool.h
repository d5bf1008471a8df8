// Fixed-size nodes from mmap'd chunks with a free list. The library keeps its records here and not
// in malloc: the host's allocator may be anything, and may itself be what is calling us. Chunks are
// never returned. Not thread-safe: the owner's lock protects it.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace kvshim {

template <std::size_t NodeSize>
class NodePool {
 public:
  constexpr NodePool() = default;

  // Makes sure that the next `count` calls of take() succeed (count is far below a chunk's nodes).
  // False when the kernel gives no memory.
  bool reserve(std::size_t count) noexcept {
    if (free_count_ >= count) return true;
    void* chunk = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) return false;
    auto* bytes = static_cast<std::byte*>(chunk);
    for (std::size_t at = 0; at + kNode <= kChunk; at += kNode) give(bytes + at);
    return true;
  }

  // A node of NodeSize bytes, 16-byte aligned, or NULL when the kernel gives no memory.
  void* take() noexcept {
    if (!reserve(1)) return nullptr;
    Link* node = free_;
    free_ = node->next;
    --free_count_;
    return node;
  }

  void give(void* node) noexcept {
    auto* link = static_cast<Link*>(node);
    link->next = free_;
    free_ = link;
    ++free_count_;
  }

 private:
  struct Link {
    Link* next;
  };
  static constexpr std::size_t kNode = (NodeSize + 15) / 16 * 16;
  static constexpr std::size_t kChunk = 256 * 1024;
  static_assert(kNode >= sizeof(Link) && kNode <= kChunk);
  Link* free_ = nullptr;
  std::size_t free_count_ = 0;
};

}  // namespace kvshim
