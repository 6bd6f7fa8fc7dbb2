/* The verb `bench` on one rank: peak, warm-up, measured steps by turns without and with events, peak again, a file. */
#include "gpu/bench.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "gpu/bench_record.h"
#include "gpu/train.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_run {
    const gpu_bench_options *options;
    gpu_engine *engine;
    gpu_bench *record;
    gpu_bench_peak peak[2];          /* before and after the steps: a clock that fell shows */
    char no_peak[200];               /* why there is none */
    double *plain_s, *with_events_s; /* [steps] */
    int64_t waits, layer_waits;      /* of the host, in the last step without events */
} bench_run;

/* --- steps -------------------------------------------------------------------------------------------------- */
static assay_status wait(gpu_engine *e)
{
    return gpu_comm_wait(&e->run.comm, e->run.ctx.stream, "bench");
}

/* Seconds of the next step by the host's clock, from an idle stream to an idle stream.  watched: with the observer. */
static assay_status one_step(bench_run *b, int64_t *step, bool watched, double *seconds)
{
    gpu_engine *e = b->engine;
    ASSAY_TRY(wait(e));
    if (watched)
        ASSAY_TRY(gpu_bench_begin_step(b->record, &e->run));
    e->run.observer = watched ? &b->record->observer : NULL;
    const double start = assay_monotonic_s();
    ASSAY_TRY(gpu_engine_step(e, (*step)++));
    if (!watched) {
        b->waits = e->run.comm.waits;
        b->layer_waits = e->run.layer_waits;
    }
    ASSAY_TRY(wait(e));
    *seconds = assay_monotonic_s() - start;
    e->run.observer = NULL;
    return watched ? gpu_bench_end_step(b->record, &e->run) : ASSAY_OK;
}

/* The peak is worth having and no reason to lose the steps: without memory for it, the report says why there is none. */
static assay_status measure_peak(bench_run *b, int turn)
{
    gpu_run *run = &b->engine->run;
    const assay_dtype dtype = run->recipe->op[ASSAY_OPS_LINEAR].act;
    const assay_status st = gpu_bench_measure_peak(&run->ctx, dtype, 0, 0, &b->peak[turn]);
    if (st != ASSAY_OUT_OF_MEMORY)
        return st;
    snprintf(b->no_peak, sizeof b->no_peak, "%.199s", assay_error_message());
    assay_error_clear();
    return ASSAY_OK;
}

static assay_status run_steps(bench_run *b)
{
    int64_t step = 0;
    double unused;
    ASSAY_TRY(measure_peak(b, 0));
    ASSAY_TRY(one_step(b, &step, true, &unused)); /* counted */
    while (step < b->options->warmup)
        ASSAY_TRY(one_step(b, &step, false, &unused));
    /* By turns: whatever drifts, drifts for both. */
    for (int64_t i = 0; i < b->options->steps; i++) {
        ASSAY_TRY(one_step(b, &step, false, &b->plain_s[i]));
        ASSAY_TRY(one_step(b, &step, true, &b->with_events_s[i]));
    }
    return measure_peak(b, 1);
}

/* --- the file ----------------------------------------------------------------------------------------------- */
static json_t *numbers(const double *values, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_real(values[i])) != 0)
            json_array_append_new(list, json_null()); /* JSON has no NaN */
    return list;
}

static json_t *row_json(const gpu_bench_row *r, int64_t steps)
{
    char variant[8];
    snprintf(variant, sizeof variant, "k%d", r->variant);
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "phase",
                            assay_phase_name(r->phase), "op", r->op->name, "instance", r->at, "variant",
                            r->op->collective ? "nccl" : variant, "recompute", r->recompute, "calls",
                            (json_int_t)r->calls, "launches", (json_int_t)r->launches, "flops",
                            (json_int_t)r->cost.flops, "model_flops", (json_int_t)r->cost.model_flops,
                            "bytes", (json_int_t)r->cost.bytes, "ms", numbers(r->ms, steps));
    if (row != NULL && r->op->collective) {
        json_object_set_new(row, "group", json_string(assay_group_name(r->group)));
        json_object_set_new(row, "group_ranks", json_integer(r->ranks));
        json_object_set_new(row, "bus_factor", json_real(gpu_bench_bus_factor(r->op->name, r->ranks)));
    }
    return row;
}

static json_t *peak_json(const bench_run *b)
{
    const gpu_bench_peak *p = b->peak;
    if (b->no_peak[0] != '\0')
        return json_pack("{s:s}", "not_measured", b->no_peak);
    return json_pack("{s:s, s:I, s:I, s:[f,f], s:[f,f]}", "dtype", assay_dtype_name(p->dtype), "product",
                     (json_int_t)p->size, "copy_bytes", (json_int_t)p->copy_bytes, "flops_per_s",
                     p[0].flops_per_s, p[1].flops_per_s, "copy_bytes_per_s", p[0].copy_bytes_per_s,
                     p[1].copy_bytes_per_s);
}

