// Copies between every pair of kinds of memory, by every family of functions: blocks of each size,
// the program's managed, mapped and pool memory, pinned, registered and ordinary host memory. Pairs
// of two host kinds are no business of a driver of devices and are left out.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping.h"

using namespace contract;

namespace {

constexpr std::size_t kBytes = 5888;  // what fits into a small block, in rows of 23 x 256

enum class Where { device, managed, pinned, pageable };

// One piece of memory of some kind, with at least kBytes at ptr().
class Piece {
 public:
  virtual ~Piece() = default;
  Piece(const char* name, Where where) : name_(name), where_(where) {}
  const char* name() const { return name_; }
  CUdeviceptr ptr() const { return ptr_; }
  bool on_host() const { return where_ == Where::pinned || where_ == Where::pageable; }
  bool is_device() const { return where_ == Where::device || where_ == Where::managed; }
  void* host() const { return reinterpret_cast<void*>(ptr_); }
  void write(const std::vector<std::uint8_t>& bytes) const {
    if (on_host()) {
      std::memcpy(host(), bytes.data(), bytes.size());
    } else {
      write_bytes(ptr_, bytes);
    }
  }
  std::vector<std::uint8_t> read(std::size_t bytes) const {
    if (!on_host()) return read_bytes(ptr_, bytes);
    const auto* first = static_cast<const std::uint8_t*>(host());
    return std::vector<std::uint8_t>(first, first + bytes);
  }

 protected:
  CUdeviceptr ptr_ = 0;

 private:
  const char* name_;
  Where where_;
};

// The memory lies at the end of its block, where a wrong bound would show.
class BlockPiece : public Piece {
 public:
  BlockPiece(const char* name, std::size_t bytes) : Piece(name, Where::device), block_(bytes) {
    ptr_ = block_.end() - kBytes;
  }

 private:
  Block block_;
};

class MappedPiece : public Piece {
 public:
  MappedPiece() : Piece("own mapping", Where::device), mapping_(2 * kMiB) {
    ptr_ = mapping_.ptr() + 2 * kMiB - kBytes;
  }

 private:
  Mapping mapping_;
};

class MadePiece : public Piece {
 public:
  using Free = std::function<void(CUdeviceptr)>;
  MadePiece(const char* name, Where where, CUdeviceptr ptr, Free free)
      : Piece(name, where), free_(std::move(free)) {
    ptr_ = ptr;
  }
  ~MadePiece() override { free_(ptr_); }

 private:
  Free free_;
};

std::unique_ptr<Piece> made(const char* name, Where where, CUdeviceptr ptr, MadePiece::Free free) {
  return std::make_unique<MadePiece>(name, where, ptr, std::move(free));
}

std::vector<std::unique_ptr<Piece>> all_kinds() {
  std::vector<std::unique_ptr<Piece>> kinds;
  const CUdevice device = first_device();
  kinds.push_back(std::make_unique<BlockPiece>("small block", small_size().bytes));
  kinds.push_back(std::make_unique<BlockPiece>("medium block", medium_size().bytes));
  kinds.push_back(std::make_unique<BlockPiece>("large block", option_large()));
  kinds.push_back(std::make_unique<MappedPiece>());
  CUdeviceptr ptr = 0;
  void* host = nullptr;
  if (device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) != 0) {
    CALL(cu.cuMemAllocManaged(&ptr, kBytes, CU_MEM_ATTACH_GLOBAL));
    kinds.push_back(
        made("own managed", Where::managed, ptr, [](CUdeviceptr p) { CALL(cu.cuMemFree(p)); }));
  }
  CALL(cu.cuMemAllocAsync(&ptr, kBytes, nullptr));
  CALL(cu.cuStreamSynchronize(nullptr));
  kinds.push_back(made("pool", Where::device, ptr, [](CUdeviceptr p) { CALL(cu.cuMemFree(p)); }));
  CALL(cu.cuMemHostAlloc(&host, kBytes, CU_MEMHOSTALLOC_PORTABLE));
  kinds.push_back(made("pinned host", Where::pinned, reinterpret_cast<CUdeviceptr>(host),
                       [](CUdeviceptr p) { CALL(cu.cuMemFreeHost(reinterpret_cast<void*>(p))); }));
  REQUIRE(posix_memalign(&host, 4096, 8192) == 0);
  CALL(cu.cuMemHostRegister(host, 8192, 0));
  kinds.push_back(made("registered host", Where::pinned, reinterpret_cast<CUdeviceptr>(host),
                       [](CUdeviceptr p) {
                         CALL(cu.cuMemHostUnregister(reinterpret_cast<void*>(p)));
                         std::free(reinterpret_cast<void*>(p));
                       }));
  kinds.push_back(made("ordinary host", Where::pageable,
                       reinterpret_cast<CUdeviceptr>(std::malloc(kBytes)),
                       [](CUdeviceptr p) { std::free(reinterpret_cast<void*>(p)); }));
  return kinds;
}

