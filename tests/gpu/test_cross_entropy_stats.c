/* The statistics of cross entropy in one pass: inside their bounds in whatever order the logits come, and the bounds narrow enough that one
 * term left out of a sum over a real vocabulary is seen. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_stats, .timeout = 120);

typedef struct rung_case {
    const char *variant;
    int64_t v;
    int lanes; /* of the arithmetic that was declared when every new maximum rescaled a sum */
} rung_case;
static const rung_case cases[] = {
    {"cross_entropy=k1", 300, 32},    {"cross_entropy=k1", 4095, 32},    {"cross_entropy=k2", 4096, 256},
    {"cross_entropy=k2", 32003, 256}, {"cross_entropy=k2", 128256, 256},
};
enum { N_CASES = sizeof cases / sizeof *cases, FORMER_TILE = 8, FORMER_ULP = 2 };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The same values in other orders. */
enum { DRAWN, RISING, FALLING, STEPS, LARGEST_LAST, ORDERS };
static void put_in_order(double *l, int64_t v, int order)
{
    if (order == DRAWN)
        return;
    qsort(l, (size_t)v, sizeof *l, ascending);
    if (order == FALLING || order == STEPS)
        for (int64_t i = 0; i < v / 2; i++) {
            const double x = l[i];
            l[i] = l[v - 1 - i];
            l[v - 1 - i] = x;
        }
    /* falling, but for a new maximum at the end of every stretch */
    for (int64_t i = 1; order == STEPS && i * 100 < v; i++) {
        const double x = l[i * 100];
        l[i * 100] = l[v / 100 - i];
        l[v / 100 - i] = x;
    }
    if (order == LARGEST_LAST) {
        const double x = l[v - 1];
        memmove(l + 1, l, (size_t)(v - 1) * sizeof *l);
        l[0] = l[v / 2];
        l[v / 2] = l[1];
        l[v - 1] = x;
    }
}

/* Sum of about twelve uniform numbers: gaussian, times `spread`. */
static void draw_row(op_call *c, const rung_case *k, double spread, int order)
{
    op_call dice;
    double *l = put(c, "logits", ASSAY_F32, 0, 0, 2, (int64_t)1, k->v);
    call_begin(&dice, c->ctx, c->seed + 1);
    const double *uniform = put(&dice, "logits", ASSAY_F32, -0.5, 0.5, 2, k->v, (int64_t)12);
    for (int64_t i = 0; i < k->v; i++) {
        double sum = 0.0;
        for (int j = 0; j < 12; j++)
            sum += uniform[12 * i + j];
        l[i] = (double)(float)(spread * sum);
    }
    call_end(&dice);
    put_in_order(l, k->v, order);
    store_slot(c);
    put(c, "targets", ASSAY_I64, 0, (double)k->v, 1, (int64_t)1);
}

static assay_declaration former(const rung_case *k)
{
    const assay_arith a = {.accumulate = ASSAY_F32,
                           .order = ASSAY_ORDER_TREE,
                           .lanes = k->lanes,
                           .split = 1,
                           .math_ulp = FORMER_ULP,
                           .tile = k->lanes * FORMER_TILE};
    return assay_declaration_make(a);
}

/* Value and bound of the sum, and how far the result is off. */
typedef struct sight {
    double sum, bound, off;
} sight;
static sight look(const op_call *c, const assay_declaration *declared)
{
    ref_value in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    int64_t *ints[2 * ASSAY_MAX_SLOTS];
    ref_replay_result r;
    for (int i = 0; i < c->n_in; ++i)
        in[i] = as_value(&c->in[i], c->value[i], &ints[i]);
    out[0] = as_value(&c->out[0], c->result[0], &ints[c->n_in]);
    cr_assert_eq(ref_replay("cross_entropy_stats", c->attrs, declared, in, c->n_in, out, 1, &r), ASSAY_OK);
    const sight s = {r.outputs[0].value[1], r.outputs[0].bound[1],
                     fabs(c->result[0][1] - r.outputs[0].value[1])};
    ref_replay_free(&r);
    for (int i = 0; i <= c->n_in; ++i)
        free(ints[i]);
    return s;
}

