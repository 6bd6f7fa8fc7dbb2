/* Matrix products of the linear layers (linear.cu) and of the experts (grouped.cu); product.cu, product_blas.cu. */
#ifndef GPU_OPS_PRODUCT_CUH
#define GPU_OPS_PRODUCT_CUH

#include "gpu/device.cuh"

/* C[m,n] = sum_p A(i,p) B(j,p) (+ bias[n]) (+ C): row-major.  A is stored [m,k], or [k,m] when a_is_km; B is
 * stored [n,k], or [k,n] when b_is_kn.  With `experts` it stands for one product for each: all operands whole, and m (forward,
 * input gradient) or k (weight gradient, a_is_km) is the number of rows of all.  A weight gradient without `accumulate` is the
 * product alone: what C held is not read. */
typedef struct product {
    const char *op;
    int64_t m, n, k;
    bool a_is_km, b_is_kn, accumulate;
    gpu_tensor c, a, b, bias;
    /* grouped.cu alone */
    int64_t experts;
    const int64_t *tokens_per_expert; /* device memory */
    const int64_t *counts_on_host;    /* the same where they are known there, else NULL */
    bool stored =
        false; /* weight gradient: the product is rounded to the type of a before it is added or stored */
} product;

/* c [m,n] = a [m,k] · b [n,k]ᵀ, one product without bias. */
static inline product product_of(const char *op, int64_t m, int64_t n, int64_t k, gpu_tensor c, gpu_tensor a,
                                 gpu_tensor b)
{
    product p = {};
    p.op = op;
    p.m = m;
    p.n = n;
    p.k = k;
    p.c = c;
    p.a = a;
    p.b = b;
    p.bias = gpu_tensor_none();
    return p;
}

/* Nothing to compute: no element, or nothing to add. */
bool gpu_product_is_nothing(const product *p);

/* A single product: one thread an element; cuBLASLt. */
assay_status gpu_product_plain(const gpu_work *w, const product *p);
assay_status gpu_product_blas(const gpu_work *w, const product *p);

/* Behind cuBLASLt's: c [m,n] in F32 takes (accumulate: adds) a product `from` that was rounded to the type of a; it adds a bias. */
assay_status gpu_product_add_stored(const gpu_work *w, const product *p, const void *from);
assay_status gpu_product_add_bias(const gpu_work *w, const product *p);

/* Whether cuBLASLt has an algorithm for it.  An error counts as yes: gpu_product_blas meets it again and reports it. */
bool gpu_product_blas_has(const gpu_ctx *ctx, const product *p);
/* Workspace of any product of these operands. */
size_t gpu_product_blas_bytes(const gpu_ctx *ctx, const gpu_operands *o);
/* What cuBLASLt's arithmetic is on this device; the simulator's first choice is one chain, others begin it elsewhere. */
void gpu_product_blas_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o);
#define GPU_PRODUCT_BLAS_ARITH                                                                               \
    "the simulator's first choice; sm_90 and bf16: tensor core, k_step 16, guard bits 2; else: order "       \
    "unknown"

#endif
