/* `assay run --model DIR [--batch FILE]`: a case made of a user's own folder. */
#include "core/files/batches.h"
#include "core/files/tensorwriter.h"
#include "core/run/inputs.h"
#include "parity/run/cases.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWN_STEPS = 2, DRAWN_MICROBATCHES = 2, DRAWN_LENGTH = 32 };

/* Every axis alone and in products; what the model or the batch cannot be cut into is left out by name. */
static const char *const layouts[] = {"1",   "dp2",        "tp2",         "tp2,sp",
                                      "pp2", "dp2,zero1",  "tp2,sp,dp2",  "tp2,pp2",
                                      "ep2", "tp2,sp,ep2", "pp2,ep2,dp2", NULL};

/* The folder's last name in the letters of a case's name. */
static void name_of(const char *dir, char *out, size_t capacity)
{
    size_t end = strlen(dir), start;
    while (end > 1 && dir[end - 1] == '/')
        end--;
    for (start = end; start > 0 && dir[start - 1] != '/';)
        start--;
    snprintf(out, capacity, "%.*s", (int)(end - start), dir + start);
    for (char *c = out; *c != '\0'; c++) {
        const int low = tolower((unsigned char)*c);
        const bool fits_a_name = (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9') || low == '-';
        *c = '_';
        if (fits_a_name)
            *c = (char)low;
    }
    if (out[0] == '\0')
        snprintf(out, capacity, "model");
}

static void take_layouts(const assay_model_config *config, parity_case *c, FILE *log)
{
    for (int i = 0; layouts[i] != NULL; i++) {
        if (strstr(layouts[i], "ep") != NULL && config->num_moe_experts == 0)
            continue;
        if (assay_inputs_layout(layouts[i], &c->options, config, c->microbatches, c->micro_batch_size) ==
            ASSAY_OK) {
            snprintf(c->layouts[c->n_layouts++], ASSAY_LAYOUT_TEXT, "%s", layouts[i]);
            continue;
        }
        fprintf(log, "layout %s is left out: %s\n", layouts[i], assay_error_message());
        assay_error_clear();
    }
}

/* Sizes of the data: those of the batch file, or of the tokens that will be drawn. */
static assay_status take_data(const assay_model_config *config, const char *batch, parity_case *c)
{
    assay_batches b = {0};
    c->steps = DRAWN_STEPS;
    c->microbatches = DRAWN_MICROBATCHES;
    c->micro_batch_size = 2;
    c->seq_length =
        config->max_position_embeddings < DRAWN_LENGTH ? config->max_position_embeddings : DRAWN_LENGTH;
    c->mask_probability = 0.1;
    c->masked_microbatch = -1;
    if (batch[0] == '\0')
        return ASSAY_OK;
    ASSAY_CHECK(strlen(batch) < sizeof c->batch_file, ASSAY_LIMIT, "--batch: path too long");
    snprintf(c->batch_file, sizeof c->batch_file, "%s", batch);
    ASSAY_TRY(assay_batches_open(&b, batch, config->vocab_size));
    c->steps = b.steps;
    c->microbatches = b.microbatches;
    c->micro_batch_size = b.b;
    c->seq_length = b.s;
    assay_batches_close(&b);
    return ASSAY_OK;
}

assay_status parity_case_from_folder(const char *model, const char *batch, FILE *log, parity_case *out)
{
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    memset(out, 0, sizeof *out);
    assay_train_options_default(&out->options);
    ASSAY_CHECK_GOTO(config != NULL, ASSAY_OUT_OF_MEMORY, st, done, "model configuration");
    ASSAY_CHECK_GOTO(strlen(model) < ASSAY_PATH, ASSAY_LIMIT, st, done, "--model: path too long");
    snprintf(out->file, sizeof out->file, "--model %.900s", model);
    out->is_folder = true;
    snprintf(out->model_dir, sizeof out->model_dir, "%s", model);
    name_of(model, out->name, sizeof out->name);
    ASSAY_TRY_GOTO(assay_config_load(model, config), st, done);
    ASSAY_TRY_GOTO(take_data(config, batch, out), st, done);
    take_layouts(config, out, log);
    out->precisions[out->n_precisions++] = ASSAY_PRECISION_FP32;
    out->precisions[out->n_precisions++] = ASSAY_PRECISION_BF16;
    snprintf(out->variants[out->n_variants++], PARITY_VARIANT_TEXT, "fastest");
    snprintf(out->variants[out->n_variants++], PARITY_VARIANT_TEXT, "k0");
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        out->checks[k] = true;
done:
    free(config);
    return st;
}

assay_status parity_case_copy_batches(const parity_case *c, int64_t vocab, const char *path)
{
    const int64_t shape[4] = {c->steps, c->microbatches, c->micro_batch_size, c->seq_length};
    assay_batches b = {0};
    assay_tensorwriter *w = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_batches_open(&b, c->batch_file, vocab));
    ASSAY_CHECK_GOTO(c->steps <= b.steps && c->microbatches == b.microbatches && c->micro_batch_size == b.b &&
                         c->seq_length == b.s,
                     ASSAY_MISMATCH, st, done,
                     "%s: expected [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "], found [%" PRId64
                     ",%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                     c->batch_file, shape[0], shape[1], shape[2], shape[3], b.steps, b.microbatches, b.b,
                     b.s);
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w, path), st, done);
    ASSAY_TRY_GOTO(
        assay_tensorwriter_add_ref(w, b.shifted ? "tokens" : "input_ids", ASSAY_I64, shape, 4, b.input_ids),
        st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "labels", ASSAY_I64, shape, 4, b.labels), st, done);
    if (b.position_ids != NULL)
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "position_ids", ASSAY_I64, shape, 4, b.position_ids), st,
                       done);
    st = assay_tensorwriter_finish(w);
done:
    assay_tensorwriter_destroy(w);
    assay_batches_close(&b);
    return st;
}
