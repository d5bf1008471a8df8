// Work in streams, captures, two devices, residency of managed memory, contexts.
#include "selftest.h"

namespace {

void streams_wait() {
  CUstream s;
  CUdeviceptr p, q;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&p, 4096));
  OK(cuMemAlloc(&q, 256));
  OK(cuMemsetD32(p, 0, 1024));
  OK(launch("kv_spin", s, 100000000));
  OK(launch("kv_fill", s, p, 1024, 7));
  CODE(cuStreamQuery(s), 600);
  CHECK(seconds_of([&] { on_thread([&] { OK(cuMemFree(q)); }); }) > 0.05);
  uint32_t words[1024];
  OK(cuMemcpyDtoH(words, p, 4096));
  CHECK(words[1023] == 7);
  OK(cuMemAlloc(&q, 8));
  OK(cuMemsetD8(q, 0, 8));
  OK(launch("kv_sum", s, p, 1024, q));
  OK(cuStreamSynchronize(s));
  uint64_t sum = 0;
  OK(cuMemcpyDtoH(&sum, q, 8));
  CHECK(sum == 7 * 1024);
  // Unmap does not wait: a block freed under a kernel is a violation and the context dies.
  {
    Vmm v(kPage);
    OK(launch("kv_spin", s, 50000000));
    OK(launch("kv_fill", s, v.base, 16, 1));
  }
  CHECK(kvsim_violations() == 1);
  CODE(cuCtxSynchronize(), 700);
  CODE(cuMemAlloc(&p, 16), 700);
  kvsim_reset();
  OK(cuCtxSynchronize());
  OK(launch("kv_fill", s, 0x1000, 16, 1));
  CODE(cuStreamSynchronize(s), 700);
  kvsim_reset();
  static CUresult inside[2];
  OK(cuLaunchHostFunc(
      s,
      [](void*) {
        CUdeviceptr r;
        inside[0] = cuMemAlloc(&r, 16);
        inside[1] = cuMemFree(0);
      },
      nullptr));
  OK(cuStreamSynchronize(s));
  CHECK(inside[0] == 800 && inside[1] == 800);
  CUevent first, second;
  OK(cuEventCreate(&first, 0));
  OK(cuEventCreate(&second, 0));
  OK(cuEventRecord(first, s));
  OK(launch("kv_spin", s, 20000000));
  OK(cuEventRecord(second, s));
  OK(cuEventSynchronize(second));
  float ms = 0;
  OK(cuEventElapsedTime(&ms, first, second));
  CHECK(ms >= 19);
  OK(cuStreamDestroy(s));
}

void captures() {
  CUdeviceptr p, q;
  OK(cuMemAlloc(&p, 4096));
  Vmm v(kPage);
  const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                       CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                       CU_STREAM_CAPTURE_MODE_RELAXED};
  for (const CUstreamCaptureMode mode : modes) {
    const int unsafe = mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : 900;
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    const auto capture = [&](auto body, int end) {
      OK(cuStreamBeginCapture(s, mode));
      body();
      CUgraph graph = nullptr;
      CODE(cuStreamEndCapture(s, &graph), end);
      CHECK((graph != nullptr) == (end == 0));
    };
    const int end = unsafe == 0 ? 0 : 901;
    capture([&] { CODE(cuMemAlloc(&q, 16), unsafe); }, end);
    capture([&] { CODE(cuMemAllocManaged(&q, 16, 1), unsafe); }, end);
    capture([&] { CODE(cuMemFree(0), unsafe); }, end);
    capture([&] { CODE(cuCtxSynchronize(), 900); }, 901);
    capture([&] { CODE(cuStreamSynchronize(nullptr), 906); }, 901);
    capture([&] { CODE(cuMemsetD8(p, 0, 16), 906); }, 901);
    capture(
        [&] {
          Vmm other(kPage);
          size_t f, t;
          OK(cuMemGetInfo(&f, &t));
        },
        0);
    OK(cuStreamDestroy(s));
  }
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  on_thread([&] {
    CUstreamCaptureMode mine = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mine));
    OK(cuMemFree(0));
  });
  OK(cuMemsetD32Async(p, 3, 1024, s));
  OK(launch("kv_add", s, p, 1024, 4));
  CUgraph graph;
  CUgraphExec exec;
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  uint32_t words[1024];
  OK(cuMemcpyDtoH(words, p, 4096));
  CHECK(words[5] != 7);
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyDtoH(words, p, 4096));
  CHECK(words[5] == 7 && words[1023] == 7);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(s));
  OK(cuMemFree(p));
}

