// What processes are about to take from a common limit on host memory, so that two of them do not
// both count on the same bytes. Measuring cannot see it: pages count only once they are touched.
//
// A claim is a lock on a range of bytes (fcntl, F_OFD_SETLK) of the very file that states the
// limit: /proc/meminfo, the cgroup's memory.max, a NUMA node's meminfo. The length of the range is
// the number of pages, its start is arbitrary; others read the lengths with F_OFD_GETLK. Nothing is
// written, no file is made, and the kernel drops the claims of a process that dies. It holds among
// all processes that see the same file: those of one container, or of one machine outside
// containers. Two containers see different files; there each only measures what the other has
// touched.
#pragma once

#include <cstdint>

namespace kvshim {

class Ledger {
 public:
  explicit Ledger(std::uint64_t bytes) noexcept;
  ~Ledger();  // gives up what is left of the claim
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Claims the bytes in this file, unless done already, and returns what others have claimed there;
  // 0 where the file takes no locks. To be called before what is in use is read: a page that moves
  // from a claim to the used ones in between is then counted twice, never not at all.
  std::uint64_t enter(const char* file) noexcept;

  // So many bytes are touched now, and counted as used.
  void took(std::uint64_t bytes) noexcept;
  // Gives the whole claim up.
  void drop() noexcept;

  // One process decides at a time: else two that claim at once could both see each other's claim
  // and both give up. Waits a little only; a decision without it is safe, but may be a needless no.
  void begin(const char* file) noexcept;
  void end() noexcept;

  // In a forked child: closes its copies of the descriptors of all ledgers, which would keep the
  // claims of a parent that dies.
  static void forget() noexcept;

 private:
  static constexpr unsigned kFiles = 8;
  std::uint64_t left_;   // pages
  std::uint64_t start_;  // of the ranges
  unsigned count_ = 0;
  int files_[kFiles];
  std::uint64_t names_[kFiles];  // device and inode, mixed: which file it is
  int turn_ = -1;
};

}  // namespace kvshim
