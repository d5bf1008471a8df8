// Physical memory. All of it lies in one sparse memfd per process, so that a block can be mapped
// twice and in another process, and 8,000 live blocks hold one file descriptor between them.
// Device addresses are not where the bytes are: a host program that touches one gets SIGSEGV, as
// on a real machine; the simulator reaches the bytes through Backing::bytes.
#pragma once

#include <memory>

#include "driver/cuda_abi.h"

namespace sim {

inline constexpr int kHostMemory = -1;  // "device" of memory in a host NUMA node

// One physical allocation. Destroying it returns the memory and the device's accounting.
struct Backing {
  int device = 0;
  std::size_t size = 0;
  std::uint64_t offset = 0;  // in the arena (its owner's, for imported memory)
  char* bytes = nullptr;     // readable and writable by the simulator
  bool imported = false;     // another handle or process owns it: nothing is accounted here
  bool exported = false;     // somebody may still import it: the arena range is never reused

  Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  ~Backing();
};

// Takes memory of a device (or kHostMemory). Null: the device is full, or mmap failed.
// Needs the state's lock, like everything here.
std::shared_ptr<Backing> allocate_backing(int device, std::size_t size);

// A new file descriptor that keeps this memory, for cuMemExportToShareableHandle. -1 on failure.
int export_backing(Backing& backing);
// The memory behind such a descriptor, from whichever process. Null when it is something else.
std::shared_ptr<Backing> import_backing(int fd);

// Where the arena is, for legacy IPC: another process opens /proc/<pid>/fd/<arena_fd()>.
int arena_fd();
std::shared_ptr<Backing> open_foreign_backing(int pid, int fd, std::uint64_t offset,
                                              std::size_t size, int device);

// Slots of a table that other processes can read: which serial number of an IPC export is alive.
inline constexpr unsigned kAliveSlots = 65536;
std::uint64_t* alive_slots();
// Reads one slot of another process's table. 0 when that process or its arena is gone.
std::uint64_t read_foreign_slot(int pid, int fd, unsigned slot);

// Address space that nobody can touch: aligned, `size` bytes, or 0.
Address reserve_addresses(std::size_t size, std::size_t alignment, Address wanted = 0);
void return_addresses(Address base, std::size_t size);
// Makes [base, base + size) of a reservation show the backing to the CPU (host-NUMA memory).
bool show_to_cpu(Address base, std::size_t size, const Backing& backing, std::size_t offset);
void hide_from_cpu(Address base, std::size_t size);

// Sets `size` bytes to zero without spending memory on whole pages.
void zero_shared(char* bytes, std::size_t size);   // inside a Backing
void zero_private(char* bytes, std::size_t size);  // anonymous memory

}  // namespace sim
