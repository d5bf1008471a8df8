// cuGetErrorName and cuGetErrorString, and cuGetExportTable's dummies.
#include <cstring>

#include "driver/call.h"

namespace {

using namespace sim;

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define KVSIM_ERROR(code, text) \
  { code, #code, text }
constexpr ErrorText kErrors[] = {
    KVSIM_ERROR(CUDA_SUCCESS, "no error"),
    KVSIM_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    KVSIM_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    KVSIM_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    KVSIM_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    KVSIM_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    KVSIM_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    KVSIM_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    KVSIM_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    KVSIM_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                "peer access is not supported between these two devices"),
    KVSIM_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    KVSIM_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    KVSIM_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    KVSIM_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    KVSIM_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    KVSIM_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    KVSIM_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    KVSIM_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    KVSIM_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    KVSIM_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                "part or all of the requested memory range is already mapped"),
    KVSIM_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                "pointer does not correspond to a registered memory region"),
    KVSIM_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    KVSIM_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "operation not permitted when stream is capturing"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                "operation failed due to a previous error during capture"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                "operation would result in a merge of separate capture sequences"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                "capture was not ended in the same stream as it began"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                "dependency created on uncaptured work in another stream"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                "operation would make the legacy stream depend on a capturing blocking stream"),
    KVSIM_ERROR(CUDA_ERROR_CAPTURED_EVENT,
                "operation not permitted on an event last recorded in a capturing stream"),
    KVSIM_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                "attempt to terminate a thread-local capture sequence from another thread"),
    KVSIM_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

CUresult look_up(Api api, CUresult error, const char** out, const char* ErrorText::*which) {
  Call call(api);
  call.args("error=%d", static_cast<int>(error));
  return call.run(kNothing | kCallback, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    for (const ErrorText& row : kErrors) {
      if (row.code == error) *out = row.*which;
    }
    return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

// Two interface tables that a runtime might ask for: their size and nothing to call.
constexpr unsigned char kTableIds[2][16] = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89,
                                             0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
                                            {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93,
                                             0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}};
constexpr std::size_t kTables[2][8] = {{64}, {64}};

}  // namespace

KVSIM_API CUresult cuGetErrorName(CUresult error, const char** out) {
  return look_up({"cuGetErrorName"}, error, out, &ErrorText::name);
}
KVSIM_API CUresult cuGetErrorString(CUresult error, const char** out) {
  return look_up({"cuGetErrorString"}, error, out, &ErrorText::text);
}

KVSIM_API CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  Call call({"cuGetExportTable"});
  return call.run(kNothing, [&](Lock&) {
    if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 2; ++i) {
      if (std::memcmp(id->bytes, kTableIds[i], 16) == 0) {
        *table = kTables[i];
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}
