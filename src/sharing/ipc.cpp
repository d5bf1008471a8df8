// See ipc.h.
#include "sharing/ipc.h"

#include "base/options.h"
#include "memory/listener.h"
#include "sharing/exporter.h"
#include "sharing/importer.h"
#include "sharing/ipc_handle.h"
#include "sharing/server.h"

namespace kvshim::sharing {

namespace {

void forked() noexcept {
  forget_self();
  forget_exports();
  forget_server();
  forget_imports();
}

constexpr Listener kListener{withdraw, close_all_of, forked};

bool ready() noexcept {
  if (options().ipc == IpcPolicy::off) return false;
  listener.store(&kListener, std::memory_order_release);
  return true;
}

}  // namespace

bool get_mem_handle(CUipcMemHandle* out, CUdeviceptr address, CUresult* result) noexcept {
  return ready() && get_handle(out, address, result);
}

bool open_mem_handle(CUdeviceptr* out, const CUipcMemHandle& raw, unsigned flags,
                     CUresult* result) noexcept {
  IpcHandle handle;
  if (!ready()) return false;
  const Origin origin = parse(raw, &handle);
  if (origin == Origin::driver) return false;
  *result = open_handle(out, origin == Origin::ours ? &handle : nullptr, flags);
  return true;
}

bool close_mem_handle(CUdeviceptr address, CUresult* result) noexcept {
  return ready() && close_opened(address, result);
}

}  // namespace kvshim::sharing
