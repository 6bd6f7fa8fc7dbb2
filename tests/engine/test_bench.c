/* `bench`: what it counts is what a step does, what it times changes no number, and what is not closed is said. */
#include "core/base/json.h"
#include "core/files/trace.h"
#include "gpu/bench.h"
#include "gpu/bench_record.h"
#include "gpu/call.h"
#include "tests/support/engine.h"

TestSuite(engine_bench, .timeout = 200, .init = engine_setup, .fini = engine_teardown);

/* --- the recorder alone ------------------------------------------------------------------------------------- */
enum { N = 8 };
typedef struct fixture {
    gpu_run run;
    gpu_arena arena;
    gpu_value a, y;
    gpu_bench *bench;
} fixture;

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

static void open_run(fixture *f, int64_t steps)
{
    assay_rank_env env;
    const gpu_dim dim = gpu_dim_whole(N);
    float ones[N];
    memset(f, 0, sizeof *f);
    f->run.layer = -1;
    f->run.recipe = assay_recipe_of(ASSAY_PRECISION_FP32);
    must(assay_rank_env_read(&env));
    must(gpu_ctx_init(&f->run.ctx, -1, (size_t)1 << 20));
    must(gpu_comm_create(&f->run.comm, &env, NULL, false));
    must(gpu_arena_create(&f->arena, (size_t)1 << 16));
    f->a = gpu_value_describe(&f->arena, 1, &dim, -1);
    must(gpu_value_make(&f->a, ASSAY_F32));
    gpu_value_rename(&f->run, &f->a, "a");
    for (int i = 0; i < N; i++)
        ones[i] = 1.0f;
    must(gpu_run_upload(&f->run, f->a.t.data, ones, sizeof ones, "a"));
    must(gpu_bench_create(&f->bench, steps, true));
}

static void close_run(fixture *f)
{
    gpu_bench_destroy(f->bench);
    gpu_arena_destroy(&f->arena);
    gpu_comm_destroy(&f->run.comm, false);
    gpu_ctx_destroy(&f->run.ctx);
    free(f->run.host);
}

static assay_status add(fixture *f, const char *instance)
{
    const gpu_dim dim = gpu_dim_whole(N);
    return GPU_CALL(&f->run, "add", instance, GPU_T("a", &f->a), GPU_T("b", &f->a),
                    GPU_NEW("y", &f->y, gpu_value_describe(&f->arena, 1, &dim, -1)));
}

/* One step of `first` and `second` additions. */
static assay_status step_of(fixture *f, int first, int second)
{
    ASSAY_TRY(gpu_bench_begin_step(f->bench, &f->run));
    f->run.observer = &f->bench->observer;
    for (int i = 0; i < first; i++)
        ASSAY_TRY(add(f, "decoder.layers.3.first"));
    for (int i = 0; i < second; i++)
        ASSAY_TRY(add(f, "second"));
    f->run.observer = NULL;
    return gpu_bench_end_step(f->bench, &f->run);
}

Test(engine_bench, rows_hold_calls_costs_and_times)
{
    fixture f;
    open_run(&f, 2);
    must(step_of(&f, 3, 1));
    cr_assert_eq(f.bench->n_rows, 2);
    cr_expect_str_eq(f.bench->rows[0].at, "first", "instances are those of any layer");
    cr_expect_eq(f.bench->rows[0].calls, 3);
    cr_expect_eq(f.bench->rows[0].cost.flops, 3 * N);
    cr_expect_eq(f.bench->rows[0].cost.bytes, 3 * 3 * N * 4);
    cr_expect_eq(f.bench->step, 0, "the counted step is not timed");
    for (int k = 0; k < 2; k++) {
        must(step_of(&f, 3, 1));
        const double sum = f.bench->rows[0].ms[k] + f.bench->rows[1].ms[k];
        cr_expect(fabs(sum - f.bench->busy_ms[k]) <= 1e-5 * sum + 1e-9, "nothing overlaps here: %g, %g", sum,
                  f.bench->busy_ms[k]);
        cr_expect_leq(f.bench->busy_ms[k], f.bench->step_ms[k] * (1.0 + 1e-5));
    }
    cr_expect_eq(f.bench->step, 2);
    close_run(&f);
}

static void expect_refusal(assay_status st, assay_status code, const char *text)
{
    cr_expect_eq(st, code, "expected %s, found %s: %s", assay_status_name(code), assay_status_name(st),
                 assay_error_message());
    cr_expect(strstr(assay_error_message(), text), "expected '%s' in '%s'", text, assay_error_message());
    assay_error_clear();
}

Test(engine_bench, a_step_with_other_calls_than_those_counted_is_refused)
{
    fixture f;
    open_run(&f, 2);
    must(step_of(&f, 3, 1));
    expect_refusal(step_of(&f, 2, 2), ASSAY_INTERNAL, "add: 2 calls in this step, 3 in the counted one");
    expect_refusal(step_of(&f, 4, 1), ASSAY_INTERNAL, "more launches in a step than the 4 that were counted");
    f.run.observer = NULL;
    close_run(&f);
}

