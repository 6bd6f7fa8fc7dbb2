/* Orders of the experts' rows that the device makes from its counts: those that a plain walk makes, in every thread order; counts that
 * promise more than there is room for write nothing beside the outputs. */
#include "gpu/sort_index.h"
#include "tests/support/gpu_ops.h"

TestSuite(gpu_sort_index, .timeout = 120);

enum { MOST = 4096, FENCE = 77 };

typedef struct sort_case {
    int sources;
    bool merged;
    int64_t experts, room, multiple, more; /* more: places and old rows that nobody has */
    int64_t least, spread;                 /* of a count */
} sort_case;

/* All arrays of a case; a word behind each belongs to nobody. */
typedef struct sort_arrays {
    int64_t n_counts, padded, gathered;
    int64_t counts[MOST], tokens_per_expert[MOST], sort[MOST], unsort[MOST];
} sort_arrays;

static int64_t count_at(const sort_case *c, int64_t i)
{
    return c->least + (i * 7 + 3) % (c->spread + 1);
}

/* A count below zero is no rows. */
static int64_t rows_of(int64_t count)
{
    return count > 0 ? count : 0;
}

static int64_t room_of(const sort_case *c, int64_t n)
{
    return c->room >= 0 ? c->room : (n + c->multiple - 1) / c->multiple * c->multiple;
}

/* Where the rows of an expert of a source begin among those that arrive. */
static int64_t start_of(const sort_case *c, const int64_t *counts, int source, int64_t expert)
{
    int64_t start = 0;
    for (int s = 0; s < c->sources; s++)
        for (int64_t e = 0; e < c->experts; e++) {
            const bool before = c->merged ? e < expert || (e == expert && s < source)
                                          : s < source || (s == source && e < expert);
            start += before ? rows_of(counts[s * c->experts + e]) : 0;
        }
    return start;
}

/* One row after the other. */
static void walk(const sort_case *c, sort_arrays *a)
{
    int64_t row = 0, end = 0;
    a->n_counts = c->sources * c->experts;
    a->gathered = c->more;
    for (int64_t i = 0; i < a->n_counts; i++)
        a->gathered += rows_of(a->counts[i] = count_at(c, i));
    for (int64_t i = 0; i < MOST; i++)
        a->sort[i] = a->unsort[i] = -1;
    for (int64_t e = 0; e < c->experts; e++, row = end) {
        int64_t n = 0;
        for (int s = 0; s < c->sources; s++)
            n += rows_of(a->counts[s * c->experts + e]);
        a->tokens_per_expert[e] = room_of(c, n);
        end = row + room_of(c, n);
        for (int s = 0; s < c->sources; s++)
            for (int64_t i = 0; i < a->counts[s * c->experts + e]; i++, row++) {
                const int64_t old = start_of(c, a->counts, s, e) + i;
                a->sort[row] = row < end ? old : a->sort[row];
                a->unsort[old] = row < end ? row : -1;
            }
    }
    a->padded = end + c->more;
    cr_assert_lt(a->padded, MOST);
    cr_assert_lt(a->gathered, MOST);
}

static int64_t *device_words(int64_t n, const int64_t *from)
{
    void *p;
    int64_t fence = FENCE;
    cr_assert_eq(cudaMalloc(&p, (size_t)(n + 1) * sizeof fence), cudaSuccess);
    if (from)
        cr_assert_eq(cudaMemcpy(p, from, (size_t)n * sizeof fence, cudaMemcpyHostToDevice), cudaSuccess);
    cr_assert_eq(cudaMemcpy((int64_t *)p + n, &fence, sizeof fence, cudaMemcpyHostToDevice), cudaSuccess);
    return p;
}

