/* Pictures, excerpts and curves in results.jsonl and in parts. */
#include "parity/report/report_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    assay_json_text_put_integer(t, "rows", p->rows);
    assay_json_text_put_integer(t, "columns", p->columns);
    if (p->ulps) {
        assay_json_text_key(t, "unit");
        assay_json_text_string(t, "ulp");
    }
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
    assay_json_text_put_integer(t, "stride", c->stride);
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

/* A row: its mark, then its cells. */
static void put_excerpt(assay_json_text *t, const parity_excerpt *e)
{
    assay_json_text_key(t, "excerpt");
    assay_json_text_open(t, '{');
    assay_json_text_key(t, "title");
    assay_json_text_string(t, e->title);
    assay_json_text_key(t, "columns");
    assay_json_text_open(t, '[');
    for (int c = 0; c < e->n_columns; c++)
        assay_json_text_string(t, e->heads[c]);
    assay_json_text_close(t, ']');
    assay_json_text_key(t, "rows");
    assay_json_text_open(t, '[');
    for (int i = 0; i < e->n_rows; i++) {
        assay_json_text_open(t, '[');
        assay_json_text_string(t, parity_row_mark_name(e->rows[i].mark));
        for (int c = 0; c < e->n_columns; c++)
            assay_json_text_string(t, e->rows[i].cells[c]);
        assay_json_text_close(t, ']');
    }
    assay_json_text_close(t, ']');
    assay_json_text_close(t, '}');
}

void parity_drawn_to_json(assay_json_text *t, const parity_drawn *drawn)
{
    if (drawn->picture != NULL)
        put_picture(t, drawn->picture);
    if (drawn->excerpt != NULL)
        put_excerpt(t, drawn->excerpt);
    if (drawn->curve != NULL)
        put_curve(t, drawn->curve);
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
    const json_t *unit = json_object_get(o, "unit");
    p->ulps = unit != NULL;
    if (unit != NULL && strcmp(json_is_string(unit) ? json_string_value(unit) : "", "ulp") != 0)
        return false;
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

static bool text_at(const json_t *array, size_t i, char *out, size_t capacity)
{
    const char *s = json_string_value(json_array_get(array, i));
    return s != NULL && (size_t)snprintf(out, capacity, "%s", s) < capacity;
}

static bool read_row(const json_t *o, parity_excerpt *e)
{
    const char *mark = json_string_value(json_array_get(o, 0));
    int m = 0;
    if (mark == NULL || json_array_size(o) != (size_t)e->n_columns + 1)
        return false;
    while (m < PARITY_ROW_MARKS && strcmp(mark, parity_row_mark_name((parity_row_mark)m)) != 0)
        m++;
    bool good = m < PARITY_ROW_MARKS && parity_excerpt_add(e, (parity_row_mark)m);
    for (int c = 0; good && c < e->n_columns; c++)
        good = text_at(o, (size_t)c + 1, e->rows[e->n_rows - 1].cells[c], PARITY_EXCERPT_CELL);
    return good;
}

static bool read_excerpt(const json_t *o, parity_excerpt *e)
{
    const json_t *columns = json_object_get(o, "columns"), *rows = json_object_get(o, "rows");
    const char *title = json_string_value(json_object_get(o, "title"));
    memset(e, 0, sizeof *e);
    if (title == NULL || json_array_size(columns) > PARITY_EXCERPT_COLUMNS || !json_is_array(rows) ||
        (size_t)snprintf(e->title, sizeof e->title, "%s", title) >= sizeof e->title)
        return false;
    e->n_columns = (int)json_array_size(columns);
    for (int c = 0; c < e->n_columns; c++)
        if (!text_at(columns, (size_t)c, e->heads[c], sizeof e->heads[c]))
            return false;
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!read_row(json_array_get(rows, i), e))
            return false;
    return parity_excerpt_valid(e);
}

