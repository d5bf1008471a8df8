// cuGraph*: what a captured graph can be used for.
#include <algorithm>
#include <atomic>

#include "driver/call.h"

namespace {

using namespace sim;

Graph* known(const std::unordered_set<Graph*>& set, void* handle) {
  auto* graph = static_cast<Graph*>(handle);
  return set.count(graph) != 0 ? graph : nullptr;
}

CUresult instantiate(Api api, CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  Call call(api);
  call.args("graph=%p flags=%llu", static_cast<void*>(handle), flags);
  return call.run(kInit, [&](Lock&) {
    Graph* graph = known(state().graphs, handle);
    if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto* executable = new Graph(*graph);
    state().executables.insert(executable);
    *out = reinterpret_cast<CUgraphExec>(executable);
    return CUDA_SUCCESS;
  });
}

CUresult instantiate_with_log(Api api, CUgraphExec* out, CUgraph graph, CUgraphNode* node,
                              char* log, size_t size) {
  if (node != nullptr) *node = nullptr;
  if (log != nullptr && size > 0) log[0] = '\0';
  return instantiate(api, out, graph, 0);
}

CUresult instantiate_with_params(Api api, CUgraphExec* out, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params != nullptr) params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return instantiate(api, out, graph, params == nullptr ? 0 : params->flags);
}

CUresult upload(Api api, CUgraphExec handle, CUstream stream_handle) {
  Call call(api);
  return call.run(kInit, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    if (known(state().executables, handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    find_stream(api, stream_handle, &why);
    return why;
  });
}

CUresult launch(Api api, CUgraphExec handle, CUstream stream_handle) {
  Call call(api);
  call.args("exec=%p stream=%p", static_cast<void*>(handle), static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    Graph* graph = known(state().executables, handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    std::vector<Range> ranges;
    for (const auto& node : graph->nodes) {
      ranges.insert(ranges.end(), node->ranges.begin(), node->ranges.end());
    }
    return submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_GRAPH, ranges,
        [nodes = graph->nodes](Context& context) {
          for (const auto& node : nodes) {
            const CUresult result = node->run(context);
            if (result != CUDA_SUCCESS) return result;
          }
          return CUDA_SUCCESS;
        },
        false);
  });
}

}  // namespace

KVSIM_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  Call call({"cuGraphCreate"});
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    auto* graph = new Graph;
    state().graphs.insert(graph);
    *out = reinterpret_cast<CUgraph>(graph);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGraphDestroy(CUgraph handle) {
  Call call({"cuGraphDestroy"});
  call.args("graph=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    Graph* graph = known(state().graphs, handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    state().graphs.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  Call call({"cuGraphExecDestroy"});
  call.args("exec=%p", static_cast<void*>(handle));
  return call.run(kInit, [&](Lock&) {
    Graph* graph = known(state().executables, handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    state().executables.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  Call call({"cuGraphGetNodes"});
  return call.run(kInit, [&](Lock&) {
    Graph* graph = known(state().graphs, handle);
    if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (nodes == nullptr) {
      *count = graph->nodes.size();
      return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < *count; ++i) {
      nodes[i] =
          i < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(graph->nodes[i].get()) : nullptr;
    }
    *count = std::min(*count, graph->nodes.size());
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  Call call({"cuGraphNodeGetType"});
  return call.run(kInit, [&](Lock&) {
    if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = reinterpret_cast<Node*>(node)->type;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph g, CUgraphNode* node, char* log,
                                      size_t size) {
  return instantiate_with_log({"cuGraphInstantiate"}, out, g, node, log, size);
}
KVSIM_API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph g, CUgraphNode* node, char* log,
                                         size_t size) {
  return instantiate_with_log({"cuGraphInstantiate_v2"}, out, g, node, log, size);
}
KVSIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g,
                                               unsigned long long flags) {
  return instantiate({"cuGraphInstantiateWithFlags"}, out, g, flags);
}
KVSIM_TWIN(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, instantiate_with_params,
           (CUgraphExec * out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p), (out, g, p))
KVSIM_TWIN(cuGraphLaunch, cuGraphLaunch_ptsz, launch, (CUgraphExec g, CUstream s), (g, s))
KVSIM_TWIN(cuGraphUpload, cuGraphUpload_ptsz, upload, (CUgraphExec g, CUstream s), (g, s))
