/* Products, norms, rope, element-wise operations, embedding and sums: every variant, dtype, data mode and size
 * under the reference. */
#include "tests/support/gpu_grouped.h"
#include "tests/support/gpu_judge.h"

void assay_sim_set_matrix_truncates(int truncates);

/* --- linear: T, N, K, 1 with bias, 1 when y is F32 ---------------------------------------------------------- */
static const op_sizes linear_sizes[] = {
    {{0, 3, 5}},   {{3, 0, 5}},          {{3, 5, 0, 1}}, {{1, 1, 1}},          {{2, 3, 5, 1}},
    {{5, 31, 33}}, {{33, 32, 31, 1, 1}}, {{37, 8, 64}},  {{64, 65, 16, 0, 1}}, {{7, 130, 3, 1}},
};

static void linear_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 2, d[0], d[2]);
    DRAW(c, "weight", act, mode, 1.0, 2, d[1], d[2]);
    if (d[3])
        DRAW(c, "bias", act, mode, 1.0, 1, d[1]);
    attr_s(c, "dtype", d[4] ? "F32" : assay_dtype_name(act));
}

static void linear_bwd_input(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "weight", act, mode, 1.0, 2, d[1], d[2]);
}

static void linear_bwd_weight(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "x", act, mode, 1.0, 2, d[0], d[2]);
    DRAW(c, "dweight_in", ASSAY_F32, mode, 1.0, 2, d[1], d[2]);
}

/* The product is stored before it is added. */
static void linear_bwd_weight_stored(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    linear_bwd_weight(c, act, mode, d);
    attr_b(c, "gradient_accumulation_fusion", false);
}

static void linear_bwd_bias(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "dbias_in", ASSAY_F32, mode, 1.0, 1, d[1]);
}

Test(gpu_ops, linear_fwd)
{
    hold(&(op_law){"linear_fwd", "linear", 2, false, linear_fwd, OP_SIZES(linear_sizes)});
}
Test(gpu_ops, linear_bwd_input)
{
    hold(&(op_law){"linear_bwd_input", "linear", 2, false, linear_bwd_input, OP_SIZES(linear_sizes)});
}
Test(gpu_ops, linear_bwd_weight)
{
    hold(&(op_law){"linear_bwd_weight", "linear", 2, false, linear_bwd_weight, OP_SIZES(linear_sizes)});
}
Test(gpu_ops, linear_bwd_weight_stored)
{
    hold(
        &(op_law){"linear_bwd_weight", "linear", 2, false, linear_bwd_weight_stored, OP_SIZES(linear_sizes)});
}
Test(gpu_ops, linear_bwd_bias)
{
    hold(&(op_law){"linear_bwd_bias", "linear", 2, false, linear_bwd_bias, OP_SIZES(linear_sizes)});
}

/* --- grouped linear: N, K, El, rows of each expert ---------------------------------------------------------- */
static const op_sizes grouped_sizes[] = {
    {{11, 13, 4, 3, 0, 34, 0}}, {{5, 3, 1, 7}},         {{3, 5, 3, 0, 0, 0}}, {{33, 31, 2, 1, 40}},
    {{4, 4, 5, 1, 1, 1, 1, 1}}, {{128, 64, 2, 63, 65}}, /* tiles of k2, and beyond */
    {{129, 65, 3, 64, 0, 1}},   {{68, 132, 2, 17, 16}},
};

Test(gpu_ops, grouped_linear_fwd)
{
    hold(&(op_law){"grouped_linear_fwd", "linear", 3, false, grouped_linear_fwd, OP_SIZES(grouped_sizes)});
}
Test(gpu_ops, grouped_linear_bwd_input)
{
    hold(&(op_law){"grouped_linear_bwd_input", "linear", 3, false, grouped_linear_bwd_input,
                   OP_SIZES(grouped_sizes)});
}
static void grouped_linear_bwd_weight_stored(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    grouped_linear_bwd_weight(c, act, mode, d);
    attr_b(c, "gradient_accumulation_fusion", false);
}

