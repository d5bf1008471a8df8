// Everything the simulated driver knows, behind one mutex. Built at the first call, never
// destroyed; a forked child gets a new one.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/memory.h"
#include "driver/residency.h"
#include "driver/work.h"

namespace sim {

struct Arena {
  int fd = -1;
  std::uint64_t* slots = nullptr;
  std::map<std::uint64_t, std::uint64_t> free;  // offset -> bytes
};

struct Device {
  std::size_t memory = 0;
  std::size_t used = 0;
  Tier tier;                     // its managed pages
  CUresult dead = CUDA_SUCCESS;  // a fault that nothing but a new process cures
  Context primary;
  Pool default_pool;
  Pool* pool = nullptr;
};

struct Counters {
  std::uint64_t violations = 0;
  std::uint64_t illegal_accesses = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable progress;  // some work finished
  std::uint64_t generation = 1;

  bool initialised = false;
  int driver_version = 13000;
  std::size_t granularity = kPage;
  std::size_t host_memory = std::size_t{64} << 30;
  unsigned char new_memory = 0;  // the bytes of fresh VMM memory
  std::size_t host_used = 0;     // of it, by VMM handles
  std::vector<Device> devices;
  std::vector<std::vector<bool>> p2p;  // [from][to]

  Arena arena;
  std::map<Address, std::shared_ptr<Block>> blocks;
  std::map<Address, Mapping> mappings;
  std::map<Address, Reservation> reservations;
  std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Handle>> handles;
  std::map<Address, std::unique_ptr<Chunk>> chunks;
  std::vector<std::unique_ptr<Context>> contexts;  // never shrinks
  std::unordered_set<Stream*> streams;
  std::unordered_map<Event*, std::shared_ptr<Event>> events;
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Capture>> captures;  // running ones, and finished ones kept alive
  std::unordered_set<Graph*> graphs;
  std::unordered_set<Graph*> executables;

  std::uint64_t next_id = 1;
  std::uint64_t next_use = 1;  // of managed pages
  CUmemGenericAllocationHandle next_handle = 0x100000000ull;
  Counters counters;
};

State& state();
// False in a forked child (without KVSIM_FORK_OK), after the library's destructor.
bool after_fork();
bool deinitialised();
// Called by cuInit.
void initialised();

}  // namespace sim
