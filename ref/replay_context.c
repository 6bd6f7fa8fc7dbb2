/* Slots, attributes and outputs of a replay: every access is checked here. */
#include "ref/replay_context.h"

#include "core/base/text.h"
#include "core/model/ops.h"

#include <stdlib.h>
#include <string.h>

static const ref_value *find(const ref_value *v, int n, const char *slot)
{
    for (int i = 0; i < n; i++)
        if (strcmp(v[i].slot, slot) == 0)
            return &v[i];
    return NULL;
}

const ref_value *replay_candidate(const replay *r, const char *slot)
{
    return find(r->candidate, r->n_candidate, slot);
}

static assay_status input(const replay *r, const char *slot, bool real, bool required, int64_t count,
                          const ref_value **out)
{
    const ref_value *v = find(r->inputs, r->n_inputs, slot);
    *out = v;
    ASSAY_CHECK(v || !required, ASSAY_INVALID_ARGUMENT, "%s: input slot '%s' is missing", r->op, slot);
    if (!v)
        return ASSAY_OK;
    ASSAY_CHECK(assay_dtype_is_float(v->dtype) == real, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: expected %s, found %s", r->op, slot,
                real ? "a floating-point type" : "integers", assay_dtype_name(v->dtype));
    ASSAY_CHECK(count < 0 || v->count == count, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: expected %lld elements from the other slots, found %lld", r->op, slot,
                (long long)count, (long long)v->count);
    return ASSAY_OK;
}

assay_status replay_real(const replay *r, const char *slot, int64_t count, const ref_value **out)
{
    return input(r, slot, true, true, count, out);
}

assay_status replay_integer(const replay *r, const char *slot, int64_t count, const ref_value **out)
{
    return input(r, slot, false, true, count, out);
}

assay_status replay_real_optional(const replay *r, const char *slot, int64_t count, const ref_value **out)
{
    return input(r, slot, true, false, count, out);
}

assay_status replay_integer_optional(const replay *r, const char *slot, int64_t count, const ref_value **out)
{
    return input(r, slot, false, false, count, out);
}

/* What the JSON getters report, as the error of an argument. */
static assay_status attr_error(assay_status st)
{
    char text[512];
    if (st == ASSAY_OK)
        return st;
    snprintf(text, sizeof text, "%s", assay_error_message());
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "attributes: %s", text);
}

bool replay_has_attr(const replay *r, const char *key)
{
    return r->attrs && json_object_get(r->attrs, key);
}

static assay_status attr_present(const replay *r, const char *key)
{
    ASSAY_CHECK(replay_has_attr(r, key), ASSAY_INVALID_ARGUMENT, "%s: attribute '%s' is missing", r->op, key);
    return ASSAY_OK;
}

/* What docs/OPS.md says an absent attribute is; NULL: it is there, or must be. */
static const char *otherwise(const replay *r, const char *key)
{
    const assay_op *row = replay_has_attr(r, key) ? NULL : assay_op_find(r->op);
    const assay_op_attr *attr = row ? assay_op_attr_find(row, key) : NULL;
    return attr ? attr->otherwise : NULL;
}

assay_status replay_attr_i64(const replay *r, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const char *absent = otherwise(r, key);
    if (absent && assay_op_attr_find(assay_op_find(r->op), absent))
        return replay_attr_i64(r, absent, min, max, out);
    if (absent) {
        *out = strtoll(absent, NULL, 10);
        return ASSAY_OK;
    }
    ASSAY_TRY(attr_present(r, key));
    return attr_error(assay_json_get_i64(r->attrs, key, true, min, max, r->op, out));
}

assay_status replay_dropout(const replay *r, const char *key, ref_dropout *d)
{
    ASSAY_TRY(replay_attr_double(r, key, &d->p));
    ASSAY_CHECK(d->p >= 0.0 && d->p < 1.0, ASSAY_INVALID_ARGUMENT,
                "%s: attribute '%s': expected 0 or more and less than 1, found %g", r->op, key, d->p);
    ASSAY_TRY(replay_attr_i64(r, "seed", INT64_MIN, INT64_MAX, &d->seed));
    ASSAY_TRY(replay_attr_i64(r, "stream", 0, (int64_t)1 << 30, &d->stream));
    return replay_attr_i64(r, "draw", 0, (int64_t)1 << 30, &d->draw);
}

assay_status replay_attr_double(const replay *r, const char *key, double *out)
{
    const char *absent = otherwise(r, key);
    if (absent) {
        *out = strtod(absent, NULL);
        return ASSAY_OK;
    }
    ASSAY_TRY(attr_present(r, key));
    return attr_error(assay_json_get_double(r->attrs, key, true, -0x1p1000, 0x1p1000, r->op, out));
}

assay_status replay_attr_bool(const replay *r, const char *key, bool *out)
{
    const char *absent = otherwise(r, key);
    if (absent) {
        *out = strcmp(absent, "true") == 0;
        return ASSAY_OK;
    }
    ASSAY_TRY(attr_present(r, key));
    return attr_error(assay_json_get_bool(r->attrs, key, true, r->op, out));
}

assay_status replay_attr_string(const replay *r, const char *key, char *out, size_t capacity)
{
    const char *absent = otherwise(r, key);
    if (absent) {
        snprintf(out, capacity, "%s", absent);
        return ASSAY_OK;
    }
    ASSAY_TRY(attr_present(r, key));
    return attr_error(assay_json_get_string(r->attrs, key, true, r->op, out, capacity));
}

