/* Memory: allocation, copies and fills as stream work. */
#include "schedule.hpp"

#include <stdlib.h>
#include <string.h>

namespace sim
{

/* --- memory operations as stream work ----------------------------------------------------------------------- */

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
        race_range(src + row * spitch, c->width, false);
        race_range(c->dst + row * c->dpitch, c->width, true);
        memmove(c->dst + row * c->dpitch, src + row * spitch, c->width);
    }
    return ASSAY_SIM_DONE;
}

static assay_sim_step fill_step(void *state)
{
    const copy_work *c = static_cast<const copy_work *>(state);
    for (size_t row = 0; row < c->height; ++row) {
        race_range(c->dst + row * c->dpitch, c->width, true);
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
    const bool captured = !synchronous && stream_captures(stream);
    if (from == MEMORY_NONE && !synchronous && !captured) {
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
    /* A copy to pageable memory returns when it is done, even the asynchronous one; in a graph it is done when that runs. */
    if (error == cudaSuccess && (synchronous || to == MEMORY_NONE) && !captured) {
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

bool transfer_within_bounds(assay_sim_step (*step)(void *))
{
    return step == copy_step || step == fill_step;
}

static assay_sim_step free_step(void *state)
{
    return memory_release(state, MEMORY_DEVICE) == cudaSuccess ? ASSAY_SIM_DONE : ASSAY_SIM_FAILED;
}

} /* namespace sim */

using namespace sim;

extern "C" {

/* --- memory ------------------------------------------------------------------------------------------------- */

static cudaError_t allocate(void **out, size_t size, memory_kind kind, bool poison, const void *caller)
{
    if (out == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    *out = nullptr;
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    const cudaError_t captured = capture_forbids_memory("an allocation");
    if (captured != cudaSuccess) {
        return record_error(captured);
    }
    return size == 0 ? cudaSuccess
                     : record_error(memory_allocate(out, size, kind, current_device(), poison, caller));
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    return allocate(devPtr, size, MEMORY_DEVICE, true, __builtin_return_address(0));
}

cudaError_t cudaFree(void *devPtr)
{
    /* cudaFree waits for the device; after a fault the memory is still given back. */
    const cudaError_t before = device_sync();
    cudaError_t error = devPtr ? memory_release(devPtr, MEMORY_DEVICE) : cudaSuccess;
    if (error == cudaErrorInvalidValue) {
        error = memory_release(devPtr, MEMORY_MANAGED);
    }
    if (error == cudaErrorLaunchFailure) {
        set_sticky_error(error);
    }
    if (error == cudaErrorInvalidValue) {
        char what[256] = "the beginning of no device block";
        memory_describe(devPtr, what, sizeof what);
        assay_sim_report("invalid pointer", "cudaFree: %p is %s", devPtr, what);
    }
    return record_error(before != cudaSuccess ? before : error);
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t stream)
{
    if (stream_captures(stream)) {
        return refuse(cudaErrorNotSupported, "unsupported", "cudaMallocAsync in a captured stream");
    }
    return allocate(devPtr, size, MEMORY_DEVICE, true, __builtin_return_address(0));
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t stream)
{
    if (devPtr == nullptr) {
        return cudaSuccess;
    }
    if (stream_captures(stream)) {
        return refuse(cudaErrorNotSupported, "unsupported", "cudaFreeAsync in a captured stream");
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
    return allocate(ptr, size, MEMORY_PINNED, false, __builtin_return_address(0));
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    if (flags & ~7u) {
        return record_error(cudaErrorInvalidValue);
    }
    return allocate(pHost, size, MEMORY_PINNED, false, __builtin_return_address(0));
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
    if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) {
        return record_error(cudaErrorInvalidValue);
    }
    if (size == 0) {
        return record_error(cudaErrorInvalidValue);
    }
    return allocate(devPtr, size, MEMORY_MANAGED, true, __builtin_return_address(0));
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
    attributes->type = kind == MEMORY_DEVICE    ? cudaMemoryTypeDevice
                       : kind == MEMORY_NONE    ? cudaMemoryTypeUnregistered
                       : kind == MEMORY_MANAGED ? cudaMemoryTypeManaged
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

cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count)
{
    (void)dstDevice;
    (void)srcDevice;
    return copy("cudaMemcpyPeer", dst, count, src, count, count, 1, cudaMemcpyDeviceToDevice, nullptr, true);
}

cudaError_t cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height)
{
    return fill("cudaMemset2D", devPtr, pitch, value, width, height, nullptr);
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

} /* extern "C" */
