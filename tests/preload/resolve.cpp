// Prints what cuGetProcAddress (both forms) answers for every hooked base name and for some others,
// over the versions where the ABI of some name changes and over all stream flags. resolve.sh
// compares the answers bare, preloaded and disabled. Under kvshim each hooked function must be
// kvshim's and every other the driver's.
#include <cuda.h>

#include <set>

#include "check.h"
#include "names.h"

#undef cuGetProcAddress

namespace {

using GetV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

const bool hooks_expected =
    std::getenv("LD_PRELOAD") != nullptr && std::getenv("KVSHIM_DISABLE") == nullptr;

void check(const char* base, int version, void* answer) {
  const char* const name = preload::name_of(answer);
  const bool ours = preload::in_kvshim(answer);
  const bool wanted = hooks_expected && preload::is_hooked(name);
  const std::string detail = std::string(base) + " " + std::to_string(version) + ": " + name +
                             " of " + preload::object_of(answer);
  EXPECT_TEXT(ours == wanted, detail.c_str());
}

void show(const char* form, const std::string& base, int version, unsigned flags, CUresult result,
          int status, void* answer) {
  std::printf("%s %s %d %u: %d %d %s\n", form, base.c_str(), version, flags,
              static_cast<int>(result), status, preload::name_of(answer));
  if (answer != nullptr) check(base.c_str(), version, answer);
}

}  // namespace

int main() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) preload::skip("no libcuda.so.1");
  const auto get_v1 = reinterpret_cast<GetV1>(dlsym(driver, "cuGetProcAddress"));
  const auto get_v2 = reinterpret_cast<GetV2>(dlsym(driver, "cuGetProcAddress_v2"));
  EXPECT(get_v1 != nullptr && get_v2 != nullptr);
  if (get_v1 == nullptr || get_v2 == nullptr) return preload::result();

  std::set<std::string> bases = {"cuInit",           "cuCtxCreate",   "cuMemcpyHtoD",
                                 "cuGetExportTable", "cuNoSuchName",  "cuMemAllo",
                                 "cuMemAlloc_v2",    "cuMemAllocX",   "",
                                 "cuMemAdvise",      "cuMemFreeHost", "cuStreamBeginCapture"};
  for (const char* const name : preload::kHooked) bases.insert(preload::base_of(name));
  for (const std::string& base : bases) {
    for (const int version : {0, 2000, 3019, 3020, 6000, 7000, 10020, 11020, 11030, 11040, 12000,
                              12020, 13000, 13030}) {
      for (const unsigned flags : {0u, 1u, 2u}) {
        void* answer = nullptr;
        CUresult result = get_v1(base.c_str(), &answer, version, flags);
        show("v1", base, version, flags, result, -1, answer);
        auto status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        answer = nullptr;
        result = get_v2(base.c_str(), &answer, version, flags, &status);
        show("v2", base, version, flags, result, static_cast<int>(status), answer);
      }
    }
  }
  // What the driver refuses, or takes without its optional output.
  void* answer = nullptr;
  std::printf("no output: %d\n",
              static_cast<int>(get_v2("cuMemAlloc", nullptr, 12000, 0, nullptr)));
  std::printf("no name: %d\n", static_cast<int>(get_v2(nullptr, &answer, 12000, 0, nullptr)));
  std::printf("bad flags: %d\n",
              static_cast<int>(get_v2("cuMemAlloc", &answer, 12000, 99, nullptr)));
  const CUresult result = get_v2("cuMemAlloc", &answer, 12000, 0, nullptr);
  show("v2", "no status", 12000, 0, result, -1, answer);

  // cuGetExportTable: the runtimes check these private tables; the answer is the driver's own.
  const auto get_table = reinterpret_cast<CUresult (*)(const void**, const CUuuid*)>(
      dlsym(driver, "cuGetExportTable"));
  EXPECT(get_table != nullptr && !preload::in_kvshim(reinterpret_cast<void*>(get_table)));
  if (get_table != nullptr) {
    const CUuuid id = {{0x6b, static_cast<char>(0xd5), static_cast<char>(0xfb), 0x6c, 0x5b,
                        static_cast<char>(0xf4), static_cast<char>(0xe7), 0x4a,
                        static_cast<char>(0x89), static_cast<char>(0x87), static_cast<char>(0xd9),
                        0x39, 0x12, static_cast<char>(0xfd), static_cast<char>(0x9d),
                        static_cast<char>(0xf9)}};
    const void* table = nullptr;
    const CUresult got = get_table(&table, &id);
    std::printf("export table: %d %s\n", static_cast<int>(got), preload::object_of(table));
  }
  return preload::failures == 0 ? 0 : 1;
}