static json_t *rank_json(const bench_run *b)
{
    const gpu_engine *e = b->engine;
    const gpu_ctx *ctx = &e->run.ctx;
    const assay_batches *data = &e->batches;
    const int64_t steps = b->options->steps;
    char layout[ASSAY_LAYOUT_TEXT];
    assay_layout_format(&e->grid.p, layout);
    json_t *rows = json_array();
    for (int i = 0; i < b->record->n_rows; i++)
        json_array_append_new(rows, row_json(&b->record->rows[i], steps));
    return json_pack(
        "{s:s, s:i, s:i, s:s, s:b, s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:o, s:I, s:I}",
        "format", "assay-bench-rank-1", "rank", e->env.rank, "world", e->env.world, "device",
        ctx->device_name, "simulated", ctx->simulated, "measured_with",
        ctx->simulated ? "wall clock of the simulator" : "CUDA events", "layout", layout, "precision",
        assay_precision_name(e->options.precision), "variant", e->options.variant, "optimizer_steps",
        data->training, "microbatches", (json_int_t)data->microbatches, "micro_batch_size",
        (json_int_t)data->b, "seq_length", (json_int_t)data->s, "warmup", (json_int_t)b->options->warmup,
        "steps", (json_int_t)steps, "peak", peak_json(b), "s", numbers(b->plain_s, steps), "s_with_events",
        numbers(b->with_events_s, steps), "ms_between_events", numbers(b->record->step_ms, steps),
        "ms_inside_operations", numbers(b->record->busy_ms, steps), "loss", numbers(e->loss, e->last_step),
        "grad_norm", numbers(e->grad_norm, data->training ? e->last_step : 0), "operations", rows,
        "host_waits", (json_int_t)b->waits, "host_waits_in_layers", (json_int_t)b->layer_waits);
}

static assay_status write_rank(const bench_run *b)
{
    char path[ASSAY_PATH + 32];
    json_t *root = rank_json(b);
    ASSAY_CHECK(root, ASSAY_OUT_OF_MEMORY, "bench: report of rank %d", b->engine->env.rank);
    snprintf(path, sizeof path, "%s/rank-%05d.json", b->options->out, b->engine->env.rank);
    const assay_status st = assay_json_save(root, path);
    json_decref(root);
    return st;
}

/* --- the verb ----------------------------------------------------------------------------------------------- */
static assay_status check(const gpu_bench_options *o)
{
    ASSAY_CHECK(o->steps >= 1, ASSAY_INVALID_ARGUMENT, "bench: --steps: expected at least 1, found %lld",
                (long long)o->steps);
    ASSAY_CHECK(o->warmup >= 1, ASSAY_INVALID_ARGUMENT,
                "bench: --warmup: expected at least 1 (the first step is counted, not timed), found %lld",
                (long long)o->warmup);
    ASSAY_CHECK(o->out[0] != '\0', ASSAY_INVALID_ARGUMENT, "bench: --out DIR is needed");
    return ASSAY_OK;
}

assay_status gpu_bench_verb(const assay_train_options *options, const gpu_bench_options *bench)
{
    assay_status st = ASSAY_OK;
    bench_run b = {.options = bench};
    assay_train_options o = *options;
    ASSAY_TRY(check(bench));
    o.train_iters = bench->warmup + 2 * bench->steps;
    ASSAY_TRY(assay_mkdir_p(bench->out));
    ASSAY_TRY_GOTO(gpu_engine_open(&o, true, &b.engine), st, done);
    ASSAY_TRY_GOTO(gpu_bench_create(&b.record, bench->steps, bench->instances), st, done);
    b.plain_s = calloc((size_t)bench->steps, sizeof *b.plain_s);
    b.with_events_s = calloc((size_t)bench->steps, sizeof *b.with_events_s);
    ASSAY_CHECK_GOTO(b.plain_s && b.with_events_s, ASSAY_OUT_OF_MEMORY, st, done, "bench: %lld steps",
                     (long long)bench->steps);
    ASSAY_TRY_GOTO(run_steps(&b), st, done);
    ASSAY_TRY_GOTO(write_rank(&b), st, done);
done:
    gpu_bench_destroy(b.record);
    gpu_engine_close(b.engine, st != ASSAY_OK);
    free(b.plain_s);
    free(b.with_events_s);
    return st;
}
