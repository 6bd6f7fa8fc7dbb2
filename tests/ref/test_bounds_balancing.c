/* Bounds of the balancing loss of all layers: honest kernels stay inside, wrong ones do not, a choice that rounding decides is open. */
#include "tests/support/ref_bounds.h"

TestSuite(ref_bounds_balancing, .timeout = 60);

enum { N = 37, E = 6, K = 2 };

typedef enum { HONEST, ONE_MORE, MASK_LEFT_OUT, NOT_TIMES_EXPERTS, DIVIDED_BY_CHOICES, N_KERNELS } kernel;

typedef struct problem {
    trial forward, backward;
    const double *logits, *weight;
} problem;

static void softmax(float *p, const problem *q, int row, assay_dtype dtype, test_rng *r)
{
    float sum, max = -INFINITY;
    for (int e = 0; e < E; e++)
        max = fmaxf(max, (float)q->logits[row * E + e]);
    for (int e = 0; e < E; e++)
        p[e] = expf((float)q->logits[row * E + e] - max);
    sum = emulate_dot(NULL, p, E, &q->forward.arith, r);
    for (int e = 0; e < E; e++)
        p[e] = (float)ref_round((double)(p[e] / sum), dtype);
}

/* Adds `weight` to those of the k largest. */
static void choose(float *chosen, const float *p, int k, float weight)
{
    for (int e = 0; e < E; e++) {
        int above = 0;
        for (int o = 0; o < E; o++)
            above += p[o] > p[e] || (p[o] == p[e] && o < e);
        chosen[e] += above < k ? weight : 0.0f;
    }
}

/* In single precision; scores are stored in dtype. */
static void run(problem *q, kernel kind, assay_dtype dtype, float scale, test_rng *r)
{
    static float p[N][E], columns[E][N];
    float chosen[E] = {0}, weight[N], terms[E], rows = 0.0f;
    for (int i = 0; i < N; i++) {
        weight[i] = kind == MASK_LEFT_OUT ? 1.0f : (float)q->weight[i];
        rows += weight[i];
        softmax(p[i], q, i, dtype, r);
        choose(chosen, p[i], kind == ONE_MORE ? K + 1 : K, weight[i]);
        for (int e = 0; e < E; e++)
            columns[e][i] = p[i][e] * weight[i];
    }
    for (int e = 0; e < E; e++) {
        chosen[e] /= kind == DIVIDED_BY_CHOICES ? rows * K : rows;
        terms[e] = chosen[e] * (emulate_dot(NULL, columns[e], N, &q->forward.arith, r) / rows);
    }
    const float experts = kind == NOT_TIMES_EXPERTS ? 1.0f : (float)E;
    q->forward.out[0].value[0] = (double)(emulate_dot(NULL, terms, E, &q->forward.arith, r) * experts);
    for (int i = 0; i < N; i++) {
        float h[E];
        for (int e = 0; e < E; e++) {
            h[e] = (float)ref_round((double)(scale * experts * chosen[e] / rows * weight[i]), dtype);
            terms[e] = h[e] * p[i][e];
        }
        const float dot = emulate_dot(NULL, terms, E, &q->backward.arith, r);
        for (int e = 0; e < E; e++)
            q->backward.out[0].value[i * E + e] = (double)(p[i][e] * (h[e] - dot));
    }
}

static double *copy_of(const double *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static problem make(int a, int mode, assay_dtype dtype, double scale, test_rng *r)
{
    assay_arith arith = arith_case(a);
    arith.rounding = ASSAY_ROUND_SCORES;
    problem p = {.forward = trial_new("load_balancing_fwd", arith),
                 .backward = trial_new("load_balancing_bwd", arith)};
    double *weight = calloc(N, sizeof *weight);
    for (int i = 0; i < N; i++)
        weight[i] = i % 5 == 0 ? 0.0 : 1.0;
    p.logits = trial_in(&p.forward, "logits", dtype, mode_data(r, mode, N * E, E, dtype, 2.0), SHAPE(N, E));
    p.weight = trial_in(&p.forward, "row_weight", ASSAY_F32, weight, SHAPE(N));
    trial_in(&p.backward, "logits", dtype, copy_of(p.logits, N * E), SHAPE(N, E));
    trial_in(&p.backward, "row_weight", ASSAY_F32, copy_of(weight, N), SHAPE(N));
    json_object_set_new(p.forward.attrs, "topk", json_integer(K));
    json_object_set_new(p.backward.attrs, "topk", json_integer(K));
    json_object_set_new(p.backward.attrs, "scale", json_real(scale));
    trial_out(&p.forward, "loss", ASSAY_F32, SHAPE(1));
    trial_out(&p.backward, "dlogits", dtype, SHAPE(N, E));
    return p;
}

static void end(problem *p)
{
    trial_free(&p->forward);
    trial_free(&p->backward);
}

Test(ref_bounds_balancing, honest_kernels_are_inside)
{
    test_rng r = {1};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int d = 0; d < 2; d++) {
                const assay_dtype dtype = d ? ASSAY_BF16 : ASSAY_F32;
                problem p = make(a, mode, dtype, 0.02, &r);
                run(&p, HONEST, dtype, 0.02f, &r);
                trial_expect_pass(&p.forward, "forward");
                trial_expect_pass(&p.backward, "backward");
                end(&p);
            }
}

