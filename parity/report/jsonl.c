/* results.jsonl: one object per result; also how shards are merged. */
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "parity/report/report_files.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* JSON has no infinities and no NaN: they are written as strings. */
static void put_number(assay_json_text *t, const char *key, double x)
{
    assay_json_text_key(t, key);
    if (isnan(x))
        assay_json_text_string(t, "nan");
    else if (isinf(x))
        assay_json_text_string(t, x > 0 ? "inf" : "-inf");
    else
        assay_json_text_real(t, x);
}

/* Every member is always there, empty where it does not apply. */
static void put_result(assay_json_text *t, const parity_report *report, const parity_claim *r)
{
    assay_json_text_begin(t);
    assay_json_text_open(t, '{');
    assay_json_text_put_string(t, "case", r->case_name);
    assay_json_text_put_string(t, "engine", r->engine);
    assay_json_text_put_string(t, "tier", r->tier);
    assay_json_text_put_string(t, "layout", r->layout);
    assay_json_text_put_string(t, "precision", r->precision);
    assay_json_text_put_string(t, "variants", r->variants);
    assay_json_text_put_string(t, "check", parity_check_name(r->check));
    assay_json_text_put_string(t, "tensor", r->tensor);
    assay_json_text_put_string(t, "operation", r->op);
    assay_json_text_put_string(t, "instance", r->instance);
    assay_json_text_put_string(
        t, "phase", (int)r->phase >= 0 && r->phase < ASSAY_PHASE_COUNT ? assay_phase_name(r->phase) : "");
    assay_json_text_put_integer(t, "step", r->step);
    assay_json_text_put_integer(t, "microbatch", r->microbatch);
    assay_json_text_put_integer(t, "rank", r->rank);
    assay_json_text_put_string(t, "verdict", parity_verdict_name(r->verdict));
    put_number(t, "ratio", r->ratio);
    put_number(t, "share", r->share);
    assay_json_text_put_integer(t, "count", r->count);
    assay_json_text_put_integer(t, "bad", r->n_bad);
    assay_json_text_put_integer(t, "ambiguous", r->n_ambiguous);
    if (r->index_ndim > 0 && r->index_ndim <= ASSAY_MAX_DIMS) {
        assay_json_text_key(t, "index");
        assay_json_text_open(t, '[');
        for (int d = 0; d < r->index_ndim; d++)
            assay_json_text_integer(t, r->index[d]);
        assay_json_text_close(t, ']');
        put_number(t, r->is_distance ? "distance" : "found", r->found);
        if (!r->is_distance)
            put_number(t, "expected", r->expected);
        put_number(t, "allowance", r->allowance);
    }
    assay_json_text_put_integer(t, "variant", r->variant);
    assay_json_text_put_string(t, "diagnosis", r->diagnosis);
    assay_json_text_put_string(t, "message", r->message);
    assay_json_text_put_string(t, "reproduce", r->reproduce);
    if (r->picture != 0 || r->excerpt != 0 || r->curve != 0) {
        const parity_drawn drawn = parity_report_drawn(report, r);
        parity_drawn_to_json(t, &drawn);
    }
    assay_json_text_close(t, '}');
}

/* The last line: a file without it was cut short. */
static void put_end(assay_json_text *t, const parity_report *r)
{
    int64_t passed, failed, skipped;
    const parity_origin *origin = parity_report_origin(r);
    parity_report_totals(r, &passed, &failed, &skipped);
    assay_json_text_begin(t);
    assay_json_text_open(t, '{');
    assay_json_text_key(t, "end");
    assay_json_text_value(t, json_true());
    assay_json_text_put_string(t, "run", origin->run);
    assay_json_text_put_integer(t, "shard", origin->shard);
    assay_json_text_put_integer(t, "shards", origin->shards);
    assay_json_text_put_string(t, "engine_program", origin->engine);
    assay_json_text_put_string(t, "judge_sources", origin->judge);
    assay_json_text_put_integer(t, "passed", passed);
    assay_json_text_put_integer(t, "failed", failed);
    assay_json_text_put_integer(t, "skipped", skipped);
    assay_json_text_close(t, '}');
}

typedef struct lines {
    const parity_report *r;
    const char *path;
} lines;

