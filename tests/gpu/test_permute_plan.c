/* The plan of the experts' rows as a counting sort: the rows of the plain one at sizes that fill warps, parts and chunks and do not. */
#include "tests/support/gpu_ops.h"

TestSuite(gpu_permute_plan, .timeout = 120);

typedef struct plan_size {
    int64_t t, k, experts, first, local;
    int fill; /* 0: all experts in turn, 1: one has all rows, 2: some have none and some assignments are of nobody */
} plan_size;

static int64_t chosen(const plan_size *s, int64_t i)
{
    const int64_t token = i / s->k, slot = i % s->k;
    if (s->fill == 1)
        return s->experts - 1;
    if (s->fill == 2 && (token * 7 + slot * 3) % 5 == 0)
        return -1;
    return (token * 31 + slot * (s->fill == 2 ? 2 : 1)) % s->experts / (s->fill == 2 ? 2 : 1);
}

/* Every output of one rung; list has room for all. */
static void plan_with(gpu_ctx *x, const char *variant, const plan_size *s, int64_t rows, gpu_slot *list)
{
    op_call c;
    int n = 0;
    set_variants(x, variant);
    call_begin(&c, x, 1);
    const int64_t shape[2] = {s->t, s->k};
    new_slot(&c, "indices", ASSAY_I64, 2, shape);
    for (int64_t i = 0; i < s->t * s->k; i++)
        ((int64_t *)c.in[0].data)[i] = chosen(s, i);
    attr_i(&c, "experts", s->experts);
    attr_i(&c, "rows", rows);
    attr_i(&c, "first_expert", s->first);
    attr_i(&c, "local_experts", s->local);
    cr_assert_eq(gpu_execute(x, "permute_plan", c.attrs, ASSAY_F32, c.in, c.n_in, list, &n, &c.declared),
                 ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(n, 4);
    cr_expect_eq(c.declared.variant, variant[strlen(variant) - 1] - '0');
    call_end(&c);
}

Test(gpu_permute_plan, a_counting_sort_plans_the_same_rows)
{
    static const plan_size sizes[] = {
        {0, 2, 5, 0, 5, 0},    {1, 1, 1, 0, 1, 0},     {1500, 3, 7, 0, 7, 0},      {1365, 3, 300, 0, 300, 0},
        {2048, 1, 5, 0, 5, 1}, {2047, 1, 5, 0, 5, 1},  {700, 4, 33, 0, 33, 2},     {3000, 2, 64, 16, 32, 2},
        {31, 2, 40, 39, 1, 0}, {513, 8, 128, 0, 0, 0}, {65, 32, 1024, 0, 1024, 0},
    };
    gpu_ctx x;
    open_ctx(&x);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const plan_size *s = &sizes[i];
        gpu_slot plain[ASSAY_MAX_SLOTS], sorted[ASSAY_MAX_SLOTS];
        int64_t rows = 0;
        for (int64_t a = 0; a < s->t * s->k; a++)
            rows += chosen(s, a) >= s->first && chosen(s, a) < s->first + s->local;
        plan_with(&x, "router=k0", s, rows, plain);
        for (int order = 0; order < 3; order++) {
            static const assay_sim_order orders[] = {ASSAY_SIM_ORDER_FORWARD, ASSAY_SIM_ORDER_REVERSE,
                                                     ASSAY_SIM_ORDER_RANDOM};
            assay_sim_set_order(orders[order], 7);
            plan_with(&x, "router=k2", s, rows, sorted);
            for (int o = 0; o < 4; o++) {
                cr_expect(memcmp(sorted[o].data, plain[o].data,
                                 (size_t)slot_count(&plain[o]) * sizeof(int64_t)) == 0,
                          "sizes %zu: %s", i, plain[o].slot);
                free(sorted[o].data);
            }
        }
        assay_sim_set_order(ASSAY_SIM_ORDER_FORWARD, 0);
        for (int o = 0; o < 4; o++)
            free(plain[o].data);
    }
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&x);
}

/* More assignments than rows were promised: those beyond are written nowhere, and their tokens have no row. */
Test(gpu_permute_plan, a_plan_with_too_few_rows_writes_no_more)
{
    static const plan_size s = {100, 2, 5, 0, 5, 0};
    gpu_ctx x;
    open_ctx(&x);
    for (int v = 0; v < 3; v++) {
        static const char *const variants[] = {"router=k0", "router=k1", "router=k2"};
        gpu_slot out[ASSAY_MAX_SLOTS];
        int64_t absent = 0;
        plan_with(&x, variants[v], &s, 150, out);
        for (int64_t i = 0; i < s.t * s.k; i++)
            absent += decode(&out[3], i) < 0.0;
        cr_expect_eq(absent, 50, "%s: %lld", variants[v], (long long)absent);
        for (int o = 0; o < 4; o++)
            free(out[o].data);
    }
    gpu_ctx_destroy(&x);
}

/* More rows than assignments have: nobody's are -1, and what the plan says of the others does not change. */
Test(gpu_permute_plan, rows_that_nobody_has_are_marked)
{
    static const plan_size sizes[] = {{700, 4, 33, 0, 33, 2}, {40, 2, 8, 2, 3, 0},   {3000, 2, 64, 16, 32, 2},
                                      {9, 1, 5, 0, 4, 1},     {65, 32, 64, 0, 0, 0}, {1500, 3, 7, 0, 6, 0}};
    gpu_ctx x;
    open_ctx(&x);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const plan_size *s = &sizes[i];
        int64_t rows = 0;
        for (int64_t a = 0; a < s->t * s->k; a++)
            rows += chosen(s, a) >= s->first && chosen(s, a) < s->first + s->local;
        cr_assert_lt(rows, s->t * s->k);
        for (int v = 0; v < 3; v++) {
            static const char *const variants[] = {"router=k0", "router=k1", "router=k2"};
            gpu_slot exact[ASSAY_MAX_SLOTS], wide[ASSAY_MAX_SLOTS];
            plan_with(&x, variants[v], s, rows, exact);
            plan_with(&x, variants[v], s, s->t * s->k, wide);
            for (int o = 0; o < 4; o++) {
                cr_expect(
                    memcmp(wide[o].data, exact[o].data, (size_t)slot_count(&exact[o]) * sizeof(int64_t)) == 0,
                    "sizes %zu, %s: %s", i, variants[v], exact[o].slot);
                for (int64_t r = slot_count(&exact[o]); r < slot_count(&wide[o]); r++)
                    cr_expect_eq(((int64_t *)wide[o].data)[r], -1, "sizes %zu, %s: %s[%lld]", i, variants[v],
                                 wide[o].slot, (long long)r);
                free(exact[o].data);
                free(wide[o].data);
            }
        }
    }
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&x);
}
