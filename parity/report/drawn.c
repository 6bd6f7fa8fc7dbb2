/* Pictures and curves in results.jsonl and in parts. */
#include "parity/report/report_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_integer(assay_json_text *t, const char *key, int64_t x)
{
    assay_json_text_key(t, key);
    assay_json_text_integer(t, x);
}

/* JSON has no infinities and no NaN: they are written as strings. */
static void put_real(assay_json_text *t, double x)
{
    if (isnan(x))
        assay_json_text_string(t, "nan");
    else if (isinf(x))
        assay_json_text_string(t, x > 0 ? "inf" : "-inf");
    else
        assay_json_text_real(t, x);
}

static void put_picture(assay_json_text *t, const parity_picture *p)
{
    assay_json_text_key(t, "picture");
    assay_json_text_open(t, '{');
    assay_json_text_key(t, "shape");
    assay_json_text_open(t, '[');
    for (int d = 0; d < p->ndim; d++)
        assay_json_text_integer(t, p->shape[d]);
    assay_json_text_close(t, ']');
    put_integer(t, "rows", p->rows);
    put_integer(t, "columns", p->columns);
    assay_json_text_key(t, "bins");
    assay_json_text_open(t, '[');
    for (int k = 0; k < PARITY_BINS; k++)
        assay_json_text_integer(t, p->bins[k]);
    assay_json_text_close(t, ']');
    assay_json_text_key(t, "bad");
    assay_json_text_open(t, '[');
    for (int i = 0; i < p->rows * p->columns; i++)
        assay_json_text_integer(t, p->bad[i]);
    assay_json_text_close(t, ']');
    assay_json_text_close(t, '}');
}

static void put_curve(assay_json_text *t, const parity_curve *c)
{
    static const char *const names[] = {"found", "expected", "allowance"};
    assay_json_text_key(t, "curve");
    assay_json_text_open(t, '{');
    put_integer(t, "stride", c->stride);
    assay_json_text_key(t, "step");
    assay_json_text_open(t, '[');
    for (int64_t i = 0; i < c->n; i++)
        assay_json_text_integer(t, c->points[i].step);
    assay_json_text_close(t, ']');
    for (int k = 0; k < 3; k++) {
        assay_json_text_key(t, names[k]);
        assay_json_text_open(t, '[');
        for (int64_t i = 0; i < c->n; i++)
            put_real(t, k == 0   ? c->points[i].found
                        : k == 1 ? c->points[i].expected
                                 : c->points[i].allowance);
        assay_json_text_close(t, ']');
    }
    assay_json_text_close(t, '}');
}

void parity_drawn_to_json(assay_json_text *t, const parity_picture *picture, const parity_curve *curve)
{
    if (picture != NULL)
        put_picture(t, picture);
    if (curve != NULL)
        put_curve(t, curve);
}

/* --- reading ------------------------------------------------------------------------------------------------ */

static bool integer_at(const json_t *array, size_t i, int64_t *out)
{
    const json_t *v = json_array_get(array, i);
    *out = json_integer_value(v);
    return json_is_integer(v);
}

static bool read_picture(const json_t *o, parity_picture *p)
{
    const json_t *shape = json_object_get(o, "shape"), *bins = json_object_get(o, "bins"),
                 *bad = json_object_get(o, "bad");
    int64_t x;
    memset(p, 0, sizeof *p);
    if (!json_is_array(shape) || json_array_size(shape) > ASSAY_MAX_DIMS || !json_is_array(bins) ||
        json_array_size(bins) != PARITY_BINS || !json_is_array(bad))
        return false;
    p->ndim = (int)json_array_size(shape);
    for (int d = 0; d < p->ndim; d++)
        if (!integer_at(shape, (size_t)d, &p->shape[d]))
            return false;
    for (int k = 0; k < PARITY_BINS; k++)
        if (!integer_at(bins, (size_t)k, &p->bins[k]))
            return false;
    const int64_t rows = json_integer_value(json_object_get(o, "rows")),
                  columns = json_integer_value(json_object_get(o, "columns"));
    if (rows < 0 || rows > PARITY_PICTURE_CELLS || columns < 0 || columns > PARITY_PICTURE_CELLS ||
        json_array_size(bad) != (size_t)(rows * columns))
        return false;
    p->rows = (int)rows;
    p->columns = (int)columns;
    for (size_t i = 0; i < json_array_size(bad); i++) {
        if (!integer_at(bad, i, &x) || x < 0 || x > UINT32_MAX)
            return false;
        p->bad[i] = (uint32_t)x;
    }
    return parity_picture_valid(p);
}

