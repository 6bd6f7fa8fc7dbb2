/* Attention: honest kernels (two passes; online softmax in tiles; probabilities rounded to bf16; base-2
 * exponentials) stay within their bounds, forward and backward, over windows, document starts, groups and
 * rows that see nothing. */
#include "tests/support/ref_bounds.h"

enum { B = 2, S = 37, A = 4, G = 2, D = 24, DV = 16, TQ = B * S };

typedef struct kernel {
    int window, tile;
    bool documents, bf16_p, base2, divide_late, drops;
    bool folded; /* backward: scale log2(e) and lse log2(e) rounded once each */
} kernel;

static const kernel kernels[] = {
    {0, 0, false, false, false, true, false, false}, {0, 0, false, false, false, false, false, false},
    {0, 8, true, false, false, true, false, false},  {5, 16, false, false, true, true, false, false},
    {0, 8, false, true, false, true, false, false},  {3, 0, true, true, false, true, false, false},
    {0, 8, true, false, false, true, true, false},   {5, 0, false, true, true, false, true, false},
    {5, 8, true, true, true, true, false, true},
};
enum { N_KERNELS = sizeof kernels / sizeof kernels[0] };

static float round_p(const kernel *k, float p)
{
    return k->bf16_p ? (float)ref_round((double)p, ASSAY_BF16) : p;
}

static float exp_of(const kernel *k, float s, float m)
{
    const float log2e = 1.44269504f;
    return k->base2 ? exp2f(fmaf(s, log2e, -m * log2e)) : expf(s - m);
}

/* Dropout of a piece that is not at the beginning of its mask. */
static const ref_dropout mask = {.p = 0.3, .seed = 9, .stream = 4, .draw = 2};
static void add_mask(trial *x)
{
    json_object_update_new(x->attrs,
                           json_pack("{s:f,s:I,s:I,s:I,s:i,s:i,s:i,s:i,s:i}", "dropout_p", mask.p, "seed",
                                     (json_int_t)mask.seed, "stream", (json_int_t)mask.stream, "draw",
                                     (json_int_t)mask.draw, "first_row", 1, "all_rows", B + 2, "first_head",
                                     A, "all_heads", 3 * A, "all_keys", S));
}

/* As a kernel has it: the element's number from row, head and key, 1/(1-p) in F32. */
static float factor(const kernel *k, int64_t i, int64_t a, int64_t j)
{
    const int64_t element = ((i / B * (B + 2) + 1 + i % B) * (3 * A) + A + a) * S + j / B;
    return !k->drops                                             ? 1.0f
           : ref_dropout_factor(&mask, (uint64_t)element) == 0.0 ? 0.0f
                                                                 : (float)(1.0 / (1.0 - mask.p));
}

static bool sees(const trial *x, const kernel *k, int64_t i, int64_t j)
{
    const int64_t *q = NULL, *kp = NULL, *first = NULL;
    for (int n = 0; n < x->n_in; n++) {
        if (strcmp(x->in[n].slot, "q_position") == 0)
            q = x->in[n].ivalue;
        if (strcmp(x->in[n].slot, "k_position") == 0)
            kp = x->in[n].ivalue;
        if (strcmp(x->in[n].slot, "first_key") == 0)
            first = x->in[n].ivalue;
    }
    return kp[j] <= q[i] && (!first || kp[j] >= first[i]) && (k->window == 0 || kp[j] > q[i] - k->window);
}

static void add_inputs(trial *x, const kernel *k, int mode, assay_dtype dtype, test_rng *r)
{
    json_object_update_new(x->attrs,
                           json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i}", "batch", B, "seq_q", S, "seq_k",
                                     S, "heads", A, "groups", G, "head_dim", D, "head_dim_v", DV, "scale",
                                     1.0 / sqrt((double)D), "window", k->window));
    if (k->drops)
        add_mask(x);
    /* two ways to say the same, the second where activations are bf16 */
    if (k->bf16_p && dtype == ASSAY_BF16 && k->tile != 0)
        x->arith.rounding |= ASSAY_ROUND_PROBS;
    else if (k->bf16_p)
        json_object_set_new(x->attrs, "p_dtype", json_string("BF16"));
    x->arith.tile = k->tile;
    trial_in(x, "q", dtype, mode_data(r, mode, TQ * A * D, D, dtype, 1.5), SHAPE(TQ, A, D));
    trial_in(x, "k", dtype, mode_data(r, MODE_GAUSSIAN, TQ * G * D, D, dtype, 1.5), SHAPE(TQ, G, D));
    trial_in(x, "v", dtype, mode_data(r, mode, TQ * G * DV, DV, dtype, 1.0), SHAPE(TQ, G, DV));
    int64_t *q = trial_in_int(x, "q_position", new_int(TQ), SHAPE(TQ));
    int64_t *kp = trial_in_int(x, "k_position", new_int(TQ), SHAPE(TQ));
    int64_t *first = k->documents ? trial_in_int(x, "first_key", new_int(TQ), SHAPE(TQ)) : NULL;
    for (int64_t i = 0; i < TQ; i++) {
        q[i] = kp[i] = i / B;
        if (first)
            first[i] = i == 6 ? 1000 : i / B / 10 * 10; /* row 6 sees nothing */
    }
}

