/* The CUDA runtime's functions: argument checks, memory operations as stream work, launches, devices,
 * reports. */
#include "schedule.hpp"

#define ASSAY_SIM 1
#include "assay_sim_device.h"
#include "cuda_runtime_api.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <time.h>
#include <unistd.h>

namespace sim
{

/* ---- settings
 * ----------------------------------------------------------------------------------------------------- */

static uint64_t env_number(const char *name, uint64_t otherwise, uint64_t lowest, uint64_t highest)
{
    const char *text = getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char *end = nullptr;
    const unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0' || *text == '-' || v < lowest || v > highest) {
        fprintf(stderr, "assay-sim: fatal: %s=%s: expected a whole number from %llu to %llu\n", name, text,
                static_cast<unsigned long long>(lowest), static_cast<unsigned long long>(highest));
        exit(2);
    }
    return v;
}

static settings from_environment()
{
    settings s = {};
    const char *order = getenv("ASSAY_SIM_ORDER");
    if (order == nullptr || *order == '\0' || strcmp(order, "forward") == 0) {
        s.order = ASSAY_SIM_ORDER_FORWARD;
    } else if (strcmp(order, "reverse") == 0) {
        s.order = ASSAY_SIM_ORDER_REVERSE;
    } else if (strncmp(order, "random:", 7) == 0 && order[7] >= '0' && order[7] <= '9') {
        s.order = ASSAY_SIM_ORDER_RANDOM;
        s.order_seed = strtoull(order + 7, nullptr, 10);
    } else {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_ORDER=%s: expected forward, reverse or random:<seed>\n",
                order);
        exit(2);
    }
    const uint64_t stack_kb = SIM_ASAN || SIM_TSAN ? 256 : 64;
    s.threads = static_cast<int>(env_number("ASSAY_SIM_THREADS", 1, 1, 256));
    s.stream_seed = env_number("ASSAY_SIM_STREAM_SEED", 0, 0, UINT64_MAX);
    s.eager = env_number("ASSAY_SIM_EAGER", 0, 0, 1) != 0;
    s.devices = static_cast<int>(env_number("ASSAY_SIM_DEVICES", 8, 1, 64));
    s.memory_bytes = static_cast<size_t>(env_number("ASSAY_SIM_MEMORY_MB", 81920, 1, 1u << 24)) << 20;
    s.stack_bytes = static_cast<size_t>(env_number("ASSAY_SIM_STACK_KB", stack_kb, 16, 1u << 16)) << 10;
    s.nccl_timeout_s = static_cast<double>(env_number("ASSAY_SIM_NCCL_TIMEOUT_S", 60, 1, 1u << 20));
    s.tf32 = env_number("ASSAY_SIM_TF32", 0, 0, 1) != 0;
    return s;
}

settings &config()
{
    static settings s = from_environment();
    return s;
}

uint64_t mix(uint64_t a, uint64_t b)
{
    random_stream r = {a ^ (b * 0xd6e8feb86659fd93ull + 0x9e3779b97f4a7c15ull)};
    return r.next();
}

double now_seconds()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/* ---- reports and errors
 * ------------------------------------------------------------------------------------------- */

static std::mutex report_lock;
static char last_report[1024];
static std::atomic<int64_t> report_count{0};
static std::atomic<bool> report_print{true};

static void report_line(const char *kind, const char *format, va_list args)
{
    char text[1024];
    const int head = snprintf(text, sizeof text, "assay-sim: %s: ", kind);
    vsnprintf(text + head, sizeof text - static_cast<size_t>(head) - 1, format, args);
    std::lock_guard<std::mutex> hold(report_lock);
    memcpy(last_report, text, sizeof text);
    ++report_count;
    if (report_print) {
        const size_t n = strlen(text);
        text[n] = '\n';
        const ssize_t ignored =
            write(STDERR_FILENO, text, n + 1); /* one write: lines of several ranks do not mix */
        (void)ignored;
    }
}

void report_clear()
{
    std::lock_guard<std::mutex> hold(report_lock);
    last_report[0] = '\0';
}

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int thread_device = 0;

cudaError_t record_error(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last_error = error;
    }
    return error;
}

cudaError_t refuse(cudaError_t error, const char *kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report_line(kind, format, args);
    va_end(args);
    return record_error(error);
}

static cudaError_t unsupported(const char *what)
{
    return refuse(cudaErrorNotSupported, "unsupported", "%s", what);
}

