/* Results of the reference against golden files. */
#ifndef TESTS_REF_GOLDEN_H
#define TESTS_REF_GOLDEN_H

#include "tests/support/ref_model.h"

/* A golden tensor as doubles (unaligned data). */
static inline double *golden_data(const assay_tensorfile *f, const char *name, int64_t *count)
{
    const assay_tensor_info *info = assay_tensorfile_find(f, name);
    cr_assert_not_null(info, "golden.safetensors has no %s", name);
    cr_assert_eq(info->dtype, ASSAY_F64);
    double *x = malloc(info->bytes + 8);
    memcpy(x, info->data, info->bytes);
    *count = info->count;
    return x;
}

static inline double compare_golden(const assay_tensorfile *f, const char *name, const double *x, int64_t n,
                                    double tolerance)
{
    int64_t count;
    double *want = golden_data(f, name, &count);
    cr_assert_eq(count, n, "%s: %ld elements, golden %ld", name, (long)n, (long)count);
    const double e = relative_error(x, want, n);
    cr_expect(e <= tolerance, "%s: relative error %g", name, e);
    free(want);
    return e;
}

/* Every part of every tensor of `kind` against PREFIX.<name on disk>; returns how many were compared.  A buffer has a weight and no
 * gradient. */
static inline int64_t compare_parts(const model_case *c, const ref_run_result *r, const assay_tensorfile *f,
                                    const char *kind, int64_t step, double tolerance, double *worst)
{
    int64_t compared = 0;
    for (int64_t i = 0; i < c->spec->n_params; i++) {
        const assay_param_spec *p = &c->spec->params[i];
        if (!p->trained && strcmp(kind, "weight") != 0)
            continue;
        const ref_named_tensor *t = ref_result_find(r, p->trained ? kind : "expert_bias", p->name, step);
        cr_assert_not_null(t, "%s %s", kind, p->name);
        for (int part = 0; part < p->n_parts; part++) {
            const assay_hf_part *h = &p->parts[part];
            const int64_t n = assay_hf_part_rows(h) * assay_hf_part_row_length(h);
            double *x = calloc((size_t)n, sizeof *x);
            char name[ASSAY_NAME + 16];
            ref_hf_extract(p, part, t->data, x);
            snprintf(name, sizeof name, "%s.%s", kind, h->name);
            const double e = compare_golden(f, name, x, n, tolerance);
            *worst = worse_of(*worst, e);
            free(x);
            compared++;
        }
    }
    return compared;
}

#endif
