/* The strict safetensors reader: every rule, by the name of its error, and what must pass. */
#include "core/files/tensorfile.h"

#include "tests/support/core_files.h"
#include <sys/stat.h>

static char folder[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
    test_path(path, folder, "t.safetensors");
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(tensorfile, .init = setup, .fini = teardown);

/* One tensor 'a' of F32 [2] at 0...8. */
#define A8 "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

typedef struct bad_file {
    const char *what, *header;
    size_t data_bytes;
    assay_status status;
    const char *message;
} bad_file;

static void expect_all_refused(const bad_file *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assay_tensorfile *f = NULL;
        test_write_safetensors(path, files[i].header, files[i].data_bytes);
        const assay_status st = assay_tensorfile_open(&f, path);
        cr_expect_null(f, "%s", files[i].what);
        cr_expect_eq(st, files[i].status, "%s: found %s", files[i].what, assay_status_name(st));
        const char *message = st ? assay_error_message() : "(opened)";
        cr_expect_not_null(strstr(message, files[i].message), "%s: expected '%s' in '%s'", files[i].what,
                           files[i].message, message);
        cr_expect_not_null(strstr(message, path), "%s: the message does not name the file: %s", files[i].what,
                           message);
        assay_tensorfile_close(f);
    }
}
#define EXPECT_ALL_REFUSED(files) expect_all_refused(files, sizeof(files) / sizeof(files)[0])

static void expect_all_opened(const bad_file *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assay_tensorfile *f = NULL;
        test_write_safetensors(path, files[i].header, files[i].data_bytes);
        const assay_status st = assay_tensorfile_open(&f, path);
        cr_expect_eq(st, ASSAY_OK, "%s: %s", files[i].what, st ? assay_error_message() : "");
        assay_tensorfile_close(f);
    }
}
#define EXPECT_ALL_OPENED(files) expect_all_opened(files, sizeof(files) / sizeof(files)[0])

Test(tensorfile, reads_tensors_in_name_order_with_their_bytes)
{
    assay_tensorfile *f = NULL;
    test_write_safetensors(path,
                           "{\"z\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
                           "\"__metadata__\":{\"format\":\"pt\"},"
                           "\"m\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[4,10]}}",
                           10);
    TEST_OK(assay_tensorfile_open(&f, path));
    cr_assert_eq(assay_tensorfile_count(f), 2);
    cr_expect_str_eq(assay_tensorfile_at(f, 0)->name, "m");
    cr_expect_str_eq(assay_tensorfile_at(f, 1)->name, "z");
    cr_expect_null(assay_tensorfile_at(f, 2));
    cr_expect_null(assay_tensorfile_at(f, -1));
    const assay_tensor_info *m = assay_tensorfile_find(f, "m");
    cr_assert_not_null(m);
    cr_expect_eq(m->dtype, ASSAY_BF16);
    cr_expect_eq(m->ndim, 1);
    cr_expect_eq(m->count, 3);
    cr_expect_eq(m->bytes, 6u);
    cr_expect_eq(((const uint8_t *)m->data)[0], 4);
    cr_expect_null(assay_tensorfile_find(f, "q"));
    cr_expect_str_eq(assay_tensorfile_metadata(f, "format"), "pt");
    cr_expect_null(assay_tensorfile_metadata(f, "other"));
    cr_expect_str_eq(assay_tensorfile_path(f), path);
    assay_tensorfile_close(f);
}

