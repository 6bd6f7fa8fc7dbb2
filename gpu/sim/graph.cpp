/* Launches of captured graphs.
 *
 * A launched graph is one piece of work of its stream; its nodes run in any order that their edges allow: with stream seed 0 the youngest that
 * may run first, so that nobody relies on the order of capture, with another seed in a drawn one.  Pointers are kept and memory is read
 * when the graph runs, pageable host memory, too.  Refused by name: graphs made node by node, their updates, nodes for memory, graphs
 * inside graphs. */
#include "graph.hpp"

#include <algorithm>

using namespace sim;

namespace
{

struct graph_run {
    std::shared_ptr<const graph_nodes> nodes;
    CUstream_st *stream; /* lives while work of it is queued */
    uint64_t serial;
    random_stream random;
};

/* The next of the nodes whose predecessors have run. */
size_t choose(random_stream &random, const std::vector<size_t> &ready)
{
    return config().stream_seed == 0
               ? static_cast<size_t>(std::max_element(ready.begin(), ready.end()) - ready.begin())
               : static_cast<size_t>(random.below(ready.size()));
}

assay_sim_step graph_step(void *state)
{
    graph_run *g = static_cast<graph_run *>(state);
    const graph_nodes &nodes = *g->nodes;
    const race_clock before = g->stream->clock;
    const uint64_t first_lane = uint64_t{1} << 63 | g->serial << 24;
    std::vector<race_clock> clock(nodes.size());
    std::vector<size_t> missing(nodes.size()), ready;
    std::vector<std::vector<size_t>> behind(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
        missing[i] = nodes[i].after.size();
        for (const size_t a : nodes[i].after) {
            behind[a].push_back(i);
        }
        if (missing[i] == 0) {
            ready.push_back(i);
        }
    }
    while (!ready.empty()) {
        const size_t at = choose(g->random, ready), i = ready[at];
        ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(at));
        const assay_sim_work &work = nodes[i].box->work;
        clock[i] = before;
        for (const size_t a : nodes[i].after) {
            clock[i].join(clock[a]);
        }
        race_work(clock[i], first_lane | nodes[i].lane, work.name);
        const assay_sim_step result = work.step(work.state);
        if (result != ASSAY_SIM_DONE) {
            return ASSAY_SIM_FAILED;
        }
        g->stream->clock.join(clock[i]);
        for (const size_t b : behind[i]) {
            if (--missing[b] == 0) {
                ready.push_back(b);
            }
        }
    }
    return ASSAY_SIM_DONE;
}

void graph_destroy(void *state)
{
    delete static_cast<graph_run *>(state);
}

} /* namespace */

extern "C" {

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes)
{
    if (graph == nullptr || numNodes == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    const graph_nodes &all = *graph->nodes;
    for (size_t i = 0; nodes != nullptr && i < *numNodes; ++i) {
        nodes[i] =
            i < all.size() ? reinterpret_cast<cudaGraphNode_t>(const_cast<graph_node *>(&all[i])) : nullptr;
    }
    *numNodes = all.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
    static std::atomic<uint64_t> serials{0};
    if (pGraphExec == nullptr || graph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    if (flags != 0) {
        return refuse(cudaErrorNotSupported, "unsupported", "cudaGraphInstantiate: flags %llu", flags);
    }
    *pGraphExec = new CUgraphExec_st{graph->nodes, ++serials};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    (void)stream;
    return record_error(graphExec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    CUstream_st *s = stream_resolve(stream);
    if (graphExec == nullptr || s == nullptr) {
        return record_error(s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    if (s->capture) {
        return capture_invalidate(s->capture, cudaErrorNotSupported, "cudaGraphLaunch",
                                  "a graph inside a graph is not modelled");
    }
    const assay_sim_work work = {"cudaGraphLaunch", graph_step, nullptr, graph_destroy,
                                 new graph_run{graphExec->nodes, s, graphExec->serial,
                                               random_stream{mix(config().stream_seed, graphExec->serial)}}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    if (graphExec == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    delete graphExec;
    return cudaSuccess;
}

} /* extern "C" */
