/* rmsnorm, rope, element-wise operations, embedding, sums. */
#include "tests/support/gpu_ops.h"

static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
static const int64_t rows[] = {0, 1, 2, 5, 33}, widths[] = {1, 3, 31, 32, 33, 67};
enum { N_ROWS = 5, N_WIDTHS = 6 };

static double grow(int64_t n)
{
    return (double)(n + 10) * U32;
}

Test(gpu_rmsnorm, forward_matches_the_formula)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int r = 0; r < N_ROWS; ++r)
                for (int w = 0; w < N_WIDTHS; ++w) {
                    const int64_t t = rows[r], h = widths[w];
                    op_call c;
                    set_variants(&ctx, v == 0 ? "rmsnorm=k0" : "rmsnorm=k1");
                    call_begin(&c, &ctx, (uint64_t)(r * 10 + w));
                    const double *x = put(&c, "x", acts[a], -2, 2, 2, t, h);
                    const double *gamma = put(&c, "gamma", acts[a], 0.5, 1.5, 1, h);
                    attr_d(&c, "eps", 1e-6);
                    run_op(&c, "rmsnorm_fwd", acts[a]);
                    for (int64_t i = 0; i < t; ++i) {
                        double sum = 0;
                        for (int64_t k = 0; k < h; ++k)
                            sum += x[i * h + k] * x[i * h + k];
                        const double rstd = 1 / sqrt(sum / (double)h + (double)1e-6f);
                        near(&c, "rstd", i, rstd, rstd * grow(h));
                        for (int64_t k = 0; k < h; ++k) {
                            const double y = x[i * h + k] * rstd * gamma[k];
                            near(&c, "y", i * h + k, y, fabs(y) * grow(h));
                        }
                    }
                    cr_assert_eq(ctx.declared.arith.order,
                                 v == 0 ? ASSAY_ORDER_SEQUENTIAL : ASSAY_ORDER_TREE);
                    call_end(&c);
                }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_rmsnorm, backward_matches_the_formula_and_accumulates_dgamma)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int r = 0; r < N_ROWS; ++r)
                for (int w = 0; w < N_WIDTHS; ++w) {
                    const int64_t t = rows[r], h = widths[w];
                    op_call c;
                    set_variants(&ctx, v == 0 ? "rmsnorm=k0" : "rmsnorm=k1");
                    call_begin(&c, &ctx, (uint64_t)(r * 10 + w + 100));
                    const double *dy = put(&c, "dy", acts[a], -1, 1, 2, t, h);
                    const double *x = put(&c, "x", acts[a], -2, 2, 2, t, h);
                    const double *gamma = put(&c, "gamma", acts[a], 0.5, 1.5, 1, h);
                    const double *rstd = put(&c, "rstd", ASSAY_F32, 0.5, 1, 1, t);
                    const double *old = put(&c, "dgamma_in", ASSAY_F32, -1, 1, 1, h);
                    run_op(&c, "rmsnorm_bwd", acts[a]);
                    for (int64_t i = 0; i < t; ++i) {
                        double mean = 0;
                        for (int64_t k = 0; k < h; ++k)
                            mean += dy[i * h + k] * gamma[k] * x[i * h + k] * rstd[i] / (double)h;
                        for (int64_t k = 0; k < h; ++k)
                            near(&c, "dx", i * h + k,
                                 rstd[i] * (dy[i * h + k] * gamma[k] - x[i * h + k] * rstd[i] * mean),
                                 8 * grow(h));
                    }
                    for (int64_t k = 0; k < h; ++k) {
                        double sum = 0;
                        for (int64_t i = 0; i < t; ++i)
                            sum += dy[i * h + k] * x[i * h + k] * rstd[i];
                        near(&c, "dgamma", k, sum + old[k], grow(t) * (double)(2 * t + 1));
                    }
                    call_end(&c);
                }
    gpu_ctx_destroy(&ctx);
}

