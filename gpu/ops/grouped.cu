/* Grouped linear layers (experts).  docs/OPS.md 2.
 *
 *   k0  one thread for each element of the result, inner index      fp32, sequential fma
 *       ascending
 *   k1  cuBLASLt, experts one after the other; dweight as in        simulator: sequential fma
 *       linear.cu                                                   sm_90 and bf16: tensor core, k_step 16,
 *                                                                   guard bits 2; otherwise: order unknown
 *   k2  all experts in one launch, bf16 on matrix units,            sm_90, simulator: tensor core, k_step 16,
 *       of any width: grouped_mma.cu                                guard bits 2; otherwise: order unknown
 *       F32 in tiles: grouped_tiles.cu                              fp32, sequential fma
 *   k3  the same by warpgroups and tensor maps (bf16, capability    as k2
 *       9.0 alone): grouped_sm90.cu; chosen only when asked for,
 *       until it has been measured on a device
 *
 * k0, k2 and k3 read the counts in device memory.  k1 needs them in host memory.
 * An operation of which cuBLASLt has no algorithm for one expert's product runs as k0 whole. */
#include "gpu/ops/grouped.cuh"

/* Counts are one for each expert and, where the host knows them, not negative with a sum of the number of rows. */
static assay_status check_groups(const char *op, gpu_tensor counts, const int64_t *on_host, int64_t experts,
                                 int64_t rows)
{
    int64_t sum = 0;
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", counts, experts));
    ASSAY_CHECK(experts > 0 || rows == 0, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected a sum of %" PRId64 " rows, found no expert", op, rows);
    if (on_host == nullptr)
        return ASSAY_OK;
    for (int64_t e = 0; e < experts; ++e) {
        ASSAY_CHECK(on_host[e] >= 0 && assay_add_i64(sum, on_host[e], &sum), ASSAY_INVALID_ARGUMENT,
                    "%s: tokens_per_expert[%" PRId64 "]: expected a count, found %" PRId64, op, e,
                    on_host[e]);
    }
    ASSAY_CHECK(sum == rows, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected a sum of %" PRId64 " rows, found %" PRId64, op, rows, sum);
    return ASSAY_OK;
}

static void set_groups(product *p, int64_t experts, gpu_tensor counts, const int64_t *on_host)
{
    p->experts = experts;
    p->tokens_per_expert = (const int64_t *)counts.data;
    p->counts_on_host = on_host;
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
    const int64_t *on_host = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_fwd";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(x), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(gpu_check_shape2(op, "y", y, rows, n));
    ASSAY_TRY(check_groups(op, counts, on_host, weight.shape[0], rows));
    *p = product_of(op, rows, n, k, y, x, weight);
    set_groups(p, weight.shape[0], counts, on_host);
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_input_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dx = gpu_operand(o, "dx"), dy = gpu_operand(o, "dy"), weight = gpu_operand(o, "weight");
    const gpu_tensor counts = gpu_operand(o, "tokens_per_expert");
    const int64_t *on_host = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_input";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(dy), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "dx", dx, rows, k));
    ASSAY_TRY(check_groups(op, counts, on_host, weight.shape[0], rows));
    *p = product_of(op, rows, k, n, dx, dy, weight);
    p->b_is_kn = true;
    set_groups(p, weight.shape[0], counts, on_host);
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_weight_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight"), dy = gpu_operand(o, "dy"), x = gpu_operand(o, "x");
    const gpu_tensor counts = gpu_operand(o, "tokens_per_expert");
    const int64_t *on_host = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_weight";
    ASSAY_TRY(gpu_check_tensor(op, "dweight", dweight, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(check_grouped(op, "dweight", dweight));
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, dy.dtype, dy.dtype));
    const int64_t rows = gpu_tensor_row_count(dy), n = dweight.shape[1], k = dweight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(check_groups(op, counts, on_host, dweight.shape[0], rows));
    *p = product_of(op, n, k, rows, dweight, dy, x);
    p->a_is_km = p->b_is_kn = true;
    p->accumulate = gpu_operand_bool(o, "accumulate");
    set_groups(p, dweight.shape[0], counts, on_host);
    p->stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    return ASSAY_OK;
}

/* --- k0 ----------------------------------------------------------------------------------------------------- */
/* c [R,n] = a [R,k] times the matrix of a row's expert; a row that no expert has is NaN. */
template <class TC, class T>
__global__ void grouped_rows_k0(TC *c, const T *a, const T *b, const int64_t *tokens_per_expert,
                                int64_t experts, int64_t rows, int64_t n, int64_t k, bool b_is_kn)
{
    for (int64_t i = gpu_thread(); i < rows * n; i += gpu_threads()) {
        const int64_t row = i / n, column = i % n;
        int64_t e = 0, end = 0;
        for (; e < experts; ++e) {
            end += grouped_count(tokens_per_expert[e], rows - end);
            if (row < end)
                break;
        }
        if (e == experts) {
            gpu_store(c + i, NAN);
            continue;
        }
        const T *left = a + row * k, *right = b + e * n * k + (b_is_kn ? column : column * k);
        const int64_t step = b_is_kn ? n : 1;
        float sum = 0.0f;
        for (int64_t j = 0; j < k; ++j)
            sum = fmaf(gpu_load(left + j), gpu_load(right + j * step), sum);
        gpu_store(c + i, sum);
    }
}

/* c [El,m,n] += (or, not to accumulate, =) a^T b over each expert's rows of a [R,m] and b [R,n]; stored: the product is rounded to T
 * before. */
template <class T>
__global__ void grouped_weight_k0(float *c, const T *a, const T *b, const int64_t *tokens_per_expert,
                                  int64_t experts, int64_t rows, int64_t m, int64_t n, bool stored,
                                  bool accumulate)
{
    for (int64_t i = gpu_thread(); i < experts * m * n; i += gpu_threads()) {
        const int64_t e = i / (m * n), from = i / n % m, to = i % n;
        int64_t row = 0;
        for (int64_t before = 0; before < e; ++before)
            row += grouped_count(tokens_per_expert[before], rows - row);
        const int64_t end = row + grouped_count(tokens_per_expert[e], rows - row);
        if (row == end && accumulate)
            continue;
        float sum = 0.0f;
        for (; row < end; ++row)
            sum = fmaf(gpu_load(a + row * m + from), gpu_load(b + row * n + to), sum);
        if (stored) {
            T narrow;
            gpu_store(&narrow, sum);
            sum = gpu_load(&narrow);
        }
        c[i] = accumulate ? c[i] + sum : sum;
    }
}

template <class TC, class T> static cudaError_t launch_rows(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((grouped_rows_k0<TC, T>), gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK),
                                 0, stream, (TC *)p->c.data, (const T *)p->a.data, (const T *)p->b.data,
                                 p->tokens_per_expert, p->experts, p->m, p->n, p->k, p->b_is_kn);
}

template <class T> static cudaError_t launch_weight(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(grouped_weight_k0<T>, gpu_grid(p->experts * p->m * p->n, GPU_BLOCK),
                                 dim3(GPU_BLOCK), 0, stream, (float *)p->c.data, (const T *)p->a.data,
                                 (const T *)p->b.data, p->tokens_per_expert, p->experts, p->k, p->m, p->n,
                                 p->stored, p->accumulate);
}

static assay_status run_plain(const gpu_work *w, const product *p)
{
    if (p->experts == 0 || gpu_product_is_nothing(p))
        return ASSAY_OK;
    cudaError_t e;
    if (p->a_is_km)
        e = GPU_BY_ACT(p->a.dtype, launch_weight, p, w->stream);
    else if (p->a.dtype == ASSAY_F32)
        e = launch_rows<float, float>(p, w->stream);
    else if (p->c.dtype == ASSAY_F32)
        e = launch_rows<float, bf16>(p, w->stream);
    else
        e = launch_rows<bf16, bf16>(p, w->stream);
    GPU_LAUNCHED(e, p->op);
    return ASSAY_OK;
}

/* --- k1 ----------------------------------------------------------------------------------------------------- */
/* The product of expert e, whose rows begin at `start`. */
static product expert_product(const product *whole, int64_t e, int64_t start)
{
    const int64_t rows = whole->counts_on_host[e];
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

template <product_maker MAKE> static assay_status all_plain(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return run_plain(w, &p);
}
template <product_maker MAKE> static assay_status each_blas(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    for (int64_t e = 0, start = 0; e < p.experts; start += p.counts_on_host[e++]) {
        const product expert = expert_product(&p, e, start);
        ASSAY_TRY(gpu_product_blas(w, &expert));
    }
    return ASSAY_OK;
}
template <product_maker MAKE> static assay_status all_at_once(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return p.a.dtype == ASSAY_F32 ? gpu_grouped_tiles(w, &p) : gpu_grouped_mma(w, &p);
}

template <product_maker MAKE> static assay_status all_sm90(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return gpu_grouped_sm90(w, &p);
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
    for (int64_t e = 0, start = 0; e < p.experts && all; start += p.counts_on_host[e++]) {
        const product expert = expert_product(&p, e, start);
        all = gpu_product_blas_has(ctx, &expert);
    }
    return all;
}
template <product_maker MAKE> static bool at_once_accepts(const gpu_ctx *, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) == ASSAY_OK)
        return gpu_grouped_takes_mma(&p) || gpu_grouped_takes_tiles(&p);
    assay_error_clear();
    return false;
}

