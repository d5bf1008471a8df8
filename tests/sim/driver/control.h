// What a test has asked of the simulator: failures, gates, hidden names, attribute values, and the
// log of calls. Its own mutex, because gates are waited for outside the driver's lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver/cuda_abi.h"

namespace sim {

// What a call is about, so that a failure can be asked for one kind of request only.
struct Subject {
  unsigned handle_type = 0;
  int location_type = 0;
  int device = -1;
};

struct FailRule {
  std::string name;
  std::string key;  // "", "handle", "location" or "device"
  int value = 0;
  std::int64_t skip = 0;   // matching calls before the first failure
  std::int64_t count = 1;  // how many fail; negative: for ever
  CUresult code = CUDA_SUCCESS;
  bool after_work = false;  // do the work, then answer `code`
};

struct Gate {
  std::string until;  // empty: until kvsim_release
  bool open = false;
  unsigned waiting = 0;
};

struct LogLine {
  std::string name;
  std::string text;
  CUresult result;
};

struct Control {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<FailRule> failures;
  std::map<std::string, Gate> gates;
  std::set<std::string> hidden;
  std::map<std::pair<int, int>, int> attributes;  // (device, attribute) -> value
  std::map<std::pair<int, int>, CUresult> attribute_errors;
  std::deque<LogLine> log;
  std::map<std::string, std::uint64_t> counts;
  int log_fd = -1;
  CUresult fabric_create = CUDA_ERROR_NOT_PERMITTED;
  CUresult fabric_export = CUDA_SUCCESS;
  CUresult peer_set_access = CUDA_SUCCESS;  // besides the P2P matrix
  CUresult no_p2p = CUDA_ERROR_INVALID_VALUE;
  bool host_numa_crash = false;
  unsigned gate_timeouts = 0;
};

Control& control();
// Reads KVSIM_* into the control and the state. At first use and at kvsim_reset.
void read_environment();

// The failure to inject into this call, if any. *after_work: only once the work is done.
bool take_failure(const char* name, const Subject& subject, CUresult* code, bool* after_work);
// Blocks while the call's gate is closed (10 s at most).
void pass_gate(const char* name);
// Records a finished call and opens the gates that wait for it.
void record_call(const char* name, const std::string& text, CUresult result);
// Says something that a person debugging a test wants to see.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Parsers of the environment's grammars (see sim.h). False: not understood.
bool parse_failures(const char* text);
bool parse_attributes(const char* text);
bool parse_p2p(const char* text);
bool parse_bytes(const char* text, std::size_t* bytes);

}  // namespace sim
