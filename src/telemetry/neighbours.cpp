// The table of neighbours; see neighbours.h. File names as their own build files give them. Not in
// it: what only watches (CUPTI, memray, heaptrack), and what takes the driver's own name (vcuda's
// gpu-manager installs its library as libcuda.so.1): nothing here could tell that from the driver.
#include "telemetry/neighbours.h"

namespace kvshim::telemetry {

namespace {

// A library that hooks cuMemAlloc to keep a process within a quota. Whoever is looked up first gets
// the program's call; kvshim calls the driver itself, past everything behind it (tests/cases,
// neighbours).
constexpr char kQuotaFirst[] =
    "its quota counts what kvshim keeps in host memory as well: set it that much higher";
constexpr char kQuotaLast[] =
    "it does not see what kvshim allocates, so its quota does not hold: name it before "
    "libkvshim.so in LD_PRELOAD, or both in that order in /etc/ld.so.preload";
constexpr char kOwnMemory[] = "such memory goes past kvshim: use one of the two for the KV cache";

constexpr Neighbour kNeighbours[] = {
    // github.com/Project-HAMi/HAMi-core, README.md and src/libvgpu.c
    {"/libvgpu.so", "HAMi-core", "keeps device memory within a quota", kQuotaFirst, kQuotaLast},
    // github.com/coldzerofear/vgpu-manager, library/ and scripts/install_files.sh
    {"/libvgpu-control.so", "vgpu-manager", "keeps device memory within a quota", kQuotaFirst,
     kQuotaLast},
    // github.com/tkestack/vcuda-controller, CMakeLists.txt and IMPLEMENTATION.md
    {"/libcuda-control.so", "vcuda-controller", "keeps device memory within a quota", kQuotaFirst,
     kQuotaLast},
    // github.com/NTHU-LSALAB/Gemini, README.md (KubeShare)
    {"/libgemhook.so", "Gemini, KubeShare", "keeps device memory within a quota", kQuotaFirst,
     kQuotaLast},
    // github.com/grgalex/nvshare, src/hook.c: cuMemAlloc becomes cuMemAllocManaged
    {"/libnvshare.so", "nvshare", "makes every allocation managed memory",
     "nothing is left for kvshim to route: preload one of the two",
     "kvshim has taken its place, and its turns do not hold: preload one of the two"},
    // github.com/fzyzcjy/torch_memory_saver, setup.py: ..._preload, ..._torch, with _cu12, _cu13
    {"/torch_memory_saver_hook_mode_", "torch_memory_saver",
     "maps memory itself (cuMemCreate), to release and restore it", kOwnMemory, kOwnMemory},
    // github.com/ovg-project/kvcached, setup.py: kvcached._C, vmm_ops in older versions
    {"/kvcached/_C.", "kvcached", "maps the KV cache itself (cuMemCreate), page by page",
     kOwnMemory, kOwnMemory},
    {"/kvcached/vmm_ops.", "kvcached", "maps the KV cache itself (cuMemCreate), page by page",
     kOwnMemory, kOwnMemory},
    // NVIDIA Compute Sanitizer, the folder of its command
    {"/libsanitizer-collection.so", "Compute Sanitizer", "checks accesses against allocations",
     "blocks under 2 MiB share a mapping, so that overruns among them pass unseen: "
     "KVSHIM_SMALL=native while checking",
     nullptr},
    // NVIDIA Nsight Compute, target/linux-desktop-*/
    {"/libcuda-injection.so", "Nsight Compute", "saves and restores memory around each kernel",
     "slow with large managed blocks: --replay-mode application, or KVSHIM_LARGE=vmm", nullptr},
    // NVIDIA Nsight Systems, target-linux-*/
    {"/libToolsInjection64.so", "Nsight Systems", "records the driver's calls",
     "its memory rows show kvshim's mappings in place of the program's blocks: nothing to do",
     nullptr},
};

}  // namespace

const Neighbour* neighbour(unsigned index) noexcept {
  return index < sizeof(kNeighbours) / sizeof(*kNeighbours) ? &kNeighbours[index] : nullptr;
}

}  // namespace kvshim::telemetry