static assay_status put_lines(void *user, FILE *f)
{
    const lines *all = user;
    const int64_t n = parity_report_count(all->r);
    assay_json_text line = {0};
    assay_status st = ASSAY_OK;
    for (int64_t i = 0; i <= n && st == ASSAY_OK && ferror(f) == 0; i++) {
        if (i < n)
            put_result(&line, all->r, parity_report_at(all->r, i));
        else
            put_end(&line, all->r);
        st = assay_json_text_end(&line, all->path);
        if (st == ASSAY_OK && fwrite(line.text, 1, line.n, f) == line.n)
            fputc('\n', f);
    }
    assay_json_text_free(&line);
    return st;
}

assay_status parity_report_jsonl(const parity_report *r, const char *path)
{
    lines all = {.r = r, .path = path};
    return assay_write_file_by(path, put_lines, &all);
}

static void get_text(const json_t *o, const char *key, char *out, size_t capacity)
{
    const char *s = json_string_value(json_object_get(o, key));
    snprintf(out, capacity, "%s", s != NULL ? s : "");
}

/* Anything that is not a number or one of the words is NaN: never a pass. */
static double get_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_number(v))
        return json_number_value(v);
    const char *s = json_string_value(v);
    if (s != NULL && strcmp(s, "inf") == 0)
        return (double)INFINITY;
    if (s != NULL && strcmp(s, "-inf") == 0)
        return -(double)INFINITY;
    return (double)NAN;
}

static assay_status get_check(const json_t *o, const char *what, parity_result *r)
{
    const char *check = json_string_value(json_object_get(o, "check"));
    const char *verdict = json_string_value(json_object_get(o, "verdict"));
    bool have_check = false, have_verdict = false;
    for (int k = 0; check != NULL && k < PARITY_CHECK_COUNT; k++)
        if (strcmp(check, parity_check_name((parity_check)k)) == 0) {
            r->check = (parity_check)k;
            have_check = true;
        }
    for (int k = PARITY_PASS; verdict != NULL && k <= PARITY_SKIP; k++)
        if (strcmp(verdict, parity_verdict_name((parity_verdict)k)) == 0) {
            r->verdict = (parity_verdict)k;
            have_verdict = true;
        }
    ASSAY_CHECK(have_check && have_verdict, ASSAY_FORMAT,
                "%s: expected a known check and verdict, found %s and %s", what,
                check != NULL ? check : "nothing", verdict != NULL ? verdict : "nothing");
    return ASSAY_OK;
}

static assay_status result_from_json(const json_t *o, const char *what, parity_result *r)
{
    char phase[32];
    parity_result_init(r);
    ASSAY_CHECK(json_is_object(o), ASSAY_FORMAT, "%s: expected an object", what);
    ASSAY_TRY(get_check(o, what, r));
    get_text(o, "case", r->case_name, sizeof r->case_name);
    get_text(o, "engine", r->engine, sizeof r->engine);
    get_text(o, "tier", r->tier, sizeof r->tier);
    get_text(o, "layout", r->layout, sizeof r->layout);
    get_text(o, "precision", r->precision, sizeof r->precision);
    get_text(o, "variants", r->variants, sizeof r->variants);
    get_text(o, "tensor", r->tensor, sizeof r->tensor);
    get_text(o, "operation", r->op, sizeof r->op);
    get_text(o, "instance", r->instance, sizeof r->instance);
    get_text(o, "phase", phase, sizeof phase);
    if (phase[0] == 0 || assay_phase_from_name(phase, &r->phase) != ASSAY_OK)
        r->phase = (assay_phase)-1;
    r->step = json_integer_value(json_object_get(o, "step"));
    r->microbatch = json_integer_value(json_object_get(o, "microbatch"));
    r->rank = (int)json_integer_value(json_object_get(o, "rank"));
    r->ratio = get_number(o, "ratio");
    r->share = json_object_get(o, "share") != NULL ? get_number(o, "share") : r->ratio;
    r->count = json_integer_value(json_object_get(o, "count"));
    r->n_bad = json_integer_value(json_object_get(o, "bad"));
    r->n_ambiguous = json_integer_value(json_object_get(o, "ambiguous"));
    const json_t *index = json_object_get(o, "index");
    for (size_t d = 0; d < json_array_size(index) && d < ASSAY_MAX_DIMS; d++)
        r->index[r->index_ndim++] = json_integer_value(json_array_get(index, d));
    if (r->index_ndim > 0) {
        r->is_distance = json_object_get(o, "distance") != NULL;
        r->found = get_number(o, r->is_distance ? "distance" : "found");
        r->expected = r->is_distance ? 0.0 : get_number(o, "expected");
        r->allowance = get_number(o, "allowance");
    }
    r->variant = (int)json_integer_value(json_object_get(o, "variant"));
    ASSAY_CHECK(r->verdict != PARITY_PASS || (r->ratio <= 1.0 && r->share <= 1.0 && r->n_bad == 0),
                ASSAY_FORMAT,
                "%s: a pass needs a ratio of at most 1 and no bad element, found ratio %g and %lld bad", what,
                r->ratio, (long long)r->n_bad);
    get_text(o, "diagnosis", r->diagnosis, sizeof r->diagnosis);
    get_text(o, "message", r->message, sizeof r->message);
    get_text(o, "reproduce", r->reproduce, sizeof r->reproduce);
    return ASSAY_OK;
}

