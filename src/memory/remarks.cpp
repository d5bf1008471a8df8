// See remarks.h.
#include "memory/remarks.h"

#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "memory/budget/spill.h"
#include "memory/routing/route.h"

namespace kvshim {

void call_out_large(std::uint64_t bytes, const driver::Device& device, Kind kind) noexcept {
  const std::uint64_t total = device.total_bytes();
  if (total == 0 || bytes <= total / 5 * 3) return;
  static constinit log::Once said;
  if (!said.first()) return;
  // With host memory told as the device's a program that plans takes such blocks on purpose; by a
  // rule or as host memory the user does.
  const bool chosen = options().meminfo == MemInfo::with_spill || options().rules.count != 0 ||
                      options().large == Kind::host;
  log::print(
      chosen ? LogLevel::info : LogLevel::warn,
      "one block of {} is {}% of device {} and {}: if a framework preallocates, all of its memory "
      "is of one kind now. JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false, or a smaller "
      "XLA_PYTHON_CLIENT_MEM_FRACTION; TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true. KVSHIM_CEILING "
      "keeps such blocks out of host memory",
      format_size(bytes).c_str(), bytes / (total / 100), device.ordinal(), kind_name(kind));
}

void call_out_refusal(std::uint64_t bytes, const driver::Device& device, Kind kind) noexcept {
  if (uses_host(kind) || may_spill(bytes, options())) return;
  const std::uint64_t unused = spill::told(device.ordinal()).free;
  static constinit log::Once said;
  if (unused == 0 || !said.first()) return;
  const bool by_ceiling = bytes >= options().ceiling;
  log::warn(
      "a {} block of {} refused: device {} has no room for it. {} of host memory that the program "
      "was "
      "told of are unused, for {}",
      kind_name(kind), format_size(bytes).c_str(), device.ordinal(), format_size(unused).c_str(),
      by_ceiling ? "KVSHIM_CEILING keeps it out of them"
                 : "KVSHIM_SPILL=threshold keeps it out of them: KVSHIM_SPILL=both lets it in");
}

}  // namespace kvshim
