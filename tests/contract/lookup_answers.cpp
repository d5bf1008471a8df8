// cuGetProcAddress, in its forms of 4 and of 5 arguments: what it answers for each version and
// flag, judged by what the answer does.
#include <cstring>
#include <string>

#include "gpu.h"

using namespace contract;

namespace {

struct Answer {
  CUresult code = CUDA_ERROR_UNKNOWN;
  void* function = nullptr;
  int status = -1;
};

Answer ask(const char* name, int version, cuuint64_t flags) {
  Answer answer;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  answer.code = cu.cuGetProcAddress_v2(name, &answer.function, version, flags, &status);
  answer.status = static_cast<int>(status);
  return answer;
}

GetProcAddressV1 old_form() {
  return reinterpret_cast<GetProcAddressV1>(by_name("cuGetProcAddress"));
}

std::string label(const char* name, int version, cuuint64_t flags) {
  return std::string(name) + " " + std::to_string(version) + " flags " + std::to_string(flags);
}

void observe_answer(const std::string& what, const Answer& answer) {
  observe((what + ", code").c_str(), answer.code);
  observe((what + ", status").c_str(), answer.status);
  observe_yes((what + ", a function").c_str(), answer.function != nullptr);
}

constexpr int kVersions[] = {2000, 3020, 11020, 11030, 12000, 12020, 13000};

const char* const kBaseNames[] = {"cuMemAlloc",
                                  "cuMemFree",
                                  "cuMemAllocPitch",
                                  "cuMemAllocManaged",
                                  "cuMemGetInfo",
                                  "cuMemGetAddressRange",
                                  "cuPointerGetAttribute",
                                  "cuPointerGetAttributes",
                                  "cuMemsetD8",
                                  "cuMemsetD16",
                                  "cuMemsetD32",
                                  "cuMemsetD2D8",
                                  "cuMemsetD2D16",
                                  "cuMemsetD2D32",
                                  "cuMemsetD8Async",
                                  "cuMemsetD16Async",
                                  "cuMemsetD32Async",
                                  "cuMemsetD2D8Async",
                                  "cuMemsetD2D16Async",
                                  "cuMemsetD2D32Async",
                                  "cuMemAllocAsync",
                                  "cuMemAllocFromPoolAsync",
                                  "cuMemFreeAsync",
                                  "cuMemCreate",
                                  "cuIpcGetMemHandle",
                                  "cuIpcOpenMemHandle",
                                  "cuGetProcAddress"};

void allocates(void* function, void* release) {
  const auto allocate = reinterpret_cast<decltype(&::cuMemAlloc_v2)>(function);
  const auto give_back = reinterpret_cast<decltype(&::cuMemFree_v2)>(release);
  for (const std::size_t bytes : {std::size_t{4096}, option_large()}) {
    CUdeviceptr ptr = 0;
    GIVES(0, allocate(&ptr, bytes));
    GIVES(0, cu.cuMemsetD8(ptr, 7, 256));
    EXPECT(holds_byte(ptr, 256, 7));
    GIVES(0, give_back(ptr));
    GIVES(1, give_back(ptr));
  }
}

}  // namespace

CHECK_CASE("lookup", "status of every memory function for every version and flag",
           plain | observes) {
  for (const char* name : kBaseNames) {
    for (const int version : kVersions) {
      for (const cuuint64_t flags : {0, 1, 2}) {
        const Answer answer = ask(name, version, flags);
        observe(label(name, version, flags).c_str(), std::to_string(answer.code) + "/" +
                                                         std::to_string(answer.status) +
                                                         (answer.function ? "/function" : "/NULL"));
      }
    }
  }
}

CHECK_CASE("lookup", "cuMemAlloc and cuMemFree of every version since 3020 and every flag work",
           plain) {
  for (const int version : kVersions) {
    if (version < 3020) continue;
    for (const cuuint64_t flags : {0, 1, 2}) {
      const Answer allocate = ask("cuMemAlloc", version, flags);
      const Answer release = ask("cuMemFree", version, flags);
      REQUIRE(allocate.function != nullptr && release.function != nullptr);
      allocates(allocate.function, release.function);
    }
  }
}

