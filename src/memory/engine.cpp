// See engine.h. What happens around the making and the end of a block; src/README.md has the way of
// a call through here.
#include "memory/engine.h"

#include <pthread.h>
#include <stdlib.h>

#include <atomic>

#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "driver/capture.h"
#include "driver/contexts.h"
#include "driver/device.h"
#include "driver/errors.h"
#include "driver/host_memory.h"
#include "driver/peers.h"
#include "memory/blocks/owner.h"
#include "memory/blocks/registry.h"
#include "memory/blocks/retired.h"
#include "memory/budget/device_room.h"
#include "memory/budget/spill.h"
#include "memory/listener.h"
#include "memory/make.h"
#include "memory/peers.h"
#include "memory/release.h"
#include "memory/remarks.h"
#include "memory/routing/route.h"
#include "memory/routing/tally.h"
#include "telemetry/counters.h"
#include "telemetry/summary.h"

namespace kvshim::engine {

namespace {

using telemetry::counters;

// The child of a fork starts with empty tables and its own counts. The parent's memory is not the
// child's to free, and whoever held a lock does not exist here.
void in_forked_child() {
  if (const Listener* sharing = listener.load(std::memory_order_acquire)) sharing->forked();
  registry::forget();
  retired::forget();
  owners.forget();
  peers::forget();
  driver::forget_peers();
  driver::forget_primaries();
  spill::forget();
  device_room::forget();
  forget_memset_jobs();
  driver::forget_devices();
  driver::forget_host_memory();
  tally::forget();
  telemetry::reset();
}

constinit std::atomic<bool> prepared{false};

void prepare() noexcept {
  if (prepared.load(std::memory_order_acquire)) [[likely]]
    return;
  if (prepared.exchange(true, std::memory_order_acq_rel)) return;
  pthread_atfork(nullptr, nullptr, in_forked_child);
  if (options().summary == Summary::on) atexit(telemetry::write_summary);
}

// May memory be allocated or freed here and now? The driver's own answer, for 70 ns and without any
// effect but the native one: cuMemFree(0) is refused with 900 (and ends the capture) exactly where
// cuMemAlloc and cuMemFree are.
CUresult verdict() noexcept {
  return driver::cuMemFree_v2(0);
}

// Hands the block over to wait for the stream's work. The event belongs to the stream's context,
// which need not be the current one.
bool retire(const Block& block, CUstream stream) noexcept {
  CUcontext context = nullptr;
  const bool own = driver::cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context != nullptr;
  if (!own && driver::cuCtxGetCurrent(&context) != CUDA_SUCCESS) return false;
  const bool pushed = own && driver::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  CUevent event = nullptr;
  bool retired = driver::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
                 driver::cuEventRecord(event, stream) == CUDA_SUCCESS &&
                 retired::add(block, event, context);
  if (!retired && event != nullptr) driver::cuEventDestroy_v2(event);
  if (pushed) driver::cuCtxPopCurrent_v2(&context);
  return retired;
}

void note_largest_small(std::uint64_t bytes) noexcept {
  std::uint64_t seen = counters.largest_small.load(std::memory_order_relaxed);
  while (seen < bytes &&
         !counters.largest_small.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

Route plan(std::uint64_t bytes, const driver::Device& device) noexcept {
  Route way = route(bytes, device.ordinal(), options());
  way.kind = suited(way.kind, bytes, device, Kind::vmm);
  return way;
}

void note_size(std::uint64_t bytes, const driver::Device& device, Kind kind) noexcept {
  if (options().threshold != kNever && !over_threshold(bytes, options())) note_largest_small(bytes);
  call_out_large(bytes, device, kind);
}

}  // namespace

void note_use() noexcept {
  log_options();
}

bool active() noexcept {
  if (options().disable) return false;
  prepare();
  return true;
}

CUresult allocate(CUdeviceptr* out, std::size_t bytes) noexcept {
  if (options().dry_run) [[unlikely]] {
    const CUresult native = driver::cuMemAlloc_v2(out, bytes);
    if (native == CUDA_SUCCESS) note_dry(*out, bytes);
    return native;
  }
  CUresult code = verdict();
  if (code != CUDA_SUCCESS) return code;
  note_use();
  Owner* owner = nullptr;
  code = owners.current(&owner);
  // A device beyond the table of devices: native memory, unseen.
  if (code == CUDA_ERROR_NOT_SUPPORTED) return driver::cuMemAlloc_v2(out, bytes);
  if (code != CUDA_SUCCESS) return code;
  peers::use(owner->device().ordinal());
  retired::reap(nullptr);

  Route way = plan(bytes, owner->device());
  const Kind wanted = way.kind;
  Block block;
  block.bytes = bytes;
  block.owner = owner;
  code =
      registry::reserve() ? make_or_spill(&way, *owner, bytes, &block) : CUDA_ERROR_OUT_OF_MEMORY;
  if (code != CUDA_SUCCESS) {
    tally::cancel(owner->device().ordinal(), bytes);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
      counters.out_of_memory.fetch_add(1, std::memory_order_relaxed);
      call_out_refusal(bytes, owner->device(), wanted);
    }
    log::debug("{} bytes on device {} as {} ({}): {} {}", bytes, owner->device().ordinal(),
               kind_name(wanted), why_text(way).text, static_cast<int>(code),
               driver::error_name(code));
    return code;
  }
  if (block.kind != Kind::native) owner->stock_spare();
  registry::insert(block);
  if (block.mapping.bytes != 0) {
    peers::share({block.mapping.base, block.mapping.bytes, owner->device().ordinal()});
  }
  tally::add(block, way);
  if (way.why == Why::fallback) counters.fallbacks.fetch_add(1, std::memory_order_relaxed);
  note_size(bytes, owner->device(), block.kind);
  log::debug("{} bytes on device {} became {} at {:#x} ({})", bytes, owner->device().ordinal(),
             kind_name(block.kind), block.base, why_text(way).text);
  *out = block.base;
  return CUDA_SUCCESS;
}

bool takes_async(std::size_t bytes) noexcept {
  const Options& chosen = options();
  if (chosen.async != AsyncPolicy::route) return false;
  if (chosen.rules.count != 0) {
    const CUdevice device = driver::current_device();
    const bool known = device >= 0 && device < driver::kMaxDevices;
    const unsigned rule = known ? matching_rule(bytes, device, chosen) : 0;
    if (rule != 0) return chosen.rules.list[rule - 1].kind != Kind::native;
  }
  return over_threshold(bytes, chosen);
}

bool takes_async_spill(std::size_t bytes) noexcept {
  const Options& chosen = options();
  return chosen.async == AsyncPolicy::route && may_spill(bytes, chosen) && !chosen.dry_run;
}

void note_dry(CUdeviceptr base, std::size_t bytes) noexcept {
  note_use();
  Owner* owner = nullptr;
  if (owners.current(&owner) != CUDA_SUCCESS || !registry::reserve()) return;
  Route way = plan(bytes, owner->device());
  Block block;
  block.base = base;
  block.bytes = bytes;
  block.owner = owner;
  block.planned = way.kind;
  registry::insert(block);
  tally::add(block, way);
  note_size(bytes, owner->device(), way.kind);
  log::debug("{} bytes on device {} at {:#x} would have become {} ({})", bytes,
             owner->device().ordinal(), base, kind_name(way.kind), why_text(way).text);
}

bool free(CUdeviceptr ptr, CUresult* result) noexcept {
  Block block;
  if (!registry::take(ptr, &block)) {
    // Freed in stream order already: a second free is refused, and must not reach the driver, where
    // the memory is still there.
    if (!retired::contains(ptr)) return false;
    *result = verdict();
    if (*result == CUDA_SUCCESS) *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  bool gone = false;  // the owner context was destroyed, and with it, natively, the block
  CUresult code = CUDA_SUCCESS;
  if (is_mapping(block.kind)) code = block.owner->wait_idle(&gone);
  if (code == CUDA_SUCCESS || gone) {
    const CUresult released = release(block);
    if (!gone) code = released;
  }
  if (code != CUDA_SUCCESS && !gone) {
    registry::insert(block);
    *result = code;
    return true;
  }
  tally::remove(block);
  // Of a block that went with its context the driver says what it natively would.
  *result = gone ? driver::cuMemFree_v2(ptr) : CUDA_SUCCESS;
  retired::reap(gone ? nullptr : block.owner);
  return true;
}

bool free_async(CUdeviceptr ptr, CUstream stream, CUresult* result) noexcept {
  Block block;
  if (!registry::take(ptr, &block)) {
    if (!retired::contains(ptr)) return false;
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  if (block.kind == Kind::native) {
    *result = driver::cuMemFreeAsync(ptr, stream);
    if (*result != CUDA_SUCCESS) {
      registry::insert(block);
    } else {
      tally::remove(block);
    }
    return true;
  }

  // A spare native block goes first: its verdict (captures, bad streams, no context) is the answer.
  *result = block.owner->verdict_async(stream);
  if (*result != CUDA_SUCCESS) {
    registry::insert(block);
    return true;
  }
  tally::remove(block);
  withdraw_handle(&block);
  if (retire(block, stream)) return true;
  // No event or no record: then at once, when the stream is done. The free itself was accepted.
  const driver::RelaxedCapture relaxed;
  driver::cuStreamSynchronize(stream);
  release(block);
  return true;
}

std::uint64_t held_bytes(CUdevice ordinal) noexcept {
  // A query asks a device nothing: where it is not known yet, nothing is held on it.
  const driver::Device* const device = driver::used_device(ordinal);
  std::uint64_t held = 0;
  if (device == nullptr) return held;
  for (Owner* owner = owners.first(); owner != nullptr; owner = Owners::next(*owner)) {
    if (&owner->device() == device) held += owner->slabs().free_bytes();
  }
  return held;
}

CUresult mem_info(std::size_t* free, std::size_t* total) noexcept {
  log_mistakes();
  retired::reap_all();
  std::size_t real_free = 0;
  std::size_t real_total = 0;
  const CUresult code = driver::cuMemGetInfo_v2(&real_free, &real_total);
  if (code != CUDA_SUCCESS) return code;
  CUdevice ordinal = 0;
  const bool known = driver::cuCtxGetDevice(&ordinal) == CUDA_SUCCESS;
  std::uint64_t sum = real_free + (known ? held_bytes(ordinal) : 0);
  if (sum > real_total) sum = real_total;
  const spill::Told extra = known ? spill::told(ordinal) : spill::Told{};
  if (known) telemetry::note_real_memory(ordinal, real_free, real_total);
  if (known && sum > device_room::left(ordinal)) sum = device_room::left(ordinal);
  if (free != nullptr) *free = sum + extra.free;
  if (total != nullptr) *total = real_total + extra.total;
  return CUDA_SUCCESS;
}

Place find(CUdeviceptr address, BlockView* out) noexcept {
  Block block;
  const Place place = registry::find(address, &block);
  if (place == Place::block) {
    const CUdevice device = block.owner->device().ordinal();
    const bool of_host = block.kind == Kind::host;
    const driver::HandleStep step =
        of_host ? driver::host_memory(block.owner->device()).step() : block.owner->device().step();
    *out = {
        .base = block.base,
        .bytes = block.bytes,
        .context = block.owner->context(),
        .device = device,
        .kind = block.kind,
        .id = block.id,
        .sync_memops = block.sync_memops,
        .opened = block.opened,
        .fabric = step == driver::HandleStep::fabric,
        .exportable = step < driver::HandleStep::none && (!of_host || block.mapping.handle != 0)};
  }
  return place == Place::foreign && retired::covers(address) ? Place::hole : place;
}

bool set_sync_memops(CUdeviceptr address, bool on) noexcept {
  Block block;
  return registry::find(address, &block) == Place::block && is_mapping(block.kind) &&
         registry::set_sync_memops(address, on);
}

Destruction before_destroy(CUcontext context) noexcept {
  if (context == nullptr) return {};
  Owner* owner = owners.find(context);
  return {context, owner, retired::detach(owner, context)};
}

void after_destroy(const Destruction& destruction, bool destroyed) noexcept {
  Owner* owner = destruction.owner;
  if (destroyed && owner != nullptr)
    owner->end();  // the driver may give its address to a new context
  retired::settle(destruction.retired, owner, destruction.context, destroyed);
  if (!destroyed || owner == nullptr) return;
  Block block;
  while (registry::take_next_of(*owner, block.base, &block)) {
    if (is_mapping(block.kind)) {
      release(block);
    } else {
      return_budget(block);  // the driver freed native and managed ones
    }
    tally::remove(block);
  }
  if (const Listener* sharing = listener.load(std::memory_order_acquire)) {
    sharing->context_gone(*owner);
  }
  owner->abandon();
}

bool make_room() noexcept {
  std::uint64_t bytes = retired::reap_all();
  const bool others = retired::wait_for_others();  // what they release comes free for us too
  bytes += trim();
  if (bytes == 0) return others;
  counters.trims.fetch_add(1, std::memory_order_relaxed);
  log::info("out of memory: gave {} of cached memory back, trying again",
            format_size(bytes).c_str());
  return true;
}

std::uint64_t trim() noexcept {
  std::uint64_t bytes = 0;
  for (Owner* owner = owners.first(); owner != nullptr; owner = Owners::next(*owner)) {
    bytes += owner->slabs().trim();
  }
  return bytes;
}

}  // namespace kvshim::engine
