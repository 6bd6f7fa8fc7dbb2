/* Operations that the engine runs in one launch: when it does, what the records say, and that somebody who looks at a part, or
 * changes it, gets it as a call of its own. */
#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/rules.h"
#include "tests/support/engine.h"

TestSuite(engine_fused, .timeout = 120, .init = engine_setup, .fini = engine_teardown);

enum { T = 3, MOST_SPANS = 8 };

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

typedef struct fixture {
    gpu_run run;
    gpu_arena arena;
    gpu_value a, b, gamma, residual, y, rstd, dx, dgamma;
    gpu_observer observer;
    char ops[MOST_SPANS][32];
    int n;
    char dir[256];
} fixture;

static assay_status seen(void *user, gpu_run *run, const gpu_span *span)
{
    fixture *f = user;
    (void)run;
    if (f->n < MOST_SPANS)
        snprintf(f->ops[f->n++], sizeof f->ops[0], "%s k%d", span->op, span->variant);
    return ASSAY_OK;
}

static gpu_value described(fixture *f, int ndim, int64_t rows, int64_t columns)
{
    const gpu_dim dim[2] = {gpu_dim_whole(rows), gpu_dim_whole(columns)};
    return gpu_value_describe(&f->arena, ndim, dim, -1);
}

static void fill(fixture *f, gpu_value *v, const char *name, float from)
{
    const int64_t n = gpu_tensor_count(v->t);
    float *host = malloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = from + 0.125f * (float)(i % 7);
    gpu_value_rename(&f->run, v, name);
    must(gpu_run_upload(&f->run, v->t.data, host, (size_t)n * sizeof *host, name));
    free(host);
}

static void open_run(fixture *f, int64_t h, const char *variants)
{
    assay_rank_env env;
    memset(f, 0, sizeof *f);
    f->run.layer = -1;
    f->run.recipe = assay_recipe_of(ASSAY_PRECISION_FP32);
    must(assay_rank_env_read(&env));
    must(gpu_ctx_init(&f->run.ctx, -1, (size_t)1 << 21));
    must(gpu_ctx_set_variants(&f->run.ctx, variants));
    must(gpu_comm_create(&f->run.comm, &env, NULL, false));
    must(gpu_arena_create(&f->arena, (size_t)1 << 20));
    snprintf(f->dir, sizeof f->dir, "%s", engine_file("trace"));
    json_t *header = json_object();
    must(assay_trace_writer_open(&f->run.trace, f->dir, 0, 1, header, false));
    json_decref(header);
    f->observer = (gpu_observer){NULL, seen, f};
    f->run.observer = &f->observer;
    f->a = described(f, 2, T, h);
    f->b = described(f, 2, T, h);
    f->gamma = described(f, 1, h, 0);
    must(gpu_value_make(&f->a, ASSAY_F32));
    must(gpu_value_make(&f->b, ASSAY_F32));
    must(gpu_value_make(&f->gamma, ASSAY_F32));
    fill(f, &f->a, "a", -0.5f);
    fill(f, &f->b, "b", 0.25f);
    fill(f, &f->gamma, "gamma", 1.0f);
}

static void call(fixture *f, int64_t h)
{
    const gpu_call_args parts[] = {
        {.op = "add",
         .at = "residual",
         .arg = {GPU_T("a", &f->a), GPU_T("b", &f->b), GPU_NEW("y", &f->residual, described(f, 2, T, h))}},
        {.op = "rmsnorm_fwd",
         .at = "norm",
         .arg = {GPU_T("x", &f->residual), GPU_T("gamma", &f->gamma), GPU_F("eps", 1e-5),
                 GPU_NEW("y", &f->y, described(f, 2, T, h)),
                 GPU_NEW("rstd", &f->rstd, described(f, 1, T, 0))}},
    };
    must(gpu_call_fused(&f->run, "add_rmsnorm_fwd", parts, 2));
}

/* The backward: a is dy and the residual's gradient, b is x.  dx has memory before, of 7s. */
static void call_bwd(fixture *f, int64_t h)
{
    const gpu_call_args parts[] = {
        {.op = "rmsnorm_bwd",
         .at = "norm",
         .arg = {GPU_T("dy", &f->a), GPU_T("x", &f->b), GPU_T("gamma", &f->gamma), GPU_T("rstd", &f->rstd),
                 GPU_F("eps", 1e-5), GPU_T("dgamma", &f->dgamma), GPU_T("dx", &f->dx)}},
        {.op = "add",
         .at = "residual",
         .arg = {GPU_T("a", &f->a), GPU_T("b", &f->dx), GPU_NEW("y", &f->residual, described(f, 2, T, h))}},
    };
    const float seven = 7.0f;
    f->rstd = described(f, 1, T, 0);
    f->dgamma = described(f, 1, h, 0);
    f->dx = described(f, 2, T, h);
    must(gpu_value_make(&f->rstd, ASSAY_F32));
    must(gpu_value_make(&f->dgamma, ASSAY_F32));
    must(gpu_value_make(&f->dx, ASSAY_F32));
    fill(f, &f->rstd, "rstd", 0.5f);
    fill(f, &f->dgamma, "dgamma", 0.0f);
    fill(f, &f->dx, "dx", 0.0f);
    must(gpu_run_upload(&f->run, f->dx.t.data, &seven, sizeof seven, "test"));
    must(gpu_call_fused(&f->run, "rmsnorm_bwd_add", parts, 2));
}

static float first_of(fixture *f, const gpu_value *v)
{
    float found;
    must(gpu_run_download(&f->run, &found, v->t.data, sizeof found, "test"));
    return found;
}