Test(ref_bounds_balancing, wrong_kernels_are_outside)
{
    for (kernel kind = ONE_MORE; kind < N_KERNELS; kind++)
        for (int d = 0; d < 2; d++) {
            const assay_dtype dtype = d ? ASSAY_BF16 : ASSAY_F32;
            test_rng r = {7};
            problem p = make(0, MODE_GAUSSIAN, dtype, 0.02, &r);
            run(&p, kind, dtype, 0.02f, &r);
            trial_store(&p.forward);
            trial_judge(&p.forward);
            cr_expect(p.forward.n_bad == 1, "kernel %d, dtype %d: the loss passes", (int)kind, d);
            trial_store(&p.backward);
            trial_judge(&p.backward);
            cr_expect(p.backward.n_bad > N / 2, "kernel %d, dtype %d: %d gradients", (int)kind, d,
                      (int)p.backward.n_bad);
            end(&p);
        }
}

/* Equal logits: E sum over K experts of 1 x 1/E = K, whatever experts are chosen, and the bound lets any be. */
Test(ref_bounds_balancing, equal_scores_leave_the_choice_open)
{
    test_rng r = {3};
    problem p = make(0, MODE_CONSTANT, ASSAY_F32, 1.0, &r);
    run(&p, HONEST, ASSAY_F32, 1.0f, &r);
    trial_expect_pass(&p.forward, "forward");
    cr_expect_float_eq(p.forward.result.outputs[0].value[0], K, 1e-12);
    cr_expect(p.forward.result.outputs[0].bound[0] > 1.0);
    end(&p);
}

/* The derivative of the replayed loss by a logit, with the choice held. */
Test(ref_bounds_balancing, the_backward_is_the_derivative)
{
    test_rng r = {4};
    problem p = make(0, MODE_GAUSSIAN, ASSAY_F32, 0.5, &r);
    p.forward.arith.accumulate = p.backward.arith.accumulate = ASSAY_F64;
    trial_judge(&p.backward);
    for (int i = 0; i < N * E; i += 17) {
        double *x = &p.forward.in[0].value[i], at = *x, loss[2];
        for (int s = 0; s < 2; s++) {
            *x = at + (s ? 1e-6 : -1e-6);
            trial_judge(&p.forward);
            loss[s] = p.forward.result.outputs[0].value[0];
        }
        *x = at;
        cr_expect_float_eq(0.5 * (loss[1] - loss[0]) / 2e-6, p.backward.result.outputs[0].value[i], 1e-8);
    }
    end(&p);
}

Test(ref_bounds_balancing, hostile_records_are_refused)
{
    static const struct {
        int64_t topk, weights;
    } rows[] = {{0, N}, {E + 1, N}, {K, N - 1}, {K, 0}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        test_rng r = {5};
        problem p = make(0, MODE_GAUSSIAN, ASSAY_F32, 0.5, &r);
        const assay_declaration declared = assay_declaration_make(p.forward.arith);
        json_object_set_new(p.forward.attrs, "topk", json_integer(rows[k].topk));
        p.forward.in[1].count = p.forward.in[1].shape[0] = rows[k].weights;
        const assay_status st = ref_replay(p.forward.op, p.forward.attrs, &declared, p.forward.in,
                                           p.forward.n_in, p.forward.out, p.forward.n_out, &p.forward.result);
        cr_expect(st == ASSAY_INVALID_ARGUMENT, "row %d: status %d", (int)k, (int)st);
        end(&p);
    }
}