Test(gpu_ops, grouped_linear_bwd_weight_stored)
{
    hold(&(op_law){"grouped_linear_bwd_weight", "linear", 3, false, grouped_linear_bwd_weight_stored,
                   OP_SIZES(grouped_sizes)});
}
Test(gpu_ops, grouped_linear_bwd_weight)
{
    hold(&(op_law){"grouped_linear_bwd_weight", "linear", 3, false, grouped_linear_bwd_weight,
                   OP_SIZES(grouped_sizes)});
}

/* k2 in bf16 where the units truncate as those of sm_90 may. */
Test(gpu_ops, grouped_products_by_the_truncating_model)
{
    static const struct {
        const char *op;
        op_build build;
    } products[] = {{"grouped_linear_fwd", grouped_linear_fwd},
                    {"grouped_linear_bwd_input", grouped_linear_bwd_input},
                    {"grouped_linear_bwd_weight", grouped_linear_bwd_weight},
                    {"grouped_linear_bwd_weight", grouped_linear_bwd_weight_stored}};
    assay_sim_set_matrix_truncates(1);
    for (size_t k = 0; k < sizeof products / sizeof *products; ++k)
        hold_rung(&(op_law){products[k].op, "linear", 3, false, products[k].build, OP_SIZES(grouped_sizes)},
                  2);
}

/* Widths of multiples of 8, too. */
static const op_sizes first_sizes[] = {
    {{11, 13, 4, 3, 0, 34, 0}}, {{3, 5, 3, 0, 0, 0}}, {{16, 24, 4, 3, 0, 70, 0}},
    {{72, 8, 2, 0, 0}},         {{8, 136, 1, 5}},
};

static void linear_bwd_weight_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    linear_bwd_weight(c, act, mode, d);
    op_unread(c);
}

static void linear_bwd_weight_stored_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    linear_bwd_weight_stored(c, act, mode, d);
    op_unread(c);
}

static void linear_bwd_bias_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    linear_bwd_bias(c, act, mode, d);
    op_unread(c);
}

static void grouped_linear_bwd_weight_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    grouped_linear_bwd_weight(c, act, mode, d);
    op_unread(c);
}

static void grouped_linear_bwd_weight_stored_first(op_call *c, assay_dtype act, data_mode mode,
                                                   const int64_t *d)
{
    grouped_linear_bwd_weight_stored(c, act, mode, d);
    op_unread(c);
}

Test(gpu_ops, first_products_of_a_step)
{
    hold(&(op_law){"linear_bwd_weight", "linear", 2, false, linear_bwd_weight_first, OP_SIZES(linear_sizes)});
    hold(&(op_law){"linear_bwd_weight", "linear", 2, false, linear_bwd_weight_stored_first,
                   OP_SIZES(linear_sizes)});
    hold(&(op_law){"linear_bwd_bias", "linear", 2, false, linear_bwd_bias_first, OP_SIZES(linear_sizes)});
}

Test(gpu_ops, first_products_of_a_step_by_experts)
{
    hold(&(op_law){"grouped_linear_bwd_weight", "linear", 3, false, grouped_linear_bwd_weight_first,
                   OP_SIZES(first_sizes)});
    hold(&(op_law){"grouped_linear_bwd_weight", "linear", 3, false, grouped_linear_bwd_weight_stored_first,
                   OP_SIZES(first_sizes)});
}

/* --- rmsnorm: T, H ------------------------------------------------------------------------------------------ */
static const op_sizes norm_sizes[] = {
    {{0, 3}}, {{1, 1}}, {{2, 3}}, {{5, 31}}, {{33, 32}}, {{2, 33}}, {{5, 67}}, {{33, 256}}, {{3, 1030}},
};

static void rmsnorm_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    put(c, "gamma", act, 0.5, 1.5, 1, d[1]);
    attr_d(c, "eps", (double)1e-6f);
}

static void rmsnorm_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call f;
    call_begin(&f, c->ctx, c->seed);
    rmsnorm_fwd(&f, act, mode, d);
    run_op(&f, "rmsnorm_fwd", act);
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    put_values(c, "x", act, f.value[0], d[0], d[1]);
    put_values(c, "gamma", act, f.value[1], d[1], -1);
    feed(c, "rstd", &f, "rstd");
    DRAW(c, "dgamma_in", ASSAY_F32, mode, 1.0, 1, d[1]);
    attr_d(c, "eps", (double)1e-6f);
    call_end(&f);
}

