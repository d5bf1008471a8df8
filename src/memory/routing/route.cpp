// See route.h. Without rules a route is two comparisons.
#include "memory/routing/route.h"

#include "base/format.h"
#include "memory/routing/caller.h"
#include "memory/routing/tally.h"

namespace kvshim {

namespace {

Kind below_ceiling(const Options& options) noexcept {
  return uses_host(options.small) ? Kind::vmm : options.small;
}

unsigned match(std::uint64_t bytes, int device, const Options& options,
               const tally::Before& before) noexcept {
  // In the order of Subject. This block is the next one.
  const std::uint64_t values[kSubjectCount] = {bytes,
                                               static_cast<std::uint64_t>(device),
                                               before.process.blocks + 1,
                                               before.device.blocks + 1,
                                               before.process.bytes,
                                               before.device.bytes};
  char name[caller::kNameMax];
  return first_match(options.rules, values, [&] { return caller::library(name); });
}

}  // namespace

WhyText why_text(const Route& route) noexcept {
  WhyText result{};
  if (route.why == Why::rule) {
    format_into(result.text, "rule {}", route.rule);
  } else {
    format_into(result.text, "{}", why_name(route.why));
  }
  return result;
}

bool reachable(Kind kind, const Options& options) noexcept {
  if (options.dry_run) return false;
  // May a block of `least` bytes and more be of this kind, for the ceiling's sake?
  const auto from = [&](std::uint64_t least) {
    return !uses_host(kind) || least < options.ceiling;
  };
  if (!from(0)) return false;
  if (options.spill != SpillPolicy::threshold && kind == spill_kind(options)) return true;
  if (options.ceiling != kNever && kind == below_ceiling(options)) return true;
  for (unsigned index = 0; index < options.rules.count; ++index) {
    const Rule& rule = options.rules.list[index];
    if (rule.kind == kind && from(rule.ranges[static_cast<unsigned>(Subject::size)].from))
      return true;
    if (matches_all(rule)) return false;  // nothing comes behind it
  }
  const bool threshold = options.threshold != kNever && options.spill != SpillPolicy::pressure;
  if (threshold && kind == options.large && from(options.threshold)) return true;
  // Blocks that share a page of the device are no host blocks (make.h).
  const std::uint64_t smallest = kind == Kind::host ? 2 * kMiB : 0;
  return kind == options.small && (!threshold || options.threshold > smallest) && from(smallest);
}

unsigned matching_rule(std::uint64_t bytes, int device, const Options& options) noexcept {
  return options.rules.count == 0 ? 0 : match(bytes, device, options, tally::look(device));
}

Route route(std::uint64_t bytes, int device, const Options& options) noexcept {
  Route chosen;
  unsigned rule = 0;
  if (options.rules.count != 0) {
    rule = match(bytes, device, options, tally::reserve(device, bytes));
  }
  if (rule != 0) {
    chosen = {options.rules.list[rule - 1].kind, Why::rule, static_cast<std::uint8_t>(rule)};
  } else {
    chosen.kind = over_threshold(bytes, options) ? options.large : options.small;
  }
  if (bytes >= options.ceiling && uses_host(chosen.kind)) {
    chosen = {below_ceiling(options), Why::ceiling, 0};
  }
  return chosen;
}

}  // namespace kvshim
