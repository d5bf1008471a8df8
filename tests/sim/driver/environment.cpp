// KVSIM_* variables. The grammars are documented in sim.h.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "driver/control.h"
#include "driver/state.h"

namespace sim {
namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::size_t to = std::min(text.find(by, from), text.size());
    if (to > from) parts.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

bool parse_number(const std::string& text, std::int64_t* value) {
  char* end = nullptr;
  *value = std::strtoll(text.c_str(), &end, 0);
  return !text.empty() && *end == '\0';
}

bool parse_failure(const std::string& text, FailRule* rule) {
  const auto parts = split(text, ':');
  std::int64_t nth = 1;
  std::int64_t code = 0;
  if (parts.size() < 3 || parts.size() > 5) return false;
  if (!parse_number(parts[1], &nth) || !parse_number(parts[2], &code) || nth < 1) return false;
  rule->skip = nth - 1;
  rule->code = static_cast<CUresult>(code);
  if (parts.size() > 3) {
    if (parts[3] == "*") {
      rule->count = -1;
    } else if (!parse_number(parts[3], &rule->count)) {
      return false;
    }
  }
  if (parts.size() > 4) {
    if (parts[4] != "after") return false;
    rule->after_work = true;
  }
  const std::size_t at = parts[0].find('@');
  rule->name = parts[0].substr(0, at);
  if (at == std::string::npos) return true;
  const auto condition = split(parts[0].substr(at + 1), '=');
  std::int64_t value = 0;
  if (condition.size() != 2 || !parse_number(condition[1], &value)) return false;
  rule->key = condition[0];
  rule->value = static_cast<int>(value);
  return rule->key == "handle" || rule->key == "location" || rule->key == "device";
}

const char* value_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void number_from(const char* name, std::int64_t* value) {
  const char* text = value_of(name);
  if (text != nullptr && !parse_number(text, value)) complain("%s=%s is not a number", name, text);
}

void code_from(const char* name, CUresult* code) {
  std::int64_t value = *code;
  number_from(name, &value);
  *code = static_cast<CUresult>(value);
}

void bytes_from(const char* name, std::size_t* bytes) {
  const char* text = value_of(name);
  if (text != nullptr && !parse_bytes(text, bytes)) complain("%s=%s is not a size", name, text);
}

void open_log(Control& c) {
  const char* pattern = value_of("KVSIM_LOG");
  if (pattern == nullptr) return;
  std::string path = pattern;
  const std::size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 700);
  if (high >= 0) close(fd);
  c.log_fd = high >= 0 ? high : fd;
  if (c.log_fd < 0) complain("cannot write KVSIM_LOG=%s", path.c_str());
}

}  // namespace

bool parse_bytes(const char* text, std::size_t* bytes) {
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text, &end, 0);
  unsigned shift = 0;
  switch (*end) {
    case 'k':
    case 'K':
      shift = 10;
      break;
    case 'm':
    case 'M':
      shift = 20;
      break;
    case 'g':
    case 'G':
      shift = 30;
      break;
    case 't':
    case 'T':
      shift = 40;
      break;
    case '\0':
      break;
    default:
      return false;
  }
  if (end == text || (shift != 0 && end[1] != '\0' && std::strcmp(end + 1, "iB") != 0))
    return false;
  *bytes = static_cast<std::size_t>(number) << shift;
  return true;
}

bool parse_failures(const char* text) {
  for (const std::string& part : split(text, ',')) {
    FailRule rule;
    if (!parse_failure(part, &rule)) return false;
    control().failures.push_back(rule);
  }
  return true;
}

bool parse_attributes(const char* text) {
  for (const std::string& part : split(text, ',')) {
    const auto sides = split(part, '=');
    if (sides.size() != 2) return false;
    const auto left = split(sides[0], ':');
    std::int64_t device = 0;
    std::int64_t attribute = 0;
    std::int64_t value = 0;
    const bool error = sides[1][0] == '!';
    if (left.size() != 2 || !parse_number(left[0], &device) || !parse_number(left[1], &attribute) ||
        !parse_number(error ? sides[1].substr(1) : sides[1], &value))
      return false;
    const std::pair<int, int> key(static_cast<int>(device), static_cast<int>(attribute));
    if (error) {
      control().attribute_errors[key] = static_cast<CUresult>(value);
    } else {
      control().attributes[key] = static_cast<int>(value);
    }
  }
  return true;
}

bool parse_p2p(const char* text) {
  auto& p2p = state().p2p;
  const std::size_t n = p2p.size();
  const bool all = std::strcmp(text, "all") == 0;
  for (std::size_t i = 0; i < n; ++i) p2p[i].assign(n, all);
  if (all || std::strcmp(text, "none") == 0) return true;
  for (const std::string& part : split(text, ',')) {
    unsigned a = 0;
    unsigned b = 0;
    if (std::sscanf(part.c_str(), "%u-%u", &a, &b) == 2 && a < n && b < n) {
      p2p[a][b] = p2p[b][a] = true;
    } else if (std::sscanf(part.c_str(), "%u>%u", &a, &b) == 2 && a < n && b < n) {
      p2p[a][b] = true;
    } else {
      return false;
    }
  }
  return true;
}

void read_environment() {
  State& s = state();
  Control& c = control();
  std::int64_t count = 2;
  number_from("KVSIM_DEVICES", &count);
  std::size_t memory = std::size_t{8} << 30;
  bytes_from("KVSIM_MEMORY", &memory);
  bytes_from("KVSIM_HOST_MEMORY", &s.host_memory);
  bytes_from("KVSIM_GRANULARITY", &s.granularity);
  std::int64_t version = s.driver_version;
  number_from("KVSIM_DRIVER_VERSION", &version);
  s.driver_version = static_cast<int>(version);
  if (s.devices.empty()) {
    const auto n = static_cast<std::size_t>(count < 0 ? 0 : count > 16 ? 16 : count);
    s.devices = std::vector<Device>(n);
    s.p2p.assign(n, std::vector<bool>(n, true));
  }
  for (Device& d : s.devices) d.memory = memory;
  code_from("KVSIM_FABRIC", &c.fabric_create);
  code_from("KVSIM_FABRIC_EXPORT", &c.fabric_export);
  code_from("KVSIM_PEER_ACCESS", &c.peer_set_access);
  code_from("KVSIM_NO_P2P", &c.no_p2p);
  c.host_numa_crash = value_of("KVSIM_HOST_NUMA_CRASH") != nullptr;
  const struct {
    const char* name;
    bool (*parse)(const char*);
  } lists[] = {
      {"KVSIM_FAIL", parse_failures}, {"KVSIM_ATTR", parse_attributes}, {"KVSIM_P2P", parse_p2p}};
  for (const auto& list : lists) {
    const char* text = value_of(list.name);
    if (text != nullptr && !list.parse(text)) complain("%s=%s: not understood", list.name, text);
  }
  if (const char* text = value_of("KVSIM_HIDE")) {
    for (const std::string& name : split(text, ',')) c.hidden.insert(name);
  }
  if (const char* text = value_of("KVSIM_HOLD")) {
    for (const std::string& part : split(text, ',')) {
      const std::size_t at = part.find('=');
      Gate gate;
      if (at != std::string::npos) gate.until = part.substr(at + 1);
      c.gates[part.substr(0, at)] = gate;
    }
  }
  if (c.log_fd < 0) open_log(c);
}

}  // namespace sim
