// cuGetProcAddress in both forms: base name, version and flags to the exact entry point.
#include <cstring>

#include "driver/call.h"

// Every symbol of the table, by its exact name and without its type.
#define KVSIM_SYMBOL_ROW(base, version, symbol) \
  extern "C" void kvsim_entry_##symbol(void) KVSIM_SYMBOL(#symbol);
#define KVSIM_TWIN_ROW KVSIM_SYMBOL_ROW
#include "driver/symbols.def"
#undef KVSIM_SYMBOL_ROW
#undef KVSIM_TWIN_ROW

namespace {

using namespace sim;

struct Row {
  const char* base;
  int version;
  const char* symbol;
  void (*entry)(void);
  bool twin;
};

constexpr Row kRows[] = {
#define KVSIM_SYMBOL_ROW(base, version, symbol) \
  {#base, version, #symbol, kvsim_entry_##symbol, false},
#define KVSIM_TWIN_ROW(base, version, symbol) {#base, version, #symbol, kvsim_entry_##symbol, true},
#include "driver/symbols.def"
};

struct Search {
  const Row* best = nullptr;
  bool known = false;  // the base name exists in some version
};

Search find(const char* base, int version, bool twin) {
  Search search;
  for (const Row& row : kRows) {
    if (row.twin != twin || std::strcmp(row.base, base) != 0) continue;
    search.known = true;
    if (row.version <= version && (search.best == nullptr || row.version > search.best->version))
      search.best = &row;
  }
  return search;
}

bool hidden(const char* base, const Row* row) {
  const std::lock_guard lock(control().mutex);
  const auto& names = control().hidden;
  return names.count(base) != 0 || (row != nullptr && names.count(row->symbol) != 0);
}

CUresult answer(const char* name, void** out, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult* status, bool newer) {
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cuuint64_t known_flags =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if ((flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (version > state().driver_version) return CUDA_ERROR_INVALID_VALUE;
  Search search = find(name, version, false);
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
    // A name that has twins is answered with a twin or not at all.
    const Search twin = find(name, version, true);
    if (twin.known) search = twin;
  }
  CUdriverProcAddressQueryResult verdict = CU_GET_PROC_ADDRESS_SUCCESS;
  if (!search.known || hidden(name, search.best)) {
    verdict = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  } else if (search.best == nullptr) {
    verdict = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  if (status != nullptr) *status = verdict;
  if (verdict == CU_GET_PROC_ADDRESS_SUCCESS) {
    *out = reinterpret_cast<void*>(search.best->entry);
    return CUDA_SUCCESS;
  }
  // The newer form answers 0 and NULL, the older one 500 and leaves the pointer alone.
  if (!newer) return CUDA_ERROR_NOT_FOUND;
  *out = nullptr;
  return CUDA_SUCCESS;
}

CUresult get(Api api, const char* name, void** out, int version, cuuint64_t flags,
             CUdriverProcAddressQueryResult* status, bool newer) {
  Call call(api);
  call.args("name=%s version=%d flags=%llu", name == nullptr ? "" : name, version,
            static_cast<unsigned long long>(flags));
  return call.run(kNothing | kCallback,
                  [&](Lock&) { return answer(name, out, version, flags, status, newer); });
}

}  // namespace

KVSIM_API CUresult cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  return get({"cuGetProcAddress"}, name, out, version, flags, nullptr, false);
}
KVSIM_API CUresult cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                                       CUdriverProcAddressQueryResult* status) {
  return get({"cuGetProcAddress_v2"}, name, out, version, flags, status, true);
}
