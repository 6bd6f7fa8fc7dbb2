/* What the tests of ref share: golden files as doubles, random numbers, relative comparison, central
 * differences. */
#ifndef TESTS_TEST_REF_SUPPORT_H
#define TESTS_TEST_REF_SUPPORT_H

#include "core/files/tensorfile.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NAN of <math.h> is a float. */
#define NOT_A_NUMBER ((double)__builtin_nan(""))

/* ---- golden files */
static inline assay_tensorfile *golden_open(const char *name)
{
    char path[512];
    assay_tensorfile *f = NULL;
    snprintf(path, sizeof path, "%s/golden/ops/%s.safetensors", ASSAY_SOURCE_DIR, name);
    cr_assert(assay_tensorfile_open(&f, path) == ASSAY_OK, "%s", assay_error_message());
    return f;
}

static inline const assay_tensor_info *golden_info(const assay_tensorfile *f, const char *name)
{
    const assay_tensor_info *info = assay_tensorfile_find(f, name);
    cr_assert(info != NULL, "%s: no tensor %s", assay_tensorfile_path(f), name);
    return info;
}

/* A copy; the caller frees it. */
static inline void *golden_copy(const assay_tensorfile *f, const char *name, assay_dtype dtype)
{
    const assay_tensor_info *info = golden_info(f, name);
    cr_assert(info->dtype == dtype, "%s has another dtype", name);
    void *p = malloc(info->bytes + 8);
    memcpy(p, info->data, info->bytes);
    return p;
}

static inline double *golden_real(const assay_tensorfile *f, const char *name)
{
    return golden_copy(f, name, ASSAY_F64);
}

static inline int64_t *golden_int(const assay_tensorfile *f, const char *name)
{
    return golden_copy(f, name, ASSAY_I64);
}

static inline int64_t golden_dim(const assay_tensorfile *f, const char *name, int dim)
{
    return golden_info(f, name)->shape[dim];
}

static inline double golden_attr(const assay_tensorfile *f, const char *key)
{
    const char *text = assay_tensorfile_metadata(f, key);
    cr_assert(text != NULL, "%s: no attribute %s", assay_tensorfile_path(f), key);
    return atof(text);
}

/* Largest difference relative to the largest value, NaN counts as infinity. */
static inline double relative_error(const double *got, const double *want, int64_t n)
{
    double scale = 1e-300, worst = 0.0;
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        const double err = fabs(got[i] - want[i]);
        if (!(err <= worst))
            worst = isnan(err) ? HUGE_VAL : err;
    }
    return worst / scale;
}

static inline void expect_golden(const assay_tensorfile *f, const char *name, const double *got)
{
    const assay_tensor_info *info = golden_info(f, name);
    double *want = golden_real(f, name);
    const double err = relative_error(got, want, info->count);
    cr_expect(err <= 1e-12, "%s: %s is off by %.3g of its largest value", assay_tensorfile_path(f), name,
              err);
    free(want);
}

static inline void expect_golden_int(const assay_tensorfile *f, const char *name, const int64_t *got)
{
    const assay_tensor_info *info = golden_info(f, name);
    cr_expect(memcmp(info->data, got, info->bytes) == 0, "%s: %s differs", assay_tensorfile_path(f), name);
}

/* ---- random numbers: splitmix64, the same on every machine */
typedef struct test_rng {
    uint64_t state;
} test_rng;

static inline uint64_t rng_u64(test_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline double rng_uniform(test_rng *r)
{
    return ((double)(rng_u64(r) >> 11) + 0.5) * 0x1p-53;
}

static inline double rng_normal(test_rng *r)
{
    return sqrt(-2.0 * log(rng_uniform(r))) * cos(6.283185307179586 * rng_uniform(r));
}

static inline int64_t rng_below(test_rng *r, int64_t n)
{
    return (int64_t)(rng_u64(r) % (uint64_t)n);
}

/* n normal numbers; never NULL. */
static inline double *random_normal(test_rng *r, int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r);
    return x;
}

static inline double *new_real(int64_t n)
{
    double *x = malloc(((size_t)n + 1) * sizeof *x);
    for (int64_t i = 0; i <= n; i++)
        x[i] = NOT_A_NUMBER; /* an element that nobody writes fails every comparison */
    return x;
}

static inline int64_t *new_int(int64_t n)
{
    int64_t *x = malloc(((size_t)n + 1) * sizeof *x);
    for (int64_t i = 0; i <= n; i++)
        x[i] = INT64_MIN / 4;
    return x;
}

static inline double dot(const double *a, const double *b, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

/* ---- central differences: `objective` reads the arrays it closes over through `context` */
typedef double (*objective_fn)(void *context);

/* The analytic gradient g of the objective by x [n], each element against (f(x+h) - f(x-h)) / 2h. */
static inline void expect_gradient(const char *what, objective_fn objective, void *context, double *x,
                                   const double *g, int64_t n)
{
    const double h = 1e-5;
    double scale = 1.0;
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(g[i]));
    for (int64_t i = 0; i < n; i++) {
        const double keep = x[i];
        x[i] = keep + h;
        const double up = objective(context);
        x[i] = keep - h;
        const double down = objective(context);
        x[i] = keep;
        const double numeric = (up - down) / (2.0 * h), err = fabs(numeric - g[i]);
        cr_expect(err <= 1e-7 * scale, "%s[%lld]: analytic %.12g, central difference %.12g", what,
                  (long long)i, g[i], numeric);
        if (!(err <= 1e-7 * scale))
            return;
    }
}

#endif
