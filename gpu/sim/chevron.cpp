/* The launches of translated CUDA: a configuration waits for the kernel's call, which comes next on the same thread. */
#define ASSAY_CC 1 /* the launches of assay_sim_cc.h */
#include "simt.hpp"

#include "assay_sim_cc.h"

#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace sim
{

struct launching {
    std::vector<assay_sim_configuration> waiting; /* a launch's arguments may launch themselves */
    bool asking = false;
    const void *body = nullptr;
    cudaError_t result = cudaSuccess;
};

struct known_kernel {
    const void *body;
    assay_sim_untyped *run;
};
static std::mutex known_lock;

static std::map<const void *, known_kernel> &known()
{
    static std::map<const void *, known_kernel> *m = new std::map<const void *, known_kernel>;
    return *m;
}

const void *kernel_body(const void *kernel)
{
    std::lock_guard<std::mutex> hold(known_lock);
    const auto it = known().find(kernel);
    return it == known().end() ? kernel : it->second.body;
}

static launching &mine()
{
    static thread_local launching *l = new launching; /* kept: a thread's last words may be a launch */
    return *l;
}

} /* namespace sim */

using namespace sim;

extern "C" {

int assay_sim_configure(const assay_sim_configuration *c)
{
    if (self != nullptr) {
        assay_sim_report("unsupported", WHERE "the launch of %s by a kernel (dynamic parallelism)",
                         WHERE_ARGS(*self, threadIdx, c->line), c->name);
        abandon(*self);
    }
    mine().waiting.push_back(*c);
    return 0;
}

enum assay_sim_entry assay_sim_enter(const char *name, const void *body)
{
    if (self != nullptr)
        return ASSAY_SIM_ENTRY_RUN;
    launching &l = mine();
    if (l.asking) {
        l.asking = false;
        l.body = body;
        return ASSAY_SIM_ENTRY_NOTHING;
    }
    if (!l.waiting.empty()) {
        if (l.waiting.back().line == 0)
            l.waiting.back().name = name; /* of an untyped launch */
        return ASSAY_SIM_ENTRY_LAUNCH;
    }
    refuse(cudaErrorMissingConfiguration, "launch", "kernel %s: called by the host without <<<grid, block>>>",
           name);
    return ASSAY_SIM_ENTRY_NOTHING;
}

assay_sim_configuration assay_sim_configured(void)
{
    launching &l = mine();
    const assay_sim_configuration c = l.waiting.back();
    l.waiting.pop_back();
    return c;
}

void assay_sim_launched(cudaError_t error)
{
    mine().result = error;
}

cudaError_t assay_sim_launch_result(void)
{
    return mine().result;
}

void assay_sim_ask_body(void)
{
    mine().asking = true;
    mine().body = nullptr;
}

const void *assay_sim_asked_body(void)
{
    mine().asking = false;
    return mine().body;
}

void assay_sim_register_kernel(const void *kernel, const void *body, assay_sim_untyped *run)
{
    std::lock_guard<std::mutex> hold(known_lock);
    known()[kernel] = known_kernel{body, run};
}

static cudaError_t launch_untyped(const char *name, int cooperative, const void *func, dim3 grid, dim3 block,
                                  void **args, size_t shared_bytes, cudaStream_t stream)
{
    assay_sim_untyped *run = nullptr;
    {
        std::lock_guard<std::mutex> hold(known_lock);
        const auto it = known().find(func);
        run = it == known().end() ? nullptr : it->second.run;
    }
    if (run == nullptr)
        return refuse(cudaErrorNotSupported, "unsupported",
                      "%s: the arguments of the function at %p cannot be copied: no translated file "
                      "(assay-cc) has taken "
                      "this address of a kernel",
                      name, func);
    const assay_sim_configuration c = {name, 0, cooperative, grid, block, shared_bytes, stream};
    assay_sim_configure(&c);
    run(func, args);
    return assay_sim_launch_result();
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t sharedMem,
                             cudaStream_t stream)
{
    return launch_untyped("cudaLaunchKernel", 0, func, grid, block, args, sharedMem, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *func, dim3 grid, dim3 block, void **args,
                                        size_t sharedMem, cudaStream_t stream)
{
    return launch_untyped("cudaLaunchCooperativeKernel", 1, func, grid, block, args, sharedMem, stream);
}

void assay_sim_inline_assembly(const char *text, int line)
{
    if (self == nullptr) {
        assay_sim_report("unsupported", "inline assembly in line %d, reached by the host: \"%s\"", line,
                         text);
        fflush(nullptr);
        abort();
    }
    assay_sim_report("unsupported", WHERE "inline PTX \"%s\"", WHERE_ARGS(*self, threadIdx, line), text);
    abandon(*self, cudaErrorNotSupported);
}

void assay_sim_assert(const char *condition, const char *file, int line, const char *function)
{
    if (self == nullptr) {
        fflush(stdout);
        fprintf(stderr, "%s:%d: %s: assertion `%s' failed\n", file, line, function, condition);
        abort();
    }
    assay_sim_report("assert", WHERE "assertion `%s' failed in %s", WHERE_ARGS(*self, threadIdx, line),
                     condition, file);
    abandon(*self, cudaErrorAssert);
}

} /* extern "C" */
