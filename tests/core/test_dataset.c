/* Datasets: text files and folders, Megatron-LM indexed datasets, and the order of samples. */
#include "core/files/batches.h"
#include "core/files/dataset.h"
#include "core/files/tokenizer.h"

#include "tests/support/core_files.h"
#include <sys/stat.h>

static char folder[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(dataset, .init = setup, .fini = teardown);

static assay_status open_one(assay_dataset **d, const char *name)
{
    char one[TEST_PATH];
    const char *const paths[] = {test_path(one, folder, name)};
    return assay_dataset_open(d, paths, 1);
}

static void put(const char *name, const char *text)
{
    test_write_text(test_path(path, folder, name), text);
}

static void put_folder(const char *name)
{
    cr_assert_eq(mkdir(test_path(path, folder, name), 0700), 0);
}

/* The whole stream as one sample: with one window of full length there is nothing to shuffle. */
static void expect_stream(const assay_dataset *d, const int64_t *want, int64_t n)
{
    int64_t ids[64], labels[64];
    cr_assert_eq(assay_dataset_n_tokens(d), n);
    TEST_OK(assay_dataset_sample(d, 1, 0, n, 0.0, ids, labels));
    for (int64_t i = 0; i < n; i++) {
        cr_expect_eq(ids[i], want[i], "token %lld", (long long)i);
        cr_expect_eq(labels[i], want[i], "label %lld", (long long)i);
    }
}

Test(dataset, text_is_bytes_and_an_end_of_document)
{
    assay_dataset *d = NULL;
    const int64_t want[] = {'a', 0xff, ASSAY_BYTE_EOD};
    put("t.txt", "a\xff");
    TEST_OK(open_one(&d, "t.txt"));
    cr_expect_eq(assay_dataset_vocab(d), ASSAY_BYTE_VOCAB);
    expect_stream(d, want, 3);
    assay_dataset_close(d);
}

/* Sorted by path as bytes; hidden, linked, empty and binary files are passed over. */
Test(dataset, folder_gives_its_text_files_sorted)
{
    assay_dataset *d = NULL;
    char link[TEST_PATH];
    const int64_t want[] = {'B', ASSAY_BYTE_EOD, 'a', ASSAY_BYTE_EOD, 'x', ASSAY_BYTE_EOD};
    put_folder("f");
    put_folder("f/sub");
    put("f/a.txt", "a");
    put("f/B.txt", "B");
    put("f/sub/x.txt", "x");
    put("f/.hidden", "h");
    put("f/empty.txt", "");
    test_write(test_path(path, folder, "f/binary"), "q\0q", 3);
    cr_assert_eq(symlink("a.txt", test_path(link, folder, "f/link")), 0);
    TEST_OK(open_one(&d, "f"));
    expect_stream(d, want, 6);
    assay_dataset_close(d);
}

Test(dataset, several_paths_are_joined_in_their_order)
{
    assay_dataset *d = NULL;
    char a[TEST_PATH], b[TEST_PATH];
    const int64_t want[] = {'b', ASSAY_BYTE_EOD, 'a', ASSAY_BYTE_EOD};
    put("a", "a");
    put("b", "b");
    const char *const paths[] = {test_path(b, folder, "b"), test_path(a, folder, "a")};
    TEST_OK(assay_dataset_open(&d, paths, 2));
    expect_stream(d, want, 4);
    assay_dataset_close(d);
}

Test(dataset, empty_input_is_named)
{
    assay_dataset *d = NULL;
    put("empty.txt", "");
    TEST_FAILS(open_one(&d, "empty.txt"), ASSAY_INVALID_ARGUMENT, "empty.txt: the token file is empty");
    put_folder("none");
    TEST_FAILS(open_one(&d, "none"), ASSAY_INVALID_ARGUMENT, "none: no text in this folder (0 files");
    TEST_FAILS(assay_dataset_open(&d, NULL, 0), ASSAY_INVALID_ARGUMENT, "at least one path");
    cr_expect_null(d);
}

Test(dataset, what_is_not_there_or_not_text_is_named)
{
    assay_dataset *d = NULL;
    TEST_FAILS(open_one(&d, "missing"), ASSAY_NOT_FOUND, "neither a text file, a folder nor the prefix");
    test_write(test_path(path, folder, "binary"), "q\0q", 3);
    TEST_FAILS(open_one(&d, "binary"), ASSAY_FORMAT, "expected a text file, found a NUL byte");
}

/* --- order -------------------------------------------------------------------------------------------------
 */

/* Each window of an epoch comes exactly once, for numbers of windows around powers of two and others. */
Test(dataset, an_epoch_visits_every_window_once)
{
    for (int64_t n = 1; n <= 70; n++) {
        assay_dataset *d = NULL;
        char text[256];
        int64_t ids[3], labels[3];
        bool seen[256] = {false};
        /* 3n tokens with the end of document: windows of 3 without slack */
        for (int64_t i = 0; i < 3 * n - 1; i++)
            text[i] = (char)(1 + i);
        test_write(test_path(path, folder, "t"), text, (size_t)(3 * n - 1));
        TEST_OK(open_one(&d, "t"));
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                TEST_OK(assay_dataset_sample(d, 7, epoch * n + i, 3, 0.0, ids, labels));
                const int64_t window = (ids[0] - 1) / 3;
                cr_expect_eq((ids[0] - 1) % 3, 0);
                cr_assert(window >= 0 && window < n);
                cr_expect_not(seen[window], "n %lld: window %lld twice", (long long)n, (long long)window);
                seen[window] = true;
                cr_expect_eq(ids[1], ids[0] + 1);
            }
        }
        assay_dataset_close(d);
    }
}

