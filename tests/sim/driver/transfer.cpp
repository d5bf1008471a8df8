// The engine under cuMemset* and cuMemcpy*.
#include "driver/transfer.h"

#include <algorithm>
#include <cstring>

namespace sim {
namespace {

using Engine = Accessor::Engine;

bool resolve_rect(const Rect& rect, const Accessor& who, std::vector<Piece>* pieces) {
  return rect.span() == 0 || resolve(rect.base, rect.span(), who, pieces);
}

// Walks pieces of one resolved range as if they were contiguous.
class Cursor {
 public:
  explicit Cursor(const std::vector<Piece>& pieces) : pieces_(pieces) {}
  // The longest contiguous run at `offset`, at most `want` bytes.
  char* at(std::size_t offset, std::size_t want, std::size_t* run) const {
    for (const Piece& piece : pieces_) {
      if (offset < piece.size) {
        *run = std::min(want, piece.size - offset);
        return piece.bytes + offset;
      }
      offset -= piece.size;
    }
    *run = 0;
    return nullptr;
  }

 private:
  const std::vector<Piece>& pieces_;
};

void fill_run(char* bytes, std::size_t size, std::uint32_t value, unsigned unit,
              std::size_t phase) {
  unsigned char pattern[4];
  std::memcpy(pattern, &value, 4);
  const bool even = std::all_of(pattern, pattern + unit, [&](auto c) { return c == pattern[0]; });
  if (even) {
    std::memset(bytes, pattern[0], size);
    return;
  }
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>(pattern[(i + phase) % unit]);
  }
}

Engine engine_of(const Copy& what) {
  return what.peer ? Engine::peer_copy : Engine::copy;
}

bool side_fits(const Rect& rect, Side side) {
  // Unified addressing: a "host" side may be device memory, but not the other way round.
  return side == Side::any || rect.span() == 0 || is_device_address(rect.base);
}

}  // namespace

CUresult do_fill(const Rect& rect, std::uint32_t value, unsigned unit, Context& context) {
  HeldPieces held;
  std::vector<Piece>& pieces = held.list;
  {
    const Lock lock(state().mutex);
    if (!resolve_rect(rect, {Engine::kernel, &context}, &pieces)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (const Piece& piece : pieces) use(piece, context.device);
  }
  const bool contiguous = rect.height <= 1 || rect.pitch == rect.width;
  if (contiguous && value == 0) {
    for (const Piece& piece : pieces) {
      const bool shared = piece.managed == nullptr && piece.keep != nullptr;
      (shared ? zero_shared : zero_private)(piece.bytes, piece.size);
    }
    return CUDA_SUCCESS;
  }
  const Cursor cursor(pieces);
  for (std::size_t row = 0; row < rect.height; ++row) {
    for (std::size_t done = 0; done < rect.width;) {
      std::size_t run = 0;
      char* bytes = cursor.at(row * rect.pitch + done, rect.width - done, &run);
      if (run == 0) return CUDA_ERROR_ILLEGAL_ADDRESS;
      fill_run(bytes, run, value, unit, done);
      done += run;
    }
  }
  return CUDA_SUCCESS;
}

CUresult do_copy(const Copy& what, Context& context) {
  HeldPieces held_to;
  HeldPieces held_from;
  std::vector<Piece>& to = held_to.list;
  std::vector<Piece>& from = held_from.list;
  {
    const Lock lock(state().mutex);
    const Accessor who{engine_of(what), &context};
    if (!resolve_rect(what.to, who, &to) || !resolve_rect(what.from, who, &from))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (const Piece& piece : to) use(piece, context.device);
  }
  const Cursor target(to);
  const Cursor source(from);
  for (std::size_t line = 0; line < what.to.depth * what.to.height; ++line) {
    const std::size_t layer = line / what.to.height;
    const std::size_t row = line % what.to.height;
    const std::size_t to_row = layer * what.to.layer + row * what.to.pitch;
    const std::size_t from_row = layer * what.from.layer + row * what.from.pitch;
    for (std::size_t done = 0; done < what.to.width;) {
      std::size_t run = 0;
      std::size_t source_run = 0;
      char* t = target.at(to_row + done, what.to.width - done, &run);
      const char* s = source.at(from_row + done, run, &source_run);
      if (source_run == 0) return CUDA_ERROR_ILLEGAL_ADDRESS;
      std::memmove(t, s, source_run);
      done += source_run;
    }
  }
  return CUDA_SUCCESS;
}

bool is_plain_host(Address address) {
  return !is_device_address(address);
}

bool copy_fits(const Copy& what, Context& context) {
  std::vector<Piece> pieces;
  const Accessor who{engine_of(what), &context};
  return side_fits(what.to, what.to_side) && side_fits(what.from, what.from_side) &&
         resolve_rect(what.to, who, &pieces) && resolve_rect(what.from, who, &pieces);
}

CUresult fill(Api api, const Rect& rect, std::uint32_t value, unsigned unit, CUstream stream_handle,
              bool asynchronous) {
  Call call(api);
  call.args("ptr=0x%llx value=%u unit=%u width=%zu height=%zu stream=%p",
            static_cast<unsigned long long>(rect.base), value, unit, rect.width, rect.height,
            static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    if (rect.height > 1 && rect.pitch < rect.width) return CUDA_ERROR_INVALID_VALUE;
    if (rect.base % unit != 0 || rect.pitch % unit != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    (void)asynchronous;  // a memset of device memory never waits
    const CUresult refused = refuse_legacy_use(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (rect.span() == 0) return CUDA_SUCCESS;
    std::vector<Piece> pieces;
    // Like a kernel it takes peer access (measured on two H200: 1 without).
    // A capture records without looking at the addresses.
    if (stream->capture == nullptr &&
        (!is_device_address(rect.base) ||
         !resolve_rect(rect, {Engine::kernel, stream->context}, &pieces)))
      return CUDA_ERROR_INVALID_VALUE;
    return submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_MEMSET, {{rect.base, rect.span()}},
        [=](Context& context) { return do_fill(rect, value, unit, context); }, true);
  });
}

CUresult copy(Api api, const Copy& what, CUstream stream_handle, bool asynchronous) {
  Call call(api);
  call.args("dst=0x%llx src=0x%llx width=%zu height=%zu stream=%p",
            static_cast<unsigned long long>(what.to.base),
            static_cast<unsigned long long>(what.from.base), what.to.width, what.to.height,
            static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    const CUresult refused = refuse_legacy_use(*stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (what.to.span() == 0) return CUDA_SUCCESS;
    if (!copy_fits(what, *stream->context)) return CUDA_ERROR_INVALID_VALUE;
    // Pageable host memory is read before an asynchronous copy returns, so the copy may not linger.
    const bool pageable = is_plain_host(what.to.base) || is_plain_host(what.from.base);
    const CUresult result = submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_MEMCPY,
        {{what.to.base, what.to.span()}, {what.from.base, what.from.span()}},
        [=](Context& context) { return do_copy(what, context); }, true);
    if (result != CUDA_SUCCESS || stream->capture != nullptr) return result;
    if (!asynchronous || pageable) {
      Context* context = stream->context;
      wait_work(lock, stream->last);
      return context->dead;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace sim
