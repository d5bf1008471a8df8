// CPU threads that fill ranges of memory, cut so that no two share a huge page; see placement.h.
// Knows nothing of CUDA.
#include "memory/kinds/placement.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/options.h"
#include "base/sizes.h"

namespace kvshim::placement {

namespace {

constexpr unsigned kMaxThreads =
    64;  // their records live on the caller's stack, which may be small
constexpr unsigned kAutoThreads = 16;         // more gained nothing on the machine measured
constexpr std::size_t kPerThread = 8 * kMiB;  // below this a thread costs more than it saves
constexpr std::size_t kPartAlign = 2 * kMiB;  // a part never shares a huge page with another

// Rows of bytes to fill; a plain range is one row.
struct Part {
  std::byte* start = nullptr;
  std::size_t bytes = 0;  // per row
  std::size_t pitch = 0;
  std::size_t rows = 1;
  Pattern pattern;
  const cpu_set_t* cpus = nullptr;  // NULL: wherever the thread is
};

void fill_row(std::byte* start, std::size_t bytes, Pattern pattern) noexcept {
  if (pattern.width == 1) {
    memset(start, static_cast<int>(pattern.value & 0xff), bytes);
  } else if (pattern.width == 2) {
    auto* at = reinterpret_cast<std::uint16_t*>(start);
    for (std::size_t i = 0; i < bytes / 2; ++i) at[i] = static_cast<std::uint16_t>(pattern.value);
  } else {
    auto* at = reinterpret_cast<std::uint32_t*>(start);
    for (std::size_t i = 0; i < bytes / 4; ++i) at[i] = pattern.value;
  }
}

void fill_part(const Part& part) noexcept {
  std::byte* row = part.start;
  for (std::size_t index = 0; index < part.rows; ++index, row += part.pitch) {
    fill_row(row, part.bytes, part.pattern);
  }
}

void* run_part(void* argument) {
  const auto& part = *static_cast<const Part*>(argument);
  if (part.cpus != nullptr) sched_setaffinity(0, sizeof(cpu_set_t), part.cpus);
  fill_part(part);
  return nullptr;
}

// Threads for the parts of one fill. The caller does what the system gives no thread for.
class Crew {
 public:
  explicit Crew(int numa_node) noexcept : bound_(cpus_of_node(numa_node, &cpus_)) {}
  ~Crew() {
    for (unsigned index = 0; index < running_; ++index) pthread_join(threads_[index], nullptr);
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void give(const Part& work) noexcept {
    Part& part = parts_[running_];
    part = work;
    part.cpus = bound_ ? &cpus_ : nullptr;
    if (start(&part)) {
      ++running_;
    } else {
      fill_part(part);
    }
  }

 private:
  bool start(Part* part) noexcept {
    // The host's signal handlers must not run on threads that it does not know of. Signals that a
    // thread brings on itself stay open: a sandbox may answer a system call with SIGSYS.
    sigset_t blocked;
    sigset_t before;
    sigfillset(&blocked);
    for (const int own : {SIGSYS, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) {
      sigdelset(&blocked, own);
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const bool started = pthread_create(&threads_[running_], &attributes, run_part, part) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return started;
  }

  static bool cpus_of_node(int node, cpu_set_t* cpus) noexcept;

  cpu_set_t cpus_;
  bool bound_;
  unsigned running_ = 0;
  Part parts_[kMaxThreads];
  pthread_t threads_[kMaxThreads];
};

// Reads a kernel CPU list such as "0-15,64-79" into *set.
void parse_cpu_list(const char* text, cpu_set_t* set) noexcept {
  CPU_ZERO(set);
  for (const char* at = text; *at >= '0' && *at <= '9';) {
    unsigned first = 0;
    for (; *at >= '0' && *at <= '9'; ++at) first = first * 10 + static_cast<unsigned>(*at - '0');
    unsigned last = first;
    if (*at == '-') {
      last = 0;
      for (++at; *at >= '0' && *at <= '9'; ++at)
        last = last * 10 + static_cast<unsigned>(*at - '0');
    }
    for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, set);
    if (*at == ',') ++at;
  }
}

// The CPUs of a NUMA node that this process may use. False: no binding.
bool Crew::cpus_of_node(int node, cpu_set_t* cpus) noexcept {
  if (node < 0) return false;
  char path[64];
  format_into(path, "/sys/devices/system/node/node{}/cpulist", node);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[1024] = {};
  const ssize_t got = read(file, text, sizeof(text) - 1);
  close(file);
  if (got <= 0) return false;
  cpu_set_t node_cpus;
  cpu_set_t allowed;
  parse_cpu_list(text, &node_cpus);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  CPU_AND(cpus, &node_cpus, &allowed);
  return CPU_COUNT(cpus) > 0;
}

unsigned allowed_cpus() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  const int count = CPU_COUNT(&allowed);
  return count > 0 ? static_cast<unsigned>(count) : 1;
}

}  // namespace

unsigned thread_count(std::size_t bytes) noexcept {
  unsigned wanted = options().zero_threads;
  if (wanted == 0) {
    wanted = allowed_cpus();
    if (wanted > kAutoThreads) wanted = kAutoThreads;
  }
  if (wanted > kMaxThreads) wanted = kMaxThreads;
  const std::size_t useful = bytes / kPerThread;
  if (useful < wanted) wanted = static_cast<unsigned>(useful);
  return wanted > 0 ? wanted : 1;
}

void fill(void* start, std::size_t bytes, Pattern pattern, int numa_node) noexcept {
  auto* from = static_cast<std::byte*>(start);
  std::byte* const end = from + bytes;
  const unsigned count = thread_count(bytes);
  if (count == 1) {
    fill_row(from, bytes, pattern);
    return;
  }
  const std::size_t share = round_up((bytes + count - 1) / count, kPartAlign);
  Crew crew(numa_node);
  for (unsigned given = 1; from < end; ++given) {
    // Part borders lie on 2 MiB addresses, wherever the range itself begins.
    const auto border = (reinterpret_cast<std::uintptr_t>(from) + share) / kPartAlign * kPartAlign;
    auto* to = reinterpret_cast<std::byte*>(border);
    if (to > end || given == count) to = end;
    crew.give({.start = from, .bytes = static_cast<std::size_t>(to - from), .pattern = pattern});
    from = to;
  }
}

void fill_2d(void* start, std::size_t pitch, std::size_t width_bytes, std::size_t height,
             Pattern pattern, int numa_node) noexcept {
  if (pitch == width_bytes || height == 1) {
    fill(start, width_bytes * height, pattern, numa_node);
    return;
  }
  Part rest{.start = static_cast<std::byte*>(start),
            .bytes = width_bytes,
            .pitch = pitch,
            .rows = height,
            .pattern = pattern};
  const std::size_t count = thread_count(width_bytes * height);
  const std::size_t share = (height + count - 1) / count;
  if (share == height) {
    fill_part(rest);
    return;
  }
  Crew crew(numa_node);
  while (rest.rows > 0) {
    Part part = rest;
    if (part.rows > share) part.rows = share;
    crew.give(part);
    rest.start += part.rows * pitch;
    rest.rows -= part.rows;
  }
}

}  // namespace kvshim::placement
