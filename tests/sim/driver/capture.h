// Stream capture and graphs. A graph here is the list of its operations in capture order; a launch
// runs them one after the other, which every dependency of a capture allows.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "driver/work.h"

namespace sim {

// One recorded operation. `make` resolves its addresses and does it, as Work::body.
struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<CUresult(Context&)> run;
  std::vector<Range> ranges;
  const void* original = nullptr;  // an executable's changed node: the graph's node it stands for
};

struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
};

struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  Context* context = nullptr;
  bool active = true;
  bool dead = false;  // some forbidden call happened: EndCapture answers 901
  Graph* graph = nullptr;
  std::vector<Stream*> joined;    // by waiting for an event of the capture
  std::vector<Stream*> unmerged;  // those that the origin has not waited for since
};

// A call that a capture forbids in general (allocation, free): 900 and the captures concerned die,
// or 0. Depends on the thread's mode and the captures' modes.
CUresult refuse_unsafe_call();
// Synchronising a context: 900 in every mode when one of its streams captures.
CUresult refuse_context_sync(Context& context);
// Use of the legacy stream: 906 when a blocking stream of its context captures. Without kill the
// capture lives on.
CUresult refuse_legacy_use(Stream& stream, bool kill = true);
// Waiting for a stream or asking it: 906 and 900 as above, 900 for a stream that captures.
CUresult refuse_stream_wait(Stream& stream);

// Work for a stream: records it when the stream captures, else runs it. `run` is called without the
// lock held.
CUresult submit(Lock& lock, Stream& stream, CUgraphNodeType type, std::vector<Range> ranges,
                std::function<CUresult(Context&)> run, bool may_run_inline);

}  // namespace sim
