/* Tensor records as our own writer puts them, read without a JSON tree: a trace has ten thousands of them.  Anything else
 * that is legal, and everything that is not, is left to the JSON reader (trace_record.c), which says what is wrong. */
#include "core/files/trace_internal.h"

#include <string.h>

typedef struct cursor {
    const char *at, *end;
    bool good; /* so far it is what the writer writes */
} cursor;

/* Takes `word` if it comes next. */
static bool next_is(cursor *c, const char *word)
{
    const size_t n = strlen(word);
    if (!c->good || (size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

static void expect(cursor *c, const char *word)
{
    c->good = next_is(c, word);
}

/* A number of at most 18 digits, as JSON writes it. */
static int64_t integer(cursor *c)
{
    const bool minus = next_is(c, "-");
    const char *first = c->at;
    int64_t value = 0;
    while (c->good && c->at < c->end && *c->at >= '0' && *c->at <= '9' && c->at - first < 18)
        value = 10 * value + (*c->at++ - '0');
    c->good = c->good && c->at > first && (*first != '0' || (c->at == first + 1 && !minus));
    return minus ? -value : value;
}

/* The rest of a string, printable ASCII without an escape. */
static void string(cursor *c, char *out, size_t capacity)
{
    size_t n = 0;
    while (c->good && c->at < c->end && *c->at >= ' ' && *c->at <= '~' && *c->at != '"' && *c->at != '\\' &&
           n + 1 < capacity)
        out[n++] = *c->at++;
    out[n] = '\0';
    expect(c, "\"");
}

/* "[1,2]" */
static int integers(cursor *c, int64_t *out, int capacity)
{
    int n = 0;
    expect(c, "[");
    while (c->good && !next_is(c, "]")) {
        if (n > 0)
            expect(c, ",");
        if (n == capacity)
            c->good = false;
        else
            out[n++] = integer(c);
    }
    return n;
}

/* "[[[0,2],[6,2]],[[0,8]]]" */
static void segments(cursor *c, assay_shard *s)
{
    expect(c, "[");
    for (int d = 0; d < s->ndim && c->good; d++) {
        if (d > 0)
            expect(c, ",");
        expect(c, "[");
        assay_segment read[ASSAY_MAX_SEGMENTS];
        int n_read = 0;
        while (c->good && !next_is(c, "]")) {
            int64_t pair[2] = {0, 0};
            if (n_read > 0)
                expect(c, ",");
            const int n = integers(c, pair, 2);
            c->good = c->good && n == 2 && n_read < ASSAY_MAX_SEGMENTS;
            if (c->good)
                read[n_read++] = (assay_segment){pair[0], pair[1]};
        }
        assay_shard_set(s, d, read, n_read);
    }
    expect(c, "]");
}

static void shard(cursor *c, assay_shard *s)
{
    int64_t shape[ASSAY_MAX_DIMS];
    const int ndim = integers(c, shape, ASSAY_MAX_DIMS);
    for (int d = 0; d < ndim; d++)
        c->good = c->good && shape[d] >= 0;
    if (!c->good)
        return;
    assay_shard_whole(s, shape, ndim);
    if (!next_is(c, ",\"local_shape\":"))
        return;
    const int local = integers(c, s->local_shape, ASSAY_MAX_DIMS);
    c->good = c->good && local == ndim;
    for (int d = 0; d < ndim; d++)
        c->good = c->good && s->local_shape[d] >= 0;
    expect(c, ",\"segments\":");
    segments(c, s);
}

static void phase(cursor *c, assay_phase *out)
{
    char text[32];
    string(c, text, sizeof text);
    int k = 0;
    while (k < ASSAY_PHASE_COUNT && strcmp(text, assay_phase_name((assay_phase)k)) != 0)
        k++;
    c->good = c->good && k < ASSAY_PHASE_COUNT;
    *out = (assay_phase)k;
}

static void dtype(cursor *c, assay_dtype *out)
{
    char text[32];
    string(c, text, sizeof text);
    int k = 0;
    while (k < ASSAY_DTYPE_COUNT && strcmp(text, assay_dtype_name((assay_dtype)k)) != 0)
        k++;
    c->good = c->good && k < ASSAY_DTYPE_COUNT;
    *out = (assay_dtype)k;
}

static void kind(cursor *c, assay_piece_kind *out)
{
    char text[16];
    int k = 0;
    *out = ASSAY_PIECE_SHARD;
    if (!next_is(c, ",\"kind\":\""))
        return;
    string(c, text, sizeof text);
    while (k <= ASSAY_PIECE_LOCAL && strcmp(text, assay_piece_kind_name((assay_piece_kind)k)) != 0)
        k++;
    c->good = c->good && k <= ASSAY_PIECE_LOCAL;
    *out = (assay_piece_kind)k;
}

static void members(cursor *c, assay_trace_tensor *t)
{
    expect(c, "{\"type\":\"tensor\",\"id\":");
    t->id = integer(c);
    expect(c, ",\"name\":\"");
    string(c, t->name, sizeof t->name);
    expect(c, ",\"phase\":\"");
    phase(c, &t->phase);
    expect(c, ",\"step\":");
    t->step = integer(c);
    expect(c, ",\"microbatch\":");
    t->microbatch = integer(c);
    expect(c, ",\"dtype\":\"");
    dtype(c, &t->dtype);
    expect(c, ",\"global_shape\":");
    shard(c, &t->shard);
    kind(c, &t->kind);
    if (next_is(c, ",\"partial_group\":\""))
        string(c, t->partial_group, sizeof t->partial_group);
    if (next_is(c, ",\"rows_id\":")) {
        t->rows_id = integer(c);
        c->good = c->good && t->rows_id >= 0;
    }
    t->has_scale = next_is(c, ",\"scale\":");
    if (t->has_scale) {
        t->scale_id = integer(c);
        c->good = c->good && t->scale_id >= 0;
    }
    expect(c, ",\"hash\":\"");
    string(c, t->hash, sizeof t->hash);
    expect(c, "}");
}

bool assay_trace_tensor_from_text(const char *text, size_t bytes, assay_trace_tensor *t)
{
    cursor c = {.at = text, .end = text + bytes, .good = true};
    *t = (assay_trace_tensor){.id = -1, .rows_id = -1, .scale_id = -1};
    members(&c, t);
    if (!c.good || c.at != c.end || t->id < 0 || strlen(t->hash) != ASSAY_HASH_HEX - 1 ||
        strspn(t->hash, "0123456789abcdef") != ASSAY_HASH_HEX - 1)
        return false;
    if (assay_trace_check_tensor(t) == ASSAY_OK)
        return true;
    assay_error_clear(); /* the JSON reader words it */
    return false;
}
