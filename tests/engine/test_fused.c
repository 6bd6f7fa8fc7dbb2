/* Operations that the engine runs in one launch: when it does, what the records say, and that somebody who looks at a part, or
 * changes it, gets it as a call of its own. */
#include "gpu/rules.h"
#include "tests/support/engine_fused.h"

TestSuite(engine_fused, .timeout = 120, .init = engine_setup, .fini = engine_teardown);

enum { T = 3 };

typedef struct fixture {
    fused_run f;
    gpu_value a, b, gamma, residual, y, rstd, dx, dgamma;
} fixture;

static void open_run(fixture *x, int64_t h, const char *variants, bool traced)
{
    memset(x, 0, sizeof *x);
    fused_open(&x->f, variants, traced);
    x->a = fused_described(&x->f, T, h, 0);
    x->b = fused_described(&x->f, T, h, 0);
    x->gamma = fused_described(&x->f, h, 0, 0);
    fused_fill(&x->f, &x->a, "a", -0.5f);
    fused_fill(&x->f, &x->b, "b", 0.25f);
    fused_fill(&x->f, &x->gamma, "gamma", 1.0f);
}

static void call(fixture *x, int64_t h)
{
    const gpu_call_args parts[] = {
        {.op = "add",
         .at = "residual",
         .arg = {GPU_T("a", &x->a), GPU_T("b", &x->b),
                 GPU_NEW("y", &x->residual, fused_described(&x->f, T, h, 0))}},
        {.op = "rmsnorm_fwd",
         .at = "norm",
         .arg = {GPU_T("x", &x->residual), GPU_T("gamma", &x->gamma), GPU_F("eps", 1e-5),
                 GPU_NEW("y", &x->y, fused_described(&x->f, T, h, 0)),
                 GPU_NEW("rstd", &x->rstd, fused_described(&x->f, T, 0, 0))}},
    };
    must(gpu_call_fused(&x->f.run, "add_rmsnorm_fwd", parts, 2));
}

/* The backward: a is dy and the residual's gradient, b is x.  dx has memory before, of 7s. */
static void call_bwd(fixture *x, int64_t h)
{
    const gpu_call_args parts[] = {
        {.op = "rmsnorm_bwd",
         .at = "norm",
         .arg = {GPU_T("dy", &x->a), GPU_T("x", &x->b), GPU_T("gamma", &x->gamma), GPU_T("rstd", &x->rstd),
                 GPU_F("eps", 1e-5), GPU_T("dgamma", &x->dgamma), GPU_T("dx", &x->dx)}},
        {.op = "add",
         .at = "residual",
         .arg = {GPU_T("a", &x->a), GPU_T("b", &x->dx),
                 GPU_NEW("y", &x->residual, fused_described(&x->f, T, h, 0))}},
    };
    const float seven = 7.0f;
    x->rstd = fused_described(&x->f, T, 0, 0);
    x->dgamma = fused_described(&x->f, h, 0, 0);
    x->dx = fused_described(&x->f, T, h, 0);
    fused_fill(&x->f, &x->rstd, "rstd", 0.5f);
    fused_fill(&x->f, &x->dgamma, "dgamma", 0.0f);
    fused_fill(&x->f, &x->dx, "dx", 0.0f);
    must(gpu_run_upload(&x->f.run, x->dx.t.data, &seven, sizeof seven, "test"));
    must(gpu_call_fused(&x->f.run, "rmsnorm_bwd_add", parts, 2));
}

static void close_run(fixture *x, bool together)
{
    fused_records(&x->f, "add_rmsnorm_fwd", (const char *const[]){"residual", "norm"}, together);
    fused_close(&x->f);
}

