/* Strict JSON: what is refused, where the message points. */
#include "core/base/json.h"
#include "tests/support/core.h"

Test(core_json, malformed_text_is_refused_with_line_and_column)
{
    static const struct {
        const char *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"", ASSAY_FORMAT, "x.json:1:0: unexpected token near end of file"},
        {"{\"a\":1,\"a\":2}", ASSAY_FORMAT, "duplicate object key"},
        {"{\"a\":{\"b\":1,\n\"b\":2}}", ASSAY_FORMAT, "x.json:2:3: duplicate object key"},
        {"{} {}", ASSAY_FORMAT, "x.json:1:4: end of file expected"},
        {"{\"a\":1,}", ASSAY_FORMAT, "x.json:1:8: "},
        {"[1,2", ASSAY_FORMAT, "x.json:1:4: "},
        {"\n\n  [1 2]", ASSAY_FORMAT, "x.json:3:6: "},
        {"[NaN]", ASSAY_FORMAT, "x.json:1:4: NaN is not JSON, though Python's json writes it"},
        {"{\"time_step_limit\":[0.0, Infinity]}", ASSAY_FORMAT, ": Infinity is not JSON"},
        {"[1,\n -Infinity]", ASSAY_FORMAT, "x.json:2:2: -Infinity is not JSON"},
        {"[-Inf]", ASSAY_FORMAT, "x.json:1:2: invalid token"},
        {"[NaNs]", ASSAY_FORMAT, "invalid token near 'NaNs'"},
        {"[01]", ASSAY_FORMAT, "x.json:1:"},
        {"[1e999]", ASSAY_FORMAT, "real number overflow"},
        {"[99999999999999999999]", ASSAY_FORMAT, "too big integer"},
        {"\"a\\u0000b\"", ASSAY_FORMAT, "\\u0000 is not allowed"},
        {"\"\xff\"", ASSAY_FORMAT, "x.json:"},
        {"'a'", ASSAY_FORMAT, "x.json:1:1: "},
        {"{\"shape\":[2,-0]}", ASSAY_FORMAT, "x.json:1:13: expected 0 or -0.0, found -0"},
        {"-0", ASSAY_FORMAT, "found -0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *root = (json_t *)0x1;
        expect_error(assay_json_parse(&root, rows[i].text, strlen(rows[i].text), "x.json"), rows[i].st,
                     rows[i].message);
        cr_expect_null(root);
    }
}

Test(core_json, one_value_of_any_kind_is_legal)
{
    static const char *const texts[] = {"1",    " \n null \t", "\"text\"", "[]",           "{}",
                                        "true", "-1.5e3",      "-0.0",     "[-0e0,\"-0\"]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_t *root = NULL;
        expect_ok(assay_json_parse(&root, texts[i], strlen(texts[i]), "x.json"));
        cr_expect_not_null(root);
        json_decref(root);
    }
}

/* `depth` opening brackets, alternately of arrays and objects, closed again. */
static size_t nested(char *out, int depth, bool objects)
{
    size_t n = 0;
    for (int i = 0; i < depth; i++) {
        if (objects && i % 2) {
            memcpy(out + n, "{\"k\":", 5);
            n += 5;
        } else {
            out[n++] = '[';
        }
    }
    for (int i = depth - 1; i >= 0; i--) {
        if (objects && i % 2 && i == depth - 1)
            out[n++] = '0';
        out[n++] = objects && i % 2 ? '}' : ']';
    }
    out[n] = '\0';
    return n;
}