/* Planted: an observer whose end is lost, and one whose begin is. */
Test(engine_bench, a_pair_that_is_not_closed_is_refused)
{
    for (int k = 0; k < 2; k++) {
        fixture f;
        open_run(&f, 2);
        gpu_observer half = f.bench->observer;
        half.end = k == 0 ? NULL : half.end;
        half.begin = k == 1 ? NULL : half.begin;
        must(gpu_bench_begin_step(f.bench, &f.run));
        f.run.observer = &half;
        const assay_status st = add(&f, "mlp.residual");
        if (k == 0) {
            must(st);
            expect_refusal(gpu_bench_end_step(f.bench, &f.run), ASSAY_INTERNAL,
                           "add mlp.residual began and did not end");
        } else {
            expect_refusal(st, ASSAY_INTERNAL, "add mlp.residual ended and never began");
        }
        f.run.observer = NULL;
        close_run(&f);
    }
}

Test(engine_bench, more_steps_than_there_is_room_for_are_refused)
{
    fixture f;
    gpu_bench *none;
    open_run(&f, 1);
    must(step_of(&f, 1, 0));
    must(step_of(&f, 1, 0));
    expect_refusal(step_of(&f, 1, 0), ASSAY_INTERNAL, "more than 1 steps");
    expect_refusal(gpu_bench_create(&none, 0, false), ASSAY_INVALID_ARGUMENT, "0 steps");
    cr_expect_null(none);
    close_run(&f);
}

Test(engine_bench, bus_factors_are_those_of_nccl_tests)
{
    static const struct {
        const char *op;
        int ranks;
        double factor;
    } rows[] = {{"all_reduce", 4, 1.5}, {"all_gather", 4, 0.75}, {"reduce_scatter", 8, 0.875},
                {"all_to_all", 2, 0.5}, {"broadcast", 8, 1.0},   {"send", 2, 1.0},
                {"all_reduce", 1, 0.0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(gpu_bench_bus_factor(rows[i].op, rows[i].ranks), rows[i].factor, "%s of %d", rows[i].op,
                     rows[i].ranks);
}

Test(engine_bench, the_peak_is_measured_and_leaves_the_context_as_it_was)
{
    gpu_ctx ctx;
    gpu_bench_peak peak;
    must(gpu_ctx_init(&ctx, -1, 4096));
    must(gpu_ctx_set_variants(&ctx, "linear=k0"));
    const gpu_ctx before = ctx;
    for (int k = 0; k < 2; k++) {
        const assay_dtype dtype = k == 0 ? ASSAY_F32 : ASSAY_BF16;
        must(gpu_bench_measure_peak(&ctx, dtype, 32, 4096, &peak));
        cr_expect(peak.size == 32 && peak.copy_bytes == 4096 && peak.dtype == dtype);
        cr_expect(peak.flops_per_s > 0.0 && isfinite(peak.flops_per_s) && peak.copy_bytes_per_s > 0.0 &&
                  isfinite(peak.copy_bytes_per_s));
        cr_expect_eq(memcmp(&before, &ctx, sizeof ctx), 0);
    }
    gpu_ctx_destroy(&ctx);
}

Test(engine_bench, medians)
{
    double odd[] = {3.0, 1.0, 2.0}, even[] = {4.0, 1.0, 3.0, 2.0};
    cr_expect_eq(gpu_bench_median(odd, 3), 2.0);
    cr_expect_eq(gpu_bench_median(even, 4), 2.5);
}

/* --- the verb ----------------------------------------------------------------------------------------------- */
static json_t *rank_file(int rank)
{
    char name[64];
    json_t *root;
    snprintf(name, sizeof name, "out/rank-%05d.json", rank);
    must(assay_json_load(&root, engine_file(name)));
    return root;
}

static const int64_t batch_shape[4] = {2, 2, 2, 8}; /* steps, microbatches, b, s */

/* The operation that was called: of a fused one the records of its parts, the first of which counts; NULL: another part. */
static const char *called(const assay_trace_op *op)
{
    return op->fused[0] == '\0' ? op->op : op->fused_part == 0 ? op->fused : NULL;
}

/* Calls of a row in a rank's first step, by the trace; rope_table is made before the first step and once more for a trace. */
static int64_t traced_calls(const assay_trace *t, int rank, const json_t *row)
{
    const char *phase = json_string_value(json_object_get(row, "phase")),
               *name = json_string_value(json_object_get(row, "op")),
               *group = json_string_value(json_object_get(row, "group")),
               *variant = json_string_value(json_object_get(row, "variant"));
    int64_t n = 0;
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        n += op->step == 0 && called(op) && strcmp(called(op), name) == 0 &&
             strcmp(assay_phase_name(op->phase), phase) == 0 &&
             (group == NULL || strcmp(op->group, group) == 0) &&
             (variant[0] != 'k' || op->variant == atoi(variant + 1));
    }
    return n;
}

static void expect_the_calls_of_a_step(const assay_trace *t, int rank)
{
    json_t *root = rank_file(rank), *rows = json_object_get(root, "operations");
    const json_t *row;
    size_t i;
    int64_t benched = 0, traced = 0;
    json_array_foreach(rows, i, row)
    {
        const int64_t calls = json_integer_value(json_object_get(row, "calls"));
        cr_expect_eq(calls, traced_calls(t, rank, row), "rank %d: %s %s: %lld calls, %lld in the trace", rank,
                     json_string_value(json_object_get(row, "phase")),
                     json_string_value(json_object_get(row, "op")), (long long)calls,
                     (long long)traced_calls(t, rank, row));
        benched += calls;
    }
    for (int64_t k = 0; k < assay_trace_n_ops(t, rank); k++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, k);
        traced += op->step == 0 && called(op) && strcmp(called(op), "rope_table") != 0;
    }
    cr_expect_eq(benched, traced, "rank %d: %lld calls in the table, %lld in the trace", rank,
                 (long long)benched, (long long)traced);
    json_decref(root);
}

