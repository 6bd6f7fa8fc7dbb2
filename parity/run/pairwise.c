/* The greedy cover of parity_pairwise.  Source: Cohen et al., "The AETG System" (IEEE TSE 1997), with the legal rows
 * listed instead of drawn. */
#include "parity/run/pairwise.h"

#include <stdlib.h>

typedef struct cover {
    const int *rows;
    int n, axes;
    int first[PARITY_MAX_AXES]; /* number of an axis' first value among all values */
    int total;
    int *met; /* [total][total], first axis first: how often */
} cover;

static int *pair_of(const cover *c, int row, int a, int b)
{
    const int *r = c->rows + (size_t)row * (size_t)c->axes;
    return &c->met[(size_t)(c->first[a] + r[a]) * (size_t)c->total + (size_t)(c->first[b] + r[b])];
}

/* How many pairs a row would add; *often: how often its pairs have been met already. */
static int gain(const cover *c, int row, int *often)
{
    int n = 0;
    *often = 0;
    for (int a = 0; a < c->axes; a++)
        for (int b = a + 1; b < c->axes; b++) {
            const int met = *pair_of(c, row, a, b);
            n += met == 0;
            *often += met;
        }
    return n;
}

static void take(const cover *c, int row)
{
    for (int a = 0; a < c->axes; a++)
        for (int b = a + 1; b < c->axes; b++)
            ++*pair_of(c, row, a, b);
}

static void choose(const cover *c, bool *chosen)
{
    for (int i = 0; i < c->n; i++)
        if (chosen[i])
            take(c, i);
    for (;;) {
        int best = -1, most = 0, least = 0;
        for (int i = 0; i < c->n; i++) {
            int often;
            const int more = chosen[i] ? 0 : gain(c, i, &often);
            if (more > most || (more > 0 && more == most && often < least)) {
                most = more;
                least = often;
                best = i;
            }
        }
        if (best < 0)
            return;
        chosen[best] = true;
        take(c, best);
    }
}

assay_status parity_pairwise(const int *rows, int n, const int *values, int axes, bool *chosen)
{
    cover c = {.rows = rows, .n = n, .axes = axes};
    ASSAY_CHECK(axes >= 1 && axes <= PARITY_MAX_AXES && n >= 0, ASSAY_INVALID_ARGUMENT,
                "matrix: expected 1 to %d axes, found %d", PARITY_MAX_AXES, axes);
    for (int a = 0; a < axes; a++) {
        c.first[a] = c.total;
        c.total += values[a];
    }
    for (int i = 0; i < n * axes; i++)
        ASSAY_CHECK(rows[i] >= 0 && rows[i] < values[i % axes], ASSAY_INVALID_ARGUMENT,
                    "matrix: row %d: value %d of axis %d, expected 0 to %d", i / axes, rows[i], i % axes,
                    values[i % axes] - 1);
    c.met = calloc((size_t)c.total * (size_t)c.total + 1, sizeof *c.met);
    ASSAY_CHECK(c.met != NULL, ASSAY_OUT_OF_MEMORY, "matrix: pairs of %d values", c.total);
    choose(&c, chosen);
    free(c.met);
    return ASSAY_OK;
}
