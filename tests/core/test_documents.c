/* Documents packed in rows: the forms of a batch file, what is refused and how it is named, made-up documents. */
#include "core/files/documents.h"

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

TestSuite(documents, .init = setup, .fini = teardown);

enum { VOCAB = 10, ROWS = 2, S = 6, TOKENS = ROWS * S, MOST = 8 };

/* A batch [2,6]; what is NULL is not written.  cu, padded: `n` numbers each. */
typedef struct form {
    bool megatron;
    const int64_t *labels, *positions;
    assay_dtype dtype;
    int64_t n;
    const void *cu, *padded;
} form;

static void write_form(const form *f)
{
    static const int64_t shape[] = {ROWS, S}, ids[TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1};
    assay_tensorwriter *w = NULL;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_copy(w, f->megatron ? "tokens" : "input_ids", ASSAY_I64, shape, 2, ids));
    TEST_OK(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, 2, f->labels));
    if (f->positions != NULL)
        TEST_OK(assay_tensorwriter_add_copy(w, "position_ids", ASSAY_I64, shape, 2, f->positions));
    if (f->cu != NULL)
        TEST_OK(assay_tensorwriter_add_copy(w, "cu_seqlens", f->dtype, &f->n, 1, f->cu));
    if (f->padded != NULL)
        TEST_OK(assay_tensorwriter_add_copy(w, "cu_seqlens_padded", f->dtype, &f->n, 1, f->padded));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

static void expect_positions(const form *f, const int64_t *expected)
{
    assay_batches b;
    write_form(f);
    TEST_OK(assay_batches_open(&b, path, VOCAB));
    if (expected == NULL) {
        cr_expect_null(b.position_ids);
        cr_expect_null(assay_batches_positions(&b, 0, 0));
    } else {
        cr_assert_not_null(b.position_ids);
        for (int i = 0; i < TOKENS; i++)
            cr_expect_eq(assay_batches_positions(&b, 0, 0)[i], expected[i], "%d", i);
    }
    assay_batches_close(&b);
}

static void expect_refused(const form *f, assay_status st, const char *message)
{
    assay_batches b;
    write_form(f);
    TEST_FAILS(assay_batches_open(&b, path, VOCAB), st, message);
}

/* No label at the first token of a document and at padding; a document of one token, and two tokens of padding. */
static const int64_t PACKED[TOKENS] = {0, 1, 2, 0, 0, 1, 0, 1, 0, 0, 0, 1},
                     HF_LABELS[TOKENS] = {0, 1, 2, -100, -100, 5, 6, 7, -100, -100, -100, 1},
                     SHIFTED[TOKENS] = {1, 2, -100, 3, 5, -100, 7, -100, -100, -100, 1, -100},
                     PLAIN[TOKENS] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};

Test(documents, hugging_face_form)
{
    expect_positions(&(form){.labels = HF_LABELS, .positions = PACKED}, PACKED);
    expect_positions(&(form){.labels = PLAIN, .positions = PLAIN}, NULL);
}

Test(documents, megatron_forms_agree)
{
    /* documents of 3, 1, 2 | 2 and two of padding, 2 */
    const int64_t cu[] = {0, 3, 4, 6, 8, 10}, padded[] = {0, 3, 4, 6, 10, 12},
                  tail[] = {0, 3, 4, 6, 8, 10, 10, 10}, padded_tail[] = {0, 3, 4, 6, 10, 12, 12, 12},
                  alone[] = {0, 3, 4, 6, 8, 9, 10, 12},
                  counting[TOKENS] = {0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 0, 1};
    const int32_t narrow[] = {0, 3, 4, 6, 8, 10}, narrow_padded[] = {0, 3, 4, 6, 10, 12};
    const form f = {
        .megatron = true, .labels = SHIFTED, .dtype = ASSAY_I64, .n = 6, .cu = cu, .padded = padded};
    form other = f;
    expect_positions(&f, PACKED);
    other.positions = PACKED;
    expect_positions(&other, PACKED);
    other.positions = counting; /* through the padding, as Megatron-LM counts */
    expect_positions(&other, PACKED);
    other = (form){.megatron = true, .labels = SHIFTED, .positions = PACKED};
    expect_positions(&other, PACKED);
    other = f;
    other.dtype = ASSAY_I32;
    other.cu = narrow;
    other.padded = narrow_padded;
    expect_positions(&other, PACKED);
    other = f;
    other.n = 8;
    other.cu = tail;
    other.padded = padded_tail;
    expect_positions(&other, PACKED);
    other.cu = alone; /* padding as documents of one token */
    other.padded = NULL;
    expect_positions(&other, PACKED);
}

Test(documents, rows_of_one_document_are_not_packed)
{
    const int64_t cu[] = {0, 6, 12};
    expect_positions(
        &(form){.megatron = true, .labels = PLAIN, .positions = PLAIN, .dtype = ASSAY_I64, .n = 3, .cu = cu},
        NULL);
}

Test(documents, positions_that_make_no_documents_are_refused)
{
    int64_t p[TOKENS];
    const form f = {.labels = HF_LABELS, .positions = p};
    memcpy(p, PACKED, sizeof p);
    p[0] = 1;
    expect_refused(&f, ASSAY_UNSUPPORTED,
                   "position_ids[0,0]: expected 0, found 1: a row begins with a document");
    memcpy(p, PACKED, sizeof p);
    p[6] = 2;
    expect_refused(&f, ASSAY_UNSUPPORTED, "position_ids[1,0]: expected 0, found 2");
    memcpy(p, PACKED, sizeof p);
    p[5] = 2;
    expect_refused(&f, ASSAY_UNSUPPORTED,
                   "position_ids[0,5]: expected 1, or 0 where a document begins, found 2");
    p[5] = -1;
    expect_refused(&f, ASSAY_UNSUPPORTED, "found -1");
}

