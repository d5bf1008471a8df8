// Legacy IPC between two processes on one device. The expectation is the native driver's.
#include <cstdio>
#include <cstring>
#include <iostream>

#include "gpu.h"

using namespace contract;

namespace {

constexpr Traits kDiffers = differs("managed memory has no IPC, natively: a large block answers 1");

// False where the block is managed memory: then the check is that it has no handle.
bool has_ipc(std::size_t bytes) {
  if (memory_of(bytes) != Memory::managed) return true;
  const Block block(bytes);
  CUipcMemHandle handle{};
  GIVES(1, cu.cuIpcGetMemHandle(&handle, block));
  return false;
}

std::string to_text(const CUipcMemHandle& handle) {
  std::string text;
  for (const char c : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    text += two;
  }
  return text;
}

CUipcMemHandle from_text(const std::string& text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

bool same(const CUipcMemHandle& a, const CUipcMemHandle& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Asks the peer, and gives the number it answers with; -1 when it does not.
long long ask(Process& peer, const std::string& question) {
  peer.say(question);
  const std::string answer = peer.hear(10);
  return answer.empty() ? -1 : std::stoll(answer);
}

}  // namespace

// Reads commands from standard input and answers each with one number.
SCENE("ipc_peer", ipc_peer) {
  use_primary();
  CUdeviceptr ptrs[2] = {};
  std::string word;
  while (std::cin >> word) {
    long long answer = -2;
    if (word == "open" || word == "open_again") {
      std::string text;
      std::cin >> text;
      answer = cu.cuIpcOpenMemHandle(&ptrs[word == "open_again"], from_text(text),
                                     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    } else if (word == "same") {
      answer = ptrs[0] == ptrs[1];
    } else if (word == "range") {
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      answer = cu.cuMemGetAddressRange(&base, &bytes, ptrs[0]) == CUDA_SUCCESS && base == ptrs[0]
                   ? static_cast<long long>(bytes)
                   : -3;
    } else if (word == "attribute") {
      int which = 0;
      unsigned long long value = 0;
      std::cin >> which;
      const CUresult code =
          cu.cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(which), ptrs[0]);
      CUcontext current = nullptr;
      cu.cuCtxGetCurrent(&current);
      if (which == CU_POINTER_ATTRIBUTE_CONTEXT) {
        value = value == reinterpret_cast<std::uintptr_t>(current);
      } else if (which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
        value = value == ptrs[0];
      }
      answer = code == CUDA_SUCCESS ? static_cast<long long>(value) : -code;
    } else if (word == "sum") {
      std::uint64_t words = 0;
      std::cin >> words;
      answer = static_cast<long long>(sum(nullptr, ptrs[0], words));
    } else if (word == "fill") {
      std::uint64_t words = 0;
      std::cin >> words;
      fill(nullptr, ptrs[0], words, 9);
      answer = cu.cuCtxSynchronize();
    } else if (word == "device") {
      int which = 0;
      std::cin >> which;
      answer = cu.cuCtxSetCurrent(primary_of(which == 0 ? first_device() : second_device()));
    } else if (word == "enable") {
      answer = cu.cuCtxEnablePeerAccess(primary_of(first_device()), 0);
    } else if (word == "free") {
      answer = cu.cuMemFree(ptrs[0]);
    } else if (word == "reexport") {
      CUipcMemHandle handle{};
      answer = cu.cuIpcGetMemHandle(&handle, ptrs[0]);
    } else if (word == "close") {
      answer = cu.cuIpcCloseMemHandle(ptrs[0]);
    }
    std::printf("%lld\n", answer);
  }
  return 0;
}

CHECK_CASE_SIZES("ipc", "a block has a handle, the same one each time and for every address in it",
                 kDiffers) {
  if (!has_ipc(size.bytes)) return;
  const Block block(size.bytes);
  CUipcMemHandle first{}, second{}, inside{};
  GIVES(0, cu.cuIpcGetMemHandle(&first, block));
  GIVES(0, cu.cuIpcGetMemHandle(&second, block));
  GIVES(0, cu.cuIpcGetMemHandle(&inside, block + 100));
  EXPECT(same(first, second));
  EXPECT(same(first, inside));
}

CHECK_CASE_SIZES("ipc", "a new block at an old address has a new handle", kDiffers) {
  if (!has_ipc(size.bytes)) return;
  CUipcMemHandle before{}, after{};
  {
    const Block block(size.bytes);
    GIVES(0, cu.cuIpcGetMemHandle(&before, block));
  }
  const Block block(size.bytes);
  GIVES(0, cu.cuIpcGetMemHandle(&after, block));
  EXPECT(!same(before, after));
}

CHECK_CASE_SIZES("ipc", "a peer reads and writes the memory", kDiffers) {
  if (!has_ipc(size.bytes)) return;
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  CUipcMemHandle handle{};
  CALL(cu.cuMemsetD32(block, 3, words));
  CALL(cu.cuCtxSynchronize());
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  Process peer("ipc_peer");
  EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
  EXPECT_EQ(ask(peer, "sum " + std::to_string(words)), static_cast<long long>(3 * words));
  EXPECT_EQ(ask(peer, "fill " + std::to_string(words)), 0);
  EXPECT(holds_word(block, words, 9));
  EXPECT_EQ(ask(peer, "close"), 0);
  EXPECT(holds_word(block, words, 9));
}

CHECK_CASE("ipc", "a peer sees the base and the bytes the exporter asked for", kDiffers) {
  Process peer("ipc_peer");
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB + 512, option_large()}) {
    if (!has_ipc(bytes)) continue;
    const Block block(bytes);
    CUipcMemHandle handle{};
    CALL(cu.cuIpcGetMemHandle(&handle, block + 8));
    EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
    EXPECT_EQ(ask(peer, "range"), static_cast<long long>(bytes));
    EXPECT_EQ(ask(peer, "close"), 0);
  }
}

