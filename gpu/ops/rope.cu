/* Rotary position embedding.  docs/OPS.md 4; Su et al. 2021; llama3 scaling as in Hugging Face transformers; yarn: Peng et al. 2023.
 *
 *   k0  one thread for each pair or element; the table in double,      fp32, element-wise (table: double)
 *       rounded once
 *
 *   k1  fwd, bwd: one thread for eight pairs; the same arithmetic */
#include "core/model/config.h"
#include "gpu/ops/rope.cuh"
#include "gpu/vector.cuh"

typedef struct rope_desc {
    int type; /* assay_rope_type */
    int64_t rotary_dim;
    double base, factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
    double low, high, attention_factor; /* yarn: pairs between which frequencies pass into linear's */
} rope_desc;

__global__ void rope_table_k0(float *cos_table, float *sin_table, rope_desc d, int64_t positions)
{
    const int64_t pairs = d.rotary_dim / 2;
    const double two_pi = 6.283185307179586476925286766559;
    const double times = d.type == ASSAY_ROPE_YARN ? d.attention_factor : 1.0;
    for (int64_t e = gpu_thread(); e < positions * pairs; e += gpu_threads()) {
        const int64_t p = e / pairs, i = e % pairs;
        double f = pow(d.base, -2.0 * (double)i / (double)d.rotary_dim);
        if (d.type == ASSAY_ROPE_LINEAR)
            f /= d.factor;
        if (d.type == ASSAY_ROPE_LLAMA3) {
            const double orig = (double)d.original_max_position_embeddings;
            const double wavelength = two_pi / f;
            if (wavelength > orig / d.low_freq_factor) {
                f /= d.factor;
            } else if (!(wavelength < orig / d.high_freq_factor)) {
                const double s =
                    (orig / wavelength - d.low_freq_factor) / (d.high_freq_factor - d.low_freq_factor);
                f = (1.0 - s) * f / d.factor + s * f;
            }
        }
        if (d.type == ASSAY_ROPE_YARN) {
            const double s = fmin(fmax(((double)i - d.low) / (d.high - d.low), 0.0), 1.0);
            f = s * (f / d.factor) + (1.0 - s) * f;
        }
        const double angle = (double)p * f;
        cos_table[e] = (float)(times * cos(angle));
        sin_table[e] = (float)(times * sin(angle));
    }
}

/* sign = 1 rotates forward, -1 back. */
template <class T>
__global__ void rope_k0(T *y, const T *x, const float *cos_table, const float *sin_table,
                        const int64_t *position, float sign, int64_t t, int64_t heads, int64_t d,
                        int64_t pairs)
{
    const int64_t width = d - pairs; /* pairs, then the elements that pass */
    for (int64_t e = gpu_thread(); e < t * heads * width; e += gpu_threads()) {
        const int64_t row = e / width, i = e % width;
        if (i >= pairs) {
            y[row * d + pairs + i] = x[row * d + pairs + i];
            continue;
        }
        const int64_t entry = position[row / heads] * pairs + i;
        const float c = cos_table[entry], s = sign * sin_table[entry];
        float a = gpu_load(x + row * d + i), b = gpu_load(x + row * d + pairs + i);
        rope_turn(a, b, c, s);
        gpu_store(y + row * d + i, a);
        gpu_store(y + row * d + pairs + i, b);
    }
}

/* heads and rows are below 2^31. */
template <class T>
__global__ void rope_k1(T *y, const T *x, const float *cos_table, const float *sin_table,
                        const int64_t *position, float sign, int64_t rows, unsigned heads, int d, int pairs)
{
    GPU_EACH_EIGHT(row, i, rows, d - pairs)
    {
        const int64_t at = row * d + i, entry = position[(unsigned)row / heads] * pairs + i;
        float a[GPU_EIGHT], b[GPU_EIGHT], c[GPU_EIGHT], s[GPU_EIGHT];
        gpu_load_n(b, x + at + pairs);
        if (i < pairs) {
            gpu_load_n(a, x + at);
            gpu_load_n(c, cos_table + entry);
            gpu_load_n(s, sin_table + entry);
            for (int j = 0; j < GPU_EIGHT; ++j)
                rope_turn(a[j], b[j], c[j], sign * s[j]);
            gpu_store_n(y + at, a);
        }
        gpu_store_n(y + at + pairs, b); /* turned, or as it was */
    }
}

static bool positive(double v)
{
    return v > 0.0 && isfinite(v);
}

