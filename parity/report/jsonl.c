/* results.jsonl: one object per result; also how tasks hand their results to the parent and how shards are
 * merged. */
#include "core/base/file.h"
#include "parity/report/report_files.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* JSON has no infinities and no NaN: they are written as strings. */
static json_t *number(double x)
{
    if (isnan(x))
        return json_string("nan");
    if (isinf(x))
        return json_string(x > 0 ? "inf" : "-inf");
    return json_real(x);
}

/* Every member is always there, empty where it does not apply. */
static void set_text(json_t *o, const char *key, const char *text)
{
    json_t *value = json_string(text);
    if (value == NULL) /* not UTF-8 (a hostile trace): keep the record, name the place */
        value = json_string("(not UTF-8)");
    json_object_set_new(o, key, value);
}

json_t *parity_result_to_json(const parity_result *r)
{
    json_t *o = json_object();
    if (o == NULL)
        return NULL;
    set_text(o, "case", r->case_name);
    set_text(o, "engine", r->engine);
    set_text(o, "tier", r->tier);
    set_text(o, "layout", r->layout);
    set_text(o, "precision", r->precision);
    set_text(o, "variants", r->variants);
    set_text(o, "check", parity_check_name(r->check));
    set_text(o, "tensor", r->tensor);
    set_text(o, "operation", r->op);
    set_text(o, "instance", r->instance);
    set_text(o, "phase",
             (int)r->phase >= 0 && r->phase < ASSAY_PHASE_COUNT ? assay_phase_name(r->phase) : "");
    json_object_set_new(o, "step", json_integer(r->step));
    json_object_set_new(o, "microbatch", json_integer(r->microbatch));
    json_object_set_new(o, "rank", json_integer(r->rank));
    set_text(o, "verdict", parity_verdict_name(r->verdict));
    json_object_set_new(o, "ratio", number(r->ratio));
    json_object_set_new(o, "count", json_integer(r->count));
    json_object_set_new(o, "bad", json_integer(r->n_bad));
    json_object_set_new(o, "ambiguous", json_integer(r->n_ambiguous));
    if (r->index_ndim > 0 && r->index_ndim <= ASSAY_MAX_DIMS) {
        json_t *index = json_array();
        for (int d = 0; d < r->index_ndim; d++)
            json_array_append_new(index, json_integer(r->index[d]));
        json_object_set_new(o, "index", index);
        json_object_set_new(o, "found", number(r->found));
        json_object_set_new(o, "expected", number(r->expected));
        json_object_set_new(o, "allowance", number(r->allowance));
    }
    json_object_set_new(o, "variant", json_integer(r->variant));
    set_text(o, "diagnosis", r->diagnosis);
    set_text(o, "message", r->message);
    set_text(o, "reproduce", r->reproduce);
    return o;
}

assay_status parity_report_jsonl(const parity_report *r, const char *path)
{
    char tmp[ASSAY_NAME + 2048];
    ASSAY_CHECK(snprintf(tmp, sizeof tmp, "%s.tmp", path) < (int)sizeof tmp, ASSAY_LIMIT, "%s: path too long",
                path);
    FILE *f = fopen(tmp, "w");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: %s", tmp, strerror(errno));
    bool ok = true;
    for (int64_t i = 0; i < parity_report_count(r) && ok; i++) {
        json_t *o = parity_result_to_json(parity_report_at(r, i));
        ok = o != NULL && json_dumpf(o, f, JSON_COMPACT) == 0 && fputc('\n', f) != EOF;
        json_decref(o);
    }
    ok = fflush(f) == 0 && fsync(fileno(f)) == 0 && ok;
    ok = fclose(f) == 0 && ok;
    ASSAY_CHECK(ok, ASSAY_IO, "%s: write failed: %s", tmp, strerror(errno));
    ASSAY_CHECK(rename(tmp, path) == 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    return ASSAY_OK;
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
    r->count = json_integer_value(json_object_get(o, "count"));
    r->n_bad = json_integer_value(json_object_get(o, "bad"));
    r->n_ambiguous = json_integer_value(json_object_get(o, "ambiguous"));
    const json_t *index = json_object_get(o, "index");
    for (size_t d = 0; d < json_array_size(index) && d < ASSAY_MAX_DIMS; d++)
        r->index[r->index_ndim++] = json_integer_value(json_array_get(index, d));
    if (r->index_ndim > 0) {
        r->found = get_number(o, "found");
        r->expected = get_number(o, "expected");
        r->allowance = get_number(o, "allowance");
    }
    r->variant = (int)json_integer_value(json_object_get(o, "variant"));
    get_text(o, "diagnosis", r->diagnosis, sizeof r->diagnosis);
    get_text(o, "message", r->message, sizeof r->message);
    get_text(o, "reproduce", r->reproduce, sizeof r->reproduce);
    return ASSAY_OK;
}

assay_status parity_report_load_jsonl(parity_report *r, const char *path)
{
    char *text = NULL;
    uint64_t n = 0;
    assay_status st = ASSAY_OK;
    int64_t line = 0;
    ASSAY_TRY(assay_read_file(path, (uint64_t)1 << 30, &text, &n));
    for (char *p = text; *p != 0;) {
        char *end = strchr(p, '\n');
        char what[2300];
        parity_result result;
        json_t *o = NULL;
        const size_t length = end != NULL ? (size_t)(end - p) : strlen(p);
        snprintf(what, sizeof what, "%.2000s:%lld", path, (long long)++line);
        st = assay_json_parse(&o, p, length, what);
        if (st == ASSAY_OK)
            st = result_from_json(o, what, &result);
        json_decref(o);
        if (st == ASSAY_OK)
            st = parity_report_add(r, &result);
        if (st != ASSAY_OK || end == NULL)
            break;
        p = end + 1;
    }
    free(text);
    return st;
}
