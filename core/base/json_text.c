/* JSON as text, written directly. */
#include "core/base/json_text.h"
#include "core/base/text.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void assay_json_text_begin(assay_json_text *t)
{
    t->n = 0;
    t->comma = t->no_memory = t->not_json = false;
}

/* Room for `bytes` more and a NUL; false when there is none. */
static bool reserve(assay_json_text *t, size_t bytes)
{
    if (bytes < t->capacity - t->n)
        return true;
    size_t capacity = t->capacity > 0 ? t->capacity : 1024;
    while (capacity - t->n <= bytes)
        capacity *= 2;
    char *grown = realloc(t->text, capacity);
    if (grown == NULL) {
        t->no_memory = true;
        return false;
    }
    t->text = grown;
    t->capacity = capacity;
    return true;
}

static void put(assay_json_text *t, const char *bytes, size_t n)
{
    if (!reserve(t, n))
        return;
    memcpy(t->text + t->n, bytes, n);
    t->n += n;
}

static void put_char(assay_json_text *t, char c)
{
    if (reserve(t, 1))
        t->text[t->n++] = c;
}

/* Before a value or a key. */
static void separate(assay_json_text *t)
{
    if (t->comma)
        put_char(t, ',');
    t->comma = true;
}

assay_status assay_json_text_end(assay_json_text *t, const char *what)
{
    put_char(t, '\0');
    ASSAY_CHECK(!t->no_memory, ASSAY_OUT_OF_MEMORY, "%s: out of memory", what);
    t->n--;
    ASSAY_CHECK(!t->not_json, ASSAY_INVALID_ARGUMENT, "%s: a text is not UTF-8 or a number is not finite",
                what);
    return ASSAY_OK;
}

void assay_json_text_free(assay_json_text *t)
{
    free(t->text);
    *t = (assay_json_text){0};
}

void assay_json_text_open(assay_json_text *t, char bracket)
{
    separate(t);
    put_char(t, bracket);
    t->comma = false;
}

void assay_json_text_close(assay_json_text *t, char bracket)
{
    put_char(t, bracket);
    t->comma = true;
}

void assay_json_text_key(assay_json_text *t, const char *key)
{
    assay_json_text_string(t, key);
    put_char(t, ':');
    t->comma = false;
}

static void put_escaped(assay_json_text *t, unsigned char c)
{
    static const char letters[] = "btn?fr"; /* of 8 to 13; 11 has none */
    char text[8];
    if (c == '"' || c == '\\')
        snprintf(text, sizeof text, "\\%c", c);
    else if (c >= 8 && c <= 13 && c != 11)
        snprintf(text, sizeof text, "\\%c", letters[c - 8]);
    else
        snprintf(text, sizeof text, "\\u%04X", c);
    put(t, text, strlen(text));
}

void assay_json_text_string(assay_json_text *t, const char *value)
{
    separate(t);
    put_char(t, '"');
    const unsigned char *s = (const unsigned char *)value;
    while (*s != 0) {
        const unsigned char *plain = s;
        while (*s >= 0x20 && *s < 0x80 && *s != '"' && *s != '\\')
            s++;
        put(t, (const char *)plain, (size_t)(s - plain));
        if (*s == 0)
            break;
        uint32_t point;
        const size_t n = assay_utf8_next((const char *)s, &point);
        if (n > 1)
            put(t, (const char *)s, n);
        else if (n == 1)
            put_escaped(t, *s);
        else
            t->not_json = true;
        s += n > 0 ? n : 1;
    }
    put_char(t, '"');
}

static void put_integer(assay_json_text *t, int64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[--at] = '-';
    put(t, digits + at, sizeof digits - at);
}

void assay_json_text_integer(assay_json_text *t, int64_t value)
{
    separate(t);
    put_integer(t, value);
}

/* A whole number that 17 digits hold, and no negative zero. */
static bool is_whole(double value)
{
    static const double most = 0x1p53;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value >= -most && value <= most && value == (double)(int64_t)value && (value != 0.0 || bits == 0);
}

void assay_json_text_real(assay_json_text *t, double value)
{
    char text[40];
    separate(t);
    if (!(value >= -DBL_MAX && value <= DBL_MAX)) {
        t->not_json = true;
        return;
    }
    if (is_whole(value)) { /* most numbers of a report are 0, and printf takes half a microsecond for it */
        put_integer(t, (int64_t)value);
        put(t, ".0", 2);
        return;
    }
    snprintf(text, sizeof text, "%.17g", value);
    char *e = strchr(text, 'e');
    if (e == NULL && strchr(text, '.') == NULL)
        memcpy(text + strlen(text), ".0", sizeof ".0");
    if (e != NULL) { /* e-05 is e-5, e+20 is e20 */
        char *to = e[1] == '-' ? e + 2 : e + 1, *from = e + 2;
        while (*from == '0')
            from++;
        memmove(to, from, strlen(from) + 1);
    }
    put(t, text, strlen(text));
}

void assay_json_text_integers(assay_json_text *t, const int64_t *values, int n)
{
    assay_json_text_open(t, '[');
    for (int i = 0; i < n; i++)
        assay_json_text_integer(t, values[i]);
    assay_json_text_close(t, ']');
}

void assay_json_text_put_string(assay_json_text *t, const char *key, const char *value)
{
    assay_json_text_key(t, key);
    assay_json_text_string(t, value);
}

void assay_json_text_put_integer(assay_json_text *t, const char *key, int64_t value)
{
    assay_json_text_key(t, key);
    assay_json_text_integer(t, value);
}

static void put_members(assay_json_text *t, const json_t *value)
{
    json_t *object = (json_t *)(uintptr_t)value; /* Jansson's iterator takes a non-const object */
    assay_json_text_open(t, '{');
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        assay_json_text_key(t, json_object_iter_key(it));
        assay_json_text_value(t, json_object_iter_value(it));
    }
    assay_json_text_close(t, '}');
}

void assay_json_text_value(assay_json_text *t, const json_t *value)
{
    const char *word = "null";
    if (value == NULL) {
        t->no_memory = true;
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        put_members(t, value);
        return;
    case JSON_ARRAY:
        assay_json_text_open(t, '[');
        for (size_t i = 0; i < json_array_size(value); i++)
            assay_json_text_value(t, json_array_get(value, i));
        assay_json_text_close(t, ']');
        return;
    case JSON_STRING:
        assay_json_text_string(t, json_string_value(value));
        return;
    case JSON_INTEGER:
        assay_json_text_integer(t, json_integer_value(value));
        return;
    case JSON_REAL:
        assay_json_text_real(t, json_real_value(value));
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        word = json_is_true(value) ? "true" : "false";
        break;
    case JSON_NULL:
        break;
    }
    separate(t);
    put(t, word, strlen(word));
}