Test(gpu_ops, rmsnorm_fwd)
{
    hold(&(op_law){"rmsnorm_fwd", "rmsnorm", 2, false, rmsnorm_fwd, OP_SIZES(norm_sizes)});
}
Test(gpu_ops, rmsnorm_bwd)
{
    hold(&(op_law){"rmsnorm_bwd", "rmsnorm", 2, false, rmsnorm_bwd, OP_SIZES(norm_sizes)});
}

/* Rows cut over ranks; the whole row has 3 columns more. */
static void rmsnorm_sumsq(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    attr_i(c, "columns", d[1]);
}

static void rmsnorm_apply(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    put(c, "gamma", act, 0.5, 1.5, 1, d[1]);
    put(c, "sumsq", ASSAY_F32, 0.0, 9.0, 1, d[0]);
    attr_d(c, "eps", (double)1e-6f);
    attr_i(c, "width", d[1] + 3);
}

static void rmsnorm_bwd_dot(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    put(c, "gamma", act, 0.5, 1.5, 1, d[1]);
    put(c, "rstd", ASSAY_F32, 0.1, 2.0, 1, d[0]);
}

static void rmsnorm_bwd_apply(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    rmsnorm_bwd_dot(c, act, mode, d);
    DRAW(c, "dot", ASSAY_F32, mode, 3.0, 1, d[0]);
    DRAW(c, "dgamma_in", ASSAY_F32, mode, 1.0, 1, d[1]);
    attr_i(c, "width", d[1] + 3);
}

Test(gpu_ops, rmsnorm_sumsq)
{
    hold(&(op_law){"rmsnorm_sumsq", "rmsnorm", 2, false, rmsnorm_sumsq, OP_SIZES(norm_sizes)});
}
Test(gpu_ops, rmsnorm_apply)
{
    hold(&(op_law){"rmsnorm_apply", "rmsnorm", 2, false, rmsnorm_apply, OP_SIZES(norm_sizes)});
}
Test(gpu_ops, rmsnorm_bwd_dot)
{
    hold(&(op_law){"rmsnorm_bwd_dot", "rmsnorm", 2, false, rmsnorm_bwd_dot, OP_SIZES(norm_sizes)});
}
Test(gpu_ops, rmsnorm_bwd_apply)
{
    hold(&(op_law){"rmsnorm_bwd_apply", "rmsnorm", 2, false, rmsnorm_bwd_apply, OP_SIZES(norm_sizes)});
}

/* --- rope: T, heads, D, R/2, positions; the table: R, positions, type --------------------------------------- */
static const op_sizes rope_sizes[] = {
    {{7, 3, 8, 4, 11}}, {{7, 3, 9, 3, 11}}, {{5, 1, 5, 0, 3}},
    {{1, 2, 2, 1, 1}},  {{0, 2, 4, 2, 4}},  {{33, 5, 64, 32, 40}},
};
static const op_sizes table_sizes[] = {{{16, 21, 0}},  {{16, 21, 1}}, {{16, 81, 2}}, {{2, 1, 0}},
                                       {{64, 300, 2}}, {{16, 81, 3}}, {{64, 300, 3}}};

static void rope_table(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    static const char *const type[] = {"default", "linear", "llama3", "yarn"};
    (void)act;
    attr_s(c, "rope_type", type[d[2]]);
    attr_i(c, "rotary_dim", d[0]);
    attr_d(c, "rotary_base", mode == ZERO_MEAN ? 10000 : 500000);
    attr_d(c, "factor", 8);
    attr_d(c, "low_freq_factor", 1);
    attr_d(c, "high_freq_factor", 4);
    attr_i(c, "original_max_position_embeddings", 64);
    attr_i(c, "positions", d[1]);
    attr_d(c, "beta_fast", mode == ZERO_MEAN ? 32 : 5.5);
    attr_d(c, "beta_slow", 0.75);
    attr_b(c, "truncate", mode == ZERO_MEAN);
    attr_d(c, "attention_factor", 1.125);
}

