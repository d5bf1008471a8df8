// Threads: those without a context get 201 where the driver says so, and many at once do no harm.
#include <atomic>
#include <thread>
#include <vector>

#include "gpu.h"

using namespace contract;

CHECK_CASE("threads", "allocation without a context gives 201", plain) {
  on_thread([] {
    CUdeviceptr ptr = 0;
    GIVES(201, cu.cuMemAlloc(&ptr, 4096));
    GIVES(201, cu.cuMemAlloc(&ptr, 3 * kMiB));
    GIVES(201, cu.cuMemAlloc(&ptr, option_large()));
    GIVES(201, cu.cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
    GIVES(201, cu.cuMemAllocManaged(&ptr, option_large(), CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(ptr, 0u);
  });
}

CHECK_CASE("threads", "a call without a context leaves the thread without one", plain) {
  on_thread([] {
    CUdeviceptr ptr = 0;
    CUcontext current = reinterpret_cast<CUcontext>(1);
    GIVES(201, cu.cuMemAlloc(&ptr, option_large()));
    GIVES(0, cu.cuCtxGetCurrent(&current));
    EXPECT(current == nullptr);
    CUdevice device = -1;
    GIVES(201, cu.cuCtxGetDevice(&device));
  });
}

CHECK_CASE("threads", "free and total without a context give 201", plain) {
  on_thread([] {
    std::size_t free = 1, total = 1;
    GIVES(201, cu.cuMemGetInfo(&free, &total));
  });
}

CHECK_CASE_SIZES("threads", "memset of another thread's block without a context gives 201", plain) {
  const Block block(size.bytes);
  CALL(cu.cuMemsetD8(block, 5, 64));
  on_thread([&] {
    GIVES(201, cu.cuMemsetD8(block, 9, 64));
    GIVES(201, cu.cuMemsetD32(block, 9, 16));
  });
  EXPECT(holds_byte(block, 64, 5));
}

CHECK_CASE("threads", "which error comes first without a context", plain | observes) {
  on_thread([] {
    CUdeviceptr ptr = 0;
    std::size_t pitch = 0;
    observe("zero bytes", cu.cuMemAlloc(&ptr, 0));
    observe("no output", cu.cuMemAlloc(nullptr, 4096));
    observe("no outputs of cuMemGetInfo", cu.cuMemGetInfo(nullptr, nullptr));
    observe("pitch", cu.cuMemAllocPitch(&ptr, &pitch, 100, 10, 4));
    observe("stream-ordered", cu.cuMemAllocAsync(&ptr, 4096, nullptr));
  });
}

CHECK_CASE_SIZES("threads", "what queries of a block say without a context", plain | observes) {
  const Block block(size.bytes);
  on_thread([&] {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    unsigned type = 0;
    const CUresult range = cu.cuMemGetAddressRange(&base, &bytes, block + 8);
    observe("range", range);
    observe_yes("range is the block's", base == block && bytes == size.bytes);
    observe("attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    observe("type", type);
    observe("memset async", cu.cuMemsetD8Async(block, 1, 64, nullptr));
    observe("free async", cu.cuMemFreeAsync(block + 1, nullptr));
  });
}

CHECK_CASE("threads", "the program's own virtual memory calls need no context", plain) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = first_device();
  on_thread([&] {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr ptr = 0;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GIVES(0, cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    GIVES(0, cu.cuMemAddressReserve(&ptr, 2 * kMiB, 0, 0, 0));
    GIVES(0, cu.cuMemMap(ptr, 2 * kMiB, 0, handle, 0));
    GIVES(0, cu.cuMemSetAccess(ptr, 2 * kMiB, &access, 1));
    GIVES(0, cu.cuMemUnmap(ptr, 2 * kMiB));
    GIVES(0, cu.cuMemRelease(handle));
    GIVES(0, cu.cuMemAddressFree(ptr, 2 * kMiB));
  });
}

CHECK_CASE_SIZES("threads", "16 threads allocate, write and free", plain) {
  const CUcontext context = use_primary();
  const int rounds = size.bytes < kMiB ? 200 : size.bytes < 8 * kMiB ? 20 : 1;
  const unsigned count = size.bytes < 8 * kMiB ? 16 : 4;
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < count; ++id) {
    threads.emplace_back([&, id] {
      cu.cuCtxSetCurrent(context);
      for (int round = 0; round < rounds; ++round) {
        CUdeviceptr ptr = 0;
        std::uint32_t word = 0;
        const unsigned value = id * 1000 + static_cast<unsigned>(round);
        if (cu.cuMemAlloc(&ptr, size.bytes) != CUDA_SUCCESS) ++bad;
        if (cu.cuMemsetD32(ptr, value, size.bytes / 4) != CUDA_SUCCESS) ++bad;
        if (cu.cuMemcpyDtoH(&word, ptr + size.bytes - 4, 4) != CUDA_SUCCESS) ++bad;
        if (word != value) ++bad;
        if (cu.cuMemFree(ptr) != CUDA_SUCCESS) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
}

CHECK_CASE("threads", "a block made by a thread that has ended lives on", plain) {
  const CUcontext context = use_primary();
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    CUdeviceptr ptr = 0;
    on_thread([&] {
      CALL(cu.cuCtxSetCurrent(context));
      CALL(cu.cuMemAlloc(&ptr, bytes));
      write_bytes(ptr, pattern(4096, 8));
    });
    EXPECT(read_bytes(ptr, 4096) == pattern(4096, 8));
    GIVES(0, cu.cuMemFree(ptr));
  }
}

CHECK_CASE("threads", "blocks pass from one thread to another without end", plain) {
  const CUcontext context = use_primary();
  std::atomic<CUdeviceptr> slot{0};
  std::atomic<int> bad{0};
  constexpr int kRounds = 300;
  std::thread taker([&] {
    for (int i = 0; i < kRounds; ++i) {
      CUdeviceptr ptr = 0;
      while ((ptr = slot.exchange(0)) == 0) std::this_thread::yield();
      if (cu.cuMemFree(ptr) != CUDA_SUCCESS) ++bad;  // no context here, on purpose
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    CUdeviceptr ptr = 0;
    cu.cuCtxSetCurrent(context);
    if (cu.cuMemAlloc(&ptr, i % 10 == 0 ? 2 * kMiB : 5000) != CUDA_SUCCESS) ++bad;
    while (slot != 0) std::this_thread::yield();
    slot = ptr;
  }
  taker.join();
  EXPECT_EQ(bad.load(), 0);
}

CHECK_CASE("threads", "queries answer while other threads allocate", plain) {
  const CUcontext context = use_primary();
  const Block block(3 * kMiB);
  std::atomic<bool> done{false};
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&] {
      cu.cuCtxSetCurrent(context);
      while (!done) {
        const Block mine(4096);
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    CUdeviceptr base = 0;
    std::size_t bytes = 0, free = 0, total = 0;
    unsigned type = 0;
    if (cu.cuMemGetAddressRange(&base, &bytes, block + 77) != CUDA_SUCCESS) ++bad;
    if (base != block || bytes != 3 * kMiB) ++bad;
    if (cu.cuMemGetInfo(&free, &total) != CUDA_SUCCESS || free > total) ++bad;
    if (cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block) != CUDA_SUCCESS) {
      ++bad;
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
}
