// While a stream captures: which memory calls are allowed and which end the capture. 900 and 906
// end it; 901 is what its end then gives. What was captured is replayed in capture_replay.cpp.
#include "capture.h"

using namespace contract;

CHECK_CASE_SIZES("capture", "allocation: 900 and the end, but allowed when relaxed", plain) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUdeviceptr ptr = 0;
    {
      Capture capture(mode);
      const CUresult code = cu.cuMemAlloc(&ptr, size.bytes);
      expect_capture_rules("cuMemAlloc", code, mode, capture);
    }
    if (ptr != 0) GIVES(0, cu.cuMemFree(ptr));
    const Block after(size.bytes);
  }
}

CHECK_CASE_SIZES("capture", "free: 900 and the end, but allowed when relaxed", plain | observes) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUdeviceptr ptr = 0;
    CALL(cu.cuMemAlloc(&ptr, size.bytes));
    {
      Capture capture(mode);
      const CUresult code = cu.cuMemFree(ptr);
      expect_capture_rules("cuMemFree", code, mode, capture);
    }
    const CUresult again = cu.cuMemFree(ptr);
    observe((std::string("freed again after a capture that was ") + name_of(mode)).c_str(), again);
  }
}

CHECK_CASE("capture", "managed allocation: 900 and the end, but allowed when relaxed",
           needs_managed) {
  for (const CUstreamCaptureMode mode : kModes) {
    CUdeviceptr ptr = 0;
    {
      Capture capture(mode);
      const CUresult code = cu.cuMemAllocManaged(&ptr, kMiB, CU_MEM_ATTACH_GLOBAL);
      expect_capture_rules("cuMemAllocManaged", code, mode, capture);
    }
    if (ptr != 0) GIVES(0, cu.cuMemFree(ptr));
  }
}

CHECK_CASE("capture", "waiting for the context: 900 and the end in every mode", plain) {
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode);
    GIVES(900, cu.cuCtxSynchronize());
    capture.expect_dead(name_of(mode));
  }
}

CHECK_CASE_SIZES("capture", "memset in the legacy stream: 906 and the end in every mode", plain) {
  const Block block(size.bytes);
  for (const CUstreamCaptureMode mode : kModes) {
    CALL(cu.cuMemsetD8(block, 5, size.bytes));
    CALL(cu.cuCtxSynchronize());
    Capture capture(mode);
    GIVES(906, cu.cuMemsetD8(block, 6, size.bytes));
    capture.expect_dead(name_of(mode));
    EXPECT(holds_byte(block, size.bytes, 5));
  }
}

CHECK_CASE("capture", "waiting for the legacy stream: 906 and the end in every mode", plain) {
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode);
    GIVES(906, cu.cuStreamSynchronize(nullptr));
    capture.expect_dead(name_of(mode));
  }
}

CHECK_CASE_SIZES("capture", "memset in the legacy stream beside a non-blocking capture",
                 plain | observes) {
  const Block block(size.bytes);
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode, CU_STREAM_NON_BLOCKING);
    observe(name_of(mode), cu.cuMemsetD8(block, 6, size.bytes));
    observe_yes((std::string(name_of(mode)) + ", the capture lives").c_str(), capture.ends_well());
    CALL(cu.cuCtxSynchronize());
  }
}

CHECK_CASE_SIZES("capture", "questions about memory are allowed in every mode", plain | observes) {
  const Block block(size.bytes);
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode);
    std::size_t free = 0, total = 0, bytes = 0;
    CUdeviceptr base = 0;
    unsigned type = 0;
    GIVES(0, cu.cuMemGetInfo(&free, &total));
    observe("range", cu.cuMemGetAddressRange(&base, &bytes, block + 5));
    observe("attribute",
            cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 5));
    capture.expect_alive(name_of(mode));
    EXPECT_EQ(base, block.ptr());
  }
}

CHECK_CASE("capture", "the program's own virtual memory calls are allowed in every mode", plain) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = first_device();
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr ptr = 0;
    GIVES(0, cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    GIVES(0, cu.cuMemAddressReserve(&ptr, 2 * kMiB, 0, 0, 0));
    GIVES(0, cu.cuMemMap(ptr, 2 * kMiB, 0, handle, 0));
    GIVES(0, cu.cuMemSetAccess(ptr, 2 * kMiB, &access, 1));
    GIVES(0, cu.cuMemUnmap(ptr, 2 * kMiB));
    GIVES(0, cu.cuMemRelease(handle));
    GIVES(0, cu.cuMemAddressFree(ptr, 2 * kMiB));
    capture.expect_alive(name_of(mode));
  }
}

