// The exported side of sim.h.
#include "sim.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "driver/control.h"
#include "driver/state.h"

#define KVSIM_CONTROL extern "C" __attribute__((visibility("default")))

using namespace sim;

namespace {

std::unique_lock<std::mutex> lock_control() {
  return std::unique_lock(control().mutex);
}

// Bytes of a range, past access checks.
bool all_pieces(std::uint64_t ptr, std::size_t bytes, std::vector<Piece>* pieces) {
  while (bytes > 0) {
    Piece piece{};
    if (const auto block = find_block(ptr)) {
      piece.bytes = block->memory + (ptr - block->base);
      piece.size = block->bytes - (ptr - block->base);
    } else if (const Mapping* mapping = find_mapping(ptr)) {
      piece.bytes = mapping->handle->backing->bytes + mapping->offset + (ptr - mapping->base);
      piece.size = mapping->size - (ptr - mapping->base);
    } else {
      return false;
    }
    if (piece.size > bytes) piece.size = bytes;
    ptr += piece.size;
    bytes -= piece.size;
    pieces->push_back(piece);
  }
  return true;
}

}  // namespace

KVSIM_CONTROL void kvsim_reset(void) {
  const Lock lock(state().mutex);
  Control& c = control();
  {
    const auto inner = lock_control();
    c.failures.clear();
    c.gates.clear();
    c.hidden.clear();
    c.attributes.clear();
    c.attribute_errors.clear();
    c.log.clear();
    c.counts.clear();
    c.fabric_create = CUDA_ERROR_NOT_PERMITTED;
    c.fabric_export = CUDA_SUCCESS;
    c.peer_set_access = CUDA_SUCCESS;
    c.no_p2p = CUDA_ERROR_INVALID_VALUE;
    c.gate_timeouts = 0;
    c.changed.notify_all();
  }
  State& s = state();
  s.counters = {};
  s.granularity = kPage;
  s.new_memory = 0;
  s.driver_version = 13000;
  s.host_memory = std::size_t{64} << 30;
  for (auto& row : s.p2p) row.assign(row.size(), true);
  for (Device& d : s.devices) d.dead = d.primary.dead = CUDA_SUCCESS;
  for (const auto& context : s.contexts) context->dead = CUDA_SUCCESS;
  read_environment();
}

KVSIM_CONTROL int kvsim_fail(const char* rules) {
  const auto lock = lock_control();
  return parse_failures(rules) ? 0 : -1;
}

KVSIM_CONTROL void kvsim_fail_none(void) {
  const auto lock = lock_control();
  control().failures.clear();
}

KVSIM_CONTROL void kvsim_set_fabric(int create_code, int export_code) {
  const auto lock = lock_control();
  control().fabric_create = static_cast<CUresult>(create_code);
  control().fabric_export = static_cast<CUresult>(export_code);
}

KVSIM_CONTROL void kvsim_set_host_numa_crash(int on) {
  const auto lock = lock_control();
  control().host_numa_crash = on != 0;
}

KVSIM_CONTROL void kvsim_set_attribute(int device, int attribute, int value) {
  const auto lock = lock_control();
  control().attribute_errors.erase({device, attribute});
  control().attributes[{device, attribute}] = value;
}

KVSIM_CONTROL void kvsim_fail_attribute(int device, int attribute, int code) {
  const auto lock = lock_control();
  control().attribute_errors[{device, attribute}] = static_cast<CUresult>(code);
}

KVSIM_CONTROL void kvsim_set_memory(int device, size_t bytes) {
  const Lock lock(state().mutex);
  state().devices.at(static_cast<std::size_t>(device)).memory = bytes;
}

KVSIM_CONTROL void kvsim_fill_new_memory(unsigned char value) {
  const Lock lock(state().mutex);
  state().new_memory = value;
}

KVSIM_CONTROL void kvsim_set_granularity(size_t bytes) {
  const Lock lock(state().mutex);
  state().granularity = bytes;
}

KVSIM_CONTROL void kvsim_set_driver_version(int version) {
  const Lock lock(state().mutex);
  state().driver_version = version;
}

