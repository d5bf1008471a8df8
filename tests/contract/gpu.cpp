// See gpu.h.
#include "gpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "kernels.h"

namespace contract {

static bool initialised = false;

bool driver_is_initialised() {
  return initialised;
}

CUdevice first_device() {
  CALL(cu.cuInit(0));
  initialised = true;
  CUdevice device = 0;
  CALL(cu.cuDeviceGet(&device, 0));
  return device;
}

CUdevice second_device() {
  first_device();
  CUdevice device = 0;
  CALL(cu.cuDeviceGet(&device, 1));
  return device;
}

CUcontext primary_of(CUdevice device) {
  static std::mutex mutex;
  static std::map<CUdevice, CUcontext> retained;
  const std::lock_guard lock(mutex);
  CUcontext& context = retained[device];
  if (context == nullptr) CALL(cu.cuDevicePrimaryCtxRetain(&context, device));
  return context;
}

CUcontext use_primary() {
  const CUcontext context = primary_of(first_device());
  CALL(cu.cuCtxSetCurrent(context));
  return context;
}

MemoryInfo memory_info() {
  MemoryInfo info;
  CALL(cu.cuMemGetInfo(&info.free, &info.total));
  return info;
}

int device_attribute(CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  CALL(cu.cuDeviceGetAttribute(&value, attribute, device));
  return value;
}

Block::Block(std::size_t bytes) : bytes_(bytes) {
  CALL(cu.cuMemAlloc(&ptr_, bytes));
}

Block::~Block() {
  if (ptr_ != 0) GIVES(0, cu.cuMemFree(ptr_));
}

Stream::Stream(unsigned flags) {
  CALL(cu.cuStreamCreate(&stream_, flags));
}

Stream::~Stream() {
  // A stream is destroyed lazily; wait, so that no check inherits work from the one before it.
  cu.cuStreamSynchronize(stream_);
  cu.cuStreamDestroy(stream_);
}

void Stream::finish() const {
  CALL(cu.cuStreamSynchronize(stream_));
}

bool Stream::busy() const {
  const CUresult state = cu.cuStreamQuery(stream_);
  if (state == CUDA_ERROR_NOT_READY) return true;
  CALL(state);
  return false;
}

HostFlag::HostFlag() {
  void* page = nullptr;
  CALL(cu.cuMemHostAlloc(&page, 4 * kKiB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  word_ = static_cast<volatile std::uint32_t*>(page);
  *word_ = 0;
  CALL(cu.cuMemHostGetDevicePointer(&address_, page, 0));
}

HostFlag::~HostFlag() {
  raise();
  cu.cuCtxSynchronize();
  cu.cuMemFreeHost(const_cast<std::uint32_t*>(word_));
}

void HostFlag::raise() {
  *word_ = 1;
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void HostFlag::lower() {
  *word_ = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

static CUfunction kernel(const char* name) {
  static std::mutex mutex;
  static std::map<CUcontext, CUmodule> modules;
  const std::lock_guard lock(mutex);
  CUcontext context = nullptr;
  CALL(cu.cuCtxGetCurrent(&context));
  CUmodule& module = modules[context];
  if (module == nullptr) CALL(cu.cuModuleLoadData(&module, kKernelText));
  CUfunction function = nullptr;
  CALL(cu.cuModuleGetFunction(&function, module, name));
  return function;
}

static void launch(const char* name, unsigned blocks, CUstream stream, void** parameters) {
  const unsigned threads = blocks == 0 ? 1 : 256;
  CALL(cu.cuLaunchKernel(kernel(name), std::max(blocks, 1u), 1, 1, threads, 1, 1, 0, stream,
                         parameters, nullptr));
}

static unsigned blocks_for(std::uint64_t words) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>((words + 255) / 256, 1, 512));
}

void load_kernels() {
  for (const char* name : {"kv_spin", "kv_fill", "kv_add", "kv_copy", "kv_sum", "kv_flag"}) {
    (void)kernel(name);
  }
}

void HostFlag::hold(CUstream stream) {
  void* parameters[] = {&address_};
  launch("kv_flag", 0, stream, parameters);
}

void spin(CUstream stream, double seconds) {
  auto nanoseconds = static_cast<std::uint64_t>(seconds * 1e9);
  void* parameters[] = {&nanoseconds};
  launch("kv_spin", 0, stream, parameters);
}

void fill(CUstream stream, CUdeviceptr ptr, std::uint64_t words, std::uint32_t value) {
  void* parameters[] = {&ptr, &words, &value};
  launch("kv_fill", blocks_for(words), stream, parameters);
}

void add(CUstream stream, CUdeviceptr ptr, std::uint64_t words, std::uint32_t value) {
  void* parameters[] = {&ptr, &words, &value};
  launch("kv_add", blocks_for(words), stream, parameters);
}

void copy_words(CUstream stream, CUdeviceptr dst, CUdeviceptr src, std::uint64_t words) {
  void* parameters[] = {&dst, &src, &words};
  launch("kv_copy", blocks_for(words), stream, parameters);
}

std::uint64_t sum(CUstream stream, CUdeviceptr ptr, std::uint64_t words) {
  const Block out(sizeof(std::uint64_t));
  CUdeviceptr address = out;
  std::uint64_t result = 0;
  CALL(cu.cuMemcpyHtoD(address, &result, sizeof result));
  void* parameters[] = {&ptr, &words, &address};
  launch("kv_sum", blocks_for(words), stream, parameters);
  CALL(cu.cuStreamSynchronize(stream));
  CALL(cu.cuMemcpyDtoH(&result, address, sizeof result));
  return result;
}

std::vector<std::uint8_t> read_bytes(CUdeviceptr ptr, std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  CALL(cu.cuMemcpyDtoH(data.data(), ptr, bytes));
  return data;
}

void write_bytes(CUdeviceptr ptr, const std::vector<std::uint8_t>& bytes) {
  CALL(cu.cuMemcpyHtoD(ptr, bytes.data(), bytes.size()));
  // From pageable memory it may return before the bytes have arrived, which a non-blocking stream
  // would see; reading one back waits for them.
  std::uint8_t last = 0;
  if (!bytes.empty()) CALL(cu.cuMemcpyDtoH(&last, ptr + bytes.size() - 1, 1));
}

std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::uint8_t> data((bytes + 7) / 8 * 8);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::size_t i = 0; i < data.size(); i += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint64_t mixed = state ^ (state >> 29);
    std::memcpy(&data[i], &mixed, 8);
  }
  data.resize(bytes);
  return data;
}

bool holds_byte(CUdeviceptr ptr, std::size_t bytes, std::uint8_t value) {
  const auto data = read_bytes(ptr, bytes);
  return std::all_of(data.begin(), data.end(), [&](std::uint8_t b) { return b == value; });
}

bool holds_word(CUdeviceptr ptr, std::size_t words, std::uint32_t value) {
  std::vector<std::uint32_t> data(words);
  CALL(cu.cuMemcpyDtoH(data.data(), ptr, words * sizeof(std::uint32_t)));
  return std::all_of(data.begin(), data.end(), [&](std::uint32_t w) { return w == value; });
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace contract