CHECK_CASE_SIZES("ipc", "opening is counted: two opens, two closes, a third is refused with 1",
                 kDiffers) {
  if (!has_ipc(size.bytes)) return;
  const Block block(size.bytes);
  CUipcMemHandle handle{};
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  Process peer("ipc_peer");
  EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
  EXPECT_EQ(ask(peer, "open_again " + to_text(handle)), 0);
  EXPECT_EQ(ask(peer, "same"), 1);
  EXPECT_EQ(ask(peer, "close"), 0);
  EXPECT_EQ(ask(peer, "range"), static_cast<long long>(size.bytes));
  EXPECT_EQ(ask(peer, "close"), 0);
  EXPECT_EQ(ask(peer, "close"), 1);
}

CHECK_CASE_SIZES("ipc", "what a peer opened it can neither free nor export: both give 1",
                 kDiffers) {
  if (!has_ipc(size.bytes)) return;
  const Block block(size.bytes);
  CUipcMemHandle handle{};
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  Process peer("ipc_peer");
  EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
  EXPECT_EQ(ask(peer, "free"), 1);
  EXPECT_EQ(ask(peer, "reexport"), 1);
  EXPECT_EQ(ask(peer, "close"), 0);
}

// Lazy peer access: whoever opens the memory on another device may use it there.
CHECK_CASE_SIZES("ipc", "a peer on the other device opens it, and its kernels read and write it",
                 kDiffers | isolated | needs2) {
  if (!has_ipc(size.bytes)) return;
  int can = 0;
  CALL(cu.cuDeviceCanAccessPeer(&can, second_device(), first_device()));
  if (can == 0) SKIP("the second device cannot access the first one");
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  CUipcMemHandle handle{};
  CALL(cu.cuMemsetD32(block, 3, words));
  CALL(cu.cuCtxSynchronize());
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  Process peer("ipc_peer");
  EXPECT_EQ(ask(peer, "device 1"), 0);
  EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
  EXPECT_EQ(ask(peer, "sum " + std::to_string(words)), static_cast<long long>(3 * words));
  EXPECT_EQ(ask(peer, "fill " + std::to_string(words)), 0);
  EXPECT(holds_word(block, words, 9));
  EXPECT_EQ(ask(peer, "close"), 0);
}

CHECK_CASE("ipc", "what the attributes say of memory that a peer opened", plain | observes) {
  const Block block(medium_size().bytes);
  CUipcMemHandle handle{};
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  Process peer("ipc_peer");
  EXPECT_EQ(ask(peer, "open " + to_text(handle)), 0);
  const auto attribute = [&](CUpointer_attribute which) {
    return ask(peer, "attribute " + std::to_string(which));
  };
  observe("memory type", attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
  observe("the opener's context", attribute(CU_POINTER_ATTRIBUTE_CONTEXT));
  observe("can be shared on", attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) & 0xff);
  observe("handle types", attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES));
  observe("starts where it was opened", attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR));
  observe("bytes", attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE));
  observe("managed", attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED));
  observe("device", attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
}