template <product_maker MAKE> static bool sm90_accepts(const gpu_ctx *ctx, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) == ASSAY_OK)
        return gpu_grouped_takes_sm90(ctx, &p);
    assay_error_clear();
    return false;
}
/* Whether there are rows and columns for a tile of k3; below that k2's of half the size do. */
template <product_maker MAKE> static bool sm90_pays(const gpu_operands *o)
{
    const int64_t tile = 128;
    product p;
    if (MAKE(o, &p) == ASSAY_OK)
        return gpu_tensor_row_count(p.a) >= tile && p.n >= tile && (!p.a_is_km || p.m >= tile);
    assay_error_clear();
    return false;
}
static void at_once_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor x = gpu_operand(o, "x");
    const assay_arith one_chain = GPU_SEQUENTIAL(0);
    if ((gpu_tensor_present(x) ? x : gpu_operand(o, "dy")).dtype == ASSAY_F32)
        *a = one_chain;
    else
        gpu_mma_arith(a, ctx, o);
}
#define AT_ONCE_ARITH "F32: sequential; bf16 on sm_90: as it says; else: order unknown"

#define GROUPED_LADDER(op, output)                                                                           \
    GPU_LADDER(op) = {                                                                                       \
        GPU_RUNG("one thread an element, inner index ascending", all_plain<op##_product>,                    \
                 GPU_DECLARES(output, GPU_SEQUENTIAL(0))),                                                   \
        GPU_RUNG_READING_HOST(                                                                               \
            "tokens_per_expert", "cuBLASLt, experts one after the other", each_blas<op##_product>,           \
            gpu_product_blas_bytes, blas_accepts<op##_product>, NULL, GPU_SM_80,                             \
            GPU_ADAPTS(output, GPU_SEQUENTIAL(0), gpu_product_blas_arith, GPU_PRODUCT_BLAS_ARITH)),          \
        GPU_RUNG_IF("all experts in one launch: bf16 on matrix units, F32 in tiles",                         \
                    all_at_once<op##_product>, NULL, at_once_accepts<op##_product>, NULL, GPU_SM_80,         \
                    GPU_ADAPTS(output, GPU_TENSOR_CORE(0, 0), at_once_arith, AT_ONCE_ARITH)),                \
        GPU_RUNG_BF16(NULL, GPU_SM_90, "warpgroups and tensor maps, all experts in one launch",              \
                      all_sm90<op##_product>, NULL, sm90_accepts<op##_product>, sm90_pays<op##_product>,     \
                      GPU_SM_90, GPU_ADAPTS(output, GPU_TENSOR_CORE(0, 0), gpu_mma_arith, GPU_MMA_ARITH)),   \
        GPU_LADDER_END}
GROUPED_LADDER(grouped_linear_fwd, "y");
GROUPED_LADDER(grouped_linear_bwd_input, "dx");
GROUPED_LADDER(grouped_linear_bwd_weight, "dweight");