static void first_tokens(const assay_dataset *d, uint64_t seed, int64_t first, int64_t n, int64_t *out)
{
    int64_t ids[2], labels[2];
    for (int64_t i = 0; i < n; i++) {
        TEST_OK(assay_dataset_sample(d, seed, first + i, 2, 0.0, ids, labels));
        out[i] = ids[0];
    }
}

Test(dataset, order_depends_on_seed_and_epoch_and_on_nothing_else)
{
    assay_dataset *d = NULL;
    char text[128];
    int64_t a[64], b[64];
    for (int i = 0; i < 127; i++)
        text[i] = (char)(1 + i);
    test_write(test_path(path, folder, "t"), text, 127); /* 128 tokens, 64 windows of 2 */
    TEST_OK(open_one(&d, "t"));
    first_tokens(d, 1, 0, 64, a);
    first_tokens(d, 1, 0, 64, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0, "the same call gave another order");
    first_tokens(d, 2, 0, 64, b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0, "another seed gave the same order");
    first_tokens(d, 1, 64, 64, b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0, "another epoch gave the same order");
    int in_place = 0;
    for (int i = 0; i < 64; i++)
        in_place += a[i] == 1 + 2 * i;
    cr_expect_lt(in_place, 16, "%d of 64 windows were not moved", in_place);
    assay_dataset_close(d);
}

/* A window never runs past the end, and the tokens behind the last whole window are seen in some epoch. */
Test(dataset, the_tail_is_not_lost)
{
    assay_dataset *d = NULL;
    int64_t ids[4], labels[4];
    bool seen_last = false;
    put("t", "abcdef"); /* 7 tokens: one window of 4 at offset 0...3 */
    TEST_OK(open_one(&d, "t"));
    for (int64_t i = 0; i < 64; i++) {
        TEST_OK(assay_dataset_sample(d, 3, i, 4, 0.0, ids, labels));
        seen_last = seen_last || ids[3] == ASSAY_BYTE_EOD;
    }
    cr_expect(seen_last);
    assay_dataset_close(d);
}

Test(dataset, masks_about_the_asked_share_but_never_the_last_label)
{
    assay_dataset *d = NULL;
    int64_t ids[8], labels[8];
    int64_t masked = 0, n = 0;
    put("t", "abcdefghijklmno");
    TEST_OK(open_one(&d, "t"));
    for (int64_t i = 0; i < 500; i++) {
        TEST_OK(assay_dataset_sample(d, 5, i, 8, 0.25, ids, labels));
        for (int k = 0; k < 7; k++) {
            cr_assert(labels[k] == ids[k] || labels[k] == ASSAY_IGNORE_INDEX);
            masked += labels[k] == ASSAY_IGNORE_INDEX;
            n++;
        }
        cr_expect_eq(labels[7], ids[7]);
    }
    /* 3500 draws, deviation 0.0073: the limits are four of them away. */
    cr_expect(masked * 100 > n * 22 && masked * 100 < n * 28, "%lld of %lld", (long long)masked,
              (long long)n);
    assay_dataset_close(d);
}

