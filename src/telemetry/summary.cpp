// Formats the counters as one table, written in one piece; see summary.h. Reads atomics only: it
// runs in exit handlers, after foreign destructors.
#include "telemetry/summary.h"

#include <unistd.h>

#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "driver/device.h"
#include "driver/host_memory.h"
#include "telemetry/counters.h"
#include "telemetry/neighbours.h"
#include "telemetry/remedies.h"

namespace kvshim::telemetry {

namespace {

// Text in a fixed buffer; what does not fit is cut.
class Page {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    const std::size_t room = sizeof(text_) - 1 - length_;
    const auto end = fmt::format_to_n(text_ + length_, room, format, static_cast<Args&&>(args)...);
    length_ += end.size < room ? end.size : room;
    text_[length_++] = '\n';
    if (length_ >= sizeof(text_)) length_ = sizeof(text_) - 1;
  }
  void write() const { log::write_raw(text_, length_); }

 private:
  char text_[12288];
  std::size_t length_ = 0;
};

std::uint64_t get(const Count& count) {
  return count.load(std::memory_order_relaxed);
}

// Tenths of GB/s. Floating point would pull its formatting into the library.
std::uint64_t rate(std::uint64_t bytes, std::uint64_t us) {
  return us == 0 ? 0 : bytes / us / 100;
}

bool any_block() {
  for (const KindCounters& kind : counters.kinds) {
    if (get(kind.blocks) != 0) return true;
  }
  return false;
}

void kinds(Page& page) {
  const Options& chosen = options();
  if (!any_block()) {
    const bool refused = get(counters.out_of_memory) != 0;
    return page.line("  {}", refused ? "no block was made: every request was refused"
                                     : "no allocation went through kvshim");
  }
  page.line("  {:<8} {:>10} {:>10} {:>12} {:>12} {:>12}", "kind", "blocks", "live", "bytes", "live",
            "peak");
  for (unsigned index = 0; index < kKindCount; ++index) {
    const KindCounters& kind = counters.kinds[index];
    if (get(kind.blocks) == 0) continue;
    page.line("  {:<8} {:>10} {:>10} {:>12} {:>12} {:>12}", kind_name(static_cast<Kind>(index)),
              get(kind.blocks), get(kind.live), format_size(get(kind.bytes)).c_str(),
              format_size(get(kind.live_bytes)).c_str(), format_size(get(kind.peak_bytes)).c_str());
  }
  const char* unless = chosen.rules.count != 0 ? ", where no rule decides" : "";
  if (chosen.spill == SpillPolicy::pressure) {
    page.line("  no threshold (KVSHIM_SPILL=pressure): every block is {} until memory is short{}",
              kind_name(chosen.small), unless);
  } else if (chosen.threshold == kNever) {
    page.line("  no threshold: every block is {}{}", kind_name(chosen.small), unless);
  } else if (chosen.threshold == 0) {
    page.line("  the threshold is 0: every block is {}{}", kind_name(chosen.large), unless);
  } else {
    const std::uint64_t largest = get(counters.largest_small);
    page.line("  {} and more: {}; less: {}{}{}{}{}", format_size(chosen.threshold).c_str(),
              kind_name(chosen.large), kind_name(chosen.small),
              largest == 0 ? "" : " (largest of these: ",
              largest == 0 ? "" : format_size(largest).c_str(), largest == 0 ? "" : ")", unless);
  }
}

// Where the threshold alone decided, the lines above say all.
void reasons(Page& page) {
  const Rules& rules = options().rules;
  const auto line = [&](const char* why, const Amount& amount) {
    if (get(amount.calls) == 0) return;
    page.line("  why: {}: {} blocks, {}", why, get(amount.calls),
              format_size(get(amount.bytes)).c_str());
  };
  bool more_than_threshold = rules.count != 0 || options().dry_run;
  for (unsigned why = 0; why < kWhyCount; ++why) {
    if (static_cast<Why>(why) == Why::threshold) continue;
    more_than_threshold = more_than_threshold || get(counters.by[why].calls) != 0;
  }
  if (!more_than_threshold) return;
  for (unsigned index = 0; index < rules.count; ++index) {
    char name[288];
    line(format_into(name, "rule {}, {}", index + 1, describe(rules.list[index]).text),
         counters.by_rule[index]);
  }
  for (unsigned why = 0; why < kWhyCount; ++why) {
    const bool no_threshold =
        static_cast<Why>(why) == Why::threshold && options().spill == SpillPolicy::pressure;
    line(no_threshold ? "device memory first" : why_name(static_cast<Why>(why)), counters.by[why]);
  }
  for (unsigned index = 0; index < rules.count; ++index) {
    if (get(counters.by_rule[index].calls) != 0) continue;
    page.line("  rule {}, {}, made no block", index + 1, describe(rules.list[index]).text);
  }
}

void times(Page& page) {
  if (get(counters.zero_bytes) != 0) {
    page.line("  placed and zeroed by the CPU: {} in {} ms ({}.{} GB/s)",
              format_size(get(counters.zero_bytes)).c_str(), get(counters.zero_us) / 1000,
              rate(get(counters.zero_bytes), get(counters.zero_us)) / 10,
              rate(get(counters.zero_bytes), get(counters.zero_us)) % 10);
  }
  if (get(counters.memset_calls) != 0) {
    page.line("  memset of managed blocks by the CPU: {} calls, {} in {} ms",
              get(counters.memset_calls), format_size(get(counters.memset_bytes)).c_str(),
              get(counters.memset_us) / 1000);
  }
}

void devices(Page& page) {
  driver::for_each_used_device([&](const driver::Device& device) {
    const CUresult refusal = device.fabric_refusal();
    if (!device.vmm()) {
      page.line("  device {}: no vmm memory; blocks are native", device.ordinal());
    } else if (refusal != CUDA_SUCCESS) {
      page.line("  device {}: vmm blocks: {} (fabric was tried: {} {})", device.ordinal(),
                driver::handle_step_name(device.step()), static_cast<int>(refusal),
                device.fabric_refusal_name());
    } else {
      page.line("  device {}: vmm blocks: {}{}", device.ordinal(),
                driver::handle_step_name(device.step()),
                device.fabric_attribute() ? "" : " (the device has no fabric handles)");
    }
    if (const driver::HostMemory* host = driver::used_host_memory(device.ordinal())) {
      page.line("  device {}: host blocks: NUMA node {}, {}", device.ordinal(), host->node(),
                driver::handle_step_name(host->step()));
    }
    if (!device.managed())
      page.line("  device {}: no managed memory for CPU and GPU at once", device.ordinal());
  });
}

// The device's own figures, whatever the program was told.
void memory(Page& page) {
  for (int index = 0; index < driver::kMaxDevices; ++index) {
    const DeviceCounters& device = counters.devices[index];
    if (get(device.spilled.blocks) != 0) {
      page.line("  device {}: in host memory {} now, {} at most", index,
                format_size(get(device.spilled.live_bytes)).c_str(),
                format_size(get(device.spilled.peak_bytes)).c_str());
    }
    const driver::Device* known = driver::used_device(index);
    std::uint64_t total = get(device.real_total);
    if (total == 0 && known != nullptr) total = known->total_bytes();
    if (total == 0) continue;
    const bool asked = get(device.real_total) != 0;
    page.line("  device {}: has {}{}{}", index, format_size(total).c_str(),
              asked ? ", free when last asked: " : "",
              asked ? format_size(get(device.real_free)).c_str() : "");
    if (get(device.told) == 0) continue;
    page.line("    the program was told of {} more", format_size(get(device.told)).c_str());
  }
}

void shared(Page& page) {
  const std::uint64_t refused = get(counters.ipc_refused);
  if (get(counters.ipc_exports) + get(counters.ipc_imports) + refused == 0) return;
  page.line("  legacy IPC: {} blocks given out, {} opened from other processes, {} refused",
            get(counters.ipc_exports), get(counters.ipc_imports), refused);
}

void say_remedies(Page& page, Way way) {
  for_each_remedy(
      way, [](void* to, const char* text) { static_cast<Page*>(to)->line("    {}", text); }, &page);
}

void bypassed(Page& page) {
  if (get(counters.own_vmm.calls) != 0) {
    page.line("  bypassed kvshim: {} in {} cuMemCreate calls of the program itself",
              format_size(get(counters.own_vmm.bytes)).c_str(), get(counters.own_vmm.calls));
    say_remedies(page, Way::own_vmm);
  }
  if (get(counters.pool.calls) != 0) {
    page.line(
        "  bypassed kvshim: {} in {} stream-ordered allocations, {} of them ({}) at or over "
        "the threshold",
        format_size(get(counters.pool.bytes)).c_str(), get(counters.pool.calls),
        get(counters.pool_large.calls), format_size(get(counters.pool_large.bytes)).c_str());
    if (get(counters.pool_large.calls) != 0 && options().async == AsyncPolicy::native) {
      page.line("    KVSHIM_ASYNC=route gives those to kvshim");
    }
    say_remedies(page, Way::pool);
  }
  if (get(counters.own_managed.calls) != 0) {
    page.line("  bypassed kvshim: {} in {} cuMemAllocManaged calls of the program itself",
              format_size(get(counters.own_managed.bytes)).c_str(),
              get(counters.own_managed.calls));
    say_remedies(page, Way::own_managed);
  }
  if (get(counters.unseen.calls) != 0) {
    page.line("  bypassed kvshim: {} in {} cuMemAlloc blocks that were freed and never seen before",
              format_size(get(counters.unseen.bytes)).c_str(), get(counters.unseen.calls));
    page.line("    a plugin loaded with RTLD_DEEPBIND, or code with a loader of its own");
  }
}

void neighbours(Page& page) {
  const Neighbour* other = nullptr;
  for (unsigned index = 0; (other = neighbour(index)) != nullptr; ++index) {
    const Where where = find_object(other->ending);
    if (where == Where::absent) continue;
    const bool after = where == Where::after_us;
    page.line("  neighbour {} ({}), loaded {} kvshim: {}", other->name, other->ending + 1,
              after ? "after" : "before", other->does);
    page.line("    {}", after && other->after != nullptr ? other->after : other->before);
  }
}

void troubles(Page& page) {
  if (get(counters.fallbacks) != 0) {
    page.line("  {} blocks became another kind than meant (unsupported or out of memory)",
              get(counters.fallbacks));
  }
  if (get(counters.out_of_memory) != 0) {
    page.line("  {} requests answered with out of memory; cached memory given back {} times",
              get(counters.out_of_memory), get(counters.trims));
  }
}

}  // namespace

void write_summary() {
  if (!anything_happened()) return;
  Page page;
  const bool dry = options().dry_run;
  page.line("kvshim[{}] summary{}", getpid(),
            dry ? " of a dry run: nothing was moved; blocks stand where they would have gone" : "");
  kinds(page);
  reasons(page);
  times(page);
  if (!dry) devices(page);
  memory(page);
  shared(page);
  bypassed(page);
  neighbours(page);
  troubles(page);
  page.write();
}

}  // namespace kvshim::telemetry
