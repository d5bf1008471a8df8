// Legacy IPC against what the world can do: random handles, recycled pids, false servers, silent
// clients, exporters that close or stop, and many processes at once in all directions.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "ipc_peers.h"
#include "sharing/exporter.h"
#include "sharing/server.h"

using namespace kvshim;
using sharing::Answer;
using sharing::IpcHandle;

namespace {

// Opens what must not open: the code, or a negative number for what went wrong besides.
long long refused(const CUipcMemHandle& handle, double seconds = 1.5) {
  const std::uint64_t start = clock_us();
  const Traces before;
  CUdeviceptr out = 5;
  const long long code = open(&out, handle);
  if (out != 5) return -10;
  if (!(Traces() == before)) return -11;
  return seconds_since(start) < seconds ? code : -12;
}

}  // namespace

TEST_CASE(
    "random handles are the driver's to refuse, and each flipped bit of a good one is noticed") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          std::mt19937_64 random(1);
          const Traces before;
          const std::uint64_t start = clock_us();
          for (int i = 0; i < 10000; ++i) {
            CUipcMemHandle garbage;
            for (std::size_t at = 0; at < sizeof garbage; at += 8) {
              const std::uint64_t word = random();
              memcpy(garbage.reserved + at, &word, 8);
            }
            CUdeviceptr out = 0;
            if (open(&out, garbage) != kNotOurs) return 1;
            // The same behind the first bytes of a good one.
            memcpy(garbage.reserved, handle.reserved, 8);
            if (open(&out, garbage) != CUDA_ERROR_INVALID_VALUE || out != 0) return 2;
          }
          for (std::size_t bit = 0; bit < 8 * sizeof handle; ++bit) {
            CUipcMemHandle flipped = handle;
            flipped.reserved[bit / 8] = static_cast<char>(flipped.reserved[bit / 8] ^ 1 << bit % 8);
            CUdeviceptr out = 0;
            const long long code = open(&out, flipped);
            if ((code != kNotOurs && code != CUDA_ERROR_INVALID_VALUE) || out != 0) return 3;
          }
          if (!(Traces() == before) || seconds_since(start) > 2) return 4;
          return visit(handle) >= 0 ? 0 : 5;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("another host, another boot: refused at once, without a look at the pid") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(4096);
  const CUipcMemHandle handle = handle_of(ptr);
  const CUipcMemHandle foreign = forged(handle, [](IpcHandle& h) { h.boot ^= 1; });
  CHECK(in_peer([&] {
          forbid({434, 438, SYS_socket, SYS_connect, SYS_kill}, EPERM);
          return refused(foreign, 0.2);
        }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a pid that was given to another exporter since: the old handle opens nothing of it") {
  const Sharing sharing;
  auto first = std::make_unique<Peer>(exporter(4096));
  const int pid = first->pid();
  const auto old = first->hear<CUipcMemHandle>();
  CHECK(in_peer([&] { return visit(old); }) == 4711);
  first.reset();
  usleep(20000);  // start times are told in hundredths of a second
  // The kernel gives the next process the number after this one.
  std::unique_ptr<Peer> second;
  for (int tries = 0; tries < 50 && (second == nullptr || second->pid() != pid); ++tries) {
    second.reset();
    std::ofstream("/proc/sys/kernel/ns_last_pid") << pid - 1;
    second = std::make_unique<Peer>(exporter(4096));
  }
  if (second->pid() != pid) {
    WARN("no process can be given a chosen pid here");
    return;
  }
  const auto young = second->hear<CUipcMemHandle>();
  CHECK(in_peer([&] { return visit(young); }) == 4711);
  CHECK(in_peer([&] { return refused(old); }) == CUDA_ERROR_INVALID_VALUE);
  // Where the start time says nothing, the nonce does.
  const auto ageless = forged(old, [](IpcHandle& h) { h.start = 0; });
  CHECK(in_peer([&] { return refused(ageless); }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(in_peer([&] {
          forbid(kPidfd, EPERM);
          return refused(old);
        }) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an exporter that closed what kvshim kept open, and has other files there by now") {
  const Sharing sharing;
  for (const bool reuse : {false, true}) {
    const Peer from([=]() -> long long {
      CUdeviceptr ptr = 0;
      CUipcMemHandle handle{};
      if (allocate(&ptr, 3 * kMiB2) != 0 || get(&handle, ptr) != 0) return 1;
      Peer::tell(handle);
      Peer::wait_for_go();
      int ends[2];
      if (pipe(ends) != 0) return 2;
      for (int fd = 1000; fd < 1100; ++fd) {
        if (reuse ? dup2(ends[0], fd) != fd : close(fd) == 0 && fd < 1000) return 3;
      }
      Peer::tell(0ll);
      Peer::wait_for_go();
      return 0;
    });
    const auto handle = from.hear<CUipcMemHandle>();
    CHECK(in_peer([&] { return visit(handle); }) >= 0);
    from.go();
    REQUIRE(from.hear() == 0);
    for (const bool pidfd : {true, false}) {
      const long long code = in_peer([&] {
        if (!pidfd) forbid(kPidfd, EPERM);
        return refused(handle);
      });
      CAPTURE(reuse, pidfd, code);
      CHECK((code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_PERMITTED));
    }
  }
}

namespace {

// Has the address that a handle names, and does as it is told with each client.
class FalseServer {
 public:
  using Act = std::function<void(int client)>;

  explicit FalseServer(Act act) : act_(std::move(act)) {
    listening_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address;
    const socklen_t size = sharing::server_address(nonce, &address);
    REQUIRE(bind(listening_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(listen(listening_, 4) == 0);
    if (act_ == nullptr) return;  // it never looks
    thread_ = std::thread([this] {
      for (int client; (client = accept(listening_, nullptr, nullptr)) >= 0; close(client)) {
        // Unread, the question would make the answer fail.
        CUipcMemHandle question;
        if (recv(client, &question, sizeof question, 0) > 0) act_(client);
      }
    });
  }
  ~FalseServer() {
    shutdown(listening_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listening_);
  }
  static inline std::uint64_t nonce = static_cast<std::uint64_t>(getpid()) << 32;

 private:
  Act act_;
  int listening_ = -1;
  std::thread thread_;
};

void send_with(int client, const Answer& answer, const std::vector<int>& fds) {
  iovec data{const_cast<Answer*>(&answer), sizeof answer};
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  sendmsg(client, &message, MSG_NOSIGNAL);
}

}  // namespace

TEST_CASE("a false server: silent, short, lying about sizes, with the wrong descriptor or many") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  IpcHandle inside{};
  REQUIRE(sharing::parse(handle, &inside) == sharing::Origin::ours);
  Answer good{};
  good.magic = sharing::kAnswerMagic;
  int memory = -1;
  REQUIRE(sharing::lend(inside.slot, inside.block, &good.offer, &memory));
  ++FalseServer::nonce;
  const auto asked = forged(handle, [](IpcHandle& h) { h.nonce = FalseServer::nonce; });
  const auto answer_to = [&](FalseServer::Act act) {
    // Forked before the server has a thread.
    const Peer peer([&]() -> long long {
      visit(handle);  // the spares and records are there
      forbid(kPidfd, EPERM);
      Peer::tell(0ll);
      Peer::wait_for_go();
      const Traces before;
      CUdeviceptr out = 5;
      const std::uint64_t start = clock_us();
      const long long code = open(&out, asked);
      if (code == 0) return close_opened(out) == 0 && Traces() == before ? 0 : -1;
      if (out != 5 || !(Traces() == before)) return -2;
      return seconds_since(start) < 1.5 ? code : -3;
    });
    REQUIRE(peer.hear() == 0);
    const FalseServer server(std::move(act));
    peer.go();
    return peer.hear();
  };
  const auto with = [&](auto change, std::vector<int> fds) {
    Answer answer = good;
    change(answer);
    return answer_to([=](int client) { send_with(client, answer, fds); });
  };
  const auto as_it_is = [](Answer&) {};
  CHECK(answer_to(nullptr) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(answer_to([](int) {}) == CUDA_ERROR_NOT_PERMITTED);  // hangs up
  CHECK(answer_to([](int client) { send(client, "no", 2, MSG_NOSIGNAL); }) ==
        CUDA_ERROR_NOT_PERMITTED);
  CHECK(answer_to([](int client) {
          const std::vector<char> much(100000, 'x');
          send(client, much.data(), much.size(), MSG_NOSIGNAL);
        }) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(answer_to([](int) { usleep(1'100'000); }) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(with([](Answer& a) { ++a.magic; }, {memory}) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(with([](Answer& a) { a.status = 1; }, {}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Answer& a) { a.status = 1; }, {memory}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with(as_it_is, {}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with(as_it_is, {memory, memory, memory}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Answer& a) { a.offer.offset = a.offer.mapping_bytes; }, {memory}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Answer& a) { a.offer.bytes = ~0ull; }, {memory}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Answer& a) { a.offer.mapping_bytes *= 2; }, {memory}) > 0);
  CHECK(with([](Answer& a) { a.offer.mapping_bytes = a.offer.bytes = ~0ull; }, {memory}) > 0);
  CHECK(with([](Answer& a) { a.offer.mapping_bytes = a.offer.bytes = 0; }, {memory}) > 0);
  CHECK(with([](Answer& a) { a.offer.type = 0; }, {memory}) > 0);
  CHECK(with([](Answer& a) { a.offer.type = 0x80; }, {memory}) > 0);
  CHECK(with([](Answer& a) { a.offer.type = CU_MEM_HANDLE_TYPE_FABRIC; }, {memory}) > 0);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int wrong : {null, ends[0], ends[1]}) CHECK(with(as_it_is, {wrong}) > 0);
  CHECK(with(as_it_is, {memory}) == 0);  // the same that tells the truth
  for (const int fd : {null, ends[0], ends[1], memory}) close(fd);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("clients that say nothing or nonsense hold nobody up for long") {
  const Sharing sharing;
  const Peer from = exporter(4096);
  const auto handle = from.hear<CUipcMemHandle>();
  IpcHandle inside{};
  REQUIRE(sharing::parse(handle, &inside) == sharing::Origin::ours);
  sockaddr_un address;
  const socklen_t size = sharing::server_address(inside.nonce, &address);
  std::vector<int> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(connect(clients.back(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    if (i % 2 != 0) send(clients.back(), "nonsense", 8, MSG_NOSIGNAL);
  }
  CHECK(in_peer([&] {
          forbid(kPidfd, EPERM);
          return visit(handle);
        }) == 4711);
  for (const int client : clients) close(client);
}

TEST_CASE("an exporter that stops in the middle: a bounded wait, and once it goes on it answers") {
  const Sharing sharing;
  const Peer from = exporter(4096);
  const auto handle = from.hear<CUipcMemHandle>();
  const Peer peer([&]() -> long long {
    forbid(kPidfd, EPERM);
    for (long long answer = 4711;;) {
      const std::uint64_t start = clock_us();
      answer = visit(handle);
      if (seconds_since(start) > 1.5) return -1;
      if (answer == 4711) {
        Peer::tell(answer);
        usleep(1000);
        continue;
      }
      Peer::tell(answer);
      Peer::wait_for_go();
      return visit(handle);
    }
  });
  CHECK(peer.hear() == 4711);
  kill(from.pid(), SIGSTOP);
  long long answer = 4711;
  while (answer == 4711) answer = peer.hear();
  CHECK(answer == -CUDA_ERROR_NOT_PERMITTED);
  kill(from.pid(), SIGCONT);
  peer.go();
  CHECK(peer.hear() == 4711);
}

namespace {

// What one process shows the others: a handle and the word behind it, changed under their hands.
struct Shown {
  std::atomic<std::uint64_t> turn{0};  // odd while it changes
  CUipcMemHandle handle;
  std::uint64_t word;
};
constexpr unsigned kProcesses = 4;
constexpr unsigned kShown = 8;
struct Market {
  std::atomic<unsigned> ready{0};
  std::atomic<unsigned> done{0};
  Shown shown[kProcesses][kShown];
};

struct Own {
  CUdeviceptr ptr = 0;
};

bool replace(Shown* shown, Own* own, std::uint64_t word, std::size_t bytes) {
  ++shown->turn;
  bool good = own->ptr == 0 || release(own->ptr) == CUDA_SUCCESS;
  good = good && allocate(&own->ptr, bytes) == CUDA_SUCCESS;
  if (good) set_word(own->ptr, word);
  good = good && get(&shown->handle, own->ptr) == 0;
  shown->word = word;
  ++shown->turn;
  return good;
}

// 0, or what was wrong.
long long look(Shown* shown) {
  const std::uint64_t turn = shown->turn;
  const CUipcMemHandle handle = shown->handle;
  const std::uint64_t word = shown->word;
  if (turn % 2 != 0 || shown->turn != turn) return 0;
  CUdeviceptr first = 0, second = 0;
  const long long code = open(&first, handle);
  const std::uint64_t found = code == 0 ? word_at(first) : 0;
  const bool steady = shown->turn == turn;
  if (code != 0) return !steady && code == CUDA_ERROR_INVALID_VALUE ? 0 : 1000 + code;
  if (steady && found != word) return 2;
  // Once more while it is open: counted, whatever has become of the block.
  if (open(&second, handle) != 0 || second != first) return 3;
  return close_opened(first) == 0 && close_opened(first) == 0 ? 0 : 4;
}

long long trade(Market* market, unsigned me) {
  Own own[kShown];
  std::mt19937 random(me + 1);
  std::uint64_t words = 0;
  const auto bytes = [&] { return random() % 2 != 0 ? 3 * kMiB2 : std::size_t{4096}; };
  if (me % 2 != 0) forbid(kPidfd, EPERM);
  for (unsigned i = 0; i < kShown; ++i) {
    if (!replace(&market->shown[me][i], &own[i], me * 1000000 + ++words, bytes())) return 10;
  }
  for (++market->ready; market->ready != kProcesses;) usleep(100);
  for (int round = 0; round < 400; ++round) {
    const unsigned mine = random() % kShown;
    if (round % 4 == 0 &&
        !replace(&market->shown[me][mine], &own[mine], me * 1000000 + ++words, bytes())) {
      return 11;
    }
    const unsigned other = (me + 1 + random() % (kProcesses - 1)) % kProcesses;
    if (const long long wrong = look(&market->shown[other][random() % kShown])) return wrong;
  }
  // Nobody ends while another still opens from him.
  for (++market->done; market->done != kProcesses;) usleep(100);
  for (const Own& one : own) {
    if (release(one.ptr) != CUDA_SUCCESS) return 12;
  }
  kvsim_counts counts;
  kvsim_get_counts(&counts);
  engine::trim();
  kvsim_get_counts(&counts);
  if (counts.handles != 0 || counts.mappings != 0 || counts.reservations != 0) return 13;
  return kvsim_violations() == 0 ? 0 : 14;
}

}  // namespace

TEST_CASE("four processes open and close each other's blocks while these come and go") {
  const Sharing sharing;
  void* memory =
      mmap(nullptr, sizeof(Market), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* market = new (memory) Market;
  std::vector<Peer> peers;
  for (unsigned me = 0; me < kProcesses; ++me) {
    peers.emplace_back([=] { return trade(market, me); });
  }
  for (const Peer& peer : peers) CHECK(peer.hear(30000) == 0);
  munmap(memory, sizeof(Market));
}
