/* Bounds of LayerNorm: honest kernels of several forms stay inside, wrong ones do not. */
#include "tests/support/ref_bounds.h"

TestSuite(ref_bounds_layernorm, .timeout = 60);

enum { T = 4, H = 130, FORMS = 3 };

/* Mean and variance in two passes, or by Welford's updates, in single precision. */
static void statistics(const float *x, bool welford, const assay_arith *arith, test_rng *r, float *mean,
                       float *var)
{
    float terms[H], m = 0.0f, m2 = 0.0f;
    for (int j = 0; j < H && welford; j++) {
        const float delta = x[j] - m;
        m += delta / (float)(j + 1);
        m2 += delta * (x[j] - m);
    }
    *mean = m;
    *var = m2 / (float)H;
    if (welford)
        return;
    *mean = emulate_dot(NULL, x, H, arith, r) / (float)H;
    for (int j = 0; j < H; j++)
        terms[j] = (x[j] - *mean) * (x[j] - *mean);
    *var = emulate_dot(NULL, terms, H, arith, r) / (float)H;
}

typedef struct problem {
    trial forward, backward;
    const double *x, *gamma, *beta, *dy;
    float mean[T], rstd[T];
} problem;

/* Numbers of `mode` around `level` (a mean far above the deviations is what separates the forms). */
static double *around(test_rng *r, int mode, double level, assay_dtype dtype)
{
    double *x = mode_data(r, mode, T * H, H, dtype, 1.0);
    for (int i = 0; i < T * H; i++)
        x[i] = ref_round(x[i] + level, dtype);
    return x;
}

/* form 0: (x - mean) rstd, two passes; 1: x rstd - mean rstd, Welford (PyTorch); 2: two passes, multiplied first */
static void forward(problem *p, int form, float eps, test_rng *r)
{
    double *y = p->forward.out[0].value, *mean = p->forward.out[1].value, *rstd = p->forward.out[2].value;
    for (int i = 0; i < T; i++) {
        float f[H], var;
        column_to_float(f, p->x + i * H, H, 1, 0);
        statistics(f, form == 1, &p->forward.arith, r, &p->mean[i], &var);
        p->rstd[i] = 1.0f / sqrtf(var + eps);
        mean[i] = (double)p->mean[i];
        rstd[i] = (double)p->rstd[i];
        for (int j = 0; j < H; j++) {
            const float xh =
                form == 0 ? (f[j] - p->mean[i]) * p->rstd[i] : f[j] * p->rstd[i] + (-p->mean[i] * p->rstd[i]);
            y[i * H + j] = (double)(xh * (float)p->gamma[j] + (float)p->beta[j]);
        }
    }
}

static void dx_row(problem *p, int i, bool apart, test_rng *r)
{
    double *dx = p->backward.out[0].value;
    float g[H], terms[H], x[H];
    const float a = p->rstd[i], mean = p->mean[i];
    column_to_float(x, p->x + i * H, H, 1, 0);
    for (int j = 0; j < H; j++)
        g[j] = (float)p->dy[i * H + j] * (float)p->gamma[j];
    const float sum = emulate_dot(NULL, g, H, &p->backward.arith, r);
    for (int j = 0; j < H; j++)
        terms[j] = apart ? g[j] * x[j] : g[j] * ((x[j] - mean) * a);
    const float dot = emulate_dot(NULL, terms, H, &p->backward.arith, r);
    const float b = (sum * mean - dot) * a * a * a / (float)H, c = -b * mean - sum * a / (float)H;
    for (int j = 0; j < H; j++)
        dx[i * H + j] = (double)(apart ? a * g[j] + b * x[j] + c
                                       : a * (g[j] - sum / (float)H - (x[j] - mean) * a * (dot / (float)H)));
}