assay_status parity_drawn_from_json(const json_t *o, const char *what, parity_drawing *d)
{
    const json_t *p = json_object_get(o, "picture"), *e = json_object_get(o, "excerpt"),
                 *c = json_object_get(o, "curve");
    parity_curve *curve = &d->curve;
    d->has_picture = p != NULL;
    d->has_excerpt = e != NULL;
    *curve = (parity_curve){0};
    ASSAY_CHECK(
        e == NULL || read_excerpt(e, &d->excerpt), ASSAY_FORMAT,
        "%s: excerpt: expected a title, at most %d columns and %d rows, each a mark and a text for every "
        "column",
        what, PARITY_EXCERPT_COLUMNS, PARITY_EXCERPT_ROWS);
    ASSAY_CHECK(p == NULL || read_picture(p, &d->picture), ASSAY_FORMAT,
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

bool parity_drawn_save(FILE *f, const parity_drawn *d)
{
    const int64_t head[4] = {d->picture != NULL, d->excerpt != NULL, d->curve != NULL ? d->curve->n : 0,
                             d->curve != NULL ? d->curve->stride : 0};
    return fwrite(head, sizeof head, 1, f) == 1 &&
           (d->picture == NULL || fwrite(d->picture, sizeof *d->picture, 1, f) == 1) &&
           (d->excerpt == NULL || fwrite(d->excerpt, sizeof *d->excerpt, 1, f) == 1) &&
           (head[2] == 0 ||
            fwrite(d->curve->points, sizeof *d->curve->points, (size_t)head[2], f) == (size_t)head[2]);
}

assay_status parity_part_take(const char *path, const char **at, const char *end, void *out, size_t bytes)
{
    ASSAY_CHECK((size_t)(end - *at) >= bytes, ASSAY_FORMAT, "%s: truncated", path);
    memcpy(out, *at, bytes);
    *at += bytes;
    return ASSAY_OK;
}

assay_status parity_drawn_read(const char *path, const char **at, const char *end, parity_drawing *d)
{
    int64_t head[4];
    d->curve = (parity_curve){0};
    ASSAY_TRY(parity_part_take(path, at, end, head, sizeof head));
    d->has_picture = head[0] == 1;
    d->has_excerpt = head[1] == 1;
    ASSAY_CHECK((head[0] == 0 || head[0] == 1) && (head[1] == 0 || head[1] == 1) && head[2] >= 0 &&
                    head[2] <= PARITY_CURVE_POINTS,
                ASSAY_FORMAT, "%s: a picture, excerpt or curve that is none", path);
    if (d->has_picture)
        ASSAY_TRY(parity_part_take(path, at, end, &d->picture, sizeof d->picture));
    if (d->has_excerpt)
        ASSAY_TRY(parity_part_take(path, at, end, &d->excerpt, sizeof d->excerpt));
    ASSAY_CHECK((!d->has_picture || parity_picture_valid(&d->picture)) &&
                    (!d->has_excerpt || parity_excerpt_valid(&d->excerpt)),
                ASSAY_FORMAT, "%s: a picture or excerpt that is none", path);
    const size_t bytes = (size_t)head[2] * sizeof *d->curve.points;
    ASSAY_CHECK((size_t)(end - *at) >= bytes, ASSAY_FORMAT, "%s: truncated", path);
    if (bytes == 0)
        return ASSAY_OK;
    d->curve.points = malloc(bytes);
    ASSAY_CHECK(d->curve.points != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    ASSAY_TRY(parity_part_take(path, at, end, d->curve.points, bytes));
    d->curve.n = head[2];
    d->curve.stride = head[3];
    return ASSAY_OK;
}

parity_drawn parity_drawing_of(const parity_drawing *d)
{
    return (parity_drawn){.picture = d->has_picture ? &d->picture : NULL,
                          .excerpt = d->has_excerpt ? &d->excerpt : NULL,
                          .curve = &d->curve};
}
