// Programs of the shared and of the static runtime. The static one cannot be caught at cuda* calls,
// so both are caught where they reach the driver, and nothing is caught twice.
#include <functional>

#include "cases.h"

using namespace cases;

namespace {

const Environment kSmall = {{"KVSHIM_THRESHOLD", "64MiB"}, {"KVSHIM_SUMMARY", "1"}};

void in_both(const char* scene, const Environment& more,
             const std::function<void(const Result& bare, const Result& preloaded)>& look) {
  for (const char* const program : {RUNTIME_SHARED, RUNTIME_STATIC}) {
    Environment environment = kSmall;
    environment.insert(environment.end(), more.begin(), more.end());
    const Result bare = run(kBare, scene, environment, program);
    const Result preloaded = run(kPreloaded, scene, environment, program);
    EXPECT_IN(bare.ended(0), bare.show());
    EXPECT_IN(preloaded.ended(0), preloaded.show());
    look(bare, preloaded);
  }
}

// How often the driver was asked for this much memory, in whatever way.
std::size_t asked_for(const Result& result, std::size_t bytes) {
  const std::string number = std::to_string(bytes);
  return result.count("cuMemAlloc_v2 bytes=" + number) +
         result.count("cuMemAllocManaged bytes=" + number) +
         result.count("cuMemCreate size=" + number);
}

}  // namespace

CASE("shared and static runtime: the same split, each allocation once, the same account") {
  std::string first;
  in_both("split", {}, [&](const Result& bare, const Result& preloaded) {
    EXPECT_IN(bare.count("cuMemAllocManaged") == 0, bare.show());
    EXPECT_IN(preloaded.count("cuMemAllocManaged bytes=67108864") == 1, preloaded.show());
    EXPECT_IN(preloaded.count("cuMemAllocManaged bytes=73400320") == 1, preloaded.show());
    EXPECT_IN(preloaded.count("cuMemAllocManaged") == 2, preloaded.show());
    EXPECT_IN(preloaded.count("cuMemCreate size=6291456") == 1, preloaded.show());
    for (const std::size_t bytes : {4096u, 6291456u, 67108864u, 73400320u}) {
      EXPECT_IN(asked_for(bare, bytes) == 1, bare.show());
      EXPECT_IN(asked_for(preloaded, bytes) == (bytes == 4096 ? 0u : 1u), preloaded.show());
    }

    const Summary summary = summary_of(preloaded.err);
    EXPECT_IN(summary.tables == 1 && summary.pid == preloaded.pid, preloaded.err);
    auto kinds = summary.kinds;
    EXPECT_IN(kinds["managed"].blocks == 2 && kinds["managed"].live == 1, summary.text);
    EXPECT_IN(kinds["managed"].bytes == "134 MiB" && kinds["managed"].live_bytes == "70 MiB",
              summary.text);
    EXPECT_IN(kinds["managed"].peak_bytes == "134 MiB", summary.text);
    EXPECT_IN(kinds["vmm"].blocks == 2 && kinds["vmm"].live == 1, summary.text);
    EXPECT_IN(kinds["vmm"].live_bytes == "6 MiB", summary.text);
    EXPECT_IN(kinds.count("native") == 0, summary.text);
    EXPECT_IN(!summary.says("bypassed"), summary.text);
    EXPECT_IN(summary.says("memset of managed blocks by the CPU: 1 calls, 64 MiB"), summary.text);
    // Equal but for the times.
    const std::string account = summary.text.substr(0, summary.text.find("  placed"));
    EXPECT_IN(first.empty() || first == account, first + account);
    first = account;
  });
}

CASE("a recovered failure leaves no error behind in the runtime") {
  const char* const failures[] = {
      "cuMemCreate@handle=8:1:800:*",        // no fabric handles
      "cuMemCreate@handle=8:1:999:*",        // the same, otherwise said
      "cuMemCreate:1:801:*",                 // no VMM at all
      "cuMemAddressReserve:1:801:*",         // nor addresses for it
      "cuMemMap:1:2",                        // out of memory once
      "cuMemAllocManaged:1:801:*",           // no managed memory
      "cuDeviceGetAttribute:1:1:*",          // an old driver
      "cuMemExportToShareableHandle:1:1:*",  // fabric handles that cannot leave
      "cuMemGetAllocationGranularity:1:1:*",
  };
  for (const char* const failure : failures) {
    in_both("works_after_fallback", {{"KVSIM_FAIL", failure}, {"KVSIM_FABRIC", "0"}},
            [&](const Result& bare, const Result& preloaded) {
              EXPECT_IN(bare.out.empty() && preloaded.out.empty(), failure + preloaded.show());
            });
  }
}

CASE("an error that was pending before an allocation is still pending after it") {
  in_both("error_pending", {{"KVSIM_FAIL", "cuMemAllocManaged:1:801"}},
          [](const Result&, const Result&) {});
}

CASE("a fresh thread without a context allocates on the runtime's current device") {
  in_both("fresh_thread", {}, [](const Result&, const Result& preloaded) {
    EXPECT_IN(preloaded.count("cuMemCreate size=4194304 type=1 location=1:1") == 1,
              preloaded.show());
  });
}

CASE("pitched and 3D memory is routed by its whole size and keeps the native pitch") {
  in_both("pitch", {}, [](const Result& bare, const Result& preloaded) {
    EXPECT_IN(bare.out ==
                  "small pitch 1024 type 2\nlarge pitch 1024 type 2\n"
                  "volume pitch 512 type 2\n",
              bare.out);
    EXPECT_IN(preloaded.out ==
                  "small pitch 1024 type 2\nlarge pitch 1024 type 3\n"
                  "volume pitch 512 type 3\n",
              preloaded.out);
  });
}

CASE("zero bytes, NULL and empty memsets are what they are without kvshim, at threshold 0 too") {
  for (const char* const threshold : {"64MiB", "0"}) {
    in_both("nothing", {{"KVSHIM_THRESHOLD", threshold}},
            [](const Result& bare, const Result& preloaded) {
              EXPECT_IN(bare.out == preloaded.out, preloaded.show());
              EXPECT_IN(summary_of(preloaded.err).kinds["managed"].blocks == 1, preloaded.err);
            });
  }
}

CASE("cudaMallocAsync stays the driver's and is named; cudaFreeAsync takes every block") {
  in_both("streams", {}, [](const Result&, const Result& preloaded) {
    EXPECT_IN(preloaded.count("cuMemAllocAsync bytes=67108864") == 1, preloaded.show());
    EXPECT_IN(preloaded.count("cuMemAllocManaged bytes=67108864") == 1, preloaded.show());
    const Summary summary = summary_of(preloaded.err);
    EXPECT_IN(summary.says("64 MiB in 2 stream-ordered allocations, 1 of them (64 MiB) at or over"),
              summary.text);
  });
}

CASE("entry points that the runtime hands out are kvshim's, and calling one allocates once") {
  in_both("entry_points", {}, [](const Result& bare, const Result& preloaded) {
    EXPECT_IN(bare.out.find("libkvshim") == std::string::npos, bare.out);
    EXPECT_IN(preloaded.out ==
                  "cuMemAlloc libkvshim.so\ncuMemFree libkvshim.so\ncuMemsetD8 libkvshim.so\n"
                  "cuGetProcAddress libkvshim.so\n",
              preloaded.out);
    EXPECT_IN(asked_for(preloaded, 67108864) == 1 && asked_for(bare, 67108864) == 1,
              preloaded.show());
  });
}
