// Graphs: nodes with dependencies, frozen into a plan when instantiated, replayed as one operation of a stream.
#ifndef G4_SOFT_GRAPH_H
#define G4_SOFT_GRAPH_H

#include <memory>
#include <vector>

#include "stream.h"
#include "work.h"

namespace g4soft {

struct Plan;

// The work of a node; which member counts is said by the type.
struct NodeWork {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  KernelLaunch kernel;
  Copy copy;
  Fill fill;
  HostCall host;
  std::shared_ptr<Event> event;         // event record and event wait nodes
  std::shared_ptr<const Plan> child;    // frozen when added, as the driver clones it
};

struct Node {
  Graph* graph = nullptr;
  std::vector<Node*> after;
  NodeWork work;
  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  Node* add(NodeWork, std::vector<Node*> after);
};

// A graph in an order that respects its dependencies.
struct Plan {
  struct Step {
    NodeWork work;
    std::vector<uint32_t> before;  // steps that wait for this one
    uint32_t after_count = 0;
  };
  std::vector<Step> steps;
};
// Null when the graph has a cycle.
std::shared_ptr<const Plan> make_plan(const Graph&);

struct GraphExec {
  std::shared_ptr<Context> ctx;
  std::shared_ptr<const Plan> plan;
  uint64_t flags = 0;
  Dependency last;  // its latest launch: the next one waits for it
};

}  // namespace g4soft

#endif
