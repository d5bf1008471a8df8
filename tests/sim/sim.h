// How a test talks to the simulated driver. Link with -lcuda (the simulation), or look the names up
// with dlsym in libcuda.so.1. Everything here can also be asked for by environment, for programs
// that know nothing of a simulation; the variables are read at the first driver call.
//
//   KVSIM_DEVICES=2             number of devices
//   KVSIM_MEMORY=8G             bytes of each device (sparse; suffix K, M, G, T)
//   KVSIM_HOST_MEMORY=64G       bytes of the one host NUMA node, for VMM handles
//   KVSIM_GRANULARITY=2M        VMM granularity: 64K, 2M or 512M
//   KVSIM_DRIVER_VERSION=13000  cuDriverGetVersion and what cuGetProcAddress accepts
//   KVSIM_P2P=all               all, none, or pairs such as 0-1,0-2 (both ways) or 0>1 (one way)
//   KVSIM_NO_P2P=1              code of cuMemSetAccess for a device without P2P (1 or 217)
//   KVSIM_PEER_ACCESS=0         code of cuMemSetAccess for any other device than the owner
//   KVSIM_FABRIC=800            code of cuMemCreate with a FABRIC handle type; 0 allows it
//   KVSIM_FABRIC_EXPORT=0       code of the export of a FABRIC handle
//   KVSIM_HOST_NUMA_CRASH=1     SIGSEGV when cuMemCreate is asked for a host location
//   KVSIM_ATTR=0:102=0,0:89=!1  device:attribute=value; !code makes the query fail
//   KVSIM_FAIL=...              failures, see kvsim_fail
//   KVSIM_HIDE=cuMemCreate,...  names that cuGetProcAddress does not find (base or exact names).
//                               The limit: dlsym still finds them, they are exported
//   KVSIM_HOLD=a=b,...          kvsim_hold_until(a, b)
//   KVSIM_LOG=path              one line a call, appended; %p becomes the process id
//   KVSIM_FORK_OK=1             a forked child starts with a fresh driver instead of code 3
//
// Names are exact symbol names: cuMemAlloc_v2, cuMemsetD8Async_ptsz, cuMemCreate.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Back to what the environment says: failures, gates, hidden names, attributes, the log, violation
// counts and device settings. Allocations, contexts and streams stay; sticky errors go.
void kvsim_reset(void);

// ---- failures -------------------------------------------------------------------------------
// Makes calls fail. Grammar, comma separated: name[@key=value]:nth:code[:count[:after]]
//   cuMemCreate:1:2             the next cuMemCreate answers 2 and does nothing
//   cuMemMap:3:1:*              the third from now and every later one
//   cuMemRelease:1:999:1:after  does its work, then answers 999
//   cuMemCreate@handle=8:1:801:*     only requests for that handle type (1 POSIX FD, 8 FABRIC)
//   cuMemCreate@location=3:1:801     only that location type (1 device, 2 host, 3 host NUMA)
//   cuMemSetAccess@device=1:1:217:*  only where the (first) location is that device
// Also for cuMemExportToShareableHandle (handle). Returns 0, or -1 when the text is not understood.
int kvsim_fail(const char* rules);
// Removes all failures.
void kvsim_fail_none(void);
// Code of cuMemCreate and of the export for FABRIC; 0 allows it.
void kvsim_set_fabric(int create_code, int export_code);
// Raise SIGSEGV when cuMemCreate is asked for host memory.
void kvsim_set_host_numa_crash(int on);

// ---- devices --------------------------------------------------------------------------------
// Overrides an attribute; kvsim_fail_attribute makes its query answer `code`.
void kvsim_set_attribute(int device, int attribute, int value);
void kvsim_fail_attribute(int device, int attribute, int code);
// What fresh VMM memory holds: the driver promises no zeroes. 0 by default.
void kvsim_fill_new_memory(unsigned char value);
// Bytes of a device. Less than what is in use means that nothing more can be allocated.
void kvsim_set_memory(int device, size_t bytes);
void kvsim_set_granularity(size_t bytes);
void kvsim_set_driver_version(int version);
// Whether device `from` can reach memory of `to`.
void kvsim_set_p2p(int from, int to, int can);
// Code of cuMemSetAccess for a device without P2P, and for every foreign device (0: none).
void kvsim_set_peer_access(int no_p2p_code, int any_peer_code);
// Hides or shows a name for cuGetProcAddress.
void kvsim_hide(const char* name, int hidden);

