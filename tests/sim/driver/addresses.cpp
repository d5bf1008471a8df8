// Device address space: reserved with PROT_NONE so that no two things share an address and a host
// access faults; and zeroing that gives pages back instead of touching them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "driver/arena.h"

namespace sim {
namespace {

constexpr std::size_t kHostPage = 4096;
constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* at(Address address) {
  return reinterpret_cast<void*>(address);
}

template <typename GiveBack>
void zero_whole_pages(char* bytes, std::size_t size, GiveBack give_back) {
  const auto begin = reinterpret_cast<Address>(bytes);
  const Address first = round_up(begin, kHostPage);
  const Address last = (begin + size) / kHostPage * kHostPage;
  if (size < kPage || last <= first) {
    std::memset(bytes, 0, size);
    return;
  }
  std::memset(bytes, 0, first - begin);
  std::memset(reinterpret_cast<char*>(last), 0, begin + size - last);
  if (give_back(at(first), last - first) != 0) std::memset(at(first), 0, last - first);
}

}  // namespace

Address reserve_addresses(std::size_t size, std::size_t alignment, Address wanted) {
  if (wanted != 0) {
    void* p = mmap(at(wanted), size, PROT_NONE, kReserve | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == at(wanted)) return wanted;
    if (p != MAP_FAILED) munmap(p, size);
  }
  if (size > (std::size_t{1} << 46)) return 0;
  const std::size_t span = size + alignment;
  void* p = mmap(nullptr, span, PROT_NONE, kReserve, -1, 0);
  if (p == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<Address>(p);
  const Address base = round_up(begin, alignment);
  if (base > begin) munmap(p, base - begin);
  if (begin + span > base + size) munmap(at(base + size), begin + span - base - size);
  return base;
}

void return_addresses(Address base, std::size_t size) {
  munmap(at(base), size);
}

bool show_to_cpu(Address base, std::size_t size, const Backing& backing, std::size_t offset) {
  // mremap of a shared mapping with old size 0 makes a second view of the same pages.
  void* view = mremap(backing.bytes + offset, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, at(base));
  return view == at(base);
}

void hide_from_cpu(Address base, std::size_t size) {
  mmap(at(base), size, PROT_NONE, kReserve | MAP_FIXED, -1, 0);
}

void zero_shared(char* bytes, std::size_t size) {
  zero_whole_pages(bytes, size, [](void* p, std::size_t n) { return madvise(p, n, MADV_REMOVE); });
}

void zero_private(char* bytes, std::size_t size) {
  zero_whole_pages(bytes, size,
                   [](void* p, std::size_t n) { return madvise(p, n, MADV_DONTNEED); });
}

}  // namespace sim
