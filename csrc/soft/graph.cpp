#include "graph.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"
#include "module.h"

namespace g4soft {

Node* Graph::add(NodeWork work, std::vector<Node*> after) {
  auto node = std::make_unique<Node>();
  node->graph = this;
  node->work = std::move(work);
  node->after = std::move(after);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

std::shared_ptr<const Plan> make_plan(const Graph& graph) {
  std::unordered_map<const Node*, uint32_t> index;
  for (uint32_t i = 0; i < graph.nodes.size(); i++) index[graph.nodes[i].get()] = i;
  auto plan = std::make_shared<Plan>();
  plan->steps.resize(graph.nodes.size());
  for (uint32_t i = 0; i < graph.nodes.size(); i++) {
    const Node& node = *graph.nodes[i];
    plan->steps[i].work = node.work;
    plan->steps[i].after_count = (uint32_t)node.after.size();
    for (const Node* before : node.after) plan->steps[index.at(before)].before.push_back(i);
  }
  // Kahn's order exists exactly when there is no cycle.
  std::vector<uint32_t> waits(plan->steps.size());
  std::deque<uint32_t> ready;
  for (uint32_t i = 0; i < waits.size(); i++)
    if (!(waits[i] = plan->steps[i].after_count)) ready.push_back(i);
  size_t done = 0;
  for (; !ready.empty(); done++) {
    const uint32_t i = ready.front();
    ready.pop_front();
    for (uint32_t next : plan->steps[i].before)
      if (!--waits[next]) ready.push_back(next);
  }
  return done == plan->steps.size() ? plan : nullptr;
}

namespace {

// What the event nodes of one launch stand for: records made, and waits bound, when it was launched.
using EventBindings = std::unordered_map<const NodeWork*, std::shared_ptr<EventRecord>>;

void bind_events(const Plan& plan, EventBindings& bindings) {
  for (const Plan::Step& s : plan.steps) {
    if (s.work.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      bindings[&s.work] = s.work.event->record = std::make_shared<EventRecord>();
      s.work.event->capture = nullptr;
    } else if (s.work.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
      bindings[&s.work] = s.work.event->record;
    } else if (s.work.child) {
      bind_events(*s.work.child, bindings);
    }
  }
}

// A replay that an error cut short still ends the waits for its records.
void settle(const EventBindings& bindings) {
  Lock lock(world().mutex);
  for (const auto& entry : bindings)
    if (entry.first->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) entry.second->done = true;
  world().progress.notify_all();
}

void replay(Context&, const Plan&, const EventBindings&, uint64_t salt);

void run_step(Context& ctx, const NodeWork& work, const EventBindings& bindings, uint64_t salt) {
  switch (work.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: execute(ctx, work.kernel, salt); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: execute(ctx, work.copy); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: execute(ctx, work.fill); break;
    case CU_GRAPH_NODE_TYPE_HOST: execute(ctx, work.host); break;
    case CU_GRAPH_NODE_TYPE_GRAPH: replay(ctx, *work.child, bindings, salt); return;
    case CU_GRAPH_NODE_TYPE_EMPTY: break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
      const auto it = bindings.find(&work);
      Lock lock(world().mutex);
      if (it->second) world().progress.wait(lock, [&] { return it->second->done || ctx.sticky; });
      break;
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
      Lock lock(world().mutex);
      const auto& record = bindings.find(&work)->second;
      record->time_ns = now_ns();
      record->done = true;
      world().progress.notify_all();
      break;
    }
  }
  G4_COUNT(nodes_run);
}

// Whether `next` may begin before `work` ends: both kernels, joined by a dependent-launch edge.
bool may_overlap(const NodeWork& work, const NodeWork& next, const Plan::Step& step) {
  return work.type == CU_GRAPH_NODE_TYPE_KERNEL && next.type == CU_GRAPH_NODE_TYPE_KERNEL && next.kernel.dependent &&
         step.after_count == 1;
}

void replay(Context& ctx, const Plan& plan, const EventBindings& bindings, uint64_t salt) {
  const uint64_t seed = options().seed;
  std::vector<uint32_t> waits(plan.steps.size());
  std::deque<uint32_t> ready;
  for (uint32_t i = 0; i < waits.size(); i++)
    if (!(waits[i] = plan.steps[i].after_count)) ready.push_back(i);
  const auto finish = [&](uint32_t i) {
    for (uint32_t next : plan.steps[i].before)
      if (!--waits[next]) ready.push_back(next);
  };
  while (!ready.empty() && !ctx.sticky) {
    // Branches are independent: a seed takes any of the ready nodes, otherwise the oldest.
    const size_t pick = seed && ready.size() > 1 ? mix(seed ^ salt ^ ready.front()) % ready.size() : 0;
    const uint32_t i = ready[pick];
    ready.erase(ready.begin() + (long)pick);
    const Plan::Step& step = plan.steps[i];
    const uint64_t step_salt = mix(salt + i);
    if (step.before.size() == 1 && options().early_blocks &&
        may_overlap(step.work, plan.steps[step.before[0]].work, plan.steps[step.before[0]])) {
      const uint32_t next = step.before[0];
      execute_pair(ctx, step.work.kernel, plan.steps[next].work.kernel, step_salt);
      G4_COUNT(nodes_run, 2);
      waits[next] = 0;
      finish(next);
      continue;
    }
    run_step(ctx, step.work, bindings, step_salt);
    finish(i);
  }
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  if (flags & ~15ull) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    return flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH ? CUDA_ERROR_INVALID_VALUE
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
  G4_TRY(armed(Startup::kInstantiation, "cuGraphInstantiate"));
  Lock lock(world().mutex);
  const auto graph = world().graphs.find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  auto exec = std::make_shared<GraphExec>();
  exec->ctx = current();
  exec->flags = flags;
  exec->plan = make_plan(*graph);
  if (!exec->plan) return CUDA_ERROR_INVALID_VALUE;
  G4_COUNT(instantiations);
  world().execs.add(exec);
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace g4soft

using namespace g4soft;

// ---- Driver functions: instantiation and launch --------------------------------------------------------------------

G4_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  G4_ENTER(kUnsafe);
  return instantiate(out, graph, flags);
}

G4_API CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  G4_ENTER(kUnsafe);
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = instantiate(out, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out = error ? 1 : 0;
  return error;
}

G4_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  const auto exec = world().execs.find(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  if (exec->ctx != s->ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) return capture_child(lock, *s, exec->plan);
  G4_TRY(check_legacy(lock, *s, "cuGraphLaunch"));
  G4_COUNT(graph_launches);
  auto bindings = std::make_shared<EventBindings>();
  bind_events(*exec->plan, *bindings);
  Operation op;
  if (exec->last.stream) op.after.push_back(exec->last);  // two replays of one graph do not overlap
  const uint64_t salt = mix(s->id * 0x10001 + s->submitted + 1);
  op.run = [plan = exec->plan, bindings, ctx = s->ctx, salt] {
    replay(*ctx, *plan, *bindings, salt);
    if (ctx->sticky) settle(*bindings);
  };
  op.even_if_broken = !bindings->empty();
  exec->last = {s, submit(lock, *s, std::move(op)), nullptr};
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  if (!world().execs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(find_stream(lock, stream, &s));
  return check_not_capturing(lock, *s, "cuGraphUpload");
}

G4_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  return world().execs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

G4_API CUresult cuGraphExecGetFlags(CUgraphExec handle, uint64_t* flags) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  const auto exec = world().execs.find(handle);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  G4_ENTER(kInitialized);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  auto graph = std::make_shared<Graph>();
  Lock lock(world().mutex);
  world().graphs.add(graph);
  *out = graph->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuGraphDestroy(CUgraph handle) {
  G4_ENTER(kInitialized);
  Lock lock(world().mutex);
  return world().graphs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
