/* Rows of the plan's results. */
#include "parity/checks/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    parity_claim c;
    plan_order order;      /* of the failure that c tells */
    int64_t wanted, found; /* its operations, as in plan_place */
    int words;             /* of c's message, before its place */
    bool waits;            /* to be drawn */
    int64_t next;          /* of those that wait, 1 + number, 0: none */
} row;
struct plan_findings {
    parity_result base;
    parity_map *map, *texts; /* numbers of the rows by key; what is written in them */
    int64_t n, capacity, waiting;
    row *rows;
    parity_gallery gallery;
};

assay_status plan_findings_create(plan_findings **out, const parity_result *base)
{
    assay_status st = ASSAY_OK;
    plan_findings *f = calloc(1, sizeof *f);
    *out = NULL;
    ASSAY_CHECK(f, ASSAY_OUT_OF_MEMORY, "findings of the plan");
    f->base = *base;
    ASSAY_TRY_GOTO(parity_map_create(&f->map), st, fail);
    ASSAY_TRY_GOTO(parity_map_create(&f->texts), st, fail);
    *out = f;
    return ASSAY_OK;
fail:
    plan_findings_destroy(f);
    return st;
}

void plan_findings_destroy(plan_findings *f)
{
    if (f == NULL)
        return;
    parity_map_destroy(f->map);
    parity_map_destroy(f->texts);
    parity_gallery_free(&f->gallery);
    free(f->rows);
    free(f);
}

/* A claim that holds so far. */
static assay_status add_row(plan_findings *f, const plan_place *at)
{
    parity_result r = f->base;
    r.verdict = PARITY_PASS;
    r.phase = at->phase;
    snprintf(r.op, sizeof r.op, "%s", at->op);
    snprintf(r.instance, sizeof r.instance, "%s", at->instance);
    if (f->n == f->capacity) {
        const int64_t capacity = f->capacity > 0 ? 2 * f->capacity : 256;
        row *rows = realloc(f->rows, (size_t)capacity * sizeof *rows);
        ASSAY_CHECK(rows, ASSAY_OUT_OF_MEMORY, "findings of %lld operations", (long long)capacity);
        f->rows = rows;
        f->capacity = capacity;
    }
    row *to = &f->rows[f->n];
    memset(to, 0, sizeof *to);
    to->c = parity_claim_of(&r);
    ASSAY_TRY(parity_claim_keep(&to->c, f->n > 0 ? &to[-1].c : NULL, f->texts, false));
    f->n++;
    return ASSAY_OK;
}

static assay_status row_at(plan_findings *f, const plan_place *at, row **out)
{
    char key[ASSAY_NAME + 80];
    parity_key k = parity_key_begin(key, sizeof key);
    parity_key_text(&k, at->instance);
    parity_key_text(&k, at->op);
    parity_key_number(&k, (int64_t)at->phase);
    int64_t i = parity_map_get(f->map, key);
    if (i < 0) {
        i = f->n;
        ASSAY_TRY(add_row(f, at));
        ASSAY_TRY(parity_map_put(f->map, key, i));
    }
    *out = &f->rows[i];
    return ASSAY_OK;
}

