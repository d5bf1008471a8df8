// kv_spin, kv_fill, kv_add, kv_copy, kv_sum, kv_flag. Every access goes through the address tables,
// so that what a device may not touch ends in 700, as on a real one.
#include "driver/kernels.h"

#include <chrono>
#include <thread>

#include "driver/memory.h"
#include "driver/state.h"

namespace sim {
namespace {

using Params = KernelParams;
constexpr auto kFlagLimit = std::chrono::seconds(5);

bool reach(Address address, std::uint64_t bytes, Context& context, HeldPieces* held) {
  const Lock lock(state().mutex);
  if (!resolve(address, bytes, {Accessor::Engine::kernel, &context}, &held->list)) return false;
  for (const Piece& piece : held->list) use(piece, context.device);
  return true;
}

// Applies `each(word)` to every u32 of a range.
template <typename Each>
CUresult over_words(Address address, std::uint64_t count, Context& context, Each each) {
  HeldPieces held;
  if (!reach(address, count * 4, context, &held)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (const Piece& piece : held.list) {
    auto* words = reinterpret_cast<std::uint32_t*>(piece.bytes);
    for (std::size_t i = 0; i < piece.size / 4; ++i) each(words[i]);
  }
  return CUDA_SUCCESS;
}

CUresult spin(const Params& p, Context&) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(p.value[0]));
  return CUDA_SUCCESS;
}

CUresult fill(const Params& p, Context& context) {
  const auto value = static_cast<std::uint32_t>(p.value[2]);
  return over_words(p.value[0], p.value[1], context, [=](std::uint32_t& w) { w = value; });
}

CUresult add(const Params& p, Context& context) {
  const auto value = static_cast<std::uint32_t>(p.value[2]);
  return over_words(p.value[0], p.value[1], context, [=](std::uint32_t& w) { w += value; });
}

CUresult copy(const Params& p, Context& context) {
  HeldPieces to;
  HeldPieces from;
  const std::uint64_t bytes = p.value[2] * 4;
  if (!reach(p.value[0], bytes, context, &to) || !reach(p.value[1], bytes, context, &from))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::size_t t = 0;
  std::size_t f = 0;
  std::size_t into_to = 0;
  std::size_t into_from = 0;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::size_t run = std::min(to.list[t].size - into_to, from.list[f].size - into_from);
    std::memmove(to.list[t].bytes + into_to, from.list[f].bytes + into_from, run);
    done += run;
    if ((into_to += run) == to.list[t].size) ++t, into_to = 0;
    if ((into_from += run) == from.list[f].size) ++f, into_from = 0;
  }
  return CUDA_SUCCESS;
}

CUresult sum(const Params& p, Context& context) {
  std::uint64_t total = 0;
  const CUresult result =
      over_words(p.value[0], p.value[1], context, [&](std::uint32_t& w) { total += w; });
  if (result != CUDA_SUCCESS) return result;
  HeldPieces out;
  if (!reach(p.value[2], 8, context, &out)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  __atomic_fetch_add(reinterpret_cast<std::uint64_t*>(out.list[0].bytes), total, __ATOMIC_SEQ_CST);
  return CUDA_SUCCESS;
}

CUresult flag(const Params& p, Context& context) {
  HeldPieces held;
  if (!reach(p.value[0], 4, context, &held)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const volatile auto* word = reinterpret_cast<std::uint32_t*>(held.list[0].bytes);
  const auto end = std::chrono::steady_clock::now() + kFlagLimit;
  while (*word == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return CUDA_SUCCESS;
}

std::vector<Range> no_ranges(const Params&) {
  return {};
}
std::vector<Range> words_at_0(const Params& p) {
  return {{p.value[0], p.value[1] * 4}};
}
std::vector<Range> copy_ranges(const Params& p) {
  return {{p.value[0], p.value[2] * 4}, {p.value[1], p.value[2] * 4}};
}
std::vector<Range> sum_ranges(const Params& p) {
  return {{p.value[0], p.value[1] * 4}, {p.value[2], 8}};
}
std::vector<Range> one_word(const Params& p) {
  return {{p.value[0], 4}};
}

constexpr Kernel kKernels[] = {
    {"kv_spin", {8, 0, 0}, no_ranges, spin}, {"kv_fill", {8, 8, 4}, words_at_0, fill},
    {"kv_add", {8, 8, 4}, words_at_0, add},  {"kv_copy", {8, 8, 8}, copy_ranges, copy},
    {"kv_sum", {8, 8, 8}, sum_ranges, sum},  {"kv_flag", {8, 0, 0}, one_word, flag},
};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace sim
