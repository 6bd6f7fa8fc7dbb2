/* The one call as a seam: who watches a launch, who replaces a result, what says that it ran again. */
#include "gpu/call.h"
#include "tests/support/engine.h"

TestSuite(engine_seam, .timeout = 60, .init = engine_setup, .fini = engine_teardown);

enum { N = 8, MAX_SPANS = 16 };

typedef struct spans {
    cudaEvent_t event[2][MAX_SPANS]; /* at the beginning, at the end */
    gpu_span begun[MAX_SPANS], ended[MAX_SPANS];
    char instance[MAX_SPANS][64];
    int n[2];
} spans;

static assay_status begin(void *user, gpu_run *run, const gpu_span *span)
{
    spans *s = user;
    s->begun[s->n[0]] = *span;
    snprintf(s->instance[s->n[0]], sizeof s->instance[0], "%s", span->instance);
    CUDA_TRY(cudaEventCreate(&s->event[0][s->n[0]]));
    CUDA_TRY(cudaEventRecord(s->event[0][s->n[0]++], run->ctx.stream));
    return ASSAY_OK;
}

static assay_status end(void *user, gpu_run *run, const gpu_span *span)
{
    spans *s = user;
    s->ended[s->n[1]] = *span;
    CUDA_TRY(cudaEventCreate(&s->event[1][s->n[1]]));
    CUDA_TRY(cudaEventRecord(s->event[1][s->n[1]++], run->ctx.stream));
    return ASSAY_OK;
}

/* A run of one rank with two inputs of ones in its arena. */
typedef struct fixture {
    gpu_run run;
    gpu_arena arena;
    gpu_value a, b;
    char dir[256];
} fixture;

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

static gpu_value vector_of(fixture *f)
{
    const gpu_dim dim = gpu_dim_whole(N);
    return gpu_value_describe(&f->arena, 1, &dim, -1);
}

static void ones(fixture *f, gpu_value *v, const char *name)
{
    float host[N];
    for (int i = 0; i < N; i++)
        host[i] = 1.0f;
    *v = vector_of(f);
    must(gpu_value_make(v, ASSAY_F32));
    gpu_value_rename(&f->run, v, name);
    must(gpu_run_upload(&f->run, v->t.data, host, sizeof host, name));
}

static void open_run(fixture *f, bool traced)
{
    assay_rank_env env;
    memset(f, 0, sizeof *f);
    f->run.layer = -1;
    f->run.recipe = assay_recipe_of(ASSAY_PRECISION_FP32);
    must(assay_rank_env_read(&env));
    must(gpu_ctx_init(&f->run.ctx, -1, (size_t)1 << 20));
    must(gpu_comm_create(&f->run.comm, &env, NULL, false));
    must(gpu_arena_create(&f->arena, (size_t)1 << 16));
    if (traced) {
        snprintf(f->dir, sizeof f->dir, "%s", engine_file("trace"));
        json_t *header = json_object();
        must(assay_trace_writer_open(&f->run.trace, f->dir, 0, 1, header, false));
        json_decref(header);
    }
    ones(f, &f->a, "a");
    ones(f, &f->b, "b");
}

static void close_run(fixture *f)
{
    gpu_arena_destroy(&f->arena);
    gpu_comm_destroy(&f->run.comm, false);
    gpu_ctx_destroy(&f->run.ctx);
    free(f->run.host);
}

static assay_trace *close_trace(fixture *f)
{
    assay_trace *t;
    must(assay_trace_end_step(f->run.trace));
    must(assay_trace_writer_close(f->run.trace));
    assay_trace_writer_destroy(f->run.trace);
    must(assay_trace_open(&t, f->dir, true));
    return t;
}

static void add(fixture *f, const char *instance, gpu_value *y)
{
    must(GPU_CALL(&f->run, "add", instance, GPU_T("a", &f->a), GPU_T("b", &f->b),
                  GPU_NEW("y", y, vector_of(f))));
}

static float first_of(fixture *f, const gpu_value *v)
{
    float host[N];
    must(gpu_run_download(&f->run, host, v->t.data, sizeof host, "test"));
    return host[0];
}

