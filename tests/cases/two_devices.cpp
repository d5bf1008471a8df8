// Peer access as a program asks for it, on machines that offer it and then do not give it.
#include "host.h"

using namespace cases;

CASE(
    "P2P that cuMemSetAccess refuses: cuCtxEnablePeerAccess says 217, with one line, copies work") {
  for (const char* code : {"1", "217", "999"}) {
    const Result result = run(kPreloaded, "enables", {{"KVSIM_PEER_ACCESS", code}});
    EXPECT_IN(result.ended(0), result.show());
    EXPECT_IN(result.out == "enable 217\nagain 217\nother direction 217\ncopy 0\nmemset 1\n",
              result.show());
    EXPECT_IN(result.lines("gets no access to vmm blocks").size() == 2, result.err);
    EXPECT_IN(result.lines("KVSHIM_SMALL=native").size() == 2, result.err);
    // What the driver had enabled is disabled again.
    EXPECT_IN(result.count("cuCtxDisablePeerAccess") == result.count("cuCtxEnablePeerAccess"),
              result.show());
  }
}
CASE(
    "where it is given, or no block would be vmm memory, cuCtxEnablePeerAccess works as natively") {
  const Environment settings[] = {
      {},
      {{"KVSIM_PEER_ACCESS", "217"}, {"KVSHIM_SMALL", "native"}, {"KVSHIM_LARGE", "native"}},
      {{"KVSIM_PEER_ACCESS", "217"}, {"KVSHIM_SMALL", "native"}, {"KVSHIM_LARGE", "managed"}},
      {{"KVSIM_PEER_ACCESS", "217"}, {"KVSHIM_PEERS", "off"}},
      {{"KVSIM_PEER_ACCESS", "217"}, {"KVSHIM_DISABLE", "1"}},
  };
  for (const Environment& setting : settings) {
    const Result result = run(kPreloaded, "enables", setting);
    EXPECT_IN(result.ended(0), result.show());
    EXPECT_IN(result.out.starts_with("enable 0\nagain 704\nother direction 0\n"), result.show());
    const bool off = setting.size() == 2 && setting[1].first == "KVSHIM_PEERS";
    EXPECT_IN(result.out.ends_with(off ? "copy 1\nmemset 1\n" : "copy 0\nmemset 0\n"),
              result.show());
    EXPECT_IN(result.err.empty() && result.count("cuCtxDisablePeerAccess") == 0, result.show());
  }
  EXPECT(run(kBare, "enables").out == "enable 0\nagain 704\nother direction 0\ncopy 0\nmemset 0\n");
}
CASE("without P2P the driver's own answer stands, and nothing is tried") {
  const Result result = run(kPreloaded, "enables", {{"KVSIM_P2P", "none"}});
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.out == "enable 217\nagain 217\nother direction 217\ncopy 0\nmemset 1\n",
            result.show());
  EXPECT_IN(result.err.empty() && result.count("cuCtxDisablePeerAccess") == 0, result.show());
}
SCENE(enables) {
  const CUcontext zero = use_device(0);
  const CUcontext one = use_device(1);
  say("enable", cuCtxEnablePeerAccess(zero, 0));
  say("again", cuCtxEnablePeerAccess(zero, 0));
  OK(cuCtxSetCurrent(zero));
  say("other direction", cuCtxEnablePeerAccess(one, 0));
  const CUdeviceptr here = allocate(3 * kMiB);
  OK(cuMemsetD8(here, 7, 3 * kMiB));
  OK(cuCtxSynchronize());
  OK(cuCtxSetCurrent(one));
  const CUdeviceptr there = allocate(3 * kMiB);
  const CUresult copied = cuMemcpy(there, here, 3 * kMiB);
  say("copy", copied);  // refused with KVSHIM_PEERS=off
  say("memset", cuMemsetD8(here, 8, 64));
  unsigned char last = 0;
  OK(cuMemcpyDtoH(&last, there + 3 * kMiB - 1, 1));
  EXPECT(copied != CUDA_SUCCESS || last == 7);
  return 0;
}
