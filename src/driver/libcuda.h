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

// The driver library if the process has loaded it by whatever way, NULL if not (yet). kvshim never
// loads it. The handle is kept for ever, so that the driver stays loaded. Takes the loader's lock:
// for the look-up path only. dlerror() is clean afterwards.
void* handle() noexcept;

// Whether the driver is loaded, its function of exactly this exported name, or NULL, and whether a
// function of any exported name begins at this address. None takes the lock that the loader holds
// while it runs constructors (dladdr and dlsym do).
bool loaded() noexcept;
void* symbol(const char* name) noexcept;
bool exports(const void* function) noexcept;

// True for code of the driver's own libraries (libcuda, libnvidia-*): they get the truth.
bool contains(const void* code) noexcept;

}  // namespace kvshim::driver