/* Reads the line of counts and compares it with the results before it. */
static assay_status check_end(const json_t *o, const char *what, const int64_t found[3],
                              parity_origin *origin)
{
    int64_t shard, shards, said[3];
    static const char *const names[] = {"passed", "failed", "skipped"};
    ASSAY_TRY(assay_json_get_string(o, "run", true, what, origin->run, sizeof origin->run));
    ASSAY_TRY(assay_json_get_i64(o, "shard", true, 1, INT32_MAX, what, &shard));
    ASSAY_TRY(assay_json_get_i64(o, "shards", true, shard, INT32_MAX, what, &shards));
    ASSAY_TRY(assay_json_get_string(o, "engine_program", true, what, origin->engine, sizeof origin->engine));
    ASSAY_TRY(assay_json_get_string(o, "judge_sources", true, what, origin->judge, sizeof origin->judge));
    for (int k = 0; k < 3; k++) {
        ASSAY_TRY(assay_json_get_i64(o, names[k], true, 0, INT64_MAX, what, &said[k]));
        ASSAY_CHECK(said[k] == found[k], ASSAY_MISMATCH, "%s: %s: expected %lld results, found %lld", what,
                    names[k], (long long)said[k], (long long)found[k]);
    }
    origin->shard = (int)shard;
    origin->shards = (int)shards;
    return ASSAY_OK;
}

static assay_status load_line(parity_report *r, const char *text, size_t bytes, const char *what,
                              int64_t found[3], bool *ended, parity_origin *origin)
{
    parity_result result;
    parity_drawing d = {.has_picture = false};
    json_t *o = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(!*ended, ASSAY_FORMAT, "%s: expected nothing after the line of counts", what);
    ASSAY_TRY(assay_json_parse(&o, text, bytes, what));
    if (json_is_true(json_object_get(o, "end"))) {
        *ended = true;
        ASSAY_TRY_GOTO(check_end(o, what, found, origin), st, done);
    } else {
        ASSAY_TRY_GOTO(result_from_json(o, what, &result), st, done);
        found[result.verdict]++;
        ASSAY_TRY_GOTO(parity_drawn_from_json(o, what, &d), st, done);
        const parity_drawn drawn = parity_drawing_of(&d);
        ASSAY_TRY_GOTO(parity_report_add_drawn(r, &result, &drawn), st, done);
    }
done:
    free(d.curve.points);
    json_decref(o);
    return st;
}

assay_status parity_report_load_jsonl(parity_report *r, const char *path, parity_origin *origin)
{
    char *text = NULL, what[2300];
    uint64_t n = 0;
    assay_status st = ASSAY_OK;
    int64_t line = 0, found[3] = {0};
    parity_origin from = {.shard = 1, .shards = 1};
    bool ended = false;
    ASSAY_TRY(assay_read_file(path, (uint64_t)1 << 32, &text, &n));
    for (const char *p = text; p < text + n && st == ASSAY_OK;) {
        const size_t left = (size_t)(text + n - p);
        const char *end = memchr(p, '\n', left);
        const size_t length = end != NULL ? (size_t)(end - p) : left;
        snprintf(what, sizeof what, "%.2000s:%lld", path, (long long)++line);
        st = load_line(r, p, length, what, found, &ended, &from);
        p += length + 1;
    }
    free(text);
    ASSAY_TRY(st);
    ASSAY_CHECK(ended, ASSAY_FORMAT,
                "%s: expected a last line with the counts, found %lld lines without: cut short?", path,
                (long long)line);
    if (origin != NULL)
        *origin = from;
    return ASSAY_OK;
}