static void backward(problem *p, int form, test_rng *r)
{
    double *dgamma = p->backward.out[1].value, *dbeta = p->backward.out[2].value;
    for (int i = 0; i < T; i++)
        dx_row(p, i, form > 0, r);
    for (int j = 0; j < H; j++) {
        float terms[T], dy[T];
        for (int i = 0; i < T; i++) {
            const float x = (float)p->x[i * H + j], a = p->rstd[i], mean = p->mean[i];
            dy[i] = (float)p->dy[i * H + j];
            terms[i] = dy[i] * (form > 0 ? a * x + (-a * mean) : (x - mean) * a);
        }
        dgamma[j] = (double)emulate_dot(NULL, terms, T, &p->backward.arith, r);
        dbeta[j] = (double)emulate_dot(NULL, dy, T, &p->backward.arith, r);
    }
}

static problem make(int a, int mode, double level, assay_dtype dtype, test_rng *r)
{
    problem p = {.forward = trial_new("layernorm_fwd", arith_case(a)),
                 .backward = trial_new("layernorm_bwd", arith_case(a))};
    json_object_set_new(p.forward.attrs, "eps", json_real(1e-5));
    p.x = trial_in(&p.forward, "x", dtype, around(r, mode, level, dtype), SHAPE(T, H));
    p.gamma = trial_in(&p.forward, "gamma", dtype, mode_data(r, MODE_POSITIVE, H, H, dtype, 1.0), SHAPE(H));
    p.beta = trial_in(&p.forward, "beta", dtype, mode_data(r, MODE_GAUSSIAN, H, H, dtype, 1.0), SHAPE(H));
    trial_out(&p.forward, "y", dtype, SHAPE(T, H));
    trial_out(&p.forward, "mean", ASSAY_F32, SHAPE(T));
    trial_out(&p.forward, "rstd", ASSAY_F32, SHAPE(T));
    return p;
}

/* A trial owns its inputs. */
static double *copy_of(const double *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

/* kept: mean and rstd are recorded inputs; else the judge computes them. */
static void make_backward(problem *p, bool kept, assay_dtype dtype, test_rng *r)
{
    trial *b = &p->backward;
    json_object_set_new(b->attrs, "eps", json_real(1e-5));
    p->dy = trial_in(b, "dy", dtype, mode_data(r, MODE_GAUSSIAN, T * H, H, dtype, 1.0), SHAPE(T, H));
    trial_in(b, "x", dtype, copy_of(p->x, T * H), SHAPE(T, H));
    trial_in(b, "gamma", dtype, copy_of(p->gamma, H), SHAPE(H));
    if (kept) {
        double *mean = calloc(T, sizeof *mean), *rstd = calloc(T, sizeof *rstd);
        for (int i = 0; i < T; i++) {
            mean[i] = (double)p->mean[i];
            rstd[i] = (double)p->rstd[i];
        }
        trial_in(b, "mean", ASSAY_F32, mean, SHAPE(T));
        trial_in(b, "rstd", ASSAY_F32, rstd, SHAPE(T));
    }
    trial_in(b, "dgamma_in", ASSAY_F32, calloc(H, sizeof(double)), SHAPE(H));
    trial_in(b, "dbeta_in", ASSAY_F32, calloc(H, sizeof(double)), SHAPE(H));
    trial_out(b, "dx", dtype, SHAPE(T, H));
    trial_out(b, "dgamma", ASSAY_F32, SHAPE(H));
    trial_out(b, "dbeta", ASSAY_F32, SHAPE(H));
}

Test(ref_bounds_layernorm, honest_kernels_of_every_form_are_inside)
{
    static const double levels[] = {0.0, 3.0, -200.0};
    test_rng r = {1};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int d = 0; d < 2; d++)
                for (int form = 0; form < FORMS; form++)
                    for (int level = 0; level < 3; level++) {
                        const assay_dtype dtype = d ? ASSAY_BF16 : ASSAY_F32;
                        problem p = make(a, mode, levels[level], dtype, &r);
                        /* Welford's chain is as long as one of the declared orders at least where that is a chain */
                        const bool chain =
                            p.forward.arith.order == ASSAY_ORDER_UNKNOWN ||
                            (p.forward.arith.order == ASSAY_ORDER_SEQUENTIAL && p.forward.arith.split <= 1);
                        forward(&p, form == 1 && !chain ? 2 : form, 1e-5f, &r);
                        trial_expect_pass(&p.forward, "forward");
                        for (int kept = 0; kept < 2; kept++) {
                            problem q = p;
                            q.backward = trial_new("layernorm_bwd", arith_case(a));
                            make_backward(&q, kept == 1, dtype, &r);
                            backward(&q, form, &r);
                            trial_expect_pass(&q.backward, kept ? "backward" : "backward alone");
                            trial_free(&q.backward);
                        }
                        trial_free(&p.backward);
                        trial_free(&p.forward);
                    }
}