Test(tensorfile, accepts_what_the_format_allows)
{
    static const bad_file good[] = {
        {"no tensors", "{}", 0, ASSAY_OK, ""},
        {"leading white space", " \n\t\r {" A8 "}", 8, ASSAY_OK, ""},
        {"trailing white space", "{" A8 "} \n\t\r ", 8, ASSAY_OK, ""},
        {"scalar", ENTRY("F64", "[]", "[0,8]"), 8, ASSAY_OK, ""},
        {"zero extent", ENTRY("F32", "[0,5]", "[0,0]"), 0, ASSAY_OK, ""},
        {"a zero first keeps the product at zero", ENTRY("F32", "[0,4611686018427387904,4]", "[0,0]"), 0,
         ASSAY_OK, ""},
        {"members out of order", "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}," A8 "}", 9,
         ASSAY_OK, ""},
        {"two empty tensors at one offset",
         "{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}," A8 "}",
         8, ASSAY_OK, ""},
        {"empty name", "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ASSAY_OK, ""},
        {"null metadata", "{\"__metadata__\":null," A8 "}", 8, ASSAY_OK, ""},
        {"unknown members of an entry",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":[{}]}}", 1, ASSAY_OK, ""},
        {"two 4-bit elements", ENTRY("F4", "[2]", "[0,1]"), 1, ASSAY_OK, ""},
        {"eight dimensions", ENTRY("U8", "[1,1,1,1,1,1,1,1]", "[0,1]"), 1, ASSAY_OK, ""},
    };
    EXPECT_ALL_OPENED(good);
}

Test(tensorfile, header_too_small)
{
    assay_tensorfile *f = NULL;
    test_write(path, "", 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_FORMAT, "HeaderTooSmall");
    test_write(path, "\2\0\0\0\0\0\0", 7);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_FORMAT, "HeaderTooSmall: the file has 7 bytes");
}

/* The limit is inclusive and comes before the length of the file. */
Test(tensorfile, header_too_large)
{
    assay_tensorfile *f = NULL;
    test_write_safetensors_n(path, UINT64_MAX, "{}", 2, 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_LIMIT, "HeaderTooLarge");
    test_write_safetensors_n(path, 100000001, "{}", 2, 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_LIMIT, "HeaderTooLarge");
    test_write_safetensors_n(path, 100000000, "{}", 2, 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_FORMAT, "InvalidHeaderLength");
}

Test(tensorfile, invalid_header_length)
{
    assay_tensorfile *f = NULL;
    test_write_safetensors_n(path, 3, "{}", 2, 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_FORMAT,
               "InvalidHeaderLength: the header says it has 3");
    test_write_safetensors_n(path, 2, "{}", 2, 0);
    TEST_OK(assay_tensorfile_open(&f, path));
    assay_tensorfile_close(f);
}

