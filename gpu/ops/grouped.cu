/* Grouped linear layers (experts).  docs/OPS.md 2.
 *
 *   k0  one thread for each element of the result, inner index      fp32, sequential fma
 *       ascending, experts one after the other
 *   k1  cuBLASLt, experts one after the other; dweight as in        simulator: sequential fma
 *       linear.cu                                                   sm_90 and bf16: tensor core, k_step 16,
 *                                                                   guard bits 2; otherwise: order unknown
 *   k2  all experts in one launch on matrix units (bf16):           sm_90, simulator: tensor core, k_step 16,
 *       grouped_mma.cu                                              guard bits 2; otherwise: order unknown
 *
 * An operation of which cuBLASLt has no algorithm for one expert's product runs as k0 whole. */
#include "gpu/ops/grouped.cuh"

/* Counts are one for each expert, not negative, and sum to the number of rows. */
static assay_status check_groups(const char *op, gpu_tensor counts, const int64_t *tokens_per_expert,
                                 int64_t experts, int64_t rows)
{
    int64_t sum = 0;
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", counts, experts));
    ASSAY_CHECK(tokens_per_expert != nullptr || experts == 0, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected %" PRId64 " entries in host memory, found NULL", op,
                experts);
    for (int64_t e = 0; e < experts; ++e) {
        ASSAY_CHECK(tokens_per_expert[e] >= 0 && assay_add_i64(sum, tokens_per_expert[e], &sum),
                    ASSAY_INVALID_ARGUMENT,
                    "%s: tokens_per_expert[%" PRId64 "]: expected a count, found %" PRId64, op, e,
                    tokens_per_expert[e]);
    }
    ASSAY_CHECK(sum == rows, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected a sum of %" PRId64 " rows, found %" PRId64, op, rows, sum);
    return ASSAY_OK;
}

/* The matrix of expert e in [El,N,K]. */
static gpu_tensor expert_matrix(gpu_tensor w, int64_t e)
{
    const int64_t n = w.shape[1], k = w.shape[2];
    char *data = (char *)w.data;
    if (data != nullptr)
        data += e * n * k * assay_dtype_bytes(w.dtype);
    return gpu_tensor_2d(data, w.dtype, n, k);
}

static gpu_tensor expert_rows(gpu_tensor t, int64_t start, int64_t length)
{
    return gpu_tensor_rows(gpu_tensor_2d(t.data, t.dtype, gpu_tensor_row_count(t), gpu_tensor_cols(t)), start,
                           length);
}

static assay_status check_grouped(const char *op, const char *name, gpu_tensor w)
{
    ASSAY_CHECK(w.ndim == 3, ASSAY_INVALID_ARGUMENT, "%s: %s: expected 3 dimensions [El,N,K], found %d", op,
                name, w.ndim);
    return ASSAY_OK;
}

static assay_status grouped_linear_fwd_product(const gpu_operands *o, product *p)
{
    const gpu_tensor y = gpu_operand(o, "y"), x = gpu_operand(o, "x"), weight = gpu_operand(o, "weight");
    const gpu_tensor counts = gpu_operand(o, "tokens_per_expert");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_fwd";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(x), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(gpu_check_shape2(op, "y", y, rows, n));
    ASSAY_TRY(check_groups(op, counts, tokens_per_expert, weight.shape[0], rows));
    *p = product_of(op, rows, n, k, y, x, weight);
    p->tokens_per_expert = tokens_per_expert;
    p->experts = weight.shape[0];
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_input_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dx = gpu_operand(o, "dx"), dy = gpu_operand(o, "dy"), weight = gpu_operand(o, "weight");
    const gpu_tensor counts = gpu_operand(o, "tokens_per_expert");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_input";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(dy), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "dx", dx, rows, k));
    ASSAY_TRY(check_groups(op, counts, tokens_per_expert, weight.shape[0], rows));
    *p = product_of(op, rows, k, n, dx, dy, weight);
    p->b_is_kn = true;
    p->tokens_per_expert = tokens_per_expert;
    p->experts = weight.shape[0];
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_weight_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight"), dy = gpu_operand(o, "dy"), x = gpu_operand(o, "x");
    const gpu_tensor counts = gpu_operand(o, "tokens_per_expert");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_weight";
    ASSAY_TRY(gpu_check_tensor(op, "dweight", dweight, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(check_grouped(op, "dweight", dweight));
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, dy.dtype, dy.dtype));
    const int64_t rows = gpu_tensor_row_count(dy), n = dweight.shape[1], k = dweight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(check_groups(op, counts, tokens_per_expert, dweight.shape[0], rows));
    *p = product_of(op, n, k, rows, dweight, dy, x);
    p->a_is_km = p->b_is_kn = true;
    p->accumulate = gpu_operand_bool(o, "accumulate");
    p->tokens_per_expert = tokens_per_expert;
    p->experts = dweight.shape[0];
    p->stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    return ASSAY_OK;
}

/* The product of expert e, whose rows begin at `start`. */
static product expert_product(const product *whole, int64_t e, int64_t start)
{
    const int64_t rows = whole->tokens_per_expert[e];
    product p = *whole;
    p.a = expert_rows(whole->a, start, rows);
    if (whole->a_is_km) {
        p.k = rows;
        p.b = expert_rows(whole->b, start, rows);
        p.c = expert_matrix(whole->c, e);
    } else {
        p.m = rows;
        p.b = expert_matrix(whole->b, e);
        p.c = expert_rows(whole->c, start, rows);
    }
    return p;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
typedef assay_status (*product_maker)(const gpu_operands *o, product *p);

typedef assay_status (*product_runner)(const gpu_work *w, const product *p);

static assay_status run_each(const gpu_work *w, product_maker make, product_runner run)
{
    product p;
    ASSAY_TRY(make(w->o, &p));
    for (int64_t e = 0, start = 0; e < p.experts; start += p.tokens_per_expert[e++]) {
        const product expert = expert_product(&p, e, start);
        ASSAY_TRY(run(w, &expert));
    }
    return ASSAY_OK;
}
template <product_maker MAKE> static assay_status each_plain(const gpu_work *w)
{
    return run_each(w, MAKE, gpu_product_plain);
}
template <product_maker MAKE> static assay_status each_blas(const gpu_work *w)
{
    return run_each(w, MAKE, gpu_product_blas);
}
template <product_maker MAKE> static assay_status all_mma(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return gpu_grouped_mma(w, &p);
}

/* Whether cuBLASLt has an algorithm for every product (it keeps what it found: asking again costs little). */
template <product_maker MAKE> static bool blas_accepts(const gpu_ctx *ctx, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) != ASSAY_OK) {
        assay_error_clear();
        return true;
    }
    bool all = true;
    for (int64_t e = 0, start = 0; e < p.experts && all; start += p.tokens_per_expert[e++]) {
        const product expert = expert_product(&p, e, start);
        all = gpu_product_blas_has(ctx, &expert);
    }
    return all;
}
template <product_maker MAKE> static bool mma_accepts(const gpu_ctx *, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) == ASSAY_OK)
        return gpu_grouped_takes_mma(&p);
    assay_error_clear();
    return false;
}