static void rope(op_call *c, const char *slot, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call t;
    const int64_t table[3] = {2 * d[3], d[4], 0};
    call_begin(&t, c->ctx, 1);
    rope_table(&t, act, ZERO_MEAN, table);
    run_op(&t, "rope_table", ASSAY_F32);
    DRAW(c, slot, act, mode, 1.0, 3, d[0], d[1], d[2]);
    feed(c, "cos", &t, "cos");
    feed(c, "sin", &t, "sin");
    put(c, "position", ASSAY_I64, 0, (double)d[4], 1, d[0]);
    call_end(&t);
}

static void rope_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    rope(c, "x", act, mode, d);
}

static void rope_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    rope(c, "dy", act, mode, d);
}

Test(gpu_ops, rope_table)
{
    hold(&(op_law){"rope_table", "elementwise", 2, true, rope_table, OP_SIZES(table_sizes)});
}
Test(gpu_ops, rope_fwd)
{
    hold(&(op_law){"rope_fwd", "elementwise", 2, false, rope_fwd, OP_SIZES(rope_sizes)});
}
Test(gpu_ops, rope_bwd)
{
    hold(&(op_law){"rope_bwd", "elementwise", 2, false, rope_bwd, OP_SIZES(rope_sizes)});
}

/* --- element-wise: rows, width, 1 with probs ---------------------------------------------------------------- */
static const op_sizes vector_sizes[] = {{{0}},  {{1}},  {{3}},    {{4}},   {{5}},
                                        {{32}}, {{37}}, {{1024}}, {{1027}}};
static const op_sizes row_sizes[] = {
    {{0, 3, 1}}, {{1, 1}}, {{2, 3, 1}}, {{5, 31}}, {{33, 32, 1}}, {{2, 67}}, {{5, 128, 1}}, {{3, 0, 1}},
};

static void add(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "a", act, mode, 1.0, 1, d[0]);
    DRAW(c, "b", act, mode, 1.0, 1, d[0]);
}

/* Every third value sits on the limit as the type stores it, on one side or the other: 1.25 is a number of both
 * types, 0.7 of none: its stored neighbour lies below it, so that its gradient passes. */
static void clamp(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    const double limit = d[0] % 2 ? 0.7 : 1.25;
    double *v = DRAW(c, "x", act, mode, 2.0, 1, d[0]);
    for (int64_t i = 0; i < d[0]; i += 3)
        v[i] = i % 2 ? limit : -limit;
    store_slot(c);
    attr_d(c, "limit", limit);
}

static void clamp_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 1, d[0]);
    clamp(c, act, mode, d);
}

static void dropout_attrs(op_call *c, const int64_t *d)
{
    put(c, "token", ASSAY_I64, 0, (double)(d[0] + 5), 1, d[0]);
    attr_d(c, "p", 0.3);
    attr_i(c, "seed", 1234);
    attr_i(c, "stream", 6);
    attr_i(c, "draw", 41);
}

static void dropout_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 2, d[0], d[1]);
    dropout_attrs(c, d);
}

static void dropout_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    dropout_attrs(c, d);
}

static void cast(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act == ASSAY_F32 ? ASSAY_BF16 : ASSAY_F32, mode, 3.0, 1, d[0]);
    attr_s(c, "dtype", assay_dtype_name(act));
}

static void slice_rows(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 3.0, 2, d[0] + 3, d[1] + 1);
    attr_i(c, "start", 2);
    attr_i(c, "length", d[0]);
}

static void swiglu_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 4.0, 2, d[0], 2 * d[1]);
    if (d[2])
        put(c, "probs", ASSAY_F32, 0, 1, 1, d[0]);
}

static void swiglu_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    swiglu_fwd(c, act, mode, d);
}

static void sigmoid_gate_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    DRAW(c, "gate", act, mode, 3.0, 1, d[0]);
}

static void sigmoid_gate_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    sigmoid_gate_fwd(c, act, mode, d);
}

