// CPU threads that fill ranges of memory, cut so that no two share a huge page; see placement.h. Knows
// nothing of CUDA.
#include "memory/placement.h"

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

constexpr unsigned kMaxThreads = 64;  // their records live on the caller's stack, which may be small
constexpr unsigned kAutoThreads = 16;           // more gained nothing on the machine measured
constexpr std::size_t kPerThread = 8 * kMiB;    // below this a thread costs more than it saves
constexpr std::size_t kPartAlign = 2 * kMiB;    // a part never shares a huge page with another

struct Part {
  std::byte* start = nullptr;
  std::size_t bytes = 0;
  Pattern pattern;
  const cpu_set_t* cpus = nullptr;  // NULL: wherever the thread is
};

void fill_here(std::byte* start, std::size_t bytes, Pattern pattern) noexcept {
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

void* run_part(void* argument) {
  const auto& part = *static_cast<const Part*>(argument);
  if (part.cpus != nullptr) sched_setaffinity(0, sizeof(cpu_set_t), part.cpus);
  fill_here(part.start, part.bytes, part.pattern);
  return nullptr;
}

// Reads a kernel CPU list such as "0-15,64-79" into *set.
void parse_cpu_list(const char* text, cpu_set_t* set) noexcept {
  CPU_ZERO(set);
  for (const char* at = text; *at >= '0' && *at <= '9';) {
    unsigned first = 0;
    for (; *at >= '0' && *at <= '9'; ++at) first = first * 10 + static_cast<unsigned>(*at - '0');
    unsigned last = first;
    if (*at == '-') {
      last = 0;
      for (++at; *at >= '0' && *at <= '9'; ++at) last = last * 10 + static_cast<unsigned>(*at - '0');
    }
    for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, set);
    if (*at == ',') ++at;
  }
}

// The CPUs of a NUMA node that this process may use. False: no binding.
bool cpus_of_node(int node, cpu_set_t* cpus) noexcept {
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
  auto* begin = static_cast<std::byte*>(start);
  const unsigned count = thread_count(bytes);
  cpu_set_t cpus;
  const bool bound = count > 1 && cpus_of_node(numa_node, &cpus);
  if (count == 1) {
    fill_here(begin, bytes, pattern);
    return;
  }

  Part parts[kMaxThreads];
  pthread_t threads[kMaxThreads];
  unsigned running = 0;
  std::byte* end = begin + bytes;
  const std::size_t share = round_up((bytes + count - 1) / count, kPartAlign);

  // The host's signal handlers must not run on threads that it does not know of.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);

  // Part borders lie on 2 MiB addresses, wherever the range itself begins.
  const auto aligned_end = [&](std::byte* from) {
    const auto address = reinterpret_cast<std::uintptr_t>(from) + share;
    return reinterpret_cast<std::byte*>(address / kPartAlign * kPartAlign);
  };
  std::byte* from = begin;
  while (from < end) {
    std::byte* to = aligned_end(from);
    if (to > end || running + 1 == count) to = end;
    Part& part = parts[running];
    part = {from, static_cast<std::size_t>(to - from), pattern, bound ? &cpus : nullptr};
    from = to;
    // Where the system gives no thread, the caller does that part itself.
    if (pthread_create(&threads[running], &attributes, run_part, &part) == 0) {
      ++running;
    } else {
      fill_here(part.start, part.bytes, part.pattern);
    }
  }
  pthread_attr_destroy(&attributes);
  for (unsigned index = 0; index < running; ++index) pthread_join(threads[index], nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void fill_2d(void* start, std::size_t pitch, std::size_t width_bytes, std::size_t height,
             Pattern pattern, int numa_node) noexcept {
  if (pitch == width_bytes) {
    fill(start, width_bytes * height, pattern, numa_node);
    return;
  }
  auto* row = static_cast<std::byte*>(start);
  for (std::size_t index = 0; index < height; ++index, row += pitch) {
    fill(row, width_bytes, pattern, numa_node);
  }
}

}  // namespace kvshim::placement