int current_device()
{
    return thread_device;
}

cudaError_t set_current_device(int device)
{
    if (device < 0 || device >= config().devices) {
        return cudaErrorInvalidDevice;
    }
    thread_device = device;
    return cudaSuccess;
}

/* ---- memory operations as stream work
 * ----------------------------------------------------------------------------- */

struct copy_work {
    unsigned char *dst;
    const unsigned char *src;
    unsigned char *staged; /* a pageable source, captured at the call */
    size_t dpitch, spitch, width, height;
    int value; /* for a fill */
};

static assay_sim_step copy_step(void *state)
{
    const copy_work *c = static_cast<const copy_work *>(state);
    const unsigned char *src = c->staged ? c->staged : c->src;
    const size_t spitch = c->staged ? c->width : c->spitch;
    for (size_t row = 0; row < c->height; ++row) {
        memmove(c->dst + row * c->dpitch, src + row * spitch, c->width);
    }
    return ASSAY_SIM_DONE;
}

static assay_sim_step fill_step(void *state)
{
    const copy_work *c = static_cast<const copy_work *>(state);
    for (size_t row = 0; row < c->height; ++row) {
        memset(c->dst + row * c->dpitch, c->value, c->width);
    }
    return ASSAY_SIM_DONE;
}

static void copy_destroy(void *state)
{
    copy_work *c = static_cast<copy_work *>(state);
    free(c->staged);
    delete c;
}

static size_t span(size_t pitch, size_t width, size_t height)
{
    return height == 0 ? 0 : pitch * (height - 1) + width;
}

/* Device memory must be inside one block; host memory outside the simulator's books is pageable and cannot be
 * checked. */
static cudaError_t check_range(const char *what, const void *p, size_t bytes, bool want_device,
                               memory_kind *kind)
{
    const bool inside = memory_contains(p, bytes, kind);
    if (*kind == MEMORY_DEVICE && !inside) {
        size_t offset = 0, size = 0;
        memory_find(p, &offset, &size, nullptr);
        return refuse(cudaErrorInvalidValue, "out of bounds",
                      "%s: %zu bytes from byte %zu of a device block of %zu bytes", what, bytes, offset,
                      size);
    }
    if (want_device && *kind == MEMORY_NONE) {
        return refuse(cudaErrorInvalidValue, "invalid pointer", "%s: %p is no device pointer", what, p);
    }
    return cudaSuccess;
}

