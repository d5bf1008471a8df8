// cuMemset on our blocks. On a managed block the CPU does it, as a host function in the stream:
// work before it has finished, work after it sees it, and the calling thread does not wait where it
// natively would not. So cudaMemset of a KV cache does not drag its pages into device memory.
#include <atomic>
#include <new>

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/pool.h"
#include "driver/capture.h"
#include "memory/blocks/owner.h"
#include "memory/blocks/registry.h"
#include "memory/blocks/retired.h"
#include "memory/engine.h"
#include "memory/kinds/residency.h"
#include "telemetry/counters.h"

namespace kvshim::engine {

namespace {

struct Job {
  Memset request;
  int numa_node;
  std::atomic<bool> node_of_a_graph{false};  // runs at every replay: never recycled
};

constinit Lock lock;
constinit NodePool<sizeof(Job)> pool;

Job* make_job(const Memset& request, int numa_node) noexcept {
  const Guard guard(lock);
  void* node = pool.take();
  return node == nullptr ? nullptr : new (node) Job{request, numa_node, false};
}

void drop_job(Job* job) noexcept {
  const Guard guard(lock);
  pool.give(job);
}

// On a thread of the driver, in stream order. Must not call CUDA.
void run_job(void* argument) {
  auto* job = static_cast<Job*>(argument);
  const Memset& request = job->request;
  const std::size_t width = request.width * request.pattern.width;
  const std::uint64_t begun = clock_us();
  placement::fill_2d(reinterpret_cast<void*>(request.destination),
                     request.height == 1 ? width : request.pitch, width, request.height,
                     request.pattern, job->numa_node);
  telemetry::Counters& counters = telemetry::counters;
  counters.memset_calls.fetch_add(1, std::memory_order_relaxed);
  counters.memset_bytes.fetch_add(width * request.height, std::memory_order_relaxed);
  counters.memset_us.fetch_add(clock_us() - begun, std::memory_order_relaxed);
  if (!job->node_of_a_graph.load(std::memory_order_acquire)) drop_job(job);
}

// The CPU would fetch the pages back that KVSHIM_PREFETCH has moved to the GPU.
// Not a block that is partly or all the device's: the CPU would draw it into host memory.
bool by_cpu(const Block& block) noexcept {
  return block.kind == Kind::managed && options().memset == MemsetBy::cpu &&
         block.spilled == block.bytes && !residency::prefetched(block.bytes);
}

// A blocking memset is allowed while another, non-blocking stream captures; cuStreamSynchronize is
// not, and would end that capture. With this thread's capture mode relaxed it is.
CUresult wait_for(CUstream stream) noexcept {
  const driver::RelaxedCapture relaxed;
  return driver::cuStreamSynchronize(stream);
}

// The bytes from the first to behind the last element written. False where that overflows or where
// the driver refuses the arguments whatever the memory.
bool extent(const Memset& request, std::uint64_t* bytes) noexcept {
  std::uint64_t row = 0;
  if (__builtin_mul_overflow(request.width, request.pattern.width, &row)) return false;
  if (request.destination % request.pattern.width != 0) return false;
  *bytes = row;
  if (request.height == 1) return true;
  if (request.pitch < row || request.pitch % request.pattern.width != 0) return false;
  std::uint64_t above = 0;
  return !__builtin_mul_overflow(request.pitch, request.height - 1, &above) &&
         !__builtin_add_overflow(above, row, bytes);
}

}  // namespace

bool memset(const Memset& request, CUresult* result) noexcept {
  if (request.width == 0 || request.height == 0) return false;
  Block block;
  Place place = registry::find(request.destination, &block);
  // Freed in stream order: still there for the driver, gone for the program.
  if (place == Place::foreign && retired::covers(request.destination)) place = Place::hole;
  if (place == Place::foreign) return false;
  if (place == Place::hole) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  std::uint64_t bytes = 0;
  if (!extent(request, &bytes)) return false;
  const bool inside = bytes <= block.bytes - (request.destination - block.base);
  // The driver knows the end of native and managed blocks; the end of a vmm block only we know, and
  // behind it may lie another one in the same slab.
  if (!inside && !is_mapping(block.kind)) return false;
  if (inside && !by_cpu(block)) return false;
  // While anything captures that this stream takes part in, the native call makes the native node,
  // or fails in the native way.
  if (driver::only_the_driver(request.stream)) return false;
  if (!inside) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  Job* job = make_job(request, block.owner->device().numa_node());
  if (job == nullptr) return false;
  if (driver::cuLaunchHostFunc(request.stream, run_job, job) != CUDA_SUCCESS) {
    drop_job(job);
    log::debug("memset of {} bytes at {:#x} left to the driver: it takes no host function", bytes,
               request.destination);
    return false;
  }
  // Another thread may have begun a capture of this very stream meanwhile: then the job is a node
  // now.
  if (driver::only_the_driver(request.stream))
    job->node_of_a_graph.store(true, std::memory_order_release);
  log::debug("memset of {} bytes at {:#x} by the CPU, in stream order", bytes, request.destination);
  *result = request.wait ? wait_for(request.stream) : CUDA_SUCCESS;
  return true;
}

void forget_memset_jobs() noexcept {
  lock.renew();
  new (&pool) NodePool<sizeof(Job)>;
}

}  // namespace kvshim::engine