Test(gpu_ops, add)
{
    hold(&(op_law){"add", "elementwise", 2, false, add, OP_SIZES(vector_sizes)});
}
Test(gpu_ops, clamp_fwd)
{
    hold(&(op_law){"clamp_fwd", "elementwise", 2, false, clamp, OP_SIZES(vector_sizes)});
}
Test(gpu_ops, clamp_bwd)
{
    hold(&(op_law){"clamp_bwd", "elementwise", 2, false, clamp_bwd, OP_SIZES(vector_sizes)});
}
Test(gpu_ops, dropout_fwd)
{
    hold(&(op_law){"dropout_fwd", "elementwise", 2, false, dropout_fwd, OP_SIZES(row_sizes)});
}
Test(gpu_ops, dropout_bwd)
{
    hold(&(op_law){"dropout_bwd", "elementwise", 2, false, dropout_bwd, OP_SIZES(row_sizes)});
}
Test(gpu_ops, cast)
{
    hold(&(op_law){"cast", "elementwise", 2, false, cast, OP_SIZES(vector_sizes)});
}
Test(gpu_ops, slice_rows)
{
    hold(&(op_law){"slice_rows", "elementwise", 2, false, slice_rows, OP_SIZES(row_sizes)});
}
Test(gpu_ops, swiglu_fwd)
{
    hold(&(op_law){"swiglu_fwd", "elementwise", 2, false, swiglu_fwd, OP_SIZES(row_sizes)});
}
Test(gpu_ops, swiglu_bwd)
{
    hold(&(op_law){"swiglu_bwd", "elementwise", 2, false, swiglu_bwd, OP_SIZES(row_sizes)});
}
Test(gpu_ops, sigmoid_gate_fwd)
{
    hold(&(op_law){"sigmoid_gate_fwd", "elementwise", 2, false, sigmoid_gate_fwd, OP_SIZES(row_sizes)});
}
Test(gpu_ops, sigmoid_gate_bwd)
{
    hold(&(op_law){"sigmoid_gate_bwd", "elementwise", 2, false, sigmoid_gate_bwd, OP_SIZES(row_sizes)});
}

/* --- embedding: T, V, H, first id; ids run past both ends of the piece -------------------------------------- */
static const op_sizes embedding_sizes[] = {
    {{0, 7, 9, 5}},
    {{1, 7, 9, 5}},
    {{3, 1, 1, 0}},
    {{32, 7, 33, 5}},
    {{140, 7, 9, 5}},
    {{9, 0, 4, 3}},
    {{50, 40, 64, 0}},
    /* ids of one to three digits of 8 bits; chains of an id of more than 64 and of more than 512 tokens */
    {{300, 300, 8, 3}},
    {{40, 70000, 1, 2}},
    {{700, 1, 9, 0}},
    {{3100, 1, 7, 0}},
    {{2900, 1, 264, 0}},
};

static void ids(op_call *c, const int64_t *d)
{
    double *v = put(c, "ids", ASSAY_I64, 0, (double)(d[3] + d[1] + 4), 1, d[0]);
    if (d[0] > 2 && d[1] > 0) { /* both sides of both edges */
        v[0] = (double)d[3];
        v[1] = (double)(d[3] + d[1] - 1);
        v[2] = (double)(d[3] + d[1]);
        store_slot(c);
    }
}

static void embedding_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    ids(c, d);
    DRAW(c, "weight", act, mode, 1.0, 2, d[1], d[2]);
    attr_i(c, "vocab_start", d[3]);
}

static void embedding_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    ids(c, d);
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[2]);
    DRAW(c, "dweight_in", ASSAY_F32, mode, 1.0, 2, d[1], d[2]);
    attr_i(c, "vocab_start", d[3]);
}

static void embedding_bwd_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    embedding_bwd(c, act, mode, d);
    attr_i(c, "padding_idx", d[3]);
}

static void embedding_bwd_last(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    embedding_bwd(c, act, mode, d);
    attr_i(c, "padding_idx", d[3] + d[1] - 1);
}

Test(gpu_ops, embedding_fwd)
{
    hold(&(op_law){"embedding_fwd", "elementwise", 2, false, embedding_fwd, OP_SIZES(embedding_sizes)});
}
Test(gpu_ops, embedding_bwd)
{
    hold(&(op_law){"embedding_bwd", "elementwise", 3, false, embedding_bwd, OP_SIZES(embedding_sizes)});
}

Test(gpu_ops, embedding_bwd_with_padding)
{
    hold(&(op_law){"embedding_bwd", "elementwise", 3, false, embedding_bwd_first, OP_SIZES(embedding_sizes)});
    hold(&(op_law){"embedding_bwd", "elementwise", 3, false, embedding_bwd_last, OP_SIZES(embedding_sizes)});
}

