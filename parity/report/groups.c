/* Claims grouped by case, precision, layout, kernels, check and operation: what junit.xml tells one by one. */
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"
#include <stdlib.h>
#include <string.h>

enum { KEY = ASSAY_NAME + 64 };

static assay_status find(parity_groups *g, parity_map *places, const parity_claim *x, int64_t column,
                         int64_t *at)
{
    char key[KEY];
    parity_key k = parity_key_begin(key, sizeof key);
    parity_key_number(&k, column);
    parity_key_number(&k, (int64_t)x->check);
    parity_key_text(&k, x->op);
    *at = parity_map_get(places, key);
    if (*at >= 0)
        return ASSAY_OK;
    if (g->n == g->capacity) {
        const int64_t capacity = g->capacity > 0 ? 2 * g->capacity : 256;
        parity_group *grown = realloc(g->of, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "report of %lld groups", (long long)capacity);
        g->of = grown;
        g->capacity = capacity;
    }
    *at = g->n++;
    g->of[*at] = (parity_group){.column = column, .check = x->check, .op = x->op};
    return parity_map_put(places, key, *at);
}

/* By column; in one, in order of first appearance: that of execution. */
static int compare(const void *a, const void *b)
{
    const parity_group *x = a, *y = b;
    if (x->column != y->column)
        return x->column < y->column ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

bool parity_claim_is_error(const parity_claim *x)
{
    static const char *const words[] = {"did not run", "could not be checked", "the judge died",
                                        "the judge left no result"};
    for (size_t k = 0; k < sizeof words / sizeof *words && x->verdict == PARITY_SKIP; k++)
        if (strncmp(x->message, words[k], strlen(words[k])) == 0)
            return true;
    return false;
}

static void count(parity_group *g, const parity_claim *x, int64_t i)
{
    int64_t *n = x->verdict == PARITY_PASS   ? &g->passed
                 : x->verdict == PARITY_SKIP ? &g->skipped
                                             : &g->failed;
    if (n == &g->failed && g->failed < PARITY_GROUP_SHOWN)
        g->first_failed[g->failed] = i;
    if (n == &g->skipped && g->skipped == 0)
        g->first_skipped = i;
    (*n)++;
    if (parity_claim_is_error(x) && g->errors++ == 0)
        g->first_error = i;
}

assay_status parity_groups_make(parity_groups *g, const parity_report *r, const int64_t *column_of)
{
    parity_map *places = NULL;
    int64_t at = 0;
    assay_status st = ASSAY_OK;
    memset(g, 0, sizeof *g);
    ASSAY_TRY(parity_map_create(&places));
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        ASSAY_TRY_GOTO(find(g, places, x, column_of[i], &at), st, done);
        count(&g->of[at], x, i);
    }
    for (int64_t i = 0; i < g->n; i++)
        g->of[i].number = i;
    if (g->n > 0)
        qsort(g->of, (size_t)g->n, sizeof *g->of, compare);
done:
    parity_map_destroy(places);
    if (st != ASSAY_OK)
        parity_groups_free(g);
    return st;
}

void parity_groups_free(parity_groups *g)
{
    free(g->of);
    memset(g, 0, sizeof *g);
}
