// A capture with a kernel before and after, and its graph: shared by the checks of capture.
#pragma once

#include <string>

#include "gpu.h"

namespace contract {

inline constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
inline constexpr CUstreamCaptureMode kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
inline constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
inline constexpr CUstreamCaptureMode kModes[] = {kGlobal, kThreadLocal, kRelaxed};

inline const char* name_of(CUstreamCaptureMode mode) {
  return mode == kGlobal ? "global" : mode == kThreadLocal ? "thread-local" : "relaxed";
}

class Graph {
 public:
  explicit Graph(CUgraph graph) : graph_(graph) {
    CALL(cu.cuGraphInstantiateWithFlags(&exec_, graph, 0));
  }
  ~Graph() {
    cu.cuGraphExecDestroy(exec_);
    cu.cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  void launch(CUstream stream) const { CALL(cu.cuGraphLaunch(exec_, stream)); }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

// Captures a kernel, then what `body` does, then another kernel. The kernels write to `target`.
class Capture {
 public:
  explicit Capture(CUstreamCaptureMode mode, unsigned flags = CU_STREAM_DEFAULT)
      : stream_(flags), target_(4096) {
    load_kernels();
    CALL(cu.cuMemsetD8(target_, 0, 4096));
    CALL(cu.cuCtxSynchronize());
    CALL(cu.cuStreamBeginCapture(stream_, mode));
    fill(stream_, target_, 1024, 40);
  }
  ~Capture() {
    CUgraph graph = nullptr;
    if (!ended_ && cu.cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS) {
      cu.cuGraphDestroy(graph);
    }
  }
  const Stream& stream() const { return stream_; }

  // The capture is alive: it ends well, and its graph does its work.
  void expect_alive(const char* what) {
    CUgraph graph = nullptr;
    ended_ = true;
    const CUresult code = cu.cuStreamEndCapture(stream_, &graph);
    if (code != CUDA_SUCCESS) {
      fail(__FILE__, __LINE__,
           std::string(what) + ": the capture ends with " + describe_result(code) + ", expected 0");
      return;
    }
    const Graph executable(graph);
    executable.launch(stream_);
    stream_.finish();
    EXPECT(holds_word(target_, 1024, 40));
  }

  void expect_dead(const char* what) {
    CUgraph graph = nullptr;
    ended_ = true;
    const CUresult code = cu.cuStreamEndCapture(stream_, &graph);
    if (code != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
      fail(__FILE__, __LINE__,
           std::string(what) + ": the capture ends with " + describe_result(code) +
               ", expected 901");
    }
    EXPECT(graph == nullptr);
  }

  bool ends_well() {  // for what is only observed
    CUgraph graph = nullptr;
    ended_ = true;
    const bool good = cu.cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS;
    if (good) cu.cuGraphDestroy(graph);
    return good;
  }

 private:
  Stream stream_;
  Block target_;
  bool ended_ = false;
};

inline void expect_capture_rules(const char* what, CUresult code, CUstreamCaptureMode mode,
                                 Capture& capture) {
  const int wanted = mode == kRelaxed ? 0 : 900;
  if (code != wanted) {
    fail(__FILE__, __LINE__,
         std::string(what) + " in a " + name_of(mode) + " capture gives " + describe_result(code) +
             ", expected " + describe_result(wanted));
  }
  if (wanted == 0) {
    capture.expect_alive(name_of(mode));
  } else {
    capture.expect_dead(name_of(mode));
  }
}

}  // namespace contract