static cudaError_t copy(const char *name, void *dst, size_t dpitch, const void *src, size_t spitch,
                        size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                        bool synchronous)
{
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
        return record_error(cudaErrorInvalidMemcpyDirection);
    }
    if (width > dpitch || width > spitch) {
        return record_error(cudaErrorInvalidPitchValue);
    }
    if (width == 0 || height == 0) {
        return synchronous ? record_error(stream_sync(stream)) : cudaSuccess;
    }
    if (dst == nullptr || src == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    memory_kind to = MEMORY_NONE, from = MEMORY_NONE;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    cudaError_t error = check_range(name, dst, span(dpitch, width, height), to_device, &to);
    if (error == cudaSuccess) {
        error = check_range(name, src, span(spitch, width, height), from_device, &from);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if ((to == MEMORY_DEVICE && (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost)) ||
        (from == MEMORY_DEVICE && (kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice))) {
        return refuse(cudaErrorInvalidValue, "invalid pointer",
                      "%s: direction %d, but %s is a device pointer", name, static_cast<int>(kind),
                      to == MEMORY_DEVICE ? "the destination" : "the source");
    }
    copy_work *c = new copy_work{static_cast<unsigned char *>(dst),
                                 static_cast<const unsigned char *>(src),
                                 nullptr,
                                 dpitch,
                                 spitch,
                                 width,
                                 height,
                                 0};
    if (from == MEMORY_NONE && !synchronous) {
        c->staged = static_cast<unsigned char *>(malloc(width * height));
        if (c->staged == nullptr) {
            delete c;
            return record_error(cudaErrorMemoryAllocation);
        }
        for (size_t row = 0; row < height; ++row) {
            memcpy(c->staged + row * width, c->src + row * spitch, width);
        }
    }
    const assay_sim_work work = {name, copy_step, nullptr, copy_destroy, c};
    error = assay_sim_enqueue(stream, &work);
    /* A copy to pageable memory returns when it is done, even the asynchronous one. */
    if (error == cudaSuccess && (synchronous || to == MEMORY_NONE)) {
        error = stream_sync(stream);
    }
    return record_error(error);
}

static cudaError_t fill(const char *name, void *dst, size_t pitch, int value, size_t width, size_t height,
                        cudaStream_t stream)
{
    memory_kind kind = MEMORY_NONE;
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    if (width > pitch) {
        return record_error(cudaErrorInvalidPitchValue);
    }
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    const cudaError_t error = check_range(name, dst, span(pitch, width, height), true, &kind);
    if (error != cudaSuccess) {
        return error;
    }
    copy_work *c =
        new copy_work{static_cast<unsigned char *>(dst), nullptr, nullptr, pitch, 0, width, height, value};
    const assay_sim_work work = {name, fill_step, nullptr, copy_destroy, c};
    return assay_sim_enqueue(stream, &work);
}

static assay_sim_step free_step(void *state)
{
    return memory_release(state, MEMORY_DEVICE) == cudaSuccess ? ASSAY_SIM_DONE : ASSAY_SIM_FAILED;
}

struct host_work {
    cudaHostFn_t fn;
    cudaStreamCallback_t callback;
    cudaStream_t stream;
    void *data;
};

static assay_sim_step host_step(void *state)
{
    const host_work *h = static_cast<const host_work *>(state);
    if (h->fn) {
        h->fn(h->data);
    } else {
        h->callback(h->stream, cudaSuccess, h->data);
    }
    return ASSAY_SIM_DONE;
}

static void host_destroy(void *state)
{
    delete static_cast<host_work *>(state);
}

/* ---- launches
 * ----------------------------------------------------------------------------------------------------- */

struct launch_work {
    kernel_call call;
    std::string name;
};

static assay_sim_step launch_step(void *state)
{
    const launch_work *l = static_cast<const launch_work *>(state);
    if (!kernel_run(l->call)) {
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
    return cudaSuccess;
}

} /* namespace sim */

using namespace sim;

extern "C" cudaError_t assay_sim_launch(const assay_sim_kernel *kernel, uint3 grid, uint3 block,
                                        size_t shared_bytes, cudaStream_t stream)
{
    const cudaError_t error = check_launch(*kernel, grid, block, shared_bytes);
    if (error != cudaSuccess) {
        kernel->destroy(kernel->args);
        return record_error(error);
    }
    launch_work *l = new launch_work{{nullptr, kernel->no_barrier != 0, kernel->args, kernel->destroy,
                                      kernel->run, kernel->run_loop, grid, block, shared_bytes},
                                     kernel->name};
    l->call.name = l->name.c_str();
    const assay_sim_work work = {l->call.name, launch_step, nullptr, launch_destroy, l};
    return assay_sim_enqueue(stream, &work);
}

extern "C" {

/* ---- the simulator's own interface
 * -------------------------------------------------------------------------------- */

void assay_sim_report(const char *kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report_line(kind, format, args);
    va_end(args);
}

void assay_sim_last_report(char *text, size_t bytes)
{
    std::lock_guard<std::mutex> hold(report_lock);
    snprintf(text, bytes, "%s", last_report);
}

int64_t assay_sim_reports(void)
{
    return report_count;
}

void assay_sim_print_reports(int on)
{
    report_print = on != 0;
}

void assay_sim_set_order(assay_sim_order order, uint64_t seed)
{
    config().order = order;
    config().order_seed = seed;
}

void assay_sim_set_threads(int threads)
{
    config().threads = threads < 1 ? 1 : threads;
}

void assay_sim_set_stream_seed(uint64_t seed)
{
    config().stream_seed = seed;
}

int assay_sim_compare_orders(void (*body)(void *arg), void *arg, const void *out, size_t bytes,
                             int random_orders)
{
    const assay_sim_order order = config().order;
    const uint64_t seed = config().order_seed;
    unsigned char *first = static_cast<unsigned char *>(malloc(2 * bytes + 1));
    unsigned char *now = first + bytes;
    int differ = 0;
    if (first == nullptr) {
        return -1;
    }
    for (int run = 0; run < 2 + random_orders && differ >= 0; ++run) {
        assay_sim_set_order(run == 0   ? ASSAY_SIM_ORDER_FORWARD
                            : run == 1 ? ASSAY_SIM_ORDER_REVERSE
                                       : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<uint64_t>(run));
        if (cudaDeviceSynchronize() != cudaSuccess ||
            cudaMemset(const_cast<void *>(out), 0xff, bytes) != cudaSuccess) {
            differ = -1;
            break;
        }
        body(arg);
        if (cudaDeviceSynchronize() != cudaSuccess ||
            cudaMemcpy(run == 0 ? first : now, out, bytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
            differ = -1;
        } else if (run > 0 && memcmp(first, now, bytes) != 0) {
            ++differ;
        }
    }
    free(first);
    assay_sim_set_order(order, seed);
    return differ;
}

/* ---- errors
 * ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky_error() != cudaSuccess ? sticky_error() : last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (static_cast<int>(error)) {
#define NAME_OF(name, value, text)                                                                           \
    case value:                                                                                              \
        return #name;
        ASSAY_SIM_CUDA_ERRORS(NAME_OF)
#undef NAME_OF
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (static_cast<int>(error)) {
#define TEXT_OF(name, value, text)                                                                           \
    case value:                                                                                              \
        return text;
        ASSAY_SIM_CUDA_ERRORS(TEXT_OF)
#undef TEXT_OF
    default:
        return "unrecognized error code";
    }
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------------- */

static cudaError_t allocate(void **out, size_t size, memory_kind kind, bool poison)
{
    if (out == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    *out = nullptr;
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    return size == 0 ? cudaSuccess : record_error(memory_allocate(out, size, kind, current_device(), poison));
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    return allocate(devPtr, size, MEMORY_DEVICE, true);
}

cudaError_t cudaFree(void *devPtr)
{
    /* cudaFree waits for the device; after a fault the memory is still given back. */
    const cudaError_t before = device_sync();
    const cudaError_t error = devPtr ? memory_release(devPtr, MEMORY_DEVICE) : cudaSuccess;
    if (error == cudaErrorLaunchFailure) {
        set_sticky_error(error);
    }
    return record_error(before != cudaSuccess ? before : error);
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t stream)
{
    (void)stream;
    return allocate(devPtr, size, MEMORY_DEVICE, true);
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t stream)
{
    if (devPtr == nullptr) {
        return cudaSuccess;
    }
    size_t offset = 0;
    if (memory_find(devPtr, &offset, nullptr, nullptr) != MEMORY_DEVICE || offset != 0) {
        return record_error(cudaErrorInvalidValue);
    }
    const assay_sim_work work = {"cudaFreeAsync", free_step, nullptr, nullptr, devPtr};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    return allocate(ptr, size, MEMORY_PINNED, false);
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    if (flags & ~7u) {
        return record_error(cudaErrorInvalidValue);
    }
    return allocate(pHost, size, MEMORY_PINNED, false);
}

cudaError_t cudaFreeHost(void *ptr)
{
    const cudaError_t before = device_sync();
    const cudaError_t error = ptr ? memory_release(ptr, MEMORY_PINNED) : cudaSuccess;
    return record_error(before != cudaSuccess ? before : error);
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    if (ptr == nullptr || size == 0 || (flags & ~11u)) {
        return record_error(cudaErrorInvalidValue);
    }
    return record_error(memory_register(ptr, size));
}

cudaError_t cudaHostUnregister(void *ptr)
{
    return record_error(memory_unregister(ptr));
}

cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags)
{
    const memory_kind kind = memory_find(pHost, nullptr, nullptr, nullptr);
    if (flags != 0 || (kind != MEMORY_PINNED && kind != MEMORY_REGISTERED)) {
        return record_error(cudaErrorInvalidValue);
    }
    *pDevice = pHost;
    return cudaSuccess;
}

cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height)
{
    if (pitch == nullptr || width > SIZE_MAX - 511) {
        return record_error(cudaErrorInvalidValue);
    }
    *pitch = (width + 511) / 512 * 512;
    size_t bytes;
    if (__builtin_mul_overflow(*pitch, height, &bytes)) {
        return record_error(cudaErrorMemoryAllocation);
    }
    return cudaMalloc(devPtr, bytes);
}

cudaError_t cudaMallocManaged(void **devPtr, size_t size, unsigned int flags)
{
    (void)devPtr;
    (void)size;
    (void)flags;
    return unsupported("cudaMallocManaged: managed memory would hide a missing copy");
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = config().memory_bytes;
    *free_bytes = config().memory_bytes - memory_used(current_device());
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *ptr)
{
    int device = 0;
    const memory_kind kind = memory_find(ptr, nullptr, nullptr, &device);
    void *p = const_cast<void *>(ptr);
    *attributes = cudaPointerAttributes{};
    attributes->device = kind == MEMORY_NONE ? -2 : device;
    attributes->type = kind == MEMORY_DEVICE ? cudaMemoryTypeDevice
                       : kind == MEMORY_NONE ? cudaMemoryTypeUnregistered
                                             : cudaMemoryTypeHost;
    attributes->devicePointer = kind == MEMORY_NONE ? nullptr : p;
    attributes->hostPointer = kind == MEMORY_DEVICE ? nullptr : p;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, cudaMemcpyKind kind)
{
    return copy("cudaMemcpy", dst, count, src, count, count, 1, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return copy("cudaMemcpyAsync", dst, count, src, count, count, 1, kind, stream, false);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, cudaMemcpyKind kind)
{
    return copy("cudaMemcpy2D", dst, dpitch, src, spitch, width, height, kind, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpy2DAsync", dst, dpitch, src, spitch, width, height, kind, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                cudaStream_t stream)
{
    if (dstDevice < 0 || dstDevice >= config().devices || srcDevice < 0 || srcDevice >= config().devices) {
        return record_error(cudaErrorInvalidDevice);
    }
    return copy("cudaMemcpyPeerAsync", dst, count, src, count, count, 1, cudaMemcpyDeviceToDevice, stream,
                false);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    return fill("cudaMemset", devPtr, count, value, count, 1, nullptr);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    return fill("cudaMemsetAsync", devPtr, count, value, count, 1, stream);
}

cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    return fill("cudaMemset2DAsync", devPtr, pitch, value, width, height, stream);
}

/* ---- streams and events
 * ------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    if (pStream == nullptr || (flags & ~1u)) {
        return record_error(cudaErrorInvalidValue);
    }
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    return record_error(stream_create(pStream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return record_error(stream_destroy(stream));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
    int priority;
    return record_error(stream_info(stream, flags, &priority));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    unsigned flags;
    return record_error(stream_info(stream, &flags, priority));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return record_error(stream_query(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return record_error(stream_sync(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    if (flags != 0) {
        return unsupported("cudaStreamWaitEvent: flags other than cudaEventWaitDefault");
    }
    return record_error(event_wait(stream, event));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *userData,
                                  unsigned int flags)
{
    if (callback == nullptr || flags != 0) {
        return record_error(cudaErrorInvalidValue);
    }
    const assay_sim_work work = {"cudaStreamAddCallback", host_step, nullptr, host_destroy,
                                 new host_work{nullptr, callback, stream, userData}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    if (fn == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    const assay_sim_work work = {"cudaLaunchHostFunc", host_step, nullptr, host_destroy,
                                 new host_work{fn, nullptr, stream, userData}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    if (event == nullptr || (flags & ~7u)) {
        return record_error(cudaErrorInvalidValue);
    }
    if (flags & cudaEventInterprocess) {
        return unsupported("cudaEventCreateWithFlags: cudaEventInterprocess");
    }
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    return record_error(event_create(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return record_error(event_destroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return record_error(event_record(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    if (flags != 0) {
        return unsupported("cudaEventRecordWithFlags: flags other than cudaEventRecordDefault");
    }
    return record_error(event_record(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return record_error(event_query(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return record_error(event_sync(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (ms == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    return record_error(event_elapsed(ms, start, end));
}

/* ---- functions
 * ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaFuncSetAttribute(const void *func, cudaFuncAttribute attr, int value)
{
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
    if (attr == nullptr || func == nullptr) {
        return record_error(cudaErrorInvalidDeviceFunction);
    }
    *attr = cudaFuncAttributes{};
    attr->maxThreadsPerBlock = static_cast<int>(max_block_threads);
    attr->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_limit(func));
    attr->ptxVersion = attr->binaryVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t sharedMem,
                             cudaStream_t stream)
{
    (void)func;
    (void)grid;
    (void)block;
    (void)args;
    (void)sharedMem;
    (void)stream;
    return unsupported("cudaLaunchKernel: an untyped argument list cannot be copied; use cudaLaunchKernelEx");
}

} /* extern "C" */
