// The checks' side: registry, expectations, and running checks inside this process.
#include "contract.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "gpu.h"
#include "runner.h"

namespace contract {

Options options;

std::vector<Case>& all_cases() {
  static std::vector<Case> cases;
  return cases;
}

Sized small_size() {
  return {"small", 6000};
}
Sized medium_size() {
  return {"medium", 3 * kMiB + 512};
}
Sized large_size() {
  return {"large", options.large};
}

Registration::Registration(const char* group, const char* name, Traits traits, void (*body)()) {
  all_cases().push_back({group, name, traits, body});
}

Registration::Registration(const char* group, const char* name, Traits traits,
                           void (*body)(const Sized&)) {
  all_cases().push_back(
      {group, std::string(name) + " (small block)", traits, [body] { body(small_size()); }});
  all_cases().push_back(
      {group, std::string(name) + " (medium block)", traits, [body] { body(medium_size()); }});
  all_cases().push_back(
      {group, std::string(name) + " (large block)", traits, [body] { body(large_size()); }});
}

// ---- events -------------------------------------------------------------------------------------

static int report_fd = -1;
static std::mutex report_mutex;
static int failures = 0;

static void report(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  const std::lock_guard lock(report_mutex);
  if (report_fd >= 0 && write(report_fd, line.data(), line.size()) < 0) _exit(3);
  if (report_fd < 0) fputs(line.c_str(), stderr);  // a scene
}

void fail(const char* file, int line, const std::string& text) {
  const char* slash = std::strrchr(file, '/');
  {
    const std::lock_guard lock(report_mutex);
    if (++failures > 8) return;  // the rest of a loop says nothing new
  }
  report("fail " + std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " +
         text);
}

bool expect(bool holds, const char* text, const char* file, int line) {
  if (!holds) fail(file, line, std::string(text) + " does not hold");
  return holds;
}

std::string describe_result(int code) {
  const char* name = nullptr;
  if (cu.cuGetErrorName != nullptr) cu.cuGetErrorName(static_cast<CUresult>(code), &name);
  return std::to_string(code) + (name ? std::string(" ") + name : std::string());
}

bool gives(int wanted, int actual, const char* text, const char* file, int line) {
  if (actual == wanted) return true;
  fail(file, line,
       std::string(text) + " gives " + describe_result(actual) + ", expected " +
           describe_result(wanted));
  return false;
}

bool refuses(int actual, const char* text, const char* file, int line) {
  if (actual != 0) return true;
  fail(file, line, std::string(text) + " succeeds, expected an error");
  return false;
}

void stop() {
  throw StopCheck{};
}

void observe(const char* what, const std::string& value) {
  report("observe " + std::string(what) + " = " + value);
}
void observe(const char* what, long long value) {
  observe(what, std::to_string(value));
}
void observe_yes(const char* what, bool value) {
  observe(what, std::string(value ? "yes" : "no"));
}

// ---- where we are -------------------------------------------------------------------------------

static bool environment_is(const char* name, const char* value) {
  const char* found = std::getenv(name);
  return found != nullptr && std::strcmp(found, value) == 0;
}

bool preloaded() {
  static const bool answer =
      dlsym(RTLD_DEFAULT, "kvshim_version") != nullptr && !environment_is("KVSHIM_DISABLE", "1");
  return answer;
}

std::size_t option_large() {
  return options.large;
}

Memory memory_of(std::size_t bytes) {
  if (!preloaded()) return Memory::native;
  const bool large = bytes >= options.large && !environment_is("KVSHIM_THRESHOLD", "never");
  const char* name = large ? "KVSHIM_LARGE" : "KVSHIM_SMALL";
  if (environment_is(name, "native")) return Memory::native;
  if (environment_is(name, "vmm")) return Memory::vmm;
  if (environment_is(name, "managed")) return Memory::managed;
  if (environment_is(name, "host")) return bytes < 2 << 20 ? Memory::vmm : Memory::host;
  return large ? Memory::managed : Memory::vmm;
}

void on_thread(const std::function<void()>& body) {
  std::exception_ptr thrown;
  std::thread thread([&] {
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

// ---- running ------------------------------------------------------------------------------------

static void prepare(const Case& check) {
  if (has(check.traits, no_context)) return;
  use_primary();
  if (has(check.traits, needs_managed) &&
      device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, first_device()) == 0) {
    SKIP("needs concurrentManagedAccess");
  }
}

// What a check leaves behind would be blamed on the next one: work, an error, a current context.
static void settle(const Case& check) {
  if (!driver_is_initialised() || has(check.traits, isolated)) return;
  use_primary();
  GIVES(0, cu.cuCtxSynchronize());
}

static std::string run_one(const Case& check) {
  failures = 0;
  std::string skipped;
  try {
    prepare(check);
    check.body();
  } catch (const StopCheck&) {
  } catch (const SkipCheck& skip) {
    skipped = skip.reason;
  } catch (const std::exception& error) {
    fail("exception", 0, error.what());
  }
  try {
    settle(check);
  } catch (const StopCheck&) {
  }
  if (failures > 0) return "failed";
  return skipped.empty() ? "pass" : "skip " + skipped;
}

int run_checks(const std::vector<std::size_t>& indices, int fd) {
  report_fd = fd;
  if (const char* problem = resolve_driver(options.via == "dlsym")) {
    report("broken " + std::string(problem));
    return 1;
  }
  for (const std::size_t index : indices) {
    report("begin " + std::to_string(index));
    report(run_one(all_cases().at(index)));
  }
  report("done");
  return 0;
}

int probe_driver(int fd) {
  if (driver_library() == nullptr) {
    std::printf("no driver: %s\n", dlerror());
    return 77;
  }
  if (const char* problem = resolve_driver(options.via == "dlsym")) {
    std::printf("%s\n", problem);
    return 1;
  }
  int count = 0;
  const CUresult begun = cu.cuInit(0);
  if (begun != CUDA_SUCCESS || cu.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
    std::printf("no device: cuInit gives %s\n", describe_result(begun).c_str());
    return 77;
  }
  int version = 0;
  cu.cuDriverGetVersion(&version);
  std::printf("driver version %d, %d device(s), by %s, %s\n", version, count, options.via.c_str(),
              preloaded() ? "preloaded" : "bare");
  const auto byte = static_cast<unsigned char>(std::min(count, 255));
  return write(fd, &byte, 1) == 1 ? 0 : 1;
}

}  // namespace contract
