// The simulation across processes: legacy IPC, shared file descriptors, fork, exit, and control by
// environment. Runs itself again with a role as the first argument.
#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"
#include "sim.h"

namespace {

constexpr size_t kPage = size_t{2} << 20;
const char* g_self;

void ready() {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
}

// Runs this program in a role; what it reads and writes on descriptor 3 is `link`.
pid_t spawn(const char* role, int link, const char* environment = nullptr) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (link >= 0) dup2(link, 3);
  if (environment != nullptr) putenv(const_cast<char*>(environment));
  execl(g_self, g_self, role, nullptr);
  _exit(127);
}

int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void send_fd(int link, int fd) {
  char byte = 0;
  iovec io{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  CHECK(sendmsg(link, &message, 0) == 1);
}

int receive_fd(int link) {
  char byte;
  iovec io{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  if (recvmsg(link, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
  return fd;
}

int ipc_peer() {
  ready();
  CUipcMemHandle handle;
  CHECK(read(3, &handle, sizeof(handle)) == sizeof(handle));
  CUdeviceptr p, q, base;
  size_t size;
  CODE(cuIpcOpenMemHandle(&p, handle, 0), 1);
  OK(cuIpcOpenMemHandle(&p, handle, 1));
  OK(cuIpcOpenMemHandle(&q, handle, 1));
  CHECK(p == q);
  OK(cuMemGetAddressRange(&base, &size, p + 10));
  CHECK(base == p && size == 1000);
  unsigned char bytes[1000];
  OK(cuMemcpyDtoH(bytes, p, 1000));
  CHECK(bytes[999] == 0x37);
  OK(cuMemsetD8(p, 0x38, 1000));
  OK(cuCtxSynchronize());
  CODE(cuMemFree(p), 1);
  CODE(cuIpcGetMemHandle(&handle, p), 1);
  OK(cuIpcCloseMemHandle(p));
  OK(cuIpcCloseMemHandle(p));
  CODE(cuIpcCloseMemHandle(p), 1);
  return g_failed;
}

void legacy_ipc() {
  int link[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, link) == 0);
  CUdeviceptr p;
  CUipcMemHandle handle, later;
  OK(cuMemAlloc(&p, 1000));
  OK(cuMemsetD8(p, 0x37, 1000));
  OK(cuIpcGetMemHandle(&handle, p + 8));
  CHECK(write(link[0], &handle, sizeof(handle)) == sizeof(handle));
  CHECK(wait_for(spawn("ipc", link[1])) == 0);
  unsigned char byte = 0;
  OK(cuMemcpyDtoH(&byte, p + 999, 1));
  CHECK(byte == 0x38);
  OK(cuMemFree(p));
  OK(cuMemAlloc(&p, 1000));
  OK(cuIpcGetMemHandle(&later, p));
  CHECK(std::memcmp(&handle, &later, sizeof(handle)) != 0);
  OK(cuMemFree(p));
  close(link[0]);
  close(link[1]);
}

int import_peer() {
  ready();
  const int fd = receive_fd(3);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  OK(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  OK(cuMemAddressReserve(&p, kPage, 0, 0, 0));
  OK(cuMemMap(p, kPage, 0, handle, 0));
  const CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                             CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(p, kPage, &desc, 1));
  unsigned char byte = 0;
  OK(cuMemcpyDtoH(&byte, p + kPage - 1, 1));
  CHECK(byte == 0x41);
  return g_failed;
}

void shared_descriptor() {
  int link[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, link) == 0);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  OK(cuMemCreate(&handle, kPage, &prop, 0));
  OK(cuMemAddressReserve(&p, kPage, 0, 0, 0));
  OK(cuMemMap(p, kPage, 0, handle, 0));
  const CUmemAccessDesc desc{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(p, kPage, &desc, 1));
  OK(cuMemsetD8(p, 0x41, kPage));
  int fd = -1;
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const pid_t peer = spawn("import", link[1]);
  send_fd(link[0], fd);
  close(fd);
  CHECK(wait_for(peer) == 0);
  close(link[0]);
  close(link[1]);
}

void forked() {
  CUdeviceptr p;
  OK(cuMemAlloc(&p, 1000));
  pid_t pid = fork();
  if (pid == 0) {
    CUdeviceptr q;
    _exit(cuInit(0) == 3 && cuMemAlloc(&q, 16) == 3 && cuMemFree(p) == 3 ? 0 : 1);
  }
  CHECK(wait_for(pid) == 0);
  setenv("KVSIM_FORK_OK", "1", 1);
  pid = fork();
  if (pid == 0) {
    ready();
    CUdeviceptr q;
    kvsim_counts c;
    OK(cuMemAlloc(&q, 16));
    kvsim_get_counts(&c);
    CHECK(c.native_blocks == 1);
    CODE(cuMemFree(p), 1);
    _exit(g_failed);
  }
  CHECK(wait_for(pid) == 0);
  unsetenv("KVSIM_FORK_OK");
  OK(cuMemFree(p));
}

int crash_role() {
  ready();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle handle;
  cuMemCreate(&handle, kPage, &prop, 0);
  return 0;
}

int environment_role() {
  ready();
  CUdeviceptr p;
  int value = 1;
  size_t f, total;
  CODE(cuMemAlloc(&p, 16), 2);
  OK(cuMemAlloc(&p, 16));
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  CHECK(value == 0);
  OK(cuMemGetInfo(&f, &total));
  CHECK(total == size_t{256} << 20);
  return g_failed;
}

// Objects older than cuInit are destroyed after the driver has shut down, younger ones before.
struct AtExit {
  bool armed = false;
  CUresult expected = CUDA_ERROR_DEINITIALIZED;
  ~AtExit() {
    CUdeviceptr p;
    if (armed && (cuMemAlloc(&p, 16) != expected || cuMemFree(0) != expected)) _exit(9);
  }
};
AtExit g_older;

int exit_role() {
  ready();
  g_older.armed = true;
  static AtExit younger;
  younger.expected = CUDA_SUCCESS;
  younger.armed = true;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  g_self = argv[0];
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "ipc") return ipc_peer();
  if (role == "import") return import_peer();
  if (role == "crash") return crash_role();
  if (role == "environment") return environment_role();
  if (role == "exit") return exit_role();
  ready();
  legacy_ipc();
  shared_descriptor();
  forked();
  CHECK(wait_for(spawn("crash", -1)) == 0);
  CHECK(wait_for(spawn("crash", -1, "KVSIM_HOST_NUMA_CRASH=1")) == 128 + SIGSEGV);
  setenv("KVSIM_FAIL", "cuMemAlloc_v2:1:2", 1);
  setenv("KVSIM_ATTR", "0:102=0", 1);
  CHECK(wait_for(spawn("environment", -1, "KVSIM_MEMORY=256M")) == 0);
  unsetenv("KVSIM_FAIL");
  CHECK(wait_for(spawn("exit", -1)) == 0);
  return report("selftest_process");
}