/* k2 adds the rows of an id, ascending, in chains of ceil(n / 64) from 0 on, the chains in order, and the table's value last. */
static void embedding_chains(float *table, const float *dy, const double *ids, int64_t t, int64_t h,
                             int64_t id)
{
    int64_t n = 0, length, seen = 0;
    for (int64_t i = 0; i < t; ++i)
        n += (int64_t)ids[i] == id;
    length = (n + 63) / 64;
    for (int64_t j = 0; j < h; ++j) {
        float total = 0, chain = 0;
        seen = 0;
        for (int64_t i = 0; i < t; ++i)
            if ((int64_t)ids[i] == id) {
                chain += dy[i * h + j];
                if (++seen % length == 0 || seen == n) {
                    total += chain;
                    chain = 0;
                }
            }
        if (n > 0)
            table[j] = total + table[j];
    }
}

/* Tokens, rows of the table, columns; every `every`-th token has the first id, with 1 all; the others are spread. */
static void embedding_is_bitwise(int64_t t, int64_t v, int64_t h, int64_t every)
{
    op_call c;
    gpu_ctx ctx;
    double *id = malloc((size_t)t * sizeof *id);
    float *table = malloc((size_t)(v * h) * sizeof *table), *dy = malloc((size_t)(t * h) * sizeof *dy);
    open_ctx(&ctx);
    set_variants(&ctx, "elementwise=k2");
    call_begin(&c, &ctx, (uint64_t)(t + h));
    for (int64_t i = 0; i < t; ++i)
        id[i] = i % every == 0 ? 5 : (double)((i * 7919 + i / 3) % (v + 9));
    put_values(&c, "ids", ASSAY_I64, id, t, -1);
    DRAW(&c, "dy", ASSAY_F32, ONE_SIGNED, 1.0, 2, t, h);
    for (int64_t i = 0; i < t * h; ++i)
        dy[i] = (float)c.value[c.n_in - 1][i];
    DRAW(&c, "dweight_in", ASSAY_F32, ONE_SIGNED, 1.0, 2, v, h);
    for (int64_t i = 0; i < v * h; ++i)
        table[i] = (float)c.value[c.n_in - 1][i];
    attr_i(&c, "vocab_start", 5);
    run_op(&c, "embedding_bwd", ASSAY_F32);
    cr_assert_eq(c.declared.variant, 2);
    for (int64_t r = 0; r < v; ++r) {
        embedding_chains(table + r * h, dy, id, t, h, r + 5);
        for (int64_t j = 0; j < h; ++j)
            cr_assert_eq((float)result(&c, "dweight")[r * h + j], table[r * h + j], "row %lld, column %lld",
                         (long long)r, (long long)j);
    }
    call_end(&c);
    gpu_ctx_destroy(&ctx);
    free(dy);
    free(table);
    free(id);
}

Test(gpu_ops, embedding_k2_adds_in_the_order_that_it_declares)
{
    static const int64_t counts[] = {1, 64, 65, 128, 129, 512, 513, 577, 1153};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i)
        embedding_is_bitwise(counts[i], 3, 5, 1);
    embedding_is_bitwise(1700, 300, 16, 3);
    embedding_is_bitwise(1300, 30, 33, 2);
    embedding_is_bitwise(4096, 2, 8, 2);
}

/* --- sums: n ------------------------------------------------------------------------------------------------ */
static const op_sizes sum_sizes[] = {{{0}}, {{1}}, {{3}}, {{255}}, {{256}}, {{257}}, {{5000}}, {{20011}}};

static void sum(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "x", ASSAY_F32, mode, 2.0, 1, d[0]);
}

Test(gpu_ops, sum)
{
    hold(&(op_law){"sum", "elementwise", 2, true, sum, OP_SIZES(sum_sizes)});
}
Test(gpu_ops, sumsq)
{
    hold(&(op_law){"sumsq", "elementwise", 2, true, sum, OP_SIZES(sum_sizes)});
}

