// What the checks need around the calls that they check: a context, blocks and streams that clean
// up after themselves, kernels, and reading memory back. Errors here stop the check.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "contract.h"
#include "driver.h"

namespace contract {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr CUdeviceptr kNowhere = 0x3dead0000000;  // an address that nothing maps

// The first device and its primary context, retained once for the life of the process.
// use_primary makes it current on the calling thread (cuInit happens here, not earlier).
CUdevice first_device();
CUcontext use_primary();
CUdevice second_device();  // for checks with needs2
CUcontext primary_of(CUdevice device);
bool driver_is_initialised();  // use_primary was called in this process

struct MemoryInfo {
  std::size_t free = 0, total = 0;
};
MemoryInfo memory_info();
int device_attribute(CUdevice_attribute attribute, CUdevice device);

// A block of cuMemAlloc. Freed at the end of the scope unless taken out with leave().
class Block {
 public:
  explicit Block(std::size_t bytes);
  ~Block();
  Block(Block&& other) noexcept : ptr_(other.ptr_), bytes_(other.bytes_) { other.ptr_ = 0; }
  Block& operator=(Block&& other) noexcept {
    std::swap(ptr_, other.ptr_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  operator CUdeviceptr() const { return ptr_; }  // NOLINT: it is passed where pointers go
  CUdeviceptr ptr() const { return ptr_; }
  CUdeviceptr end() const { return ptr_ + bytes_; }
  std::size_t bytes() const { return bytes_; }
  CUdeviceptr leave() { return std::exchange(ptr_, 0); }

 private:
  CUdeviceptr ptr_ = 0;
  std::size_t bytes_ = 0;
};

// Non-blocking unless asked otherwise: such a stream does not wait for the legacy stream.
class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  ~Stream();
  Stream(const Stream&) = delete;
  operator CUstream() const { return stream_; }  // NOLINT
  void finish() const;
  bool busy() const;

 private:
  CUstream stream_ = nullptr;
};

// A word of pinned host memory that a kernel can wait for and the host can set.
class HostFlag {
 public:
  HostFlag();
  ~HostFlag();
  HostFlag(const HostFlag&) = delete;
  void raise();
  void lower();
  void hold(CUstream stream);  // puts a kernel into the stream that waits for raise(), 5 s at most

 private:
  volatile std::uint32_t* word_ = nullptr;
  CUdeviceptr address_ = 0;
};

// Kernels, in the current context. Counts are in 32-bit words.
void spin(CUstream stream, double seconds);
void fill(CUstream stream, CUdeviceptr ptr, std::uint64_t words, std::uint32_t value);
void add(CUstream stream, CUdeviceptr ptr, std::uint64_t words, std::uint32_t value);
void copy_words(CUstream stream, CUdeviceptr dst, CUdeviceptr src, std::uint64_t words);
std::uint64_t sum(CUstream stream, CUdeviceptr ptr, std::uint64_t words);
// Before a capture, and before a kernel that waits for the host: loading may wait for the device.
void load_kernels();

// Reading back by the copy engine, which waits for the legacy stream and all blocking streams.
std::vector<std::uint8_t> read_bytes(CUdeviceptr ptr, std::size_t bytes);
void write_bytes(CUdeviceptr ptr, const std::vector<std::uint8_t>& bytes);
std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed);
bool holds_byte(CUdeviceptr ptr, std::size_t bytes, std::uint8_t value);
bool holds_word(CUdeviceptr ptr, std::size_t words, std::uint32_t value);

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
void sleep_for(double seconds);

}  // namespace contract