KVSIM_CONTROL void kvsim_set_p2p(int from, int to, int can) {
  const Lock lock(state().mutex);
  state().p2p.at(static_cast<std::size_t>(from)).at(static_cast<std::size_t>(to)) = can != 0;
}

KVSIM_CONTROL void kvsim_set_peer_access(int no_p2p_code, int any_peer_code) {
  const auto lock = lock_control();
  control().no_p2p = static_cast<CUresult>(no_p2p_code);
  control().peer_set_access = static_cast<CUresult>(any_peer_code);
}

KVSIM_CONTROL void kvsim_hide(const char* name, int hidden) {
  const auto lock = lock_control();
  if (hidden != 0) {
    control().hidden.insert(name);
  } else {
    control().hidden.erase(name);
  }
}

KVSIM_CONTROL void kvsim_hold(const char* name) {
  const auto lock = lock_control();
  control().gates[name] = {};
}

KVSIM_CONTROL void kvsim_hold_until(const char* name, const char* other) {
  const auto lock = lock_control();
  Gate gate;
  gate.until = other;
  control().gates[name] = gate;
}

KVSIM_CONTROL void kvsim_release(const char* name) {
  const auto lock = lock_control();
  control().gates.erase(name);
  control().changed.notify_all();
}

KVSIM_CONTROL unsigned kvsim_waiting(const char* name) {
  const auto lock = lock_control();
  const auto gate = control().gates.find(name);
  return gate == control().gates.end() ? 0 : gate->second.waiting;
}

KVSIM_CONTROL unsigned kvsim_gate_timeouts(void) {
  const auto lock = lock_control();
  return control().gate_timeouts;
}

KVSIM_CONTROL uint64_t kvsim_log_count(const char* name) {
  const auto lock = lock_control();
  std::uint64_t sum = 0;
  for (const auto& [called, count] : control().counts) {
    if (name == nullptr || called == name) sum += count;
  }
  return sum;
}

KVSIM_CONTROL void kvsim_log_clear(void) {
  const auto lock = lock_control();
  control().log.clear();
  control().counts.clear();
}

KVSIM_CONTROL size_t kvsim_log_size(void) {
  const auto lock = lock_control();
  return control().log.size();
}

KVSIM_CONTROL int kvsim_log_line(size_t index, char* text, size_t size) {
  const auto lock = lock_control();
  if (index >= control().log.size()) return -1;
  const LogLine& line = control().log[index];
  return std::snprintf(text, size, "%s%s%s -> %d", line.name.c_str(), line.text.empty() ? "" : " ",
                       line.text.c_str(), static_cast<int>(line.result));
}

KVSIM_CONTROL void kvsim_get_counts(kvsim_counts* counts) {
  const Lock lock(state().mutex);
  const State& s = state();
  *counts = {};
  counts->handles = s.handles.size();
  counts->mappings = s.mappings.size();
  counts->reservations = s.reservations.size();
  for (const auto& [base, r] : s.reservations) counts->reserved_bytes += r.size;
  for (const auto& [base, m] : s.mappings) counts->mapped_bytes += m.size;
  for (const auto& [base, block] : s.blocks) {
    switch (block->kind) {
      case BlockKind::native:
        ++counts->native_blocks;
        counts->native_bytes += block->bytes;
        break;
      case BlockKind::managed:
        ++counts->managed_blocks;
        counts->managed_bytes += block->bytes;
        break;
      case BlockKind::pool:
        ++counts->pool_blocks;
        break;
      case BlockKind::host:
      case BlockKind::registered:
        ++counts->host_blocks;
        break;
      case BlockKind::ipc:
        ++counts->ipc_blocks;
        break;
    }
  }
  for (const Device& d : s.devices) {
    counts->device_bytes += d.used;
    counts->contexts += d.primary.active ? 1 : 0;
  }
  for (const auto& context : s.contexts) counts->contexts += context->active ? 1 : 0;
  counts->streams = s.streams.size();
}

KVSIM_CONTROL uint64_t kvsim_device_bytes(int device) {
  const Lock lock(state().mutex);
  return state().devices.at(static_cast<std::size_t>(device)).used;
}

KVSIM_CONTROL uint64_t kvsim_host_bytes(void) {
  const Lock lock(state().mutex);
  return state().host_used;
}

