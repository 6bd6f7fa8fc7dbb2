/* The safetensors writer: order, padding, atomicity, refusals. */
#define _GNU_SOURCE /* O_TMPFILE */
#include "core/files/tensorfile.h"
#include "core/files/tensorwriter.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/core_files.h"

static char folder[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
    test_path(path, folder, "w.safetensors");
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(tensorwriter, .init = setup, .fini = teardown);

static const int64_t THREE[] = {3}, ONE[] = {1}, NONE[] = {0};

Test(tensorwriter, file_is_byte_for_byte_what_the_format_says)
{
    assay_tensorwriter *w = NULL;
    const float f[3] = {1.0f, 2.0f, 3.0f};
    const uint8_t u[3] = {7, 8, 9};
    const int64_t i[1] = {-1};
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_metadata(w, "format", "pt"));
    TEST_OK(assay_tensorwriter_add_ref(w, "b", ASSAY_F32, THREE, 1, f));
    TEST_OK(assay_tensorwriter_add_ref(w, "u", ASSAY_U8, THREE, 1, u));
    TEST_OK(assay_tensorwriter_add_ref(w, "a", ASSAY_F32, THREE, 1, f));
    TEST_OK(assay_tensorwriter_add_ref(w, "i", ASSAY_I64, ONE, 1, i));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    /* descending dtype order, then name */
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[20,32]},"
                                 "\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[32,35]}}";
    uint64_t bytes = 0;
    char *text = test_read(path, &bytes);
    const size_t n = (sizeof header - 1 + 7) / 8 * 8;
    cr_assert_eq(bytes, 8 + n + 35);
    uint64_t stated = 0;
    for (int k = 7; k >= 0; k--)
        stated = stated << 8 | (uint8_t)text[k];
    cr_expect_eq(stated, n);
    cr_expect_eq(memcmp(text + 8, header, sizeof header - 1), 0, "%.*s", (int)n, text + 8);
    for (size_t k = sizeof header - 1; k < n; k++)
        cr_expect_eq(text[8 + k], ' ');
    cr_expect_eq(memcmp(text + 8 + n, i, 8), 0);
    cr_expect_eq(memcmp(text + 8 + n + 8, f, 12), 0);
    cr_expect_eq(memcmp(text + 8 + n + 32, u, 3), 0);
    free(text);
}

/* More than a block, among others, and what waits on disk does not change with the caller's memory. */
Test(tensorwriter, spooled_tensors_are_copies_that_wait_on_disk)
{
    enum { N = 200000 }; /* the first of the two waits in memory */
    assay_tensorwriter *w = NULL;
    assay_tensorfile *f = NULL;
    const assay_tensor_info *t = NULL;
    static float many[N];
    const int64_t shape[1] = {N};
    uint8_t few[3] = {1, 2, 3};
    TEST_OK(assay_tensorwriter_create(&w, path));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++)
            many[i] = (float)(i + round);
        TEST_OK(assay_tensorwriter_add_spooled(w, round ? "b" : "a", ASSAY_F32, shape, 1, many));
    }
    TEST_OK(assay_tensorwriter_add_spooled(w, "few", ASSAY_U8, THREE, 1, few));
    TEST_OK(assay_tensorwriter_add_spooled(w, "none", ASSAY_F32, NONE, 1, NULL));
    memset(many, 0, sizeof many);
    memset(few, 0, sizeof few);
    TEST_OK(assay_tensorwriter_add_copy(w, "copy", ASSAY_U8, THREE, 1, few));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    TEST_OK(assay_tensorfile_open(&f, path));
    cr_expect_eq(assay_tensorfile_count(f), 5);
    for (int round = 0; round < 2; round++) {
        TEST_OK(assay_tensorfile_get(f, round ? "b" : "a", ASSAY_F32, shape, 1, &t));
        for (int i = 0; i < N; i += 997)
            cr_expect_eq(((const float *)t->data)[i], (float)(i + round));
    }
    TEST_OK(assay_tensorfile_get(f, "few", ASSAY_U8, THREE, 1, &t));
    cr_expect_eq(((const uint8_t *)t->data)[2], 3);
    assay_tensorfile_close(f);
}

