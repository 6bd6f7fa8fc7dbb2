/* Split, norm and rope in one launch: when the engine does it, its records, and what is stored where nobody sees it. */
#include "gpu/call.h"
#include "gpu/fault.h"
#include "tests/support/engine.h"

TestSuite(engine_fused_qkv, .timeout = 120, .init = engine_setup, .fini = engine_teardown);

enum { T = 3, A = 4, G = 2, POSITIONS = 5, MOST_SPANS = 8, MOST = T * (A + 2 * G) * 64 };

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

typedef struct fixture {
    gpu_run run;
    gpu_arena arena;
    gpu_value qkv, gamma, cosine, sine, position, q_raw, k_raw, q_norm, k_norm, q_rstd, k_rstd, q, k, v;
    gpu_observer observer;
    int64_t d, pairs;
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

static gpu_value described(fixture *f, int ndim, int64_t a, int64_t b, int64_t c)
{
    const gpu_dim dim[3] = {gpu_dim_whole(a), gpu_dim_whole(b), gpu_dim_whole(c)};
    return gpu_value_describe(&f->arena, ndim, dim, -1);
}

static void fill(fixture *f, gpu_value *v, const char *name)
{
    float host[MOST];
    must(gpu_value_make(v, ASSAY_F32));
    for (int64_t i = 0; i < gpu_tensor_count(v->t); i++)
        host[i] = 0.25f + 0.125f * (float)(i % 7);
    gpu_value_rename(&f->run, v, name);
    must(gpu_run_upload(&f->run, v->t.data, host, gpu_tensor_bytes(v->t), name));
}

static void open_run(fixture *f, int64_t d, int64_t pairs, const char *variants, bool traced)
{
    static const int64_t positions[T] = {4, 0, 2};
    assay_rank_env env;
    memset(f, 0, sizeof *f);
    f->d = d;
    f->pairs = pairs;
    f->run.layer = -1;
    f->run.recipe = assay_recipe_of(ASSAY_PRECISION_FP32);
    must(assay_rank_env_read(&env));
    must(gpu_ctx_init(&f->run.ctx, -1, (size_t)1 << 20));
    must(gpu_ctx_set_variants(&f->run.ctx, variants));
    must(gpu_comm_create(&f->run.comm, &env, NULL, false));
    must(gpu_arena_create(&f->arena, (size_t)1 << 20));
    if (traced) {
        snprintf(f->dir, sizeof f->dir, "%s", engine_file("trace"));
        json_t *header = json_object();
        must(assay_trace_writer_open(&f->run.trace, f->dir, 0, 1, header, false));
        json_decref(header);
    }
    f->observer = (gpu_observer){NULL, seen, f};
    f->run.observer = &f->observer;
    f->qkv = described(f, 2, T, (A + 2 * G) * d, 0);
    f->gamma = described(f, 1, d, 0, 0);
    f->cosine = described(f, 2, POSITIONS, pairs, 0);
    f->sine = described(f, 2, POSITIONS, pairs, 0);
    f->position = described(f, 1, T, 0, 0);
    fill(f, &f->qkv, "qkv");
    fill(f, &f->gamma, "gamma");
    fill(f, &f->cosine, "cos");
    fill(f, &f->sine, "sin");
    must(gpu_value_make(&f->position, ASSAY_I64));
    gpu_value_rename(&f->run, &f->position, "position");
    must(gpu_run_upload(&f->run, f->position.t.data, positions, sizeof positions, "position"));
}

#define ROTATION(f) GPU_T("cos", &(f)->cosine), GPU_T("sin", &(f)->sine), GPU_T("position", &(f)->position)
#define SPLIT(f)                                                                                             \
    {                                                                                                        \
        .op = "qkv_split_fwd", .at = "split", .arg = {                                                       \
            GPU_T("qkv", &(f)->qkv),                                                                         \
            GPU_I("heads", A),                                                                               \
            GPU_I("groups", G),                                                                              \
            GPU_I("head_dim", (f)->d),                                                                       \
            GPU_NEW("q", &(f)->q_raw, described((f), 3, T, A, (f)->d)),                                      \
            GPU_NEW("k", &(f)->k_raw, described((f), 3, T, G, (f)->d)),                                      \
            GPU_NEW("v", &(f)->v, described((f), 3, T, G, (f)->d))                                           \
        }                                                                                                    \
    }
#define TURN(f, name, from, to, heads)                                                                       \
    {                                                                                                        \
        .op = "rope_fwd", .at = (name), .arg = {                                                             \
            GPU_T("x", &(f)->from),                                                                          \
            ROTATION(f),                                                                                     \
            GPU_NEW("y", &(f)->to, described((f), 3, T, heads, (f)->d))                                      \
        }                                                                                                    \
    }
#define NORM(f, name, from, to, statistics, heads, epsilon)                                                  \
    {                                                                                                        \
        .op = "rmsnorm_fwd", .at = (name), .arg = {                                                          \
            GPU_T("x", &(f)->from),                                                                          \
            GPU_T("gamma", &(f)->gamma),                                                                     \
            GPU_F("eps", epsilon),                                                                           \
            GPU_NEW("y", &(f)->to, described((f), 3, T, heads, (f)->d)),                                     \
            GPU_NEW("rstd", &(f)->statistics, described((f), 2, T, heads, 0))                                \
        }                                                                                                    \
    }

static assay_status call(fixture *f, bool norm, double k_eps)
{
    if (!norm) {
        const gpu_call_args parts[] = {SPLIT(f), TURN(f, "rope_q", q_raw, q, A),
                                       TURN(f, "rope_k", k_raw, k, G)};
        return gpu_call_fused(&f->run, "qkv_rope_fwd", parts, 3);
    }
    const gpu_call_args parts[] = {SPLIT(f), NORM(f, "q_norm", q_raw, q_norm, q_rstd, A, 1e-5),
                                   NORM(f, "k_norm", k_raw, k_norm, k_rstd, G, k_eps),
                                   TURN(f, "rope_q", q_norm, q, A), TURN(f, "rope_k", k_norm, k, G)};
    return gpu_call_fused(&f->run, "qkv_norm_rope_fwd", parts, 5);
}

/* The records: each part by itself, marked or not, what it read and what the kernel declares of its output. */
static void hold_records(fixture *f, bool norm, bool together)
{
    static const char *const with[] = {"split", "q_norm", "k_norm", "rope_q", "rope_k"}, *const without[] = {
                                                                                             "split",
                                                                                             "rope_q",
                                                                                             "rope_k"};
    const int n = norm ? 5 : 3;
    assay_trace *t;
    must(assay_trace_end_step(f->run.trace));
    must(assay_trace_writer_close(f->run.trace));
    assay_trace_writer_destroy(f->run.trace);
    must(assay_trace_open(&t, f->dir, true));
    cr_assert_eq(assay_trace_n_ops(t, 0), n);
    for (int i = 0; i < n; i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        cr_expect_str_eq(op->instance, (norm ? with : without)[i]);
        cr_expect_str_eq(op->fused, !together ? "" : norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd");
        cr_expect_eq(op->fused_part, together ? i : 0);
        cr_expect_eq(op->arith.all.rounding, 0, "what it read is on record");
    }
    cr_expect(assay_trace_same_content(
        assay_trace_op_tensor(t, assay_trace_op_at(t, 0, n - 1), "x"),
        assay_trace_op_tensor(t, assay_trace_op_at(t, 0, norm ? 2 : 0), norm ? "y" : "k")));
    assay_trace_close(t);
}

static void close_run(fixture *f)
{
    gpu_fault_destroy(f->run.fault);
    gpu_arena_destroy(&f->arena);
    gpu_comm_destroy(&f->run.comm, false);
    gpu_ctx_destroy(&f->run.ctx);
    free(f->run.host);
    engine_teardown();
    engine_setup();
}

/* One launch where there is a kernel and the parts would run those whose bits it has. */
Test(engine_fused_qkv, kernels_and_heads_choose)
{
    static const struct {
        const char *variants;
        int64_t d, pairs;
        bool with_norm, without;
    } rows[] = {{"", 16, 8, true, true},
                {"qkv_rope=k1", 48, 24, true, true},
                {"", 40, 8, true, true}, /* rotated in part */
                {"", 20, 8, false, false},
                {"", 40, 20, false, false},
                {"k0", 16, 8, false, false},
                {"qkv_rope=k0", 16, 8, false, false},
                {"attention=k0", 16, 8, false, false},
                {"elementwise=k0", 16, 8, false, false},
                {"rmsnorm=k1", 16, 8, false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int norm = 0; norm < 2; norm++) {
            const bool together = norm ? rows[i].with_norm : rows[i].without;
            fixture f;
            open_run(&f, rows[i].d, rows[i].pairs, rows[i].variants, true);
            must(call(&f, norm, 1e-5));
            cr_expect_eq(f.n,
                         together ? 1
                         : norm   ? 5
                                  : 3,
                         "%s, heads of %lld: %d launches", rows[i].variants, (long long)rows[i].d, f.n);
            if (together)
                cr_expect_str_eq(f.ops[0], norm ? "qkv_norm_rope_fwd k1" : "qkv_rope_fwd k1");
            hold_records(&f, norm, together);
            close_run(&f);
        }
}

static float first_of(fixture *f, const gpu_value *v)
{
    float found;
    must(gpu_run_download(&f->run, &found, v->t.data, sizeof found, "test"));
    return found;
}

/* Without a trace what only the launch reads stays inside; the results are the same. */
Test(engine_fused_qkv, what_nobody_sees_is_not_stored)
{
    float q[2], k[2];
    for (int norm = 0; norm < 2; norm++) {
        for (int traced = 0; traced < 2; traced++) {
            static const float before = -77.0f;
            fixture f;
            open_run(&f, 16, 8, "", traced);
            gpu_value *inside = norm ? &f.q_norm : &f.q_raw;
            const size_t mark = f.arena.used;
            must(call(&f, norm, 1e-5)); /* where the value lies */
            f.arena.used = mark;
            must(gpu_run_upload(&f.run, inside->t.data, &before, sizeof before, "test"));
            must(call(&f, norm, 1e-5));
            cr_expect_eq(first_of(&f, inside) != before, traced, "norm %d, traced %d", norm, traced);
            if (norm)
                cr_expect_neq(first_of(&f, &f.q_raw), before, "its backward reads it");
            q[traced] = first_of(&f, &f.q);
            k[traced] = first_of(&f, &f.k);
            if (traced)
                assay_trace_writer_destroy(f.run.trace);
            close_run(&f);
        }
        cr_expect(q[0] == q[1] && k[0] == k[1]);
    }
}

/* A fault of a part runs the parts; one of the whole is one of its kernel. */
Test(engine_fused_qkv, a_fault_of_a_part_takes_them_apart)
{
    static const struct {
        const char *fault;
        bool together;
    } rows[] = {{"negate:rope_k:y,op=rope_fwd", false},
                {"negate:split:k,op=qkv_split_fwd", false},
                {"scale:split:k=2,op=qkv_norm_rope_fwd", true},
                {"attr:split:eps=+1,op=qkv_norm_rope_fwd", true}};
    const gpu_fault_place place = {
        .tp = 1, .cp = 1, .dp = 1, .ep = 1, .pp = 1, .steps = 1, .step_microbatches = 1};
    fixture f;
    open_run(&f, 16, 8, "", true);
    must(call(&f, true, 1e-5));
    const float honest = first_of(&f, &f.k);
    hold_records(&f, true, true);
    close_run(&f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_run(&f, 16, 8, "", true);
        must(gpu_fault_parse(rows[i].fault, &place, &f.run.fault));
        must(call(&f, true, 1e-5));
        cr_expect_gt(f.run.fault->met, 0, "%s", rows[i].fault);
        cr_expect_neq(first_of(&f, &f.k), honest, "%s", rows[i].fault);
        hold_records(&f, true, rows[i].together);
        close_run(&f);
    }
}

/* One attribute of the whole cannot have two values. */
Test(engine_fused_qkv, parts_that_differ_in_what_they_share_are_refused)
{
    fixture f;
    open_run(&f, 16, 8, "", false);
    cr_expect_eq(call(&f, true, 2e-5), ASSAY_INTERNAL);
    cr_expect_not_null(strstr(assay_error_message(), "eps: expected one value for all parts"), "%s",
                       assay_error_message());
    close_run(&f);
}
