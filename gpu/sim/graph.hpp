/* What captured graphs are made of: capture.cpp makes them, graph.cpp launches them. */
#ifndef ASSAY_SIM_GRAPH_HPP
#define ASSAY_SIM_GRAPH_HPP

#include "schedule_queue.hpp"

#include "cuda_runtime_api.h"

#include <memory>
#include <thread>

namespace sim
{

struct graph_node {
    std::shared_ptr<work_box> box;
    std::vector<size_t> after;
    size_t lane; /* nodes of one are in order: for the race checker */
};

typedef std::vector<graph_node> graph_nodes;

struct graph_capture {
    CUstream_st *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    cudaError_t invalid; /* what invalidated it, else cudaSuccess */
    std::shared_ptr<graph_nodes> nodes;
    std::vector<size_t> lane_end; /* the last node of each lane */
};

/* The capture is over, whatever comes; says why, and returns the error. */
cudaError_t capture_invalidate(graph_capture *c, cudaError_t error, const char *call, const char *why);

} /* namespace sim */

struct CUgraph_st {
    std::shared_ptr<sim::graph_nodes> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<const sim::graph_nodes> nodes;
    uint64_t serial;
};

#endif
