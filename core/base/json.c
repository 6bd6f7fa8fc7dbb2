/* Strict JSON: what Jansson does not check, and typed members with the path of what is wrong. */
#include "core/base/json.h"
#include "core/base/suggest.h"

#include "core/base/file.h"
#include <stdlib.h>
#include <string.h>

/* Jansson recurses up to 2048 levels; this walk keeps no stack and refuses earlier.  It only has to know
 * where strings begin and end: a bracket inside a string is text.  Malformed input is left to the parser. */
static assay_status check_text(const char *text, size_t bytes, const char *what)
{
    int depth = 0;
    int64_t line = 1;
    size_t line_start = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (c == '\n') {
            line++;
            line_start = i + 1;
        }
        if (in_string) {
            if (c == '\\')
                i++; /* the escaped character cannot end the string */
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            ASSAY_CHECK(depth <= ASSAY_JSON_MAX_DEPTH, ASSAY_LIMIT,
                        "%s:%lld:%zu: nested deeper than %d levels", what, (long long)line,
                        i - line_start + 1, ASSAY_JSON_MAX_DEPTH);
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == '-' && i + 1 < bytes && text[i + 1] == '0') {
            /* A size of -0 would read as 0, which other readers refuse; -0.0 and -0e0 are real numbers. */
            char next = '\0';
            if (i + 2 < bytes)
                next = text[i + 2];
            ASSAY_CHECK(next == '.' || next == 'e' || next == 'E' || (next >= '0' && next <= '9'),
                        ASSAY_FORMAT, "%s:%lld:%zu: expected 0 or -0.0, found -0", what, (long long)line,
                        i - line_start + 1);
        }
    }
    return ASSAY_OK;
}

/* What Python's json writes for a number that is not finite, where the parser gave up; else NULL.  It stops behind a word and behind a
 * minus. */
static const char *not_finite(const char *text, size_t bytes, const json_error_t *error)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    const size_t at = error->position > 0 ? (size_t)error->position : 0;
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]), read = i == 0 ? 1 : n;
        if (at >= read && at <= bytes && bytes - at >= n - read && memcmp(text + at - read, words[i], n) == 0)
            return words[i];
    }
    return NULL;
}

assay_status assay_json_parse(json_t **out, const char *text, size_t bytes, const char *what)
{
    *out = NULL;
    ASSAY_CHECK(bytes <= ASSAY_JSON_MAX_BYTES, ASSAY_LIMIT, "%s: %zu bytes of JSON, at most %zu are read",
                what, bytes, ASSAY_JSON_MAX_BYTES);
    const char *nul = bytes > 0 ? memchr(text, 0, bytes) : NULL;
    ASSAY_CHECK(nul == NULL, ASSAY_FORMAT, "%s: byte %lld is NUL, which JSON has not", what,
                (long long)(nul - text));
    ASSAY_TRY(check_text(text, bytes, what));
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root == NULL) {
        const assay_status st =
            json_error_code(&error) == json_error_out_of_memory ? ASSAY_OUT_OF_MEMORY : ASSAY_FORMAT;
        const char *word = not_finite(text, bytes, &error);
        ASSAY_CHECK(word == NULL, ASSAY_FORMAT,
                    "%s:%d:%d: %s is not JSON, though Python's json writes it: expected a number that is "
                    "finite, or null",
                    what, error.line, error.column, word);
        ASSAY_FAIL(st, "%s:%d:%d: %s", what, error.line, error.column, error.text);
    }
    *out = root;
    return ASSAY_OK;
}

assay_status assay_json_load(json_t **out, const char *path)
{
    *out = NULL;
    char *text = NULL;
    uint64_t bytes = 0;
    ASSAY_TRY(assay_read_file(path, ASSAY_JSON_MAX_BYTES, &text, &bytes));
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_json_parse(out, text, (size_t)bytes, path), st, done);
done:
    free(text);
    return st;
}

