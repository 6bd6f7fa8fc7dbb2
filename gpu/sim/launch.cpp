/* Kernel launches: checks, and the grid as stream work. */
#include "schedule.hpp"

#ifndef ASSAY_SIM
#define ASSAY_SIM 1
#endif
#include "assay_sim_device.h"

#include <map>
#include <mutex>
#include <string>

namespace sim
{

/* --- launches ----------------------------------------------------------------------------------------------- */

struct launch_work {
    kernel_call call;
    std::string name;
};

static assay_sim_step launch_step(void *state)
{
    const launch_work *l = static_cast<const launch_work *>(state);
    const cudaError_t error = kernel_run(l->call);
    if (error != cudaSuccess) {
        set_sticky_error(error);
        return ASSAY_SIM_FAILED;
    }
    /* With few blocks the guards are checked here, which names the kernel; with many, at the synchronization.
     */
    if (memory_blocks() <= 64 && !memory_guards_intact(("kernel " + l->name).c_str())) {
        return ASSAY_SIM_FAILED;
    }
    return ASSAY_SIM_DONE;
}

static void launch_destroy(void *state)
{
    launch_work *l = static_cast<launch_work *>(state);
    l->call.destroy(l->call.args);
    delete l;
}

static thread_local assay_sim_launch_watch *launch_watch;
static thread_local void *launch_watch_user;

static std::mutex function_lock;

static std::map<const void *, size_t> &dynamic_limits()
{
    static std::map<const void *, size_t> *m = new std::map<const void *, size_t>;
    return *m;
}

static size_t dynamic_limit(const void *func)
{
    std::lock_guard<std::mutex> hold(function_lock);
    const auto it = dynamic_limits().find(func);
    return it == dynamic_limits().end() ? max_shared_default : it->second;
}

/* Of static and dynamic shared memory together: who asked for no more gets what every device has. */
static size_t shared_limit(const void *func)
{
    std::lock_guard<std::mutex> hold(function_lock);
    return dynamic_limits().count(func) == 0 ? max_shared_default : max_shared_optin;
}

/* A kernel runs on the current device, which has no access to another device's memory: peer access is not modelled.
 * Pointers inside structures, and in memory, are not looked at. */
static cudaError_t check_devices(const assay_sim_kernel &k, cudaStream_t stream)
{
    const int here = current_device();
    int owner = here;
    if (stream_device(stream, &owner) == cudaSuccess && owner != here) {
        return refuse(cudaErrorInvalidResourceHandle, "wrong device",
                      "kernel %s: the stream belongs to device %d, the current device is %d", k.name, owner,
                      here);
    }
    for (int i = 0; i < k.n_pointers && memory_on_several_devices(); ++i) {
        if (memory_find(k.pointers[i], nullptr, nullptr, &owner) == MEMORY_DEVICE && owner != here) {
            return refuse(cudaErrorIllegalAddress, "wrong device",
                          "kernel %s on device %d: pointer argument %d of %d is memory of device %d", k.name,
                          here, i + 1, k.n_pointers, owner);
        }
    }
    return cudaSuccess;
}

static cudaError_t check_launch(const assay_sim_kernel &k, uint3 grid, uint3 block, size_t shared_bytes)
{
    const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (sticky_error() != cudaSuccess) {
        return sticky_error();
    }
    if (threads == 0 || threads > max_block_threads || block.x > 1024 || block.y > 1024 || block.z > 64 ||
        grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535u ||
        grid.z > 65535u) {
        return refuse(
            cudaErrorInvalidConfiguration, "launch",
            "kernel %s: grid (%u,%u,%u), block (%u,%u,%u): a block has 1 to 1024 threads, a grid 1 to "
            "2147483647 x 65535 x 65535 blocks",
            k.name, grid.x, grid.y, grid.z, block.x, block.y, block.z);
    }
    if (shared_bytes > dynamic_limit(k.func)) {
        return refuse(
            cudaErrorInvalidValue, "launch",
            "kernel %s: %zu bytes of dynamic shared memory; allowed are %zu (more needs cudaFuncSetAttribute "
            "with cudaFuncAttributeMaxDynamicSharedMemorySize, up to %zu)",
            k.name, shared_bytes, dynamic_limit(k.func), max_shared_optin);
    }
    int resident = 0, processors = 0;
    if (k.cooperative &&
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, k.func, static_cast<int>(threads),
                                                      shared_bytes) == cudaSuccess &&
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess &&
        static_cast<uint64_t>(grid.x) * grid.y * grid.z > static_cast<uint64_t>(resident * processors)) {
        return refuse(
            cudaErrorCooperativeLaunchTooLarge, "launch",
            "kernel %s: a cooperative launch of %llu blocks of %llu threads; %d are resident at once", k.name,
            static_cast<unsigned long long>(grid.x) * grid.y * grid.z,
            static_cast<unsigned long long>(threads), resident * processors);
    }
    return cudaSuccess;
}

} /* namespace sim */

using namespace sim;

static cudaError_t unsupported(const char *what)
{
    return refuse(cudaErrorNotSupported, "unsupported", "%s", what);
}

extern "C" cudaError_t assay_sim_launch(const assay_sim_kernel *kernel, uint3 grid, uint3 block,
                                        size_t shared_bytes, cudaStream_t stream)
{
    cudaError_t error = check_launch(*kernel, grid, block, shared_bytes);
    error = error == cudaSuccess ? check_devices(*kernel, stream) : error;
    if (error != cudaSuccess) {
        kernel->destroy(kernel->args);
        return record_error(error);
    }
    if (launch_watch != nullptr)
        launch_watch(launch_watch_user, kernel->name);
    launch_work *l = new launch_work{{nullptr, kernel->func, kernel->no_barrier != 0, kernel->args,
                                      kernel->destroy, kernel->run, kernel->run_loop, grid, block,
                                      shared_bytes, shared_limit(kernel->func), kernel->cooperative != 0},
                                     kernel->name};
    l->call.name = l->name.c_str();
    const assay_sim_work work = {l->call.name, launch_step, nullptr, launch_destroy, l};
    return assay_sim_enqueue(stream, &work);
}

extern "C" {

void assay_sim_watch_launches(assay_sim_launch_watch *watch, void *user)
{
    launch_watch = watch;
    launch_watch_user = user;
}

/* --- functions ---------------------------------------------------------------------------------------------- */

cudaError_t cudaFuncSetAttribute(const void *func, cudaFuncAttribute attr, int value)
{
    func = kernel_body(func);
    if (func == nullptr) {
        return record_error(cudaErrorInvalidDeviceFunction);
    }
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout) {
        return cudaSuccess; /* a hint */
    }
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) {
        return unsupported("cudaFuncSetAttribute: an attribute other than MaxDynamicSharedMemorySize");
    }
    if (value < 0 || static_cast<size_t>(value) > max_shared_optin) {
        return record_error(cudaErrorInvalidValue);
    }
    std::lock_guard<std::mutex> hold(function_lock);
    dynamic_limits()[func] = static_cast<size_t>(value);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, const void *func)
{
    func = kernel_body(func);
    if (attr == nullptr || func == nullptr) {
        return record_error(cudaErrorInvalidDeviceFunction);
    }
    *attr = cudaFuncAttributes{};
    attr->maxThreadsPerBlock = static_cast<int>(max_block_threads);
    attr->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_limit(func));
    attr->ptxVersion = attr->binaryVersion = 90;
    return cudaSuccess;
}

} /* extern "C" */
