/* JSON written directly is what Jansson writes. */
#include "core/base/json.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "tests/support/core.h"
#include <float.h>
#include <math.h>

static const char *const texts[] = {"",
                                    "plain",
                                    "\"quoted\\path\"",
                                    "\b\t\n\v\f\r\x01\x1f\x7f",
                                    "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                                    "a/b",
                                    NULL};

static json_t *all_values(void)
{
    static const double reals[] = {
        0.0,        -0.0,       1.0,  -2.5,  1e20,    1e-5,   1.0 / 3.0,      123456789.0, DBL_MAX,
        -DBL_MIN,   4.9e-324,   1e16, 1e17,  1.5e300, 0.0001, 0x1.fffffep127, 0x1p53,      -0x1p53,
        0x1p53 + 2, 0x1p53 - 1, 1e15, 100.0, 0.5,     -7.0,   99999.5};
    static const json_int_t integers[] = {0, 1, -1, 10, 1234567890123, INT64_MAX, INT64_MIN};
    json_t *o = json_object(), *strings = json_array(), *r = json_array(), *n = json_array();
    for (int i = 0; texts[i] != NULL; i++)
        json_array_append_new(strings, json_string(texts[i]));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        json_array_append_new(r, json_real(reals[i]));
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        json_array_append_new(n, json_integer(integers[i]));
    json_object_set_new(o, "strings", strings);
    json_object_set_new(o, "reals", r);
    json_object_set_new(o, "integers", n);
    json_object_set_new(o, "words \"and\" nests", json_pack("[b,b,n,[],{},[[1],{s:[]}]]", 1, 0, "x"));
    return o;
}

Test(core_json_text, a_tree_is_written_as_jansson_writes_it)
{
    assay_json_text t = {0};
    json_t *o = all_values();
    char *expected = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));
    for (int again = 0; again < 2; again++) {
        assay_json_text_begin(&t);
        assay_json_text_value(&t, o);
        expect_ok(assay_json_text_end(&t, "text"));
        cr_expect_str_eq(t.text, expected);
        cr_expect_eq(t.n, strlen(expected));
    }
    assay_json_text_free(&t);
    free(expected);
    json_decref(o);
}

Test(core_json_text, members_and_elements_are_separated)
{
    assay_json_text t = {0};
    assay_json_text_open(&t, '{');
    assay_json_text_key(&t, "a");
    assay_json_text_integer(&t, 1);
    assay_json_text_key(&t, "b");
    assay_json_text_open(&t, '[');
    assay_json_text_open(&t, '[');
    assay_json_text_close(&t, ']');
    assay_json_text_real(&t, 2.0);
    assay_json_text_string(&t, "x");
    assay_json_text_close(&t, ']');
    assay_json_text_key(&t, "c");
    assay_json_text_open(&t, '{');
    assay_json_text_close(&t, '}');
    assay_json_text_close(&t, '}');
    expect_ok(assay_json_text_end(&t, "text"));
    cr_expect_str_eq(t.text, "{\"a\":1,\"b\":[[],2.0,\"x\"],\"c\":{}}");
    assay_json_text_free(&t);
}

static bool is_utf8(const char *text)
{
    uint32_t point = 0;
    size_t n = 1;
    for (; *text != 0 && n > 0; text += n)
        n = assay_utf8_next(text, &point);
    return n > 0;
}

Test(core_json_text, what_json_cannot_say_is_refused)
{
    static const char *const bad[] = {"\xff",
                                      "\xc3",
                                      "\xc0\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "a\x80",
                                      "\xe2\x82",
                                      "\xf0\x80\x80\x80",
                                      NULL};
    static const double numbers[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    assay_json_text t = {0};
    for (int i = 0; bad[i] != NULL; i++) {
        assay_json_text_begin(&t);
        assay_json_text_string(&t, bad[i]);
        expect_error(assay_json_text_end(&t, "record 7"), ASSAY_INVALID_ARGUMENT, "record 7");
        cr_expect(!is_utf8(bad[i]), "%d", i);
    }
    for (int i = 0; i < 3; i++) {
        assay_json_text_begin(&t);
        assay_json_text_real(&t, numbers[i]);
        expect_error(assay_json_text_end(&t, "record 7"), ASSAY_INVALID_ARGUMENT, "not finite");
    }
    for (int i = 0; texts[i] != NULL; i++)
        cr_expect(is_utf8(texts[i]), "%d", i);
    assay_json_text_free(&t);
}

Test(core_text, a_copy_is_cut_where_its_room_ends)
{
    char out[8];
    memset(out, 'x', sizeof out);
    cr_expect_eq(assay_copy_text(out, 4, "abcdef"), 3);
    cr_expect_str_eq(out, "abc");
    cr_expect_eq(out[4], 'x');
    cr_expect_eq(assay_copy_text(out, 4, "abc"), 3);
    cr_expect_eq(assay_copy_text(out, 4, ""), 0);
    cr_expect_str_eq(out, "");
    cr_expect_eq(assay_copy_text(out, 1, "a"), 0);
    cr_expect_str_eq(out, "");
}