Test(dataset, sample_arguments_are_checked)
{
    assay_dataset *d = NULL;
    int64_t ids[8], labels[8];
    put("t", "abc");
    TEST_OK(open_one(&d, "t"));
    TEST_FAILS(assay_dataset_sample(d, 1, 0, 5, 0.0, ids, labels), ASSAY_INVALID_ARGUMENT,
               "the dataset has 4 tokens, fewer than seq_length 5");
    TEST_FAILS(assay_dataset_sample(d, 1, -1, 2, 0.0, ids, labels), ASSAY_INVALID_ARGUMENT, "sample -1");
    TEST_FAILS(assay_dataset_sample(d, 1, INT64_MAX, 2, 0.0, ids, labels), ASSAY_INVALID_ARGUMENT, "sample");
    TEST_FAILS(assay_dataset_sample(d, 1, 0, 2, 1.0, ids, labels), ASSAY_INVALID_ARGUMENT,
               "mask_probability is 1, expected 0 <= p < 1");
    assay_dataset_close(d);
}

Test(dataset, batch_file_holds_consecutive_samples)
{
    assay_dataset *d = NULL;
    assay_batches b;
    char out[TEST_PATH];
    int64_t ids[4], labels[4];
    put("t", "The quick brown fox jumps over the lazy dog.");
    TEST_OK(open_one(&d, "t"));
    TEST_OK(
        assay_dataset_write_batches(d, test_path(out, folder, "b.safetensors"), 9, 2, 3, 2, 4, 0.3, false));
    TEST_OK(assay_batches_open(&b, out, assay_dataset_vocab(d)));
    cr_expect_eq(b.steps, 2);
    cr_expect_eq(b.microbatches, 3);
    for (int64_t i = 0; i < 12; i++) {
        TEST_OK(assay_dataset_sample(d, 9, i, 4, 0.3, ids, labels));
        cr_expect_eq(memcmp(assay_batches_ids(&b, i / 6, i / 2 % 3) + i % 2 * 4, ids, sizeof ids), 0);
        cr_expect_eq(memcmp(assay_batches_labels(&b, i / 6, i / 2 % 3) + i % 2 * 4, labels, sizeof ids), 0);
    }
    assay_batches_close(&b);
    TEST_FAILS(assay_dataset_write_batches(d, out, 9, 0, 1, 1, 4, 0.0, false), ASSAY_INVALID_ARGUMENT,
               "[0,1,1,4]: expected at least 1 step");
    TEST_FAILS(assay_dataset_write_batches(d, out, 9, INT64_MAX, 2, 1, 4, 0.0, false), ASSAY_INVALID_ARGUMENT,
               "overflows 64 bits");
    TEST_FAILS(assay_dataset_write_batches(d, out, 9, 1, 1, 1, 46, 0.0, false), ASSAY_INVALID_ARGUMENT,
               "the dataset has 45 tokens, fewer than seq_length 46");
    assay_dataset_close(d);
}

/* What --pack writes is read again: of documents of one byte to four, each first token but a row's counts for nobody. */
Test(dataset, packed_rows_are_batches)
{
    assay_dataset *d = NULL;
    assay_batches b;
    char out[TEST_PATH], name[16], text[8] = "";
    put_folder("many");
    for (int i = 0; i < 12; i++) {
        snprintf(text, sizeof text, "%.*s", 1 + i % 4, "wxyz");
        snprintf(name, sizeof name, "many/%c", 'a' + i);
        put(name, text);
    }
    TEST_OK(open_one(&d, "many"));
    TEST_OK(
        assay_dataset_write_batches(d, test_path(out, folder, "p.safetensors"), 9, 1, 2, 2, 9, 0.0, true));
    TEST_OK(assay_batches_open(&b, out, assay_dataset_vocab(d)));
    int begins = 0;
    for (int64_t i = 0; i < 36; i++) {
        const int64_t *ids = assay_batches_ids(&b, 0, i / 18), *labels = assay_batches_labels(&b, 0, i / 18);
        const int64_t at = i % 18;
        const bool begin = at % 9 != 0 && ids[at - 1] == ASSAY_BYTE_EOD;
        cr_expect_eq(labels[at], begin ? ASSAY_IGNORE_INDEX : ids[at], "token %lld", (long long)i);
        begins += begin;
    }
    cr_expect_gt(begins, 6);
    assay_batches_close(&b);
    /* with most labels taken out: a row that has a target keeps its last one */
    TEST_OK(
        assay_dataset_write_batches(d, test_path(out, folder, "m.safetensors"), 9, 1, 2, 2, 9, 0.95, true));
    TEST_OK(assay_batches_open(&b, out, assay_dataset_vocab(d)));
    for (int64_t row = 0; row < 4; row++) {
        const int64_t *ids = assay_batches_ids(&b, 0, row / 2) + row % 2 * 9,
                      *labels = assay_batches_labels(&b, 0, row / 2) + row % 2 * 9;
        int64_t last = 8;
        while (last > 0 && ids[last - 1] == ASSAY_BYTE_EOD)
            last--;
        cr_expect_gt(last, 0);
        cr_expect_eq(labels[last], ids[last], "row %lld", (long long)row);
    }
    assay_batches_close(&b);
    assay_dataset_close(d);
}