#define GROUPED_LADDER(op, output)                                                                           \
    GPU_LADDER(op) = {GPU_RUNG("one thread an element, inner index ascending", each_plain<op##_product>,     \
                               GPU_DECLARES(output, GPU_SEQUENTIAL(0))),                                     \
                      GPU_RUNG_BY_LIBRARY("cuBLASLt, experts one after the other", each_blas<op##_product>,  \
                                          gpu_product_blas_bytes, blas_accepts<op##_product>, NULL,          \
                                          GPU_SM_80,                                                         \
                                          GPU_ADAPTS(output, GPU_SEQUENTIAL(0), gpu_product_blas_arith,      \
                                                     GPU_PRODUCT_BLAS_ARITH)),                               \
                      GPU_RUNG_IF("matrix units, all experts in one launch", all_mma<op##_product>, NULL,    \
                                  mma_accepts<op##_product>, NULL, GPU_SM_80,                                \
                                  GPU_ADAPTS(output, GPU_TENSOR_CORE(0, 0), gpu_mma_arith, GPU_MMA_ARITH)),  \
                      GPU_LADDER_END}
GROUPED_LADDER(grouped_linear_fwd, "y");
GROUPED_LADDER(grouped_linear_bwd_input, "dx");
GROUPED_LADDER(grouped_linear_bwd_weight, "dweight");