Test(engine_seam, a_watcher_sees_every_launch_between_two_events)
{
    fixture f;
    spans s = {.n = {0, 0}};
    const gpu_observer watcher = {begin, end, &s};
    gpu_value y, sums[2], *squared[2] = {&sums[0], &sums[1]};
    open_run(&f, false);
    add(&f, "unseen", &y);
    f.run.observer = &watcher;
    add(&f, "mlp.residual", &y);
    f.run.recompute = true;
    add(&f, "mlp.residual", &y);
    f.run.recompute = false;
    const gpu_dim one = gpu_dim_whole(1);
    gpu_call_args list[2];
    for (int i = 0; i < 2; i++)
        list[i] =
            (gpu_call_args){.op = "sumsq",
                            .at = i == 0 ? "first" : "second",
                            .arg = {GPU_T("x", i == 0 ? &f.a : &f.b),
                                    GPU_NEW("y", squared[i], gpu_value_describe(&f.arena, 1, &one, -1))}};
    must(gpu_call_list(&f.run, list, 2, NULL, NULL));
    f.run.dry = true;
    add(&f, "counted only", &y);
    cr_assert_eq(s.n[0], 3);
    cr_assert_eq(s.n[1], 3);
    cr_expect_str_eq(s.instance[0], "mlp.residual");
    cr_expect(!s.begun[0].recompute && s.begun[1].recompute && !s.begun[2].recompute);
    cr_expect_str_eq(s.begun[2].op, "sumsq");
    cr_expect_str_eq(s.instance[2], "first");
    cr_expect_eq(s.begun[2].n, 2, "a list is one launch");
    cr_expect_eq(s.ended[0].variant, 1);
    must(gpu_ctx_sync(&f.run.ctx, "test"));
    for (int i = 0; i < 3; i++) {
        float ms = -1.0f;
        cr_assert_eq(cudaEventElapsedTime(&ms, s.event[0][i], s.event[1][i]), cudaSuccess);
        cr_expect_geq(ms, 0.0f);
        cudaEventDestroy(s.event[0][i]);
        cudaEventDestroy(s.event[1][i]);
    }
    close_run(&f);
}

static assay_status refuse(void *user, gpu_run *run, const gpu_span *span)
{
    (void)user;
    (void)run;
    ASSAY_FAIL(ASSAY_LIMIT, "no more events for %s", span->op);
}

Test(engine_seam, a_watcher_that_fails_stops_the_call)
{
    fixture f;
    gpu_value y;
    const gpu_observer watcher = {refuse, NULL, NULL};
    open_run(&f, false);
    f.run.observer = &watcher;
    cr_expect_eq(
        GPU_CALL(&f.run, "add", "x", GPU_T("a", &f.a), GPU_T("b", &f.b), GPU_NEW("y", &y, vector_of(&f))),
        ASSAY_LIMIT);
    cr_expect_not_null(strstr(assay_error_message(), "no more events for add"));
    close_run(&f);
}

/* Fives in place of y of instance "wrong". */
static assay_status fives(void *user, gpu_run *run, const char *op, const char *instance, const char *slot,
                          const gpu_value *moved, gpu_value *output, bool *replaced)
{
    float host[N];
    (void)moved;
    if (strcmp(op, "add") != 0 || strcmp(instance, "wrong") != 0)
        return ASSAY_OK;
    cr_expect_str_eq(slot, "y");
    for (int i = 0; i < N; i++)
        host[i] = 5.0f;
    ++*(int *)user;
    *replaced = true;
    return gpu_run_upload(run, output->t.data, host, sizeof host, "substitute");
}

Test(engine_seam, a_substitute_replaces_the_output_and_the_record_says_so)
{
    fixture f;
    gpu_value own, other, after;
    int calls = 0;
    open_run(&f, true);
    f.run.substitute = fives;
    f.run.substitute_user = &calls;
    add(&f, "right", &own);
    add(&f, "wrong", &other);
    must(GPU_CALL(&f.run, "add", "after", GPU_T("a", &other), GPU_T("b", &f.b),
                  GPU_NEW("y", &after, vector_of(&f))));
    cr_expect_eq(calls, 1);
    cr_expect_eq(first_of(&f, &own), 2.0f);
    cr_expect_eq(first_of(&f, &other), 5.0f);
    cr_expect_eq(first_of(&f, &after), 6.0f, "the next operation reads what was put there");
    assay_trace *t = close_trace(&f);
    cr_assert_eq(assay_trace_n_ops(t, 0), 3);
    for (int i = 0; i < 3; i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        cr_expect_eq(op->substituted[0], i == 1);
        float value;
        memcpy(&value, assay_trace_op_tensor(t, op, "y")->data, sizeof value);
        cr_expect_eq(value, i == 0 ? 2.0f : i == 1 ? 5.0f : 6.0f);
    }
    assay_trace_close(t);
    close_run(&f);
}

Test(engine_seam, what_runs_again_says_so)
{
    fixture f;
    gpu_value y;
    open_run(&f, true);
    add(&f, "x", &y);
    f.run.recompute = true;
    add(&f, "x", &y);
    assay_trace *t = close_trace(&f);
    cr_expect(!assay_trace_op_at(t, 0, 0)->recompute && assay_trace_op_at(t, 0, 1)->recompute);
    assay_trace_close(t);
    close_run(&f);
}
