/* Laws of the reader of headers without a tree: it takes what our writer writes and leaves all else to the JSON reader, so that both
 * give the same answer. */
#include "core/files/tensorfile_internal.h"

#include <criterion/criterion.h>
#include <string.h>

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}"

static bool takes(const char *text)
{
    assay_tensor_header h;
    const bool taken = assay_tensor_header_from_text(text, strlen(text), &h);
    if (!taken)
        cr_expect(h.entries == NULL && h.n == 0 && h.metadata == NULL, "%s", text);
    assay_tensor_header_free(&h);
    return taken;
}

Test(tensorfile_text, takes_what_the_writer_writes)
{
    static const char *const texts[] = {"{}",
                                        "{}    ",
                                        "{" A "}",
                                        "{" A "," B "} ",
                                        "{" B "," A "}",
                                        "{\"__metadata__\":{}," A "}",
                                        "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"assay\"}," A "," B "}",
                                        "{\"__metadata__\":{\"format\":\"pt\"}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect(takes(texts[i]), "%s", texts[i]);
}

Test(tensorfile_text, leaves_all_else_to_the_json_reader)
{
    static const char *const texts[] = {
        "",
        "{",
        "}",
        "[]",
        "{}x",
        " {}",
        "{ }",
        "{" A,
        "{" A ",}",
        "{," A "}",
        "{" A " ," B "}",
        "{" A "}}",
        "{" A "," A "}",
        "{" A "," B "," A "}", /* twice: the JSON reader refuses it */
        "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," A "}",
        "{\"__metadata__\":{\"a\":1}," A "}",
        "{\"__metadata__\":null," A "}",
        "{" A ",\"__metadata__\":{}}",
        "{\"__metadata__\":"
        "7}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[9999999999999999999],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-1,8]}}",
        "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"shape\":[2],\"dtype\":\"F32\",\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}",
        "{\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"\xc3\xa9\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_not(takes(texts[i]), "%s", texts[i]);
}

/* Every beginning of a header ends somewhere, and none is taken for the whole. */
Test(tensorfile_text, a_header_that_is_cut_is_left)
{
    const char *whole = "{\"__metadata__\":{\"format\":\"pt\"}," A "," B "}";
    assay_tensor_header h;
    for (size_t n = 0; n < strlen(whole); n++)
        cr_expect_not(assay_tensor_header_from_text(whole, n, &h), "%zu", n);
}

Test(tensorfile_text, gives_names_shapes_and_places)
{
    const char *text = "{\"__metadata__\":{\"format\":\"pt\"}," A "," B "}";
    assay_tensor_header h;
    cr_assert(assay_tensor_header_from_text(text, strlen(text), &h));
    cr_assert_eq(h.n, 2);
    cr_expect_str_eq(json_string_value(json_object_get(h.metadata, "format")), "pt");
    cr_expect_str_eq(h.entries[0].info.name, "a");
    cr_expect_eq(h.entries[0].info.dtype, ASSAY_F32);
    cr_expect(h.entries[0].info.ndim == 1 && h.entries[0].info.shape[0] == 2);
    cr_expect(h.entries[0].begin == 0 && h.entries[0].end == 8);
    cr_expect_eq(h.entries[1].info.dtype, ASSAY_BF16);
    cr_expect_eq(h.entries[1].info.ndim, 0);
    cr_expect(h.entries[1].begin == 8 && h.entries[1].end == 10);
    assay_tensor_header_free(&h);
}
