// Batches of copies that the driver refuses, on a simulated driver with two devices and no P2P.
#include "memory/transfers/batches.h"

#include <cstring>
#include <vector>

#include "sim_fixture.h"

using namespace kvshim;
using copies::BoxBatch;
using copies::LinearBatch;
using copies::Verdict;

namespace {

class TwoDevices : public Engine {
 public:
  TwoDevices() {
    kvsim_set_p2p(0, 1, 0);
    kvsim_set_p2p(1, 0, 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
    first_block = allocated(context, kMiB2);
    second_block = allocated(second, kMiB2);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    kvsim_log_clear();
  }
  ~TwoDevices() {
    kvsim_fail_none();
    cuStreamDestroy(stream);
    cuDevicePrimaryCtxReset(1);
  }
  static CUdeviceptr allocated(CUcontext in, std::size_t bytes) {
    CUdeviceptr out = 0;
    REQUIRE(cuCtxSetCurrent(in) == CUDA_SUCCESS);
    REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
    return out;
  }
  void add(CUdeviceptr a, CUdeviceptr b, std::size_t n = 64) {
    to.push_back(a);
    from.push_back(b);
    bytes.push_back(n);
  }
  LinearBatch batch() {
    return {to.data(), from.data(), bytes.data(), to.size(), &order, &start, 1, stream};
  }
  static CUDA_MEMCPY3D_BATCH_OP box(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = from;
    op.dst.op.ptr.ptr = to;
    op.extent = {8, 2, 4};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
  }

  CUcontext second = nullptr;
  CUdeviceptr first_block = 0, second_block = 0;  // the second device is current
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> to, from;
  std::vector<std::size_t> bytes;
  CUmemcpyAttributes order{};
  std::size_t start = 0, which = 77;
  CUresult result = CUDA_SUCCESS;
};

void put(CUdeviceptr ptr, char value, std::size_t count = 64) {
  const std::vector<char> bytes(count, value);
  REQUIRE(kvsim_poke(ptr, bytes.data(), count) == 0);
}

bool holds(CUdeviceptr ptr, char value, std::size_t count = 64) {
  std::vector<char> bytes(count), wanted(count, value);
  REQUIRE(kvsim_peek(ptr, bytes.data(), count) == 0);
  return bytes == wanted;
}

}  // namespace

TEST_CASE("a batch within one device stays the driver's answer") {
  TwoDevices machine;
  machine.add(machine.second_block, machine.second_block + 4096);
  CHECK(copies::judge(machine.batch(), &machine.which) == Verdict::ours);
  CHECK_FALSE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(kvsim_log_count("cuMemcpyAsync") == 0);
  char host[64] = {};
  machine.to[0] = machine.from[0] = reinterpret_cast<CUdeviceptr>(host);
  CHECK(copies::judge(machine.batch(), &machine.which) == Verdict::forward);
}

TEST_CASE("one copy past the end of its block: the batch is refused, with the copy's number") {
  TwoDevices machine;
  machine.add(machine.second_block, machine.second_block + 4096);
  machine.add(machine.second_block, machine.second_block + kMiB2 - 63);
  CHECK(copies::judge(machine.batch(), &machine.which) == Verdict::refused);
  CHECK(machine.which == 1);
  CUDA_MEMCPY3D_BATCH_OP ops[] = {
      TwoDevices::box(machine.second_block, machine.second_block + 4096),
      TwoDevices::box(machine.second_block + kMiB2 - 63, machine.second_block)};
  CHECK(copies::judge(BoxBatch{ops, 2, 0, machine.stream}, &machine.which) == Verdict::refused);
  CHECK(machine.which == copies::kNoCopy);
  ops[1].dst.op.ptr.ptr -= 1;
  CHECK(copies::judge(BoxBatch{ops, 2, 0, machine.stream}, &machine.which) == Verdict::ours);
  ops[1].src.op.ptr.layerHeight = 1 << 20;  // the last layer lies behind the block
  CHECK(copies::judge(BoxBatch{ops, 2, 0, machine.stream}, &machine.which) == Verdict::refused);
}

TEST_CASE("a batch that is wrong as a whole is the driver's to refuse, whatever its copies are") {
  TwoDevices machine;
  machine.add(machine.second_block, machine.second_block + 4096);
  machine.add(machine.second_block, machine.second_block + kMiB2 - 63);
  const auto verdict = [&](const LinearBatch& batch) {
    return copies::judge(batch, &machine.which);
  };
  LinearBatch batch = machine.batch();
  CHECK(verdict(batch) == Verdict::refused);
  machine.which = 77;
  batch.kinds = 0;
  CHECK(verdict(batch) == Verdict::forward);
  batch.kinds = 1;
  batch.stream = CU_STREAM_LEGACY;
  CHECK(verdict(batch) == Verdict::forward);
  const CUmemcpyAttributes two[] = {machine.order, machine.order};
  std::size_t first[] = {0, 0};
  batch = machine.batch();
  batch.attributes = two;
  batch.first = first;
  batch.kinds = 2;
  CHECK(verdict(batch) == Verdict::forward);
  machine.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CHECK(verdict(machine.batch()) == Verdict::forward);
  CHECK(machine.which == 77);
  first[1] = 1;
  CHECK(verdict(batch) == Verdict::refused);
}

TEST_CASE("without P2P every copy of the batch is made, by whichever way") {
  TwoDevices machine;
  char host[64];
  std::memset(host, 5, sizeof(host));
  put(machine.first_block, 1);
  put(machine.second_block + 4096, 2);
  machine.add(machine.second_block, machine.first_block);                 // across
  machine.add(machine.first_block + 4096, machine.second_block + 4096);   // across, back
  machine.add(machine.second_block + 8192, machine.second_block + 4096);  // at home
  machine.add(machine.first_block + 8192, reinterpret_cast<CUdeviceptr>(host));
  REQUIRE(copies::judge(machine.batch(), &machine.which) == Verdict::ours);
  REQUIRE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(machine.result == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(machine.stream) == CUDA_SUCCESS);
  CHECK(holds(machine.second_block, 1));
  CHECK(holds(machine.first_block + 4096, 2));
  CHECK(holds(machine.second_block + 8192, 2));
  CHECK(holds(machine.first_block + 8192, 5));
  CUDA_MEMCPY3D_BATCH_OP op =
      TwoDevices::box(machine.first_block + 64, machine.second_block + 4096);
  REQUIRE(copies::one_by_one(BoxBatch{&op, 1, 0, machine.stream}, &machine.which, &machine.result));
  CHECK(machine.result == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(machine.stream) == CUDA_SUCCESS);
  CHECK(holds(machine.first_block + 64, 2));
}

TEST_CASE("a copy of the batch that fails ends it, with its number and the driver's code") {
  TwoDevices machine;
  put(machine.first_block, 1);
  for (std::size_t i = 0; i < 4; ++i) {
    machine.add(machine.second_block + 64 * i, machine.first_block);
  }
  REQUIRE(kvsim_fail("cuMemcpyPeerAsync:3:2") == 0);
  REQUIRE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(machine.result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(machine.which == 2);
  CHECK(kvsim_log_count("cuMemcpyPeerAsync") == 3);
  machine.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  REQUIRE(kvsim_fail("cuStreamSynchronize:1:999") == 0);
  REQUIRE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(machine.result == CUDA_ERROR_UNKNOWN);
}

TEST_CASE("sources that must be read before the return are waited for, others are not") {
  TwoDevices machine;
  machine.add(machine.second_block, machine.first_block);
  REQUIRE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(kvsim_log_count("cuStreamSynchronize") == 0);
  machine.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  REQUIRE(copies::one_by_one(machine.batch(), &machine.which, &machine.result));
  CHECK(kvsim_log_count("cuStreamSynchronize") == 1);
}

TEST_CASE("what the driver refuses for another reason stays refused") {
  TwoDevices machine;
  machine.add(machine.second_block, machine.first_block);
  const auto refused = [&](const LinearBatch& batch) {
    return !copies::one_by_one(batch, &machine.which, &machine.result);
  };
  LinearBatch batch = machine.batch();
  batch.stream = CU_STREAM_LEGACY;
  CHECK(refused(batch));
  batch = machine.batch();
  batch.attributes = nullptr;
  CHECK(refused(batch));
  batch = machine.batch();
  batch.kinds = 2;
  CHECK(refused(batch));
  batch = machine.batch();
  batch.to = nullptr;
  CHECK(copies::judge(batch, &machine.which) == Verdict::forward);
  machine.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CHECK(refused(machine.batch()));
  machine.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUDA_MEMCPY3D_BATCH_OP op = TwoDevices::box(machine.first_block, machine.second_block);
  CHECK_FALSE(
      copies::one_by_one(BoxBatch{&op, 1, 1, machine.stream}, &machine.which, &machine.result));
  op.extent.height = 0;
  CHECK_FALSE(
      copies::one_by_one(BoxBatch{&op, 1, 0, machine.stream}, &machine.which, &machine.result));
  batch = machine.batch();
  const std::size_t nothing = 0;
  batch.bytes = &nothing;
  CHECK(refused(batch));
  op.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  CHECK(copies::judge(BoxBatch{&op, 1, 0, machine.stream}, &machine.which) == Verdict::forward);
  REQUIRE(cuStreamBeginCapture(machine.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(refused(machine.batch()));
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(machine.stream, &graph) == CUDA_SUCCESS);
  cuGraphDestroy(graph);
  CHECK(kvsim_log_count("cuMemcpyPeerAsync") == 0);
}
