/* Header of a checkpoint: model, steps, schedule, precision, recipe, data, streams, content and layout are those of the run that
 * wrote it.  The next run goes on from there, whatever the tensors are. */
#include "parity/checks/checkpoint_header.h"
#include "core/files/checkpoint.h"
#include "core/run/metrics.h"
#include "core/run/training.h"
#include "parity/checks/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static parity_result item_of(const parity_result *base, const char *item)
{
    parity_result r = *base;
    r.count = 1;
    r.verdict = PARITY_PASS;
    snprintf(r.instance, sizeof r.instance, "header");
    snprintf(r.tensor, sizeof r.tensor, "%s", item);
    return r;
}

static assay_status claim_word(const parity_result *base, const char *item, const char *wanted,
                               const char *found, parity_report *report)
{
    parity_result r = item_of(base, item);
    if (found == NULL || strcmp(found, wanted) != 0)
        parity_result_fail(&r, "the checkpoint's header, %s: expected %s, found %s", item, wanted,
                           found ? found : "none");
    return parity_report_add(report, &r);
}

/* What the header says that it was trained with, which the next run will be held to. */
static assay_status claim_training(const parity_result *base, const parity_header *wanted,
                                   const json_t *header, parity_report *report)
{
    parity_result r = item_of(base, "training");
    assay_train_options asked = *wanted->options;
    asked.train_iters = asked.train_iters > 0 ? asked.train_iters : wanted->step;
    asked.override_checkpoint_args = false;
    if (assay_training_check("header", header, &asked, NULL) != ASSAY_OK) {
        parity_result_fail(&r, "%.500s", assay_error_message());
        assay_error_clear();
    }
    return parity_report_add(report, &r);
}

static assay_status claim_number(const parity_result *base, const char *item, int64_t wanted,
                                 const json_t *value, parity_report *report)
{
    char expected[32], found[32];
    snprintf(expected, sizeof expected, "%lld", (long long)wanted);
    snprintf(found, sizeof found, "%lld", (long long)json_integer_value(value));
    return claim_word(base, item, expected, json_is_integer(value) ? found : NULL, report);
}

/* How many samples its steps have read, and which. */
static assay_status claim_data(const parity_result *base, const parity_header *wanted, const json_t *header,
                               parity_report *report)
{
    parity_result r = item_of(base, "data");
    const json_t *found = json_object_get(header, "data");
    json_t *here = assay_consumed_to_json(wanted->batches, wanted->step);
    ASSAY_CHECK(here != NULL, ASSAY_OUT_OF_MEMORY, "data of %lld steps", (long long)wanted->step);
    const json_int_t n = json_integer_value(json_object_get(here, "consumed_samples")),
                     m = json_integer_value(json_object_get(found, "consumed_samples"));
    if (found == NULL || !json_equal(found, here))
        parity_result_fail(&r, "the checkpoint's header, data: expected the first %lld samples, found %lld%s",
                           (long long)n, (long long)m, n == m ? ", other ones" : "");
    json_decref(here);
    return parity_report_add(report, &r);
}

/* The learning rate of the next step by the judge's own formula; two programs may round it differently. */
static assay_status claim_rate(const parity_result *base, const parity_header *wanted,
                               const json_t *scheduler, parity_report *report)
{
    parity_result r = item_of(base, "scheduler.learning_rate");
    const assay_train_options *o = wanted->options;
    const int64_t all = o->train_iters > 0 ? o->train_iters : wanted->step;
    const double expected = plan_learning_rate(o, all, wanted->step),
                 slack = ldexp(fabs(expected) + fabs(o->lr) + fabs(o->min_lr), -48);
    const json_t *rate = json_object_get(scheduler, "learning_rate");
    if (!json_is_number(rate) || !(fabs(json_number_value(rate) - expected) <= slack))
        parity_result_fail(&r,
                           "the checkpoint's header, scheduler.learning_rate: expected %.17g, of step %lld, "
                           "found %.17g",
                           expected, (long long)wanted->step, json_number_value(rate));
    return parity_report_add(report, &r);
}

/* No recipe has a loss scale. */
static assay_status claim_scale(const parity_result *base, const json_t *header, parity_report *report)
{
    parity_result r = item_of(base, "loss_scaler");
    const json_t *scaler = json_object_get(header, "loss_scaler"),
                 *scale = json_object_get(scaler, "loss_scale");
    if (!json_is_number(scale) || json_number_value(scale) != 1.0 ||
        !json_is_false(json_object_get(scaler, "dynamic")))
        parity_result_fail(&r,
                           "the checkpoint's header, loss_scaler: expected a loss_scale of 1, not dynamic, "
                           "found %.17g%s",
                           json_number_value(scale),
                           json_is_false(json_object_get(scaler, "dynamic")) ? "" : ", dynamic");
    return parity_report_add(report, &r);
}

/* An object of the header, member by member.  expected is taken over. */
static assay_status claim_object(const parity_result *base, const char *item, json_t *expected,
                                 const json_t *found, parity_report *report)
{
    parity_result r = item_of(base, item);
    const char *key;
    json_t *value;
    ASSAY_CHECK(expected != NULL, ASSAY_OUT_OF_MEMORY, "%s of a header", item);
    json_object_foreach(expected, key, value)
    {
        const json_t *its = json_object_get(found, key);
        if (r.verdict != PARITY_PASS || json_equal(value, its))
            continue;
        char *here = json_dumps(value, JSON_ENCODE_ANY),
             *there = its != NULL ? json_dumps(its, JSON_ENCODE_ANY) : NULL;
        parity_result_fail(&r, "the checkpoint's header, %s: %s: expected %.150s, found %.150s", item, key,
                           here != NULL ? here : "?", there != NULL ? there : "none");
        free(there);
        free(here);
    }
    if (r.verdict == PARITY_PASS && !json_equal(expected, found))
        parity_result_fail(&r, "the checkpoint's header, %s: more members than expected", item);
    json_decref(expected);
    return parity_report_add(report, &r);
}