using Copy = std::function<CUresult(const Piece& to, const Piece& from, CUstream stream)>;
using Suits = std::function<bool(const Piece& to, const Piece& from)>;

bool any_pair(const Piece&, const Piece&) {
  return true;
}

// Copies kBytes between all pairs that suit. The stream does not wait for others.
void between_all_kinds(const Copy& copy, const Suits& suits = any_pair) {
  const Stream stream;
  const auto kinds = all_kinds();
  unsigned seed = 100;
  for (const auto& from : kinds) {
    for (const auto& other : kinds) {
      // Two blocks of one kind: copies.cpp.
      if (other == from || (from->on_host() && other->on_host()) || !suits(*other, *from)) continue;
      from->write(pattern(kBytes, ++seed));
      other->write(std::vector<std::uint8_t>(kBytes, 0xee));
      const CUresult code = copy(*other, *from, stream);
      CALL(cu.cuCtxSynchronize());
      const std::string pair = std::string(" from ") + from->name() + " to " + other->name();
      if (code != CUDA_SUCCESS) {
        fail(__FILE__, __LINE__, describe_result(code) + pair);
      } else if (other->read(kBytes) != pattern(kBytes, seed)) {
        fail(__FILE__, __LINE__, "wrong bytes" + pair);
      }
    }
  }
}

CUDA_MEMCPY2D rows(const Piece& to, const Piece& from) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = from.ptr();
  copy.dstDevice = to.ptr();
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 256;
  copy.Height = kBytes / 256;
  return copy;
}

// 23 rows as a box of one row and 23 layers; memory types by name, or found by the address.
CUDA_MEMCPY3D layers(const Piece& to, const Piece& from, bool named) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  if (named && from.is_device()) copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  if (named && from.on_host()) copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  if (named && to.is_device()) copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  if (named && to.on_host()) copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from.host();
  copy.dstHost = to.host();
  copy.srcDevice = from.ptr();
  copy.dstDevice = to.ptr();
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 256;
  copy.srcHeight = copy.dstHeight = copy.Height = 1;
  copy.Depth = kBytes / 256;
  return copy;
}

bool both_device(const Piece& to, const Piece& from) {
  return to.is_device() && from.is_device();
}

}  // namespace

CHECK_CASE("copies", "every pair of kinds, by the copy that finds the direction itself", plain) {
  between_all_kinds([](const Piece& to, const Piece& from, CUstream) {
    return cu.cuMemcpy(to.ptr(), from.ptr(), kBytes);
  });
  between_all_kinds([](const Piece& to, const Piece& from, CUstream stream) {
    return cu.cuMemcpyAsync(to.ptr(), from.ptr(), kBytes, stream);
  });
}

CHECK_CASE("copies", "every pair of device kinds, by the copies between devices", plain) {
  between_all_kinds([](const Piece& to, const Piece& from,
                       CUstream) { return cu.cuMemcpyDtoD(to.ptr(), from.ptr(), kBytes); },
                    both_device);
  between_all_kinds(
      [](const Piece& to, const Piece& from, CUstream stream) {
        return cu.cuMemcpyDtoDAsync(to.ptr(), from.ptr(), kBytes, stream);
      },
      both_device);
  const CUcontext context = use_primary();
  between_all_kinds(
      [&](const Piece& to, const Piece& from, CUstream) {
        return cu.cuMemcpyPeer(to.ptr(), context, from.ptr(), context, kBytes);
      },
      both_device);
  between_all_kinds(
      [&](const Piece& to, const Piece& from, CUstream stream) {
        return cu.cuMemcpyPeerAsync(to.ptr(), context, from.ptr(), context, kBytes, stream);
      },
      both_device);
}

CHECK_CASE("copies", "every host kind to and from every device kind, by name", plain) {
  const Suits upwards = [](const Piece& to, const Piece& from) {
    return to.is_device() && from.on_host();
  };
  const Suits downwards = [](const Piece& to, const Piece& from) {
    return to.on_host() && from.is_device();
  };
  between_all_kinds([](const Piece& to, const Piece& from,
                       CUstream) { return cu.cuMemcpyHtoD(to.ptr(), from.host(), kBytes); },
                    upwards);
  between_all_kinds(
      [](const Piece& to, const Piece& from, CUstream stream) {
        return cu.cuMemcpyHtoDAsync(to.ptr(), from.host(), kBytes, stream);
      },
      upwards);
  between_all_kinds([](const Piece& to, const Piece& from,
                       CUstream) { return cu.cuMemcpyDtoH(to.host(), from.ptr(), kBytes); },
                    downwards);
  between_all_kinds(
      [](const Piece& to, const Piece& from, CUstream stream) {
        return cu.cuMemcpyDtoHAsync(to.host(), from.ptr(), kBytes, stream);
      },
      downwards);
}

