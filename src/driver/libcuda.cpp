// Finds the C library's dlsym without calling dlsym, and the driver without loading it.
//
// Why the C library's symbol table is read by hand: kvshim exports dlsym and dlvsym, and the loader
// lets an unversioned definition satisfy a versioned reference, so even a reference to
// dlvsym@GLIBC_2.2.5 from this library would be bound to kvshim's own. No heap, no lock of ours.
#include "driver/libcuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace kvshim::driver {
namespace {

constinit std::atomic<void*> g_dlsym{nullptr};
constinit std::atomic<void*> g_dlvsym{nullptr};
constinit std::atomic<void*> g_libcuda{nullptr};
constinit std::atomic<bool> g_present{false};

// What a lookup needs of one loaded object's dynamic section.
struct Symbols {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const std::uint32_t* gnu_hash = nullptr;
  const ElfW(Half) * versions = nullptr;
  const char* soname = nullptr;
};

Symbols symbols_of(const link_map* map) {
  Symbols found;
  ElfW(Xword) soname = 0;
  bool has_soname = false;
  for (const ElfW(Dyn)* dyn = map->l_ld; dyn->d_tag != DT_NULL; ++dyn) {
    // glibc relocates these pointers in place; where a loader does not, they are still offsets.
    const ElfW(Addr) value = dyn->d_un.d_ptr;
    const ElfW(Addr) address = value < map->l_addr ? value + map->l_addr : value;
    switch (dyn->d_tag) {
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        found.strings = reinterpret_cast<const char*>(address);
        break;
      case DT_GNU_HASH:
        found.gnu_hash = reinterpret_cast<const std::uint32_t*>(address);
        break;
      case DT_VERSYM:
        found.versions = reinterpret_cast<const ElfW(Half)*>(address);
        break;
      case DT_SONAME:
        soname = dyn->d_un.d_val;
        has_soname = true;
        break;
      default:
        break;
    }
  }
  if (has_soname && found.strings != nullptr) found.soname = found.strings + soname;
  return found;
}

std::uint32_t gnu_hash(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

// The defined function `name`; its default version where there are several (glibc 2.34 and later
// carry dlsym twice, one function under two versions).
void* find_function(const link_map* map, const Symbols& in, const char* name) {
  if (in.symbols == nullptr || in.strings == nullptr || in.gnu_hash == nullptr) return nullptr;
  // Layout: bucket count, index of the first hashed symbol, filter words, shift; filter, buckets,
  // chains. The last entry of a chain has bit 0 set.
  const std::uint32_t bucket_count = in.gnu_hash[0];
  const std::uint32_t first = in.gnu_hash[1];
  const std::uint32_t filter_words = in.gnu_hash[2];
  if (bucket_count == 0) return nullptr;
  const std::uint32_t* buckets =
      in.gnu_hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
  const std::uint32_t* chains = buckets + bucket_count;
  const std::uint32_t hash = gnu_hash(name);
  void* older = nullptr;
  std::uint32_t index = buckets[hash % bucket_count];
  if (index < first) return nullptr;
  for (;; ++index) {
    const std::uint32_t entry = chains[index - first];
    const ElfW(Sym)& symbol = in.symbols[index];
    if ((entry | 1u) == (hash | 1u) && symbol.st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        std::strcmp(in.strings + symbol.st_name, name) == 0) {
      void* const address = reinterpret_cast<void*>(map->l_addr + symbol.st_value);
      const bool hidden = in.versions != nullptr && (in.versions[index] & 0x8000u) != 0;
      if (!hidden) return address;
      older = address;
    }
    if ((entry & 1u) != 0) return older;
  }
}

// Whether a defined function begins at exactly this address.
bool has_function_at(const link_map* map, const Symbols& in, const void* address) {
  if (in.symbols == nullptr || in.gnu_hash == nullptr) return false;
  const std::uint32_t bucket_count = in.gnu_hash[0];
  const std::uint32_t first = in.gnu_hash[1];
  const std::uint32_t* const buckets =
      in.gnu_hash + 4 + in.gnu_hash[2] * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
  const std::uint32_t* const chains = buckets + bucket_count;
  for (std::uint32_t bucket = 0; bucket < bucket_count; ++bucket) {
    std::uint32_t index = buckets[bucket];
    if (index < first) continue;
    do {
      const ElfW(Sym)& symbol = in.symbols[index];
      if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
          reinterpret_cast<const void*>(map->l_addr + symbol.st_value) == address) {
        return true;
      }
    } while ((chains[index++ - first] & 1u) == 0);
  }
  return false;
}

// libc.so.6 holds both functions since glibc 2.34, libdl.so.2 before. Objects of program start
// stand first in the list and are never unloaded, so no lock is needed to walk that far.
void* find_in_libc(const char* name) {
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(&g_libcuda, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) {
    return nullptr;
  }
  while (map->l_prev != nullptr) map = map->l_prev;
  for (; map != nullptr; map = map->l_next) {
    const Symbols symbols = symbols_of(map);
    if (symbols.soname == nullptr) continue;
    if (std::strcmp(symbols.soname, "libc.so.6") != 0 &&
        std::strcmp(symbols.soname, "libdl.so.2") != 0) {
      continue;
    }
    if (void* const found = find_function(map, symbols, name)) return found;
  }
  return nullptr;
}

// Several threads may come here first; all of them find the same address.
void* cached(std::atomic<void*>& cache, const char* name) {
  void* address = cache.load(std::memory_order_relaxed);
  if (address == nullptr) {
    address = find_in_libc(name);
    cache.store(address, std::memory_order_relaxed);
  }
  return address;
}

bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

}  // namespace