static bool real_at(const json_t *array, size_t i, double *out)
{
    const json_t *v = json_array_get(array, i);
    const char *s = json_string_value(v);
    *out = json_number_value(v);
    if (s == NULL)
        return json_is_number(v);
    *out = strcmp(s, "inf") == 0    ? (double)INFINITY
           : strcmp(s, "-inf") == 0 ? -(double)INFINITY
                                    : (double)NAN;
    return strcmp(s, "nan") == 0 || isinf(*out);
}

static bool read_curve(const json_t *o, parity_curve *c)
{
    const json_t *step = json_object_get(o, "step"), *found = json_object_get(o, "found"),
                 *expected = json_object_get(o, "expected"), *allowance = json_object_get(o, "allowance");
    const size_t n = json_array_size(step);
    const int64_t stride = json_integer_value(json_object_get(o, "stride"));
    if (n == 0 || n > PARITY_CURVE_POINTS || json_array_size(found) != n || json_array_size(expected) != n ||
        json_array_size(allowance) != n || stride < 1)
        return false;
    c->stride = stride;
    for (size_t i = 0; i < n; i++) {
        parity_curve_point p;
        if (!integer_at(step, i, &p.step) || p.step < 0 || !real_at(found, i, &p.found) ||
            !real_at(expected, i, &p.expected) || !real_at(allowance, i, &p.allowance) ||
            (i > 0 && p.step <= c->points[i - 1].step))
            return false;
        c->n = (int64_t)i;
        c->points[i] = p;
    }
    c->n = (int64_t)n;
    return true;
}

assay_status parity_drawn_from_json(const json_t *o, const char *what, parity_picture *picture, bool *drawn,
                                    parity_curve *curve)
{
    const json_t *p = json_object_get(o, "picture"), *c = json_object_get(o, "curve");
    *drawn = p != NULL;
    *curve = (parity_curve){0};
    ASSAY_CHECK(p == NULL || read_picture(p, picture), ASSAY_FORMAT,
                "%s: picture: expected shape, %d bins and at most %d x %d cells that fit them", what,
                PARITY_BINS, PARITY_PICTURE_CELLS, PARITY_PICTURE_CELLS);
    if (c == NULL)
        return ASSAY_OK;
    curve->points = malloc(PARITY_CURVE_POINTS * sizeof *curve->points);
    ASSAY_CHECK(curve->points != NULL, ASSAY_OUT_OF_MEMORY, "%s", what);
    ASSAY_CHECK(read_curve(c, curve), ASSAY_FORMAT,
                "%s: curve: expected at most %d ascending steps with found, expected and allowance", what,
                PARITY_CURVE_POINTS);
    return ASSAY_OK;
}

/* --- parts -------------------------------------------------------------------------------------------------- */

bool parity_drawn_save(FILE *f, const parity_picture *picture, const parity_curve *curve)
{
    const int64_t head[3] = {picture != NULL, curve != NULL ? curve->n : 0,
                             curve != NULL ? curve->stride : 0};
    return fwrite(head, sizeof head, 1, f) == 1 &&
           (picture == NULL || fwrite(picture, sizeof *picture, 1, f) == 1) &&
           (head[1] == 0 ||
            fwrite(curve->points, sizeof *curve->points, (size_t)head[1], f) == (size_t)head[1]);
}

assay_status parity_drawn_read(const char *path, const char **at, const char *end, parity_picture *picture,
                               bool *drawn, parity_curve *curve)
{
    int64_t head[3];
    *curve = (parity_curve){0};
    ASSAY_CHECK((size_t)(end - *at) >= sizeof head, ASSAY_FORMAT, "%s: truncated", path);
    memcpy(head, *at, sizeof head);
    *at += sizeof head;
    *drawn = head[0] == 1;
    ASSAY_CHECK((head[0] == 0 || head[0] == 1) && head[1] >= 0 && head[1] <= PARITY_CURVE_POINTS,
                ASSAY_FORMAT, "%s: a picture or curve that is none", path);
    if (*drawn) {
        ASSAY_CHECK((size_t)(end - *at) >= sizeof *picture, ASSAY_FORMAT, "%s: truncated", path);
        memcpy(picture, *at, sizeof *picture);
        *at += sizeof *picture;
        ASSAY_CHECK(parity_picture_valid(picture), ASSAY_FORMAT, "%s: a picture that is none", path);
    }
    const size_t bytes = (size_t)head[1] * sizeof *curve->points;
    ASSAY_CHECK((size_t)(end - *at) >= bytes, ASSAY_FORMAT, "%s: truncated", path);
    if (bytes == 0)
        return ASSAY_OK;
    curve->points = malloc(bytes);
    ASSAY_CHECK(curve->points != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    memcpy(curve->points, *at, bytes);
    *at += bytes;
    curve->n = head[1];
    curve->stride = head[2];
    return ASSAY_OK;
}
