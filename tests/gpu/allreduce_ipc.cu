// An all-reduce between two processes over legacy IPC handles, built as serving engines build
// theirs: each buffer lies somewhere inside a larger allocation, its peer gets the handle of the
// allocation's base and an offset, addresses go into a table that the kernels of a captured graph
// read, and the table is filled after the capture. Results are whole numbers, so they must be
// exact.
//
//   allreduce_ipc DEVICE DEVICE [ROUNDS]     devices of the two ranks; the same one twice is fine
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <cuda.h>

#include "program.h"

namespace {

constexpr int kRanks = 2;
constexpr int kBlocks = 36;
constexpr int kThreads = 512;
constexpr std::size_t kSizes[] = {4 * kKiB, 256 * kKiB,
                                  8 * kMiB};  // bytes, each a buffer of its own
constexpr int kBuffers = sizeof kSizes / sizeof *kSizes;

struct Signal {
  unsigned arrived[kBlocks][kRanks];
  unsigned left[kBlocks][kRanks];
  unsigned round[kBlocks];
};

struct Table {  // what a captured kernel reads: the peers' addresses of one buffer
  const float* of[kRanks];
};

__device__ void store_release(unsigned* at, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%1], %0;" ::"r"(value), "l"(at) : "memory");
}

__device__ unsigned load_acquire(const unsigned* at) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

struct Signals {
  Signal* of[kRanks];
};

// All blocks with this index, of both ranks, have come this far in this round.
__device__ void meet(const Signals& signals, int rank, bool leaving, unsigned round) {
  __syncthreads();
  if (threadIdx.x < kRanks) {
    const int peer = static_cast<int>(threadIdx.x);
    Signal* theirs = signals.of[peer];
    Signal* mine = signals.of[rank];
    unsigned* to = leaving ? &theirs->left[blockIdx.x][rank] : &theirs->arrived[blockIdx.x][rank];
    const unsigned* from =
        leaving ? &mine->left[blockIdx.x][peer] : &mine->arrived[blockIdx.x][peer];
    store_release(to, round);
    while (load_acquire(from) < round) {
    }
  }
  __syncthreads();
}

__global__ void all_reduce(Signals signals, const Table* table, float* out, std::size_t count,
                           int rank) {
  const unsigned round = signals.of[rank]->round[blockIdx.x] + 1;
  meet(signals, rank, false, round);
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float sum = 0;
    for (int peer = 0; peer < kRanks; ++peer) sum += table->of[peer][i];
    out[i] = sum;
  }
  meet(signals, rank, true, round);
  if (threadIdx.x == 0) signals.of[rank]->round[blockIdx.x] = round;
}

__global__ void fill(float* at, std::size_t count, int rank, int round) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    at[i] = static_cast<float>((i * (rank + 3) + round * 7) % 4099);
  }
}

void send(int channel, const void* data, std::size_t bytes) {
  if (write(channel, data, bytes) != static_cast<ssize_t>(bytes)) std::exit(3);
}

void receive(int channel, void* data, std::size_t bytes) {
  if (recv(channel, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) std::exit(3);
}

// Where memory lies: the handle of its allocation and the way from its base, found as engines do
// it.
struct Shared {
  cudaIpcMemHandle_t handle;
  std::size_t offset;
};

Shared share(const void* at) {
  Shared shared{};
  CUdeviceptr base = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(at);
  if (cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) !=
      CUDA_SUCCESS) {
    std::fprintf(stderr, "no range start\n");
    std::exit(1);
  }
  shared.offset = address - base;
  CHECK(cudaIpcGetMemHandle(&shared.handle, reinterpret_cast<void*>(base)));
  return shared;
}

struct Opened {
  cudaIpcMemHandle_t handle;
  char* base;
};

// Each allocation is opened once, however many buffers lie in it.
char* open(std::vector<Opened>& opened, const Shared& shared) {
  for (const Opened& one : opened) {
    if (std::memcmp(&one.handle, &shared.handle, sizeof shared.handle) == 0) {
      return one.base + shared.offset;
    }
  }
  void* base = nullptr;
  CHECK(cudaIpcOpenMemHandle(&base, shared.handle, cudaIpcMemLazyEnablePeerAccess));
  opened.push_back({shared.handle, static_cast<char*>(base)});
  return static_cast<char*>(base) + shared.offset;
}

