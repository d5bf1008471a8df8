// See channel.h.
#include "sharing/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "sharing/server.h"

// The same numbers on all architectures; older headers lack them.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace kvshim::sharing {

namespace {

constexpr std::uint64_t kPatienceUs = 1'000'000;

class Fd {
 public:
  explicit Fd(int fd) noexcept : fd_(fd) {}
  explicit Fd(long fd) noexcept : fd_(static_cast<int>(fd)) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

bool same_offer(const Offer& a, const Offer& b) noexcept {
  return memcmp(&a, &b, sizeof(a)) == 0;
}

// `blocked` here means: try the socket. *closed: the process is there and its board is not.
Fetched take(const IpcHandle& handle, Offer* offer, int* fd, bool* closed,
             const char** why) noexcept {
  *why = "the exporting process has ended";
  if (has_ended(handle)) return Fetched::gone;
  const Fd process(syscall(SYS_pidfd_open, handle.pid, 0));
  if (!process.valid()) {
    if (errno == ESRCH) return Fetched::gone;
    *why = "the kernel refuses pidfd_open";
    return Fetched::blocked;
  }
  const Fd board(syscall(SYS_pidfd_getfd, process.get(), handle.board, 0));
  if (!board.valid()) {
    // ESRCH (newer kernels) and EBADF: it is just ending, or only its main thread has, or it has
    // closed them.
    *closed = errno == EBADF || errno == ESRCH;
    *why = *closed ? "the exporting process has closed what kvshim kept open, or executes another "
                     "program now"
                   : "the kernel refuses pidfd_getfd";
    return Fetched::blocked;
  }
  *why = "the exporting process is not the one that gave the handle out";
  if (!is_board(board.get(), handle.nonce)) return Fetched::gone;
  *why = "the block was freed";
  if (!read_line(board.get(), handle.slot, handle.block, offer)) return Fetched::gone;
  if (offer->type == CU_MEM_HANDLE_TYPE_FABRIC) return Fetched::ok;
  Fd memory(offer->fd < 0 ? -1L : syscall(SYS_pidfd_getfd, process.get(), offer->fd, 0));
  Offer again;
  if (!read_line(board.get(), handle.slot, handle.block, &again) || !same_offer(*offer, again)) {
    return Fetched::gone;
  }
  if (!memory.valid()) {
    *why = "the exporter keeps no descriptor of the block";
    return Fetched::blocked;
  }
  *fd = memory.release();
  return Fetched::ok;
}

int connect_to(const IpcHandle& handle, std::uint64_t until, bool* refused) noexcept {
  Fd peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!peer.valid()) return -1;
  sockaddr_un address;
  const socklen_t size = server_address(handle.nonce, &address);
  while (connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    *refused = errno == ECONNREFUSED;
    // EAGAIN: so many ask at once that the queue is full.
    if ((errno != EAGAIN && errno != EINTR) || clock_us() > until) return -1;
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return peer.release();
}

// Whoever has the name must be that user's process: anybody can bind an abstract name first.
bool is_trusted(int peer) noexcept {
  ucred other{};
  socklen_t size = sizeof(other);
  if (getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return false;
  return other.uid == geteuid() || other.uid == 0 || geteuid() == 0;
}

bool wait_readable(int peer, std::uint64_t until) noexcept {
  for (;;) {
    const std::uint64_t now = clock_us();
    if (now >= until) return false;
    pollfd wait{peer, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>((until - now) / 1000) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// One message with at most one descriptor, which is *fd's then; with more it has none. False: not
// an answer.
bool receive(int peer, Answer* answer, int* fd) noexcept {
  iovec data{answer, sizeof(*answer)};
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(peer, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    // Alignment leaves room for a second one, which a false server may have sent.
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int received;
      memcpy(&received, CMSG_DATA(header) + index * sizeof(int), sizeof(received));
      if (count == 1) {
        *fd = received;
      } else {
        close(received);
      }
    }
  }
  return got == static_cast<ssize_t>(sizeof(*answer)) && answer->magic == kAnswerMagic;
}

// `closed`: nor is the board there. Then a socket that nobody listens on says that all is gone.
Fetched ask(const IpcHandle& handle, Offer* offer, int* fd, bool closed,
            const char** why) noexcept {
  const std::uint64_t until = clock_us() + kPatienceUs;
  bool refused = false;
  const Fd peer(connect_to(handle, until, &refused));
  if (!peer.valid()) return closed && refused ? Fetched::gone : Fetched::blocked;
  CUipcMemHandle raw;
  seal(handle, &raw);
  if (!is_trusted(peer.get())) {
    *why = "another user's process has the exporter's address";
    return Fetched::blocked;
  }
  // A send that fails means that it has hung up already: then there is an end to read.
  send(peer.get(), &raw, sizeof(raw), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (!wait_readable(peer.get(), until)) {
    *why = "the exporting process does not answer";
    return Fetched::blocked;
  }
  Answer answer{};
  int got = -1;
  const bool understood = receive(peer.get(), &answer, &got);
  Fd memory(got);
  if (!understood) {
    *why = "the exporting process refused: is it another user's?";
    return Fetched::blocked;
  }
  const bool with_fd = answer.offer.type != CU_MEM_HANDLE_TYPE_FABRIC;
  if (answer.status != 0 || (with_fd && !memory.valid())) {
    *why = "the block was freed";
    return Fetched::gone;
  }
  *offer = answer.offer;
  *fd = memory.release();
  return Fetched::ok;
}

}  // namespace

Fetched fetch(const IpcHandle& handle, Offer* offer, int* fd, const char** why) noexcept {
  *fd = -1;
  *why = "the exporting process is in another pid namespace";
  bool closed = false;
  const bool neighbour = handle.pid_namespace == self().pid_namespace;
  if (neighbour) {
    const Fetched taken = take(handle, offer, fd, &closed, why);
    if (taken != Fetched::blocked) return taken;
  }
  const Fetched asked = ask(handle, offer, fd, closed, why);
  if (asked != Fetched::blocked || !neighbour || !has_ended(handle)) return asked;
  *why = "the exporting process has ended";  // meanwhile
  return Fetched::gone;
}

}  // namespace kvshim::sharing