static float unscaled(const trial *x, int64_t i, int64_t a, int64_t j, test_rng *r)
{
    float q[D], k[D];
    column_to_float(q, x->in[0].value + (i * A + a) * D, D, 1, 0);
    column_to_float(k, x->in[1].value + (j * G + a / (A / G)) * D, D, 1, 0);
    return emulate_dot(q, k, D, &x->arith, r);
}
static float score(const trial *x, int64_t i, int64_t a, int64_t j, test_rng *r)
{
    return unscaled(x, i, a, j, r) * (float)(1.0 / sqrt((double)D));
}

/* exp(S - lse) of the backward */
static float again(const trial *x, const kernel *k, int64_t i, int64_t a, int64_t j, double lse, test_rng *r)
{
    const double log2e = 1.44269504088896340736;
    if (k->folded)
        return exp2f(
            fmaf(unscaled(x, i, a, j, r), (float)(1.0 / sqrt((double)D) * log2e), -(float)(lse * log2e)));
    return exp_of(k, score(x, i, a, j, r), (float)lse);
}

/* One row with the keys of its batch; online: rescaling after each tile. */
static void emulate_row(trial *x, const kernel *k, int64_t i, int64_t a, double *o, double *lse, test_rng *r)
{
    float s[S], m = -(float)HUGE_VAL, l = 0.0f, acc[DV] = {0};
    int64_t key[S], n = 0;
    for (int64_t j = i % B; j < TQ; j += B)
        if (sees(x, k, i, j)) {
            key[n] = j;
            s[n++] = score(x, i, a, j, r);
        }
    *lse = (double)m;
    for (int c = 0; c < DV; c++)
        o[c] = 0.0;
    if (n == 0)
        return;
    const int64_t tile = k->tile ? k->tile : S;
    for (int64_t t0 = 0; t0 < S; t0 += tile) {
        float p[S], high = m;
        int64_t from = n, to = 0;
        for (int64_t e = 0; e < n; e++)
            if (key[e] / B >= t0 && key[e] / B < t0 + tile) {
                from = e < from ? e : from;
                to = e + 1;
                high = fmaxf(high, s[e]);
            }
        if (from >= to)
            continue;
        const float alpha = m == -(float)HUGE_VAL ? 0.0f : exp_of(k, m, high);
        for (int64_t e = from; e < to; e++)
            p[e] = exp_of(k, s[e], high);
        l = l * alpha + emulate_dot(NULL, p + from, to - from, &x->arith, r);
        for (int c = 0; c < DV; c++) {
            float v[S], pr[S];
            for (int64_t e = from; e < to; e++) {
                v[e] = (float)x->in[2].value[(key[e] * G + a / (A / G)) * DV + c];
                pr[e] = round_p(k, p[e] * factor(k, i, a, key[e]));
            }
            /* a chain over all keys: the tile's products go onto the running sum */
            if (x->arith.order == ASSAY_ORDER_SEQUENTIAL && x->arith.split == 1) {
                acc[c] *= alpha;
                for (int64_t e = from; e < to; e++)
                    acc[c] += pr[e] * v[e];
            } else {
                acc[c] = acc[c] * alpha + emulate_dot(pr + from, v + from, to - from, &x->arith, r);
            }
        }
        m = high;
    }
    *lse = (double)(m + logf(l));
    for (int c = 0; c < DV; c++)
        o[c] = (double)(acc[c] / l);
    if (!k->divide_late) { /* P = exp(S - lse), then the sum */
        float p[S], v[S];
        for (int64_t e = 0; e < n; e++)
            p[e] = expf(s[e] - (float)*lse) * factor(k, i, a, key[e]);
        for (int c = 0; c < DV; c++) {
            for (int64_t e = 0; e < n; e++)
                v[e] = (float)x->in[2].value[(key[e] * G + a / (A / G)) * DV + c];
            o[c] = (double)emulate_dot(p, v, n, &x->arith, r);
        }
    }
}

