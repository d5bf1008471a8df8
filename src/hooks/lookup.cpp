// The rules of symbol lookup under kvshim. A program must not be able to tell that kvshim is there
// by what exists: a hook is handed out only where the lookup would have found the driver's
// function. Runs inside foreign constructors and allocator start-up: no heap, no lock, no
// constructor, and for every name but a hooked one nothing but a few character tests and a small
// table.
#include "hooks/lookup.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/options.h"
#include "driver/libcuda.h"

// The exported thunks under private names: taking the address of the exported ones could give
// another library's, because they can be interposed like everything exported.
extern "C" {
__attribute__((visibility("hidden"))) void kvshim_thunk_dlsym();
__attribute__((visibility("hidden"))) void kvshim_thunk_dlvsym();
}

namespace kvshim {
namespace {

// Name -> place in hook_table(), by open addressing. Zero is an empty slot.
constexpr std::size_t kSlots = 256;
constexpr std::size_t kMaxIndexed = 128;
constinit std::array<std::uint8_t, kSlots> g_slots{};
enum IndexState : int { kUnbuilt, kBuilding, kBuilt };
constinit std::atomic<int> g_index_state{kUnbuilt};

std::size_t slot_of(const char* name) {
  std::uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return (hash ^ (hash >> 16)) % kSlots;
}

// The first caller builds the index. Others do not wait for it (it may be a thread that a fork left
// behind): they search the table from end to end meanwhile.
bool index_ready(const HookEntry* entries, std::size_t count) {
  if (g_index_state.load(std::memory_order_acquire) == kBuilt) return true;
  int expected = kUnbuilt;
  if (count > kMaxIndexed || !g_index_state.compare_exchange_strong(expected, kBuilding)) {
    return false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t slot = slot_of(entries[i].name);
    while (g_slots[slot] != 0) slot = (slot + 1) % kSlots;
    g_slots[slot] = static_cast<std::uint8_t>(i + 1);
  }
  g_index_state.store(kBuilt, std::memory_order_release);
  return true;
}

// One lookup as the program wrote it: dlsym, or dlvsym with a version.
struct Request {
  void* handle;
  const char* name;
  const char* version;  // NULL: dlsym
  const void* caller;