Test(tensorwriter, what_it_writes_the_reader_reads)
{
    assay_tensorwriter *w = NULL;
    assay_tensorfile *f = NULL;
    const assay_tensor_info *t = NULL;
    const double d = 2.5;
    uint8_t changing[3] = {1, 2, 3};
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_copy(w, "copy", ASSAY_U8, THREE, 1, changing));
    changing[0] = 99;
    TEST_OK(assay_tensorwriter_add_ref(w, "scalar", ASSAY_F64, NULL, 0, &d));
    TEST_OK(assay_tensorwriter_add_ref(w, "empty", ASSAY_F32, NONE, 1, NULL));
    TEST_OK(assay_tensorwriter_add_ref(w, "with \"quotes\" / \xc3\xa9", ASSAY_F64, ONE, 1, &d));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    TEST_OK(assay_tensorfile_open(&f, path));
    cr_expect_eq(assay_tensorfile_count(f), 4);
    TEST_OK(assay_tensorfile_get(f, "copy", ASSAY_U8, THREE, 1, &t));
    cr_expect_eq(((const uint8_t *)t->data)[0], 1);
    TEST_OK(assay_tensorfile_get(f, "scalar", ASSAY_F64, NULL, 0, &t));
    cr_expect_eq(memcmp(t->data, &d, 8), 0);
    TEST_OK(assay_tensorfile_get(f, "empty", ASSAY_F32, NONE, 1, &t));
    TEST_OK(assay_tensorfile_get(f, "with \"quotes\" / \xc3\xa9", ASSAY_F64, ONE, 1, &t));
    assay_tensorfile_close(f);
}

/* Whatever the length of the header, data begins at a multiple of 8. */
Test(tensorwriter, header_is_padded_to_8)
{
    for (int length = 1; length <= 8; length++) {
        assay_tensorwriter *w = NULL;
        const double d = 1.5;
        char name[9] = "aaaaaaaa";
        uint64_t bytes = 0;
        name[length] = '\0';
        TEST_OK(assay_tensorwriter_create(&w, path));
        TEST_OK(assay_tensorwriter_add_ref(w, name, ASSAY_F64, ONE, 1, &d));
        TEST_OK(assay_tensorwriter_finish(w));
        assay_tensorwriter_destroy(w);
        char *text = test_read(path, &bytes);
        cr_expect_eq(bytes % 8, 0u, "a name of %d bytes: a file of %llu", length, (unsigned long long)bytes);
        cr_expect_eq((uint8_t)text[0] % 8, 0);
        cr_expect_eq(memcmp(text + bytes - 8, &d, 8), 0);
        free(text);
    }
}

Test(tensorwriter, a_file_without_tensors)
{
    assay_tensorwriter *w = NULL;
    assay_tensorfile *f = NULL;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    TEST_OK(assay_tensorfile_open(&f, path));
    cr_expect_eq(assay_tensorfile_count(f), 0);
    assay_tensorfile_close(f);
}

/* Until finish the old file stands; without finish nothing is left. */
/* Whether this file system has files without a name; where it has not, the writer names its temporary file at once. */
static bool nameless(void)
{
    const int fd = open(folder, O_WRONLY | O_TMPFILE, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* The process dies with the file half-written. */
Test(tensorwriter, a_kill_leaves_nothing)
{
    const float data[4] = {0};
    const int64_t shape[] = {4};
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        assay_tensorwriter *w;
        if (assay_tensorwriter_create(&w, path) != ASSAY_OK ||
            assay_tensorwriter_add_ref(w, "t", ASSAY_F32, shape, 1, data) != ASSAY_OK)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status), "the file could not be begun");
    cr_expect_eq(test_count_files(folder), nameless() ? 0 : 1);
}

Test(tensorwriter, replaces_only_at_the_end)
{
    assay_tensorwriter *w = NULL;
    test_write_text(path, "old");
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_copy(w, "a", ASSAY_U8, THREE, 1, "abc"));
    cr_expect_eq(test_count_files(folder), nameless() ? 1 : 2);
    assay_tensorwriter_destroy(w);
    cr_expect_eq(test_count_files(folder), 1);
    char *text = test_read(path, NULL);
    cr_expect_str_eq(text, "old");
    free(text);
    assay_tensorwriter_destroy(NULL);
}

Test(tensorwriter, replaces_a_file_that_is_mapped)
{
    assay_tensorwriter *w = NULL;
    assay_tensorfile *f = NULL;
    test_write_safetensors(path, "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    TEST_OK(assay_tensorfile_open(&f, path));
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, THREE, 1, assay_tensorfile_find(f, "a")->data));
    TEST_OK(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    cr_expect_eq(((const uint8_t *)assay_tensorfile_find(f, "a")->data)[2], 2);
    assay_tensorfile_close(f);
    cr_expect_eq(test_count_files(folder), 1);
}