static void check_rope(gpu_ctx *ctx, assay_dtype act, int64_t half, int64_t d)
{
    const int64_t t = 7, heads = 3, positions = 11;
    for (int back = 0; back < 2; ++back) {
        op_call c;
        call_begin(&c, ctx, 3);
        const double *x = put(&c, back ? "dy" : "x", act, -1, 1, 3, t, heads, d);
        const double *cs = put(&c, "cos", ASSAY_F32, -1, 1, 2, positions, half);
        const double *sn = put(&c, "sin", ASSAY_F32, -1, 1, 2, positions, half);
        const double *p = put(&c, "position", ASSAY_I64, 0, (double)positions, 1, t);
        const char *out = back ? "dx" : "y";
        run_op(&c, back ? "rope_bwd" : "rope_fwd", act);
        for (int64_t r = 0; r < t * heads; ++r)
            for (int64_t i = 0; i < d; ++i) {
                const int64_t e = (int64_t)p[r / heads] * half + i % (half > 0 ? half : 1), at = r * d + i;
                if (i >= 2 * half) {
                    exact(&c, out, at, x[at]);
                    continue;
                }
                const double s = back ? -sn[e] : sn[e];
                const double want =
                    i < half ? x[at] * cs[e] - x[at + half] * s : x[at] * cs[e] + x[at - half] * s;
                near(&c, out, at, want, 4 * U32);
            }
        call_end(&c);
    }
}