KVSIM_CONTROL void kvsim_get_traffic(int device, kvsim_traffic* traffic) {
  const Lock lock(state().mutex);
  const Traffic& seen = state().devices.at(static_cast<std::size_t>(device)).tier.traffic;
  *traffic = {seen.fetched, seen.evicted, seen.in_place, seen.local};
}

KVSIM_CONTROL void kvsim_clear_traffic(void) {
  const Lock lock(state().mutex);
  for (Device& d : state().devices) d.tier.traffic = {};
}

KVSIM_CONTROL uint64_t kvsim_device_memory(int device) {
  const Lock lock(state().mutex);
  const auto index = static_cast<std::size_t>(device);
  return index < state().devices.size() ? state().devices[index].memory : 0;
}

KVSIM_CONTROL uint64_t kvsim_violations(void) {
  const Lock lock(state().mutex);
  return state().counters.violations;
}

KVSIM_CONTROL uint64_t kvsim_illegal_accesses(void) {
  const Lock lock(state().mutex);
  return state().counters.illegal_accesses;
}

KVSIM_CONTROL uint64_t kvsim_work_in_flight(void) {
  const Lock lock(state().mutex);
  std::uint64_t sum = 0;
  for (const Stream* stream : state().streams) sum += stream->queue.size();
  return sum;
}

KVSIM_CONTROL size_t kvsim_resident_on_device(uint64_t ptr, size_t bytes) {
  const Lock lock(state().mutex);
  const auto block = find_block(ptr);
  return block != nullptr && block->kind == BlockKind::managed ? bytes_on_device(*block, ptr, bytes)
                                                               : 0;
}

KVSIM_CONTROL size_t kvsim_resident_on_host(uint64_t ptr, size_t bytes) {
  constexpr std::size_t kHostPage = 4096;
  const Lock lock(state().mutex);
  const auto block = find_block(ptr);
  if (block == nullptr || block->kind != BlockKind::managed) return 0;
  const Address end = std::min<Address>(ptr + bytes, block->base + block->bytes);
  std::vector<unsigned char> present((block->taken + kHostPage - 1) / kHostPage);
  if (mincore(block->memory, block->taken, present.data()) != 0) return 0;
  std::size_t sum = 0;
  for (Address at = ptr; at < end;) {
    const std::size_t page = (at - block->base) / kHostPage;
    const Address next = std::min<Address>(end, block->base + (page + 1) * kHostPage);
    const bool taken = block->pages[(at - block->base) / kPage].device >= 0;
    if ((present[page] & 1) != 0 && !taken) sum += next - at;
    at = next;
  }
  return sum;
}

KVSIM_CONTROL int kvsim_peek(uint64_t ptr, void* into, size_t bytes) {
  const Lock lock(state().mutex);
  std::vector<Piece> pieces;
  if (!all_pieces(ptr, bytes, &pieces)) return -1;
  auto* to = static_cast<char*>(into);
  for (const Piece& piece : pieces) to = static_cast<char*>(mempcpy(to, piece.bytes, piece.size));
  return 0;
}

KVSIM_CONTROL int kvsim_poke(uint64_t ptr, const void* from, size_t bytes) {
  const Lock lock(state().mutex);
  std::vector<Piece> pieces;
  if (!all_pieces(ptr, bytes, &pieces)) return -1;
  const auto* source = static_cast<const char*>(from);
  for (const Piece& piece : pieces) {
    std::memcpy(piece.bytes, source, piece.size);
    source += piece.size;
  }
  return 0;
}

KVSIM_CONTROL int kvsim_knows(uint64_t ptr) {
  const Lock lock(state().mutex);
  return is_device_address(ptr) ? 1 : 0;
}

KVSIM_CONTROL int kvsim_access_list(uint64_t ptr, int* devices, int size) {
  const Lock lock(state().mutex);
  const Mapping* mapping = find_mapping(ptr);
  if (mapping == nullptr) return -1;
  int count = 0;
  for (const auto& [device, flags] : mapping->access) {
    if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || device == kHostMemory) continue;
    if (count < size) devices[count] = device;
    ++count;
  }
  return count;
}
