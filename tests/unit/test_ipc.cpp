// Legacy IPC between processes: handles, the ways to a block, what is refused, and failures.
#include <errno.h>
#include <sys/resource.h>

#include <atomic>
#include <string>
#include <thread>

#include <dirent.h>

#include "ipc_peers.h"

using namespace kvshim;
using sharing::IpcHandle;

namespace {

constexpr std::size_t kSizes[] = {4096, 3 * kMiB2 + 512};  // in a slab; with a handle of its own

}  // namespace

TEST_CASE(
    "a handle is the same every time and for every address of its block, and its block's only") {
  const Sharing sharing;
  for (const std::size_t bytes : kSizes) {
    const CUdeviceptr ptr = block(bytes);
    const CUdeviceptr other = block(bytes);
    const CUipcMemHandle first = handle_of(ptr);
    for (std::size_t i = 0; i < 1000; ++i)
      REQUIRE(same(first, handle_of(ptr + i * (bytes / 1000))));
    CHECK_FALSE(same(first, handle_of(other)));
    REQUIRE(release(ptr) == CUDA_SUCCESS);
    CUipcMemHandle none{};
    CHECK(get(&none, ptr) == kNotOurs);
    const CUdeviceptr again = block(bytes);
    CHECK_FALSE(same(first, handle_of(again)));
    CHECK(release(again) == CUDA_SUCCESS);
    CHECK(release(other) == CUDA_SUCCESS);
  }
}

TEST_CASE("memory that is no vmm block of this process is left to the driver") {
  const Sharing sharing;
  CUipcMemHandle handle{};
  CUdeviceptr native = 0;
  REQUIRE(cuMemAlloc(&native, 4096) == CUDA_SUCCESS);
  CHECK(get(&handle, native) == kNotOurs);
  CHECK(get(&handle, 16) == kNotOurs);
  const CUdeviceptr managed = block(std::size_t{64} << 20);
  CHECK(get(&handle, managed) == kNotOurs);
  CHECK(release(managed) == CUDA_SUCCESS);
  const CUdeviceptr ours = block(4096);
  CHECK(get(nullptr, ours) == kNotOurs);
  REQUIRE(cuIpcGetMemHandle(&handle, native) == CUDA_SUCCESS);
  CUdeviceptr out = 0;
  CHECK(open(&out, handle) == kNotOurs);
  cuCtxSetCurrent(nullptr);
  CHECK(get(&handle, ours) == CUDA_ERROR_INVALID_CONTEXT);
  cuCtxSetCurrent(sharing.context);
  CHECK(release(ours) == CUDA_SUCCESS);
  CHECK(cuMemFree(native) == CUDA_SUCCESS);
}

TEST_CASE(
    "a peer reads and writes the block; opens are counted; it can be neither freed nor exported") {
  const Sharing sharing;
  for (const std::size_t bytes : kSizes) {
    const CUdeviceptr neighbour = block(bytes);
    const CUdeviceptr ptr = block(bytes);
    set_word(ptr, 4711);
    set_word(neighbour, 1);
    const CUipcMemHandle handle = handle_of(ptr);
    CHECK(in_peer([&]() -> long long {
            if (visit(handle) != 4711) return 14;  // the spares are there from here on
            const Traces before;
            CUdeviceptr first = 0, second = 0;
            CUipcMemHandle none{};
            engine::BlockView view;
            if (open(&first, handle) != 0 || open(&second, handle) != 0) return 1;
            if (first != second || word_at(first) != 4711) return 2;
            if (word_at(first + 8) != 77) return 15;
            if (engine::find(first + bytes - 1, &view) != Place::block) return 3;
            if (view.base != first || view.bytes != bytes || !view.opened) return 4;
            if (engine::find(first + bytes, &view) == Place::block) return 5;
            if (release(first) != -1 || get(&none, first) != kNotOurs) return 6;
            if (close_opened(first + 8) != kNotOurs || close_opened(first) != 0) return 7;
            if (word_at(first) != 4711) return 8;
            if (close_opened(first) != 0 || close_opened(first) != kNotOurs) return 9;
            if (engine::find(first, &view) != Place::foreign) return 10;
            if (kvsim_violations() != 0) return 11;
            if (!(Traces() == before)) return 12;
            return visit(handle) == 4711 ? 0 : 13;  // and once more from the start
          }) == 0);
    CHECK(word_at(ptr + 8) == 77);
    CHECK(word_at(neighbour) == 1);
    CHECK(release(ptr) == CUDA_SUCCESS);
    CHECK(release(neighbour) == CUDA_SUCCESS);
  }
}

