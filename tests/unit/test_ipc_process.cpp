// Legacy IPC and what the processes around it do: their descriptors, limits, threads, broken
// contexts. The exporter is a child of its own, whose server starts with its first handle.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <thread>

#include "ipc_peers.h"
#include "sharing/exporter.h"

using namespace kvshim;

TEST_CASE("the thread that waits for clients holds no descriptor number that is free") {
  const Sharing sharing;
  CHECK(in_peer([]() -> long long {
          const int lowest = dup(0);
          close(lowest);
          CUipcMemHandle handle{};
          if (get(&handle, block(4096)) != 0) return 1;
          usleep(100'000);  // it sleeps by now
          if (dup2(1, lowest) != lowest) return errno;
          close(lowest);
          CUdeviceptr out = 0;
          return in_peer([&]() -> long long {
            forbid(kPidfd, EPERM);
            return -open(&out, handle);  // it still answers
          });
        }) == 0);
}

TEST_CASE("a limit on the size of files: fewer blocks can have a handle, and nothing dies") {
  const Sharing sharing;
  for (const rlim_t limit : {rlim_t{1} << 20, rlim_t{8192}, rlim_t{4096}, rlim_t{0}}) {
    CAPTURE(limit);
    CHECK(in_peer([&]() -> long long {
            const std::size_t lines =
                limit <= 4096 ? 0 : (limit - 4096) / sizeof(sharing::Line) - 1;
            std::vector<CUdeviceptr> blocks(lines + 1);
            for (CUdeviceptr& one : blocks) one = block(256);
            set_word(blocks[0], 4711);
            rlimit before{};
            getrlimit(RLIMIT_FSIZE, &before);
            const rlimit small{limit, before.rlim_max};
            if (setrlimit(RLIMIT_FSIZE, &small) != 0) return 1;
            CUipcMemHandle first{}, handle{};
            for (std::size_t i = 0; i < lines; ++i) {
              if (get(i == 0 ? &first : &handle, blocks[i]) != 0) return 2;
            }
            if (get(&handle, blocks.back()) != CUDA_ERROR_OUT_OF_MEMORY) return 3;
            setrlimit(RLIMIT_FSIZE, &before);
            if (lines != 0 && in_peer([&] { return visit(first); }) != 4711) return 4;
            return release(blocks.back()) == CUDA_SUCCESS ? 0 : 5;
          }) == 0);
  }
}

TEST_CASE("a broken or destroyed context: its error, before anything else is looked at") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          CUdeviceptr opened = 0, out = 0;
          CUipcMemHandle mine{};
          const CUdeviceptr own = block(4096);
          if (open(&opened, handle) != 0 || get(&mine, own) != 0) return 1;
          CUcontext primary = nullptr, other = nullptr;
          cuCtxGetCurrent(&primary);
          if (cuCtxCreate(&other, nullptr, 0, 0) != 0) return 2;
          std::thread([&] { cuCtxDestroy(other); }).join();
          const auto all = [&](long long code) {
            return get(&mine, own) == code && open(&out, handle) == code &&
                   open(&out, mine) == code &&
                   open(nullptr, handle, 0) == CUDA_ERROR_INVALID_VALUE &&
                   close_opened(opened) == code;
          };
          if (!all(CUDA_ERROR_CONTEXT_IS_DESTROYED)) return 3;
          cuCtxSetCurrent(primary);
          if (get(&mine, own) != 0) return 4;
          if (cuMemsetD8(own, 1, 16) != 0) return 5;
          // A free under running work breaks a real context; here the simulation is told to.
          if (kvsim_fail("cuMemGetInfo_v2:1:700:*") != 0) return 6;
          if (!all(CUDA_ERROR_ILLEGAL_ADDRESS)) return 7;
          kvsim_fail_none();
          return close_opened(opened) == 0 && out == 0 ? 0 : 8;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE(
    "an exporter that executes another program has ended; one that lost its main thread lives") {
  const Sharing sharing;
  Peer executes([]() -> long long {
    CUipcMemHandle handle{};
    if (get(&handle, block(3 * kMiB2)) != 0) _exit(8);
    Peer::tell(handle);
    execl("/bin/sleep", "sleep", "20", nullptr);
    return 1;
  });
  const auto gone = executes.hear<CUipcMemHandle>();
  const std::string path = "/proc/" + std::to_string(executes.pid()) + "/comm";
  for (int i = 0; i < 1000; ++i) {
    char name[16] = {};
    const int file = open(path.c_str(), O_RDONLY);
    if (file >= 0 && read(file, name, sizeof name) > 0 && strncmp(name, "sleep", 5) == 0) i = 1000;
    if (file >= 0) close(file);
    usleep(1000);
  }
  CHECK(in_peer([&] { return visit(gone); }) == -CUDA_ERROR_INVALID_VALUE);

  Peer headless([]() -> long long {
    const CUdeviceptr ptr = block(3 * kMiB2);
    set_word(ptr, 4711);
    const CUipcMemHandle handle = handle_of(ptr);
    static const CUipcMemHandle shown = handle;
    std::thread([] {
      usleep(50'000);
      Peer::tell(shown);
      Peer::wait_for_go();
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // the main thread only
    return 1;
  });
  const auto alive = headless.hear<CUipcMemHandle>();
  CHECK(in_peer([&] { return visit(alive); }) == 4711);
  headless.go();
}

TEST_CASE("numbers that became the program's are neither closed nor given to peers") {
  const Sharing sharing;
  CHECK(in_peer([]() -> long long {
          const CUdeviceptr ptr = block(3 * kMiB2);
          const CUdeviceptr other = block(3 * kMiB2);
          CUipcMemHandle handle{}, second{};
          set_word(ptr, 4711);
          if (get(&handle, ptr) != 0 || get(&second, other) != 0) return 1;
          // All that kvshim keeps open: board, two mappings, listener.
          sharing::IpcHandle inside{};
          std::vector<int> mine;
          for (const CUipcMemHandle& one : {handle, second}) {
            sharing::Offer offer{};
            sharing::parse(one, &inside);
            if (!sharing::read_line(inside.board, inside.slot, inside.block, &offer)) return 2;
            mine.push_back(offer.fd);
          }
          mine.push_back(inside.board);
          for (int fd = 100; fd < 2048; ++fd) {
            struct stat status {};
            if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode)) mine.push_back(fd);
          }
          if (mine.size() != 4) return 3;
          // Now the numbers are the program's.
          const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
          for (const int fd : mine) dup2(file, fd);
          const auto lost = [&] {
            long long count = 0;
            for (const int fd : mine) count += fcntl(fd, F_GETFD) < 0;
            return count;
          };
          const auto child_lost = in_peer(lost);  // a forked child closes its parent's
          if (child_lost != 0) return 100 + child_lost;
          // In the socket's answer there would be the program's file.
          sharing::Offer offer{};
          int fd = -1;
          if (sharing::lend(inside.slot, inside.block, &offer, &fd)) {
            struct stat lent {
            }, null{};
            if (fstat(fd, &lent) != 0 || stat("/dev/null", &null) != 0) return 4;
            if (lent.st_ino == null.st_ino && lent.st_dev == null.st_dev) return 5;
            close(fd);
          }
          if (release(ptr) != CUDA_SUCCESS || release(other) != CUDA_SUCCESS) return 6;
          return lost();
        }) == 0);
}