CHECK_CASE("lookup", "version 2000 gives the 32-bit forms, not those of today", plain | observes) {
  for (const char* name : {"cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemsetD8"}) {
    const Answer old = ask(name, 2000, 0), today = ask(name, 3020, 0);
    observe_answer(name, old);
    EXPECT(today.function != nullptr);
    EXPECT(old.function != today.function);
    observe_yes((std::string(name) + " of 2000 is the plain symbol").c_str(),
                old.function == by_name(name));
  }
}

CHECK_CASE("lookup", "a function younger than the version asked for is not given",
           plain | observes) {
  const Answer answer = ask("cuMemAllocAsync", 11010, 0);
  EXPECT(answer.function == nullptr);
  observe_answer("cuMemAllocAsync for 11010", answer);
  observe_answer("cuMemAllocManaged for 3020", ask("cuMemAllocManaged", 3020, 0));
}

CHECK_CASE("lookup", "a name that does not exist", plain | observes) {
  const Answer answer = ask("cuMemAllocTwice", 12000, 0);
  EXPECT(answer.function == nullptr);
  EXPECT_EQ(answer.status, static_cast<int>(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
  observe_answer("cuMemAllocTwice", answer);
  observe_answer("an empty name", ask("", 12000, 0));
}

CHECK_CASE("lookup", "names that carry a suffix are not base names", plain | observes) {
  observe_answer("cuMemAlloc_v2", ask("cuMemAlloc_v2", 12000, 0));
  observe_answer("cuMemFree_v2", ask("cuMemFree_v2", 12000, 0));
  observe_answer("cuMemsetD8Async_ptsz", ask("cuMemsetD8Async_ptsz", 12000, 0));
  observe_answer("cuGetProcAddress_v2", ask("cuGetProcAddress_v2", 12000, 0));
}

CHECK_CASE("lookup", "flags and versions that do not exist", plain | observes) {
  observe_answer("flags 3", ask("cuMemAlloc", 12000, 3));
  observe_answer("flags 8", ask("cuMemAlloc", 12000, 8));
  observe_answer("version 0", ask("cuMemAlloc", 0, 0));
  observe_answer("version -1", ask("cuMemAlloc", -1, 0));
  observe_answer("version 99000", ask("cuMemAlloc", 99000, 0));
}

// A NULL name or output is no check: the real driver crashes on it.

CHECK_CASE("lookup", "the status is optional", plain | observes) {
  void* function = nullptr;
  GIVES(0, cu.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, nullptr));
  EXPECT(function == ask("cuMemAlloc", 12000, 0).function);
  observe("a name that does not exist",
          cu.cuGetProcAddress_v2("cuMemAllocTwice", &function, 12000, 0, nullptr));
}

CHECK_CASE("lookup", "the form of 4 arguments finds and allocates", plain) {
  const GetProcAddressV1 find = old_form();
  REQUIRE(find != nullptr);
  void *allocate = nullptr, *release = nullptr;
  GIVES(0, find("cuMemAlloc", &allocate, 11030, 0));
  GIVES(0, find("cuMemFree", &release, 11030, 0));
  REQUIRE(allocate != nullptr && release != nullptr);
  allocates(allocate, release);
}

CHECK_CASE("lookup", "the form of 4 arguments and a name that does not exist", plain | observes) {
  const GetProcAddressV1 find = old_form();
  REQUIRE(find != nullptr);
  void* function = nullptr;
  const CUresult code = find("cuMemAllocTwice", &function, 11030, 0);
  REFUSES(code);
  EXPECT(function == nullptr);
  observe("code", code);
}

CHECK_CASE("lookup", "both forms give the same function", plain) {
  const GetProcAddressV1 find = old_form();
  REQUIRE(find != nullptr);
  for (const char* name : {"cuMemAlloc", "cuMemFree", "cuMemsetD8Async", "cuMemGetInfo"}) {
    for (const cuuint64_t flags : {0, 2}) {
      void* function = nullptr;
      GIVES(0, find(name, &function, 12000, flags));
      EXPECT(function == ask(name, 12000, flags).function);
    }
  }
}

CHECK_CASE("lookup", "asked for itself with 11030 it gives the form of 4 arguments", plain) {
  const Answer self = ask("cuGetProcAddress", 11030, 0);
  REQUIRE(self.function != nullptr);
  const auto find = reinterpret_cast<GetProcAddressV1>(self.function);
  void *allocate = nullptr, *release = nullptr;
  GIVES(0, find("cuMemAlloc", &allocate, 3020, 0));
  GIVES(0, find("cuMemFree", &release, 3020, 0));
  REQUIRE(allocate != nullptr && release != nullptr);
  EXPECT(allocate == ask("cuMemAlloc", 3020, 0).function);
  allocates(allocate, release);
}

CHECK_CASE("lookup", "asked for itself with 12000 it gives the form of 5 arguments", plain) {
  for (const int version : {12000, 12020, 13000}) {
    const Answer self = ask("cuGetProcAddress", version, 0);
    REQUIRE(self.function != nullptr);
    const auto find = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(self.function);
    void *allocate = nullptr, *release = nullptr;
    auto status = static_cast<CUdriverProcAddressQueryResult>(77);
    GIVES(0, find("cuMemAlloc", &allocate, version, 0, &status));
    EXPECT_EQ(static_cast<int>(status), 0);
    GIVES(0, find("cuMemFree", &release, version, 0, &status));
    REQUIRE(allocate != nullptr && release != nullptr);
    allocates(allocate, release);
  }
}

CHECK_CASE("lookup", "asked for itself twice over it is still the same", plain) {
  const auto first = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(
      ask("cuGetProcAddress", 12000, 0).function);
  REQUIRE(first != nullptr);
  void* second = nullptr;
  CUdriverProcAddressQueryResult status{};
  GIVES(0, first("cuGetProcAddress", &second, 12000, 0, &status));
  EXPECT(second == reinterpret_cast<void*>(first));
}

CHECK_CASE("lookup", "flags 2 gives the per-thread twin of the stream functions",
           plain | observes) {
  for (const char* name : {"cuMemsetD8Async", "cuMemsetD8", "cuMemAllocAsync", "cuMemFreeAsync"}) {
    void* const legacy = ask(name, 12000, 1).function;
    void* const twin = ask(name, 12000, 2).function;
    REQUIRE(legacy != nullptr && twin != nullptr);
    EXPECT(legacy != twin);
    EXPECT(ask(name, 12000, 0).function == legacy);
  }
  observe_yes("the twin is the symbol _ptsz",
              ask("cuMemsetD8Async", 12000, 2).function == by_name("cuMemsetD8Async_ptsz"));
  observe_yes("a function without a twin is the same under every flag",
              ask("cuMemAlloc", 12000, 2).function == ask("cuMemAlloc", 12000, 0).function);
  observe_yes("twins are given from 7000 on only", ask("cuMemsetD8Async", 6050, 2).function !=
                                                       ask("cuMemsetD8Async", 12000, 2).function);
}

CHECK_CASE("lookup", "a base name and its symbol are one function", plain | observes) {
  const struct {
    const char *base, *symbol;
  } pairs[] = {{"cuMemAlloc", "cuMemAlloc_v2"},        {"cuMemFree", "cuMemFree_v2"},
               {"cuMemGetInfo", "cuMemGetInfo_v2"},    {"cuMemAllocManaged", "cuMemAllocManaged"},
               {"cuMemsetD8Async", "cuMemsetD8Async"}, {"cuMemsetD32", "cuMemsetD32_v2"}};
  for (const auto& pair : pairs) {
    observe_yes(pair.base, ask(pair.base, 12000, 0).function == by_name(pair.symbol));
  }
}

CHECK_CASE("lookup", "functions can be looked up on a thread without a context", plain) {
  int found = 0;
  on_thread([&] {
    for (int round = 0; round < 200; ++round) {
      for (const char* name : kBaseNames) {
        if (ask(name, 12000, 0).function != nullptr) ++found;
      }
    }
  });
  EXPECT(found == 200 * static_cast<int>(std::size(kBaseNames)));
}