  void* ask(void* in) const {
    return version == nullptr ? driver::real_dlsym(in, name)
                              : driver::real_dlvsym(in, name, version);
  }
  // As if kvshim were not there; the real function sees the program as its caller (RTLD_NEXT).
  Decision natural() const {
    return {nullptr,
            version == nullptr ? driver::real_dlsym_address() : driver::real_dlvsym_address()};
  }
};

Decision answer(void* address) {
  return {address, nullptr};
}

link_map* object_of(const void* address) {
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return nullptr;
  return map;
}

// A lookup found kvshim's own export, which is there whether or not a driver is. What would it have
// found without kvshim?
Decision behind_us(const Request& request, const HookEntry& entry, bool truth) {
  if (void* const next = request.ask(RTLD_NEXT)) return answer(truth ? next : entry.hook);
  // A plugin loaded RTLD_LOCAL sees the driver it is linked with through its own scope only.
  link_map* const caller = object_of(request.caller);
  if (request.handle == RTLD_DEFAULT && caller != nullptr) {
    void* const local = request.ask(caller);
    if (local != nullptr && local != entry.hook) {
      const bool drivers = local == driver::symbol(entry.name);
      return answer(drivers && !truth ? entry.hook : local);
    }
  }
  request.ask(RTLD_NEXT);  // again, so that dlerror() says that this name is undefined
  return answer(nullptr);
}

Decision decide_hooked(const Request& request, const HookEntry& entry) {
  const bool nvml = entry.name[0] == 'n';
  const bool truth =
      options().disable || driver::contains(request.caller) || (nvml && !options().nvml);
  const bool everywhere = request.handle == RTLD_DEFAULT;
  void* const found = request.ask(request.handle);
  // NULL keeps the one error message of the real lookup.
  if (found == nullptr) return everywhere ? request.natural() : answer(nullptr);
  if (found == entry.hook) {
    const bool asked_us = !everywhere && request.handle == object_of(&g_slots);
    return asked_us ? answer(found) : behind_us(request, entry, truth);
  }
  if (!truth && found == driver::symbol(entry.name)) return answer(entry.hook);
  // Another interposer's or a stub's function. RTLD_DEFAULT depends on the caller: ask as him.
  return everywhere ? request.natural() : answer(found);
}

// The program asks for the lookup functions themselves (loaders such as GLEW's and many plugins
// do).
Decision decide_lookup_function(const Request& request) {
  void* const found = request.ask(request.handle);
  if (found != nullptr && found == driver::real_dlsym_address()) {
    return answer(reinterpret_cast<void*>(&kvshim_thunk_dlsym));
  }
  if (found != nullptr && found == driver::real_dlvsym_address()) {
    return answer(reinterpret_cast<void*>(&kvshim_thunk_dlvsym));
  }
  return request.handle == RTLD_DEFAULT ? request.natural() : answer(found);
}

// True for code of an object that the loader searches before us: another preloaded interposer.
bool stands_before_us(const void* code) {
  const link_map* const ours = object_of(&g_slots);
  const link_map* map = object_of(code);
  while (map != nullptr && map != ours) map = map->l_next;
  return map != nullptr && object_of(code) != ours;
}

Decision decide(const Request& request) {
  const char* const name = request.name;
  if (name == nullptr) return request.natural();
  if (request.handle == RTLD_NEXT) {
    // An interposer before us that asks for the next dlsym by version would pass us by: ours has
    // none.
    const bool lookup = std::strcmp(name, "dlsym") == 0 || std::strcmp(name, "dlvsym") == 0;
    if (!lookup || request.version == nullptr || !stands_before_us(request.caller)) {
      return request.natural();
    }
    return answer(std::strcmp(name, "dlsym") == 0 ? reinterpret_cast<void*>(&kvshim_thunk_dlsym)
                                                  : reinterpret_cast<void*>(&kvshim_thunk_dlvsym));
  }
  if (name[0] == 'd' && name[1] == 'l') {
    const bool ours = std::strcmp(name, "dlsym") == 0 || std::strcmp(name, "dlvsym") == 0;
    if (ours && !driver::contains(request.caller)) return decide_lookup_function(request);
    return request.natural();
  }
  const bool cuda = name[0] == 'c' && name[1] == 'u';
  const bool nvml = name[0] == 'n' && name[1] == 'v';
  if (!cuda && !nvml) return request.natural();
  // "cu" alone also begins cudnnCreate, cublasCreate_v2, curl_easy_init, cuserid: exact names only.
  const HookEntry* const entry = find_hook(name);
  return entry == nullptr ? request.natural() : decide_hooked(request, *entry);
}

}  // namespace

const HookEntry* find_hook(const char* name) noexcept {
  const auto table = hook_table();
  const HookEntry* const entries = table.data();
  const std::size_t count = table.size();
  if (!index_ready(entries, count)) {
    for (std::size_t i = 0; i < count; ++i) {
      if (std::strcmp(entries[i].name, name) == 0) return &entries[i];
    }
    return nullptr;
  }
  for (std::size_t slot = slot_of(name); g_slots[slot] != 0; slot = (slot + 1) % kSlots) {
    const HookEntry& entry = entries[g_slots[slot] - 1];
    if (std::strcmp(entry.name, name) == 0) return &entry;
  }
  return nullptr;
}

}  // namespace kvshim

extern "C" {

__attribute__((visibility("hidden"), used)) kvshim::Decision kvshim_decide_dlsym(
    void* handle, const char* name, const void* caller) noexcept {
  return kvshim::decide({handle, name, nullptr, caller});
}

__attribute__((visibility("hidden"), used)) kvshim::Decision kvshim_decide_dlvsym(
    void* handle, const char* name, const char* version, const void* caller) noexcept {
  // A NULL version is the C library's to judge.
  if (version == nullptr) return {nullptr, kvshim::driver::real_dlvsym_address()};
  return kvshim::decide({handle, name, version, caller});
}

}  // extern "C"
