// What cudaMalloc and cudaFree cost: time with live neighbours, device memory and time for many
// live blocks, and pairs per second of several threads.
//
//   alloc_cost              all of it
//   alloc_cost --place MIB  one block and the time it took
//   alloc_cost --watch      (run by itself, without LD_PRELOAD) answers each line on standard input
//                           with the free device memory as a process without kvshim sees it
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "program.h"

namespace {

struct Watcher {
  FILE* ask = nullptr;
  FILE* answer = nullptr;
};

int watch() {
  CHECK(cudaFree(nullptr));
  char line[16];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    std::printf("%zu\n", free);
    std::fflush(stdout);
  }
  return 0;
}

// Before the first CUDA call of this process.
Watcher start_watcher() {
  int to[2];
  int from[2];
  if (pipe(to) != 0 || pipe(from) != 0) std::exit(1);
  if (fork() == 0) {
    unsetenv("LD_PRELOAD");
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
    execl("/proc/self/exe", "alloc_cost", "--watch", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  return {fdopen(to[1], "w"), fdopen(from[0], "r")};
}

long long free_bytes(const Watcher& watcher) {
  CHECK(cudaDeviceSynchronize());
  long long bytes = 0;
  std::fputs("?\n", watcher.ask);
  std::fflush(watcher.ask);
  if (std::fscanf(watcher.answer, "%lld", &bytes) != 1) {
    std::fprintf(stderr, "the process that watches the device memory gave no answer\n");
    std::exit(1);
  }
  return bytes;
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

void* allocate(std::size_t bytes) {
  void* block = nullptr;
  CHECK(cudaMalloc(&block, bytes));
  return block;
}

void cost_of(const char* name, std::size_t bytes, int repeats, int neighbours, const char* comma) {
  std::vector<void*> live;
  for (int i = 0; i < neighbours; ++i) live.push_back(allocate(bytes));
  std::vector<double> allocating;
  std::vector<double> freeing;
  for (int i = 0; i < repeats; ++i) {
    const double begun = now_us();
    void* block = allocate(bytes);
    const double allocated = now_us();
    CHECK(cudaFree(block));
    freeing.push_back(now_us() - allocated);
    allocating.push_back(allocated - begun);
  }
  for (void* block : live) CHECK(cudaFree(block));
  std::printf("%s\"%s\": [%.2f, %.2f]", comma, name, median(allocating), median(freeing));
}

void many_live(const Watcher& watcher, const char* name, std::size_t bytes, int count,
               const char* comma) {
  std::vector<void*> live(static_cast<std::size_t>(count));
  const long long before = free_bytes(watcher);
  double begun = now_us();
  for (void*& block : live) block = allocate(bytes);
  const double allocating = (now_us() - begun) / count;
  const long long used = before - free_bytes(watcher);
  begun = now_us();
  for (void* block : live) CHECK(cudaFree(block));
  const double freeing = (now_us() - begun) / count;
  const long long kept = before - free_bytes(watcher);
  std::printf("%s\"%s\": {\"bytes\": %lld, \"kept\": %lld, \"allocate\": %.2f, \"free\": %.2f}",
              comma, name, used, kept, allocating, freeing);
}

// Pairs of cudaMalloc and cudaFree per second, all threads together.
double pairs_per_second(int threads, std::size_t bytes) {
  std::atomic<bool> go{false};
  std::atomic<bool> stop{false};
  std::atomic<long long> pairs{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      CHECK(cudaFree(nullptr));
      while (!go.load()) std::this_thread::yield();
      long long mine = 0;
      for (; !stop.load(std::memory_order_relaxed); ++mine) CHECK(cudaFree(allocate(bytes)));
      pairs += mine;
    });
  }
  const double begun = now_us();
  go = true;
  usleep(300'000);
  stop = true;
  for (std::thread& worker : workers) worker.join();
  return static_cast<double>(pairs.load()) / (now_us() - begun) * 1e6;
}

int place(std::size_t mib) {
  CHECK(cudaFree(nullptr));
  const double begun = now_us();
  void* block = allocate(mib * kMiB);
  std::printf("{\"mib\": %zu, \"ms\": %.1f}\n", mib, (now_us() - begun) / 1e3);
  CHECK(cudaFree(block));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--watch") == 0) return watch();
  if (argc == 3 && std::strcmp(argv[1], "--place") == 0) {
    return place(std::strtoull(argv[2], nullptr, 10));
  }
  const Watcher watcher = start_watcher();
  CHECK(cudaFree(allocate(256)));  // the context, and whatever a first block brings
  free_bytes(watcher);

  // First, while no freed block is kept for reuse: memory is what is measured.
  std::printf("{\"live\": {");
  many_live(watcher, "20,000 of 256 B", 256, 20000, "");
  many_live(watcher, "4,000 of 1 MiB", kMiB, 4000, ", ");
  std::printf("}, \"cost\": {");
  cost_of("256 B", 256, 2000, 16, "");
  cost_of("4 KiB", 4 * kKiB, 2000, 16, ", ");
  cost_of("1 MiB", kMiB, 1000, 16, ", ");
  cost_of("2 MiB", 2 * kMiB, 500, 16, ", ");
  cost_of("20 MiB", 20 * kMiB, 500, 16, ", ");
  cost_of("512 MiB", 512 * kMiB, 60, 4, ", ");
  std::printf("}, \"pairs\": {");
  const char* comma = "";
  for (const int threads : {1, 4, 16}) {
    std::printf("%s\"256 B, %d threads\": %.0f", comma, threads, pairs_per_second(threads, 256));
    std::printf(", \"2 MiB, %d threads\": %.0f", threads, pairs_per_second(threads, 2 * kMiB));
    comma = ", ";
  }
  std::printf("}}\n");
  return 0;
}