/* Every third number is a zero, of either sign. */
static void some_zeros(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    sum(c, act, mode, d);
    float *x = c->in[c->n_in - 1].data;
    double *value = c->value[c->n_in - 1];
    for (int64_t i = 0; i < d[0]; i += 3)
        value[i] = (double)(x[i] = i % 2 == 0 ? 0.0f : -0.0f);
}
/* The last has more elements than the most blocks take 16 by 16. */
static const op_sizes zero_sizes[] = {{{0}}, {{1}}, {{255}}, {{257}}, {{5000}}, {{1200007}}};

Test(gpu_ops, count_zeros)
{
    hold(&(op_law){"count_zeros", "elementwise", 2, true, some_zeros, OP_SIZES(zero_sizes)});
}

/* --- total, clip_coefficient ----------------------------------------------------------------------------------- */
static void total(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "x", ASSAY_F64, mode, 2.0, 1, d[0]);
}

static void total_of_integers(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    (void)mode;
    put(c, "x", ASSAY_I64, 0.0, 1e9, 1, d[0]);
}

Test(gpu_ops, total)
{
    hold(&(op_law){"total", "elementwise", 1, true, total, OP_SIZES(sum_sizes)});
    hold(&(op_law){"total", "elementwise", 1, true, total_of_integers, OP_SIZES(sum_sizes)});
}

/* The bits are those of the loop: in the order of the list. */
Test(gpu_ops, total_adds_in_the_order_of_the_list)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    op_call c;
    call_begin(&c, &ctx, 5);
    const double *x = put(&c, "x", ASSAY_F64, -1.0, 1.0, 1, (int64_t)999);
    double sum = 0.0;
    for (int i = 0; i < 999; i++)
        sum += x[i];
    run_op(&c, "total", ASSAY_F32);
    cr_expect_eq(result(&c, "y")[0], sum);
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

/* clip_grad x 10 */
static const op_sizes clip_sizes[] = {{{0}}, {{5}}, {{10}}, {{1000}}};

static void clip(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    (void)mode;
    put(c, "sumsq", ASSAY_F64, 0.0, 9.0, 1, (int64_t)1);
    attr_d(c, "clip_grad", (double)d[0] / 10);
}

Test(gpu_ops, clip_coefficient)
{
    hold(&(op_law){"clip_coefficient", "elementwise", 1, true, clip, OP_SIZES(clip_sizes)});
}

/* Formula, edges and what is no number: docs/OPS.md 8. */
Test(gpu_ops, clip_coefficient_at_its_edges)
{
    static const struct {
        double sumsq, clip_grad, norm, scale;
    } rows[] = {
        {4.0, 1.0, 2.0, 1.0 / (2.0 + 1e-6)},
        {4.0, 3.0, 2.0, 1.0},
        {0.0, 1.0, 0.0, 1.0},
        {4.0, 0.0, 2.0, 1.0},
        {1.0, 1.0, 1.0, 1.0 / (1.0 + 1e-6)},
        {(double)INFINITY, 1.0, (double)INFINITY, 0.0},
        {(double)INFINITY, 0.0, (double)INFINITY, 1.0},
        {(double)NAN, 1.0, (double)NAN, 1.0},
    };
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char why[256] = "";
        op_call c;
        call_begin(&c, &ctx, 1);
        put_values(&c, "sumsq", ASSAY_F64, &rows[i].sumsq, 1, -1);
        attr_d(&c, "clip_grad", rows[i].clip_grad);
        run_op(&c, "clip_coefficient", ASSAY_F32);
        const double norm = result(&c, "norm")[0], scale = result(&c, "scale")[0];
        cr_expect(norm == rows[i].norm || (isnan(norm) && isnan(rows[i].norm)), "row %zu: norm %g", i, norm);
        cr_expect_eq(scale, rows[i].scale, "row %zu: %.17g", i, scale);
        cr_expect(admitted(&c, "clip_coefficient", why), "row %zu: %s", i, why);
        /* one more digit of the 1e-6, a coefficient above 1: the judge sees both */
        const double kept = c.result[1][0];
        c.result[1][0] = kept == 0.0 ? 1e-9 : kept * (1.0 + 1e-7);
        cr_expect(!admitted(&c, "clip_coefficient", why), "row %zu: a wrong coefficient passed", i);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}
