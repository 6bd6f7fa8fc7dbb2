/* What the tests of the reference model share: a model, a batch, a layout, run; tensors compared. */
#ifndef TESTS_REF_MODEL_CASE_H
#define TESTS_REF_MODEL_CASE_H

#include "core/base/philox.h"
#include "ref/ref.h"
#include "tests/support/difference.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct model_case {
    assay_model_config *config;
    assay_model_spec *spec;
    double **weights;
    assay_batches batches;
    assay_train_options options;
    ref_run_config run;
} model_case;

static inline void require_ok(assay_status st, const char *what)
{
    cr_assert_eq(st, ASSAY_OK, "%s: %s", what, assay_error_message());
}

/* The path of a file under golden/models. */
static inline const char *golden_path(char out[ASSAY_PATH], const char *model, const char *file)
{
    snprintf(out, ASSAY_PATH, "%s/golden/models/%s%s%s", ASSAY_SOURCE_DIR, model, file[0] ? "/" : "", file);
    return out;
}

static inline void set_layout(model_case *c, const char *layout)
{
    assay_parallel_config p;
    require_ok(assay_layout_parse(layout, &p), layout);
    require_ok(assay_grid_make(&p, &c->run.grid), layout);
}

static inline void finish_case(model_case *c)
{
    c->run.spec = c->spec;
    c->run.options = &c->options;
    c->run.batches = &c->batches;
    c->run.want_logits = c->run.want_grads = c->run.want_states = true;
    set_layout(c, "1");
}

/* A golden model with one of its batch files. */
static inline void open_golden(model_case *c, const char *model, const char *batch)
{
    char path[ASSAY_PATH];
    memset(c, 0, sizeof *c);
    c->config = calloc(1, sizeof *c->config);
    require_ok(assay_config_load(golden_path(path, model, ""), c->config), model);
    require_ok(assay_spec_build(c->config, &c->spec), model);
    require_ok(ref_weights_load(c->spec, path, NULL, -1, &c->weights), model);
    require_ok(assay_batches_open(&c->batches, golden_path(path, model, batch), c->config->vocab_size),
               model);
    assay_train_options_default(&c->options);
    finish_case(c);
}

/* A model from JSON text with drawn weights and a drawn batch; labels are masked unevenly. */
static inline void open_drawn(model_case *c, const char *json, int64_t steps, int64_t microbatches, int64_t b,
                              int64_t s)
{
    json_t *root = NULL;
    memset(c, 0, sizeof *c);
    c->config = calloc(1, sizeof *c->config);
    require_ok(assay_json_parse(&root, json, strlen(json), "config"), "config");
    require_ok(assay_config_from_json(root, "config", c->config), "config");
    json_decref(root);
    require_ok(assay_spec_build(c->config, &c->spec), "spec");
    require_ok(ref_weights_load(c->spec, NULL, NULL, 7, &c->weights), "weights");
    const int64_t n = steps * microbatches * b * s;
    c->batches = (assay_batches){.training = true,
                                 .steps = steps,
                                 .microbatches = microbatches,
                                 .b = b,
                                 .s = s,
                                 .input_ids = calloc((size_t)n, sizeof(int64_t)),
                                 .labels = calloc((size_t)n, sizeof(int64_t))};
    for (int64_t i = 0; i < n; i++) {
        const uint64_t v = (uint64_t)c->config->vocab_size;
        const int64_t row = i / s;
        c->batches.input_ids[i] = (int64_t)assay_philox_below(5, 1, (uint64_t)i, v);
        c->batches.labels[i] = (int64_t)assay_philox_below(5, 2, (uint64_t)i, v);
        /* Row r keeps about (r mod 4 + 1)/4 of its labels. */
        if ((int64_t)assay_philox_below(5, 3, (uint64_t)i, 4) > row % 4)
            c->batches.labels[i] = ASSAY_IGNORE_INDEX;
    }
    assay_train_options_default(&c->options);
    finish_case(c);
}

static inline void close_case(model_case *c)
{
    ref_weights_free(c->spec, c->weights);
    if (c->batches.file) {
        assay_batches_close(&c->batches);
    } else {
        free(c->batches.input_ids);
        free(c->batches.labels);
        free(c->batches.position_ids);
    }
    assay_spec_destroy(c->spec);
    free(c->config);
}

/* max |a - b| / max |b|; not-a-number when either has one. 0/0 is 0. */
static inline double relative_error(const double *a, const double *b, int64_t n)
{
    double worst = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        worst = worse_of(worst, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    return worst == 0.0 ? 0.0 : worst / largest;
}

static inline int64_t named_count(const ref_named_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

/* Compares every tensor and number of two results. */
static inline double compare_results(const ref_run_result *a, const ref_run_result *b, double tolerance,
                                     const char *what)
{
    double worst = 0.0;
    cr_assert_eq(a->steps, b->steps);
    cr_assert_eq(a->n_tensors, b->n_tensors, "%s", what);
    for (int64_t i = 0; i < b->n_tensors; i++) {
        const ref_named_tensor *x = &b->tensors[i];
        const ref_named_tensor *y = ref_result_find(a, x->kind, x->name, x->step);
        cr_assert_not_null(y, "%s: %s %s", what, x->kind, x->name);
        const double e = relative_error(y->data, x->data, named_count(x));
        cr_expect(e <= tolerance, "%s: %s %s of step %ld: relative error %g", what, x->kind, x->name,
                  (long)x->step, e);
        worst = worse_of(worst, e);
    }
    const double *const pairs[][2] = {
        {a->loss, b->loss}, {a->grad_norm, b->grad_norm}, {a->aux_loss, b->aux_loss}, {a->z_loss, b->z_loss}};
    for (int j = 0; j < 4; j++) {
        const double e = relative_error(pairs[j][0], pairs[j][1], a->steps);
        cr_expect(e <= tolerance, "%s: number %d (loss, norm, aux, z): relative error %g", what, j, e);
        worst = worse_of(worst, e);
    }
    return worst;
}

/* An expert that nobody may choose: its pieces are empty on every rank. */
static inline void ban_expert(model_case *c, int64_t expert)
{
    for (int64_t i = 0; i < c->spec->n_params; i++)
        if (strstr(c->spec->params[i].name, "expert_bias"))
            c->weights[i][expert] = -10.0;
}

/* Runs the case under `layout` and demands the result of `whole` (1e-12). */
static inline void expect_layout(model_case *c, const ref_run_result *whole, const char *layout)
{
    ref_run_result r;
    set_layout(c, layout);
    require_ok(ref_run(&c->run, c->weights, &r), layout);
    const double worst = compare_results(&r, whole, 1e-12, layout);
    if (getenv("ASSAY_TEST_VERBOSE"))
        fprintf(stderr, "%-24s worst %.2e\n", layout, worst);
    ref_run_result_free(&r);
}

#endif
