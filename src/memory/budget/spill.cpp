// See spill.h. Whatever is allowed is counted in the same step: two threads, or two processes, that
// ask at once never both get the same bytes.
#include "memory/budget/spill.h"

#include <atomic>

#include "base/log.h"
#include "base/sizes.h"
#include "driver/device.h"
#include "driver/functions.h"
#include "driver/host_memory.h"
#include "memory/routing/route.h"
#include "telemetry/counters.h"

namespace kvshim::spill {

namespace {

constexpr std::uint64_t kMeasureEvery = 8 * kMiB;  // measuring costs some 100 us, placing this 1 ms
constexpr std::uint64_t kProcesses = 16;           // that may measure at once, one a device
constexpr std::uint64_t kMostPiece = kGiB;         // placed between two measurements
constexpr unsigned kRefusalsSaid = 100;            // in full; the rest at debug
constexpr std::uint64_t kMost = 1ull << 52;        // sums of so much cannot overflow
// Of each process less than kMeasureEvery is unmeasured at any time.
constexpr std::uint64_t kReserveLeast = kProcesses * kMeasureEvery;
constexpr std::uint64_t kReserveMost = 16 * kGiB;

// Promised and not yet touched, of all blocks: what measuring cannot see. Ledgers of other threads
// say the same and more, where files take locks.
constinit std::atomic<std::uint64_t> to_place{0};
// Bytes of small blocks since the last measurement.
constinit std::atomic<std::uint64_t> unmeasured{0};
// Bytes in host memory, promised ones included.
constinit std::atomic<std::uint64_t> spilled_in_all{0};
constinit std::atomic<std::uint64_t> spilled[driver::kMaxDevices]{};

constexpr std::uint64_t kUndecided = ~0ull;
struct Undecided {
  std::atomic<std::uint64_t> bytes{kUndecided};
};
constinit Undecided told_bytes[driver::kMaxDevices];
constinit std::atomic<std::uint64_t> host_bytes{kUndecided};
constinit std::atomic<const char*> host_bytes_by{""};

bool has_record(CUdevice device) noexcept {
  return device >= 0 && device < driver::kMaxDevices;
}

// What stays for everybody else. The program itself goes on taking host memory (pinned buffers,
// the driver's page tables), and MemAvailable is an estimate. A share, so that it suits a small
// container and a large machine, and so that it shrinks with what is left: what was promised at the
// start can still be placed at the end, though a little has gone elsewhere.
std::uint64_t reserve_of(std::uint64_t available) noexcept {
  if (options().host_reserve != kAuto) return options().host_reserve;
  const std::uint64_t share = available / 20;
  if (share < kReserveLeast) return kReserveLeast;
  return share < kReserveMost ? share : kReserveMost;
}

std::uint64_t less(std::uint64_t from, std::uint64_t what) noexcept {
  return from > what ? from - what : 0;
}

// Adds where the sum stays within the limit.
bool add_within(std::atomic<std::uint64_t>& sum, std::uint64_t bytes,
                std::uint64_t limit) noexcept {
  std::uint64_t before = sum.load(std::memory_order_acquire);
  do {
    if (bytes > less(limit, before)) return false;
  } while (!sum.compare_exchange_weak(before, before + bytes, std::memory_order_acq_rel));
  return true;
}

// What to place before the next measurement: where no ledger can be kept, processes that have found
// the same memory available do not pass the limit together.
std::uint64_t piece_of(std::uint64_t rest, std::uint64_t available) noexcept {
  std::uint64_t piece = available / kProcesses / kMeasureEvery * kMeasureEvery;
  if (piece < kMeasureEvery) piece = kMeasureEvery;
  if (piece > kMostPiece) piece = kMostPiece;
  return rest < piece ? rest : piece;
}

void give_back(CUdevice device, std::uint64_t bytes) noexcept {
  spilled[device].fetch_sub(bytes, std::memory_order_acq_rel);
  spilled_in_all.fetch_sub(bytes, std::memory_order_acq_rel);
}

bool decided(std::atomic<std::uint64_t>& value, std::uint64_t* out) noexcept {
  *out = value.load(std::memory_order_acquire);
  return *out != kUndecided;
}

// The first decision stands.
std::uint64_t decide(std::atomic<std::uint64_t>& value, std::uint64_t bytes) noexcept {
  std::uint64_t expected = kUndecided;
  return value.compare_exchange_strong(expected, bytes, std::memory_order_acq_rel) ? bytes
                                                                                   : expected;
}

// All that this process may spill, as it looked at the first question.
std::uint64_t host_budget_bytes() noexcept {
  std::uint64_t bytes = 0;
  if (decided(host_bytes, &bytes)) return bytes;
  const host_budget::Budget there = host_budget::measure();
  const char* by = there.limited_by;
  // What is promised and not touched yet is still available.
  bytes = less(there.available, reserve_of(there.available)) +
          less(spilled_in_all.load(std::memory_order_relaxed),
               to_place.load(std::memory_order_relaxed));
  if (options().host_limit != kAuto && options().host_limit < bytes) {
    bytes = options().host_limit;
    by = "KVSHIM_HOST_LIMIT";
  }
  host_bytes_by.store(by, std::memory_order_relaxed);
  return decide(host_bytes, bytes);
}

bool has_attribute(CUdevice device, CUdevice_attribute attribute) noexcept {
  int value = 0;
  return driver::cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

bool may_be_managed(CUdevice device) noexcept {
  return has_attribute(device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) &&
         has_attribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
}

// Where the device has no host memory, blocks meant to be of it become managed.
bool may_spill(CUdevice device) noexcept {
  const bool host = reachable(Kind::host, options());
  if (host &&
      has_attribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    return true;
  }
  return (host || reachable(Kind::managed, options())) && may_be_managed(device);
}

// Has the driver left a kind of memory that blocks of this device can spill to? Until it has
// refused one, the attributes above hold.
bool still_may_spill(CUdevice device) noexcept {
  const driver::Device* known = driver::used_device(device);
  if (known == nullptr || known->managed()) return true;
  if (!reachable(Kind::host, options())) return false;
  const driver::HostMemory* host = driver::used_host_memory(device);
  return host == nullptr || host->step() != driver::HandleStep::unsupported;
}

// What is told of a device: its limit, by default an equal share for each device that the process
// sees, so that the sum over all of them is there.
std::uint64_t told_total(CUdevice device) noexcept {
  std::uint64_t bytes = 0;
  if (options().meminfo != MemInfo::with_spill || !has_record(device)) return 0;
  if (decided(told_bytes[device].bytes, &bytes)) return bytes;
  int devices = 0;
  if (driver::cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices < 1) return 0;
  const bool possible = may_spill(device);
  const char* by = "";
  if (possible) {
    bytes = host_budget_bytes();
    by = host_bytes_by.load(std::memory_order_relaxed);
    const std::uint64_t limit = options().spill_limit;
    if (limit == kAuto) bytes /= static_cast<std::uint64_t>(devices);
    if (limit != kAuto && limit < bytes) {
      bytes = limit;
      by = "KVSHIM_SPILL_LIMIT";
    }
    bytes -= bytes % (2 * kMiB);
  } else {
    bytes = 0;
  }
  bytes = decide(told_bytes[device].bytes, bytes);
  telemetry::counters.devices[device].told.store(bytes, std::memory_order_relaxed);
  static constinit log::Once said[driver::kMaxDevices];
  if (said[device].first()) {
    if (possible) {
      log::info("device {}: the program is told of {} more than it has (limited by {}; {} devices)",
                device, format_size(bytes).c_str(), by, devices);
    } else {
      log::warn(
          "device {}: KVSHIM_MEMINFO=virtual adds nothing: the options or the device let no block "
          "lie "
          "in host memory",
          device);
    }
  }
  return bytes;
}

}  // namespace

Promise::Promise(CUdevice device, std::uint64_t bytes, const char* kind, int node) noexcept
    : device_(device), bytes_(bytes), left_(bytes), kind_(kind), node_(node), ledger_(bytes) {
  granted_ = ask();
}

Promise::~Promise() {
  if (!granted_) return;
  to_place.fetch_sub(left_, std::memory_order_acq_rel);
  if (!kept_) give_back(device_, bytes_);
}

void Promise::keep() noexcept {
  kept_ = true;
  telemetry::counters.devices[device_].spilled.add(bytes_);
}

// A limit of this process's own; nothing is counted yet.
bool Promise::within(const std::atomic<std::uint64_t>& taken, std::uint64_t limit,
                     const char* by) noexcept {
  const std::uint64_t left = less(limit, taken.load(std::memory_order_acquire));
  if (bytes_ <= left) return true;
  budget_ = {left, by, 0};
  reserve_ = 0;
  return false;
}

// What the machine can give: claims the bytes if they are there.
bool Promise::measured() noexcept {
  constexpr auto order = std::memory_order_acq_rel;
  if (bytes_ < kMeasureEvery &&
      unmeasured.fetch_add(bytes_, std::memory_order_relaxed) + bytes_ < kMeasureEvery) {
    to_place.fetch_add(bytes_, order);
    return true;
  }
  char file[256];
  ledger_.begin(host_budget::decision_file(file));
  const std::uint64_t promised = to_place.fetch_add(bytes_, order);
  budget_ = host_budget::measure(node_, &ledger_);
  // Small blocks, and files that take no locks: only this process knows.
  const std::uint64_t only_here = less(promised, budget_.claimed);
  budget_.available = less(budget_.available, only_here);
  budget_.claimed += only_here;
  reserve_ = reserve_of(budget_.available);
  const bool there = bytes_ <= less(budget_.available, reserve_);
  // After a refusal the next block is measured too, however small: programs try again.
  unmeasured.store(there ? 0 : kMeasureEvery, std::memory_order_relaxed);
  if (!there) {
    to_place.fetch_sub(bytes_, order);
    ledger_.drop();
  }
  ledger_.end();
  return there;
}

bool Promise::ask() noexcept {
  if (!has_record(device_)) return false;
  if (bytes_ > kMost) {
    budget_ = {kMost, "any machine", 0};
    return false;
  }
  const Options& chosen = options();
  const std::uint64_t share = chosen.spill_limit == kAuto ? told_total(device_) : 0;
  const std::uint64_t device_limit = chosen.spill_limit != kAuto ? chosen.spill_limit
                                     : share != 0                ? share
                                                                 : kNever;
  const std::uint64_t host_limit = chosen.host_limit != kAuto ? chosen.host_limit : kNever;
  // Looked at first, so that a hopeless request disturbs nobody's account; counted last.
  const auto fits = [&] {
    return within(spilled[device_], device_limit,
                  share != 0 ? "the host memory told with KVSHIM_MEMINFO=virtual"
                             : "KVSHIM_SPILL_LIMIT") &&
           within(spilled_in_all, host_limit, "KVSHIM_HOST_LIMIT");
  };
  if (!fits() || !measured()) return false;
  if (add_within(spilled[device_], bytes_, device_limit)) {
    if (add_within(spilled_in_all, bytes_, host_limit)) return true;
    spilled[device_].fetch_sub(bytes_, std::memory_order_acq_rel);
  }
  fits();  // another thread was faster: by which limit
  to_place.fetch_sub(bytes_, std::memory_order_acq_rel);
  ledger_.drop();
  return false;
}

// Would the device have room? Where rules or pressure have sent the block here, the kind of large
// ones changes nothing; where the device's memory is told together with the host's, it was asked.
bool Promise::device_would_do() const noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  return options().rules.count == 0 && options().spill == SpillPolicy::threshold &&
         options().meminfo == MemInfo::real && uses_host(options().large) &&
         driver::cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && bytes_ <= free;
}

void Promise::say(LogLevel level, const char* when) const noexcept {
  // A program that tries again and again is told often enough.
  static constinit std::atomic<unsigned> said{0};
  const unsigned before = said.load(std::memory_order_relaxed);
  if (before < kRefusalsSaid) said.fetch_add(1, std::memory_order_relaxed);
  if (before >= kRefusalsSaid && level < LogLevel::debug) level = LogLevel::debug;
  log::print(level,
             "a {} block of {} bytes ({}) refused: {} leaves {} bytes ({}), {} are promised to "
             "other blocks, {} stay in reserve: {} bytes for it ({}){}",
             kind_, bytes_, format_size(bytes_).c_str(), budget_.limited_by,
             budget_.available + budget_.claimed,
             format_size(budget_.available + budget_.claimed).c_str(),
             format_size(budget_.claimed).c_str(), format_size(reserve_).c_str(),
             less(budget_.available, reserve_), when,
             device_would_do() ? ". KVSHIM_LARGE=vmm takes device memory" : "");
}

void Promise::refuse(LogLevel level) const noexcept {
  if (!granted_) say(level, "before a page was touched");
}

std::uint64_t Promise::next_piece() noexcept {
  if (bytes_ < kMeasureEvery) return left_;
  const bool first = left_ == bytes_;  // measured when it was promised
  if (!first) {
    budget_ = host_budget::measure(node_, nullptr, host_budget::Mapped::yes);
    reserve_ = reserve_of(budget_.available);
  }
  const std::uint64_t there = less(budget_.available, reserve_);
  const std::uint64_t piece = piece_of(left_, there);
  if (first || piece <= there) return piece;
  say(LogLevel::warn, "while it was placed");
  return 0;
}

void Promise::placed(std::uint64_t bytes) noexcept {
  ledger_.took(bytes);
  left_ -= bytes;
  to_place.fetch_sub(bytes, std::memory_order_acq_rel);
}

void returned(CUdevice device, std::uint64_t bytes) noexcept {
  if (!has_record(device) || bytes == 0) return;
  give_back(device, bytes);
  telemetry::counters.devices[device].spilled.remove(bytes);
}

Told told(CUdevice device) noexcept {
  const std::uint64_t total = told_total(device);
  if (total == 0) return {};
  if (!still_may_spill(device)) return {total, 0};
  // With KVSHIM_SPILL_LIMIT devices may be told of the same host memory, and others have used it.
  const std::uint64_t left = less(total, spilled[device].load(std::memory_order_acquire));
  const std::uint64_t in_all =
      less(host_budget_bytes(), spilled_in_all.load(std::memory_order_acquire));
  return {total, left < in_all ? left : in_all};
}

void forget() noexcept {
  Ledger::forget();
  to_place.store(0, std::memory_order_relaxed);
  unmeasured.store(0, std::memory_order_relaxed);
  spilled_in_all.store(0, std::memory_order_relaxed);
  host_bytes.store(kUndecided, std::memory_order_relaxed);
  for (int device = 0; device < driver::kMaxDevices; ++device) {
    spilled[device].store(0, std::memory_order_relaxed);
    told_bytes[device].bytes.store(kUndecided, std::memory_order_relaxed);
  }
}

}  // namespace kvshim::spill