CHECK_CASE_SIZES("ipc", "the exporting process itself cannot open the handle: 201", kDiffers) {
  if (!has_ipc(size.bytes)) return;
  const Block block(size.bytes);
  CUipcMemHandle handle{};
  CUdeviceptr ptr = 0;
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  GIVES(201, cu.cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

CHECK_CASE("ipc", "flags 0, no place and a handle of garbage are refused with 1", plain) {
  const Block block(4096);
  CUipcMemHandle handle{}, garbage{};
  std::memset(&garbage, 0x5a, sizeof garbage);
  CUdeviceptr ptr = 0;
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  GIVES(1, cu.cuIpcOpenMemHandle(&ptr, handle, 0));
  GIVES(1, cu.cuIpcOpenMemHandle(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  GIVES(1, cu.cuIpcOpenMemHandle(&ptr, garbage, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

CHECK_CASE("ipc", "memory that legacy IPC cannot share is refused with 1", plain) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = first_device();
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr ptr = 0;
  CUipcMemHandle handle{};
  CALL(cu.cuMemCreate(&memory, 2 * kMiB, &prop, 0));
  CALL(cu.cuMemAddressReserve(&ptr, 2 * kMiB, 0, 0, 0));
  CALL(cu.cuMemMap(ptr, 2 * kMiB, 0, memory, 0));
  CALL(cu.cuMemSetAccess(ptr, 2 * kMiB, &access, 1));
  GIVES(1, cu.cuIpcGetMemHandle(&handle, ptr));
  CALL(cu.cuMemUnmap(ptr, 2 * kMiB));
  CALL(cu.cuMemRelease(memory));
  CALL(cu.cuMemAddressFree(ptr, 2 * kMiB));
}

CHECK_CASE("ipc", "managed memory is refused with 1", needs_managed) {
  CUdeviceptr ptr = 0;
  CUipcMemHandle handle{};
  CALL(cu.cuMemAllocManaged(&ptr, kMiB, CU_MEM_ATTACH_GLOBAL));
  GIVES(1, cu.cuIpcGetMemHandle(&handle, ptr));
  GIVES(0, cu.cuMemFree(ptr));
}

CHECK_CASE("ipc", "unknown addresses, and no place for the handle", plain | observes) {
  CUipcMemHandle handle{};
  const Block block(4096);
  const CUresult unknown = cu.cuIpcGetMemHandle(&handle, kNowhere);
  REFUSES(unknown);
  observe("unknown", unknown);
  const CUresult nowhere = cu.cuIpcGetMemHandle(nullptr, block);
  REFUSES(nowhere);
  observe("no place", nowhere);
  const CUresult homeless = cu.cuIpcOpenMemHandle(nullptr, handle, 0);
  observe("no place for the address", homeless);
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(nullptr));
    observe("no context, no place", cu.cuIpcOpenMemHandle(nullptr, handle, 0));
  });
  const CUresult closed = cu.cuIpcCloseMemHandle(block);
  REFUSES(closed);
  observe("close of what was never opened", closed);
}

CHECK_CASE("ipc", "in a broken context: its error, whatever the arguments", isolated | observes) {
  Block block(medium_size().bytes);
  CUipcMemHandle handle{}, garbage{};
  CUdeviceptr ptr = 0;
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  const Stream stream;
  fill(stream, kNowhere, 1, 1);
  GIVES(700, cu.cuStreamSynchronize(stream));
  observe("get", cu.cuIpcGetMemHandle(&handle, block));
  observe("open", cu.cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  observe("open without a place", cu.cuIpcOpenMemHandle(nullptr, handle, 0));
  observe("open of garbage",
          cu.cuIpcOpenMemHandle(&ptr, garbage, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  observe("close", cu.cuIpcCloseMemHandle(block));
  block.leave();  // nothing can be freed any more
}

CHECK_CASE("ipc", "in a destroyed context: its error", isolated | observes) {
  const Block block(medium_size().bytes);
  CUipcMemHandle handle{};
  CUdeviceptr ptr = 0;
  CALL(cu.cuIpcGetMemHandle(&handle, block));
  CUcontext own = nullptr;
  CALL(cu.cuCtxCreate_v2(&own, 0, first_device()));
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(own));
    on_thread([&] { CALL(cu.cuCtxDestroy(own)); });
    observe("get", cu.cuIpcGetMemHandle(&handle, block));
    observe("open", cu.cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    observe("close", cu.cuIpcCloseMemHandle(block));
  });
  use_primary();
}
