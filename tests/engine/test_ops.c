/* The ops verb: operations and collectives of a request, and what happens when ranks disagree. */
#include "tests/support/engine.h"

#include "core/files/trace.h"

TestSuite(engine_ops, .init = engine_setup, .fini = engine_teardown, .timeout = 120);

static assay_trace_writer *request_open(const char *dir, int rank, int world)
{
    assay_trace_writer *w;
    json_t *header = json_object();
    cr_assert_eq(assay_trace_writer_open(&w, dir, rank, world, header, false), ASSAY_OK, "%s",
                 assay_error_message());
    json_decref(header);
    return w;
}

static void request_op(assay_trace_writer *w, const char *op, const char *slot, const float *data, int64_t n,
                       json_t *attrs)
{
    assay_trace_tensor t = {.dtype = ASSAY_F32, .kind = ASSAY_PIECE_LOCAL, .rows_id = -1, .microbatch = -1};
    snprintf(t.name, sizeof t.name, "in.%s", slot);
    assay_shard_whole(&t.shard, &n, 1);
    cr_assert_eq(assay_trace_write_tensor(w, &t, data), ASSAY_OK, "%s", assay_error_message());
    assay_trace_op o = {
        .n_inputs = 1, .microbatch = -1, .arith.all = assay_arith_elementwise(), .attrs = attrs};
    snprintf(o.op, sizeof o.op, "%s", op);
    snprintf(o.instance, sizeof o.instance, "test");
    snprintf(o.inputs[0].slot, sizeof o.inputs[0].slot, "%s", slot);
    o.inputs[0].tensor = t.id;
    cr_assert_eq(assay_trace_write_op(w, &o), ASSAY_OK, "%s", assay_error_message());
    json_decref(attrs);
}

static void request_close(assay_trace_writer *w)
{
    cr_assert_eq(assay_trace_end_step(w), ASSAY_OK);
    cr_assert_eq(assay_trace_writer_close(w), ASSAY_OK, "%s", assay_error_message());
    assay_trace_writer_destroy(w);
}

/* Element i of the only output of op 0 of `rank`. */
static float answer(const char *dir, int rank, const char *slot, int64_t i, int64_t expected_count)
{
    assay_trace *t;
    float value;
    cr_assert_eq(assay_trace_open(&t, dir, true), ASSAY_OK, "%s", assay_error_message());
    const assay_trace_tensor *y = assay_trace_op_tensor(t, assay_trace_op_at(t, rank, 0), slot);
    cr_assert(y);
    cr_assert_eq(assay_shard_count(&y->shard), expected_count);
    memcpy(&value, (const char *)y->data + 4 * i, 4);
    assay_trace_close(t);
    return value;
}

Test(engine_ops, operation_of_one_rank)
{
    const float x[3] = {1.0f, 2.5f, -4.0f};
    assay_trace_writer *w = request_open(engine_file("request"), 0, 1);
    request_op(w, "sum", "x", x, 3, json_object());
    request_close(w);
    ENGINE_RUN(1, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    assay_trace *t;
    double y;
    cr_assert_eq(assay_trace_open(&t, engine_file("answer"), true), ASSAY_OK, "%s", assay_error_message());
    memcpy(&y, assay_trace_op_tensor(t, assay_trace_op_at(t, 0, 0), "y")->data, sizeof y);
    cr_expect_eq(y, -0.5);
    assay_trace_close(t);
}

Test(engine_ops, all_reduce_of_three_ranks)
{
    for (int r = 0; r < 3; r++) {
        const float x[2] = {(float)r, 10.0f};
        assay_trace_writer *w = request_open(engine_file("request"), r, 3);
        request_op(w, "all_reduce", "send", x, 2, json_pack("{s:s}", "reduction", "sum"));
        request_close(w);
    }
    ENGINE_RUN(3, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    for (int r = 0; r < 3; r++) {
        cr_expect_eq(answer(engine_file("answer"), r, "recv", 0, 2), 3.0f);
        cr_expect_eq(answer(engine_file("answer"), r, "recv", 1, 2), 30.0f);
    }
}

Test(engine_ops, uneven_reduce_scatter)
{
    for (int r = 0; r < 2; r++) {
        const float x[5] = {1, 2, 3, 4, 5};
        assay_trace_writer *w = request_open(engine_file("request"), r, 2);
        request_op(w, "reduce_scatter", "send", x, 5, json_pack("{s:[i,i]}", "counts", 4, 1));
        request_close(w);
    }
    ENGINE_RUN(2, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    cr_expect_eq(answer(engine_file("answer"), 0, "recv", 3, 4), 8.0f);
    cr_expect_eq(answer(engine_file("answer"), 1, "recv", 0, 1), 10.0f);
}

/* Ranks that make different calls: the run ends with the last calls of a rank instead of a hang. */
Test(engine_ops, ranks_that_disagree_are_named)
{
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "5", 1);
    for (int r = 0; r < 2; r++) {
        const float x[5] = {1, 2, 3, 4, 5};
        assay_trace_writer *w = request_open(engine_file("request"), r, 2);
        request_op(w, "all_reduce", "send", x, r == 0 ? 4 : 5, json_object());
        request_close(w);
    }
    char line[1200];
    snprintf(line, sizeof line, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    engine_must_fail(2, "last collective calls", line);
    char *log = engine_log();
    cr_expect(strstr(log, "all_reduce over world, 4 x F32") || strstr(log, "all_reduce over world, 5 x F32"),
              "%s", log);
    cr_expect(strstr(log, "NCCL error"), "%s", log);
    free(log);
}

/* Both wait for the other: the limit that was asked for ends it, not NCCL's. */
Test(engine_ops, a_collective_over_its_limit_ends_the_run)
{
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "50", 1);
    for (int r = 0; r < 2; r++) {
        const float x[1] = {1};
        assay_trace_writer *w = request_open(engine_file("request"), r, 2);
        request_op(w, "recv", "send", x, 1,
                   json_pack("{s:i, s:[i], s:s}", "peer", 1 - r, "shape", 1, "dtype", "F32"));
        request_close(w);
    }
    char line[1200];
    snprintf(line, sizeof line, "ops --request %s --out %s --collective-timeout 1.5", engine_file("request"),
             engine_file("answer"));
    engine_must_fail(2, "the stream did not finish within 1.5 s", line);
}

Test(engine_ops, request_of_another_world_is_refused)
{
    assay_trace_writer *w = request_open(engine_file("request"), 0, 1);
    request_close(w);
    char line[1200];
    snprintf(line, sizeof line, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    engine_must_fail(2, "a request for 1 ranks, 2 were started", line);
}

Test(engine_ops, unknown_operation_is_refused)
{
    const float x[1] = {1.0f};
    assay_trace_writer *w = request_open(engine_file("request"), 0, 1);
    request_op(w, "fused_everything", "x", x, 1, json_object());
    request_close(w);
    char line[1200];
    snprintf(line, sizeof line, "ops --request %s --out %s", engine_file("request"), engine_file("answer"));
    engine_must_fail(1, "fused_everything", line);
}
