/* Packing the operands of attention, and who sees whom. */
#include "ref/bounds/attention_partners.h"

#include "ref/ops/vector.h"

#include <stdlib.h>

void packed_free(packed *x)
{
    free(x->rows);
    *x = (packed){0};
}

bool packed_init(packed *p, const double *x, int64_t sequence, int64_t batch, int64_t heads, int64_t width)
{
    const int64_t pieces = batch * heads, stride = sequence + REF_PANEL;
    double *at = malloc((size_t)(pieces * width * (sequence + stride) + 1) * sizeof *at);
    *p = (packed){at, at ? at + pieces * width * sequence : NULL, sequence, batch, heads, width, stride};
    if (!at)
        return false;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(pieces * width * sequence))
    for (int64_t piece = 0; piece < pieces; piece++) {
        double *rows = p->rows + piece * sequence * width, *columns = p->columns + piece * width * stride;
        for (int64_t i = 0; i < sequence; i++)
            ref_vec_copy(rows + i * width, x + (i * pieces + piece) * width, width);
        for (int64_t c = 0; c < width; c++) {
            for (int64_t i = 0; i < sequence; i++)
                columns[c * stride + i] = rows[i * width + c];
            ref_vec_zero(columns + c * stride + sequence, REF_PANEL);
        }
    }
    return true;
}

/* --- who sees whom ------------------------------------------------------------------------------------------ */

void sight_free(sight *x)
{
    free(x->from);
    *x = (sight){0};
}

bool sight_init(sight *x, const ref_attention_desc *d)
{
    const int64_t queries = d->batch * d->seq_q, keys = d->batch * d->seq_k;
    int64_t *at = malloc((size_t)(2 * queries + keys + 1) * sizeof *at);
    *x = (sight){at, at ? at + queries : NULL, at ? at + 2 * queries : NULL, d->seq_q, d->seq_k};
    if (!at)
        return false;
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t i = 0; i < d->seq_q; i++) {
            const int64_t row = i * d->batch + b, q = d->q_position[row];
            int64_t from = d->first_key ? d->first_key[row] : INT64_MIN;
            if (d->window > 0 && q - d->window + 1 > from)
                from = q - d->window + 1;
            x->from[b * d->seq_q + i] = from;
            x->to[b * d->seq_q + i] = q;
        }
        for (int64_t j = 0; j < d->seq_k; j++)
            x->key[b * d->seq_k + j] = d->k_position[j * d->batch + b];
    }
    return true;
}

/* --- what one query or key meets ----------------------------------------------------------------------------- */

void partners_free(partners *x)
{
    free(x->s);
    free(x->runs);
    free(x->pieces);
    *x = (partners){0};
}

bool partners_init(partners *x, int64_t capacity, int64_t width)
{
    const int64_t n = capacity + REF_PANEL;
    *x = (partners){0};
    double *at = malloc((size_t)(13 * n + n * width + 2 * width) * sizeof *at);
    x->s = at;
    x->runs = malloc((size_t)n * sizeof *x->runs);
    x->pieces = malloc((size_t)n * sizeof *x->pieces);
    if (!at || !x->runs || !x->pieces) {
        partners_free(x);
        return false;
    }
    double **const arrays[] = {&x->s,   &x->es,  &x->dp,    &x->edp,    &x->p,      &x->ep,    &x->ds,
                               &x->eds, &x->lse, &x->delta, &x->edelta, &x->passed, &x->factor};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++, at += n)
        *arrays[i] = at;
    x->gathered = at;
    x->own = at + n * width;
    x->rounded = x->own + width;
    return true;
}

static void add_run(partners *z, int64_t head, int64_t start, int64_t end)
{
    if (end > start)
        z->runs[z->n_runs++] = (run){head, start, end - start};
    z->n += end - start;
}

void partners_keys(partners *z, const sight *x, int64_t b, int64_t i, int64_t g)
{
    const int64_t *key = x->key + b * x->seq_k, from = x->from[b * x->seq_q + i],
                  to = x->to[b * x->seq_q + i];
    z->n = z->n_runs = 0;
    z->batch_row = b;
    for (int64_t j = 0; j < x->seq_k;) {
        while (j < x->seq_k && (key[j] < from || key[j] > to))
            j++;
        const int64_t start = j;
        while (j < x->seq_k && key[j] >= from && key[j] <= to)
            j++;
        add_run(z, g, start, j);
    }
}

void partners_queries(partners *z, const sight *x, int64_t b, int64_t j, int64_t first, int64_t heads)
{
    const int64_t *from = x->from + b * x->seq_q, *to = x->to + b * x->seq_q, key = x->key[b * x->seq_k + j];
    z->n = z->n_runs = 0;
    z->batch_row = b;
    for (int64_t i = 0; i < x->seq_q;) {
        while (i < x->seq_q && (key < from[i] || key > to[i]))
            i++;
        const int64_t start = i;
        while (i < x->seq_q && key >= from[i] && key <= to[i])
            i++;
        add_run(z, first, start, i);
    }
    /* the other heads see the same */
    const int64_t n = z->n_runs;
    for (int64_t a = 1; a < heads; a++)
        for (int64_t r = 0; r < n; r++)
            add_run(z, first + a, z->runs[r].start, z->runs[r].start + z->runs[r].n);
}

void partners_dots(double *y, double *bound, const partners *z, const double *x, const packed *other,
                   const ref_order *order)
{
    int64_t at = 0;
    for (int64_t i = 0; i < z->n_runs; at += z->runs[i++].n) {
        const run *r = &z->runs[i];
        const int64_t piece = z->batch_row * other->heads + r->head;
        const double *columns = other->columns + piece * other->width * other->stride + r->start;
        ref_sum_columns(y + at, bound + at, x, 1, columns, other->stride, other->width,
                        (r->n + REF_PANEL - 1) / REF_PANEL * REF_PANEL, order);
    }
}

const ref_rows *partners_rows(const partners *z, const packed *other)
{
    for (int64_t i = 0; i < z->n_runs; i++) {
        const run *r = &z->runs[i];
        const int64_t first = (z->batch_row * other->heads + r->head) * other->sequence + r->start;
        z->pieces[i] = (ref_rows){other->rows + first * other->width, r->n};
    }
    return z->pieces;
}
