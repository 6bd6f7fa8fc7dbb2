/* Matrix products: one thread an element (k0), and what is added behind the library's (product_blas.cu).  docs/OPS.md 1, 2. */
#include "gpu/ops/product.cuh"

template <class TC, class T>
__global__ void product_k0(TC *c, const T *a, const T *b, const T *bias, int64_t m, int64_t n, int64_t k,
                           int64_t a_row, int64_t a_step, int64_t b_row, int64_t b_step, bool accumulate,
                           bool stored)
{
    for (int64_t e = gpu_thread(); e < m * n; e += gpu_threads()) {
        const int64_t i = e / n, j = e % n;
        float sum = 0.0f;
        for (int64_t p = 0; p < k; ++p)
            sum = fmaf(gpu_load(a + i * a_row + p * a_step), gpu_load(b + j * b_row + p * b_step), sum);
        if (bias != nullptr)
            sum += gpu_load(bias + j);
        if (stored) {
            T narrow;
            gpu_store(&narrow, sum);
            sum = gpu_load(&narrow);
        }
        if (accumulate)
            sum += gpu_load(c + e);
        gpu_store(c + e, sum);
    }
}

template <class T> __global__ void add_bias(float *c, const T *bias, int64_t m, int64_t n)
{
    for (int64_t e = gpu_thread(); e < m * n; e += gpu_threads())
        c[e] += gpu_load(bias + e % n);
}

template <class T> __global__ void add_product(float *c, const T *from, int64_t count, bool accumulate)
{
    for (int64_t e = gpu_thread(); e < count; e += gpu_threads())
        c[e] = accumulate ? c[e] + gpu_load(from + e) : gpu_load(from + e);
}

template <class TC, class T> static cudaError_t launch_k0(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((product_k0<TC, T>), gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (TC *)p->c.data, (const T *)p->a.data, (const T *)p->b.data,
                                 (const T *)p->bias.data, p->m, p->n, p->k, p->a_is_km ? 1 : p->k,
                                 p->a_is_km ? p->m : 1, p->b_is_kn ? 1 : p->k, p->b_is_kn ? p->n : 1,
                                 p->accumulate, p->stored);
}

template <class T>
static cudaError_t launch_add_product(const product *p, const void *from, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_product<T>, gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)p->c.data, (const T *)from, p->m * p->n, p->accumulate);
}

template <class T> static cudaError_t launch_add_bias(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_bias<T>, gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)p->c.data, (const T *)p->bias.data, p->m, p->n);
}

bool gpu_product_is_nothing(const product *p)
{
    return p->m == 0 || p->n == 0 || (p->k == 0 && p->accumulate);
}

assay_status gpu_product_plain(const gpu_work *w, const product *p)
{
    cudaError_t e;
    if (gpu_product_is_nothing(p))
        return ASSAY_OK;
    if (p->a.dtype == ASSAY_F32)
        e = launch_k0<float, float>(p, w->stream);
    else if (p->c.dtype == ASSAY_F32)
        e = launch_k0<float, bf16>(p, w->stream);
    else
        e = launch_k0<bf16, bf16>(p, w->stream);
    GPU_LAUNCHED(e, p->op);
    return ASSAY_OK;
}

assay_status gpu_product_add_stored(const gpu_work *w, const product *p, const void *from)
{
    GPU_LAUNCHED(GPU_BY_ACT(p->a.dtype, launch_add_product, p, from, w->stream), p->op);
    return ASSAY_OK;
}

assay_status gpu_product_add_bias(const gpu_work *w, const product *p)
{
    GPU_LAUNCHED(GPU_BY_ACT(p->bias.dtype, launch_add_bias, p, w->stream), p->op);
    return ASSAY_OK;
}