static assay_status next_output(const replay *r, const char *slot, int64_t count, bool real,
                                assay_dtype fallback, ref_value_kind kind, ref_value **out)
{
    const ref_value *c = replay_candidate(r, slot);
    ref_replay_result *res = r->result;
    const int capacity = (int)(sizeof res->outputs / sizeof res->outputs[0]);
    ASSAY_CHECK(res->n_outputs < capacity, ASSAY_INTERNAL, "%s: more than %d outputs", r->op, capacity);
    ASSAY_CHECK(!c || c->count == count, ASSAY_INVALID_ARGUMENT,
                "%s: output slot %s: expected %lld elements, found %lld", r->op, slot, (long long)count,
                (long long)(c ? c->count : 0));
    ASSAY_CHECK(!c || assay_dtype_is_float(c->dtype) == real, ASSAY_INVALID_ARGUMENT,
                "%s: output slot %s: expected %s, found %s", r->op, slot,
                real ? "a floating-point type" : "integers", c ? assay_dtype_name(c->dtype) : "nothing");
    ref_value *v = &res->outputs[res->n_outputs];
    *v = (ref_value){.dtype = c ? c->dtype : fallback, .ndim = 1, .count = count, .kind = kind};
    assay_copy_text(v->slot, sizeof v->slot, slot);
    v->shape[0] = count;
    if (c) {
        v->ndim = c->ndim;
        memcpy(v->shape, c->shape, sizeof v->shape);
    }
    ASSAY_CHECK(count >= 0 && count < INT64_MAX / 16, ASSAY_LIMIT, "%s: output slot %s: %lld elements", r->op,
                slot, (long long)count);
    const size_t n = (size_t)count + 1;
    if (real)
        v->value = calloc(n, sizeof *v->value);
    else
        v->ivalue = calloc(n, sizeof *v->ivalue);
    if (kind == REF_VALUE_REAL)
        v->bound = calloc(n, sizeof *v->bound);
    res->n_outputs++; /* counted even when it failed: ref_replay_free then frees the half */
    ASSAY_CHECK((real ? v->value != NULL : v->ivalue != NULL) && (kind != REF_VALUE_REAL || v->bound),
                ASSAY_OUT_OF_MEMORY, "%s: output slot %s: %lld elements", r->op, slot, (long long)count);
    *out = v;
    return ASSAY_OK;
}

assay_status replay_out_real(const replay *r, const char *slot, int64_t count, assay_dtype fallback,
                             const char *dominant, ref_pair *out)
{
    ref_value *v = NULL;
    ASSAY_TRY(next_output(r, slot, count, true, fallback, REF_VALUE_REAL, &v));
    v->dominant = dominant;
    *out = (ref_pair){v->value, v->bound, v->dtype == r->arith->accumulate};
    return ASSAY_OK;
}

assay_status replay_out_exact(const replay *r, const char *slot, int64_t count, assay_dtype fallback,
                              double **out)
{
    ref_value *v = NULL;
    ASSAY_TRY(next_output(r, slot, count, true, fallback, REF_VALUE_EXACT, &v));
    v->dominant = "copy";
    *out = v->value;
    return ASSAY_OK;
}

assay_status replay_out_integer(const replay *r, const char *slot, int64_t count, ref_value_kind kind,
                                int64_t **out)
{
    ref_value *v = NULL;
    ASSAY_TRY(next_output(r, slot, count, false, ASSAY_I64, kind, &v));
    v->dominant = kind == REF_VALUE_CHOICE ? "decision" : "integer";
    *out = v->ivalue;
    return ASSAY_OK;
}

int64_t replay_columns(const ref_value *v)
{
    return v->ndim > 0 ? v->shape[v->ndim - 1] : 1;
}

int64_t replay_rows(const ref_value *v)
{
    int64_t n = 1; /* a factor of 0 elsewhere may hide an overflow: the caller's products are checked again */
    for (int i = 0; i + 1 < v->ndim; i++)
        if (!assay_mul_i64(n, v->shape[i], &n))
            return 0;
    return n;
}

assay_status replay_divide(const replay *r, const ref_value *v, int64_t width, int64_t *rows)
{
    if (width == 0) {
        ASSAY_CHECK(v->count == 0, ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s: expected rows of 0, found %lld elements", r->op, v->slot,
                    (long long)v->count);
        *rows = replay_rows(v);
        /* rows without elements cost nothing to claim */
        ASSAY_CHECK(*rows <= ASSAY_CONFIG_MAX_DIM, ASSAY_LIMIT, "%s: slot %s: %lld empty rows", r->op,
                    v->slot, (long long)*rows);
        return ASSAY_OK;
    }
    ASSAY_CHECK(v->count % width == 0, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: expected rows of %lld, found %lld elements", r->op, v->slot, (long long)width,
                (long long)v->count);
    *rows = v->count / width;
    return ASSAY_OK;
}

assay_status replay_product(const replay *r, int64_t a, int64_t b, int64_t c, int64_t *out)
{
    int64_t ab;
    ASSAY_CHECK(assay_mul_i64(a, b, &ab) && assay_mul_i64(ab, c, out), ASSAY_LIMIT,
                "%s: %lld x %lld x %lld elements", r->op, (long long)a, (long long)b, (long long)c);
    return ASSAY_OK;
}

assay_status replay_range(const replay *r, const ref_value *v, int64_t min, int64_t max)
{
    for (int64_t i = 0; i < v->count; i++)
        ASSAY_CHECK(v->ivalue[i] >= min && v->ivalue[i] <= max, ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s[%lld]: expected a number in [%lld, %lld], found %lld", r->op, v->slot,
                    (long long)i, (long long)min, (long long)max, (long long)v->ivalue[i]);
    return ASSAY_OK;
}