Test(gpu_stats, every_order_of_the_logits_is_inside)
{
    static const double spreads[] = {0.0, 0.01, 1.0, 8.0, 300.0};
    char why[256];
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < N_CASES; k++)
        for (int s = 0; s < 5; s++)
            for (int order = 0; order < ORDERS; order++) {
                op_call c;
                set_variants(&ctx, cases[k].variant);
                call_begin(&c, &ctx, 11);
                draw_row(&c, &cases[k], spreads[s], order);
                run_op(&c, "cross_entropy_stats", ASSAY_F32);
                cr_expect_eq(c.declared.variant, cases[k].variant[15] - '0');
                cr_expect(admitted(&c, "cross_entropy_stats", why), "%s, %lld logits times %g, order %d: %s",
                          cases[k].variant, (long long)cases[k].v, spreads[s], order, why);
                call_end(&c);
            }
    gpu_ctx_destroy(&ctx);
}

/* Depth of the tree, 16 units of exp, 12 for the shifts of gaussian logits, and no rescaling for each tile. */
Test(gpu_stats, bounds_do_not_grow_by_a_rescaling_for_each_tile)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < N_CASES; k++) {
        op_call c;
        const int lanes = cases[k].lanes * FORMER_TILE;
        const double depth = ceil((double)cases[k].v / lanes) + log2(lanes);
        const assay_declaration before = former(&cases[k]);
        set_variants(&ctx, cases[k].variant);
        call_begin(&c, &ctx, 12);
        draw_row(&c, &cases[k], 1.0, DRAWN);
        run_op(&c, "cross_entropy_stats", ASSAY_F32);
        const sight now = look(&c, &c.declared.arith), then = look(&c, &before);
        cr_expect_leq(now.bound, (depth + 16.0 + 12.0) * 0x1p-24 * now.sum, "%s, %lld: %g units",
                      cases[k].variant, (long long)cases[k].v, now.bound / now.sum * 0x1p24);
        cr_expect_leq(1.5 * now.bound, then.bound);
        cr_log_info("%s %lld: bound %.1f units, was %.1f; off %.2f", cases[k].variant, (long long)cases[k].v,
                    now.bound / now.sum * 0x1p24, then.bound / now.sum * 0x1p24, now.off / now.sum * 0x1p24);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* The planted fault: one term is left out, whose share of the sum lies between the bounds. */
Test(gpu_stats, a_term_left_out_is_seen_where_the_former_bound_let_it_pass)
{
    char why[256];
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < N_CASES; k++) {
        op_call c;
        int64_t best = 0;
        const assay_declaration before = former(&cases[k]);
        set_variants(&ctx, cases[k].variant);
        call_begin(&c, &ctx, 13);
        draw_row(&c, &cases[k], 3.0, DRAWN);
        run_op(&c, "cross_entropy_stats", ASSAY_F32);
        const double wanted = sqrt(look(&c, &c.declared.arith).bound * look(&c, &before).bound);
        const double *l = c.value[0], max = c.result[0][0];
        for (int64_t i = 0; i < cases[k].v; i++)
            if (fabs(log(wanted) - l[i] + max) < fabs(log(wanted) - l[best] + max))
                best = i;
        cr_expect(admitted(&c, "cross_entropy_stats", why), "%s", why);
        c.result[0][1] -= exp(l[best] - max);
        const assay_declaration now = c.declared.arith;
        c.declared.arith = before;
        cr_expect(admitted(&c, "cross_entropy_stats", why), "%s, %lld: the former bound saw it: %s",
                  cases[k].variant, (long long)cases[k].v, why);
        c.declared.arith = now;
        cr_expect(!admitted(&c, "cross_entropy_stats", why), "%s, %lld: a term of %g of %g passed",
                  cases[k].variant, (long long)cases[k].v, exp(l[best] - max), c.result[0][1]);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}
