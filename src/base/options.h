// Every KVSHIM_* option of the library, from one table (options.def). Read once, at the first CUDA
// call, and constant from then on. A bad value is refused loudly and the default is used.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kind.h"
#include "base/rules.h"

namespace kvshim {

enum class LogLevel : std::uint8_t { off, error, warn, info, debug };
enum class MemsetBy : std::uint8_t { cpu, device };
enum class Advice : std::uint8_t { automatic, none, host, device };
enum class AsyncPolicy : std::uint8_t { native, route };
enum class IpcPolicy : std::uint8_t { emulate, off };
enum class PeerPolicy : std::uint8_t { automatic, enabled, off };
enum class MemInfo : std::uint8_t { real, with_spill };
// automatic: never in an Options, parsing decides.
enum class SpillPolicy : std::uint8_t { automatic, threshold, pressure, both };
enum class Summary : std::uint8_t { automatic, off, on };
enum class HandleChoice : std::uint8_t { automatic, fabric, posix, none };

struct Options {
#define KVSHIM_OPTION(field, type, env, default_text, allowed, doc) type field;
#include "base/options.def"
#undef KVSHIM_OPTION
};

// Where an option's value came from, for the log and for docs.
enum class Origin : std::uint8_t { default_value, environment, refused };

struct OptionText {
  char text[96];
};

struct OptionInfo {
  const char* env;                                 // "KVSHIM_THRESHOLD"
  const char* type;                                // "size", "choice", "count", "rules", ...
  const char* default_text;                        // as one would write it in the environment
  const char* allowed;                             // "4G, 512MiB, 0, never"
  const char* doc;                                 // one or two sentences, plain text
  bool (*parse)(const char* text, Options* into);  // false: refused, *into untouched
  OptionText (*show)(const Options& from);         // as it was understood
};

// The table, in the order of options.def.
struct OptionTable {
  const OptionInfo* begin_;
  unsigned count;
  const OptionInfo* begin() const { return begin_; }
  const OptionInfo* end() const { return begin_ + count; }
};
OptionTable option_table();

// The process's options. The first call reads the environment (thread-safe, no heap); later calls
// cost one atomic load. Says nothing: log_options() does.
const Options& options();
Origin option_origin(unsigned index);

// The words of options, in either case and without blanks around them.
bool parse_kind(std::string_view text, Kind* kind);
bool same_word(std::string_view a, std::string_view b);

// For tests: parse a given environment instead of the process's. `lookup` returns NULL for unset.
void parse_options(const char* (*lookup)(const char* env), Options* into, Origin* origins);

// Says what was read, once a process: what log_mistakes() says, the threshold and options that were
// set (info), all of them (debug). For the moment when a process turns out to use CUDA memory: one
// that never does is told nothing.
void log_options();
// Refused values, unknown names, options that cannot do anything: once a process. Enough where a
// program only asks how much memory there is, for it plans by the answer.
void log_mistakes();

// After fork in the child nothing changes: options are inherited.

}  // namespace kvshim