CHECK_CASE_SIZES("capture", "a relaxed free waits for running work, and the capture lives", plain) {
  const Stream stream;
  Block block(size.bytes);
  {
    Capture capture(kRelaxed);
    spin(stream, 0.2);
    EXPECT(stream.busy());
    GIVES(0, cu.cuMemFree(block.leave()));
    EXPECT(!stream.busy());
    capture.expect_alive("relaxed");
  }
}

CHECK_CASE_SIZES("capture", "calls of another thread obey the mode", plain) {
  const CUcontext context = use_primary();
  for (const CUstreamCaptureMode mode : kModes) {
    CUdeviceptr ptr = 0;
    {
      Capture capture(mode);
      const int wanted = mode == kGlobal ? 900 : 0;
      on_thread([&] {
        CALL(cu.cuCtxSetCurrent(context));
        GIVES(wanted, cu.cuMemAlloc(&ptr, size.bytes));
      });
      if (wanted == 0) {
        capture.expect_alive(name_of(mode));
      } else {
        capture.expect_dead(name_of(mode));
      }
    }
    if (ptr != 0) GIVES(0, cu.cuMemFree(ptr));
  }
}

CHECK_CASE_SIZES("capture", "another thread's free ends a global capture", plain | observes) {
  const CUcontext context = use_primary();
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  {
    Capture capture(kGlobal);
    on_thread([&] {
      CALL(cu.cuCtxSetCurrent(context));
      GIVES(900, cu.cuMemFree(ptr));
    });
    capture.expect_dead("global");
  }
  observe("freed again", cu.cuMemFree(ptr));
}

CHECK_CASE_SIZES("capture", "a thread set to relaxed may allocate and free in a global capture",
                 plain) {
  const CUcontext context = use_primary();
  Block block(size.bytes);
  const CUdeviceptr old = block.leave();
  Capture capture(kGlobal);
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(context));
    CUstreamCaptureMode mode = kRelaxed;
    GIVES(0, cu.cuThreadExchangeStreamCaptureMode(&mode));
    CUdeviceptr ptr = 0;
    GIVES(0, cu.cuMemAlloc(&ptr, size.bytes));
    GIVES(0, cu.cuMemFree(ptr));
    GIVES(0, cu.cuMemFree(old));
  });
  capture.expect_alive("global");
}

CHECK_CASE_SIZES("capture", "the capturing thread itself may set itself to relaxed and allocate",
                 plain) {
  CUdeviceptr ptr = 0;
  {
    Capture capture(kGlobal);
    CUstreamCaptureMode mode = kRelaxed;
    GIVES(0, cu.cuThreadExchangeStreamCaptureMode(&mode));
    GIVES(0, cu.cuMemAlloc(&ptr, size.bytes));
    GIVES(0, cu.cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(static_cast<int>(mode), static_cast<int>(kRelaxed));
    capture.expect_alive("global");
  }
  GIVES(0, cu.cuMemFree(ptr));
}

CHECK_CASE("capture", "calls that are wrong anyway, during a capture", plain | observes) {
  for (const CUstreamCaptureMode mode : {kGlobal, kRelaxed}) {
    const std::string label = name_of(mode);
    const auto during = [&](const char* what, const std::function<CUresult()>& call) {
      Capture capture(mode);
      observe((label + ", " + what).c_str(), call());
      observe_yes((label + ", " + what + ": the capture lives").c_str(), capture.ends_well());
    };
    CUdeviceptr ptr = 0;
    during("free of 0", [] { return cu.cuMemFree(0); });
    during("free of an unknown address", [] { return cu.cuMemFree(kNowhere); });
    during("zero bytes", [&] { return cu.cuMemAlloc(&ptr, 0); });
    during("no output", [] { return cu.cuMemAlloc(nullptr, 4096); });
    during("too much", [&] { return cu.cuMemAlloc(&ptr, std::size_t{1} << 50); });
    during("memset of an unknown address", [] { return cu.cuMemsetD8(kNowhere, 0, 4); });
  }
}