Test(core_json, depth_is_limited_to_64)
{
    static char text[1 << 14];
    for (int objects = 0; objects < 2; objects++) {
        json_t *root = NULL;
        expect_ok(assay_json_parse(&root, text, nested(text, 64, objects), "x.json"));
        json_decref(root);
        expect_error(assay_json_parse(&root, text, nested(text, 65, objects), "x.json"), ASSAY_LIMIT,
                     "x.json:1:");
        expect_error(assay_json_parse(&root, text, nested(text, 1500, objects), "x.json"), ASSAY_LIMIT,
                     "nested deeper than 64 levels");
    }
    json_t *root = NULL;
    expect_error(assay_json_parse(&root, text, nested(text, 65, false), "x.json"), ASSAY_LIMIT,
                 "x.json:1:65:");
}

Test(core_json, brackets_inside_strings_are_text)
{
    static char text[1024];
    json_t *root = NULL;
    size_t n = 0;
    n += (size_t)snprintf(text + n, sizeof text - n, "{\"a\\\"[[[\\\\\": \"");
    for (int i = 0; i < 200; i++)
        text[n++] = '[';
    n += (size_t)snprintf(text + n, sizeof text - n, "\\\"{{\", \"b\": [1]}");
    expect_ok(assay_json_parse(&root, text, n, "x.json"));
    cr_expect_eq(json_object_size(root), 2);
    json_decref(root);
}

Test(core_json, a_string_that_hides_its_end_does_not_hide_depth)
{
    /* The escaped backslash ends the string; the brackets after it count. */
    static char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "[\"\\\\\",");
    for (int i = 0; i < 100; i++)
        text[n++] = '[';
    json_t *root = NULL;
    expect_error(assay_json_parse(&root, text, n, "x.json"), ASSAY_LIMIT, "nested deeper");
}

Test(core_json, size_is_limited_before_the_text_is_read)
{
    json_t *root = NULL;
    expect_error(assay_json_parse(&root, "{}", ASSAY_JSON_MAX_BYTES + 1, "x.json"), ASSAY_LIMIT,
                 "x.json: 268435457 bytes of JSON, at most 268435456");
}

Test(core_json, files_round_trip_to_the_last_bit)
{
    char root[64], path[128];
    make_scratch(root);
    snprintf(path, sizeof path, "%s/a.json", root);
    json_t *out =
        json_pack("{s:f, s:f, s:I}", "third", 1.0 / 3.0, "tiny", 5e-324, "big", (json_int_t)INT64_MAX);
    json_t *in = NULL;
    expect_ok(assay_json_save(out, path));
    expect_ok(assay_json_load(&in, path));
    cr_expect(json_equal(out, in));
    json_decref(in);
    json_decref(out);
    snprintf(path, sizeof path, "%s/b.json", root);
    expect_error(assay_json_load(&in, path), ASSAY_NOT_FOUND, "b.json: cannot open");
    expect_ok(assay_write_file(path, "{\n\"a\" 1}", 8));
    expect_error(assay_json_load(&in, path), ASSAY_FORMAT, "b.json:2:5: ");
    expect_error(assay_json_load(&in, root), ASSAY_IO, "expected a regular file, found a folder");
    drop_scratch(root);
}

/* --- typed members ----------------------------------------------------------------------------------------
 */

typedef enum { I64, DOUBLE, BOOL, STRING } getter;

static assay_status get(getter kind, const json_t *object, const char *key, bool required, void *out)
{
    switch (kind) {
    case I64:
        return assay_json_get_i64(object, key, required, -5, 5, "c.json: rope", out);
    case DOUBLE:
        return assay_json_get_double(object, key, required, 0.0, 2.0, "c.json: rope", out);
    case BOOL:
        return assay_json_get_bool(object, key, required, "c.json: rope", out);
    case STRING:
        return assay_json_get_string(object, key, required, "c.json: rope", out, 4);
    }
    return ASSAY_INTERNAL;
}

