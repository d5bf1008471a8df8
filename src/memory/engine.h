// The engine: everything kvshim does with memory, callable without any hook (the unit tests do).
// It never knows which entry point was used. Every function answers with the code that the native
// driver would give; outputs are untouched unless the code is CUDA_SUCCESS. All are thread-safe.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "base/kind.h"
#include "driver/functions.h"
#include "memory/blocks/registry.h"
#include "memory/blocks/retired.h"
#include "memory/kinds/placement.h"
#include "memory/transfers/detour.h"

namespace kvshim::engine {

// False when KVSHIM_DISABLE=1: every hook then calls the driver. The first call sets up the fork
// handler and, where a summary is wanted, its exit handler; it makes no CUDA call.
bool active() noexcept;

// The process uses CUDA memory: from here on there is something to say. The first call says what
// the options are; a process that never allocates is told nothing.
void note_use() noexcept;

// cuMemAlloc: bytes > 0, out not NULL. The block belongs to the current context.
CUresult allocate(CUdeviceptr* out, std::size_t bytes) noexcept;

// Does a stream-ordered allocation of this size become a block of the engine's (KVSHIM_ASYNC=route,
// and a rule or the threshold says so)? And one for which the pool had no memory (KVSHIM_SPILL)?
bool takes_async(std::size_t bytes) noexcept;
bool takes_async_spill(std::size_t bytes) noexcept;

// KVSHIM_DRY_RUN: the driver has just made this block, and the engine notes what it would have
// been.
void note_dry(CUdeviceptr base, std::size_t bytes) noexcept;

// cuMemFree of one of our blocks: waits for all work of the owner context, from any thread. False
// when `ptr` is not the start of a block: then the driver has the word.
bool free(CUdeviceptr ptr, CUresult* result) noexcept;

// cuMemFreeAsync of one of our blocks: never waits; the memory comes free once the work that is in
// `stream` now has finished, at the next call that needs it. False as for free.
bool free_async(CUdeviceptr ptr, CUstream stream, CUresult* result) noexcept;

// cuMemGetInfo with the bytes that kvshim holds and any later allocation may use counted as free.
// Either output may be NULL.
CUresult mem_info(std::size_t* free, std::size_t* total) noexcept;
// Those bytes, of all contexts of a device: the driver and NVML call them used. No driver call.
std::uint64_t held_bytes(CUdevice device) noexcept;

// What the host program may know of the block that `address` lies in.
struct BlockView {
  CUdeviceptr base;
  std::size_t bytes;  // as requested
  CUcontext context;
  CUdevice device;
  Kind kind;
  std::uint64_t id;  // unique in this process, never reused
  bool sync_memops;
  bool opened;      // another process's, by IPC
  bool fabric;      // its kind of memory is made with fabric handles
  bool exportable;  // as one handle, which another process can open
};
// Fills *out for Place::block only.
Place find(CUdeviceptr address, BlockView* out) noexcept;

// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a vmm block, which the driver refuses (801). False: not ours.
bool set_sync_memops(CUdeviceptr address, bool on) noexcept;

// A context is about to be destroyed (cuCtxDestroy, reset or last release of a primary context):
// `before` while it still exists, `after` with what `before` returned once the driver has destroyed
// it. Its blocks are gone then, as natively; `after` gives their physical memory back.
struct Destruction {
  CUcontext context = nullptr;
  Owner* owner = nullptr;             // NULL: it has no blocks
  retired::Entry* retired = nullptr;  // blocks and events of its that wait for a stream
};
Destruction before_destroy(CUcontext context) noexcept;
void after_destroy(const Destruction& destruction, bool destroyed) noexcept;

// After the driver said "out of memory" to an allocation of the program's own (cuMemCreate, a
// pool): gives back what kvshim holds. True when that came to something: try once more.
bool make_room() noexcept;

// A cuMemset of any form, `height` rows (1 for the 1D forms) of `width` elements.
struct Memset {
  CUdeviceptr destination;
  std::size_t pitch;  // bytes between rows; ignored when height is 1
  std::size_t width;  // elements per row
  std::size_t height;
  placement::Pattern pattern;
  CUstream stream;  // explicit: resolve_stream()
  bool wait;        // the blocking forms return when it is done
};
// Carries it out by the CPU in stream order, if it is for a managed block and the CPU should; or
// answers "invalid value" for one that runs past the end of a vmm block. False: the driver's turn.
bool memset(const Memset& request, CUresult* result) noexcept;
void forget_memset_jobs() noexcept;  // in a forked child

// Gives cached memory back to the driver; returns the bytes.
std::uint64_t trim() noexcept;

}  // namespace kvshim::engine