/* Negative: a earlier than b. */
static int compare_orders(const plan_order *a, const plan_order *b)
{
    const int64_t x[] = {a->part, a->pass, a->stage, a->at}, y[] = {b->part, b->pass, b->stage, b->at};
    for (int i = 0; i < 4; i++) {
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

assay_status plan_holds(plan_findings *f, const plan_place *at)
{
    row *r;
    ASSAY_TRY(row_at(f, at, &r));
    r->c.count++;
    return ASSAY_OK;
}

/* The words of a failure, n bytes with room for their place behind them. */
static assay_status put_words(plan_findings *f, row *r, const plan_place *at, const char *item,
                              char message[PARITY_TEXT], int n)
{
    char tensor[ASSAY_NAME];
    parity_claim c = r->c;
    snprintf(message + n, PARITY_TEXT - (size_t)n, " (rank %d, step %lld, microbatch %lld)", at->rank,
             (long long)at->step, (long long)at->microbatch);
    snprintf(tensor, sizeof tensor, "%s", item);
    c.message = message;
    c.tensor = tensor;
    ASSAY_TRY(parity_claim_keep(&c, &r->c, f->texts, false));
    r->c = c;
    r->words = n;
    return ASSAY_OK;
}

assay_status plan_fails(plan_findings *f, const plan_place *at, const char *item, const char *fmt, ...)
{
    row *r;
    char message[PARITY_TEXT];
    ASSAY_TRY(row_at(f, at, &r));
    const bool first = r->c.verdict != PARITY_FAIL;
    const bool earlier =
        at->step < r->c.step || (at->step == r->c.step && compare_orders(&at->order, &r->order) < 0);
    r->c.count++;
    r->c.n_bad++;
    if (!first && !earlier)
        return ASSAY_OK;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    n = n < 0 ? 0 : n >= (int)sizeof message ? (int)sizeof message - 1 : n;
    ASSAY_TRY(put_words(f, r, at, item, message, n));
    r->c.verdict = PARITY_FAIL;
    r->c.ratio = (double)INFINITY;
    r->c.rank = at->rank;
    r->c.step = at->step;
    r->c.microbatch = at->microbatch;
    r->order = at->order;
    r->wanted = at->wanted;
    r->found = at->found;
    if (!r->waits) {
        r->waits = true;
        r->next = f->waiting;
        f->waiting = r - f->rows + 1;
    }
    return ASSAY_OK;
}

/* A row that fails at an earlier place is drawn again. */
static assay_status draw(plan_findings *f, row *r, const plan_match *m)
{
    char message[PARITY_TEXT];
    snprintf(message, sizeof message, "%.*s", r->words, r->c.message);
    parity_excerpt *e = r->c.excerpt > 0 ? f->gallery.excerpts[r->c.excerpt - 1] : NULL;
    if (e == NULL)
        ASSAY_TRY(parity_gallery_excerpt(&f->gallery, &e, &r->c.excerpt));
    if (e != NULL && (m == NULL || (r->wanted == 0 && r->found == 0)))
        plan_excerpt_item(e, r->c.tensor, message);
    else if (e != NULL)
        plan_excerpt_around(e, m, r->wanted - 1, r->found - 1, r->c.tensor, message);
    return ASSAY_OK;
}

assay_status plan_findings_draw(plan_findings *f, const plan_match *m)
{
    while (f->waiting > 0) {
        row *r = &f->rows[f->waiting - 1];
        f->waiting = r->next;
        r->waits = false;
        ASSAY_TRY(draw(f, r, m));
    }
    return ASSAY_OK;
}

static int compare_rows(const void *a, const void *b)
{
    const row *const *x = a, *const *y = b;
    const parity_claim *p = &(*x)->c, *q = &(*y)->c;
    if (p->step != q->step)
        return p->step < q->step ? -1 : 1;
    const int order = compare_orders(&(*x)->order, &(*y)->order);
    if (order != 0)
        return order;
    return p->rank != q->rank ? (p->rank < q->rank ? -1 : 1) : (x > y) - (x < y);
}

assay_status plan_findings_flush(plan_findings *f, parity_report *report)
{
    int64_t failed = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(plan_findings_draw(f, NULL)); /* claims beside no operation */
    const row **order = malloc(((size_t)f->n + 1) * sizeof *order);
    ASSAY_CHECK(order, ASSAY_OUT_OF_MEMORY, "findings of the plan");
    for (int64_t i = 0; i < f->n; i++) {
        if (f->rows[i].c.verdict == PARITY_FAIL)
            order[failed++] = &f->rows[i];
    }
    qsort(order, (size_t)failed, sizeof *order, compare_rows);
    for (int64_t i = 0; i < failed; i++) {
        const parity_drawn drawn = parity_gallery_drawn(&f->gallery, &order[i]->c);
        ASSAY_TRY_GOTO(parity_report_add_claim(report, &order[i]->c, &drawn), st, done);
    }
    for (int64_t i = 0; i < f->n; i++) {
        if (f->rows[i].c.verdict != PARITY_FAIL)
            ASSAY_TRY_GOTO(parity_report_add_claim(report, &f->rows[i].c, NULL), st, done);
    }
done:
    free(order);
    return st;
}