typedef void spoil(problem *p, test_rng *r);

static void other_eps(problem *p, test_rng *r)
{
    forward(p, 0, 1e-4f, r);
}

/* divided by H - 1 */
static void sample_variance(problem *p, test_rng *r)
{
    forward(p, 0, 1e-5f, r);
    double *y = p->forward.out[0].value;
    for (int i = 0; i < T * H; i++) {
        const double beta = p->beta[i % H];
        y[i] = beta + (y[i] - beta) * sqrt((H - 1.0) / H);
    }
}

static void beta_left_out(problem *p, test_rng *r)
{
    forward(p, 0, 1e-5f, r);
    for (int i = 0; i < T * H; i++)
        p->forward.out[0].value[i] -= p->beta[i % H];
}

static void one_pass(problem *p, test_rng *r)
{
    forward(p, 0, 1e-5f, r);
    for (int i = 0; i < T; i++) {
        float sum = 0.0f, squares = 0.0f;
        for (int j = 0; j < H; j++) {
            const float x = (float)p->x[i * H + j];
            sum += x;
            squares += x * x;
        }
        const float mean = sum / (float)H;
        p->forward.out[2].value[i] = (double)(1.0f / sqrtf(squares / (float)H - mean * mean + 1e-5f));
    }
}

/* E[x^2] - E[x]^2 loses what a mean far above the deviations leaves nothing of; nobody declares that. */
Test(ref_bounds_layernorm, wrong_kernels_are_outside)
{
    static const struct {
        const char *what;
        spoil *plant;
        double level;
    } rows[] = {{"eps", other_eps, 0.0},
                {"sample variance", sample_variance, 0.0},
                {"no beta", beta_left_out, 0.0},
                {"one pass", one_pass, -200.0}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        test_rng r = {7};
        problem p = make(0, MODE_GAUSSIAN, rows[k].level, ASSAY_F32, &r);
        rows[k].plant(&p, &r);
        trial_store(&p.forward);
        trial_judge(&p.forward);
        cr_expect(p.forward.n_bad >= T, "%s: %d elements", rows[k].what, (int)p.forward.n_bad);
        trial_free(&p.forward);
        trial_free(&p.backward);
    }
}

/* The terms that a mean adds to dx: without one of them it is outside. */
Test(ref_bounds_layernorm, a_backward_without_one_of_its_means_is_outside)
{
    for (int lost = 0; lost < 2; lost++) {
        test_rng r = {8};
        problem p = make(0, MODE_POSITIVE, 0.0, ASSAY_F32, &r);
        forward(&p, 0, 1e-5f, &r);
        make_backward(&p, true, ASSAY_F32, &r);
        backward(&p, 0, &r);
        trial_expect_pass(&p.backward, "whole");
        for (int i = 0; i < T; i++) {
            double sum = 0.0, dot = 0.0;
            for (int j = 0; j < H; j++) {
                const double g = p.dy[i * H + j] * p.gamma[j];
                sum += g;
                dot += g * (p.x[i * H + j] - (double)p.mean[i]) * (double)p.rstd[i];
            }
            for (int j = 0; j < H; j++)
                p.backward.out[0].value[i * H + j] +=
                    (double)p.rstd[i] *
                    (lost ? (p.x[i * H + j] - (double)p.mean[i]) * (double)p.rstd[i] * dot / H : sum / H);
        }
        trial_store(&p.backward);
        trial_judge(&p.backward);
        cr_expect(p.backward.n_bad > T * H / 2, "%d elements", (int)p.backward.n_bad);
        trial_free(&p.forward);
        trial_free(&p.backward);
    }
}
