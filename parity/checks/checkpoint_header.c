/* Header of a checkpoint: steps, precision, recipe, data and layout are those of the run that wrote it.  The next run goes on
 * from there, whatever the tensors are. */
#include "core/files/checkpoint.h"
#include "core/run/metrics.h"
#include "core/run/training.h"
#include "parity/judge/judge.h"

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

assay_status parity_header_judge(const json_t *header, const parity_header *wanted, const parity_result *base,
                                 parity_report *report)
{
    const json_t *scheduler = json_object_get(header, "scheduler");
    ASSAY_TRY(claim_number(base, "step", wanted->step, json_object_get(header, "step"), report));
    ASSAY_TRY(claim_number(base, "scheduler.num_steps", wanted->step, json_object_get(scheduler, "num_steps"),
                           report));
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
    ASSAY_TRY(assay_checkpoint_open(&c, dir));
    const assay_status st = parity_header_judge(assay_checkpoint_header(c), &asked, &base, report);
    assay_checkpoint_close(c);
    return st;
}
