// cuGraphAdd*Node and cuGraphExec*NodeSetParams for memcpy, memset and empty nodes. A graph runs
// its nodes in the order in which they were added, which every order of dependencies allows, since
// a node's dependencies exist before it does.
#include <algorithm>

#include "driver/transfer.h"

namespace {

using namespace sim;

std::shared_ptr<Node>* find_node(Graph& graph, const void* handle) {
  const auto it = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
    return node.get() == handle || node->original == handle;
  });
  return it == graph.nodes.end() ? nullptr : &*it;
}

std::shared_ptr<Node> copy_node(const CUDA_MEMCPY3D* params, CUcontext handle) {
  Context* context = find_context(handle);
  Copy what;
  if (context == nullptr || !describe(params, &what) || what.to.span() == 0 ||
      !copy_fits(what, *context))
    return nullptr;
  auto node = std::make_shared<Node>();
  node->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  node->ranges = {{what.to.base, what.to.span()}, {what.from.base, what.from.span()}};
  node->run = [what, context](Context&) { return do_copy(what, *context); };
  return node;
}

std::shared_ptr<Node> fill_node(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext handle) {
  Context* context = find_context(handle);
  if (context == nullptr || params == nullptr) return nullptr;
  const unsigned unit = params->elementSize;
  if (unit != 1 && unit != 2 && unit != 4) return nullptr;
  Rect rect{params->dst, params->pitch, params->width * unit, params->height};
  if (rect.span() == 0 || params->dst % unit != 0 ||
      (params->height > 1 && params->pitch < rect.width) || !is_device_address(params->dst))
    return nullptr;
  auto node = std::make_shared<Node>();
  node->type = CU_GRAPH_NODE_TYPE_MEMSET;
  node->ranges = {{rect.base, rect.span()}};
  node->run = [rect, unit, value = params->value, context](Context&) {
    return do_fill(rect, value, unit, *context);
  };
  return node;
}

template <typename Make>
CUresult add(const char* name, CUgraphNode* out, CUgraph handle, const CUgraphNode* after,
             size_t count, Make make) {
  Call call({name});
  call.args("graph=%p dependencies=%zu", static_cast<void*>(handle), count);
  return call.run(kInit, [&](Lock&) {
    auto* graph = reinterpret_cast<Graph*>(handle);
    if (out == nullptr || state().graphs.count(graph) == 0 || (after == nullptr && count != 0))
      return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      if (find_node(*graph, after[i]) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Node> node = make();
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    graph->nodes.push_back(node);
    *out = reinterpret_cast<CUgraphNode>(node.get());
    return CUDA_SUCCESS;
  });
}

template <typename Make>
CUresult change(const char* name, CUgraphExec handle, CUgraphNode which, Make make) {
  Call call({name});
  call.args("exec=%p node=%p", static_cast<void*>(handle), static_cast<void*>(which));
  return call.run(kInit, [&](Lock&) {
    auto* graph = reinterpret_cast<Graph*>(handle);
    if (state().executables.count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Node>* place = find_node(*graph, which);
    const std::shared_ptr<Node> node = place == nullptr ? nullptr : make();
    if (node == nullptr || node->type != (*place)->type) return CUDA_ERROR_INVALID_VALUE;
    node->original = which;
    *place = node;
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVSIM_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                       size_t count) {
  return add("cuGraphAddEmptyNode", out, graph, after, count, [] {
    auto node = std::make_shared<Node>();
    node->run = [](Context&) { return CUDA_SUCCESS; };
    return node;
  });
}

KVSIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                        size_t count, const CUDA_MEMCPY3D* params, CUcontext ctx) {
  return add("cuGraphAddMemcpyNode", out, graph, after, count,
             [&] { return copy_node(params, ctx); });
}

KVSIM_API CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                        size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext ctx) {
  return add("cuGraphAddMemsetNode", out, graph, after, count,
             [&] { return fill_node(params, ctx); });
}

KVSIM_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_MEMCPY3D* params, CUcontext ctx) {
  return change("cuGraphExecMemcpyNodeSetParams", exec, node,
                [&] { return copy_node(params, ctx); });
}

KVSIM_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_MEMSET_NODE_PARAMS* params,
                                                  CUcontext ctx) {
  return change("cuGraphExecMemsetNodeSetParams", exec, node,
                [&] { return fill_node(params, ctx); });
}