/* Losses and gradient norms of the first steps are those that `step` writes, to the last bit of its F32. */
static void expect_the_numbers_of_a_step(int rank, const char *path)
{
    static const char *const names[] = {"loss", "grad_norm"};
    json_t *root = rank_file(rank);
    assay_tensorfile *f;
    must(assay_tensorfile_open(&f, path));
    for (int k = 0; k < 2; k++) {
        const assay_tensor_info *t = assay_tensorfile_find(f, names[k]);
        cr_assert(t && t->count == batch_shape[0], "%s", names[k]);
        for (int64_t i = 0; i < t->count; i++) {
            const float found =
                (float)json_real_value(json_array_get(json_object_get(root, names[k]), (size_t)i));
            cr_expect_eq((double)found, tensor_element(t, i), "rank %d, step %lld: %s %.9g, expected %.9g",
                         rank, (long long)i, names[k], (double)found, tensor_element(t, i));
        }
    }
    assay_tensorfile_close(f);
    json_decref(root);
}

static void same_as_step(const char *model, int64_t vocab, const char *layout, int world,
                         const char *precision)
{
    char batch[ENGINE_PATH], out[ENGINE_PATH], trace[ENGINE_PATH], result[ENGINE_PATH];
    assay_trace *t;
    snprintf(batch, sizeof batch, "%s", engine_file("batch.safetensors"));
    snprintf(result, sizeof result, "%s", engine_file("result.safetensors"));
    snprintf(out, sizeof out, "%s", engine_file("out"));
    snprintf(trace, sizeof trace, "%s", engine_file("trace"));
    engine_write_batch(batch, batch_shape, 4, vocab, 5);
    ENGINE_RUN(world,
               "bench --model %s%s --batch %s --layout %s --precision %s --warmup 1 --steps 1 --out %s",
               GOLDEN, model, batch, layout, precision, out);
    ENGINE_RUN(
        world,
        "step --model %s%s --batch %s --layout %s --precision %s --trace %s --trace-hash-only --out %s",
        GOLDEN, model, batch, layout, precision, trace, result);
    must(assay_trace_open(&t, trace, true));
    for (int r = 0; r < world; r++) {
        expect_the_calls_of_a_step(t, r);
        expect_the_numbers_of_a_step(r, result);
    }
    assay_trace_close(t);
}

Test(engine_bench, a_dense_step_has_all_its_calls_and_its_losses)
{
    same_as_step("llama", 131, "1", 1, "bf16");
}
Test(engine_bench, sequence_parallel_experts_have_all_their_calls_and_losses)
{
    same_as_step("qwen3_moe", 61, "tp2,sp,ep2", 2, "fp32");
}
Test(engine_bench, sharded_states_have_all_their_calls_and_losses)
{
    same_as_step("qwen3_moe", 61, "ep2,dp2,zero1", 2, "bf16");
}
Test(engine_bench, pipeline_stages_have_all_their_calls_and_losses)
{
    same_as_step("llama", 131, "pp2", 2, "fp32");
}

Test(engine_bench, what_makes_no_sense_is_refused)
{
    static const struct {
        const char *arguments, *text;
    } rows[] = {
        {"--steps 0", "--steps: expected at least 1, found 0"},
        {"--warmup 0", "--warmup: expected at least 1"},
        {"--steps 2x", "--steps: expected an integer"},
        {"--trace t", "the option has no meaning here"},
        {"--save c", "the option has no meaning here"},
        {"--train-iters 3", "the option has no meaning here"},
        {"--fault doubled_loss", "the option has no meaning here"},
        {"--precision fp64", "precision fp64"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[ENGINE_PATH * 2];
        snprintf(line, sizeof line, "bench --model %sllama --batch %sllama/batch.safetensors --out %s %s",
                 GOLDEN, GOLDEN, engine_file("never"), rows[i].arguments);
        engine_must_fail(1, rows[i].text, line);
    }
    char line[ENGINE_PATH];
    snprintf(line, sizeof line, "bench --model %sllama --batch %sllama/batch.safetensors", GOLDEN, GOLDEN);
    engine_must_fail(1, "--out DIR is needed", line);
}