/* --- Megatron-LM indexed datasets --------------------------------------------------------------------------
 */

/* Two documents: sequences [5,6,7], [8] | [300]; the pointers name them out of file order. */
typedef struct index_fields {
    const char *magic;
    uint64_t version;
    int code;
    uint64_t n_sequences, n_documents;
    int32_t lengths[3];
    int64_t pointers[3];
    int64_t documents[3];
    int cut; /* bytes that are missing at the end */
} index_fields;

static const index_fields GOOD = {"MMIDIDX\0\0", 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0};
static const uint16_t BIN[5] = {8, 300, 5, 6, 7};

static void write_le(FILE *f, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(value >> (8 * i) & 0xff), f);
}

static void write_indexed(const index_fields *x)
{
    char idx[TEST_PATH];
    FILE *f = fopen(test_path(idx, folder, "p.idx"), "wb");
    cr_assert_not_null(f);
    fwrite(x->magic, 1, 9, f);
    write_le(f, x->version, 8);
    write_le(f, (uint64_t)x->code, 1);
    write_le(f, x->n_sequences, 8);
    write_le(f, x->n_documents, 8);
    for (int i = 0; i < 3; i++)
        write_le(f, (uint64_t)x->lengths[i], 4);
    for (int i = 0; i < 3; i++)
        write_le(f, (uint64_t)x->pointers[i], 8);
    for (int i = 0; i < 3; i++)
        write_le(f, (uint64_t)x->documents[i], 8);
    fclose(f);
    cr_assert_eq(truncate(idx, 34 + 3 * 20 - x->cut), 0);
    test_write(test_path(path, folder, "p.bin"), BIN, sizeof BIN);
}

Test(dataset, indexed_sequences_come_in_index_order)
{
    assay_dataset *d = NULL;
    const int64_t want[] = {5, 6, 7, 8, 300};
    static const char *const names[] = {"p", "p.idx", "p.bin"};
    write_indexed(&GOOD);
    for (int i = 0; i < 3; i++) {
        TEST_OK(open_one(&d, names[i]));
        cr_expect_eq(assay_dataset_vocab(d), 301);
        expect_stream(d, want, 5);
        assay_dataset_close(d);
    }
}

Test(dataset, indexed_datasets_are_joined)
{
    assay_dataset *d = NULL;
    char prefix[TEST_PATH];
    const int64_t want[] = {5, 6, 7, 8, 300, 5, 6, 7, 8, 300};
    write_indexed(&GOOD);
    const char *const paths[] = {test_path(prefix, folder, "p"), prefix};
    TEST_OK(assay_dataset_open(&d, paths, 2));
    expect_stream(d, want, 10);
    assay_dataset_close(d);
}

Test(dataset, text_and_indexed_are_not_mixed)
{
    assay_dataset *d = NULL;
    char prefix[TEST_PATH], text[TEST_PATH];
    write_indexed(&GOOD);
    put("t", "abc");
    const char *const one[] = {test_path(prefix, folder, "p"), test_path(text, folder, "t")};
    const char *const other[] = {text, prefix};
    TEST_FAILS(assay_dataset_open(&d, one, 2), ASSAY_INVALID_ARGUMENT, "cannot be mixed");
    TEST_FAILS(assay_dataset_open(&d, other, 2), ASSAY_INVALID_ARGUMENT, "cannot be mixed");
}

/* Signed codes keep their sign: bytes fe ff are -2 as int16. */
Test(dataset, every_integer_code_is_read)
{
    static const struct {
        int code, bytes;
    } codes[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        assay_dataset *d = NULL;
        const int64_t want[] = {100, 3, 9};
        uint8_t bin[24] = {0};
        index_fields x = GOOD;
        x.code = codes[i].code;
        for (int k = 0; k < 3; k++) {
            x.lengths[k] = 1;
            x.pointers[k] = k * codes[i].bytes;
            bin[k * codes[i].bytes] = (uint8_t)want[k];
        }
        write_indexed(&x);
        test_write(test_path(path, folder, "p.bin"), bin, (size_t)(3 * codes[i].bytes));
        TEST_OK(open_one(&d, "p"));
        expect_stream(d, want, 3);
        assay_dataset_close(d);
    }
}

