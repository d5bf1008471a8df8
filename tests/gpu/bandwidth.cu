// Device bandwidth of several kinds of memory, side by side in one process: rounds over all kinds,
// CUDA events, clocks warmed first. What was written is read back and checked.
//
//   bandwidth ROUNDS LABEL:CALL:MIB:OPERATIONS ...
//
// CALL is malloc or async (cudaMallocAsync); MIB the size to ask for, of which the first 4 GiB are
// used; OPERATIONS some of r(ead) w(rite) c(opy) m(emset). Prints GB/s for each round. A copy
// counts the bytes read and the bytes written.
#include <map>
#include <string>
#include <vector>

#include "program.h"

static constexpr std::size_t kBytes = 4 * kGiB;
static constexpr int kLaunches = 8;  // timed together: one alone is 1 ms

__global__ void write_all(uint4* data, std::size_t count, unsigned value) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const uint4 four = make_uint4(value, value, value, value);
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    data[i] = four;
  }
}

namespace {

struct Kind {
  std::string label, call, operations;
  uint4 *from = nullptr, *to = nullptr;
};

constexpr std::size_t kCount = kBytes / sizeof(uint4);
int blocks = 0;
unsigned long long* total = nullptr;
cudaEvent_t begun, ended;

uint4* allocate(const std::string& call, std::size_t bytes) {
  void* block = nullptr;
  if (call == "async") {
    CHECK(cudaMallocAsync(&block, bytes, nullptr));
  } else {
    CHECK(cudaMalloc(&block, bytes));
  }
  return static_cast<uint4*>(block);
}

Kind parse(const std::string& word) {
  std::vector<std::string> parts(1);
  for (const char c : word) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const std::size_t mib = parts.size() == 4 ? std::strtoull(parts[2].c_str(), nullptr, 10) : 0;
  if (mib * kMiB < kBytes || (parts[1] != "malloc" && parts[1] != "async")) {
    std::fprintf(stderr, "not LABEL:malloc|async:MIB:OPERATIONS with 4096 MiB or more: %s\n",
                 word.c_str());
    std::exit(2);
  }
  Kind kind{parts[0], parts[1], parts[3]};
  kind.from = allocate(kind.call, mib * kMiB);
  kind.to = allocate(kind.call, mib * kMiB);
  return kind;
}

void launch(const Kind& kind, char operation, unsigned value) {
  switch (operation) {
    case 'w':
      write_all<<<blocks, 512>>>(kind.from, kCount, value);
      break;
    case 'c':
      CHECK(cudaMemcpyAsync(kind.to, kind.from, kBytes, cudaMemcpyDeviceToDevice));
      break;
    case 'r':
      read_all<<<blocks, 512>>>(kind.to, kCount, total);
      break;
    case 'm':
      CHECK(cudaMemsetAsync(kind.to, static_cast<int>(value & 0xff), kBytes));
      break;
  }
  CHECK(cudaGetLastError());
}

double rate(const Kind& kind, char operation, unsigned value) {
  launch(kind, operation, value);  // not timed
  CHECK(cudaEventRecord(begun));
  for (int i = 0; i < kLaunches; ++i) launch(kind, operation, value);
  CHECK(cudaEventRecord(ended));
  CHECK(cudaEventSynchronize(ended));
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begun, ended));
  return kLaunches * static_cast<double>(kBytes) * (operation == 'c' ? 2 : 1) / ms / 1e6;
}

bool holds(const Kind& kind, unsigned word) {
  CHECK(cudaMemset(total, 0, sizeof(*total)));
  launch(kind, 'r', 0);
  unsigned long long sum = 0;
  CHECK(cudaMemcpy(&sum, total, sizeof(sum), cudaMemcpyDeviceToHost));
  return sum == kCount * 4ull * word;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int rounds = std::atoi(argv[1]);
  int processors = 0;
  CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  blocks = processors * 16;
  CHECK(cudaMalloc(&total, sizeof(*total)));
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreate(&ended));
  std::vector<Kind> kinds;
  for (int i = 2; i < argc; ++i) kinds.push_back(parse(argv[i]));

  // Clocks up, and the pages of managed blocks into device memory.
  for (const Kind& kind : kinds) {
    launch(kind, 'w', 1);
    launch(kind, 'c', 0);
  }
  CHECK(cudaDeviceSynchronize());
  for (const double until = now_us() + 300e3; now_us() < until;) {
    for (const Kind& kind : kinds) launch(kind, 'c', 0);
    CHECK(cudaDeviceSynchronize());
  }

  std::map<std::string, std::map<char, std::vector<double>>> rates;
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    for (const Kind& kind : kinds) {
      const auto value = static_cast<unsigned>(round * 7 + 3);
      unsigned word = value;
      for (const char operation : std::string("wcrm")) {
        if (kind.operations.find(operation) == std::string::npos) continue;
        rates[kind.label][operation].push_back(rate(kind, operation, value));
        if (operation == 'm') word = value * 0x01010101u;
        if (operation != 'w') right = right && holds(kind, word);
      }
    }
  }
  const std::map<char, const char*> names{
      {'r', "read"}, {'w', "write"}, {'c', "copy"}, {'m', "memset"}};
  std::printf("{\"right\": %s, \"rates\": {", right ? "true" : "false");
  const char* kind_comma = "";
  for (const auto& [label, operations] : rates) {
    std::printf("%s\"%s\": {", kind_comma, label.c_str());
    kind_comma = ", ";
    const char* comma = "";
    for (const auto& [operation, numbers] : operations) {
      std::printf("%s\"%s\": [", comma, names.at(operation));
      comma = ", ";
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::printf("%s%.1f", i == 0 ? "" : ", ", numbers[i]);
      }
      std::printf("]");
    }
    std::printf("}");
  }
  std::printf("}}\n");
  return right ? 0 : 1;
}