Test(documents, a_target_across_documents_is_refused)
{
    int64_t labels[TOKENS];
    memcpy(labels, HF_LABELS, sizeof labels);
    labels[3] = 3;
    expect_refused(&(form){.labels = labels, .positions = PACKED}, ASSAY_INVALID_ARGUMENT,
                   "labels[0,3]: expected -100 at the first token of a document, found 3");
    /* Megatron-LM's labels are what the last token of a document shall predict */
    memcpy(labels, SHIFTED, sizeof labels);
    labels[2] = 9;
    expect_positions(&(form){.megatron = true, .labels = labels, .positions = PACKED}, PACKED);
}

Test(documents, lengths_that_contradict_are_refused)
{
    int64_t cu[] = {0, 3, 4, 6, 8, 10}, padded[] = {0, 3, 4, 6, 10, 12}, positions[TOKENS], labels[TOKENS];
    form f = {.megatron = true, .labels = SHIFTED, .dtype = ASSAY_I64, .n = 6, .cu = cu, .padded = padded};
    cu[2] = 3;
    expect_refused(&f, ASSAY_INVALID_ARGUMENT,
                   "cu_seqlens[2] of microbatch 0: expected more than 3, found 3");
    cu[2] = 5;
    expect_refused(
        &f, ASSAY_INVALID_ARGUMENT,
        "document 1 of microbatch 0 has 2 tokens in cu_seqlens and room for 1 in cu_seqlens_padded");
    cu[2] = 4;
    cu[0] = 1;
    expect_refused(&f, ASSAY_INVALID_ARGUMENT, "cu_seqlens[0] of microbatch 0: expected 0, found 1");
    cu[0] = 0;
    padded[5] = 11;
    expect_refused(&f, ASSAY_INVALID_ARGUMENT,
                   "cu_seqlens_padded of microbatch 0: expected to end at its 12 tokens, found 11");
    padded[5] = 12;
    padded[3] = 7;
    expect_refused(
        &f, ASSAY_INVALID_ARGUMENT,
        "cu_seqlens_padded: document 2 of microbatch 0 is tokens 4 to 6, across the end of a row of 6");
    padded[3] = 6;
    memcpy(labels, SHIFTED, sizeof labels);
    labels[8] = 1;
    f.labels = labels;
    expect_refused(&f, ASSAY_INVALID_ARGUMENT,
                   "labels[1,2]: expected -100 or a loss_mask of 0 at a token of padding, found 1");
    f.labels = SHIFTED;
    memcpy(positions, PACKED, sizeof positions);
    positions[3] = 3;
    f.positions = positions;
    expect_refused(&f, ASSAY_MISMATCH, "position_ids[0,3]: expected 0 as cu_seqlens has it, found 3");
    f.positions = NULL;
    f.padded = NULL;
    expect_refused(&f, ASSAY_INVALID_ARGUMENT,
                   "cu_seqlens of microbatch 0: expected to end at its 12 tokens, found 10");
    f.cu = NULL;
    f.padded = padded;
    expect_refused(&f, ASSAY_MISMATCH, "cu_seqlens_padded without cu_seqlens");
    f.cu = cu;
    f.padded = NULL;
    f.dtype = ASSAY_F64;
    expect_refused(&f, ASSAY_UNSUPPORTED, "tensor 'cu_seqlens': expected I32 or I64, found F64");
    f = (form){.labels = HF_LABELS, .dtype = ASSAY_I64, .n = 6, .cu = cu};
    expect_refused(&f, ASSAY_UNSUPPORTED, "tensor 'cu_seqlens' is not supported in a batch file");
}

/* Every document starts at 0 and goes on by one; the row number alone decides, and all kinds of lengths occur. */
Test(documents, drawn_documents)
{
    enum { LONG = 40, MANY = 200 };
    int64_t one = 0, most = 0, padding = 0, p[LONG], again[LONG];
    for (int64_t multiple = 1; multiple <= 4; multiple += 3)
        for (int64_t row = 0; row < MANY; row++) {
            assay_documents_draw(5, row, LONG, multiple, p);
            assay_documents_draw(5, row, LONG, multiple, again);
            cr_assert_eq(memcmp(p, again, sizeof p), 0);
            cr_assert_eq(p[0], 0);
            for (int64_t i = 1; i < LONG; i++) {
                cr_assert(p[i] == 0 || p[i] == p[i - 1] + 1);
                one += multiple == 1 && p[i] == 0 && p[i - 1] == 0;
                padding += multiple == 4 && p[i] == 0 && i % 4 != 0;
                most += p[i] > LONG / 2;
            }
        }
    cr_expect(one > MANY / 4 && most > MANY && padding > MANY, "%d one-token, %d long, %d padding", (int)one,
              (int)most, (int)padding);
    assay_documents_draw(5, 0, LONG, 1, p);
    assay_documents_draw(6, 0, LONG, 1, again);
    cr_expect_neq(memcmp(p, again, sizeof p), 0);
}
