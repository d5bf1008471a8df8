// The mechanics behind sim.h: injected failures, gates and the log of calls.
#include "driver/control.h"

#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace sim {
namespace {
constexpr std::size_t kLogLines = 200000;  // the oldest go first
constexpr auto kGateLimit = std::chrono::seconds(10);

bool matches(const FailRule& rule, const char* name, const Subject& subject) {
  if (rule.name != name) return false;
  if (rule.key.empty()) return true;
  if (rule.key == "handle") {
    return (subject.handle_type & static_cast<unsigned>(rule.value)) != 0;
  }
  if (rule.key == "location") return subject.location_type == rule.value;
  return subject.device == rule.value;
}
}  // namespace

bool take_failure(const char* name, const Subject& subject, CUresult* code, bool* after_work) {
  Control& c = control();
  const std::lock_guard lock(c.mutex);
  for (FailRule& rule : c.failures) {
    if (rule.count == 0 || !matches(rule, name, subject)) continue;
    if (rule.skip > 0) {
      --rule.skip;
      continue;
    }
    if (rule.count > 0) --rule.count;
    *code = rule.code;
    *after_work = rule.after_work;
    return true;
  }
  return false;
}

void pass_gate(const char* name) {
  Control& c = control();
  std::unique_lock lock(c.mutex);
  if (c.gates.empty()) return;
  auto gate = c.gates.find(name);
  if (gate == c.gates.end()) return;
  ++gate->second.waiting;
  c.changed.notify_all();
  const bool opened = c.changed.wait_for(lock, kGateLimit, [&] {
    gate = c.gates.find(name);
    return gate == c.gates.end() || gate->second.open;
  });
  if (gate != c.gates.end()) --gate->second.waiting;
  if (!opened) ++c.gate_timeouts;
}

void record_call(const char* name, const std::string& text, CUresult result) {
  Control& c = control();
  const std::lock_guard lock(c.mutex);
  ++c.counts[name];
  c.log.push_back({name, text, result});
  if (c.log.size() > kLogLines) c.log.pop_front();
  if (c.log_fd >= 0) {
    char line[700];
    const int n = std::snprintf(line, sizeof(line), "%s%s%s -> %d\n", name, text.empty() ? "" : " ",
                                text.c_str(), static_cast<int>(result));
    const auto size =
        static_cast<std::size_t>(n) < sizeof(line) ? static_cast<std::size_t>(n) : sizeof(line) - 1;
    if (write(c.log_fd, line, size) < 0) c.log_fd = -1;
  }
  for (auto& [gated, gate] : c.gates) {
    if (!gate.until.empty() && gate.until == name) {
      gate.open = true;
      c.changed.notify_all();
    }
  }
}

void complain(const char* format, ...) {
  char line[512];
  const int head = std::snprintf(line, sizeof(line), "kvsim[%d]: ", static_cast<int>(getpid()));
  va_list list;
  va_start(list, format);
  std::vsnprintf(line + head, sizeof(line) - static_cast<std::size_t>(head) - 1, format, list);
  va_end(list);
  std::strcat(line, "\n");
  if (write(STDERR_FILENO, line, std::strlen(line)) < 0) return;
}

}  // namespace sim
