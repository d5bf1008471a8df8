// How a check of the contract is written: CHECK_CASE names one thing that a host program may rely
// on, EXPECT/GIVES/CALL say what must hold, observe() records what nobody has measured yet.
// A check describes NVIDIA's driver. It must hold on the bare driver, and with libkvshim.so
// preloaded too; a check that differs there says so in its traits and states both answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace contract {

// ---- traits -------------------------------------------------------------------------------------

struct Traits {
  unsigned flags = 0;
  const char* differs_because = nullptr;  // bare and preloaded have different right answers
  const char* open_because = nullptr;     // preloaded it may fail for now: a skip, said aloud
};

inline constexpr Traits plain{};
inline constexpr Traits isolated{1};       // runs in a process of its own
inline constexpr Traits needs2{2};         // two GPUs
inline constexpr Traits needs_managed{4};  // concurrentManagedAccess
inline constexpr Traits observes{8};     // records answers; preloaded they must equal the bare ones
inline constexpr Traits no_context{16};  // the check itself decides about cuInit and contexts

constexpr Traits differs(const char* reason) {
  return {0, reason, nullptr};
}
constexpr Traits open(const char* reason) {
  return {0, nullptr, reason};
}
constexpr Traits operator|(Traits a, Traits b) {
  return {a.flags | b.flags, a.differs_because ? a.differs_because : b.differs_because,
          a.open_because ? a.open_because : b.open_because};
}
constexpr bool has(Traits traits, Traits one) {
  return (traits.flags & one.flags) != 0;
}

// ---- registration -------------------------------------------------------------------------------

struct Case {
  const char* group;
  std::string name;
  Traits traits;
  std::function<void()> body;
};
std::vector<Case>& all_cases();

// One check runs over these three when it is written with CHECK_CASE_SIZES: preloaded, each is
// another kind of memory or another way to get it.
struct Sized {
  const char* name;   // "small", "medium", "large"
  std::size_t bytes;  // a multiple of 4
};
Sized small_size();   // shares a page with others
Sized medium_size();  // pages of its own, under the threshold
Sized large_size();   // --size-large: at or over the threshold when preloaded

struct Registration {
  Registration(const char* group, const char* name, Traits traits, void (*body)());
  Registration(const char* group, const char* name, Traits traits, void (*body)(const Sized&));
};

#define CONTRACT_JOIN2(a, b) a##b
#define CONTRACT_JOIN(a, b) CONTRACT_JOIN2(a, b)
#define CONTRACT_CASE(group, name, traits, function, parameters)                             \
  static void function parameters;                                                           \
  static const contract::Registration CONTRACT_JOIN(function, _entry){group, name, (traits), \
                                                                      &function};            \
  static void function parameters
#define CHECK_CASE(group, name, traits) \
  CONTRACT_CASE(group, name, traits, CONTRACT_JOIN(check_at_, __LINE__), ())
#define CHECK_CASE_SIZES(group, name, traits)                            \
  CONTRACT_CASE(group, name, traits, CONTRACT_JOIN(check_at_, __LINE__), \
                ([[maybe_unused]] const contract::Sized& size))

// ---- what a check can say -----------------------------------------------------------------------

struct StopCheck {};  // thrown by REQUIRE and CALL after the failure was recorded
struct SkipCheck {
  std::string reason;
};

void fail(const char* file, int line, const std::string& text);
bool expect(bool holds, const char* text, const char* file, int line);
std::string describe_result(int code);  // "2 CUDA_ERROR_OUT_OF_MEMORY"

template <typename T>
std::string show(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return std::to_string(reinterpret_cast<std::uintptr_t>(value));
  } else {
    return std::to_string(value);
  }
}

template <typename A, typename B>
bool expect_equal(const A& actual, const B& wanted, const char* text, const char* file, int line) {
  bool same = false;
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, bool> &&
                !std::is_same_v<B, bool>) {
    same = static_cast<std::uint64_t>(actual) == static_cast<std::uint64_t>(wanted);
  } else {
    same = actual == wanted;
  }
  if (!same) {
    fail(file, line, std::string(text) + " is " + show(actual) + ", expected " + show(wanted));
  }
  return same;
}

bool gives(int wanted, int actual, const char* text, const char* file, int line);
bool refuses(int actual, const char* text, const char* file, int line);
[[noreturn]] void stop();

#define EXPECT(condition) (void)contract::expect((condition), #condition, __FILE__, __LINE__)
#define EXPECT_EQ(actual, wanted) \
  (void)contract::expect_equal((actual), (wanted), #actual, __FILE__, __LINE__)
#define REQUIRE(condition) \
  (contract::expect((condition), #condition, __FILE__, __LINE__) ? void() : contract::stop())
// A driver call that must give exactly this code, one that must give some error, and one without
// whose success the check cannot go on.
#define GIVES(code, call) (void)contract::gives((code), (call), #call, __FILE__, __LINE__)
#define REFUSES(call) (void)contract::refuses((call), #call, __FILE__, __LINE__)
#define CALL(call) \
  (contract::gives(0, (call), #call, __FILE__, __LINE__) ? void() : contract::stop())
#define SKIP(reason)          \
  throw contract::SkipCheck { \
    reason                    \
  }

// A fact that only a real driver can settle. Printed by --observe. Preloaded, the check runs once
// more in a bare process, and what was observed there is what is expected here. So: codes, yes or
// no, sizes; never an address or a time.
void observe(const char* what, long long value);
void observe(const char* what, const std::string& value);
void observe_yes(const char* what, bool value);

// ---- where we are -------------------------------------------------------------------------------

bool preloaded();            // libkvshim.so is in this process and not disabled
std::size_t option_large();  // --size-large

enum class Memory { native, vmm, managed, host };
// The kind of memory behind a block of this size: native when bare; preloaded, what the options
// KVSHIM_SMALL and KVSHIM_LARGE in the environment say.
Memory memory_of(std::size_t bytes);

// Runs the function on a new thread, which has no context, and waits. Failures and REQUIRE work.
void on_thread(const std::function<void()>& body);

// ---- other processes ----------------------------------------------------------------------------

// A scene is a small program inside this one, run as its own process: `contract --scene NAME`.
using Scene = int (*)(const std::vector<std::string>& arguments);
struct SceneRegistration {
  SceneRegistration(const char* name, Scene scene);
};
#define SCENE(name, function)                                                                \
  static int function([[maybe_unused]] const std::vector<std::string>& args);                \
  static const contract::SceneRegistration CONTRACT_JOIN(function, _scene){name, &function}; \
  static int function([[maybe_unused]] const std::vector<std::string>& args)

struct Outcome {
  bool hung = false;
  int signal = 0;      // 0: it exited
  int code = -1;       // exit code
  std::string output;  // what it wrote to standard output
};
std::string show(const Outcome& outcome);

class Process {
 public:
  explicit Process(const std::string& scene, const std::vector<std::string>& arguments = {});
  ~Process();  // kills what is still running
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void say(const std::string& line);  // to its standard input
  std::string hear(double seconds);   // one line of its standard output; "" after so long
  void kill_with(int signal);
  Outcome wait(double seconds);  // reads the rest; kills it when the time is over

 private:
  int pid_ = -1, in_ = -1, out_ = -1;
  std::string buffer_;
};
Outcome run_scene(const std::string& scene, const std::vector<std::string>& arguments = {},
                  double seconds = 15);

}  // namespace contract