static json_t *random_of(const assay_train_options *o)
{
    json_t *r = json_pack("{s:s, s:I}", "generator", "philox", "dropout_seed", (json_int_t)o->dropout_seed);
    if (r != NULL && o->draw_weights >= 0)
        json_object_set_new(r, "draw_weights", json_integer(o->draw_weights));
    return r;
}

/* Which tensors it holds, in which types and files. */
static json_t *content_of(const parity_header *wanted)
{
    const assay_train_options *o = wanted->options;
    const char *const *states;
    const int n_states = o->no_save_optim ? 0 : assay_optimizer_states(o->optimizer, &states);
    const assay_dtype state = o->precision == ASSAY_PRECISION_FP64 ? ASSAY_F64 : ASSAY_F32,
                      weight = o->precision == ASSAY_PRECISION_BF16 && !o->skip_save_model_weight ? ASSAY_BF16
                                                                                                  : state;
    json_t *names = json_array(), *frozen = json_array();
    for (int k = 0; k < n_states; k++)
        json_array_append_new(names, json_string(states[k]));
    for (int64_t i = 0; i < wanted->spec->n_params; i++)
        if (wanted->spec->params[i].frozen)
            json_array_append_new(frozen, json_string(wanted->spec->params[i].name));
    json_t *content = json_pack("{s:s, s:s, s:o, s:I, s:b}", "weight", assay_dtype_name(weight), "state",
                                assay_dtype_name(state), "states", names, "max_shard_size",
                                (json_int_t)(o->max_shard_size > 0 ? o->max_shard_size : (int64_t)5000000000),
                                "weights_only", o->no_save_optim);
    if (content != NULL && json_array_size(frozen) > 0)
        json_object_set(content, "frozen", frozen);
    json_decref(frozen);
    return content;
}

/* What transformers and --model make of the folder is the model of the run. */
static assay_status claim_config(const parity_result *base, const parity_header *wanted,
                                 parity_report *report)
{
    parity_result r = item_of(base, "config");
    assay_model_config *there = malloc(sizeof *there);
    ASSAY_CHECK(there != NULL, ASSAY_OUT_OF_MEMORY, "%s: config.json", wanted->dir);
    if (!parity_config_is(wanted->dir, &wanted->spec->config, there)) {
        parity_result_fail(&r, "the checkpoint's config.json: %.500s", assay_error_message());
        assay_error_clear();
    }
    free(there);
    return parity_report_add(report, &r);
}

bool parity_config_is(const char *dir, const assay_model_config *here, assay_model_config *there)
{
    char path[ASSAY_PATH + 16];
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    assay_status st = assay_json_load(&root, path);
    if (st == ASSAY_OK)
        st = assay_config_from_json(root, "config.json", there);
    json_decref(root);
    const char *name = st == ASSAY_OK ? assay_config_difference(here, there) : NULL;
    if (name != NULL)
        st = ASSAY_ERROR(ASSAY_MISMATCH, "another model than the checkpoint's: %s differs",
                         assay_config_word(here, name));
    return st == ASSAY_OK;
}

assay_status parity_header_judge(const json_t *header, const parity_header *wanted, const parity_result *base,
                                 parity_report *report)
{
    json_t *model = NULL;
    const json_t *scheduler = json_object_get(header, "scheduler");
    ASSAY_TRY(claim_number(base, "step", wanted->step, json_object_get(header, "step"), report));
    ASSAY_TRY(claim_number(base, "scheduler.num_steps", wanted->step, json_object_get(scheduler, "num_steps"),
                           report));
    ASSAY_TRY(claim_rate(base, wanted, scheduler, report));
    ASSAY_TRY(claim_scale(base, header, report));
    ASSAY_TRY(
        claim_object(base, "random", random_of(wanted->options), json_object_get(header, "random"), report));
    ASSAY_TRY(claim_object(base, "content", content_of(wanted), json_object_get(header, "content"), report));
    ASSAY_TRY(assay_config_to_json(&wanted->spec->config, &model));
    ASSAY_TRY(claim_object(base, "model", model, json_object_get(header, "model"), report));
    ASSAY_TRY(claim_config(base, wanted, report));
    ASSAY_TRY(claim_word(base, "precision", assay_precision_name(wanted->options->precision),
                         json_string_value(json_object_get(header, "precision")), report));
    ASSAY_TRY(claim_training(base, wanted, header, report));
    ASSAY_TRY(claim_data(base, wanted, header, report));
    return claim_word(base, "layout", wanted->layout, json_string_value(json_object_get(header, "layout")),
                      report);
}

assay_status parity_check_header(const char *dir, const char *claim, const parity_header *wanted,
                                 parity_report *report)
{
    char layout[ASSAY_LAYOUT_TEXT];
    assay_parallel_config p;
    assay_checkpoint *c = NULL;
    parity_result base;
    parity_header asked = *wanted;
    parity_result_init(&base);
    base.check = PARITY_CHECK_CHECKPOINT;
    base.phase = ASSAY_PHASE_CHECKPOINT;
    snprintf(base.op, sizeof base.op, "%s", claim);
    ASSAY_TRY(assay_layout_parse(wanted->layout, &p));
    assay_layout_format(&p, layout); /* as a header spells it */
    asked.layout = layout;
    asked.dir = dir;
    ASSAY_TRY(assay_checkpoint_open(&c, dir));
    const assay_status st = parity_header_judge(assay_checkpoint_header(c), &asked, &base, report);
    assay_checkpoint_close(c);
    return st;
}
