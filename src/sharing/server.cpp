// See server.h. One client after the other, each with bounded waits: an answer takes some 20 us.
#include "sharing/server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/reentry.h"
#include "sharing/exporter.h"

namespace kvshim::sharing {

namespace {

constexpr int kClientMs = 100;  // a client sends its question right after connecting
constexpr std::size_t kStack = 256 * 1024;

constinit Lock lock;
constinit std::atomic<bool> running{false};
constinit KeptFd listener_fd;

// The same user or root, as for taking the descriptor without asking.
bool may_ask(int client) noexcept {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

void send_answer(int client, const Answer& answer, int fd) noexcept {
  iovec data{const_cast<Answer*>(&answer), sizeof(answer)};
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void serve(int client) noexcept {
  if (!may_ask(client)) return;
  pollfd wait{client, POLLIN, 0};
  if (poll(&wait, 1, kClientMs) != 1) return;
  CUipcMemHandle raw;
  IpcHandle handle;
  if (recv(client, &raw, sizeof(raw), MSG_DONTWAIT) != static_cast<ssize_t>(sizeof(raw)) ||
      parse(raw, &handle) != Origin::ours || handle.nonce != self().nonce) {
    return;
  }
  Answer answer{};
  answer.magic = kAnswerMagic;
  int fd = -1;
  answer.status = lend(handle.slot, handle.block, &answer.offer, &fd) ? 0 : 1;
  send_answer(client, answer, fd);
  if (fd >= 0) close(fd);
}

void* run(void* argument) {
  const Reentry guard;  // what the driver calls back from this thread is not the program's
  const int listening = static_cast<int>(reinterpret_cast<std::intptr_t>(argument));
  const KeptFd listener = keep_fd(listening);
  prctl(PR_SET_NAME, "kvshim-ipc");
  for (;;) {
    // Not in accept: that would hold the lowest free number while it sleeps, and the program's
    // dup2 to that number gets EBUSY.
    pollfd wait{listening, POLLIN, 0};
    const bool ready = poll(&wait, 1, -1) > 0;
    if (!is_kept(listener)) return nullptr;  // closed, and perhaps the number of another file now
    const int client = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0) {
      const int high = copy_up(client);
      if (high >= 0) close(client);
      serve(high >= 0 ? high : client);
      close(high >= 0 ? high : client);
    } else if (errno == EINVAL) {
      return nullptr;  // the program closed it: an end of the service, not a busy loop
    } else if (errno != EINTR && errno != ECONNABORTED && (errno != EAGAIN || !ready)) {
      const timespec pause{0, 20'000'000};  // no descriptors or no memory for now
      nanosleep(&pause, nullptr);
    }
  }
}

int listen_socket() noexcept {
  const int fd = move_up(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return -1;
  sockaddr_un address;
  const socklen_t size = server_address(self().nonce, &address);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 && listen(fd, 256) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

bool start_thread(int fd) noexcept {
  // The host's signal handlers must not run on a thread that it does not know of.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int code = pthread_create(&thread, &attributes, run,
                                  reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return code == 0;
}

}  // namespace

unsigned server_address(std::uint64_t nonce, sockaddr_un* out) noexcept {
  *out = {};
  out->sun_family = AF_UNIX;
  // Abstract (a leading zero): no file to clean up. Without the pid: it differs between namespaces.
  char name[40];
  format_into(name, "kvshim-ipc-{:016x}", nonce);
  const std::size_t length = strlen(name);
  memcpy(out->sun_path + 1, name, length);
  return static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

void start_server() noexcept {
  if (running.load(std::memory_order_acquire)) return;
  const Guard guard(lock);
  if (running.load(std::memory_order_relaxed)) return;
  const int fd = listen_socket();
  if (fd < 0) return;
  if (!start_thread(fd)) {
    close(fd);
    return;
  }
  listener_fd = keep_fd(fd);
  running.store(true, std::memory_order_release);
}

void forget_server() noexcept {
  lock.renew();
  // Else the child would keep the parent's address alive, where nobody answers.
  close_kept(listener_fd);
  listener_fd = {};
  running.store(false, std::memory_order_relaxed);
}

}  // namespace kvshim::sharing