void* libc_function(const char* name) noexcept {
  return find_in_libc(name);
}

void* real_dlsym_address() noexcept {
  return cached(g_dlsym, "dlsym");
}
void* real_dlvsym_address() noexcept {
  return cached(g_dlvsym, "dlvsym");
}

void* real_dlsym(void* handle, const char* name) noexcept {
  using Function = void* (*)(void*, const char*);
  void* const real = real_dlsym_address();
  return real == nullptr ? nullptr : reinterpret_cast<Function>(real)(handle, name);
}

void* real_dlvsym(void* handle, const char* name, const char* version) noexcept {
  using Function = void* (*)(void*, const char*, const char*);
  void* const real = real_dlvsym_address();
  return real == nullptr ? nullptr : reinterpret_cast<Function>(real)(handle, name, version);
}

void* handle() noexcept {
  void* library = g_libcuda.load(std::memory_order_acquire);
  if (library != nullptr) return library;
  // NOLOAD finds it linked, global, or local inside Python, where RTLD_NEXT and RTLD_DEFAULT do
  // not. Only in a look-up of the program's own: it takes the loader's lock, as that look-up does.
  library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) {
    dlerror();  // our probe's failure is not the program's business
    return nullptr;
  }
  g_libcuda.store(library, std::memory_order_release);
  return library;
}

namespace {

// dl_iterate_phdr does not take the lock that dlopen holds while it runs constructors: a thread
// that a constructor waits for may make its first CUDA call. Not for what is asked again and again:
// loaded_object.h says why.
struct Search {
  const char* object;   // how its file name begins
  const char* name;     // what to look for by name, or NULL
  const void* address;  // or by address, or NULL
  void* found;
  bool loaded;
};

int visit(dl_phdr_info* info, std::size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  if (!starts_with(slash == nullptr ? info->dlpi_name : slash + 1, search->object)) return 0;
  search->loaded = true;
  link_map map{};
  map.l_addr = info->dlpi_addr;
  for (int index = 0; index < info->dlpi_phnum; ++index) {
    if (info->dlpi_phdr[index].p_type == PT_DYNAMIC) {
      map.l_ld = reinterpret_cast<ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[index].p_vaddr);
    }
  }
  if (map.l_ld == nullptr) return 1;
  if (search->name != nullptr) {
    search->found = find_function(&map, symbols_of(&map), search->name);
  } else if (search->address != nullptr &&
             has_function_at(&map, symbols_of(&map), search->address)) {
    search->found = const_cast<void*>(search->address);
  }
  return 1;
}

}  // namespace

bool loaded() noexcept {
  Search search{"libcuda.so", nullptr, nullptr, nullptr, false};
  dl_iterate_phdr(visit, &search);
  return search.loaded;
}

bool load() noexcept {
  // Remembered, as its functions are: this is asked at every call of kvshim_malloc.
  if (g_present.load(std::memory_order_acquire)) return true;
  if (!loaded() && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    dlerror();
    return false;
  }
  g_present.store(true, std::memory_order_release);
  return true;
}

void* symbol(const char* name) noexcept {
  return symbol_of(starts_with(name, "nvml") ? "libnvidia-ml.so" : "libcuda.so", name);
}

void* symbol_of(const char* object, const char* name) noexcept {
  Search search{object, name, nullptr, nullptr, false};
  dl_iterate_phdr(visit, &search);
  return search.found;
}

bool exports(const void* function) noexcept {
  Search search{"libcuda.so", nullptr, function, nullptr, false};
  dl_iterate_phdr(visit, &search);
  return search.found != nullptr;
}

bool contains(const void* code) noexcept {
  Dl_info info;
  if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  return is_driver_file(slash == nullptr ? info.dli_fname : slash + 1);
}

bool is_driver_file(const char* file) noexcept {
  // Not "libcuda": libcudart is the program's side of the border.
  return starts_with(file, "libcuda.so") || starts_with(file, "libcudadebugger.so") ||
         starts_with(file, "libnvidia-");
}

}  // namespace kvshim::driver