// ---- gates ----------------------------------------------------------------------------------
// Calls of `name` block at their entry (10 s at most) until kvsim_release(name), or until a call of
// `other` has completed on whichever thread. Re-arming closes the gate again.
void kvsim_hold(const char* name);
void kvsim_hold_until(const char* name, const char* other);
// Opens the gate and removes it.
void kvsim_release(const char* name);
// How many calls wait at the gate now; how many have given up since the last reset.
unsigned kvsim_waiting(const char* name);
unsigned kvsim_gate_timeouts(void);

// ---- the log --------------------------------------------------------------------------------
// How often `name` was called since the log was cleared; NULL counts all calls.
uint64_t kvsim_log_count(const char* name);
void kvsim_log_clear(void);
// Lines in memory (the last 200,000), in order of completion, as in the file:
// "cuMemCreate size=2097152 type=1 location=1:0 handles=1 flags=1 -> 0".
// Copies a line; returns its length, or -1 when there is no such line.
size_t kvsim_log_size(void);
int kvsim_log_line(size_t index, char* text, size_t size);

// ---- what is alive --------------------------------------------------------------------------
typedef struct kvsim_counts {
  uint64_t handles;       // VMM handles that cuMemRelease has not given back
  uint64_t mappings;      // mapped ranges
  uint64_t reservations;  // address ranges
  uint64_t reserved_bytes;
  uint64_t mapped_bytes;
  uint64_t native_blocks;  // cuMemAlloc, cuMemAllocPitch
  uint64_t native_bytes;   // as requested
  uint64_t managed_blocks;
  uint64_t managed_bytes;
  uint64_t pool_blocks;   // cuMemAllocAsync
  uint64_t host_blocks;   // cuMemAllocHost, cuMemHostAlloc, registered ranges
  uint64_t ipc_blocks;    // opened from other processes
  uint64_t device_bytes;  // taken from all devices
  uint64_t streams;       // created and not destroyed, default streams included
  uint64_t contexts;      // active ones
} kvsim_counts;
void kvsim_get_counts(kvsim_counts* counts);
uint64_t kvsim_device_bytes(int device);
uint64_t kvsim_host_bytes(void);           // of the host NUMA node, by VMM handles
uint64_t kvsim_device_memory(int device);  // all it has; 0 where there is no such device

// Work whose memory was freed or unmapped under it; accesses that ended in 700.
uint64_t kvsim_violations(void);
uint64_t kvsim_illegal_accesses(void);
// Operations that streams have accepted and not finished.
uint64_t kvsim_work_in_flight(void);

// Managed pages (2 MiB) lie in host memory or on a device: driver/residency.h has the rules. What
// the kernels, memsets and copies (as they write) of a device have met since the last clearing, in
// bytes.
typedef struct kvsim_traffic {
  uint64_t fetched;   // managed pages that moved to the device
  uint64_t evicted;   // managed pages that went back to host memory for want of room
  uint64_t in_place;  // used in host memory without moving: managed, pinned or host-NUMA
  uint64_t local;     // found on the device, of whatever kind
} kvsim_traffic;
void kvsim_get_traffic(int device, kvsim_traffic* traffic);
void kvsim_clear_traffic(void);

// Bytes of [ptr, ptr + bytes) of managed memory that a device holds (a kernel, device memset or
// prefetch took the 2 MiB page), and that lie in host memory (touched, and not taken since).
size_t kvsim_resident_on_device(uint64_t ptr, size_t bytes);
size_t kvsim_resident_on_host(uint64_t ptr, size_t bytes);
// Reads or writes simulated memory of any kind past all checks. 0, or -1 when nothing is there.
int kvsim_peek(uint64_t ptr, void* into, size_t bytes);
int kvsim_poke(uint64_t ptr, const void* from, size_t bytes);
// 1 when the address belongs to memory of a device in whatever form, else 0.
int kvsim_knows(uint64_t ptr);
// Ordered list of devices that may access a VMM address: returns their number, fills `devices` up
// to `size`. -1 when nothing is mapped there.
int kvsim_access_list(uint64_t ptr, int* devices, int size);

#ifdef __cplusplus
}
#endif
