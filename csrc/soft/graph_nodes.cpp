// Looking at graphs, and building small ones by hand.
#include <algorithm>
#include <cstring>

#include "context.h"
#include "graph.h"
#include "module.h"

using namespace g4soft;

namespace {

// A node's handle is its address; which graph holds it is found by looking.
Node* find_node(Lock&, CUgraphNode handle) {
  Node* found = nullptr;
  world().graphs.each([&](const std::shared_ptr<Graph>& g) {
    for (const auto& n : g->nodes)
      if (n->handle() == handle) found = n.get();
  });
  return found;
}

// The usual protocol of lists: without room, the count; with room, as many as fit, the rest null.
template <class T>
CUresult list(const std::vector<T>& all, T* out, size_t* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!out) return *count = all.size(), CUDA_SUCCESS;
  for (size_t i = 0; i < *count; i++) out[i] = i < all.size() ? all[i] : T{};
  *count = std::min(*count, all.size());
  return CUDA_SUCCESS;
}

CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count, NodeWork work) {
  if (!out || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> after;
  for (size_t i = 0; i < count; i++) {
    Node* n = find_node(lock, dependencies[i]);
    if (!n || n->graph != graph.get() || std::find(after.begin(), after.end(), n) != after.end())
      return CUDA_ERROR_INVALID_VALUE;
    after.push_back(n);
  }
  *out = graph->add(std::move(work), std::move(after))->handle();
  return CUDA_SUCCESS;
}

}  // namespace

G4_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (const auto& n : graph->nodes) all.push_back(n->handle());
  return list(all, nodes, count);
}

G4_API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (const auto& n : graph->nodes)
    if (n->after.empty()) all.push_back(n->handle());
  return list(all, nodes, count);
}

G4_API CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                                   size_t* count) {
  G4_ENTER(kInitialized);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  size_t n = 0;
  for (const auto& node : graph->nodes)
    for (Node* before : node->after) {
      if (from && to && n < *count) {
        from[n] = before->handle();
        to[n] = node->handle();
        if (data) {
          std::memset(&data[n], 0, sizeof data[n]);
          if (node->work.kernel.dependent) data[n].type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        }
      }
      n++;
    }
  *count = from && to ? std::min(*count, n) : n;
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* out, CUgraphEdgeData* data,
                                              size_t* count) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  Node* node = find_node(lock, handle);
  if (!node || !count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (Node* n : node->after) all.push_back(n->handle());
  if (data && out) std::memset(data, 0, *count * sizeof *data);
  return list(all, out, count);
}

G4_API CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* out) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  Node* node = find_node(lock, handle);
  if (!node || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = node->work.type;
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  Node* node = find_node(lock, handle);
  if (!node || !out || node->work.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  KernelLaunch& k = node->work.kernel;
  thread_local void* params[1];  // the driver's own storage, good until the node changes
  params[0] = k.params.data();
  *out = {};
  out->func = reinterpret_cast<CUfunction>(k.function.get());
  out->gridDimX = k.grid[0], out->gridDimY = k.grid[1], out->gridDimZ = k.grid[2];
  out->blockDimX = k.block[0], out->blockDimY = k.block[1], out->blockDimZ = k.block[2];
  out->sharedMemBytes = k.shared_bytes;
  out->kernelParams = params;
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  G4_ENTER(kInitialized);
  return add(out, graph, dependencies, count, NodeWork{});
}

G4_API CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                         CUgraph child) {
  G4_ENTER(kInitialized);
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_GRAPH;
  {
    Lock lock(world().mutex);
    const auto inner = world().graphs.find(child);
    if (!inner || child == graph) return CUDA_ERROR_INVALID_VALUE;
    work.child = make_plan(*inner);
  }
  if (!work.child) return CUDA_ERROR_INVALID_VALUE;
  return add(out, graph, dependencies, count, std::move(work));
}

G4_API CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                          const CUgraphEdgeData*, size_t count) {
  G4_ENTER(kInitialized);
  if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    Node *a = find_node(lock, from[i]), *b = find_node(lock, to[i]);
    if (!a || !b || a == b || a->graph != graph.get() || b->graph != graph.get()) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(b->after.begin(), b->after.end(), a) != b->after.end()) return CUDA_ERROR_INVALID_VALUE;
    b->after.push_back(a);
  }
  return CUDA_SUCCESS;
}
