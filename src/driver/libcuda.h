// The real driver and the real dynamic-symbol lookup: where they are, not what to do with them.
// This folder is the only one that may look symbols up; everybody else asks here. No policy.
#pragma once

namespace kvshim::driver {

// The C library's own dlsym and dlvsym, never another interposer's and never ours. They see *us*
// as the caller, so RTLD_NEXT means "after kvshim". NULL and a pending dlerror() on failure.
void* real_dlsym(void* handle, const char* name) noexcept;
void* real_dlvsym(void* handle, const char* name, const char* version) noexcept;

// Their addresses, for a jump that keeps the original caller.
void* real_dlsym_address() noexcept;
void* real_dlvsym_address() noexcept;

// A function of the C library by its exported name, or NULL: for what older ones lack. No lock.
void* libc_function(const char* name) noexcept;

// The driver library if the process has loaded it by whatever way, NULL if not (yet). The handle is
// kept for ever, so that the driver stays loaded. Takes the loader's lock: for the look-up path
// only. dlerror() is clean afterwards.
void* handle() noexcept;

// Whether the driver is loaded, its function of exactly this exported name, or NULL, and whether a
// function of any exported name begins at this address. None takes the lock that the loader holds
// while it runs constructors (dladdr and dlsym do).
bool loaded() noexcept;
void* symbol(const char* name) noexcept;
bool exports(const void* function) noexcept;

// Loads the driver where the process has not; false where there is none. For a caller that kvshim
// itself works for (kvshim_malloc), never inside a call of the program's.
bool load() noexcept;

// The function of another loaded object, the first one whose file name begins with `object`; NULL
// where it is not loaded or has no such function. The same locks: none.
void* symbol_of(const char* object, const char* name) noexcept;

// True for code of the driver's own libraries (libcuda, libnvidia-*): they get the truth.
bool contains(const void* code) noexcept;
// The same by file name, without its folder.
bool is_driver_file(const char* file) noexcept;

}  // namespace kvshim::driver
