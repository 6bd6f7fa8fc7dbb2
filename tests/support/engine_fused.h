/* One rank that runs operations in one launch: what it launched, what it recorded. */
#ifndef TESTS_SUPPORT_ENGINE_FUSED_H
#define TESTS_SUPPORT_ENGINE_FUSED_H

#include "gpu/call.h"
#include "gpu/fault.h"
#include "tests/support/engine.h"

enum { FUSED_SPANS = 8 };
static const gpu_fault_place fused_place = {
    .tp = 1, .cp = 1, .dp = 1, .ep = 1, .pp = 1, .steps = 1, .step_microbatches = 1};

static inline void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

typedef struct fused_run {
    gpu_run run;
    gpu_arena arena;
    gpu_observer observer;
    char ops[FUSED_SPANS][32]; /* launches: "rope_fwd k1" */
    int n;
    char dir[256];
} fused_run;

static inline assay_status fused_seen(void *user, gpu_run *run, const gpu_span *span)
{
    fused_run *f = user;
    (void)run;
    if (f->n < FUSED_SPANS)
        snprintf(f->ops[f->n++], sizeof f->ops[0], "%s k%d", span->op, span->variant);
    return ASSAY_OK;
}

static inline void fused_open(fused_run *f, const char *variants, bool traced)
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
    if (traced) {
        snprintf(f->dir, sizeof f->dir, "%s", engine_file("trace"));
        json_t *header = json_object();
        must(assay_trace_writer_open(&f->run.trace, f->dir, 0, 1, header, false));
        json_decref(header);
    }
    f->observer = (gpu_observer){NULL, fused_seen, f};
    f->run.observer = &f->observer;
}

/* Where it is open. */
static inline void fused_end_trace(fused_run *f)
{
    if (f->run.trace == NULL)
        return;
    must(assay_trace_end_step(f->run.trace));
    must(assay_trace_writer_close(f->run.trace));
    assay_trace_writer_destroy(f->run.trace);
    f->run.trace = NULL;
}

/* Ends the trace where it is open, and leaves nothing behind. */
static inline void fused_close(fused_run *f)
{
    fused_end_trace(f);
    gpu_fault_destroy(f->run.fault);
    gpu_arena_destroy(&f->arena);
    gpu_comm_destroy(&f->run.comm, false);
    gpu_ctx_destroy(&f->run.ctx);
    free(f->run.host);
    engine_teardown();
    engine_setup();
}

/* Extents up to the first 0. */
static inline gpu_value fused_described(fused_run *f, int64_t a, int64_t b, int64_t c)
{
    const gpu_dim dim[3] = {gpu_dim_whole(a), gpu_dim_whole(b), gpu_dim_whole(c)};
    return gpu_value_describe(&f->arena, c > 0 ? 3 : b > 0 ? 2 : 1, dim, -1);
}

/* A value in memory: from, and eighths above it. */
static inline void fused_fill(fused_run *f, gpu_value *v, const char *name, float from)
{
    if (v->t.data == NULL)
        must(gpu_value_make(v, ASSAY_F32));
    const int64_t n = gpu_tensor_count(v->t);
    float *host = malloc((size_t)n * sizeof *host + 1);
    for (int64_t i = 0; i < n; i++)
        host[i] = from + 0.125f * (float)(i % 7);
    gpu_value_rename(&f->run, v, name);
    must(gpu_run_upload(&f->run, v->t.data, host, (size_t)n * sizeof *host, name));
    free(host);
}

/* Integers in memory, of a described value. */
static inline void fused_integers(fused_run *f, gpu_value *v, const char *name, const int64_t *data)
{
    must(gpu_value_make(v, ASSAY_I64));
    gpu_value_rename(&f->run, v, name);
    must(gpu_run_upload(&f->run, v->t.data, data, gpu_tensor_bytes(v->t), name));
}

static inline void fused_positions(fused_run *f, gpu_value *v, const int64_t *position, int64_t n)
{
    *v = fused_described(f, n, 0, 0);
    fused_integers(f, v, "position", position);
}

static inline float fused_first(fused_run *f, const gpu_value *v)
{
    float found;
    must(gpu_run_download(&f->run, &found, v->t.data, sizeof found, "test"));
    return found;
}

/* Ends the trace: the parts' records under these names, marked as one launch or not, and what one takes from another. */
static inline void fused_records(fused_run *f, const char *whole, const char *const *instances, bool together)
{
    const assay_op *row = assay_op_find(whole);
    const int n = assay_op_n_parts(row);
    assay_trace *t;
    fused_end_trace(f);
    must(assay_trace_open(&t, f->dir, true));
    cr_assert_eq(assay_trace_n_ops(t, 0), n);
    for (int k = 0; k < n; k++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, k);
        cr_expect_str_eq(op->op, row->parts[k].op);
        cr_expect_str_eq(op->instance, instances[k]);
        cr_expect_str_eq(op->fused, together ? whole : "");
        cr_expect_eq(op->fused_part, together ? k : 0);
        cr_expect_eq(op->arith.all.rounding, 0, "what it read is on record");
        for (int i = 0; i < op->n_inputs; i++) {
            const char *made = NULL, *slot = op->inputs[i].slot;
            const int source = assay_op_part_source(row, k, slot, &made);
            cr_expect(source < 0 || assay_trace_same_content(
                                        assay_trace_op_tensor(t, op, slot),
                                        assay_trace_op_tensor(t, assay_trace_op_at(t, 0, source), made)),
                      "%s of part %d", slot, k);
        }
    }
    assay_trace_close(t);
}

#endif
