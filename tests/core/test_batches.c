/* Batch files: what is accepted, what is named when refused, and how data-parallel ranks share a step. */
#include "core/files/batches.h"

#include "core/files/tensorwriter.h"
#include "tests/support/core_files.h"

static char folder[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
    test_path(path, folder, "batch.safetensors");
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(batches, .init = setup, .fini = teardown);

enum { VOCAB = 10 };

static void write_batch(const int64_t *shape, int ndim, const int64_t *ids, const int64_t *labels)
{
    assay_tensorwriter *w = NULL;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_copy(w, "input_ids", ASSAY_I64, shape, ndim, ids));
    TEST_OK(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, ndim, labels));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

static const int64_t PLAIN[] = {2, 3}, TRAINING[] = {2, 2, 1, 3};

Test(batches, one_forward_and_backward)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 9}, labels[] = {0, 1, -100, 3, -100, 9};
    assay_batches b;
    write_batch(PLAIN, 2, ids, labels);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    cr_expect_not(b.training);
    cr_expect_eq(b.steps, 1);
    cr_expect_eq(b.microbatches, 1);
    cr_expect_eq(b.b, 2);
    cr_expect_eq(b.s, 3);
    cr_expect_eq(memcmp(assay_batches_ids(&b, 0, 0), ids, sizeof ids), 0);
    cr_expect_eq(memcmp(assay_batches_labels(&b, 0, 0), labels, sizeof labels), 0);
    assay_batches_close(&b);
    cr_expect_null(b.input_ids);
}

/* The model shifts: the label at position 0 is never a target. */
Test(batches, position_0_is_no_target)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5};
    const int64_t only_first[] = {0, -100, -100, 3, -100, -100}, one[] = {0, -100, -100, -100, -100, 5};
    assay_batches b;
    write_batch(PLAIN, 2, ids, only_first);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT, "all labels are masked");
    write_batch(PLAIN, 2, ids, one);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    assay_batches_close(&b);
}

Test(batches, steps_and_microbatches)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1};
    const int64_t labels[] = {0, -100, -100, 3, 4, 5, 6, 7, -100, -100, 0, 1};
    assay_batches b;
    write_batch(TRAINING, 4, ids, labels);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    cr_expect(b.training);
    cr_expect_eq(b.steps, 2);
    cr_expect_eq(b.microbatches, 2);
    cr_expect_eq(assay_batches_ids(&b, 1, 0)[0], 6);
    cr_expect_eq(assay_batches_labels(&b, 1, 1)[2], 1);
    assay_batches_close(&b);
}

Test(batches, tokens_outside_the_vocabulary_are_named)
{
    const int64_t good[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1};
    int64_t ids[12], labels[12];
    assay_batches b;
    memcpy(ids, good, sizeof good);
    memcpy(labels, good, sizeof good);
    ids[4] = VOCAB;
    write_batch(TRAINING, 4, ids, labels);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT,
               "input_ids[0,1,0,1] is 10, outside the vocabulary 0...9");
    ids[4] = -100;
    write_batch(PLAIN, 2, ids, labels);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT,
               "input_ids[1,1] is -100, outside the vocabulary 0...9");
    ids[4] = 4;
    labels[11] = -1;
    write_batch(TRAINING, 4, ids, labels);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT,
               "labels[1,1,0,2] is -1, outside the vocabulary 0...9 and not -100");
}

Test(batches, all_labels_masked_is_an_error)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1};
    /* step 1: what is left stands at position 0 */
    const int64_t labels[] = {0, 1, 2, 3, 4, 5, 6, -100, -100, 9, -100, -100};
    const int64_t none[] = {-100, -100, -100, 3, -100, -100};
    assay_batches b;
    write_batch(TRAINING, 4, ids, labels);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT,
               "step 1: all labels are masked: the loss is undefined");
    write_batch(PLAIN, 2, ids, none);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT,
               "batch.safetensors: all labels are masked: the loss is undefined");
}

Test(batches, shapes_are_checked)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5}, flat[] = {6}, empty[] = {0, 3}, three[] = {1, 2, 3};
    assay_batches b;
    write_batch(flat, 1, ids, ids);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_MISMATCH,
               "tensor 'input_ids' has 1 dimensions, expected [b,s] or [steps,microbatches,b,s]");
    write_batch(three, 3, ids, ids);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_MISMATCH, "has 3 dimensions");
    write_batch(empty, 2, ids, ids);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_MISMATCH, "dimension 0 is 0");
    TEST_FAILS(assay_batches_open(&b, path, 0), ASSAY_INVALID_ARGUMENT, "the vocabulary has 0 entries");
}

Test(batches, both_tensors_are_needed_and_no_others)
{
    assay_batches b;
    static const char ids[] = "\"input_ids\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[0,16]}";
    char header[512];
    snprintf(header, sizeof header, "{%s}", ids);
    test_write_safetensors(path, header, 16);
    TEST_FAILS(assay_batches_open(&b, path, INT64_MAX), ASSAY_NOT_FOUND, "there is no tensor 'labels'");
    snprintf(header, sizeof header,
             "{%s,\"labels\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[16,24]}}", ids);
    test_write_safetensors(path, header, 24);
    TEST_FAILS(assay_batches_open(&b, path, INT64_MAX), ASSAY_MISMATCH,
               "tensor 'labels': expected dtype I64, found I32");
    snprintf(header, sizeof header,
             "{%s,\"labels\":{\"dtype\":\"I64\",\"shape\":[2,1],\"data_offsets\":[16,32]}}", ids);
    test_write_safetensors(path, header, 32);
    TEST_FAILS(assay_batches_open(&b, path, INT64_MAX), ASSAY_MISMATCH, "expected shape [1,2], found [2,1]");
    snprintf(header, sizeof header,
             "{%s,\"labels\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[16,32]},"
             "\"attention_mask\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[32,48]}}",
             ids);
    test_write_safetensors(path, header, 48);
    TEST_FAILS(assay_batches_open(&b, path, INT64_MAX), ASSAY_UNSUPPORTED, "tensor 'attention_mask'");
}