static rope_desc desc_of(const gpu_operands *o)
{
    static const int types[] = {ASSAY_ROPE_DEFAULT, ASSAY_ROPE_LINEAR, ASSAY_ROPE_LLAMA3,
                                ASSAY_ROPE_YARN}; /* the order of the words */
    const int word = gpu_operand_word(o, "rope_type");
    rope_desc d;
    d.type = word >= 0 ? types[word] : -1;
    d.rotary_dim = gpu_operand_int(o, "rotary_dim");
    d.base = gpu_operand_double(o, "rotary_base");
    d.factor = gpu_operand_double(o, "factor");
    d.low_freq_factor = gpu_operand_double(o, "low_freq_factor");
    d.high_freq_factor = gpu_operand_double(o, "high_freq_factor");
    d.original_max_position_embeddings = gpu_operand_int(o, "original_max_position_embeddings");
    d.low = d.high = 0.0;
    d.attention_factor = gpu_operand_double(o, "attention_factor");
    return d;
}

/* The pair that turns `beta` times within the original length; here, so that one logarithm decides where a whole number is near. */
static double yarn_pair(const rope_desc *d, double beta)
{
    const double two_pi = 6.283185307179586476925286766559;
    return (double)d->rotary_dim * log((double)d->original_max_position_embeddings / (beta * two_pi)) /
           (2.0 * log(d->base));
}

static assay_status yarn_range(const gpu_operands *o, rope_desc *d)
{
    const double fast = gpu_operand_double(o, "beta_fast"), slow = gpu_operand_double(o, "beta_slow");
    ASSAY_CHECK(positive(fast) && positive(slow) && positive(d->attention_factor) && d->base > 1.0 &&
                    d->original_max_position_embeddings > 0,
                ASSAY_INVALID_ARGUMENT,
                "rope_table: yarn: expected beta_fast, beta_slow, attention_factor and "
                "original_max_position_embeddings above 0, rotary_base above 1, found %g, %g, %g, %" PRId64
                ", %g",
                fast, slow, d->attention_factor, d->original_max_position_embeddings, d->base);
    d->low = yarn_pair(d, fast);
    d->high = yarn_pair(d, slow);
    if (gpu_operand_bool(o, "truncate")) {
        d->low = floor(d->low);
        d->high = ceil(d->high);
    }
    d->low = d->low > 0.0 ? d->low : 0.0;
    if (d->high > (double)(d->rotary_dim - 1))
        d->high = (double)(d->rotary_dim - 1);
    if (d->low == d->high)
        d->high += 1e-3;
    return ASSAY_OK;
}