/* One launch where there is a kernel and the parts would run those whose bits it has. */
Test(engine_fused, kernels_and_widths_choose)
{
    static const struct {
        const char *variants;
        int64_t h;
        bool together;
    } rows[] = {{"", 40, true},
                {"residual_norm=k1", 40, true},
                {"", 39, false},
                {"", 4104, false},
                {"k0", 40, false},
                {"residual_norm=k0", 40, false},
                {"rmsnorm=k1", 40, false},
                {"elementwise=k0", 40, false},
                {"attention=k0", 40, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        open_run(&x, rows[i].h, rows[i].variants, true);
        call(&x, rows[i].h);
        cr_expect_eq(x.f.n, rows[i].together ? 1 : 2, "%s, %lld columns: %d launches", rows[i].variants,
                     (long long)rows[i].h, x.f.n);
        if (rows[i].together)
            cr_expect_str_eq(x.f.ops[0], "add_rmsnorm_fwd k1");
        close_run(&x, rows[i].together);
    }
}

/* A fault of a part runs the parts; one of the whole is one of its kernel. */
Test(engine_fused, a_fault_of_a_part_takes_them_apart)
{
    static const struct {
        const char *fault;
        bool together;
        float first; /* of the residual: -0.25 */
    } rows[] = {{"negate:residual:y,op=add", false, 0.25f},
                {"negate:norm:y,op=rmsnorm_fwd", false, -0.25f},
                {"skip:residual", false, 0.0f},
                {"scale:residual:residual=2,op=add_rmsnorm_fwd", true, -0.5f},
                {"attr:residual:eps=+1,op=add_rmsnorm_fwd", true, -0.25f},
                {"negate:elsewhere:y", true, -0.25f}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        float found;
        open_run(&x, 40, "", true);
        must(gpu_fault_parse(rows[i].fault, &fused_place, &x.f.run.fault));
        call(&x, 40);
        cr_expect_eq(x.f.run.fault->met > 0, i + 1 < sizeof rows / sizeof *rows, "%s", rows[i].fault);
        must(gpu_run_download(&x.f.run, &found, x.residual.t.data, sizeof found, "test"));
        cr_expect_eq(found, rows[i].first, "%s: %g", rows[i].fault, (double)found);
        close_run(&x, rows[i].together);
    }
}

/* So does a rule of --substitute. */
Test(engine_fused, a_rule_for_a_part_takes_them_apart)
{
    static const char *const rules[] = {"k0:norm,op=rmsnorm_fwd\n", "k1:residual\n", "values:norm:y\n",
                                        "k0:elsewhere\n"};
    for (int i = 0; i < 4; i++) {
        fixture x;
        open_run(&x, 40, "", true);
        const char *file = engine_file("rules");
        FILE *out = fopen(file, "w");
        cr_assert_not_null(out);
        fputs(rules[i], out);
        fclose(out);
        must(gpu_rules_read(file, &x.f.run.rules));
        call(&x, 40);
        cr_expect_eq(x.f.n, i == 3 ? 1 : 2, "%s", rules[i]);
        if (i == 0)
            cr_expect_str_eq(x.f.ops[1], "rmsnorm_fwd k0");
        close_run(&x, i == 3);
        gpu_rules_destroy(x.f.run.rules);
    }
}

/* The backward, where the widths are those of the norm's highest rung. */
Test(engine_fused, a_backward_is_chosen_likewise)
{
    static const struct {
        const char *variants;
        int64_t h;
        bool together;
    } rows[] = {{"", 40, true},
                {"", 39, false},
                {"", 8192, true},
                {"", 8200, false},
                {"k0", 40, false},
                {"residual_norm=k0", 40, false},
                {"rmsnorm=k2", 40, false},
                {"elementwise=k0", 40, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        open_run(&x, rows[i].h, rows[i].variants, true);
        call_bwd(&x, rows[i].h);
        cr_expect_eq(x.f.n, rows[i].together ? 1 : 2, "%s, %lld columns: %d launches", rows[i].variants,
                     (long long)rows[i].h, x.f.n);
        if (rows[i].together)
            cr_expect_str_eq(x.f.ops[0], "rmsnorm_bwd_add k1");
        cr_expect_neq(fused_first(&x.f, &x.dx), 7.0f, "what is recorded is stored");
        fused_records(&x.f, "rmsnorm_bwd_add", (const char *const[]){"norm", "residual"}, rows[i].together);
        fused_close(&x.f);
    }
}

/* dx stays in the launch where nobody records it, and the sum is the same. */
Test(engine_fused, what_nobody_records_is_not_stored)
{
    float sum[2], dx[2];
    for (int traced = 0; traced < 2; traced++) {
        fixture x;
        open_run(&x, 40, "", traced);
        call_bwd(&x, 40);
        cr_expect_eq(x.f.n, 1);
        sum[traced] = fused_first(&x.f, &x.residual);
        dx[traced] = fused_first(&x.f, &x.dx);
        fused_close(&x.f);
    }
    cr_expect_eq(dx[0], 7.0f);
    cr_expect_neq(dx[1], 7.0f);
    cr_expect_eq(sum[0], sum[1]);
    cr_expect_eq(sum[1], -0.5f + dx[1]);
}