Test(gpu_rope, rotates_halves_and_passes_the_rest)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; ++a) {
        check_rope(&ctx, acts[a], 4, 8);
        check_rope(&ctx, acts[a], 3, 9);
        check_rope(&ctx, acts[a], 0, 5);
        check_rope(&ctx, acts[a], 1, 2);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_rope, tables_follow_the_three_scalings)
{
    static const char *const type[] = {"default", "linear", "llama3"};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 3; ++k) {
        const int64_t r = 16, positions = 21;
        op_call c;
        call_begin(&c, &ctx, 1);
        attr_s(&c, "rope_type", type[k]);
        attr_i(&c, "rotary_dim", r);
        attr_d(&c, "rotary_base", 10000);
        attr_d(&c, "factor", 8);
        attr_d(&c, "low_freq_factor", 1);
        attr_d(&c, "high_freq_factor", 4);
        attr_i(&c, "original_max_position_embeddings", 64);
        attr_i(&c, "positions", positions);
        run_op(&c, "rope_table", ASSAY_F32);
        for (int64_t p = 0; p < positions; ++p)
            for (int64_t i = 0; i < r / 2; ++i) {
                double f = pow(10000, -2.0 * (double)i / (double)r);
                const double lambda = 6.283185307179586 / f;
                if (k == 1)
                    f /= 8;
                if (k == 2 && lambda > 64) {
                    f /= 8;
                } else if (k == 2 && lambda >= 16) {
                    const double s = (64 / lambda - 1) / 3;
                    f = (1 - s) * f / 8 + s * f;
                }
                near(&c, "cos", p * r / 2 + i, cos((double)p * f), 1e-12);
                near(&c, "sin", p * r / 2 + i, sin((double)p * f), 1e-12);
            }
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_elementwise, add_rounds_once)
{
    static const int64_t sizes[] = {0, 1, 3, 4, 5, 32, 37, 1024};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int i = 0; i < 8; ++i) {
                op_call c;
                set_variants(&ctx, v == 0 ? "elementwise=k0" : "elementwise=k1");
                call_begin(&c, &ctx, 4);
                const double *x = put(&c, "a", acts[a], -1, 1, 1, sizes[i]);
                const double *y = put(&c, "b", acts[a], -1, 1, 1, sizes[i]);
                run_op(&c, "add", acts[a]);
                for (int64_t e = 0; e < sizes[i]; ++e)
                    exact(&c, "y", e,
                          acts[a] == ASSAY_F32 ? (double)(float)(x[e] + y[e])
                                               : to_bf16((double)(float)(x[e] + y[e])));
                call_end(&c);
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_elementwise, cast_rounds_to_nearest_even_and_slices_are_copies)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    op_call c;
    call_begin(&c, &ctx, 4);
    const double *x = put(&c, "x", ASSAY_F32, -3, 3, 2, (int64_t)9, (int64_t)5);
    attr_s(&c, "dtype", "BF16");
    run_op(&c, "cast", ASSAY_F32);
    for (int64_t i = 0; i < 45; ++i)
        exact(&c, "y", i, to_bf16(x[i]));
    drop_outputs(&c);
    attr_i(&c, "start", 2);
    attr_i(&c, "length", 6);
    run_op(&c, "slice_rows", ASSAY_F32);
    for (int64_t i = 0; i < 30; ++i)
        exact(&c, "y", i, x[10 + i]);
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_elementwise, swiglu_forward_and_backward_with_and_without_probs)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 8; ++k)
        for (int r = 0; r < N_ROWS; ++r)
            for (int w = 0; w < N_WIDTHS; w += 2) {
                const bool probs = k & 1, bf = k & 2, fast = k & 4;
                const assay_dtype act = bf ? ASSAY_BF16 : ASSAY_F32;
                const int64_t t = rows[r], f = widths[w];
                op_call c, b;
                set_variants(&ctx, fast ? "elementwise=k1" : "elementwise=k0");
                call_begin(&c, &ctx, (uint64_t)k);
                const double *x = put(&c, "x", act, -4, 4, 2, t, 2 * f);
                const double *p = probs ? put(&c, "probs", ASSAY_F32, 0, 1, 1, t) : NULL;
                run_op(&c, "swiglu_fwd", act);
                call_begin(&b, &ctx, (uint64_t)k);
                const double *bx = put(&b, "x", act, -4, 4, 2, t, 2 * f);
                const double *bp = probs ? put(&b, "probs", ASSAY_F32, 0, 1, 1, t) : NULL;
                const double *dy = put(&b, "dy", act, -1, 1, 2, t, f);
                run_op(&b, "swiglu_bwd", act);
                for (int64_t i = 0; i < t; ++i) {
                    double dprobs = 0;
                    for (int64_t e = 0; e < f; ++e) {
                        const double g = x[i * 2 * f + e], up = x[i * 2 * f + f + e], q = p ? p[i] : 1;
                        near(&c, "y", i * f + e, g / (1 + exp(-g)) * up * q, 16 * 20 * U32);
                        const double bg = bx[i * 2 * f + e], bu = bx[i * 2 * f + f + e], bq = bp ? bp[i] : 1;
                        const double s = 1 / (1 + exp(-bg)), d = dy[i * f + e];
                        near(&b, "dx", i * 2 * f + e, d * bq * bu * s * (1 + bg * (1 - s)), 20 * 20 * U32);
                        near(&b, "dx", i * 2 * f + f + e, d * bq * bg * s, 4 * 20 * U32);
                        dprobs += d * bg * s * bu;
                    }
                    if (probs)
                        near(&b, "dprobs", i, dprobs, grow(f) * 16 * (double)f + 16 * 20 * U32);
                }
                call_end(&c);
                call_end(&b);
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_elementwise, sigmoid_gate_forward_and_backward)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 4; ++k)
        for (int r = 0; r < N_ROWS; ++r) {
            const assay_dtype act = acts[k & 1];
            const int64_t t = rows[r], h = 37;
            op_call c, b;
            set_variants(&ctx, k & 2 ? "elementwise=k1" : "elementwise=k0");
            call_begin(&c, &ctx, 8);
            const double *x = put(&c, "x", act, -2, 2, 2, t, h), *gate = put(&c, "gate", act, -3, 3, 1, t);
            run_op(&c, "sigmoid_gate_fwd", act);
            call_begin(&b, &ctx, 8);
            const double *bx = put(&b, "x", act, -2, 2, 2, t, h), *bg = put(&b, "gate", act, -3, 3, 1, t);
            const double *dy = put(&b, "dy", act, -1, 1, 2, t, h);
            run_op(&b, "sigmoid_gate_bwd", act);
            for (int64_t i = 0; i < t; ++i) {
                const double s = 1 / (1 + exp(-gate[i])), bs = 1 / (1 + exp(-bg[i]));
                double sum = 0;
                for (int64_t e = 0; e < h; ++e) {
                    near(&c, "y", i * h + e, x[i * h + e] * s, 30 * U32);
                    near(&b, "dx", i * h + e, dy[i * h + e] * bs, 15 * U32);
                    sum += dy[i * h + e] * bx[i * h + e];
                }
                near(&b, "dgate", i, bs * (1 - bs) * sum, grow(h) * (double)h);
            }
            call_end(&c);
            call_end(&b);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_embedding, looks_up_local_rows_and_adds_gradients_in_token_order)
{
    enum { V = 7, H = 9, START = 5 };
    static const int64_t tokens[] = {0, 1, 3, 32, 140};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 4; ++k)
        for (int i = 0; i < 5; ++i) {
            const assay_dtype act = acts[k & 1];
            const int64_t t = tokens[i];
            float want[V * H];
            op_call c, b;
            set_variants(&ctx, k & 2 ? "elementwise=k1" : "elementwise=k0");
            call_begin(&c, &ctx, 2);
            const double *ids = put(&c, "ids", ASSAY_I64, 0, 16, 1, t);
            const double *w = put(&c, "weight", act, -1, 1, 2, (int64_t)V, (int64_t)H);
            attr_i(&c, "vocab_start", START);
            run_op(&c, "embedding_fwd", act);
            call_begin(&b, &ctx, 2);
            put(&b, "ids", ASSAY_I64, 0, 16, 1, t);
            const double *dy = put(&b, "dy", act, -1, 1, 2, t, (int64_t)H);
            const double *old = put(&b, "dweight_in", ASSAY_F32, -1, 1, 2, (int64_t)V, (int64_t)H);
            attr_i(&b, "vocab_start", START);
            run_op(&b, "embedding_bwd", act);
            for (int64_t e = 0; e < V * H; ++e)
                want[e] = (float)old[e];
            for (int64_t r = 0; r < t; ++r)
                for (int64_t e = 0; e < H; ++e) {
                    const int64_t row = (int64_t)ids[r] - START;
                    const bool here = row >= 0 && row < V;
                    exact(&c, "y", r * H + e, here ? w[row * H + e] : 0);
                    if (here)
                        want[row * H + e] += (float)dy[r * H + e];
                }
            for (int64_t e = 0; e < V * H; ++e)
                exact(&b, "dweight", e, (double)want[e]);
            call_end(&c);
            call_end(&b);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_sum, adds_in_double)
{
    static const int64_t sizes[] = {0, 1, 3, 255, 256, 257, 5000, 20011};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int i = 0; i < 8; ++i) {
            op_call c;
            double sum = 0, squares = 0;
            set_variants(&ctx, v == 0 ? "elementwise=k0" : "elementwise=k1");
            call_begin(&c, &ctx, 9);
            const double *x = put(&c, "x", ASSAY_F32, -1, 2, 1, sizes[i]);
            for (int64_t e = 0; e < sizes[i]; ++e) {
                sum += x[e];
                squares += x[e] * x[e];
            }
            run_op(&c, "sum", ASSAY_F32);
            near(&c, "y", 0, sum, 1e-12 * (fabs(sum) + 1));
            drop_outputs(&c);
            run_op(&c, "sumsq", ASSAY_F32);
            near(&c, "y", 0, squares, 1e-12 * (squares + 1));
            cr_assert_eq(ctx.declared.arith.accumulate, ASSAY_F64);
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}