Test(tensorwriter, refuses_names_that_come_twice)
{
    assay_tensorwriter *w = NULL;
    const double d = 0.0;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, THREE, 1, "abc"));
    TEST_OK(assay_tensorwriter_add_ref(w, "a", ASSAY_F64, ONE, 1, &d));
    TEST_FAILS(assay_tensorwriter_finish(w), ASSAY_INVALID_ARGUMENT, "tensor 'a' was added more than once");
    assay_tensorwriter_destroy(w);
    cr_expect_eq(test_count_files(folder), 0);
}

Test(tensorwriter, refuses_what_it_cannot_describe)
{
    assay_tensorwriter *w = NULL;
    const int64_t negative[] = {-1}, huge[] = {INT64_MAX, 2}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_FAILS(assay_tensorwriter_add_ref(w, "__metadata__", ASSAY_U8, THREE, 1, "abc"),
               ASSAY_INVALID_ARGUMENT, "cannot be named __metadata__");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, negative, 1, "abc"), ASSAY_INVALID_ARGUMENT,
               "tensor 'a': a negative extent");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, huge, 2, "abc"), ASSAY_INVALID_ARGUMENT,
               "a size above 64 bits");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, nine, 9, "abc"), ASSAY_INVALID_ARGUMENT,
               "has 9 dimensions, expected 0...8");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_F4, THREE, 1, "abc"), ASSAY_INVALID_ARGUMENT,
               "not a whole number of bytes");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_DTYPE_COUNT, THREE, 1, "abc"), ASSAY_INVALID_ARGUMENT,
               "no such dtype");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, THREE, 1, NULL), ASSAY_INVALID_ARGUMENT,
               "tensor 'a': no data");
    TEST_OK(assay_tensorwriter_metadata(w, "k", "v"));
    TEST_FAILS(assay_tensorwriter_metadata(w, "k", "v"), ASSAY_INVALID_ARGUMENT, "'k' was given before");
    TEST_FAILS(assay_tensorwriter_metadata(w, "l", "\xff"), ASSAY_INVALID_ARGUMENT, "not UTF-8");
    TEST_OK(assay_tensorwriter_finish(w));
    TEST_FAILS(assay_tensorwriter_finish(w), ASSAY_INVALID_ARGUMENT, "already finished");
    TEST_FAILS(assay_tensorwriter_add_ref(w, "a", ASSAY_U8, THREE, 1, "abc"), ASSAY_INVALID_ARGUMENT,
               "already finished");
    assay_tensorwriter_destroy(w);
}

Test(tensorwriter, refuses_names_that_are_not_utf8)
{
    assay_tensorwriter *w = NULL;
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_add_ref(w, "\xff", ASSAY_U8, THREE, 1, "abc"));
    TEST_FAILS(assay_tensorwriter_finish(w), ASSAY_INVALID_ARGUMENT, "not UTF-8");
    assay_tensorwriter_destroy(w);
}

Test(tensorwriter, refuses_a_header_above_100_mb)
{
    assay_tensorwriter *w = NULL;
    const size_t n = 100000000;
    char *value = malloc(n + 1);
    cr_assert_not_null(value);
    memset(value, 'x', n);
    value[n] = '\0';
    TEST_OK(assay_tensorwriter_create(&w, path));
    TEST_OK(assay_tensorwriter_metadata(w, "k", value));
    free(value);
    TEST_FAILS(assay_tensorwriter_finish(w), ASSAY_LIMIT, "HeaderTooLarge");
    assay_tensorwriter_destroy(w);
    cr_expect_eq(test_count_files(folder), 0);
}

Test(tensorwriter, names_a_place_that_cannot_be_written)
{
    assay_tensorwriter *w = NULL;
    char other[TEST_PATH];
    TEST_FAILS(assay_tensorwriter_create(&w, test_path(other, folder, "no/such/folder.safetensors")),
               ASSAY_IO, "cannot create a file beside it");
    cr_expect_null(w);
    TEST_FAILS(assay_tensorwriter_create(&w, folder), ASSAY_INVALID_ARGUMENT, "not a regular file");
}