Test(core_json, wrong_members_are_named_with_what_was_found)
{
    static const struct {
        getter kind;
        const char *value;
        assay_status st;
        const char *message;
    } rows[] = {
        {I64, "1.0", ASSAY_FORMAT, "c.json: rope: k: expected an integer, found a real number"},
        {I64, "\"1\"", ASSAY_FORMAT, "c.json: rope: k: expected an integer, found a string"},
        {I64, "6", ASSAY_LIMIT, "c.json: rope: k: expected -5 to 5, found 6"},
        {I64, "-6", ASSAY_LIMIT, "c.json: rope: k: expected -5 to 5, found -6"},
        {DOUBLE, "true", ASSAY_FORMAT, "c.json: rope: k: expected a number, found true"},
        {DOUBLE, "2.5", ASSAY_LIMIT, "c.json: rope: k: expected 0 to 2, found 2.5"},
        {DOUBLE, "[]", ASSAY_FORMAT, "found an array"},
        {BOOL, "1", ASSAY_FORMAT, "c.json: rope: k: expected true or false, found an integer"},
        {STRING, "{}", ASSAY_FORMAT, "c.json: rope: k: expected a string, found an object"},
        {STRING, "false", ASSAY_FORMAT, "found false"},
        {STRING, "\"abcd\"", ASSAY_LIMIT, "c.json: rope: k: a string of 4 bytes, at most 3 fit"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[64];
        int64_t out[2] = {42, 42};
        json_t *object = NULL;
        snprintf(text, sizeof text, "{\"k\":%s}", rows[i].value);
        expect_ok(assay_json_parse(&object, text, strlen(text), "x"));
        expect_error(get(rows[i].kind, object, "k", true, out), rows[i].st, rows[i].message);
        cr_expect_eq(out[0], 42, "a refused member leaves the result alone");
        json_decref(object);
    }
}

Test(core_json, absent_and_null_members)
{
    json_t *object = json_pack("{s:n}", "null");
    for (int kind = I64; kind <= STRING; kind++) {
        int64_t out = 42;
        expect_ok(get((getter)kind, object, "null", false, &out));
        expect_ok(get((getter)kind, object, "absent", false, &out));
        cr_expect_eq(out, 42);
        expect_error(get((getter)kind, object, "null", true, &out), ASSAY_FORMAT, "null: missing, expected ");
        expect_error(get((getter)kind, object, "absent", true, &out), ASSAY_FORMAT, "absent: missing");
    }
    int64_t out;
    expect_error(get(I64, NULL, "k", true, &out), ASSAY_FORMAT, "expected an object, found nothing");
    json_t *array = json_array();
    expect_error(get(I64, array, "k", true, &out), ASSAY_FORMAT, "expected an object, found an array");
    json_decref(array);
    json_decref(object);
}

Test(core_json, right_members_are_read)
{
    json_t *object =
        json_pack("{s:i, s:f, s:i, s:b, s:s}", "i", -5, "d", 1.5, "whole", 2, "b", 1, "s", "abc");
    int64_t i = 0;
    double d = 0, whole = 0;
    bool b = false;
    char s[4] = "";
    expect_ok(get(I64, object, "i", true, &i));
    expect_ok(get(DOUBLE, object, "d", true, &d));
    expect_ok(get(DOUBLE, object, "whole", true, &whole));
    expect_ok(get(BOOL, object, "b", true, &b));
    expect_ok(get(STRING, object, "s", true, s));
    cr_expect(i == -5 && d == 1.5 && whole == 2.0 && b);
    cr_expect_str_eq(s, "abc");
    json_decref(object);
}

Test(core_json, only_names_the_member_that_is_not_allowed)
{
    static const char *const allowed[] = {"a", "b", NULL};
    json_t *object = json_pack("{s:i, s:i}", "b", 1, "a", 2);
    expect_ok(assay_json_only(object, allowed, "case.json"));
    json_object_set_new(object, "c", json_null());
    expect_error(assay_json_only(object, allowed, "case.json"), ASSAY_FORMAT, "case.json: c: unknown member");
    expect_error(assay_json_only(NULL, allowed, "case.json"), ASSAY_FORMAT,
                 "expected an object, found nothing");
    json_decref(object);
}