static void close_engine(fixture *f)
{
    gpu_fault_destroy(f->run.fault);
    gpu_arena_destroy(&f->arena);
    gpu_comm_destroy(&f->run.comm, false);
    gpu_ctx_destroy(&f->run.ctx);
    free(f->run.host);
}

/* The records of the two parts, and that they say one launch or two calls. */
static void close_run_of(fixture *f, const char *whole, bool together)
{
    const assay_op *row = assay_op_find(whole);
    const char *made = NULL, *read = strcmp(whole, "add_rmsnorm_fwd") == 0 ? "x" : "b";
    assay_trace *t;
    must(assay_trace_end_step(f->run.trace));
    must(assay_trace_writer_close(f->run.trace));
    assay_trace_writer_destroy(f->run.trace);
    must(assay_trace_open(&t, f->dir, true));
    cr_assert_eq(assay_trace_n_ops(t, 0), 2);
    for (int k = 0; k < 2; k++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, k);
        cr_expect_str_eq(op->op, row->parts[k].op);
        cr_expect_str_eq(op->instance, strcmp(op->op, "add") == 0 ? "residual" : "norm");
        cr_expect_str_eq(op->fused, together ? whole : "");
        cr_expect_eq(op->fused_part, together ? k : 0);
        cr_expect_eq(op->arith.all.rounding, 0, "what it read is on record");
    }
    cr_assert_eq(assay_op_part_source(row, 1, read, &made), 0);
    cr_expect(assay_trace_same_content(assay_trace_op_tensor(t, assay_trace_op_at(t, 0, 0), made),
                                       assay_trace_op_tensor(t, assay_trace_op_at(t, 0, 1), read)));
    assay_trace_close(t);
    close_engine(f);
}

static void close_run(fixture *f, bool together)
{
    close_run_of(f, "add_rmsnorm_fwd", together);
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
        fixture f;
        open_run(&f, rows[i].h, rows[i].variants);
        call(&f, rows[i].h);
        cr_expect_eq(f.n, rows[i].together ? 1 : 2, "%s, %lld columns: %d launches", rows[i].variants,
                     (long long)rows[i].h, f.n);
        if (rows[i].together)
            cr_expect_str_eq(f.ops[0], "add_rmsnorm_fwd k1");
        close_run(&f, rows[i].together);
        engine_teardown();
        engine_setup();
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
    const gpu_fault_place place = {
        .tp = 1, .cp = 1, .dp = 1, .ep = 1, .pp = 1, .steps = 1, .step_microbatches = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f;
        float found;
        open_run(&f, 40, "");
        must(gpu_fault_parse(rows[i].fault, &place, &f.run.fault));
        call(&f, 40);
        cr_expect_eq(f.run.fault->met > 0, i + 1 < sizeof rows / sizeof *rows, "%s", rows[i].fault);
        must(gpu_run_download(&f.run, &found, f.residual.t.data, sizeof found, "test"));
        cr_expect_eq(found, rows[i].first, "%s: %g", rows[i].fault, (double)found);
        close_run(&f, rows[i].together);
        engine_teardown();
        engine_setup();
    }
}

/* So does a rule of --substitute. */
Test(engine_fused, a_rule_for_a_part_takes_them_apart)
{
    static const char *const rules[] = {"k0:norm,op=rmsnorm_fwd\n", "k1:residual\n", "values:norm:y\n",
                                        "k0:elsewhere\n"};
    for (int i = 0; i < 4; i++) {
        fixture f;
        open_run(&f, 40, "");
        const char *file = engine_file("rules");
        FILE *out = fopen(file, "w");
        cr_assert_not_null(out);
        fputs(rules[i], out);
        fclose(out);
        must(gpu_rules_read(file, &f.run.rules));
        call(&f, 40);
        cr_expect_eq(f.n, i == 3 ? 1 : 2, "%s", rules[i]);
        if (i == 0)
            cr_expect_str_eq(f.ops[1], "rmsnorm_fwd k0");
        close_run(&f, i == 3);
        gpu_rules_destroy(f.run.rules);
        engine_teardown();
        engine_setup();
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
        fixture f;
        open_run(&f, rows[i].h, rows[i].variants);
        call_bwd(&f, rows[i].h);
        cr_expect_eq(f.n, rows[i].together ? 1 : 2, "%s, %lld columns: %d launches", rows[i].variants,
                     (long long)rows[i].h, f.n);
        if (rows[i].together)
            cr_expect_str_eq(f.ops[0], "rmsnorm_bwd_add k1");
        cr_expect_neq(first_of(&f, &f.dx), 7.0f, "what is recorded is stored");
        close_run_of(&f, "rmsnorm_bwd_add", rows[i].together);
        engine_teardown();
        engine_setup();
    }
}

/* dx stays in the launch where nobody records it, and the sum is the same. */
Test(engine_fused, what_nobody_records_is_not_stored)
{
    float sum[2], dx[2];
    for (int traced = 0; traced < 2; traced++) {
        fixture f;
        open_run(&f, 40, "");
        assay_trace_writer *trace = f.run.trace;
        if (!traced)
            f.run.trace = NULL;
        call_bwd(&f, 40);
        cr_expect_eq(f.n, 1);
        sum[traced] = first_of(&f, &f.residual);
        dx[traced] = first_of(&f, &f.dx);
        f.run.trace = NULL;
        must(assay_trace_end_step(trace));
        must(assay_trace_writer_close(trace));
        assay_trace_writer_destroy(trace);
        close_engine(&f);
        engine_teardown();
        engine_setup();
    }
    cr_expect_eq(dx[0], 7.0f);
    cr_expect_neq(dx[1], 7.0f);
    cr_expect_eq(sum[0], sum[1]);
    cr_expect_eq(sum[1], -0.5f + dx[1]);
}