int run(int rank, int device, int channel, int rounds) {
  CHECK(cudaSetDevice(device));
  // One pool for the data, as a caching allocator has it, and one small block for the signals.
  char* pool = nullptr;
  char* signal_memory = nullptr;
  constexpr std::size_t kPool = 64 * kMiB;
  CHECK(cudaMalloc(&pool, kPool));
  CHECK(cudaMalloc(&signal_memory, sizeof(Signal)));
  CHECK(cudaMemset(signal_memory, 0, sizeof(Signal)));
  Table* tables = nullptr;
  CHECK(cudaMalloc(&tables, sizeof(Table) * kBuffers));
  float* in[kBuffers];
  float* out[kBuffers];
  std::size_t at = 3 * kMiB + 256;
  for (int i = 0; i < kBuffers; ++i) {
    in[i] = reinterpret_cast<float*>(pool + at);
    at += kSizes[i] + 512;
    CHECK(cudaMalloc(&out[i], kSizes[i]));
  }
  CHECK(cudaDeviceSynchronize());

  std::vector<Opened> opened;
  Signals signals{};
  const Shared mine = share(signal_memory);
  Shared theirs{};
  send(channel, &mine, sizeof mine);
  receive(channel, &theirs, sizeof theirs);
  signals.of[rank] = reinterpret_cast<Signal*>(signal_memory);
  signals.of[1 - rank] = reinterpret_cast<Signal*>(open(opened, theirs));

  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kBuffers; ++i) {
    all_reduce<<<kBlocks, kThreads, 0, stream>>>(signals, tables + i, out[i],
                                                 kSizes[i] / sizeof(float), rank);
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));

  // After the capture: where the captured buffers are, in the other process's terms.
  for (int i = 0; i < kBuffers; ++i) {
    const Shared here = share(in[i]);
    Shared there{};
    send(channel, &here, sizeof here);
    receive(channel, &there, sizeof there);
    Table table{};
    table.of[rank] = in[i];
    table.of[1 - rank] = reinterpret_cast<const float*>(open(opened, there));
    CHECK(cudaMemcpy(tables + i, &table, sizeof table, cudaMemcpyHostToDevice));
  }

  std::uint64_t wrong = 0;
  std::vector<float> result;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < kBuffers; ++i) {
      fill<<<kBlocks, kThreads, 0, stream>>>(in[i], kSizes[i] / sizeof(float), rank, round);
    }
    CHECK(cudaGraphLaunch(exec, stream));
    for (int i = 0; i < kBuffers; ++i) {
      const std::size_t count = kSizes[i] / sizeof(float);
      result.resize(count);
      CHECK(cudaMemcpyAsync(result.data(), out[i], kSizes[i], cudaMemcpyDeviceToHost, stream));
      CHECK(cudaStreamSynchronize(stream));
      for (std::size_t k = 0; k < count; ++k) {
        const float wanted = static_cast<float>((k * 3 + round * 7) % 4099) +
                             static_cast<float>((k * 4 + round * 7) % 4099);
        wrong += result[k] != wanted;
      }
    }
  }

  cudaEvent_t begun = nullptr;
  cudaEvent_t ended = nullptr;
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreate(&ended));
  for (int i = 0; i < rounds / 4; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaEventRecord(begun, stream));
  for (int i = 0; i < rounds; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaEventRecord(ended, stream));
  CHECK(cudaStreamSynchronize(stream));
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begun, ended));

  char word = 'd';  // nobody closes or frees while the other still reads
  send(channel, &word, 1);
  receive(channel, &word, 1);
  for (const Opened& one : opened) CHECK(cudaIpcCloseMemHandle(one.base));
  send(channel, &word, 1);
  receive(channel, &word, 1);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  for (float* one : out) CHECK(cudaFree(one));
  CHECK(cudaFree(tables));
  CHECK(cudaFree(signal_memory));
  CHECK(cudaFree(pool));
  CHECK(cudaDeviceSynchronize());
  if (rank == 0) {
    std::printf("{\"wrong\": %llu, \"opened\": %zu, \"us\": %.2f}\n",
                static_cast<unsigned long long>(wrong), opened.size(), ms * 1000 / rounds);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: allreduce_ipc DEVICE DEVICE [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 400;
  int channel[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel) != 0) return 3;
  const pid_t child = fork();  // before anybody touched CUDA
  if (child == 0) {
    close(channel[0]);
    std::exit(run(1, std::atoi(argv[2]), channel[1], rounds));
  }
  close(channel[1]);
  const int status = run(0, std::atoi(argv[1]), channel[0], rounds);
  int other = 0;
  waitpid(child, &other, 0);
  return status != 0 ? status : WIFEXITED(other) ? WEXITSTATUS(other) : 4;
}
