/* Shapes in symbols against recorded extents. */
#include "core/base/text.h"
#include "core/model/ops_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- text --------------------------------------------------------------------------------------------------- */
static bool folds(const char *dim)
{
    static const char *const words[] = {"T", "Tq", "Tk", "n", "m"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(dim, words[i]) == 0)
            return true;
    return false;
}

void assay_op_dims_parse(const char *shape, bool brackets, assay_op_dims *out)
{
    bool inside = false;
    size_t length = 0;
    memset(out, 0, sizeof *out);
    out->fold = -1;
    for (const char *c = shape;; c++) {
        if (*c == '[' || *c == ']') {
            inside = *c == '[';
            continue;
        }
        if (inside && !brackets)
            continue;
        if (*c != ',' && *c != '\0') {
            if (length + 1 < sizeof out->dim[0])
                out->dim[out->n][length++] = *c;
            continue;
        }
        if (length > 0) {
            if (folds(out->dim[out->n]))
                out->fold = out->n;
            out->n++;
            length = 0;
        }
        if (*c == '\0' || out->n == ASSAY_OP_DIMS)
            return;
    }
}

/* --- values ------------------------------------------------------------------------------------------------- */
bool assay_op_symbol(const assay_op_binding *b, const char *name, int64_t *value)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->symbols[i].name, name) == 0) {
            *value = b->symbols[i].value;
            return true;
        }
    return false;
}

bool assay_op_bind(assay_op_binding *b, const char *symbol, int64_t value)
{
    int64_t known;
    if (assay_op_symbol(b, symbol, &known))
        return known == value;
    if (b->n == ASSAY_OP_SYMBOLS || strlen(symbol) >= sizeof b->symbols[0].name)
        return false;
    assay_copy_text(b->symbols[b->n].name, sizeof b->symbols[0].name, symbol);
    b->symbols[b->n++].value = value;
    return true;
}

typedef struct reader {
    const assay_op_binding *b;
    const char *at;
} reader;

static bool read_sum(reader *r, int64_t *value);

static bool read_factor(reader *r, int64_t *value)
{
    char name[8] = "";
    size_t n = 0;
    if (*r->at == '(') {
        r->at++;
        return read_sum(r, value) && *r->at++ == ')';
    }
    while (isalnum((unsigned char)*r->at) && n + 1 < sizeof name)
        name[n++] = *r->at++;
    if (n > 0 && isdigit((unsigned char)name[0])) {
        *value = strtoll(name, NULL, 10);
        return true;
    }
    return n > 0 && assay_op_symbol(r->b, name, value);
}

static bool read_product(reader *r, int64_t *value)
{
    if (!read_factor(r, value))
        return false;
    while (*r->at == '*' || *r->at == '/') {
        const char sign = *r->at++;
        int64_t next;
        if (!read_factor(r, &next))
            return false;
        if (sign == '*' ? !assay_mul_i64(*value, next, value) : next == 0)
            return false;
        if (sign == '/')
            *value /= next;
    }
    return true;
}

static bool read_sum(reader *r, int64_t *value)
{
    if (!read_product(r, value))
        return false;
    while (*r->at == '+') {
        int64_t next;
        r->at++;
        if (!read_product(r, &next) || !assay_add_i64(*value, next, value))
            return false;
    }
    return true;
}

bool assay_op_evaluate(const assay_op_binding *b, const char *expression, int64_t *value)
{
    reader r = {b, expression};
    return read_sum(&r, value) && *r.at == '\0';
}

/* A dimension that is a symbol, or a number times a symbol, gives the symbol its value. */
static bool solve(assay_op_binding *b, const char *dim, int64_t extent)
{
    const char *symbol = dim;
    int64_t factor = 1;
    if (isdigit((unsigned char)dim[0])) {
        char *end;
        factor = strtoll(dim, &end, 10);
        symbol = *end == '*' ? end + 1 : end;
    }
    for (const char *c = symbol; *c; c++)
        if (!isalnum((unsigned char)*c))
            return false;
    return factor > 0 && *symbol && extent % factor == 0 && assay_op_bind(b, symbol, extent / factor);
}

/* --- matching ----------------------------------------------------------------------------------------------- */
/* One recorded extent against the dimensions that end at `last` (and lie behind `first`): the last alone, or the
 * product of it and neighbours that are known.  Returns how many dimensions it took; 0: none fits. */
static int match_extent(assay_op_binding *b, const assay_op_dims *d, int first, int last, int64_t extent)
{
    int64_t product, next;
    if (!assay_op_evaluate(b, d->dim[last], &product))
        return solve(b, d->dim[last], extent) ? 1 : 0;
    int taken = 1;
    while (product != extent && last - taken >= first && assay_op_evaluate(b, d->dim[last - taken], &next)) {
        if (!assay_mul_i64(product, next, &product))
            return 0;
        taken++;
    }
    return product == extent ? taken : 0;
}

/* One known dimension against the recorded extents that end at `last` and lie behind `first`: how many of them, two or
 * more, have it as their product ([T,A,D] for "T,H" with H = A*D); 0: no number of them. */
static int match_dim(const assay_op_binding *b, const char *dim, const int64_t *extents, int first, int last)
{
    int64_t known, product = 1;
    if (!assay_op_evaluate(b, dim, &known))
        return 0;
    for (int n = 1; last - n >= first; n++) {
        if (!assay_mul_i64(product, extents[last - n], &product))
            return 0;
        if (n > 1 && product == known)
            return n;
    }
    return 0;
}

bool assay_op_match(assay_op_binding *b, const assay_op_slot *s, const int64_t *extents, int ndim)
{
    assay_op_dims d;
    int first = 0, last = ndim;
    assay_op_dims_parse(s->shape, b->brackets, &d);
    for (int i = 0; i < d.fold; i++, first++) /* before the fold, from the left */
        if (first >= last || match_extent(b, &d, i, i, extents[first]) == 0)
            return false;
    for (int i = d.n - 1; i > d.fold;) { /* behind it, from the right */
        const int taken = last > first ? match_extent(b, &d, d.fold + 1, i, extents[last - 1]) : 0;
        int64_t one;
        int merged;
        if (taken > 0) {
            i -= taken;
            last--;
        } else if (s->split && d.fold >= 0 && (merged = match_dim(b, d.dim[i], extents, first, last)) > 0) {
            i--;
            last -= merged;
        } else if (d.fold >= 0 && assay_op_evaluate(b, d.dim[i], &one) && one == 1) {
            i--; /* merged into a neighbour: [T,D] for "T,A,D" with one head */
        } else {
            return false;
        }
    }
    if (d.fold < 0)
        return first == last;
    if (first == last && d.n > 1) /* a vector is not a matrix of one row */
        return false;
    int64_t rows;
    return assay_shape_count(extents + first, last - first, &rows) && solve(b, d.dim[d.fold], rows);
}
