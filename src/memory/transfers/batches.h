// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync on vmm blocks: every copy of a batch is judged as a
// single one is (copies.h). Where the driver refuses a batch for want of access to another device's
// block, its copies are made one by one: they may come in any order, and making one twice changes
// nothing, for the copies of a batch must not depend on each other.
#pragma once

#include <cstddef>

#include "driver/newer_types.h"
#include "memory/transfers/copies.h"

namespace kvshim::copies {

// A batch as the driver gets it. Nothing in it has been checked.
struct LinearBatch {
  const CUdeviceptr* to;
  const CUdeviceptr* from;
  const std::size_t* bytes;
  std::size_t count;
  const CUmemcpyAttributes* attributes;
  const std::size_t* first;  // for each attribute, the first copy that it is for
  std::size_t kinds;
  CUstream stream;  // explicit
};
struct BoxBatch {
  const CUDA_MEMCPY3D_BATCH_OP* boxes;
  std::size_t count;
  unsigned long long flags;
  CUstream stream;  // explicit
};

// For a batch that has no copy to name: one that succeeds, and boxes that leave their memory
// (measured, driver 580).
inline constexpr std::size_t kNoCopy = ~std::size_t{0};

// As for one copy; *which is the copy that a verdict `refused` is about.
Verdict judge(const LinearBatch& batch, std::size_t* which) noexcept;
Verdict judge(const BoxBatch& batch, std::size_t* which) noexcept;
// After the driver has answered 1: makes the copies one by one if one of them lacks access to
// another device's block. False: the 1 is right. Else *result is the answer, and *which the copy
// that failed.
bool one_by_one(const LinearBatch& batch, std::size_t* which, CUresult* result) noexcept;
bool one_by_one(const BoxBatch& batch, std::size_t* which, CUresult* result) noexcept;

// After the driver has taken the batch: waits for it if sources were to be read before the return
// and one of our managed blocks is in it, for which the driver does not wait (measured, driver 580:
// the host's memory was read afterwards). Gives the driver's code.
CUresult read_in_call(const LinearBatch& batch) noexcept;
CUresult read_in_call(const BoxBatch& batch) noexcept;

}  // namespace kvshim::copies
