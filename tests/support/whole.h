/* What the tests of the whole check share: a small model and its batch, the reference as a candidate, and the judge. */
#ifndef TESTS_WHOLE_H
#define TESTS_WHOLE_H

#include "parity/checks/whole.h"
#include "tests/support/parity.h"

typedef struct setting {
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    assay_train_options options;
    double **weights;
} setting;

static inline void set_up_with_clip(setting *s, double clip_qkv)
{
    const char *model = ASSAY_SOURCE_DIR "/golden/models/qwen3_moe";
    memset(s, 0, sizeof *s);
    s->config = malloc(sizeof *s->config);
    must(assay_config_load(model, s->config));
    s->config->clip_qkv = clip_qkv;
    must(assay_spec_build(s->config, &s->spec));
    must(assay_batches_open(&s->batches, ASSAY_SOURCE_DIR "/golden/models/qwen3_moe/train_batch.safetensors",
                            s->config->vocab_size));
    assay_train_options_default(&s->options);
    s->options.train_iters = 1;
    s->options.lr = 1e-3;
    s->options.clip_grad = 1.0;
    s->options.moe_aux_loss_coeff.of[0] = 0.01;
    must(ref_weights_load(s->spec, model, NULL, -1, &s->weights));
}

static inline void set_up(setting *s)
{
    set_up_with_clip(s, 0.0);
}

static inline void tear_down(setting *s)
{
    ref_weights_free(s->spec, s->weights);
    assay_batches_close(&s->batches);
    assay_spec_destroy(s->spec);
    free(s->config);
}

/* The reference itself, rounded as the recipe of a precision rounds; told: NULL, or whose lookups (ref.h) decide in its place. */
static inline assay_trace *candidate_in(setting *s, char dir[256], bool run, assay_precision precision,
                                        const ref_run_config *told)
{
    json_t *header = json_pack("{s:s, s:s, s:s}", "engine", "ref", "precision",
                               assay_precision_name(precision), "layout", "1");
    ref_run_config c = {.spec = s->spec, .options = &s->options, .batches = &s->batches};
    if (told) {
        c.clip = told->clip;
        c.master = told->master;
        c.routing_user = told->routing_user;
    }
    assay_parallel_config p;
    ref_run_result result;
    must(assay_layout_parse("1", &p));
    must(assay_grid_make(&p, &c.grid));
    c.policy.precision = precision;
    must(assay_trace_writer_open(&c.trace, fresh_path(dir, "t"), 0, 1, header, false));
    if (run) {
        must(ref_run(&c, s->weights, &result));
        ref_run_result_free(&result);
    }
    must(assay_trace_writer_close(c.trace));
    assay_trace_writer_destroy(c.trace);
    json_decref(header);
    return open_trace(dir);
}

static inline assay_trace *candidate(setting *s, char dir[256], bool run)
{
    return candidate_in(s, dir, run, ASSAY_PRECISION_FP32, NULL);
}

/* *looks: how often the judge looked, with other runs each time. */
static inline parity_report *judge_and_count(setting *s, assay_trace *t, int64_t *looks)
{
    parity_whole_cache *cache;
    parity_report *r = new_report();
    must(parity_whole_cache_create(&cache, s->spec, &s->options, &s->batches, s->weights));
    must(parity_check_whole(cache, t, r));
    const int64_t n = parity_report_count(r), failed = n_failed(r);
    *looks = cache->n;
    must(parity_check_whole(cache, t, r)); /* from the cache: the same again */
    cr_assert_eq(cache->n, *looks);
    cr_assert_eq(parity_report_count(r), 2 * n);
    cr_assert_eq(n_failed(r), 2 * failed);
    parity_whole_cache_destroy(cache);
    return r;
}

static inline parity_report *judge(setting *s, assay_trace *t)
{
    int64_t looks;
    return judge_and_count(s, t, &looks);
}

static inline const parity_claim *result_of(const parity_report *r, const char *tensor)
{
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        if (strcmp(parity_report_at(r, i)->tensor, tensor) == 0)
            return parity_report_at(r, i);
    }
    cr_assert(false, "no result of %s", tensor);
    return NULL;
}

#endif
