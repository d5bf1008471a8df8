// cuMemcpy*: copies between linear memory in one, two and three dimensions. Arrays do not exist
// here.
#include "driver/transfer.h"

namespace {

using namespace sim;

Address address_of(const void* p) {
  return reinterpret_cast<Address>(p);
}

Copy linear(Address to, Address from, size_t n, Side to_side, Side from_side, bool peer = false) {
  return {{to, n, n, 1}, {from, n, n, 1}, to_side, from_side, peer};
}

CUresult any(Api api, CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy(api, linear(to, from, n, Side::any, Side::any), nullptr, false);
}
CUresult any_async(Api api, CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy(api, linear(to, from, n, Side::any, Side::any), s, true);
}
CUresult to_device(Api api, CUdeviceptr to, const void* from, size_t n) {
  return copy(api, linear(to, address_of(from), n, Side::device, Side::any), nullptr, false);
}
CUresult to_device_async(Api api, CUdeviceptr to, const void* from, size_t n, CUstream s) {
  return copy(api, linear(to, address_of(from), n, Side::device, Side::any), s, true);
}
CUresult to_host(Api api, void* to, CUdeviceptr from, size_t n) {
  return copy(api, linear(address_of(to), from, n, Side::any, Side::device), nullptr, false);
}
CUresult to_host_async(Api api, void* to, CUdeviceptr from, size_t n, CUstream s) {
  return copy(api, linear(address_of(to), from, n, Side::any, Side::device), s, true);
}
CUresult on_device(Api api, CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy(api, linear(to, from, n, Side::device, Side::device), nullptr, true);
}
CUresult on_device_async(Api api, CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy(api, linear(to, from, n, Side::device, Side::device), s, true);
}
CUresult peer(Api api, CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n) {
  return copy(api, linear(to, from, n, Side::device, Side::device, true), nullptr, true);
}
CUresult peer_async(Api api, CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n,
                    CUstream s) {
  return copy(api, linear(to, from, n, Side::device, Side::device, true), s, true);
}

// Where a side begins: `at` is how many bytes into the memory that it names.
bool side(CUmemorytype type, const void* host, CUdeviceptr device, size_t pitch, size_t at,
          Rect* rect, Side* out) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      rect->base = address_of(host);
      *out = Side::any;
      break;
    case CU_MEMORYTYPE_DEVICE:
      rect->base = device;
      *out = Side::device;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      rect->base = device;
      *out = Side::any;
      break;
    default:
      return false;
  }
  rect->base += at;
  rect->pitch = pitch;
  return true;
}

bool describe(const CUDA_MEMCPY2D* c, Copy* what) {
  if (c == nullptr) return false;
  what->to.width = what->from.width = c->WidthInBytes;
  what->to.height = what->from.height = c->Height;
  return side(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch,
              c->srcY * c->srcPitch + c->srcXInBytes, &what->from, &what->from_side) &&
         side(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch,
              c->dstY * c->dstPitch + c->dstXInBytes, &what->to, &what->to_side);
}

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have these fields in common.
template <typename Box>
bool describe_box(const Box* c, Copy* what) {
  if (c == nullptr) return false;
  what->to.width = what->from.width = c->WidthInBytes;
  what->to.height = what->from.height = c->Height;
  what->to.depth = what->from.depth = c->Depth;
  what->from.layer = c->srcPitch * c->srcHeight;
  what->to.layer = c->dstPitch * c->dstHeight;
  const bool rows = c->Height > 1 || c->Depth > 1;
  if (rows && (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes)) return false;
  if (c->Depth > 1 && (c->srcHeight < c->Height || c->dstHeight < c->Height)) return false;
  return side(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch,
              c->srcZ * what->from.layer + c->srcY * c->srcPitch + c->srcXInBytes, &what->from,
              &what->from_side) &&
         side(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch,
              c->dstZ * what->to.layer + c->dstY * c->dstPitch + c->dstXInBytes, &what->to,
              &what->to_side);
}

CUresult rect(Api api, const CUDA_MEMCPY2D* c) {
  Copy what;
  return describe(c, &what) ? copy(api, what, nullptr, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult rect_async(Api api, const CUDA_MEMCPY2D* c, CUstream s) {
  Copy what;
  return describe(c, &what) ? copy(api, what, s, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult box(Api api, const CUDA_MEMCPY3D* c) {
  Copy what;
  return describe_box(c, &what) ? copy(api, what, nullptr, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult box_async(Api api, const CUDA_MEMCPY3D* c, CUstream s) {
  Copy what;
  return describe_box(c, &what) ? copy(api, what, s, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult rect_peer_async(Api api, const CUDA_MEMCPY3D_PEER* c, CUstream s) {
  Copy what;
  what.peer = true;
  return describe_box(c, &what) ? copy(api, what, s, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult rect_peer(Api api, const CUDA_MEMCPY3D_PEER* c) {
  return rect_peer_async(api, c, nullptr);
}

}  // namespace

bool sim::describe(const CUDA_MEMCPY3D* c, Copy* what) {
  return describe_box(c, what);
}

KVSIM_TWIN(cuMemcpy, cuMemcpy_ptds, any, (CUdeviceptr d, CUdeviceptr s, size_t n), (d, s, n))
KVSIM_TWIN(cuMemcpyAsync, cuMemcpyAsync_ptsz, any_async,
           (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), (d, s, n, h))
KVSIM_TWIN(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, to_device,
           (CUdeviceptr d, const void* s, size_t n), (d, s, n))
KVSIM_TWIN(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, to_device_async,
           (CUdeviceptr d, const void* s, size_t n, CUstream h), (d, s, n, h))
KVSIM_TWIN(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, to_host, (void* d, CUdeviceptr s, size_t n),
           (d, s, n))
KVSIM_TWIN(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, to_host_async,
           (void* d, CUdeviceptr s, size_t n, CUstream h), (d, s, n, h))
KVSIM_TWIN(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, on_device,
           (CUdeviceptr d, CUdeviceptr s, size_t n), (d, s, n))
KVSIM_TWIN(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, on_device_async,
           (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), (d, s, n, h))
KVSIM_TWIN(cuMemcpyPeer, cuMemcpyPeer_ptds, peer,
           (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n), (d, dc, s, sc, n))
KVSIM_TWIN(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, peer_async,
           (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n, CUstream h),
           (d, dc, s, sc, n, h))
KVSIM_TWIN(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, rect, (const CUDA_MEMCPY2D* c), (c))
KVSIM_TWIN(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, rect, (const CUDA_MEMCPY2D* c), (c))
KVSIM_TWIN(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, rect_async,
           (const CUDA_MEMCPY2D* c, CUstream h), (c, h))
KVSIM_TWIN(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, box, (const CUDA_MEMCPY3D* c), (c))
KVSIM_TWIN(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, box_async,
           (const CUDA_MEMCPY3D* c, CUstream h), (c, h))
KVSIM_TWIN(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, rect_peer, (const CUDA_MEMCPY3D_PEER* c), (c))
KVSIM_TWIN(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, rect_peer_async,
           (const CUDA_MEMCPY3D_PEER* c, CUstream h), (c, h))
