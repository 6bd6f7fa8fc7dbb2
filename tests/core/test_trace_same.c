/* Contents of two traces that hash in two ways. */
#include "core/files/trace.h"
#include "tests/support/core_files.h"

static char folder[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(trace_same, .init = setup, .fini = teardown);

/* Hashes of the bytes {0, 1, 2, 3} and {0, 1, 2, 4} as U8 [2, 2], by the package xxhash of Python. */
#define XXH3_OF_3 "d4aeb5f2fc4de5cf49951109bed17df9"
#define XXH3_OF_4 "ecb0c7d831da0c8a8668d5262f508394"

/* A trace of one record; bytes with `last` as the last one where there are any. */
static assay_status open_one(assay_trace **out, const char *name, const char *index, const char *members,
                             char last)
{
    char dir[TEST_PATH], line[512];
    test_path(dir, folder, name);
    cr_assert_eq(assay_mkdir_p(dir), ASSAY_OK);
    snprintf(line, sizeof line, "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1%s}", index);
    test_write_text(test_path(path, dir, "index.json"), line);
    snprintf(line, sizeof line,
             "{\"type\":\"tensor\",\"id\":0,\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"U8\","
             "\"global_shape\":[2,2]%s}\n{\"type\":\"end\"}\n",
             members);
    test_write_text(test_path(path, dir, "rank-00000.jsonl"), line);
    if (last != 0) {
        static const char header[] = "{\"t0\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}}  ";
        char file[8 + sizeof header - 1 + 4] = {sizeof header - 1};
        memcpy(file + 8, header, sizeof header - 1);
        memcpy(file + sizeof file - 4, (const char[]){0, 1, 2, last}, 4);
        test_write(test_path(path, dir, "rank-00000-step-00000.safetensors"), file, sizeof file);
    }
    return assay_trace_open(out, dir, true);
}

#define XXH3 ",\"hash\":\"xxh3-128\""
#define HASHES ",\"hash_only\":true"

Test(trace_same, the_reader_verifies_by_the_hash_that_the_trace_names)
{
    assay_trace *t = NULL;
    TEST_OK(open_one(&t, "a", XXH3, ",\"data\":\"t0\",\"hash\":\"" XXH3_OF_3 "\"", 3));
    cr_expect_eq(assay_trace_tensor_by_id(t, 0, 0)->hash_kind, ASSAY_HASH_XXH3);
    assay_trace_close(t);
    TEST_FAILS(open_one(&t, "b", XXH3, ",\"data\":\"t0\",\"hash\":\"" XXH3_OF_3 "\"", 4), ASSAY_MISMATCH,
               "content hash: the record says " XXH3_OF_3 ", the data has " XXH3_OF_4);
    TEST_FAILS(open_one(&t, "c", "", ",\"data\":\"t0\",\"hash\":\"" XXH3_OF_3 "\"", 3), ASSAY_MISMATCH,
               "content hash: the record says " XXH3_OF_3);
}

Test(trace_same, of_two_kinds_one_is_made_anew_where_there_are_bytes)
{
    assay_trace *fast = NULL, *three = NULL, *four = NULL, *slow = NULL;
    TEST_OK(open_one(&fast, "fast", XXH3 HASHES, ",\"hash\":\"" XXH3_OF_3 "\"", 0));
    TEST_OK(open_one(&three, "three", "", ",\"data\":\"t0\"", 3));
    TEST_OK(open_one(&four, "four", "", ",\"data\":\"t0\"", 4));
    TEST_OK(open_one(&slow, "slow", HASHES, ",\"hash\":\"00000000000000000000000000000000\"", 0));
    const assay_trace_tensor *f = assay_trace_tensor_by_id(fast, 0, 0);
    const assay_trace_tensor *x3 = assay_trace_tensor_by_id(three, 0, 0);
    const assay_trace_tensor *x4 = assay_trace_tensor_by_id(four, 0, 0);
    const assay_trace_tensor *s = assay_trace_tensor_by_id(slow, 0, 0);
    cr_expect(assay_trace_same_content(f, f));
    cr_expect(assay_trace_same_content(f, x3) && assay_trace_same_content(x3, f));
    cr_expect(!assay_trace_same_content(f, x4) && !assay_trace_same_content(x4, f));
    cr_expect(assay_trace_content_comparable(f, x3) && assay_trace_content_comparable(x3, f));
    cr_expect(!assay_trace_content_comparable(f, s) && !assay_trace_same_content(f, s));
    cr_expect(assay_trace_content_comparable(x3, s));
    assay_trace_close(slow);
    assay_trace_close(four);
    assay_trace_close(three);
    assay_trace_close(fast);
}
