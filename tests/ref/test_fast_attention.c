/* Attention in tiles beside attention row by row: the law of ref/fast.h. */
#include "tests/support/ref_fast.h"

typedef struct shape {
    int64_t batch, heads, groups, head_dim, head_dim_v, more_keys;
} shape;

typedef struct problem {
    ref_attention_desc d;
    int64_t *position, *key_position, *first_key;
    int64_t n_q, n_k, n_v, n_o, n_lse;
    double *q, *k, *v, *dout, *o, *lse, *dq, *dk, *dv;
} problem;

/* seq queries that follow more_keys earlier keys.  window 0: none; document > 0: a new document starts every
 * `document` positions.  logit: size of the scores. */
static problem problem_new(const shape *s, int64_t seq, int64_t window, int64_t document, law_data data,
                           double logit)
{
    const int64_t seq_k = seq > 0 ? seq + s->more_keys : 0, tq = seq * s->batch, tk = seq_k * s->batch;
    problem x = {.position = new_int(tq), .key_position = new_int(tk), .first_key = new_int(tq)};
    test_rng r = {31 + (uint64_t)seq};
    for (int64_t i = 0; i < tk; i++)
        x.key_position[i] = i / s->batch;
    for (int64_t i = 0; i < tq; i++) {
        x.position[i] = i / s->batch + s->more_keys;
        x.first_key[i] = document ? x.position[i] / document * document : 0;
    }
    x.n_q = tq * s->heads * s->head_dim;
    x.n_k = tk * s->groups * s->head_dim;
    x.n_v = tk * s->groups * s->head_dim_v;
    x.n_o = tq * s->heads * s->head_dim_v;
    x.n_lse = tq * s->heads;
    x.q = law_values(&r, x.n_q, data, 1.0);
    x.k = law_values(&r, x.n_k, data, 1.0);
    x.v = law_values(&r, x.n_v, data, 1.0);
    x.dout = law_values(&r, x.n_o, data, 1.0);
    x.d = (ref_attention_desc){.batch = s->batch,
                               .seq_q = seq,
                               .seq_k = seq_k,
                               .heads = s->heads,
                               .groups = s->groups,
                               .head_dim = s->head_dim,
                               .head_dim_v = s->head_dim_v,
                               .scale = logit,
                               .window = window,
                               .q_position = x.position,
                               .k_position = x.key_position,
                               .first_key = document ? x.first_key : NULL};
    x.o = new_real(x.n_o);
    x.lse = new_real(x.n_lse);
    x.dq = new_real(x.n_q);
    x.dk = new_real(x.n_k);
    x.dv = new_real(x.n_v);
    return x;
}

static void problem_free(problem *x)
{
    double *const reals[] = {x->q, x->k, x->v, x->dout, x->o, x->lse, x->dq, x->dk, x->dv};
    int64_t *const ints[] = {x->position, x->key_position, x->first_key};
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        free(reals[i]);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        free(ints[i]);
}

/* Elements of fast's five results that break the law; the backward of both reads plain's o and lse. */
static int64_t broken(problem *fast, problem *plain)
{
    const ref_declared d = double_precision();
    const ref_attention_desc *desc = &plain->d;
    ref_pair o = pair_new(plain->n_o), lse = pair_new(plain->n_lse), dq = pair_new(plain->n_q),
             dk = pair_new(plain->n_k), dv = pair_new(plain->n_v);
    ref_attention_fwd(plain->o, plain->lse, plain->q, plain->k, plain->v, desc);
    ref_attention_bwd(plain->dq, plain->dk, plain->dv, plain->dout, plain->q, plain->k, plain->v, plain->o,
                      plain->lse, desc);
    ref_fast_attention_fwd(fast->o, fast->lse, fast->q, fast->k, fast->v, &fast->d);
    ref_fast_attention_bwd(fast->dq, fast->dk, fast->dv, fast->dout, fast->q, fast->k, fast->v, plain->o,
                           plain->lse, &fast->d);
    cr_assert(ref_bound_attention_fwd(o, lse, plain->q, plain->k, plain->v, desc, ASSAY_F64, &d) == ASSAY_OK);
    cr_assert(ref_bound_attention_bwd(dq, dk, dv, plain->dout, plain->q, plain->k, plain->v, plain->o,
                                      plain->lse, desc, ASSAY_F64, &d) == ASSAY_OK);
    const int64_t n =
        law_broken(fast->o, plain->o, o, plain->n_o) + law_broken(fast->lse, plain->lse, lse, plain->n_lse) +
        law_broken(fast->dq, plain->dq, dq, plain->n_q) + law_broken(fast->dk, plain->dk, dk, plain->n_k) +
        law_broken(fast->dv, plain->dv, dv, plain->n_v);
    pair_free(o), pair_free(lse), pair_free(dq), pair_free(dk), pair_free(dv);
    return n;
}

static const shape SHAPES[] = {
    {1, 1, 1, 8, 8, 0}, {2, 4, 2, 8, 5, 0}, /* grouped heads, another width of the values */
    {1, 6, 1, 5, 7, 3},                     /* one group, keys before the first query */
    {2, 2, 2, 0, 4, 0},                     /* every score 0 */
    {1, 2, 1, 3, 0, 1},
};

static const struct mask {
    int64_t window, document;
} MASKS[] = {{0, 0}, {1, 0}, {3, 0}, {40, 0}, {0, 5}, {9, 31}};

static void check_law(law_data data, double logit)
{
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++)
        for (int n = 0; n < N_LAW_SIZES; n++)
            for (size_t m = 0; m < sizeof MASKS / sizeof MASKS[0]; m++) {
                problem fast =
                    problem_new(&SHAPES[s], LAW_SIZES[n], MASKS[m].window, MASKS[m].document, data, logit);
                problem plain =
                    problem_new(&SHAPES[s], LAW_SIZES[n], MASKS[m].window, MASKS[m].document, data, logit);
                const int64_t bad = broken(&fast, &plain);
                cr_expect(bad == 0, "shape %zu, %lld queries, window %lld, documents of %lld: %lld elements",
                          s, (long long)LAW_SIZES[n], (long long)MASKS[m].window,
                          (long long)MASKS[m].document, (long long)bad);
                problem_free(&fast), problem_free(&plain);
            }
}

Test(ref_fast_attention, equals_plain_on_zero_mean_data)
{
    check_law(LAW_ZERO_MEAN, 0.3);
}

Test(ref_fast_attention, equals_plain_on_one_signed_data)
{
    check_law(LAW_ONE_SIGNED, 0.3);
}

/* One key takes all of the probability, the others' underflow. */
Test(ref_fast_attention, equals_plain_on_extreme_logits)
{
    check_law(LAW_ZERO_MEAN, 400.0);
}

/* The law sees a key too few, and a scale that is wrong in the twelfth digit. */
Test(ref_fast_attention, a_fault_breaks_the_law)
{
    const shape s = {2, 4, 2, 8, 5, 0};
    for (int fault = 0; fault < 2; fault++) {
        problem fast = problem_new(&s, 65, 40, 0, LAW_ZERO_MEAN, 0.3);
        problem plain = problem_new(&s, 65, 40, 0, LAW_ZERO_MEAN, 0.3);
        fast.d.window -= fault == 0;
        fast.d.scale *= fault == 1 ? 1.0 + 1e-12 : 1.0;
        cr_expect(broken(&fast, &plain) > 0, "fault %d", fault);
        problem_free(&fast), problem_free(&plain);
    }
}