TEST_CASE("wrong arguments have native's codes") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(4096);
  const CUipcMemHandle handle = handle_of(ptr);
  CUdeviceptr out = 5;
  CHECK(open(&out, handle) == CUDA_ERROR_INVALID_CONTEXT);  // the exporter itself
  CHECK(in_peer([&] { return open(&out, handle, 0); }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(in_peer([&] { return open(nullptr, handle); }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(in_peer([&] {
          cuCtxSetCurrent(nullptr);
          return open(&out, handle);
        }) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(out == 5);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a handle changed in any byte, or forged in any field, opens nothing") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  std::vector<CUipcMemHandle> bad;
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    bad.push_back(handle);
    bad.back().reserved[i] = static_cast<char>(bad.back().reserved[i] ^ 0x41);
    bad.push_back(handle);  // truncated
    memset(bad.back().reserved + i, 0, sizeof handle.reserved - i);
  }
  const int dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const auto forge = [&](auto change) { bad.push_back(forged(handle, change)); };
  forge([](IpcHandle& h) { ++h.boot; });
  forge([](IpcHandle& h) { ++h.start; });  // a recycled pid
  forge([](IpcHandle& h) { ++h.nonce; });
  forge([](IpcHandle& h) { ++h.block; });
  forge([](IpcHandle& h) { h.block = 0; });
  forge([](IpcHandle& h) { ++h.slot; });
  forge([](IpcHandle& h) { h.slot = 0; });
  forge([](IpcHandle& h) { h.slot = ~0u; });
  for (int fd = -1; fd < 3; ++fd) {
    forge([&](IpcHandle& h) { h.board = fd, h.block ^= 1; });
  }
  forge([&](IpcHandle& h) { h.pid = static_cast<unsigned>(dead), h.start = 0, ++h.nonce; });
  forge([&](IpcHandle& h) {
    h.pid = 1, h.start = 0;
    h.nonce ^= 1;
  });
  forge([&](IpcHandle& h) { h.pid = 0x7fffffff, h.nonce ^= 1; });
  forge([&](IpcHandle& h) { h.pid = 0, h.start = 0, h.nonce ^= 1; });
  CHECK(in_peer([&]() -> long long {
          const std::uint64_t start = clock_us();
          const Traces before;
          for (std::size_t i = 0; i < bad.size(); ++i) {
            CUdeviceptr out = 0;
            const long long code = open(&out, bad[i]);
            if (code == 0 || out != 0) return static_cast<long long>(i) + 1;
          }
          if (!(Traces() == before)) return 1000;
          if (seconds_since(start) > 1) return 1001;
          return visit(handle) == 4711 ? 0 : 1002;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE(
    "a freed block is refused, also when its descriptor's number and its line are used again") {
  for (const bool by_socket : {false, true}) {
    const Sharing sharing;
    for (const std::size_t bytes : kSizes) {
      const CUdeviceptr first = block(bytes);
      const CUipcMemHandle old = handle_of(first);
      REQUIRE(release(first) == CUDA_SUCCESS);
      const auto refused = [&]() -> long long {
        if (by_socket) forbid(kPidfd, EPERM);
        CUdeviceptr out = 0;
        return open(&out, old);
      };
      CHECK(in_peer(refused) == CUDA_ERROR_INVALID_VALUE);
      const CUdeviceptr second = block(bytes);
      IpcHandle a{}, b{};
      sharing::parse(old, &a);
      sharing::parse(handle_of(second), &b);
      CHECK(a.slot == b.slot);
      CHECK(in_peer(refused) == CUDA_ERROR_INVALID_VALUE);
      CHECK(release(second) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("a block freed in stream order loses its handle at once") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  CUresult result = CUDA_SUCCESS;
  REQUIRE(engine::free_async(ptr, nullptr, &result));
  REQUIRE(result == CUDA_SUCCESS);
  CHECK(in_peer([&] { return visit(handle); }) == -CUDA_ERROR_INVALID_VALUE);
  cuCtxSynchronize();
  retired::reap(nullptr);
}

TEST_CASE("no block that comes later shares the page of a small block with a handle") {
  const Sharing sharing;
  const auto page = [](CUdeviceptr ptr) { return ptr / kMiB2; };
  const CUdeviceptr neighbour = block(512);
  const CUdeviceptr shown = block(4096);
  REQUIRE(page(neighbour) == page(shown));
  handle_of(shown);
  const CUdeviceptr later = block(512);
  CHECK(page(later) != page(shown));
  // Room that comes free there is not filled again, and counts as taken.
  std::size_t free_before = 0;
  std::size_t free_after = 0;
  REQUIRE(engine::mem_info(&free_before, nullptr) == CUDA_SUCCESS);
  CHECK(release(neighbour) == CUDA_SUCCESS);
  REQUIRE(engine::mem_info(&free_after, nullptr) == CUDA_SUCCESS);
  CHECK(free_after == free_before);
  const CUdeviceptr again = block(512);
  CHECK(page(again) != page(shown));
  // The page itself goes with its last block.
  const auto handles = sharing.alive().handles;
  CHECK(release(shown) == CUDA_SUCCESS);
  CHECK(sharing.alive().handles == handles - 1);
  CHECK(release(later) == CUDA_SUCCESS);
  CHECK(release(again) == CUDA_SUCCESS);
  engine::trim();
  CHECK(sharing.alive().handles == 0);

  SECTION("of a full page too") {
    const CUdeviceptr first = block(kMiB2 / 2);
    const CUdeviceptr second = block(kMiB2 / 2);
    REQUIRE(page(first) == page(second));
    handle_of(first);
    CHECK(release(second) == CUDA_SUCCESS);
    const CUdeviceptr third = block(512);
    CHECK(page(third) != page(first));
    CHECK(release(first) == CUDA_SUCCESS);
    CHECK(release(third) == CUDA_SUCCESS);
  }
}

TEST_CASE("descriptors: one for a mapping, none when its last block is freed") {
  const Sharing sharing;
  CUdeviceptr keeps = block(4096);
  handle_of(keeps);  // board and socket are there
  REQUIRE(release(keeps) == CUDA_SUCCESS);
  const unsigned before = open_files();
  CUdeviceptr small[10];
  for (CUdeviceptr& one : small) one = block(4096);
  for (const CUdeviceptr one : small) handle_of(one);
  CHECK(open_files() == before + 1);
  const CUdeviceptr large = block(3 * kMiB2);
  handle_of(large);
  CHECK(open_files() == before + 2);
  CHECK(release(large) == CUDA_SUCCESS);
  for (CUdeviceptr& one : small) {
    CHECK(open_files() == before + 1);
    CHECK(release(one) == CUDA_SUCCESS);
  }
  CHECK(open_files() == before);
}

TEST_CASE(
    "where pidfd is refused the socket is used; where that is too, the answer comes at once") {
  const Sharing sharing;
  for (const std::size_t bytes : kSizes) {
    const CUdeviceptr ptr = block(bytes);
    set_word(ptr, 4711);
    const CUipcMemHandle handle = handle_of(ptr);
    for (const int code : {EPERM, ENOSYS, EACCES}) {
      INFO("errno " << code);
      CHECK(in_peer([&] {
              forbid({434}, code);
              return visit(handle);
            }) == 4711);
      CHECK(in_peer([&] {
              forbid({438}, code);
              return visit(handle);
            }) == 4711);
      CHECK(word_at(ptr + 8) == 77);
      CHECK(in_peer([&]() -> long long {
              forbid({434, 438, SYS_socket, SYS_connect}, code);
              const std::uint64_t start = clock_us();
              const long long answer = visit(handle);
              return seconds_since(start) < 1.0 ? answer : 0;
            }) == -CUDA_ERROR_NOT_PERMITTED);
    }
    CHECK(release(ptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("an exporter that has ended, or is stopped, is told apart within a second") {
  const Sharing sharing;
  CUipcMemHandle handle{};
  {
    const Peer dead = exporter(4096);
    handle = dead.hear<CUipcMemHandle>();
    CHECK(in_peer([&] { return visit(handle); }) == 4711);
  }
  CHECK(in_peer([&] { return visit(handle); }) == -CUDA_ERROR_INVALID_VALUE);
  CHECK(in_peer([&] {
          forbid(kPidfd, EPERM);
          return visit(handle);
        }) == -CUDA_ERROR_INVALID_VALUE);

  const Peer zombie = exporter(4096);
  handle = zombie.hear<CUipcMemHandle>();
  kill(zombie.pid(), SIGKILL);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(zombie.pid()), &ended, WEXITED | WNOWAIT);
  CHECK(in_peer([&] { return visit(handle); }) == -CUDA_ERROR_INVALID_VALUE);

  const Peer stopped = exporter(4096);
  handle = stopped.hear<CUipcMemHandle>();
  kill(stopped.pid(), SIGSTOP);
  CHECK(in_peer([&] { return visit(handle); }) == 4711);
  CHECK(in_peer([&]() -> long long {
          forbid(kPidfd, EPERM);
          const std::uint64_t start = clock_us();
          const long long answer = visit(handle);
          return seconds_since(start) < 1.5 ? answer : 0;
        }) == -CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE("fifty importers ask over the socket at once") {
  const Sharing sharing;
  const Peer from = exporter(4096, 50);
  std::vector<Peer> peers;
  for (int i = 0; i < 50; ++i) {
    const auto handle = from.hear<CUipcMemHandle>();
    peers.emplace_back([=] {
      forbid(kPidfd, EPERM);
      Peer::tell(0ll);
      Peer::wait_for_go();
      return visit(handle);
    });
  }
  for (const Peer& peer : peers) REQUIRE(peer.hear() == 0);
  for (const Peer& peer : peers) peer.go();
  for (int i = 0; i < 50; ++i) CHECK(peers[static_cast<std::size_t>(i)].hear() == 4711 + i);
}

TEST_CASE("the exporter dies while twenty importers open: an answer each, never wrong memory") {
  const Sharing sharing;
  for (int round = 0; round < 6; ++round) {
    auto from = std::make_unique<Peer>(exporter(4096));
    const auto handle = from->hear<CUipcMemHandle>();
    std::vector<Peer> peers;
    for (int i = 0; i < 20; ++i) {
      peers.emplace_back([=]() -> long long {
        if (i % 2 != 0) forbid(kPidfd, EPERM);
        long long answer = 4711;
        Peer::tell(0ll);
        while (answer == 4711) answer = visit(handle);
        return answer;
      });
    }
    for (const Peer& peer : peers) REQUIRE(peer.hear() == 0);
    usleep(static_cast<unsigned>(round) * 3000);
    from.reset();  // SIGKILL
    for (const Peer& peer : peers) {
      const long long answer = peer.hear();
      CHECK((answer == -CUDA_ERROR_INVALID_VALUE || answer == -CUDA_ERROR_NOT_PERMITTED));
    }
  }
}

TEST_CASE("without room for descriptors they are made when they are asked for") {
  const Sharing sharing;
  const Peer from([]() -> long long {
    const rlimit few{800, 800};  // the simulated driver's own descriptor lies at 700
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < 500; ++i) {
      CUdeviceptr ptr = 0;
      CUipcMemHandle handle{};
      if (allocate(&ptr, kMiB2) != 0) return 1;
      set_word(ptr, 4711);
      if (const long long code = get(&handle, ptr)) return code;
      if (i == 499) Peer::tell(handle);
    }
    Peer::wait_for_go();
    return 0;
  });
  const auto handle = from.hear<CUipcMemHandle>();
  CHECK(in_peer([&] { return visit(handle); }) == 4711);
}

TEST_CASE("fabric handles need no descriptor") {
  const Sharing sharing;
  const Peer from([]() -> long long {
    kvsim_set_fabric(0, 0);
    driver::forget_devices();
    CUdeviceptr ptr = 0;
    CUipcMemHandle handle{};
    if (allocate(&ptr, kMiB2) != 0 || driver::device(0)->step() != driver::HandleStep::fabric) {
      return 1;
    }
    set_word(ptr, 4711);
    if (const long long code = get(&handle, ptr)) return code;
    Peer::tell(handle);
    Peer::wait_for_go();
    return 0;
  });
  const auto handle = from.hear<CUipcMemHandle>();
  for (const bool by_socket : {false, true}) {
    CHECK(in_peer([&] {
            kvsim_set_fabric(0, 0);
            if (by_socket) forbid(kPidfd, EPERM);
            return visit(handle);
          }) == 4711);
  }
}

TEST_CASE("every step of opening can fail: undone, told, and possible afterwards") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  for (const char* step :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    for (const int code : {2, 719, 999}) {
      INFO(step << " answers " << code);
      CHECK(in_peer([&]() -> long long {
              visit(handle);  // the spares and records are there
              const Traces before;
              const std::string rule = std::string(step) + ":1:" + std::to_string(code);
              kvsim_fail(rule.c_str());
              CUdeviceptr out = 5;
              const long long answer = open(&out, handle);
              if (out != 5) return -1;
              if (!(Traces() == before)) return -2;
              if (visit(handle) != 4711) return -3;
              return answer;
            }) == code);
    }
  }
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("an export that fails leaves nothing, and the next one works") {
  const Sharing sharing;
  const CUdeviceptr warm = block(4096);
  handle_of(warm);
  const CUdeviceptr ptr = block(3 * kMiB2);
  for (const auto& [code, answer] : {std::pair{2, 2}, {719, 719}, {801, 1}, {999, 1}}) {
    const Traces before;
    const std::string rule = "cuMemExportToShareableHandle:1:" + std::to_string(code);
    REQUIRE(kvsim_fail(rule.c_str()) == 0);
    CUipcMemHandle handle{};
    CHECK(get(&handle, ptr) == answer);
    CHECK(same(handle, CUipcMemHandle{}));
    CHECK(Traces() == before);
  }
  CHECK(in_peer([handle = handle_of(ptr)] { return visit(handle) >= 0 ? 0ll : 1ll; }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(release(warm) == CUDA_SUCCESS);
}

TEST_CASE("a forked child holds nothing of its parent's, and shares its own blocks with it") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  const Peer child([&]() -> long long {
    if (open_files("kvshim-ipc") != 0) return 1;
    if (visit(handle) != 4711) return 2;  // a peer like any other
    CUdeviceptr own = 0;
    CUipcMemHandle shown{};
    if (allocate(&own, 4096) != 0 || get(&shown, own) != 0) return 3;
    set_word(own, 99);
    Peer::tell(shown);
    Peer::wait_for_go();
    return 0;
  });
  const auto childs = child.hear<CUipcMemHandle>();
  CHECK_FALSE(same(childs, handle));
  CHECK(visit(childs) == 99);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("what was opened goes with its context") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          CUcontext own = nullptr;
          CUdeviceptr out = 0;
          engine::BlockView view;
          if (cuCtxCreate(&own, nullptr, 0, 0) != 0 || open(&out, handle) != 0) return 1;
          if (engine::find(out, &view) != Place::block || view.context != own) return 2;
          const engine::Destruction end = engine::before_destroy(own);
          if (cuCtxDestroy(own) != 0) return 3;
          engine::after_destroy(end, true);
          if (engine::find(out, &view) != Place::foreign || kvsim_knows(out) != 0) return 4;
          CUcontext primary = nullptr;
          cuDevicePrimaryCtxRetain(&primary, 0);
          cuCtxSetCurrent(primary);
          if (close_opened(out) != kNotOurs) return 5;
          return visit(handle) == 4711 ? 0 : 6;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("many threads open, use and close one handle, and others are given out meanwhile") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  const Peer peer([&]() -> long long {
    const Traces before;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        cuCtxSetCurrent(context);
        for (int i = 0; i < 100; ++i) wrong += visit(handle) != 4711;
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!(Traces().counts.mappings == before.counts.mappings)) return -1;
    return wrong;
  });
  std::atomic<bool> done{false};
  std::thread busy([&] {
    cuCtxSetCurrent(sharing.context);
    while (!done) {
      CUdeviceptr other = 0;
      CUipcMemHandle none{};
      if (allocate(&other, 8192) == 0) {
        get(&none, other);
        release(other);
      }
    }
  });
  CHECK(peer.hear(20000) == 0);
  done = true;
  busy.join();
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE(
    "other namespaces: another pid namespace goes over the socket, none open says so at once") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(4096);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  if (in_peer([] { return unshare(CLONE_NEWNET | CLONE_NEWPID) == 0 ? 0ll : 1ll; }) != 0) {
    WARN("namespaces cannot be made here");
  } else {
    // The grandchild lives in the new pid namespace, where the exporter's pid means somebody else.
    const auto grandchild = [&](int spaces) {
      return in_peer([&, spaces]() -> long long {
        if (unshare(spaces) != 0) return 1;
        const std::uint64_t start = clock_us();
        const long long answer = in_peer([&] { return visit(handle); });
        return seconds_since(start) < 1.5 ? answer : 0;
      });
    };
    CHECK(grandchild(CLONE_NEWPID) == 4711);
    CHECK(grandchild(CLONE_NEWPID | CLONE_NEWNET) == -CUDA_ERROR_NOT_PERMITTED);
    CHECK(in_peer([&]() -> long long {
            if (unshare(CLONE_NEWNET) != 0) return 1;
            return visit(handle);  // pidfd_getfd does not mind
          }) == 4711);
  }
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("another user's process gets nothing, by either way") {
  const Sharing sharing;
  if (geteuid() != 0) {
    WARN("only root can become somebody else");
    return;
  }
  const CUdeviceptr ptr = block(4096);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          if (setresuid(65534, 65534, 65534) != 0) return 1;
          return visit(handle);
        }) == -CUDA_ERROR_NOT_PERMITTED);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("no lock is held while the driver exports or imports") {
  const Sharing sharing;
  const CUdeviceptr ready = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ready);
  const CUdeviceptr ptr = block(3 * kMiB2);
  kvsim_hold("cuMemExportToShareableHandle");
  std::thread exporting([&] {
    cuCtxSetCurrent(sharing.context);
    CUipcMemHandle none{};
    get(&none, ptr);
  });
  while (kvsim_waiting("cuMemExportToShareableHandle") == 0) usleep(100);
  CHECK(same(handle_of(ready), handle));
  CHECK(in_peer([&] {
          kvsim_release("cuMemExportToShareableHandle");
          return visit(handle);
        }) >= 0);
  CHECK(in_peer([&] {
          kvsim_release("cuMemExportToShareableHandle");
          forbid(kPidfd, EPERM);
          return visit(handle);
        }) >= 0);
  CHECK(release(ready) == CUDA_SUCCESS);
  kvsim_release("cuMemExportToShareableHandle");
  exporting.join();
  CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(kvsim_gate_timeouts() == 0);
}

TEST_CASE(
    "when every line of the board is taken, the next handle is out of memory, until one is free") {
  const Sharing sharing;
  // All of them before the first handle: a page that was shared takes no further blocks.
  std::vector<CUdeviceptr> blocks(sharing::kLines);  // the first line stands for "none"
  for (CUdeviceptr& one : blocks) one = block(256);
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i + 1 < blocks.size(); ++i) REQUIRE(get(&handle, blocks[i]) == 0);
  CHECK(get(&handle, blocks.back()) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(release(blocks.front()) == CUDA_SUCCESS);
  CHECK(get(&handle, blocks.back()) == 0);
  for (std::size_t i = 1; i < blocks.size(); ++i) REQUIRE(release(blocks[i]) == CUDA_SUCCESS);
}