/* --- sharing among data-parallel ranks ---------------------------------------------------------------------
 */

Test(batch_plan, whole_microbatches_when_they_divide)
{
    assay_batch_share p;
    for (int rank = 0; rank < 2; rank++) {
        TEST_OK(assay_batch_share_make(false, 4, 3, 2, rank, &p));
        cr_expect_not(p.rows_split);
        cr_expect_eq(p.first_microbatch, 2 * rank);
        cr_expect_eq(p.n_microbatches, 2);
        cr_expect_eq(p.first_row, 0);
        cr_expect_eq(p.n_rows, 3);
    }
}

Test(batch_plan, rows_otherwise)
{
    assay_batch_share p;
    TEST_OK(assay_batch_share_make(false, 3, 4, 2, 1, &p));
    cr_expect(p.rows_split);
    cr_expect_eq(p.first_microbatch, 0);
    cr_expect_eq(p.n_microbatches, 3);
    cr_expect_eq(p.first_row, 2);
    cr_expect_eq(p.n_rows, 2);
}

Test(batch_plan, refuses_what_does_not_divide)
{
    assay_batch_share p;
    TEST_OK(assay_batch_share_make(true, 4, 2, 2, 1, &p));
    cr_expect(p.rows_split && p.n_microbatches == 4 && p.first_row == 1 && p.n_rows == 1);
    TEST_FAILS(assay_batch_share_make(true, 4, 3, 2, 0, &p), ASSAY_INVALID_ARGUMENT, "global_aux_loss");
    TEST_FAILS(assay_batch_share_make(false, 3, 5, 2, 0, &p), ASSAY_INVALID_ARGUMENT,
               "data_parallel_size 2 divides neither the 3 microbatches of a step nor the 5 rows");
    TEST_FAILS(assay_batch_share_make(false, 2, 2, 2, 2, &p), ASSAY_INVALID_ARGUMENT,
               "data-parallel rank 2 of 2");
    TEST_FAILS(assay_batch_share_make(false, 0, 2, 1, 0, &p), ASSAY_INVALID_ARGUMENT, "0 microbatches");
}

/* --- Megatron-LM's form ------------------------------------------------------------------------------------- */

static void write_megatron(const int64_t *ids, const int64_t *labels, assay_dtype mask_dtype,
                           const void *mask, const int64_t *positions)
{
    assay_tensorwriter *w = NULL;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_copy(w, "tokens", ASSAY_I64, PLAIN, 2, ids));
    TEST_OK(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, PLAIN, 2, labels));
    if (mask != NULL)
        TEST_OK(assay_tensorwriter_add_copy(w, "loss_mask", mask_dtype, PLAIN, 2, mask));
    if (positions != NULL)
        TEST_OK(assay_tensorwriter_add_copy(w, "position_ids", ASSAY_I64, PLAIN, 2, positions));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

/* Labels are shifted already; what the mask leaves out has no label; the first position may be the only target. */
Test(batches, megatron_form)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5}, labels[] = {1, 2, 3, 4, 5, 6}, positions[] = {0, 1, 2, 0, 1, 2};
    const float mask[] = {1, 0, 0, 0, 0, 0};
    const double other[] = {0, 0, 1, 1, 0, 1};
    const int64_t whole[] = {1, 1, 1, 1, 1, 1}, expected[] = {1, -100, -100, -100, -100, -100};
    assay_batches b;
    write_megatron(ids, labels, ASSAY_F32, mask, positions);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    cr_expect(b.shifted);
    cr_expect_eq(memcmp(assay_batches_labels(&b, 0, 0), expected, sizeof expected), 0);
    assay_batches_close(&b);
    write_megatron(ids, labels, ASSAY_F64, other, NULL);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    cr_expect(b.labels[1] == -100 && b.labels[2] == 3 && b.labels[3] == 4 && b.labels[5] == 6);
    assay_batches_close(&b);
    write_megatron(ids, labels, ASSAY_I64, whole, NULL);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    cr_expect_eq(memcmp(b.labels, labels, sizeof labels), 0);
    assay_batches_close(&b);
}

Test(batches, megatron_form_is_held_to_what_is_computed)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5}, labels[] = {1, 2, 3, 4, 5, 6};
    const float half[] = {1, 1, 1, 1, 0.5, 1}, none[] = {0, 0, 0, 0, 0, 0};
    const int32_t wrong[] = {1, 1, 1, 1, 1, 1};
    assay_batches b;
    write_megatron(ids, labels, ASSAY_F32, half, NULL);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_UNSUPPORTED, "loss_mask[1,1]: expected 0 or 1");
    write_megatron(ids, labels, ASSAY_F32, none, NULL);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_INVALID_ARGUMENT, "all labels are masked");
    write_megatron(ids, labels, ASSAY_I32, wrong, NULL);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), ASSAY_UNSUPPORTED, "expected BOOL, I64, F32 or F64");
}