static trial forward(int arith_index, const kernel *k, int mode, assay_dtype dtype, test_rng *r)
{
    trial x = trial_new("attention_fwd", arith_case(arith_index));
    add_inputs(&x, k, mode, dtype, r);
    double *o = trial_out(&x, "o", dtype, SHAPE(TQ, A, DV)),
           *lse = trial_out(&x, "lse", ASSAY_F32, SHAPE(TQ, A));
    for (int64_t i = 0; i < TQ * A; i++)
        emulate_row(&x, k, i / A, i % A, o + i * DV, lse + i, r);
    return x;
}

/* A split chain over tiles is an order nobody declares: those kernels are left out. */
static bool declared(int arith, const kernel *k)
{
    return !(arith == 2 && k->tile > 0);
}

static void forward_with(int arith)
{
    test_rng r = {(uint64_t)arith + 1};
    for (int k = 0; k < N_KERNELS; k++)
        for (int mode = 0; mode < N_MODES && declared(arith, &kernels[k]); mode++) {
            char what[64];
            snprintf(what, sizeof what, "arith %d kernel %d mode %d", arith, k, mode);
            trial x = forward(arith, &kernels[k], mode, (k + mode) % 2 ? ASSAY_BF16 : ASSAY_F32, &r);
            trial_expect_pass(&x, what);
            trial_free(&x);
        }
}

Test(ref_bounds_attention, forward_chain)
{
    forward_with(0);
    forward_with(1);
    forward_with(2);
}

Test(ref_bounds_attention, forward_tree)
{
    forward_with(3);
    forward_with(4);
}

Test(ref_bounds_attention, forward_tensor_core_and_any_order)
{
    forward_with(5);
    forward_with(6);
}

Test(ref_bounds_attention, forward_bound_is_not_loose)
{
    test_rng r = {77};
    double worst = 0.0;
    for (int mode = 0; mode < N_MODES; mode++) {
        trial x = forward(0, &kernels[0], mode, ASSAY_F32, &r);
        trial_store(&x);
        trial_judge(&x);
        worst = fmax(worst, x.worst);
        trial_free(&x);
    }
    cr_expect(worst > 0.1, "worst ratio %.3g", worst);
}