Test(tensorfile, header_must_be_utf8)
{
    static const bad_file bad[] = {
        {"a lonely byte", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         ASSAY_FORMAT, "InvalidHeader"},
        {"overlong", "{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         ASSAY_FORMAT, "InvalidHeader"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, header_must_be_one_json_object)
{
    static const bad_file bad[] = {
        {"empty", "", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"not JSON", "{a}", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"an array", "[]", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization: the header must be a JSON object"},
        {"a number", "17", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"two values", "{}{}", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"trailing comma", "{" A8 ",}", 8, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"comment", "{/**/}", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"lone surrogate", "{\"\\ud800\":{}}", 0, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"deep", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0,
         ASSAY_LIMIT, "InvalidHeaderDeserialization"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, nul_padding_is_refused)
{
    static const char header[] = "{}\0\0\0\0\0";
    assay_tensorfile *f = NULL;
    test_write_safetensors_n(path, sizeof header, header, sizeof header, 0);
    TEST_FAILS(assay_tensorfile_open(&f, path), ASSAY_FORMAT, "InvalidHeaderDeserialization");
}

Test(tensorfile, duplicates_are_refused_at_every_level)
{
    static const bad_file bad[] = {
        {"name, same range", "{" A8 "," A8 "}", 8, ASSAY_FORMAT, "duplicate"},
        {"name, no bytes",
         "{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, ASSAY_FORMAT, "duplicate"},
        {"metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, ASSAY_FORMAT, "duplicate"},
        {"metadata key", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, ASSAY_FORMAT, "duplicate"},
        {"member of an entry",
         "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ASSAY_FORMAT,
         "duplicate"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, metadata_is_strings)
{
    static const bad_file bad[] = {
        {"a number", "{\"__metadata__\":{\"k\":1}}", 0, ASSAY_FORMAT,
         "InvalidHeaderDeserialization: __metadata__: the value of 'k' must be a string"},
        {"an object", "{\"__metadata__\":{\"k\":{}}}", 0, ASSAY_FORMAT, "__metadata__"},
        {"a tensor of that name", "{\"__metadata__\":[]}", 0, ASSAY_FORMAT,
         "__metadata__ must be an object of strings"},
        {"an entry", "{\"__metadata__\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         ASSAY_FORMAT, "__metadata__"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, entries_are_checked_member_by_member)
{
    static const bad_file bad[] = {
        {"not an object", "{\"a\":3}", 0, ASSAY_FORMAT, "tensor 'a': expected an object"},
        {"positional array", "{\"a\":[\"U8\",[1],[0,1]]}", 1, ASSAY_FORMAT, "tensor 'a': expected an object"},
        {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ASSAY_FORMAT,
         "dtype must be a string"},
        {"unknown dtype", ENTRY("F33", "[1]", "[0,1]"), 1, ASSAY_FORMAT, "unknown dtype 'F33'"},
        {"lower-case dtype", ENTRY("f32", "[1]", "[0,4]"), 4, ASSAY_FORMAT, "unknown dtype 'f32'"},
        {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, ASSAY_FORMAT,
         "shape must be an array"},
        {"float extent", ENTRY("U8", "[1.0]", "[0,1]"), 1, ASSAY_FORMAT,
         "shape must hold non-negative integers"},
        {"exponent", ENTRY("U8", "[1e0]", "[0,1]"), 1, ASSAY_FORMAT, "shape must hold non-negative integers"},
        {"string extent", ENTRY("U8", "[\"1\"]", "[0,1]"), 1, ASSAY_FORMAT,
         "shape must hold non-negative integers"},
        {"negative extent", ENTRY("U8", "[-1]", "[0,1]"), 1, ASSAY_FORMAT,
         "shape holds the negative number -1"},
        {"2^64", ENTRY("U8", "[18446744073709551616]", "[0,1]"), 1, ASSAY_FORMAT, "a number overflows int64"},
        {"2^63", ENTRY("U8", "[9223372036854775808]", "[0,1]"), 1, ASSAY_FORMAT, "a number overflows int64"},
        {"leading zero", ENTRY("U8", "[01]", "[0,1]"), 1, ASSAY_FORMAT, "InvalidHeaderDeserialization"},
        {"nine dimensions", ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, ASSAY_LIMIT,
         "has 9 dimensions; this reader holds at most 8"},
        {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, ASSAY_FORMAT,
         "data_offsets must be an array"},
        {"one offset", ENTRY("U8", "[1]", "[0]"), 1, ASSAY_FORMAT, "found 1 values"},
        {"three offsets", ENTRY("U8", "[1]", "[0,1,1]"), 1, ASSAY_FORMAT, "found 3 values"},
        {"float offset", ENTRY("U8", "[1]", "[0,1.0]"), 1, ASSAY_FORMAT,
         "data_offsets must hold non-negative integers"},
        {"negative offset", ENTRY("U8", "[1]", "[-1,0]"), 1, ASSAY_FORMAT,
         "data_offsets holds the negative number -1"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, offsets_tile_the_data)
{
    static const bad_file bad[] = {
        {"begins at 1", ENTRY("U8", "[1]", "[1,2]"), 2, ASSAY_FORMAT, "InvalidOffset: tensor 'a'"},
        {"end before begin", "{" A8 ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,7]}}", 8,
         ASSAY_FORMAT, "InvalidOffset: tensor 'b'"},
        {"a hole of one byte", "{" A8 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}", 10,
         ASSAY_FORMAT, "InvalidOffset: tensor 'b' has data_offsets [9,10], expected them to begin at 8"},
        {"an overlap of one byte", "{" A8 ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[7,9]}}",
         9, ASSAY_FORMAT, "InvalidOffset: tensor 'b'"},
        {"many names, one range", "{" A8 ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, ASSAY_FORMAT, "InvalidOffset: tensor 'b'"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, sizes_that_overflow)
{
    static const bad_file bad[] = {
        {"product of the shape", ENTRY("U8", "[4611686018427387904,4]", "[0,0]"), 0, ASSAY_FORMAT,
         "ValidationOverflow"},
        {"product times size", ENTRY("F32", "[4611686018427387904]", "[0,0]"), 0, ASSAY_FORMAT,
         "ValidationOverflow"},
        {"a zero at the end comes too late", ENTRY("F32", "[4611686018427387904,4,0]", "[0,0]"), 0,
         ASSAY_FORMAT, "ValidationOverflow"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, sub_byte_types_fill_bytes)
{
    static const bad_file bad[] = {
        {"three halves", ENTRY("F4", "[3]", "[0,1]"), 1, ASSAY_FORMAT, "MisalignedSlice: tensor 'a' has 3"},
        {"one F6", ENTRY("F6_E2M3", "[1]", "[0,1]"), 1, ASSAY_FORMAT, "MisalignedSlice"},
        {"F4 with the size of F8", ENTRY("F4", "[2]", "[0,2]"), 2, ASSAY_FORMAT, "TensorInvalidInfo"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, size_is_what_dtype_and_shape_say)
{
    static const bad_file bad[] = {
        {"too few bytes", ENTRY("F32", "[2]", "[0,4]"), 4, ASSAY_FORMAT,
         "TensorInvalidInfo: tensor 'a': dtype and shape need 8 bytes, data_offsets hold 4"},
        {"too many bytes", ENTRY("U8", "[2]", "[0,4]"), 4, ASSAY_FORMAT, "TensorInvalidInfo"},
        {"an empty shape has one element", ENTRY("F32", "[]", "[0,0]"), 0, ASSAY_FORMAT, "TensorInvalidInfo"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, data_ends_with_the_file)
{
    static const bad_file bad[] = {
        {"one byte short", "{" A8 "}", 7, ASSAY_FORMAT,
         "MetadataIncompleteBuffer: the header describes 8 bytes of data, the file holds 7"},
        {"one byte long", "{" A8 "}", 9, ASSAY_FORMAT, "MetadataIncompleteBuffer"},
        {"data without tensors", "{}", 1, ASSAY_FORMAT, "MetadataIncompleteBuffer"},
    };
    EXPECT_ALL_REFUSED(bad);
}

Test(tensorfile, names_what_is_not_a_file)
{
    assay_tensorfile *f = NULL;
    char other[TEST_PATH];
    TEST_FAILS(assay_tensorfile_open(&f, test_path(other, folder, "none")), ASSAY_NOT_FOUND, "none");
    cr_assert_eq(mkfifo(test_path(other, folder, "pipe"), 0600), 0);
    TEST_FAILS(assay_tensorfile_open(&f, other), ASSAY_INVALID_ARGUMENT, "not a regular file");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_NOT_FOUND,
               "expected model.safetensors or model.safetensors.index.json");
}

Test(tensorfile, get_checks_name_dtype_and_shape)
{
    assay_tensorfile *f = NULL;
    const assay_tensor_info *t = NULL;
    const int64_t two[] = {2}, three[] = {3}, any[] = {-1}, square[] = {2, 1};
    test_write_safetensors(path, "{" A8 "}", 8);
    TEST_OK(assay_tensorfile_open(&f, path));
    TEST_OK(assay_tensorfile_get(f, "a", ASSAY_F32, two, 1, &t));
    cr_expect_str_eq(t->name, "a");
    TEST_OK(assay_tensorfile_get(f, "a", ASSAY_DTYPE_COUNT, any, 1, &t));
    TEST_OK(assay_tensorfile_get(f, "a", ASSAY_DTYPE_COUNT, NULL, -1, &t));
    TEST_FAILS(assay_tensorfile_get(f, "b", ASSAY_F32, two, 1, &t), ASSAY_NOT_FOUND,
               "there is no tensor 'b'");
    cr_expect_null(t);
    TEST_FAILS(assay_tensorfile_get(f, "a", ASSAY_BF16, two, 1, &t), ASSAY_MISMATCH,
               "tensor 'a': expected dtype BF16, found F32");
    TEST_FAILS(assay_tensorfile_get(f, "a", ASSAY_F32, three, 1, &t), ASSAY_MISMATCH,
               "tensor 'a': expected shape [3], found [2]");
    TEST_FAILS(assay_tensorfile_get(f, "a", ASSAY_F32, square, 2, &t), ASSAY_MISMATCH,
               "expected shape [2,1], found [2]");
    assay_tensorfile_close(f);
}

/* --- folders -----------------------------------------------------------------------------------------------
 */

static void write_shards(void)
{
    char shard[TEST_PATH];
    test_write_safetensors(test_path(shard, folder, "s-1.safetensors"), "{" A8 "}", 8);
    test_write_safetensors(test_path(shard, folder, "s-2.safetensors"),
                           "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                           1);
}

static void write_index(const char *text)
{
    char index[TEST_PATH];
    test_write_text(test_path(index, folder, "model.safetensors.index.json"), text);
}

Test(tensorfile, folder_joins_its_shards)
{
    assay_tensorfile *f = NULL;
    write_shards();
    write_index("{\"metadata\":{\"total_size\":9},\"weight_map\":{\"b\":\"s-2.safetensors\","
                "\"a\":\"s-1.safetensors\"}}");
    TEST_OK(assay_tensorfile_open(&f, folder));
    cr_assert_eq(assay_tensorfile_count(f), 2);
    cr_expect_str_eq(assay_tensorfile_at(f, 0)->name, "a");
    cr_expect_str_eq(assay_tensorfile_at(f, 1)->name, "b");
    cr_expect_str_eq(assay_tensorfile_metadata(f, "format"), "pt");
    assay_tensorfile_close(f);
    char index[TEST_PATH];
    TEST_OK(assay_tensorfile_open(&f, test_path(index, folder, "model.safetensors.index.json")));
    cr_expect_eq(assay_tensorfile_count(f), 2);
    assay_tensorfile_close(f);
}

Test(tensorfile, folder_with_one_file)
{
    assay_tensorfile *f = NULL;
    char one[TEST_PATH];
    test_write_safetensors(test_path(one, folder, "model.safetensors"), "{" A8 "}", 8);
    TEST_OK(assay_tensorfile_open(&f, folder));
    cr_expect_eq(assay_tensorfile_count(f), 1);
    assay_tensorfile_close(f);
}

Test(tensorfile, shard_names_are_plain_file_names)
{
    static const char *const names[] = {
        "../s-1.safetensors", "/etc/passwd", "sub/s-1.safetensors", "..", ".", ""};
    assay_tensorfile *f = NULL;
    write_shards();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        write_index(text);
        TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_FORMAT, "expected a plain file name");
    }
    write_index("{\"weight_map\":{\"a\":1}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_FORMAT, "must be a string");
}

Test(tensorfile, index_needs_a_weight_map)
{
    assay_tensorfile *f = NULL;
    write_index("{}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_FORMAT, "weight_map");
    write_index("[]");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_FORMAT, "weight_map");
    write_index("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_FORMAT, "duplicate");
}

Test(tensorfile, index_keys_equal_file_keys_both_ways)
{
    assay_tensorfile *f = NULL;
    write_shards();
    write_index("{\"weight_map\":{\"a\":\"s-1.safetensors\",\"b\":\"s-2.safetensors\","
                "\"c\":\"s-2.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_MISMATCH, "the first that is missing is 'c'");
    write_index("{\"weight_map\":{\"a\":\"s-1.safetensors\",\"b\":\"s-1.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_MISMATCH, "the first that is missing is 'b'");
    write_index("{\"weight_map\":{\"q\":\"s-2.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_MISMATCH,
               "tensor 'b' is in the file but not in the index");
    write_index("{\"weight_map\":{\"a\":\"s-2.safetensors\",\"b\":\"s-1.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_MISMATCH, "but the index says it is in");
    write_index("{\"weight_map\":{\"a\":\"s-3.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_NOT_FOUND, "s-3.safetensors");
}

/* One name in two shards cannot agree with an index that holds each name once. */
Test(tensorfile, a_name_in_two_shards_is_refused)
{
    assay_tensorfile *f = NULL;
    char shard[TEST_PATH];
    test_write_safetensors(test_path(shard, folder, "s-1.safetensors"), "{" A8 "}", 8);
    test_write_safetensors(test_path(shard, folder, "s-2.safetensors"),
                           "{" A8 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9);
    write_index("{\"weight_map\":{\"a\":\"s-1.safetensors\",\"b\":\"s-2.safetensors\"}}");
    TEST_FAILS(assay_tensorfile_open(&f, folder), ASSAY_MISMATCH,
               "tensor 'a' is in this file, but the index says it is in 's-1.safetensors'");
}
