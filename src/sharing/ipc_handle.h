// The 64 bytes that cuIpcGetMemHandle gives out for a vmm block, and who this process is. A handle
// only names: which process, which line of its board (board.h), which block. Sizes and descriptors
// stand on the board, so a handle that was changed on its way cannot lie about them.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kvshim::sharing {

struct IpcHandle {
  std::uint64_t magic;  // with the version of this layout
  std::uint64_t boot;   // hash of the kernel's boot id: another host, or this one before a reboot
  std::uint64_t start;  // when the process started, as /proc/PID/stat says; 0 unknown
  std::uint64_t nonce;  // random; one process image, never a forked child or what it executes
  std::uint64_t block;  // the registry's id of the block
  std::uint32_t pid;
  std::uint32_t pid_namespace;  // inode: where `pid` means anything
  std::int32_t board;           // descriptor number of the board in that process
  std::uint32_t slot;           // line of the board
  std::uint64_t checksum;
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));

// This process, as its handles name it: everything but block, board and slot. Read once.
IpcHandle self() noexcept;

// True when the process of a handle of this pid namespace is known to have ended: nobody has its
// pid, or somebody who started at another time, or it is only waiting to be reaped.
bool has_ended(const IpcHandle& handle) noexcept;

enum class Origin : std::uint8_t {
  driver,   // not one of ours: the driver's word
  damaged,  // ours, and changed on the way, or of another version
  ours,
};
Origin parse(const CUipcMemHandle& raw, IpcHandle* out) noexcept;
void seal(IpcHandle handle, CUipcMemHandle* out) noexcept;  // adds magic and checksum

void forget_self() noexcept;  // in a forked child

}  // namespace kvshim::sharing
