// Claims as locks on ranges of a file; see ledger.h. Descriptors are open only while a block is
// being placed. A child forked meanwhile shares them: the claim is given up by unlocking, not by
// closing, and the child closes its copies at once (forget).
#include "memory/budget/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"

// Linux 3.15; glibc hides them without _GNU_SOURCE.
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

namespace kvshim {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr unsigned kSlotBits = 40;                  // pages of one claim: 4 PiB
constexpr std::uint64_t kSlots = (1ull << 22) - 1;  // within the 63 bits of an offset
constexpr std::uint64_t kMost = 1ull << kSlotBits;
constexpr unsigned kWaiting = 64;  // ranges still to be asked for: more claims than that at once
constexpr std::uint64_t kPatienceUs = 50'000;

// Descriptors that ledgers have open, each plus one; 0: free. More than so many at once: a child
// forked just then keeps some.
constinit std::atomic<int> opened[64]{};

int note_opened(int file) noexcept {
  for (std::atomic<int>& slot : opened) {
    int free = 0;
    if (slot.compare_exchange_strong(free, file + 1, std::memory_order_acq_rel)) break;
  }
  return file;
}

void close_noted(int file) noexcept {
  for (std::atomic<int>& slot : opened) {
    int mine = file + 1;
    if (slot.compare_exchange_strong(mine, 0, std::memory_order_acq_rel)) break;
  }
  close(file);
}

bool set_lock(int file, short type, std::uint64_t start, std::uint64_t length) noexcept {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(start);
  range.l_len = static_cast<off_t>(length);
  return fcntl(file, F_OFD_SETLK, &range) == 0;
}

// A lock of somebody else's within [begin, end). The kernel gives any one, in no order.
bool find_lock(int file, std::uint64_t begin, std::uint64_t end, std::uint64_t* at,
               std::uint64_t* behind) noexcept {
  struct flock range {};
  range.l_type = F_WRLCK;  // conflicts with every lock; asking needs no right to write
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(begin);
  range.l_len = static_cast<off_t>(end - begin);
  if (fcntl(file, F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK) return false;
  *at = static_cast<std::uint64_t>(range.l_start);
  *behind = range.l_len == 0 ? end : *at + static_cast<std::uint64_t>(range.l_len);
  if (*at < begin) *at = begin;
  if (*behind > end) *behind = end;
  return *at < *behind;
}

// Pages that others hold: the found lock, and what lies on both sides of it.
std::uint64_t claimed_by_others(int file) noexcept {
  struct Range {
    std::uint64_t begin, end;
  } waiting[kWaiting] = {{0, (kSlots + 1) << kSlotBits}};
  std::uint64_t pages = 0;
  for (unsigned count = 1; count > 0;) {
    const Range range = waiting[--count];
    std::uint64_t at = 0;
    std::uint64_t behind = 0;
    if (range.begin >= range.end || !find_lock(file, range.begin, range.end, &at, &behind))
      continue;
    pages += behind - at;
    if (count + 2 > kWaiting) break;
    waiting[count++] = {range.begin, at};
    waiting[count++] = {behind, range.end};
  }
  return pages;
}

// Two claims at one place would count once.
std::uint64_t random_slot() noexcept {
  std::uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed)) {
    seed = clock_us() * 0x9e3779b97f4a7c15ull ^ static_cast<std::uint64_t>(getpid()) << 20 ^
           reinterpret_cast<std::uintptr_t>(&seed) >> 4;
  }
  return (seed % kSlots) << kSlotBits;
}

}  // namespace

Ledger::Ledger(std::uint64_t bytes) noexcept
    : left_(bytes / kPage + (bytes % kPage != 0 ? 1 : 0)), start_(random_slot()) {
  if (left_ > kMost) left_ = kMost;
}

Ledger::~Ledger() {
  end();
  drop();
  for (unsigned index = 0; index < count_; ++index) close_noted(files_[index]);
}

std::uint64_t Ledger::enter(const char* file) noexcept {
  const int here = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (here < 0) return 0;
  struct stat status {};
  fstat(here, &status);
  const std::uint64_t name = status.st_ino * 0x9e3779b97f4a7c15ull ^ status.st_dev;
  for (unsigned index = 0; index < count_; ++index) {
    if (names_[index] != name) continue;
    close(here);
    return claimed_by_others(files_[index]) * kPage;
  }
  if (count_ == kFiles || left_ == 0 || !set_lock(here, F_RDLCK, start_, left_)) {
    close(here);
    return 0;
  }
  // Out of the low numbers, which belong to the program.
  const int high = fcntl(here, F_DUPFD_CLOEXEC, 512);
  if (high >= 0) close(here);
  files_[count_] = note_opened(high >= 0 ? high : here);
  names_[count_] = name;
  return claimed_by_others(files_[count_++]) * kPage;
}

void Ledger::took(std::uint64_t bytes) noexcept {
  std::uint64_t pages = bytes / kPage;
  if (pages > left_) pages = left_;
  if (pages == 0) return;
  for (unsigned index = 0; index < count_; ++index) set_lock(files_[index], F_UNLCK, start_, pages);
  start_ += pages;
  left_ -= pages;
}

void Ledger::drop() noexcept {
  if (left_ == 0) return;
  for (unsigned index = 0; index < count_; ++index) set_lock(files_[index], F_UNLCK, start_, left_);
  left_ = 0;
}

void Ledger::begin(const char* file) noexcept {
  turn_ = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (turn_ < 0) return;
  note_opened(turn_);
  const std::uint64_t until = clock_us() + kPatienceUs;
  while (flock(turn_, LOCK_EX | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || clock_us() > until) break;
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

void Ledger::end() noexcept {
  if (turn_ < 0) return;
  flock(turn_, LOCK_UN);  // a forked child may hold it open
  close_noted(turn_);
  turn_ = -1;
}

void Ledger::forget() noexcept {
  for (std::atomic<int>& slot : opened) {
    const int file = slot.exchange(0, std::memory_order_acq_rel) - 1;
    if (file >= 0) close(file);
  }
}

}  // namespace kvshim
