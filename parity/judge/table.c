/* Rows of results: merging the observations of one claim, and the order of rows. */
#include "parity/judge/judge.h"

#include <stdlib.h>
#include <string.h>

/* What was not checked somewhere does not hold everywhere. */
static int badness(parity_verdict v)
{
    return v == PARITY_FAIL ? 2 : v == PARITY_SKIP ? 1 : 0;
}

/* Checks that judge every record by itself: what a step broke fails again in the next, at times worse, and the first is the cause. */
static bool names_the_first(parity_check c)
{
    return c == PARITY_CHECK_LOCAL || c == PARITY_CHECK_ROUTING;
}

/* Of two failures; records of a rank come in the order in which they ran. */
static bool is_earlier(const parity_claim *a, const parity_claim *b)
{
    return a->step != b->step ? a->step < b->step : a->microbatch < b->microbatch;
}

/* Another observation of a claim; true: the place and the words are now its. */
static bool merge(parity_claim *into, const parity_claim *one)
{
    if (names_the_first(into->check) && (into->verdict == PARITY_FAIL || one->verdict == PARITY_FAIL)) {
        /* The counts, too, are those of the record that is named. */
        const bool first =
            into->verdict != PARITY_FAIL || (one->verdict == PARITY_FAIL && is_earlier(one, into));
        const double larger = into->share >= one->share ? into->share : one->share;
        if (first)
            *into = *one;
        into->share = larger;
        return first;
    }
    const int64_t count = into->count + one->count, n_bad = into->n_bad + one->n_bad;
    const int64_t n_ambiguous = into->n_ambiguous + one->n_ambiguous;
    const double share = into->share >= one->share ? into->share : one->share;
    const int curve = into->curve ? into->curve : one->curve;
    const int a = badness(into->verdict), b = badness(one->verdict);
    /* Differences of whole runs grow from step to step: the first failure is the cause. */
    const bool later = a == 2 && into->check == PARITY_CHECK_WHOLE && one->step > into->step;
    const bool worse = b > a || (b == a && one->ratio > into->ratio && !later);
    if (worse)
        *into = *one;
    into->count = count;
    into->curve = curve;
    into->share = share;
    into->n_bad = n_bad;
    into->n_ambiguous = n_ambiguous;
    return worse;
}

struct parity_table {
    parity_check check;
    parity_map *map, *texts; /* numbers of the rows by key; what is written in them */
    int64_t n, capacity;
    parity_claim *rows;
    int64_t *first_failed; /* of each row: the least step of an observation that failed */
    parity_gallery gallery;
};

assay_status parity_table_create(parity_table **out, parity_check check)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_table *t = calloc(1, sizeof *t);
    ASSAY_CHECK(t, ASSAY_OUT_OF_MEMORY, "table of results");
    t->check = check;
    ASSAY_TRY_GOTO(parity_map_create(&t->map), st, fail);
    ASSAY_TRY_GOTO(parity_map_create(&t->texts), st, fail);
    *out = t;
    return ASSAY_OK;
fail:
    parity_table_destroy(t);
    return st;
}

void parity_table_destroy(parity_table *t)
{
    if (!t)
        return;
    parity_map_destroy(t->map);
    parity_map_destroy(t->texts);
    parity_gallery_free(&t->gallery);
    free(t->rows);
    free(t->first_failed);
    free(t);
}

/* Room for one row more. */
static assay_status grow(parity_table *t)
{
    if (t->n < t->capacity)
        return ASSAY_OK;
    const int64_t capacity = t->capacity ? 2 * t->capacity : 64;
    parity_claim *rows = realloc(t->rows, (size_t)capacity * sizeof *rows);
    ASSAY_CHECK(rows, ASSAY_OUT_OF_MEMORY, "table of %lld results", (long long)capacity);
    t->rows = rows;
    int64_t *first = realloc(t->first_failed, (size_t)capacity * sizeof *first);
    ASSAY_CHECK(first, ASSAY_OUT_OF_MEMORY, "table of %lld results", (long long)capacity);
    t->first_failed = first;
    t->capacity = capacity;
    return ASSAY_OK;
}

static assay_status merge_row(parity_table *t, int64_t i, const parity_claim *one, int64_t failed)
{
    parity_claim row = t->rows[i];
    if (merge(&row, one))
        ASSAY_TRY(parity_claim_keep(&row, &t->rows[i], t->texts, false));
    row.check = t->check;
    t->rows[i] = row;
    t->first_failed[i] = failed < t->first_failed[i] ? failed : t->first_failed[i];
    return ASSAY_OK;
}

assay_status parity_table_merge_claim(parity_table *t, const parity_claim *one)
{
    const int64_t failed = one->verdict == PARITY_FAIL ? one->step : INT64_MAX;
    char key[2 * ASSAY_NAME + 64];
    parity_key k = parity_key_begin(key, sizeof key);
    parity_key_text(&k, one->instance);
    parity_key_text(&k, one->op);
    parity_key_text(&k, one->tensor);
    parity_key_number(&k, (int64_t)one->phase);
    const int64_t found = parity_map_get(t->map, key);
    if (found >= 0)
        return merge_row(t, found, one, failed);
    parity_claim row = *one;
    ASSAY_TRY(grow(t));
    ASSAY_TRY(parity_claim_keep(&row, t->n > 0 ? &t->rows[t->n - 1] : NULL, t->texts, false));
    ASSAY_TRY(parity_map_put(t->map, key, t->n));
    row.check = t->check;
    t->rows[t->n] = row;
    t->first_failed[t->n] = failed;
    t->n++;
    return ASSAY_OK;
}

assay_status parity_table_merge(parity_table *t, const parity_result *one)
{
    const parity_claim claim = parity_claim_of(one);
    return parity_table_merge_claim(t, &claim);
}

parity_gallery *parity_table_gallery(parity_table *t)
{
    return &t->gallery;
}

static assay_status flush_row(const parity_table *t, const parity_claim *row, parity_report *report)
{
    const parity_drawn drawn = parity_gallery_drawn(&t->gallery, row);
    return parity_report_add_claim(report, row, &drawn);
}

bool parity_table_fails(const parity_table *t)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->rows[i].verdict == PARITY_FAIL)
            return true;
    return false;
}

assay_status parity_table_flush(const parity_table *t, parity_report *report)
{
    for (int64_t i = 0; i < t->n; i++)
        ASSAY_TRY(flush_row(t, &t->rows[i], report));
    return ASSAY_OK;
}

typedef struct place {
    const parity_claim *r;
    int64_t step, order;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    const bool fails = x->r->verdict == PARITY_FAIL, also = y->r->verdict == PARITY_FAIL;
    if (fails != also)
        return fails ? -1 : 1;
    if (fails && x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return (x->r > y->r) - (x->r < y->r); /* rows of one table */
}

assay_status parity_table_flush_ordered(const parity_table *t, parity_order order, void *user,
                                        parity_report *report)
{
    assay_status st = ASSAY_OK;
    place *places = malloc(((size_t)t->n + 1) * sizeof *places);
    ASSAY_CHECK(places, ASSAY_OUT_OF_MEMORY, "order of %lld results", (long long)t->n);
    for (int64_t i = 0; i < t->n; i++)
        places[i] = (place){&t->rows[i], t->first_failed[i], order != NULL ? order(user, &t->rows[i]) : i};
    qsort(places, (size_t)t->n, sizeof *places, compare_places);
    for (int64_t i = 0; i < t->n && st == ASSAY_OK; i++)
        st = flush_row(t, places[i].r, report);
    free(places);
    return st;
}
