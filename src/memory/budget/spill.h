// The budget of spilled bytes: how much host memory blocks of this process may take, in all
// (KVSHIM_HOST_LIMIT, and what the machine can give) and of one device (KVSHIM_SPILL_LIMIT); and
// what a program is told of it (KVSHIM_MEMINFO=virtual). Every kind that lives in host memory asks
// here before it takes any. Thread-safe; no lock.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "base/options.h"
#include "memory/budget/host_budget.h"
#include "memory/budget/ledger.h"

namespace kvshim::spill {

// Host memory for one block, from the question to the last page. Ends in keep(), or gives all back.
class Promise {
 public:
  // `kind` and `node` (-1: any) are the block's: a kind that takes all of one NUMA node is bound by
  // what that has free.
  Promise(CUdevice device, std::uint64_t bytes, const char* kind, int node = -1) noexcept;
  ~Promise();
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  // False: over the budget; say refuse(). No page may be touched then.
  bool granted() const noexcept { return granted_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // The line of arithmetic, at this level.
  void refuse(LogLevel level) const noexcept;

  // Bytes to touch next, measured anew: others take memory too. 0: there is none left (said in the
  // log), and the block is to be given up.
  std::uint64_t next_piece() noexcept;
  void placed(std::uint64_t bytes) noexcept;

  // The block lives: its bytes count until returned() is called for it.
  void keep() noexcept;

 private:
  bool ask() noexcept;
  bool within(const std::atomic<std::uint64_t>& taken, std::uint64_t limit,
              const char* by) noexcept;
  bool measured() noexcept;
  bool device_would_do() const noexcept;
  void say(LogLevel level, const char* when) const noexcept;

  CUdevice device_;
  std::uint64_t bytes_;
  std::uint64_t left_;  // not yet touched
  const char* kind_;
  int node_;
  Ledger ledger_;
  bool granted_ = false;
  bool kept_ = false;
  // Why not: what the limit leaves once these two are taken off.
  host_budget::Budget budget_;
  std::uint64_t reserve_ = 0;
};

// The memory of a block that was kept has gone back.
void returned(CUdevice device, std::uint64_t bytes) noexcept;

// What KVSHIM_MEMINFO=virtual adds to a device's total and free memory: decided at the first
// question and constant for the life of the process, less what is spilled. Both 0 with real, and
// for a device from which nothing can spill. Makes three attribute queries at most; never
// more than once.
struct Told {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};
Told told(CUdevice device) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::spill
