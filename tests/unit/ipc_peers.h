// Other processes for the tests of legacy IPC: forked children with a driver and a context of their
// own (KVSIM_FORK_OK), which is what a child is to kvshim. Each answers with one number.
#pragma once

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sharing/board.h"
#include "sharing/ipc.h"
#include "sharing/ipc_handle.h"
#include "sim_fixture.h"

inline constexpr long long kNotOurs = -1;    // the driver's word
inline constexpr long long kNoAnswer = -99;  // it died or took too long

inline long long get(CUipcMemHandle* out, CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  const bool ours = kvshim::sharing::get_mem_handle(out, ptr, &result);
  return ours ? static_cast<long long>(result) : kNotOurs;
}
inline long long open(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags = 1) {
  CUresult result = CUDA_SUCCESS;
  const bool ours = kvshim::sharing::open_mem_handle(out, handle, flags, &result);
  return ours ? static_cast<long long>(result) : kNotOurs;
}
inline long long close_opened(CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  const bool ours = kvshim::sharing::close_mem_handle(ptr, &result);
  return ours ? static_cast<long long>(result) : kNotOurs;
}
inline CUipcMemHandle handle_of(CUdeviceptr ptr) {
  CUipcMemHandle handle{};
  REQUIRE(get(&handle, ptr) == 0);
  return handle;
}
inline bool same(const CUipcMemHandle& a, const CUipcMemHandle& b) {
  return memcmp(&a, &b, sizeof a) == 0;
}
inline CUdeviceptr block(std::size_t bytes) {
  CUdeviceptr ptr = 0;
  REQUIRE(allocate(&ptr, bytes) == CUDA_SUCCESS);
  return ptr;
}
inline std::uint64_t word_at(CUdeviceptr ptr) {
  std::uint64_t word = 0;
  return kvsim_peek(ptr, &word, sizeof word) == 0 ? word : ~0ull;
}
inline void set_word(CUdeviceptr ptr, std::uint64_t word) {
  kvsim_poke(ptr, &word, sizeof word);
}

class Peer {
 public:
  using Body = std::function<long long()>;

  explicit Peer(const Body& body) {
    int up[2], down[2];
    REQUIRE(pipe(up) == 0);
    REQUIRE(pipe(down) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(up[0]);
      close(down[1]);
      in_child = down[0];
      out_child = up[1];
      CUcontext context = nullptr;
      if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
          cuCtxSetCurrent(context) != 0) {
        _exit(3);
      }
      tell(body());
      _exit(0);
    }
    close(up[1]);
    close(down[0]);
    from_ = up[0];
    to_ = down[1];
  }
  Peer(Peer&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), from_(other.from_), to_(other.to_) {}
  ~Peer() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(from_);
    close(to_);
  }

  template <typename T = long long>
  T hear(int ms = 5000) const {
    pollfd wait{from_, POLLIN, 0};
    T value{};
    if (poll(&wait, 1, ms) == 1 && read(from_, &value, sizeof value) == sizeof value) return value;
    if constexpr (std::is_same_v<T, long long>) return kNoAnswer;
    return T{};
  }
  void go() const { REQUIRE(write(to_, "g", 1) == 1); }  // what wait_for_go waits for
  int pid() const { return pid_; }

  // In the child.
  template <typename T>
  static void tell(const T& value) {
    if (write(out_child, &value, sizeof value) != sizeof value) _exit(4);
  }
  static void wait_for_go() {
    char c;
    if (read(in_child, &c, 1) != 1) _exit(5);
  }

 private:
  static inline int in_child = -1, out_child = -1;
  int pid_ = -1, from_ = -1, to_ = -1;
};

inline long long in_peer(const Peer::Body& body, int ms = 5000) {
  return Peer(body).hear(ms);
}

// In a child: from here on the kernel answers these system calls with `code`.
inline void forbid(const std::vector<int>& calls, int code) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(
        BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<unsigned>(code) & SECCOMP_RET_DATA)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    _exit(6);
  }
}
inline const std::vector<int> kPidfd = {434, 438};  // pidfd_open, pidfd_getfd

inline double seconds_since(std::uint64_t start_us) {
  return static_cast<double>(kvshim::clock_us() - start_us) / 1e6;
}

struct Sharing : Engine {
  Sharing() { kvshim::engine::active(); }  // registers the fork handler
};

// The handle with something else in it, and a right checksum.
template <typename Change>
inline CUipcMemHandle forged(const CUipcMemHandle& handle, Change change) {
  kvshim::sharing::IpcHandle inside;
  REQUIRE(kvshim::sharing::parse(handle, &inside) == kvshim::sharing::Origin::ours);
  change(inside);
  CUipcMemHandle result{};
  kvshim::sharing::seal(inside, &result);
  return result;
}

// Opens, reads the first word, writes the second one, closes. The word, or minus the code.
inline long long visit(const CUipcMemHandle& handle) {
  CUdeviceptr ptr = 0;
  if (const long long code = open(&ptr, handle)) return -code;
  const auto word = static_cast<long long>(word_at(ptr));
  set_word(ptr + 8, 77);
  const long long closed = close_opened(ptr);
  return closed == 0 ? word : -closed;
}

inline unsigned open_files(const char* like = "") {
  unsigned count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[256] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::string(target).find(like) != std::string::npos) ++count;
  }
  closedir(folder);
  return count;
}

// Nothing of an attempt stays: counts of the simulated driver, descriptors, records.
struct Traces {
  kvsim_counts counts{};
  unsigned files = open_files();
  Traces() { kvsim_get_counts(&counts); }
  bool operator==(const Traces& other) const {
    return counts.handles == other.counts.handles && counts.mappings == other.counts.mappings &&
           counts.reservations == other.counts.reservations && files == other.files;
  }
};

// An exporter of its own, whose handle `peer.hear<CUipcMemHandle>()` brings; then it waits.
inline Peer exporter(std::size_t bytes, std::size_t count = 1) {
  return Peer([=]() -> long long {
    for (std::size_t i = 0; i < count; ++i) {
      CUdeviceptr ptr = 0;
      CUipcMemHandle handle{};
      if (allocate(&ptr, bytes) != 0) _exit(7);
      set_word(ptr, 4711 + i);
      if (get(&handle, ptr) != 0) _exit(8);
      Peer::tell(handle);
    }
    Peer::wait_for_go();
    return 0;
  });
}