assay_status assay_json_save(const json_t *root, const char *path)
{
    /* 17 significant digits: every double reads back to the same bits. */
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "%s: the JSON value cannot be written", path);
    assay_status st = ASSAY_OK;
    const size_t length = strlen(text);
    char *with_newline = realloc(text, length + 2);
    ASSAY_CHECK_GOTO(with_newline != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: %zu bytes", path, length);
    text = with_newline;
    memcpy(text + length, "\n", 2);
    ASSAY_TRY_GOTO(assay_write_file(path, text, length + 1), st, done);
done:
    free(text);
    return st;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

/* Sets *value to the member, or to NULL when it is absent or null and not required. */
static assay_status find_member(const json_t *object, const char *key, bool required, const char *what,
                                const char *expected, const json_t **value)
{
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object, found %s", what,
                object ? type_name(object) : "nothing");
    *value = json_object_get(object, key);
    if (*value == NULL || json_is_null(*value)) {
        ASSAY_CHECK(!required, ASSAY_FORMAT, "%s: %s: missing, expected %s", what, key, expected);
        *value = NULL;
    }
    return ASSAY_OK;
}

assay_status assay_json_get_i64(const json_t *object, const char *key, bool required, int64_t min,
                                int64_t max, const char *what, int64_t *out)
{
    const json_t *value;
    ASSAY_TRY(find_member(object, key, required, what, "an integer", &value));
    if (value == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_integer(value), ASSAY_FORMAT, "%s: %s: expected an integer, found %s", what, key,
                type_name(value));
    const int64_t number = json_integer_value(value);
    ASSAY_CHECK(number >= min && number <= max, ASSAY_LIMIT, "%s: %s: expected %lld to %lld, found %lld",
                what, key, (long long)min, (long long)max, (long long)number);
    *out = number;
    return ASSAY_OK;
}

assay_status assay_json_get_double(const json_t *object, const char *key, bool required, double min,
                                   double max, const char *what, double *out)
{
    const json_t *value;
    ASSAY_TRY(find_member(object, key, required, what, "a number", &value));
    if (value == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_number(value), ASSAY_FORMAT, "%s: %s: expected a number, found %s", what, key,
                type_name(value));
    const double number = json_number_value(value);
    ASSAY_CHECK(number >= min && number <= max, ASSAY_LIMIT, "%s: %s: expected %g to %g, found %.10g", what,
                key, min, max, number);
    *out = number;
    return ASSAY_OK;
}

assay_status assay_json_get_bool(const json_t *object, const char *key, bool required, const char *what,
                                 bool *out)
{
    const json_t *value;
    ASSAY_TRY(find_member(object, key, required, what, "true or false", &value));
    if (value == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_boolean(value), ASSAY_FORMAT, "%s: %s: expected true or false, found %s", what, key,
                type_name(value));
    *out = json_is_true(value);
    return ASSAY_OK;
}

assay_status assay_json_get_string(const json_t *object, const char *key, bool required, const char *what,
                                   char *out, size_t capacity)
{
    const json_t *value;
    ASSAY_TRY(find_member(object, key, required, what, "a string", &value));
    if (value == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_string(value), ASSAY_FORMAT, "%s: %s: expected a string, found %s", what, key,
                type_name(value));
    const size_t length = json_string_length(value);
    ASSAY_CHECK(length < capacity, ASSAY_LIMIT, "%s: %s: a string of %zu bytes, at most %zu fit", what, key,
                length, capacity - 1);
    memcpy(out, json_string_value(value), length + 1);
    return ASSAY_OK;
}

assay_status assay_json_only(const json_t *object, const char *const *allowed, const char *what)
{
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object, found %s", what,
                object ? type_name(object) : "nothing");
    /* Jansson's iterator takes a non-const object although walking the keys changes nothing. */
    for (void *it = json_object_iter((json_t *)(uintptr_t)object); it != NULL;
         it = json_object_iter_next((json_t *)(uintptr_t)object, it)) {
        const char *key = json_object_iter_key(it);
        bool known = false;
        for (const char *const *name = allowed; *name != NULL && !known; name++)
            known = strcmp(*name, key) == 0;
        if (known)
            continue;
        assay_suggestion near;
        assay_suggest_begin(&near, key, strlen(key));
        for (const char *const *name = allowed; *name != NULL; name++)
            assay_suggest_add(&near, *name);
        ASSAY_FAIL(ASSAY_FORMAT, "%s: %.128s: unknown member%s", what, key, assay_suggest_end(&near, ""));
    }
    return ASSAY_OK;
}
