/* Router: scores, weights, gradients and auxiliary losses of an honest kernel; which choices are admissible.
 */
#include "tests/support/ref_bounds.h"

enum { T = 23, E = 12 };

typedef struct router_case {
    bool sigmoid, pre, norm, bias;
    int topk, groups, group_topk;
    double scaling;
} router_case;

static const router_case cases[] = {
    {false, true, false, false, 3, 0, 0, 1.0},  {false, true, true, false, 3, 0, 0, 1.0},
    {false, false, false, false, 2, 0, 0, 1.5}, {false, false, false, false, 4, 4, 2, 1.0},
    {true, false, true, true, 3, 0, 0, 2.5},    {true, false, false, true, 1, 0, 0, 1.0},
    {true, false, true, true, 4, 3, 2, 2.5},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void add_attrs(trial *x, const router_case *c)
{
    json_object_update_new(x->attrs,
                           json_pack("{s:s,s:i,s:b,s:b,s:f,s:i,s:i}", "score_function",
                                     c->sigmoid ? "sigmoid" : "softmax", "topk", c->topk, "pre_softmax",
                                     c->pre, "norm_topk_prob", c->norm, "scaling_factor", c->scaling,
                                     "num_groups", c->groups, "group_topk", c->group_topk));
}

static ref_router_desc desc_of(const router_case *c)
{
    return (ref_router_desc){
        .tokens = T,
        .experts = E,
        .topk = c->topk,
        .mode = ref_router_mode_of(c->sigmoid ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_SOFTMAX, c->pre),
        .norm_topk_prob = c->norm,
        .scaling_factor = c->scaling,
        .num_groups = c->groups,
        .group_topk = c->group_topk};
}

static float sigmoidf(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void softmaxf(float *y, const float *x, int64_t n)
{
    float max = -(float)HUGE_VAL, sum = 0.0f;
    for (int64_t i = 0; i < n; i++)
        max = fmaxf(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += y[i] = expf(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

static trial router_fwd(const router_case *c, int mode, test_rng *r)
{
    const ref_router_desc d = desc_of(c);
    trial x = trial_new("router_fwd", assay_arith_elementwise());
    add_attrs(&x, c);
    const double *logits =
        trial_in(&x, "logits", ASSAY_F32, mode_data(r, mode, T * E, E, ASSAY_F32, 2.0), SHAPE(T, E));
    const double *bias =
        c->bias ? trial_in(&x, "expert_bias", ASSAY_F32, mode_data(r, 0, E, E, ASSAY_F32, 0.3), SHAPE(E))
                : NULL;
    int64_t *indices = trial_out_int(&x, "indices", SHAPE(T, c->topk));
    double *probs = trial_out(&x, "probs", ASSAY_F32, SHAPE(T, c->topk)),
           *scores = trial_out(&x, "scores", ASSAY_F32, SHAPE(T, E));
    double keys[T * E];
    for (int64_t i = 0; i < T; i++) {
        float l[E], s[E];
        column_to_float(l, logits + i * E, E, 1, 0);
        softmaxf(s, l, E);
        for (int64_t e = 0; e < E; e++) {
            s[e] = c->sigmoid ? sigmoidf(l[e]) : c->pre ? s[e] : l[e];
            scores[i * E + e] = (double)s[e];
            keys[i * E + e] = (double)(bias ? s[e] + (float)bias[e] : s[e]);
        }
    }
    ref_router_topk(indices, keys, &d);
    for (int64_t i = 0; i < T; i++) {
        float w[E], sum = 0.0f;
        for (int j = 0; j < c->topk; j++) {
            w[j] = (float)(c->sigmoid || c->pre ? scores : logits)[i * E + indices[i * c->topk + j]];
            sum += w[j];
        }
        if (!c->sigmoid && !c->pre)
            softmaxf(w, w, c->topk);
        for (int j = 0; j < c->topk; j++) {
            if (c->norm && c->topk > 1)
                w[j] = c->sigmoid ? w[j] / (sum + 1e-20f) : w[j] / sum;
            probs[i * c->topk + j] = (double)(w[j] * (float)c->scaling);
        }
    }
    return x;
}

Test(ref_bounds_router, forward_and_backward_hold)
{
    test_rng r = {1};
    for (int n = 0; n < N_CASES; n++)
        for (int mode = 0; mode < N_MODES; mode++) {
            const router_case *c = &cases[n];
            char what[64];
            snprintf(what, sizeof what, "case %d mode %d", n, mode);
            trial x = router_fwd(c, mode, &r);
            trial_expect_pass(&x, what);
            cr_expect(x.result.n_decisions == T);

            trial z = trial_new("router_bwd", assay_arith_elementwise());
            add_attrs(&z, c);
            const int64_t k = c->topk;
            double *scores = trial_in(&z, "scores", ASSAY_F32, new_real(T * E), SHAPE(T, E));
            const double *dp =
                trial_in(&z, "dprobs", ASSAY_F32, mode_data(&r, 0, T * k, k, ASSAY_F32, 1.0), SHAPE(T, k));
            int64_t *indices = trial_in_int(&z, "indices", new_int(T * k), SHAPE(T, k));
            memcpy(scores, x.out[2].value, sizeof(double) * T * E);
            memcpy(indices, x.out[0].ivalue, sizeof(int64_t) * (size_t)(T * k));
            double *dl = trial_out(&z, "dlogits", ASSAY_F32, SHAPE(T, E));
            for (int64_t i = 0; i < T; i++) {
                float s[E], chosen[E], ds[E] = {0}, sum = 0.0f, inner = 0.0f, outer = 0.0f;
                column_to_float(s, scores + i * E, E, 1, 0);
                for (int64_t j = 0; j < k; j++) {
                    chosen[j] = s[indices[i * k + j]];
                    sum += chosen[j];
                }
                for (int64_t e = 0; e < E; e++)
                    dl[i * E + e] = 0.0;
                if (!c->sigmoid && !c->pre) {
                    softmaxf(chosen, chosen, k);
                    for (int64_t j = 0; j < k; j++)
                        inner += chosen[j] * (float)dp[i * k + j];
                    for (int64_t j = 0; j < k; j++)
                        dl[i * E + indices[i * k + j]] =
                            (double)((float)c->scaling * chosen[j] * ((float)dp[i * k + j] - inner));
                    continue;
                }
                for (int64_t j = 0; j < k; j++)
                    inner += (float)dp[i * k + j] * (chosen[j] / sum);
                for (int64_t j = 0; j < k; j++) {
                    float v = (float)dp[i * k + j];
                    if (c->norm && k > 1)
                        v = (v - inner) / sum;
                    ds[indices[i * k + j]] = v * (float)c->scaling;
                }
                for (int64_t e = 0; e < E; e++)
                    outer += ds[e] * s[e];
                for (int64_t e = 0; e < E; e++)
                    dl[i * E + e] =
                        (double)(c->sigmoid ? ds[e] * s[e] * (1.0f - s[e]) : s[e] * (ds[e] - outer));
            }
            trial_expect_pass(&z, what);
            trial_free(&z);
            trial_free(&x);
        }
}

/* Exchanging the last chosen expert for the best unchosen one is inadmissible wherever the keys are far
 * apart. */
Test(ref_bounds_router, a_wrong_choice_is_named)
{
    test_rng r = {2};
    for (int n = 0; n < N_CASES; n++) {
        trial x = router_fwd(&cases[n], MODE_GAUSSIAN, &r);
        trial_expect_pass(&x, "before");
        const int64_t k = cases[n].topk, row = 5;
        int64_t *choice = x.out[0].ivalue + row * k;
        bool in[E] = {false};
        for (int64_t j = 0; j < k; j++)
            in[choice[j]] = true;
        for (int64_t e = 0; e < E; e++) { /* any other set of the same size: drop the first, add e */
            if (in[e])
                continue;
            int64_t keep[E], m = 0;
            memcpy(keep, choice, sizeof(int64_t) * (size_t)k);
            in[keep[0]] = false;
            in[e] = true;
            for (int64_t f = 0; f < E; f++)
                if (in[f])
                    choice[m++] = f;
            trial_judge(&x);
            cr_expect(x.result.n_inadmissible == 1 && x.result.first_inadmissible == row &&
                          x.result.decision_gap > 0.0,
                      "case %d: expert %d in place of %d was admissible", n, (int)e, (int)keep[0]);
            in[keep[0]] = true;
            in[e] = false;
            memcpy(choice, keep, sizeof(int64_t) * (size_t)k);
        }
        trial_free(&x);
    }
}

static trial tiny(const double *logits, const int64_t *choice, bool sigmoid)
{
    trial x = trial_new("router_fwd", assay_arith_elementwise());
    add_attrs(&x, &(router_case){sigmoid, true, false, false, 2, 0, 0, 1.0});
    memcpy(trial_in(&x, "logits", ASSAY_F32, new_real(4), SHAPE(1, 4)), logits, 4 * sizeof(double));
    int64_t *indices = trial_out_int(&x, "indices", SHAPE(1, 2));
    double *probs = trial_out(&x, "probs", ASSAY_F32, SHAPE(1, 2)),
           *scores = trial_out(&x, "scores", ASSAY_F32, SHAPE(1, 4));
    double keys[4];
    const ref_router_desc d = {.tokens = 1,
                               .experts = 4,
                               .topk = 2,
                               .mode = sigmoid ? REF_ROUTER_SIGMOID : REF_ROUTER_SOFTMAX_TOPK,
                               .scaling_factor = 1.0};
    memcpy(indices, choice, 2 * sizeof *indices);
    ref_router_scores(scores, keys, logits, NULL, &d);
    if (choice[0] >= 0 && choice[1] < 4)
        ref_router_probs(probs, scores, logits, choice, &d);
    trial_store(&x);
    trial_judge(&x);
    return x;
}

Test(ref_bounds_router, ties_go_to_the_lower_index)
{
    const double tied[4] = {1.0, 2.0, 1.0, 1.0};
    const int64_t right[2] = {0, 1}, wrong[2] = {1, 2};
    trial x = tiny(tied, right, true);
    cr_expect(x.n_bad == 0 && x.result.n_ambiguous == 0);
    trial_free(&x);
    x = tiny(tied, wrong, true);
    cr_expect(x.result.n_inadmissible == 1, "equal logits give equal keys: the lower index must win");
    trial_free(&x);
}

Test(ref_bounds_router, near_ties_are_ambiguous_and_replayed)
{
    const double near[4] = {1.0, 2.0, 1.0 + 0x1p-23, -3.0};
    const int64_t one[2] = {1, 2}, other[2] = {0, 1};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++)
        for (int i = 0; i < 2; i++) {
            trial x = tiny(near, i ? other : one, sigmoid);
            cr_expect(x.n_bad == 0, "choice %d: ratio %.3g, %d inadmissible", i, x.worst,
                      (int)x.result.n_inadmissible);
            cr_expect(x.result.n_ambiguous == 1);
            cr_expect(x.result.outputs[0].ivalue[0] == (i ? 0 : 1), "the candidate's choice is taken over");
            trial_free(&x);
        }
}

Test(ref_bounds_router, malformed_choices_are_inadmissible)
{
    const double logits[4] = {1.0, 2.0, 3.0, 4.0};
    const int64_t bad[4][2] = {{3, 2}, {3, 3}, {-1, 3}, {2, 4}};
    for (int i = 0; i < 4; i++) {
        trial x = tiny(logits, bad[i], false);
        cr_expect(x.result.n_inadmissible == 1);
        trial_free(&x);
    }
}

/* Two groups whose scores nearly tie: either may be kept, but not experts of both. */
Test(ref_bounds_router, nearly_tied_groups)
{
    const double logits[6] = {2.0, 1.0, 2.0, 1.0 + 0x1p-22, -1.0, -2.0};
    const int64_t choices[3][2] = {{0, 1}, {2, 3}, {0, 2}};
    for (int i = 0; i < 3; i++) {
        trial x = trial_new("router_fwd", assay_arith_elementwise());
        const router_case c = {true, false, true, false, 2, 3, 1, 1.0};
        const ref_router_desc d = {.tokens = 1,
                                   .experts = 6,
                                   .topk = 2,
                                   .mode = REF_ROUTER_SIGMOID,
                                   .norm_topk_prob = true,
                                   .scaling_factor = 1.0,
                                   .num_groups = 3,
                                   .group_topk = 1};
        add_attrs(&x, &c);
        memcpy(trial_in(&x, "logits", ASSAY_F32, new_real(6), SHAPE(1, 6)), logits, sizeof logits);
        int64_t *indices = trial_out_int(&x, "indices", SHAPE(1, 2));
        double *probs = trial_out(&x, "probs", ASSAY_F32, SHAPE(1, 2)),
               *scores = trial_out(&x, "scores", ASSAY_F32, SHAPE(1, 6)), keys[6];
        memcpy(indices, choices[i], sizeof choices[i]);
        ref_router_scores(scores, keys, logits, NULL, &d);
        ref_router_probs(probs, scores, logits, indices, &d);
        trial_store(&x);
        trial_judge(&x);
        cr_expect(x.result.n_inadmissible == (i == 2), "choice %d", i);
        cr_expect(x.result.n_ambiguous == 1);
        trial_free(&x);
    }
}

static void aux_row(float *a, const double *logits, bool sigmoid, float *lse)
{
    float l[E], sum = 0.0f, max = -(float)HUGE_VAL;
    column_to_float(l, logits, E, 1, 0);
    for (int e = 0; e < E; e++)
        max = fmaxf(max, l[e]);
    for (int e = 0; e < E; e++)
        sum += expf(l[e] - max);
    *lse = max + logf(sum);
    softmaxf(a, l, E);
    if (!sigmoid)
        return;
    sum = 0.0f;
    for (int e = 0; e < E; e++)
        sum += a[e] = sigmoidf(l[e]);
    for (int e = 0; e < E; e++)
        a[e] /= sum + 1e-20f;
}

Test(ref_bounds_router, auxiliary_losses_hold)
{
    test_rng r = {3};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int arith = 0; arith < N_ARITHS; arith++) {
                const char *name = sigmoid ? "sigmoid" : "softmax";
                trial x = trial_new("router_aux_fwd", arith_case(arith));
                json_object_update_new(x.attrs, json_pack("{s:s,s:i}", "score_function", name, "topk", 2));
                const double *logits = trial_in(&x, "logits", ASSAY_F32,
                                                mode_data(&r, mode, T * E, E, ASSAY_F32, 2.0), SHAPE(T, E));
                double *aux = trial_out(&x, "aux_scores", ASSAY_F32, SHAPE(T, E));
                int64_t *indices = trial_out_int(&x, "aux_indices", SHAPE(T, 2)),
                        *counts = trial_out_int(&x, "tokens_per_expert", SHAPE(E));
                double *sums = trial_out(&x, "score_sums", ASSAY_F32, SHAPE(E)),
                       *z = trial_out(&x, "z_sum", ASSAY_F32, SHAPE(1));
                const ref_router_desc d = {.tokens = T,
                                           .experts = E,
                                           .topk = 2,
                                           .mode = sigmoid ? REF_ROUTER_SIGMOID : REF_ROUTER_SOFTMAX_TOPK,
                                           .scaling_factor = 1.0};
                float lse[T], a[T][E], column[T];
                for (int64_t i = 0; i < T; i++) {
                    aux_row(a[i], logits + i * E, sigmoid, &lse[i]);
                    for (int e = 0; e < E; e++)
                        aux[i * E + e] = (double)a[i][e];
                    column[i] = lse[i] * lse[i];
                }
                z[0] = (double)emulate_dot(NULL, column, T, &x.arith, &r);
                ref_router_aux_topk(indices, aux, &d);
                for (int e = 0; e < E; e++) {
                    counts[e] = 0;
                    for (int64_t i = 0; i < T; i++)
                        column[i] = a[i][e];
                    sums[e] = (double)emulate_dot(NULL, column, T, &x.arith, &r);
                }
                for (int64_t i = 0; i < 2 * T; i++)
                    counts[indices[i]]++;
                trial_expect_pass(&x, name);
                counts[3]++;
                trial_judge(&x);
                cr_expect(x.n_bad == 1, "a wrong count passed");
                counts[3]--;

                trial l = trial_new("router_aux_loss", arith_case(arith));
                json_object_update_new(l.attrs, json_pack("{s:f,s:f,s:i,s:i}", "aux_coeff", 0.01, "z_coeff",
                                                          0.001, "topk", 2, "tokens", T));
                memcpy(trial_in(&l, "score_sums", ASSAY_F32, new_real(E), SHAPE(E)), sums,
                       sizeof(double) * E);
                memcpy(trial_in_int(&l, "tokens_per_expert", new_int(E), SHAPE(E)), counts,
                       sizeof(int64_t) * E);
                trial_in(&l, "z_sum", ASSAY_F32, new_real(1), SHAPE(1))[0] = z[0];
                double *losses = trial_out(&l, "losses", ASSAY_F32, SHAPE(2));
                float dot_sum = 0.0f;
                for (int e = 0; e < E; e++)
                    dot_sum += (float)sums[e] * (float)counts[e];
                const float weight = 0.01f * (float)E / (2.0f * (float)T * (float)T);
                losses[0] = (double)(weight * dot_sum);
                losses[1] = (double)(0.001f / (float)T * (float)z[0]);
                trial_expect_pass(&l, name);
                trial_free(&l);

                l = trial_new("router_aux_bwd", arith_case(arith));
                json_object_update_new(l.attrs, json_pack("{s:f,s:f,s:i,s:i,s:f,s:s}", "aux_coeff", 0.01,
                                                          "z_coeff", 0.001, "topk", 2, "tokens", T,
                                                          "loss_scale", 0.25, "score_function", name));
                memcpy(trial_in(&l, "logits", ASSAY_F32, new_real(T * E), SHAPE(T, E)), logits,
                       sizeof(double) * T * E);
                memcpy(trial_in_int(&l, "tokens_per_expert", new_int(E), SHAPE(E)), counts,
                       sizeof(int64_t) * E);
                const double *old = trial_in(&l, "dlogits_in", ASSAY_F32,
                                             mode_data(&r, 0, T * E, E, ASSAY_F32, 1e-4), SHAPE(T, E));
                double *dl = trial_out(&l, "dlogits", ASSAY_F32, SHAPE(T, E));
                for (int64_t i = 0; i < T; i++) {
                    float inner = 0.0f, p[E], f[E];
                    column_to_float(f, logits + i * E, E, 1, 0);
                    softmaxf(p, f, E);
                    for (int e = 0; e < E; e++)
                        inner += a[i][e] * (float)counts[e];
                    for (int e = 0; e < E; e++) {
                        float da = a[i][e] * ((float)counts[e] - inner);
                        if (sigmoid)
                            da *= 1.0f - sigmoidf(f[e]);
                        dl[i * E + e] =
                            (double)((float)old[i * E + e] +
                                     0.25f * (weight * da + 0.001f * (2.0f / (float)T) * lse[i] * p[e]));
                    }
                }
                trial_expect_pass(&l, name);
                trial_free(&l);
                trial_free(&x);
            }
}

Test(ref_bounds_router, expert_bias_moves_toward_the_mean)
{
    trial x = trial_new("expert_bias_update", assay_arith_elementwise());
    json_object_set_new(x.attrs, "rate", json_real(1e-3));
    const int64_t counts[4] = {10, 2, 4, 0};
    memcpy(trial_in_int(&x, "tokens_per_expert", new_int(4), SHAPE(4)), counts, sizeof counts);
    const double old[4] = {0.25, 0.5, -0.125, 0.0};
    memcpy(trial_in(&x, "bias_in", ASSAY_F32, new_real(4), SHAPE(4)), old, sizeof old);
    double *y = trial_out(&x, "bias", ASSAY_F32, SHAPE(4));
    const float sign[4] = {-1.0f, 1.0f, 0.0f, 1.0f};
    for (int i = 0; i < 4; i++)
        y[i] = (double)((float)old[i] + 1e-3f * sign[i]);
    trial_expect_pass(&x, "bias");
    y[2] = (double)((float)old[2] + 1e-3f);
    trial_judge(&x);
    cr_expect(x.n_bad == 1);
    trial_free(&x);
}