void two_devices() {
  CUdeviceptr far, here;
  OK(cuCtxSetCurrent(g_context[1]));
  OK(cuMemAlloc(&far, 4096));
  OK(cuCtxSetCurrent(g_context[0]));
  OK(cuMemAlloc(&here, 4096));
  OK(cuMemcpyDtoD(here, far, 4096));
  Vmm v(kPage, 1);
  CODE(cuMemcpyDtoD(here, v.base, 4096), 1);
  OK(cuMemcpyPeer(here, g_context[0], v.base, g_context[1], 4096));
  OK(cuCtxEnablePeerAccess(g_context[1], 0));
  CODE(cuCtxEnablePeerAccess(g_context[1], 0), 704);
  OK(launch("kv_copy", nullptr, here, far, 1024));
  OK(cuCtxSynchronize());
  OK(launch("kv_copy", nullptr, here, v.base, 1024));
  CODE(cuCtxSynchronize(), 700);
  kvsim_reset();
  v.allow(0);
  OK(cuMemcpyDtoD(here, v.base, 4096));
  OK(launch("kv_copy", nullptr, here, v.base, 1024));
  OK(cuCtxSynchronize());
  OK(cuCtxDisablePeerAccess(g_context[1]));
  OK(cuMemFree(here));
  OK(cuMemFree(far));
}

void managed_residency() {
  CUdeviceptr m;
  OK(cuMemAllocManaged(&m, 8 * kMiB, CU_MEM_ATTACH_GLOBAL));
  std::memset(reinterpret_cast<void*>(m), 0, 4 * kMiB);
  CHECK(kvsim_resident_on_host(m, 8 * kMiB) >= 4 * kMiB);
  CHECK(kvsim_resident_on_device(m, 8 * kMiB) == 0);
  OK(cuMemsetD8(m, 0, kPage));
  OK(cuCtxSynchronize());
  CHECK(kvsim_resident_on_device(m, 8 * kMiB) == kPage);
  OK(launch("kv_fill", nullptr, m + 6 * kMiB, 4, 1));
  OK(cuCtxSynchronize());
  CHECK(kvsim_resident_on_device(m, 8 * kMiB) == 2 * kPage);
  OK(cuMemPrefetchAsync(m, 8 * kMiB, {CU_MEM_LOCATION_TYPE_HOST, {0}}, 0, nullptr));
  CHECK(kvsim_resident_on_device(m, 8 * kMiB) == 0);
  OK(cuMemFree(m));
}

void contexts() {
  CUcontext mine, current;
  CUdeviceptr p;
  const kvsim_counts before = counts();
  OK(cuCtxCreate(&mine, nullptr, 0, 0));
  OK(cuMemAlloc(&p, 1000));
  OK(cuCtxDestroy(mine));
  CHECK(counts().native_blocks == before.native_blocks);
  CODE(cuMemFree(p), 1);
  OK(cuCtxGetCurrent(&current));
  CHECK(current == g_context[0]);
  CODE(cuCtxDestroy(mine), 709);
}

}  // namespace

int main() {
  start();
  streams_wait();
  captures();
  two_devices();
  managed_residency();
  contexts();
  return report("selftest_work");
}
