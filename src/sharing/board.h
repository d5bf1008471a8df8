// What an exporting process shows to those that open its blocks: a sealed memfd with one line for
// each block that has a handle. A line is cleared before the block or its descriptor goes away. So
// a peer that reads a line, takes the descriptor and then finds the line unchanged has the right
// memory: a descriptor number that was reused in between cannot fool it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "sharing/kept_fd.h"

namespace kvshim::sharing {

// How to get at a block: its mapping, and where it lies in it.
struct Offer {
  std::uint64_t mapping_bytes;
  std::uint64_t offset;
  std::uint64_t bytes;       // as requested
  std::int32_t fd;           // the exporter's number of it; -1: none is kept, ask its socket
  std::uint32_t type;        // CUmemAllocationHandleType
  unsigned char fabric[64];  // the handle itself for a fabric one, which needs no descriptor
};

struct Line {
  std::atomic<std::uint64_t> block;  // the id; 0: nothing here. Written last, cleared first.
  Offer offer;
};
static_assert(sizeof(Line) == 104 && std::atomic<std::uint64_t>::is_always_lock_free);

struct BoardHeader {
  std::uint64_t magic;
  std::uint64_t nonce;  // the handle's
};
inline constexpr std::uint64_t kBoardMagic = 0x6472616f42637049;  // "IpcBoard" in memory
inline constexpr std::uint32_t kLines = 1u << 16;  // pages are taken as they are used
inline constexpr std::uint64_t kLinesAt = 4096;
inline constexpr std::uint64_t kBoardBytes = kLinesAt + kLines * sizeof(Line);

// The exporter's side. Not thread-safe: the exporter's lock protects it.
struct Board {
  KeptFd fd;
  unsigned char* memory = nullptr;
  std::uint32_t lines = 0;  // fewer than kLines where RLIMIT_FSIZE allows no more

  // Makes the memfd. False: the system gives none.
  bool open(std::uint64_t nonce) noexcept;
  Line& line(std::uint32_t slot) const noexcept {
    return reinterpret_cast<Line*>(memory + kLinesAt)[slot];
  }
  void close_inherited() noexcept;  // in a forked child

 private:
  std::uint64_t bytes() const noexcept { return kLinesAt + lines * sizeof(Line); }
};

// The peer's side. True for a descriptor of the board with this nonce; reads nothing but memfds.
bool is_board(int fd, std::uint64_t nonce) noexcept;
// A copy of a line, if it is that block's.
bool read_line(int fd, std::uint32_t slot, std::uint64_t block, Offer* out) noexcept;

}  // namespace kvshim::sharing
