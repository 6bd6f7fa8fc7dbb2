/* The batch of a case: the whole vocabulary, both sides of every boundary, the same on every machine. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/files/tokenizer.h"
#include "parity/run/cases.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 4099 };

static char root[64], batch[128];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-data-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(batch, sizeof batch, "%s/batch.safetensors", root);
}

static void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

TestSuite(case_data, .init = make_root, .fini = drop_root);

static parity_case *case_of(bool text)
{
    parity_case *c = calloc(1, sizeof *c);
    assay_train_options_default(&c->options);
    c->steps = 2;
    c->microbatches = 3;
    c->micro_batch_size = 2;
    c->seq_length = 17;
    c->mask_probability = 0.8;
    c->masked_microbatch = -1;
    c->n_layouts = 2;
    snprintf(c->layouts[0], sizeof c->layouts[0], "1");
    snprintf(c->layouts[1], sizeof c->layouts[1], "tp7");
    c->n_data_paths = text;
    return c;
}

static assay_dataset *text(void)
{
    const char *const path = ASSAY_SOURCE_DIR "/golden/text";
    assay_dataset *d = NULL;
    cr_assert_eq(assay_dataset_open(&d, &path, 1), ASSAY_OK, "%s", assay_error_message());
    return d;
}

/* Boundary ids that a step lacks, as input or as a label that counts. */
static int lacking(const parity_case *c, const assay_batches *b, int64_t step)
{
    int64_t *ids = NULL, n = 0;
    int lacks = 0;
    cr_assert_eq(parity_case_boundary_ids(c, VOCAB, &ids, &n), ASSAY_OK);
    for (int64_t k = 0; k < n; k++) {
        bool input = false, label = false;
        for (int64_t m = 0; m < b->microbatches; m++)
            for (int64_t i = 0; i < b->b * b->s; i++) {
                input = input || assay_batches_ids(b, step, m)[i] == ids[k];
                label = label || (i % b->s > 0 && assay_batches_labels(b, step, m)[i] == ids[k]);
            }
        lacks += !input + !label;
    }
    free(ids);
    return lacks;
}

Test(case_data, every_step_holds_both_sides_of_every_boundary)
{
    for (int with_text = 0; with_text < 2; with_text++) {
        parity_case *c = case_of(with_text);
        assay_dataset *d = with_text ? text() : NULL;
        assay_batches b;
        cr_assert_eq(parity_case_write_batches(c, d, VOCAB, batch), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_batches_open(&b, batch, VOCAB), ASSAY_OK, "%s", assay_error_message());
        for (int64_t step = 0; step < b.steps; step++)
            cr_expect_eq(lacking(c, &b, step), 0, "step %d", (int)step);
        assay_batches_close(&b);
        assay_dataset_close(d);
        free(c);
    }
}

/* The microbatch without a target has none, and what must be a label is in the others. */
Test(case_data, a_microbatch_without_any_target)
{
    for (int with_text = 0; with_text < 2; with_text++) {
        parity_case *c = case_of(with_text);
        assay_dataset *d = with_text ? text() : NULL;
        assay_batches b;
        c->masked_microbatch = 1;
        cr_assert_eq(parity_case_write_batches(c, d, VOCAB, batch), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_batches_open(&b, batch, VOCAB), ASSAY_OK, "%s", assay_error_message());
        for (int64_t step = 0; step < b.steps; step++) {
            int64_t counts[3] = {0};
            for (int64_t m = 0; m < b.microbatches; m++)
                for (int64_t i = 0; i < b.b * b.s; i++)
                    counts[m] += assay_batches_labels(&b, step, m)[i] != ASSAY_IGNORE_INDEX;
            cr_expect(counts[0] > 0 && counts[1] == 0 && counts[2] > 0, "step %d: %d, %d, %d targets",
                      (int)step, (int)counts[0], (int)counts[1], (int)counts[2]);
            cr_expect_eq(lacking(c, &b, step), 0, "step %d", (int)step);
        }
        assay_batches_close(&b);
        assay_dataset_close(d);
        free(c);
    }
}

/* Megatron-LM's form says the same of every token: its labels are the targets where they stand, its mask which of them count. */
Test(case_data, in_megatrons_form_the_same_tokens_and_labels)
{
    parity_case *c = case_of(false);
    assay_batches b[2];
    for (int shifted = 0; shifted < 2; shifted++) {
        c->shifted = shifted;
        cr_assert_eq(parity_case_write_batches(c, NULL, VOCAB, batch), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_batches_open(&b[shifted], batch, VOCAB), ASSAY_OK, "%s", assay_error_message());
        cr_expect_eq(b[shifted].shifted, shifted);
    }
    const size_t bytes = (size_t)(b[0].steps * b[0].microbatches * b[0].b * b[0].s) * sizeof(int64_t);
    cr_expect_arr_eq(b[0].input_ids, b[1].input_ids, bytes);
    cr_expect_arr_eq(b[0].labels, b[1].labels, bytes);
    for (int shifted = 0; shifted < 2; shifted++)
        assay_batches_close(&b[shifted]);
    free(c);
}

Test(case_data, text_alone_lacks_them)
{
    parity_case *c = case_of(true);
    assay_dataset *d = text();
    assay_batches b;
    cr_assert_eq(assay_dataset_write_batches(d, batch, 1, 2, 3, 2, 17, 0.8, false), ASSAY_OK);
    cr_assert_eq(assay_batches_open(&b, batch, VOCAB), ASSAY_OK);
    cr_expect_gt(lacking(c, &b, 0), 10);
    assay_batches_close(&b);
    assay_dataset_close(d);
    free(c);
}

Test(case_data, tokens_come_from_the_whole_vocabulary_and_from_the_text)
{
    parity_case *c = case_of(true);
    assay_dataset *d = text();
    assay_batches b;
    c->steps = 40;
    cr_assert_eq(parity_case_write_batches(c, d, VOCAB, batch), ASSAY_OK);
    cr_assert_eq(assay_batches_open(&b, batch, VOCAB), ASSAY_OK);
    const int64_t n = b.steps * b.microbatches * b.b * b.s;
    int64_t high = 0, low = 0, masked = 0;
    for (int64_t i = 0; i < n; i++) {
        high += b.input_ids[i] >= VOCAB / 2;
        low += b.input_ids[i] < ASSAY_BYTE_VOCAB;
        masked += b.labels[i] == ASSAY_IGNORE_INDEX;
        cr_assert(b.labels[i] == b.input_ids[i] || b.labels[i] == ASSAY_IGNORE_INDEX);
    }
    cr_expect(high > n / 10 && low > n / 2, "%d high, %d low of %d", (int)high, (int)low, (int)n);
    cr_expect(masked > n / 2, "%d masked of %d", (int)masked, (int)n);
    assay_batches_close(&b);
    assay_dataset_close(d);
    free(c);
}

Test(case_data, a_step_with_too_few_labels_is_refused)
{
    parity_case *c = case_of(false);
    c->microbatches = c->micro_batch_size = 1;
    c->seq_length = 4;
    cr_expect_eq(parity_case_write_batches(c, NULL, VOCAB, batch), ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "a step has 3 labels, fewer than the"), "%s",
                       assay_error_message());
    cr_expect_neq(access(batch, F_OK), 0);
    free(c);
}