static assay_status rope_table(const gpu_work *w)
{
    const gpu_tensor cos_table = gpu_operand(w->o, "cos"), sin_table = gpu_operand(w->o, "sin");
    rope_desc desc = desc_of(w->o), *d = &desc;
    const char *op = "rope_table";
    ASSAY_TRY(gpu_check_tensor(op, "cos", cos_table, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", sin_table, ASSAY_F32, ASSAY_F32));
    ASSAY_CHECK(d->rotary_dim >= 0 && d->rotary_dim % 2 == 0, ASSAY_INVALID_ARGUMENT,
                "%s: rotary_dim: expected an even number, found %" PRId64, op, d->rotary_dim);
    const int64_t positions = gpu_tensor_row_count(cos_table);
    ASSAY_TRY(gpu_check_shape2(op, "cos", cos_table, positions, d->rotary_dim / 2));
    ASSAY_TRY(gpu_check_shape2(op, "sin", sin_table, positions, d->rotary_dim / 2));
    ASSAY_CHECK(positive(d->base), ASSAY_INVALID_ARGUMENT,
                "%s: rotary_base: expected a positive number, found %g", op, d->base);
    ASSAY_CHECK(d->type >= 0, ASSAY_UNSUPPORTED,
                "%s: rope_type: expected default, linear, llama3 or yarn, found number %d", op, d->type);
    ASSAY_CHECK(d->type == ASSAY_ROPE_DEFAULT || positive(d->factor), ASSAY_INVALID_ARGUMENT,
                "%s: factor: expected a positive number, found %g", op, d->factor);
    ASSAY_CHECK(d->type != ASSAY_ROPE_LLAMA3 ||
                    (positive(d->low_freq_factor) && d->high_freq_factor > d->low_freq_factor &&
                     d->original_max_position_embeddings > 0),
                ASSAY_INVALID_ARGUMENT,
                "%s: llama3: expected 0 < low_freq_factor < high_freq_factor and "
                "original_max_position_embeddings > 0, found %g, %g, %" PRId64,
                op, d->low_freq_factor, d->high_freq_factor, d->original_max_position_embeddings);
    if (d->type == ASSAY_ROPE_YARN)
        ASSAY_TRY(yarn_range(w->o, d));
    const int64_t n = gpu_tensor_count(cos_table);
    if (n > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(rope_table_k0, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                           w->stream, (float *)cos_table.data, (float *)sin_table.data, *d,
                                           positions),
                     op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_rope(int variant, gpu_tensor y, gpu_tensor x, gpu_tensor c, gpu_tensor s,
                               gpu_tensor position, float sign, cudaStream_t stream)
{
    const int64_t t = x.shape[0], heads = x.shape[1], d = x.shape[2], pairs = gpu_tensor_cols(c);
    const gpu_pieces_launch eights = gpu_pieces_of(t * heads, (d - pairs) / GPU_EIGHT);
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER(rope_k1<T>, eights.grid, eights.block, 0, stream, (T *)y.data,
                                     (const T *)x.data, (const float *)c.data, (const float *)s.data,
                                     (const int64_t *)position.data, sign, t * heads, (unsigned)heads, (int)d,
                                     (int)pairs);
    return GPU_LAUNCH_NO_BARRIER(rope_k0<T>, gpu_grid(t * heads * (d - pairs), GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)y.data, (const T *)x.data, (const float *)c.data,
                                 (const float *)s.data, (const int64_t *)position.data, sign, t, heads, d,
                                 pairs);
}

static assay_status rope(const gpu_work *w, const char *y_name, const char *x_name, float sign)
{
    const char *op = w->o->op->name;
    const gpu_tensor y = gpu_operand(w->o, y_name), x = gpu_operand(w->o, x_name);
    const gpu_tensor c = gpu_operand(w->o, "cos"), s = gpu_operand(w->o, "sin"),
                     position = gpu_operand(w->o, "position");
    ASSAY_TRY(gpu_check_act(op, x_name, x));
    ASSAY_CHECK(x.ndim == 3, ASSAY_INVALID_ARGUMENT, "%s: %s: expected 3 dimensions [T,heads,D], found %d",
                op, x_name, x.ndim);
    ASSAY_TRY(gpu_check_tensor(op, y_name, y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, y_name, y, gpu_tensor_count(x)));
    ASSAY_TRY(gpu_check_tensor(op, "cos", c, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "sin", s, gpu_tensor_row_count(c), gpu_tensor_cols(c)));
    ASSAY_CHECK(2 * gpu_tensor_cols(c) <= x.shape[2], ASSAY_INVALID_ARGUMENT,
                "%s: cos: expected at most %" PRId64 " columns (half the head dimension), found %" PRId64, op,
                x.shape[2] / 2, gpu_tensor_cols(c));
    ASSAY_TRY(gpu_check_tensor(op, "position", position, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "position", position, x.shape[0]));
    if (gpu_tensor_count(x) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_rope, w->variant, y, x, c, s, position, sign, w->stream), op);
    return ASSAY_OK;
}

static assay_status rope_fwd(const gpu_work *w)
{
    return rope(w, "y", "x", 1.0f);
}

static assay_status rope_bwd(const gpu_work *w)
{
    return rope(w, "dx", "dy", -1.0f);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(rope_table) = {
    GPU_RUNG("one thread a pair, in double", rope_table,
             GPU_DECLARES("cos sin", GPU_ARITH(F64, NONE, 1, false, 2, 0))),
    GPU_LADDER_END,
};
static bool pairs_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor cos_table = gpu_operand(o, "cos"), x = o->slot[0];
    return gpu_tensor_cols(cos_table) % GPU_EIGHT == 0 && x.ndim == 3 && x.shape[0] * x.shape[1] < INT_MAX &&
           gpu_eights(o, x.shape[2]);
}

#define ROPE_RUNGS(run, output)                                                                              \
    GPU_RUNG("one thread a pair", run, GPU_DECLARES(output, GPU_ELEMENTWISE(0))),                            \
        GPU_RUNG_IF("eight pairs a thread", run, NULL, pairs_of_eights, NULL, GPU_SM_80,                     \
                    GPU_DECLARES(output, GPU_ELEMENTWISE(0))),                                               \
        GPU_LADDER_END
GPU_LADDER(rope_fwd) = {ROPE_RUNGS(rope_fwd, "y")};
GPU_LADDER(rope_bwd) = {ROPE_RUNGS(rope_bwd, "dx")};