Test(dataset, negative_tokens_are_named)
{
    assay_dataset *d = NULL;
    index_fields x = GOOD;
    const int16_t bin[5] = {8, -2, 5, 6, 7};
    x.code = 3;
    write_indexed(&x);
    test_write(test_path(path, folder, "p.bin"), bin, sizeof bin);
    TEST_FAILS(open_one(&d, "p"), ASSAY_FORMAT, "p.bin: token 0 of sequence 2 is -2");
}

typedef struct bad_index {
    const char *what;
    assay_status status;
    const char *message;
    index_fields x;
} bad_index;

Test(dataset, every_bound_of_an_index_is_checked)
{
#define MAGIC "MMIDIDX\0\0"
    static const bad_index bad[] = {
        {"magic",
         ASSAY_FORMAT,
         "does not begin with MMIDIDX",
         {"MMIDIDY\0\0", 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"version",
         ASSAY_UNSUPPORTED,
         "expected version 1, found 2",
         {MAGIC, 2, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"float64",
         ASSAY_UNSUPPORTED,
         "dtype code 6 is float64: tokens must be integers",
         {MAGIC, 1, 6, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"float32",
         ASSAY_UNSUPPORTED,
         "dtype code 7 is float32: tokens must be integers",
         {MAGIC, 1, 7, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"code 0",
         ASSAY_FORMAT,
         "unknown dtype code 0",
         {MAGIC, 1, 0, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"code 9",
         ASSAY_FORMAT,
         "unknown dtype code 9",
         {MAGIC, 1, 9, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"more sequences than bytes",
         ASSAY_FORMAT,
         "4 sequences and 3 documents do not fit",
         {MAGIC, 1, 8, 4, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"a count that would overflow",
         ASSAY_FORMAT,
         "do not fit",
         {MAGIC, 1, 8, UINT64_MAX, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"documents that would overflow",
         ASSAY_FORMAT,
         "do not fit",
         {MAGIC, 1, 8, 3, (uint64_t)1 << 61, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"truncated", ASSAY_FORMAT, "do not fit", {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 1}},
        {"truncated header",
         ASSAY_FORMAT,
         "expected at least the header of 34",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 3}, 61}},
        {"negative length",
         ASSAY_FORMAT,
         "sequence 1 has length -1",
         {MAGIC, 1, 8, 3, 3, {3, -1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"negative pointer",
         ASSAY_FORMAT,
         "sequence 0 is 3 tokens at byte -4",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {-4, 0, 2}, {0, 2, 3}, 0}},
        {"past the end of bin",
         ASSAY_FORMAT,
         "sequence 0 is 4 tokens at byte 4 of",
         {MAGIC, 1, 8, 3, 3, {4, 1, 1}, {4, 0, 2}, {0, 2, 3}, 0}},
        {"pointer far away",
         ASSAY_FORMAT,
         "sequence 2 is 1 tokens at byte 9223372036854775807",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, INT64_MAX}, {0, 2, 3}, 0}},
        {"first document",
         ASSAY_FORMAT,
         "document 0 begins at sequence 1",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {1, 2, 3}, 0}},
        {"documents descend",
         ASSAY_FORMAT,
         "document 2 begins at sequence 1",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 1}, 0}},
        {"document beyond",
         ASSAY_FORMAT,
         "document 2 begins at sequence 4",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 2, 4}, 0}},
        {"last document",
         ASSAY_FORMAT,
         "the last document ends at sequence 2, expected 3",
         {MAGIC, 1, 8, 3, 3, {3, 1, 1}, {4, 0, 2}, {0, 1, 2}, 0}},
        {"no tokens",
         ASSAY_INVALID_ARGUMENT,
         "p.bin: the token file is empty",
         {MAGIC, 1, 8, 3, 3, {0, 0, 0}, {4, 0, 2}, {0, 2, 3}, 0}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assay_dataset *d = NULL;
        write_indexed(&bad[i].x);
        const assay_status st = open_one(&d, "p");
        cr_expect_eq(st, bad[i].status, "%s: found %s", bad[i].what, assay_status_name(st));
        cr_expect_not_null(strstr(st ? assay_error_message() : "", bad[i].message),
                           "%s: expected '%s' in '%s'", bad[i].what, bad[i].message,
                           st ? assay_error_message() : "(opened)");
        assay_dataset_close(d);
    }
}

Test(dataset, index_without_bin_is_named)
{
    assay_dataset *d = NULL;
    write_indexed(&GOOD);
    cr_assert_eq(unlink(test_path(path, folder, "p.bin")), 0);
    TEST_FAILS(open_one(&d, "p"), ASSAY_NOT_FOUND, "p.bin");
}