static void expect_words(size_t row, const char *what, int64_t *found, int64_t n, const int64_t *expected)
{
    static int64_t words[MOST + 1];
    cr_assert_eq(cudaMemcpy(words, found, (size_t)(n + 1) * sizeof *words, cudaMemcpyDeviceToHost),
                 cudaSuccess);
    for (int64_t i = 0; i < n; i++)
        cr_expect_eq(words[i], expected[i], "case %zu, %s[%lld]: expected %lld, found %lld", row, what,
                     (long long)i, (long long)expected[i], (long long)words[i]);
    cr_expect_eq(words[n], FENCE, "case %zu: %s is written beyond its end", row, what);
    cr_expect_eq(cudaFree(found), cudaSuccess);
}

static void run_case(size_t row, const sort_case *c, const sort_arrays *a, bool sorts)
{
    int64_t *counts = device_words(a->n_counts, a->counts);
    int64_t *rooms = device_words(c->experts, NULL);
    int64_t *sort = sorts ? device_words(a->padded, NULL) : NULL;
    int64_t *unsort = sorts ? device_words(a->gathered, NULL) : NULL;
    const gpu_sort_index_args args = {.counts = counts,
                                      .sources = c->sources,
                                      .merged = c->merged,
                                      .experts = c->experts,
                                      .room = c->room,
                                      .multiple = c->multiple,
                                      .tokens_per_expert = rooms,
                                      .sort = sort,
                                      .padded = sorts ? a->padded : 0,
                                      .unsort = unsort,
                                      .gathered = sorts ? a->gathered : 0};
    cr_assert_eq(gpu_sort_index(&args, 0), cudaSuccess);
    cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
    expect_words(row, "tokens_per_expert", rooms, c->experts, a->tokens_per_expert);
    if (sorts) {
        expect_words(row, "sort", sort, a->padded, a->sort);
        expect_words(row, "unsort", unsort, a->gathered, a->unsort);
    }
    cr_expect_eq(cudaFree(counts), cudaSuccess);
}

Test(gpu_sort_index, the_device_sorts_as_a_walk_over_the_rows)
{
    static const sort_case cases[] = {
        {1, false, 1, -1, 1, 0, 0, 0},    {1, false, 1, 3, 1, 0, 3, 0},    {1, false, 5, 6, 1, 0, 0, 5},
        {1, false, 5, -1, 16, 9, 0, 40},  {1, false, 33, 7, 1, 5, 0, 7},   {1, false, 64, -1, 32, 200, 1, 30},
        {2, false, 6, -1, 1, 0, 0, 11},   {2, false, 6, 40, 1, 3, 0, 20},  {4, false, 3, -1, 16, 7, 0, 140},
        {3, false, 65, -1, 1, 0, 0, 6},   {2, true, 6, -1, 16, 4, 0, 9},   {4, true, 7, 60, 1, 150, 0, 14},
        {1, true, 40, -1, 32, 1, 0, 50},  {1, false, 200, -1, 1, 0, 0, 2}, {2, false, 6, -1, 1, 3, -4, 11},
        {1, false, 40, -1, 8, 5, -9, 12}, {3, true, 9, 20, 1, 2, -5, 9},
    };
    static sort_arrays a;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const assay_sim_order orders[] = {ASSAY_SIM_ORDER_FORWARD, ASSAY_SIM_ORDER_REVERSE,
                                                 ASSAY_SIM_ORDER_RANDOM};
        walk(&cases[i], &a);
        for (int order = 0; order < 3; order++) {
            assay_sim_set_order(orders[order], 7);
            run_case(i, &cases[i], &a, true);
            run_case(i, &cases[i], &a, false);
        }
    }
    assay_sim_set_order(ASSAY_SIM_ORDER_FORWARD, 0);
    cr_expect_eq(assay_sim_reports(), 0);
}

/* More rows than an expert has room for: those beyond have no place, and those of the next expert theirs. */
Test(gpu_sort_index, rows_without_room_have_no_place)
{
    static const sort_case cases[] = {{1, false, 4, 5, 1, 3, 2, 9}, {3, false, 4, 8, 1, 0, 2, 9}};
    static sort_arrays a;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        walk(&cases[i], &a);
        run_case(i, &cases[i], &a, true);
    }
    cr_expect_eq(assay_sim_reports(), 0);
}