CHECK_CASE("copies", "every pair of kinds, rectangles", plain) {
  between_all_kinds([](const Piece& to, const Piece& from, CUstream) {
    const CUDA_MEMCPY2D copy = rows(to, from);
    return cu.cuMemcpy2D(&copy);
  });
  between_all_kinds([](const Piece& to, const Piece& from, CUstream) {
    const CUDA_MEMCPY2D copy = rows(to, from);
    return cu.cuMemcpy2DUnaligned(&copy);
  });
  between_all_kinds([](const Piece& to, const Piece& from, CUstream stream) {
    const CUDA_MEMCPY2D copy = rows(to, from);
    return cu.cuMemcpy2DAsync(&copy, stream);
  });
}

CHECK_CASE("copies", "every pair of kinds, boxes", plain) {
  for (const bool named : {true, false}) {
    between_all_kinds([&](const Piece& to, const Piece& from, CUstream) {
      const CUDA_MEMCPY3D copy = layers(to, from, named);
      return cu.cuMemcpy3D(&copy);
    });
    between_all_kinds([&](const Piece& to, const Piece& from, CUstream stream) {
      const CUDA_MEMCPY3D copy = layers(to, from, named);
      return cu.cuMemcpy3DAsync(&copy, stream);
    });
  }
  between_all_kinds([](const Piece& to, const Piece& from, CUstream) {
    const CUDA_MEMCPY3D copy = layers(to, from, true);
    return cu.cuMemcpy3D_v2_ptds(&copy);
  });
  between_all_kinds([](const Piece& to, const Piece& from, CUstream) {
    const CUDA_MEMCPY3D copy = layers(to, from, true);
    return cu.cuMemcpy3DAsync_v2_ptsz(&copy, nullptr);
  });
}

CHECK_CASE("copies", "every pair of kinds, as a batch of one", plain) {
  if (cu.cuMemcpyBatchAsync_v1 == nullptr) SKIP("the driver has no cuMemcpyBatchAsync");
  CUmemcpyAttributes order{};
  order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0, failed = 77, bytes = kBytes;
  between_all_kinds([&](const Piece& to, const Piece& from, CUstream stream) {
    CUdeviceptr a = to.ptr(), b = from.ptr();
    return cu.cuMemcpyBatchAsync_v1(&a, &b, &bytes, 1, &order, &first, 1, &failed, stream);
  });
  if (cu.cuMemcpyBatchAsync_v2 == nullptr) SKIP("the driver has no cuMemcpyBatchAsync of CUDA 13");
  between_all_kinds([&](const Piece& to, const Piece& from, CUstream stream) {
    CUdeviceptr a = to.ptr(), b = from.ptr();
    return cu.cuMemcpyBatchAsync_v2(&a, &b, &bytes, 1, &order, &first, 1, stream);
  });
  between_all_kinds([&](const Piece& to, const Piece& from, CUstream) {
    CUdeviceptr a = to.ptr(), b = from.ptr();
    return cu.cuMemcpyBatchAsync_v2_ptsz(&a, &b, &bytes, 1, &order, &first, 1,
                                         CU_STREAM_PER_THREAD);
  });
}

CHECK_CASE("copies", "every pair of kinds, as a batch of one box", plain) {
  if (cu.cuMemcpy3DBatchAsync_v1 == nullptr) SKIP("the driver has no cuMemcpy3DBatchAsync");
  std::size_t failed = 77;
  const auto box = [](const Piece& to, const Piece& from) {
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = from.ptr();
    op.dst.op.ptr.ptr = to.ptr();
    op.extent = {256, 1, kBytes / 256};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
  };
  between_all_kinds([&](const Piece& to, const Piece& from, CUstream stream) {
    CUDA_MEMCPY3D_BATCH_OP op = box(to, from);
    return cu.cuMemcpy3DBatchAsync_v1(1, &op, &failed, 0, stream);
  });
  if (cu.cuMemcpy3DBatchAsync_v2 == nullptr) SKIP("the driver has no cuMemcpy3DBatchAsync_v2");
  between_all_kinds([&](const Piece& to, const Piece& from, CUstream stream) {
    CUDA_MEMCPY3D_BATCH_OP op = box(to, from);
    return cu.cuMemcpy3DBatchAsync_v2(1, &op, 0, stream);
  });
}
