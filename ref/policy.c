/* Rounding and perturbing of stored tensors. */
#include "ref/policy.h"

#include "core/base/hash.h"
#include "ref/fast/philox.h"
#include "ref/ops/vector.h"
#include "ref/replay.h"
#include <math.h>
#include <string.h>

/* The recipe's entry for a class of stored tensors. */
assay_dtype ref_policy_dtype(const ref_policy *p, ref_store_class class, bool gradient)
{
    const assay_op_recipe *op = assay_recipe_of(p->precision)->op;
    switch (class) {
    case REF_STORE_LINEAR:
        return gradient ? op[ASSAY_OPS_LINEAR].grad : op[ASSAY_OPS_LINEAR].act;
    case REF_STORE_ATTENTION:
        return gradient ? op[ASSAY_OPS_ATTENTION].grad : op[ASSAY_OPS_ATTENTION].act;
    case REF_STORE_ACT:
        return gradient ? op[ASSAY_OPS_ELEMENTWISE].grad : op[ASSAY_OPS_ELEMENTWISE].act;
    case REF_STORE_ROUTER:
        return gradient ? op[ASSAY_OPS_ROUTER].grad : op[ASSAY_OPS_ROUTER].act;
    case REF_STORE_LOSS:
        return op[ASSAY_OPS_LOSS].act;
    case REF_STORE_LSE:
        return op[ASSAY_OPS_ATTENTION].accumulate;
    case REF_STORE_STATISTIC:
        return op[ASSAY_OPS_ELEMENTWISE].accumulate;
    case REF_STORE_PAR:
        return op[ASSAY_OPS_LINEAR].weight;
    case REF_STORE_STATE:
        return op[ASSAY_OPS_OPTIMIZER].act;
    case REF_STORE_F64:
    case REF_STORE_EXACT:
        break;
    }
    return ASSAY_F64;
}

/* xi uniform in [-1, 1): 53 bits of the Philox block of the element. */
static double uniform(uint32_t high, uint32_t low)
{
    const uint64_t bits = ((uint64_t)high << 21) ^ (uint64_t)(low >> 11);
    return (double)bits * 0x1p-52 - 1.0;
}

/* x[0..n) times 1 + u xi; `first`: number of x[0] in the tensor. */
static void perturb(uint64_t seed, uint64_t stream, uint64_t first, double u, double *x, int64_t n)
{
    uint32_t high[REF_PHILOX_BLOCKS], low[REF_PHILOX_BLOCKS];
    ref_philox_blocks(seed, stream, first, high, low);
    for (int64_t i = 0; i < n; i++)
        x[i] *= 1.0 + u * uniform(high[i], low[i]);
}

static uint64_t stream_of(const char *name, int64_t step, int64_t microbatch)
{
    char key[ASSAY_NAME + 64];
    snprintf(key, sizeof key, "%s|%lld|%lld", name, (long long)step, (long long)microbatch);
    return assay_name_hash(key);
}

/* ref_round in the two formats of the recipes, without its generality: a run rounds every tensor it stores.
 */
static double round_f32(double x)
{
    return (double)(float)x;
}

static double round_bf16(double x)
{
    return ref_bf16_is_normal(x) ? ref_round_bf16_normal(x) : ref_round(x, ASSAY_BF16);
}

/* The part of the calling thread, of all of them in a parallel region and of one outside. */
static void store_part(const ref_policy *p, assay_dtype dtype, uint64_t stream, double u, double *x,
                       int64_t n)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i += REF_PHILOX_BLOCKS) {
        const int64_t part = n - i < REF_PHILOX_BLOCKS ? n - i : REF_PHILOX_BLOCKS;
        if (p->perturb > 0.0)
            perturb(p->perturb_seed, stream, (uint64_t)i, u, x + i, part);
        if (dtype == ASSAY_F32)
            for (int64_t k = i; k < i + part; k++)
                x[k] = round_f32(x[k]);
        else if (dtype == ASSAY_BF16)
            for (int64_t k = i; k < i + part; k++)
                x[k] = round_bf16(x[k]);
        else if (dtype != ASSAY_F64)
            for (int64_t k = i; k < i + part; k++)
                x[k] = ref_round(x[k], dtype);
    }
}

void ref_policy_store(const ref_policy *p, ref_store_class class, bool gradient, const char *name,
                      int64_t step, int64_t microbatch, double *x, int64_t n)
{
    if (class == REF_STORE_EXACT)
        return;
    const assay_dtype dtype = ref_policy_dtype(p, class, gradient);
    const double u = p->perturb > 0.0 ? ldexp(p->perturb, -assay_dtype_precision(dtype)) : 0.0;
    const uint64_t stream = p->perturb > 0.0 ? stream_of(name, step, microbatch) : 0;
    if (ref_vec_parallel(n)) {
#pragma omp parallel
        store_part(p, dtype, stream, u, x, n);
    } else {
        store_part(p, dtype, stream, u, x, n);
    }
}

void ref_policy_cancel(const ref_policy *p, assay_op_class ops, const char *name, int64_t step,
                       int64_t microbatch, double *x, const double *magnitude, int64_t n)
{
    char of_terms[ASSAY_NAME + 8];
    const assay_op_recipe *op = assay_recipe_of(p->precision)->op;
    if (!(p->perturb > 0.0))
        return;
    const double u = ldexp(p->perturb, -assay_dtype_precision(op[ops].accumulate));
    snprintf(of_terms, sizeof of_terms, "%s terms", name);
    const uint64_t stream = stream_of(of_terms, step, microbatch);
    for (int64_t i = 0; i < n; i += REF_PHILOX_BLOCKS) {
        uint32_t high[REF_PHILOX_BLOCKS], low[REF_PHILOX_BLOCKS];
        ref_philox_blocks(p->perturb_seed, stream, (uint64_t)i, high, low);
        for (int64_t k = i; k < n && k < i + REF_PHILOX_BLOCKS; k++)
            x[k] += u * magnitude[k] * uniform(high[k - i], low[k - i]);
    }
}