/* The backward of a kernel that recomputes P from the recorded lse. */
static trial backward(int arith_index, const kernel *k, int mode, assay_dtype dtype, test_rng *r)
{
    trial f = forward(arith_index, k, mode, dtype, r),
          x = trial_new("attention_bwd", arith_case(arith_index));
    trial_store(&f);
    const uint64_t keep = r->state;
    add_inputs(&x, k, mode, dtype, r);
    for (int n = 0; n < 3; n++)
        memcpy(x.in[n].value, f.in[n].value, sizeof(double) * (size_t)f.in[n].count);
    r->state = keep + 1;
    const double *dout =
        trial_in(&x, "do", dtype, mode_data(r, 0, TQ * A * DV, DV, dtype, 1.0), SHAPE(TQ, A, DV));
    double *o = trial_in(&x, "o", dtype, f.out[0].value, SHAPE(TQ, A, DV));
    double *lse = trial_in(&x, "lse", ASSAY_F32, f.out[1].value, SHAPE(TQ, A));
    f.out[0].value = f.out[1].value = NULL;
    trial_free(&f);
    double *dq = trial_out(&x, "dq", dtype, SHAPE(TQ, A, D)),
           *dk = trial_out(&x, "dk", dtype, SHAPE(TQ, G, D)),
           *dv = trial_out(&x, "dv", dtype, SHAPE(TQ, G, DV));
    float *p = calloc((size_t)TQ * A * S, sizeof *p), *ds = calloc((size_t)TQ * A * S, sizeof *ds);
    bool *on = calloc((size_t)TQ * A * S, sizeof *on);
    const float scale = (float)(1.0 / sqrt((double)D));
    for (int64_t i = 0; i < TQ * A; i++) {
        float fo[DV], fd[DV], fv[DV];
        column_to_float(fo, o + i * DV, DV, 1, 0);
        column_to_float(fd, dout + i * DV, DV, 1, 0);
        const float delta = emulate_dot(fd, fo, DV, &x.arith, r);
        for (int64_t j = 0; j < S; j++) {
            const int64_t key = j * B + i / A % B;
            if (!sees(&x, k, i / A, key))
                continue;
            column_to_float(fv, x.in[2].value + (key * G + i % A / (A / G)) * DV, DV, 1, 0);
            const float prob = again(&x, k, i / A, i % A, key, lse[i], r);
            on[i * S + j] = true;
            const float kept = factor(k, i / A, i % A, key);
            p[i * S + j] = round_p(k, prob * kept);
            ds[i * S + j] = round_p(k, prob * (kept * emulate_dot(fd, fv, DV, &x.arith, r) - delta));
        }
    }
    for (int64_t i = 0; i < TQ * A; i++)
        for (int64_t c = 0; c < D; c++) {
            float a[S], b[S];
            int64_t n = 0;
            for (int64_t j = 0; j < S; j++)
                if (on[i * S + j]) {
                    a[n] = ds[i * S + j];
                    b[n++] = (float)x.in[1].value[((j * B + i / A % B) * G + i % A / (A / G)) * D + c];
                }
            dq[i * D + c] = (double)(emulate_dot(a, b, n, &x.arith, r) * scale);
        }
    for (int64_t i = 0; i < TQ * G; i++)
        for (int64_t c = 0; c < D + DV; c++) {
            float a[S * A], b[S * A];
            int64_t n = 0;
            for (int64_t h = 0; h < A / G; h++)
                for (int64_t s = 0; s < S; s++) {
                    const int64_t q = (s * B + i / G % B) * A + i % G * (A / G) + h;
                    if (!on[q * S + i / G / B])
                        continue;
                    a[n] = (c < D ? ds : p)[q * S + i / G / B];
                    b[n++] = (float)(c < D ? x.in[0].value[q * D + c] : dout[q * DV + c - D]);
                }
            const float sum = emulate_dot(a, b, n, &x.arith, r);
            if (c < D)
                dk[i * D + c] = (double)(sum * scale);
            else
                dv[i * DV + c - D] = (double)sum;
        }
    free(p), free(ds), free(on);
    return x;
}

static void backward_with(int arith)
{
    test_rng r = {(uint64_t)arith + 100};
    for (int k = 0; k < N_KERNELS; k++)
        for (int mode = 0; mode < N_MODES; mode++) {
            char what[64];
            snprintf(what, sizeof what, "arith %d kernel %d mode %d", arith, k, mode);
            kernel two_pass = kernels[k];
            two_pass.tile = 0;
            trial x = backward(arith, &two_pass, mode, (k + mode) % 2 ? ASSAY_BF16 : ASSAY_F32, &r);
            trial_expect_pass(&x, what);
            trial_free(&x);
        }
}

Test(ref_bounds_attention, backward_chain)
{
    backward_with(0);
    backward_with(1);
    backward_with(2);
}

Test(ref_bounds_attention, backward_tree)
{
    backward_with(3);
    backward_with(4);
}

Test(ref_bounds_attention, backward_tensor_core_and_any_order)
{
    backward_with(5);
    backward_with(6);
}

/* One wrong product in one score, a mask off by one, a missing scale: each is seen. */
Test(ref_bounds_attention, faults_are_seen)
{
    test_rng r = {9};
    for (int fault = 0; fault < 3; fault++) {
        trial x = forward(0, &kernels[0], MODE_GAUSSIAN, ASSAY_F32, &r);
        trial_expect_pass(&x, "before the fault");
        if (fault == 0)
            x.in[0].value[(20 * A + 1) * D + 3] = 0.0; /* the kernel had used another number */
        else if (fault == 1)
            json_object_set_new(x.attrs, "window", json_integer(S - 1));
        else
            json_object_set_new(x.attrs, "scale", json_real(1.0 / sqrt((double)D) * 1.0001));
        trial_judge(&x);
        cr_expect(x.n_bad > 0 && x.worst > 2.0, "fault %d passed with ratio %.3g", fault, x.worst);
        trial_free(&x);
    }
}
