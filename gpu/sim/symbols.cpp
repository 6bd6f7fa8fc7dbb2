/* Variables of the device (__device__, __constant__): ordinary variables of the program, one for all devices, which become
 * device memory in the simulator's books when the host first names them.  They have no guards but the address sanitizer's. */
#include "schedule.hpp"

#include "cuda_runtime_api.h"

using namespace sim;

extern "C" {

cudaError_t assay_sim_symbol(const void *address, size_t bytes)
{
    memory_symbol(address, bytes, current_device());
    return record_error(cudaSuccess);
}

cudaError_t assay_sim_symbol_copy(const char *name, void *symbol, size_t bytes, void *memory, size_t count,
                                  size_t offset, cudaMemcpyKind kind, cudaStream_t stream, int to_symbol,
                                  int synchronous)
{
    const bool device = kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
    if (!device && kind != (to_symbol ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost))
        return record_error(cudaErrorInvalidMemcpyDirection);
    if (offset > bytes || count > bytes - offset)
        return refuse(cudaErrorInvalidValue, "out of bounds",
                      "%s: %zu bytes from byte %zu of a variable of %zu bytes", name, count, offset, bytes);
    memory_symbol(symbol, bytes, current_device());
    char *at = static_cast<char *>(symbol) + offset;
    void *const dst = to_symbol ? at : static_cast<char *>(memory);
    const void *const src = to_symbol ? memory : at;
    return synchronous ? cudaMemcpy(dst, src, count, kind) : cudaMemcpyAsync(dst, src, count, kind, stream);
}

cudaError_t assay_sim_refuse(const char *what)
{
    return refuse(cudaErrorNotSupported, "unsupported", "%s", what);
}

} /* extern "C" */
