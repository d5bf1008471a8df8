// What the case programs share. CASE(...) is a check that runs without kvshim; it starts scenes,
// which are pieces of a host program, as processes of their own: bare, or with kvshim preloaded, on
// the simulated driver, and judges how they ended, what they said and what the driver was asked.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cases {

using Environment = std::vector<std::pair<std::string, std::string>>;

enum How { kBare, kPreloaded };

struct Result {
  pid_t pid = 0;
  int code = -1;   // exit code, -1 when a signal ended it
  int signal = 0;  // the signal that did
  bool hung = false;
  double seconds = 0;
  std::string out;  // what it said
  std::string err;
  std::vector<std::string> calls;  // the driver's log, in order of completion

  bool ended(int wanted) const { return !hung && signal == 0 && code == wanted; }
  // Calls of a function, or those of which a piece of text is part ("name bytes=5 ").
  std::vector<std::string> calls_of(const std::string& start) const;
  std::size_t count(const std::string& start) const { return calls_of(start).size(); }
  // Lines of standard error that hold the text.
  std::vector<std::string> lines(const std::string& text) const;
  std::string show() const;
};

// Starts this program again as `scene` (another program's, where one is named) and waits for its
// end, 20 seconds at most. The environment is this program's and `more`.
Result run(How how, const std::string& scene, const Environment& more = {},
           const std::string& program = "/proc/self/exe");
// In a scene: replaces this process, or a child of it, by another scene.
[[noreturn]] void exec_scene(const char* scene);

// kvshim's account at exit, as far as a test asks for it.
struct Summary {
  struct Kind {
    unsigned long blocks = 0, live = 0;
    std::string bytes, live_bytes, peak_bytes;
  };
  int tables = 0;  // how many summaries there are in the text; the last one is below
  pid_t pid = 0;
  std::map<std::string, Kind> kinds;
  std::string text;
  bool says(const std::string& piece) const { return text.find(piece) != std::string::npos; }
};
Summary summary_of(const std::string& text);

// The lines in which two texts differ, side by side; empty where they are equal.
std::string difference(const std::string& bare, const std::string& preloaded);
std::string read_file(const std::string& path);
// An empty folder that goes when the program ends.
const std::string& work_folder();

// Prints and counts a failure; nothing stops.
void fail(const char* file, int line, const std::string& what);
void note(const std::string& text);
// Says aloud why the running case cannot be shown on this machine.
void skip(const std::string& why);

struct Register {
  Register(const char* name, void (*body)());
  Register(const char* name, int (*body)());
};

}  // namespace cases

#define CASES_JOIN2(a, b) a##b
#define CASES_JOIN(a, b) CASES_JOIN2(a, b)
#define CASE(name)                                                                                 \
  static void CASES_JOIN(case_, __LINE__)();                                                       \
  static const cases::Register CASES_JOIN(register_, __LINE__)(name, CASES_JOIN(case_, __LINE__)); \
  static void CASES_JOIN(case_, __LINE__)()
// The body returns the exit code; failed checks in it make that 99.
#define SCENE(name)                                                                           \
  static int scene_##name();                                                                  \
  static const cases::Register CASES_JOIN(register_, __LINE__)("scene " #name, scene_##name); \
  static int scene_##name()

#define EXPECT(condition) \
  ((condition) ? void() : cases::fail(__FILE__, __LINE__, "expected " #condition))
// The same with what was found.
#define EXPECT_IN(condition, found) \
  ((condition)                      \
       ? void()                     \
       : cases::fail(__FILE__, __LINE__, std::string("expected " #condition "\n") + (found)))
#define CODE(call, wanted)                                            \
  do {                                                                \
    const long code_ = static_cast<long>(call);                       \
    if (code_ != (wanted))                                            \
      cases::fail(__FILE__, __LINE__,                                 \
                  #call " gave " + std::to_string(code_) + ", not " + \
                      std::to_string(static_cast<long>(wanted)));     \
  } while (0)
#define OK(call) CODE(call, 0)
