/* The trace format: what the writer writes the reader reads; foreign traces; everything that is refused. */
#include "core/files/trace.h"

#include "tests/support/core_files.h"

static char folder[TEST_PATH], dir[TEST_PATH], path[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
    test_path(dir, folder, "trace");
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(trace, .init = setup, .fini = teardown);

static assay_trace_tensor record(const char *name, int64_t step, assay_dtype dtype, const int64_t *shape,
                                 int ndim)
{
    assay_trace_tensor t = {
        .phase = ASSAY_PHASE_FORWARD, .step = step, .microbatch = 0, .dtype = dtype, .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%s", name);
    assay_shard_whole(&t.shard, shape, ndim);
    return t;
}

static const int64_t TWO[] = {2}, SQUARE[] = {2, 2}, EIGHT[] = {8};
static const float X[4] = {1.0f, 2.0f, 3.0f, 4.0f};

/* --- round trip --------------------------------------------------------------------------------------------
 */

static void write_rank(int rank)
{
    assay_trace_writer *w = NULL;
    json_t *header = json_pack("{s:s, s:s}", "engine", "sim", "layout", "tp2");
    const int64_t rows[2] = {5, -1};
    const int ranks[] = {1, 0};
    TEST_OK(assay_trace_writer_open(&w, dir, rank, 2, header, false));
    json_decref(header);
    for (int64_t step = 0; step < 2; step++) {
        assay_trace_tensor x = record("x", step, ASSAY_F32, SQUARE, 2);
        TEST_OK(assay_trace_write_tensor(w, &x, X));
        assay_trace_tensor shard = record("gate_up", step, ASSAY_F32, EIGHT, 1);
        shard.shard.local_shape[0] = 4;
        assay_shard_set(&shard.shard, 0, (const assay_segment[2]){{2 * rank, 2}, {4 + 2 * rank, 2}}, 2);
        TEST_OK(assay_trace_write_tensor(w, &shard, X));
        assay_trace_tensor index = record("rows", step, ASSAY_I64, TWO, 1);
        index.kind = ASSAY_PIECE_LOCAL;
        TEST_OK(assay_trace_write_tensor(w, &index, rows));
        assay_trace_tensor permuted = record("permuted", step, ASSAY_F32, SQUARE, 2);
        permuted.kind = ASSAY_PIECE_ROWS;
        permuted.rows_id = index.id;
        TEST_OK(assay_trace_write_tensor(w, &permuted, X));
        assay_trace_tensor partial = record("partial", step, ASSAY_F32, TWO, 1);
        partial.kind = ASSAY_PIECE_PARTIAL;
        partial.phase = ASSAY_PHASE_GRAD;
        partial.microbatch = -1;
        memcpy(partial.partial_group, "tp", 3);
        TEST_OK(assay_trace_write_tensor(w, &partial, X));
        assay_trace_op op = {.op = "all_reduce",
                             .instance = "decoder.layers.0.mlp",
                             .step = step,
                             .microbatch = 0,
                             .variant = 2,
                             .variant_name = "k2",
                             .group = "tp",
                             .n_group_ranks = 2,
                             .group_ranks = ranks,
                             .n_inputs = 1,
                             .n_outputs = 2,
                             .arith.all = assay_arith_elementwise()};
        op.arith.all.order = ASSAY_ORDER_TREE;
        op.arith.all.lanes = 32;
        assay_arith own = op.arith.all;
        own.lanes = 256;
        TEST_OK(assay_declaration_set(&op.arith, "z", own));
        op.recompute = step == 1;
        op.substituted[1] = true;
        op.n_internal = 1;
        memcpy(op.internal[0], "rstd", 5);
        memcpy(op.fused, "add_rmsnorm_fwd", 16);
        op.fused_part = 1;
        op.attrs = json_pack("{s:f, s:s}", "eps", 1e-5, "reduction", "sum");
        op.inputs[0] = (assay_trace_slot){"x", x.id};
        op.outputs[0] = (assay_trace_slot){"y", shard.id};
        op.outputs[1] = (assay_trace_slot){"z", permuted.id};
        TEST_OK(assay_trace_write_op(w, &op));
        json_decref(op.attrs);
        TEST_OK(assay_trace_end_step(w));
    }
    TEST_OK(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
}

Test(trace, what_is_written_is_read)
{
    assay_trace *t = NULL;
    write_rank(1);
    write_rank(0);
    TEST_OK(assay_trace_open(&t, dir, true));
    cr_assert_eq(assay_trace_world(t), 2);
    cr_expect_str_eq(json_string_value(json_object_get(assay_trace_header(t), "layout")), "tp2");
    for (int rank = 0; rank < 2; rank++) {
        cr_assert_eq(assay_trace_n_tensors(t, rank), 10);
        cr_assert_eq(assay_trace_n_ops(t, rank), 2);
        const assay_trace_tensor *shard = assay_trace_tensor_by_id(t, rank, 6);
        cr_assert_not_null(shard);
        cr_expect_str_eq(shard->name, "gate_up");
        cr_expect_eq(shard->rank, rank);
        cr_expect_eq(shard->step, 1);
        cr_expect_eq(shard->shard.global_shape[0], 8);
        cr_expect_eq(shard->shard.local_shape[0], 4);
        cr_expect_eq(assay_shard_global_index(&shard->shard, 0, 2), 4 + 2 * rank);
        cr_expect_eq(shard->bytes, sizeof X);
        cr_expect_eq(memcmp(shard->data, X, sizeof X), 0);
        const assay_trace_tensor *permuted = assay_trace_tensor_at(t, rank, 3);
        cr_expect_eq(permuted->kind, ASSAY_PIECE_ROWS);
        cr_expect_str_eq(assay_trace_tensor_by_id(t, rank, permuted->rows_id)->name, "rows");
        const assay_trace_tensor *partial = assay_trace_tensor_at(t, rank, 4);
        cr_expect_str_eq(partial->partial_group, "tp");
        cr_expect_eq(partial->phase, ASSAY_PHASE_GRAD);
        cr_expect_eq(partial->microbatch, -1);
    }
    const assay_trace_op *op = assay_trace_op_at(t, 1, 1);
    cr_expect_str_eq(op->op, "all_reduce");
    cr_expect_str_eq(op->instance, "decoder.layers.0.mlp");
    cr_expect_eq(op->sequence, 1);
    cr_expect_eq(op->variant, 2);
    cr_expect_str_eq(op->variant_name, "k2");
    cr_expect_eq(op->arith.all.order, ASSAY_ORDER_TREE);
    cr_expect_eq(op->arith.all.lanes, 32);
    cr_expect_eq(assay_declaration_of(&op->arith, "y")->lanes, 32);
    cr_expect_eq(assay_declaration_of(&op->arith, "z")->lanes, 256);
    cr_expect(op->recompute && !assay_trace_op_at(t, 1, 0)->recompute);
    cr_expect(!op->substituted[0] && op->substituted[1]);
    cr_assert_eq(op->n_internal, 1);
    cr_expect_str_eq(op->internal[0], "rstd");
    cr_expect_str_eq(op->fused, "add_rmsnorm_fwd");
    cr_expect_eq(op->fused_part, 1);
    cr_expect_null(assay_trace_aborted(t, 1));
    cr_expect_eq(json_real_value(json_object_get(op->attrs, "eps")), 1e-5);
    cr_expect_str_eq(op->group, "tp");
    cr_assert_eq(op->n_group_ranks, 2);
    cr_expect_eq(op->group_ranks[0], 1);
    cr_expect_str_eq(assay_trace_op_tensor(t, op, "x")->name, "x");
    cr_expect_str_eq(assay_trace_op_tensor(t, op, "z")->name, "permuted");
    cr_expect_null(assay_trace_op_tensor(t, op, "w"));
    cr_expect_null(assay_trace_op_at(t, 1, 2));
    cr_expect_null(assay_trace_tensor_at(t, 2, 0));
    cr_expect_null(assay_trace_tensor_by_id(t, 0, 10));
    assay_trace_close(t);
}

/* x, gate_up and permuted hold the same 16 bytes: two shapes, so two entries, beside rows and partial. */
/* FP8 bytes with one scale, with one for each row, and with a scale for blocks of 2 of 5 columns. */
Test(trace, scales_are_written_and_read)
{
    static const unsigned char bytes[10] = {0};
    static const int64_t none[] = {0}, one[] = {1}, rows[] = {2, 1}, blocks[] = {2, 3}, values[] = {2, 5};
    static const struct {
        const int64_t *shape;
        int ndim;
    } scales[] = {{none, 0}, {one, 1}, {rows, 2}, {blocks, 2}};
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    assay_trace_writer *w = NULL;
    assay_trace *t = NULL;
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, false));
    for (int i = 0; i < 4; i++) {
        assay_trace_tensor scale = record("x.scale", 0, ASSAY_F32, scales[i].shape, scales[i].ndim);
        assay_trace_tensor x = record("x", 0, ASSAY_F8_E4M3, values, 2);
        TEST_OK(assay_trace_write_tensor(w, &scale, ones));
        x.has_scale = true;
        x.scale_id = scale.id;
        TEST_OK(assay_trace_write_tensor(w, &x, bytes));
    }
    TEST_OK(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    TEST_OK(assay_trace_open(&t, dir, true));
    for (int i = 0; i < 4; i++) {
        const assay_trace_tensor *scale = assay_trace_tensor_at(t, 0, 2 * i);
        const assay_trace_tensor *x = assay_trace_tensor_at(t, 0, 2 * i + 1);
        cr_expect(!scale->has_scale && x->has_scale && x->scale_id == scale->id);
    }
    assay_trace_close(t);
}

Test(trace, wrong_scales_are_named)
{
    static const unsigned char bytes[10] = {0};
    static const int64_t values[] = {2, 5}, four[] = {2, 4}, none[] = {0, 5}, flat[] = {2};
    static const float ones[10] = {1};
    const struct {
        assay_dtype dtype;
        const int64_t *shape;
        int ndim;
        const char *message;
    } rows[] = {
        {ASSAY_F32, four, 2, "dimension 1: 4 scales for 5 elements are not equal blocks"},
        {ASSAY_F32, none, 2, "dimension 0: 0 scales for 2 elements"},
        {ASSAY_F32, flat, 1, "has 1 dimensions, expected one element or 2 dimensions"},
        {ASSAY_I32, values, 2, "F8_E4M3 scaled by I32"},
    };
    assay_trace_writer *w = NULL;
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, false));
    assay_trace_tensor x = record("x", 0, ASSAY_F8_E4M3, values, 2);
    x.has_scale = true;
    x.scale_id = 0;
    TEST_FAILS(assay_trace_write_tensor(w, &x, bytes), ASSAY_INVALID_ARGUMENT,
               "scale 0 is not an earlier tensor record");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_trace_tensor scale = record("x.scale", 0, rows[i].dtype, rows[i].shape, rows[i].ndim);
        TEST_OK(assay_trace_write_tensor(w, &scale, ones));
        x.scale_id = scale.id;
        TEST_FAILS(assay_trace_write_tensor(w, &x, bytes), ASSAY_INVALID_ARGUMENT, rows[i].message);
    }
    assay_trace_writer_destroy(w);
}

Test(trace, equal_content_is_stored_once_per_step)
{
    assay_tensorfile *f = NULL;
    char data[TEST_PATH];
    write_rank(0);
    TEST_OK(assay_tensorfile_open(&f, test_path(data, dir, "rank-00000-step-00001.safetensors")));
    cr_expect_eq(assay_tensorfile_count(f), 4);
    assay_tensorfile_close(f);
}

/* More records than the first tables hold: they grow, and every content is found again. */
Test(trace, many_records)
{
    assay_trace_writer *w = NULL;
    assay_trace *t = NULL;
    enum { N = 3000 };
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, false));
    for (int64_t i = 0; i < N; i++) {
        assay_trace_tensor x = record("x", 0, ASSAY_I64, TWO, 1);
        const int64_t value[2] = {i % 1000, 7};
        TEST_OK(assay_trace_write_tensor(w, &x, value));
        assay_trace_op op = {
            .op = "op", .microbatch = -1, .n_inputs = 1, .arith.all = assay_arith_elementwise()};
        op.inputs[0] = (assay_trace_slot){"x", i};
        TEST_OK(assay_trace_write_op(w, &op));
    }
    TEST_OK(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    TEST_OK(assay_trace_open(&t, dir, true));
    cr_assert_eq(assay_trace_n_tensors(t, 0), N);
    cr_assert_eq(assay_trace_n_ops(t, 0), N);
    for (int64_t i = 0; i < N; i++) {
        int64_t value[2];
        memcpy(value, assay_trace_tensor_by_id(t, 0, i)->data, sizeof value);
        cr_assert_eq(value[0], i % 1000);
    }
    assay_trace_close(t);
}

Test(trace, hash_only_has_no_data_files)
{
    assay_trace_writer *w = NULL;
    assay_trace *t = NULL;
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, true));
    assay_trace_tensor x = record("x", 0, ASSAY_F32, SQUARE, 2);
    TEST_OK(assay_trace_write_tensor(w, &x, X));
    TEST_OK(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    cr_expect_eq(test_count_files(dir), 2);
    TEST_OK(assay_trace_open(&t, dir, true));
    cr_expect_null(assay_trace_tensor_at(t, 0, 0)->data);
    cr_expect_str_eq(assay_trace_tensor_at(t, 0, 0)->hash, x.hash);
    assay_trace_close(t);
}

/* A run that died leaves a trace that says so. */
Test(trace, a_trace_that_was_not_closed_is_refused)
{
    assay_trace_writer *w = NULL;
    assay_trace *t = NULL;
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, false));
    assay_trace_tensor x = record("x", 0, ASSAY_F32, SQUARE, 2);
    TEST_OK(assay_trace_write_tensor(w, &x, X));
    TEST_OK(assay_trace_end_step(w));
    assay_trace_writer_destroy(w);
    TEST_FAILS(assay_trace_open(&t, dir, true), ASSAY_FORMAT, "this rank did not finish its trace");
    assay_trace_writer_destroy(NULL);
}

/* --- what the writer refuses -------------------------------------------------------------------------------
 */

Test(trace, writer_does_not_touch_another_trace)
{
    assay_trace_writer *w = NULL;
    write_rank(0);
    TEST_FAILS(assay_trace_writer_open(&w, dir, 0, 2, NULL, false), ASSAY_INVALID_ARGUMENT,
               "already holds a trace");
    cr_assert_eq(unlink(test_path(path, dir, "index.json")), 0);
    TEST_FAILS(assay_trace_writer_open(&w, dir, 0, 2, NULL, false), ASSAY_INVALID_ARGUMENT,
               "rank-00000.jsonl: exists");
    cr_expect_null(w);
    TEST_FAILS(assay_trace_writer_open(&w, dir, 2, 2, NULL, false), ASSAY_INVALID_ARGUMENT, "rank 2 of 2");
}

Test(trace, writer_checks_records)
{
    assay_trace_writer *w = NULL;
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 1, NULL, false));
    assay_trace_tensor good = record("x", 1, ASSAY_F32, SQUARE, 2), t = good;
    TEST_OK(assay_trace_write_tensor(w, &good, X));
    t = good, t.name[0] = '\0';
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT, "the name is empty");
    t = good, t.step = 2;
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT, "step 2, but step 1 is open");
    t = good;
    TEST_FAILS(assay_trace_write_tensor(w, &t, NULL), ASSAY_INVALID_ARGUMENT, "x: no data");
    t = good, assay_shard_set(&t.shard, 0, &(assay_segment){0, 3}, 1);
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_FORMAT, "x");
    t = good, t.kind = ASSAY_PIECE_PARTIAL;
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT,
               "kind partial needs a partial_group");
    t = good, memcpy(t.partial_group, "tp", 3);
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT, "kind shard has no partial_group");
    t = good, t.kind = ASSAY_PIECE_ROWS, t.rows_id = 0;
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT,
               "rows_id 0 must be an earlier 1-D I64 record of 2 entries");
    t = good, t.kind = ASSAY_PIECE_ROWS, t.rows_id = 7;
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT, "rows_id 7 must be an earlier");
    t = good, memcpy(t.name, "\xff", 2);
    TEST_FAILS(assay_trace_write_tensor(w, &t, X), ASSAY_INVALID_ARGUMENT, "not UTF-8");
    TEST_OK(assay_trace_end_step(w));
    TEST_FAILS(assay_trace_write_tensor(w, &good, X), ASSAY_INVALID_ARGUMENT, "step 1, but step 1 has ended");
    TEST_OK(assay_trace_writer_close(w));
    TEST_FAILS(assay_trace_write_tensor(w, &good, X), ASSAY_INVALID_ARGUMENT, "the trace is closed");
    TEST_FAILS(assay_trace_writer_close(w), ASSAY_INVALID_ARGUMENT, "closed already");
    assay_trace_writer_destroy(w);
    assay_trace *read = NULL;
    TEST_OK(assay_trace_open(&read, dir, true)); /* nothing of what was refused is in the file */
    cr_expect_eq(assay_trace_n_tensors(read, 0), 1);
    assay_trace_close(read);
}

Test(trace, writer_checks_ops)
{
    assay_trace_writer *w = NULL;
    const int twice[] = {0, 0}, other[] = {1};
    TEST_OK(assay_trace_writer_open(&w, dir, 0, 2, NULL, false));
    assay_trace_op good = {.op = "op", .n_inputs = 1, .arith.all = assay_arith_elementwise()}, op = good;
    op.inputs[0] = (assay_trace_slot){"x", 0};
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT,
               "slot 'x' names record 0, but 0 records were written");
    assay_trace_tensor x = record("x", 0, ASSAY_F32, SQUARE, 2);
    TEST_OK(assay_trace_write_tensor(w, &x, X));
    op.n_inputs = 2;
    op.inputs[1] = op.inputs[0];
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT,
               "the slot 'x' in inputs is empty or there twice");
    op = good, op.n_inputs = ASSAY_MAX_SLOTS + 1;
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT, "has 25 inputs, at most 24 are legal");
    op = good, op.n_inputs = 0, memcpy(op.group, "tp", 3), op.n_group_ranks = 2, op.group_ranks = twice;
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT, "rank 0 of group 'tp'");
    op.n_group_ranks = 1, op.group_ranks = other;
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT, "this rank, 0, is not in group 'tp'");
    op.n_group_ranks = 0;
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT, "group 'tp' with 0 ranks");
    op = good, op.op[0] = '\0';
    TEST_FAILS(assay_trace_write_op(w, &op), ASSAY_INVALID_ARGUMENT, "out of range");
    assay_trace_writer_destroy(w);
}

/* --- foreign traces and what the reader refuses ------------------------------------------------------------
 */

#define INDEX "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1}"
#define END "{\"type\":\"end\"}\n"
/* Members of a record of the 2x2 bytes tensor t0, after the id. */
#define REST                                                                                                 \
    "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"U8\",\"global_shape\":[2,2],\"data\":"      \
    "\"t0\""
#define TENSOR(id) "{\"type\":\"tensor\",\"id\":" id "," REST "}\n"
#define TENSOR_WITH(members) "{\"type\":\"tensor\",\"id\":0," members "}\n"
#define OP_WITH(members)                                                                                     \
    "{\"type\":\"op\",\"sequence\":0,\"op\":\"f\",\"instance\":\"\",\"phase\":\"forward\",\"step\":"         \
    "0" members "}\n"

static void put(const char *name, const char *text)
{
    test_write_text(test_path(path, dir, name), text);
}

static void write_foreign(const char *index, const char *lines)
{
    TEST_OK(assay_mkdir_p(dir));
    put("index.json", index);
    put("rank-00000.jsonl", lines);
    test_write_safetensors(test_path(path, dir, "rank-00000-step-00000.safetensors"),
                           "{\"t0\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
                           "\"rows\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[4,12]}}",
                           12);
}

Test(trace, foreign_trace_without_hashes_and_ops)
{
    assay_trace *t = NULL;
    char hash[ASSAY_HASH_HEX];
    const uint8_t bytes[4] = {0, 1, 2, 3};
    write_foreign(INDEX, TENSOR("3") TENSOR("17") "{\"type\":\"tensor\",\"id\":18," REST
                                                  ",\"hash\":null,\"extra\":{\"module\":\"Linear\"}}\n" END);
    TEST_OK(assay_trace_open(&t, dir, true));
    cr_assert_eq(assay_trace_n_tensors(t, 0), 3);
    const assay_trace_tensor *x = assay_trace_tensor_by_id(t, 0, 17);
    cr_assert_not_null(x);
    cr_expect_eq(x->microbatch, -1);
    cr_expect_eq(x->kind, ASSAY_PIECE_SHARD);
    cr_expect_eq(x->shard.n_segments[1], 1);
    cr_expect_eq(memcmp(x->data, bytes, 4), 0);
    assay_hash_tensor(ASSAY_U8, SQUARE, 2, bytes, 4, hash);
    cr_expect_str_eq(x->hash, hash);
    cr_expect_null(assay_trace_tensor_by_id(t, 0, 4));
    assay_trace_close(t);
}

Test(trace, foreign_op_has_defaults)
{
    assay_trace *t = NULL;
    write_foreign(INDEX, TENSOR("0") OP_WITH(",\"outputs\":{\"y\":0}") END);
    TEST_OK(assay_trace_open(&t, dir, true));
    const assay_trace_op *op = assay_trace_op_at(t, 0, 0);
    cr_expect_eq(op->variant, 0);
    cr_expect_eq(op->arith.all.order, ASSAY_ORDER_NONE);
    cr_assert_not_null(op->attrs);
    cr_expect_eq(json_object_size(op->attrs), 0u);
    cr_expect_eq(op->n_inputs, 0);
    cr_expect_str_eq(assay_trace_op_tensor(t, op, "y")->name, "x");
    assay_trace_close(t);
}

typedef struct bad_text {
    const char *what, *text;
    assay_status status;
    const char *message;
} bad_text;

static void expect_refused(const bad_text *bad, const char *index, const char *lines)
{
    assay_trace *t = NULL;
    write_foreign(index, lines);
    const assay_status st = assay_trace_open(&t, dir, true);
    cr_expect_eq(st, bad->status, "%s: found %s: %s", bad->what, assay_status_name(st),
                 st ? assay_error_message() : "");
    const char *message = st ? assay_error_message() : "(opened)";
    cr_expect_not_null(strstr(message, bad->message), "%s: expected '%s' in '%s'", bad->what, bad->message,
                       message);
    cr_expect_not_null(strstr(message, dir), "%s: no file is named: %s", bad->what, message);
    assay_trace_close(t);
}

Test(trace, bad_index)
{
    static const bad_text bad[] = {
        {"not JSON", "{", ASSAY_FORMAT, "index.json"},
        {"not an object", "[]", ASSAY_FORMAT, "expected an object"},
        {"no format", "{\"version\":1,\"world_size\":1}", ASSAY_FORMAT, "format: missing"},
        {"another format", "{\"format\":\"x\",\"version\":1,\"world_size\":1}", ASSAY_FORMAT,
         "expected \"assay-trace\", found \"x\""},
        {"another version", "{\"format\":\"assay-trace\",\"version\":2,\"world_size\":1}", ASSAY_UNSUPPORTED,
         "reads version 1, found 2"},
        {"no world", "{\"format\":\"assay-trace\",\"version\":1}", ASSAY_FORMAT, "world_size: missing"},
        {"world of 0", "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":0}", ASSAY_LIMIT,
         "world_size"},
        {"absurd world", "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1000000000}", ASSAY_LIMIT,
         "world_size"},
        {"float world", "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1.0}", ASSAY_FORMAT,
         "world_size: expected an integer"},
        {"a rank that is missing", "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":2}",
         ASSAY_NOT_FOUND, "rank 1 of 2"},
        {"hash_only is no bool",
         "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1,\"hash_only\":1}", ASSAY_FORMAT,
         "hash_only"},
        {"hash of no known kind",
         "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1,\"hash\":\"md5\"}", ASSAY_UNSUPPORTED,
         "hash: content hash: expected blake2b-128 or xxh3-128, found \"md5\""},
        {"duplicate", "{\"format\":\"assay-trace\",\"format\":\"assay-trace\"}", ASSAY_FORMAT, "duplicate"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(&bad[i], bad[i].text, TENSOR("0") END);
}

Test(trace, bad_lines)
{
    static const bad_text bad[] = {
        {"no lines", "", ASSAY_FORMAT, "rank-00000.jsonl: no end marker after 0 lines"},
        {"no end", TENSOR("0"), ASSAY_FORMAT, "rank-00000.jsonl: no end marker after 1 lines"},
        {"cut line", TENSOR("0") "{\"type\":\"end\"}", ASSAY_FORMAT,
         "rank-00000.jsonl:2: the line does not end: the file is truncated"},
        {"after the end", END TENSOR("0"), ASSAY_FORMAT, "rank-00000.jsonl:2: a line after the end marker"},
        {"empty line", "\n" END, ASSAY_FORMAT, "rank-00000.jsonl:1"},
        {"not JSON", TENSOR("0") "{]\n" END, ASSAY_FORMAT, "rank-00000.jsonl:2: JSON"},
        {"an array", "[]\n" END, ASSAY_FORMAT, "rank-00000.jsonl:1: type: expected"},
        {"no type", "{}\n" END, ASSAY_FORMAT, "type: expected \"tensor\", \"op\" or \"end\""},
        {"unknown type", "{\"type\":\"x\"}\n" END, ASSAY_FORMAT, "type: expected"},
        {"number of tensors", TENSOR("0") "{\"type\":\"end\",\"tensors\":2}\n", ASSAY_MISMATCH,
         "rank-00000.jsonl:2: end marker: tensors is 2, but 1"},
        {"number of ops", "{\"type\":\"end\",\"ops\":1}\n", ASSAY_MISMATCH, "end marker: ops is 1, but 0"},
        {"another rank", "{\"type\":\"end\",\"rank\":1}\n", ASSAY_MISMATCH, "end marker: rank is 1, but 0"},
        {"another world", "{\"type\":\"end\",\"world_size\":2}\n", ASSAY_MISMATCH,
         "end marker: world_size is 2"},
        {"unknown member of end", "{\"type\":\"end\",\"n\":2}\n", ASSAY_FORMAT, "unknown member"},
        {"notes that are no list", "{\"type\":\"end\",\"notes\":{}}\n", ASSAY_FORMAT,
         "notes: expected a list"},
        {"kind of a note", "{\"type\":\"end\",\"notes\":[{\"kind\":\"x\",\"text\":\"y\"}]}\n", ASSAY_FORMAT,
         "expected \"note\", \"not_judged\" or \"incomplete\", found \"x\""},
        {"a note without text", "{\"type\":\"end\",\"notes\":[{\"kind\":\"note\"}]}\n", ASSAY_FORMAT, "text"},
        {"a note of more", "{\"type\":\"end\",\"notes\":[{\"kind\":\"note\",\"text\":\"y\",\"z\":1}]}\n",
         ASSAY_FORMAT, "unknown member"},
        {"same id", TENSOR("0") TENSOR("0") END, ASSAY_FORMAT,
         "rank-00000.jsonl:2: tensor record 0 'x': id 0 after id 0"},
        {"ids descend", TENSOR("5") TENSOR("4") END, ASSAY_FORMAT, "id 4 after id 5"},
        {"negative id", TENSOR("-1") END, ASSAY_LIMIT, "id: expected 0 to"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(&bad[i], INDEX, bad[i].text);
}

#define HEAD "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"U8\",\"data\":\"t0\""

Test(trace, bad_tensor_records)
{
    static const bad_text bad[] = {
        {"misspelt member", TENSOR_WITH(REST ",\"micro_batch\":1"), ASSAY_FORMAT,
         "micro_batch: unknown member"},
        {"a scale that is not there", TENSOR_WITH(REST ",\"scale\":3"), ASSAY_FORMAT,
         "scale 3 is not an earlier tensor record of this rank"},
        {"a scale that is no number", TENSOR_WITH(REST ",\"scale\":true"), ASSAY_FORMAT, "scale"},
        {"no name", TENSOR_WITH("\"phase\":\"forward\""), ASSAY_FORMAT,
         "tensor record 0: member: name: missing"},
        {"unknown phase", TENSOR_WITH("\"name\":\"x\",\"phase\":\"sideways\",\"step\":0"), ASSAY_FORMAT,
         "rank-00000.jsonl:1: tensor record 0: unknown phase 'sideways'"},
        {"negative step", TENSOR_WITH("\"name\":\"x\",\"phase\":\"forward\",\"step\":-1"), ASSAY_LIMIT,
         "step"},
        {"unknown dtype",
         TENSOR_WITH(
             "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"float\",\"global_shape\":[]"),
         ASSAY_UNSUPPORTED, "float"},
        {"no shape", TENSOR_WITH(HEAD), ASSAY_FORMAT, "global_shape: expected an array"},
        {"five dimensions", TENSOR_WITH(HEAD ",\"global_shape\":[1,1,1,2,2]"), ASSAY_LIMIT,
         "global_shape: 5 dimensions, at most 4"},
        {"float extent", TENSOR_WITH(HEAD ",\"global_shape\":[2.0,2]"), ASSAY_FORMAT,
         "global_shape: dimension 0: expected a non-negative integer"},
        {"negative extent", TENSOR_WITH(HEAD ",\"global_shape\":[-2,2]"), ASSAY_FORMAT, "global_shape"},
        {"size overflows", TENSOR_WITH(HEAD ",\"global_shape\":[4611686018427387904,4]"), ASSAY_LIMIT,
         "2^63"},
        {"local without segments", TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2]"),
         ASSAY_FORMAT, "segments: absent although local_shape differs"},
        {"local of another rank", TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2]"),
         ASSAY_FORMAT, "local_shape has 1 dimensions, global_shape has 2"},
        {"one list for two dimensions",
         TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[0,2]]]"),
         ASSAY_FORMAT, "segments: expected one list for each of 2 dimensions"},
        {"a pair of three",
         TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[0,2,1]],[[0,2]]]"),
         ASSAY_FORMAT, "segments: dimension 0: expected [start,length] pairs"},
        {"outside",
         TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[3,2]],[[0,2]]]"),
         ASSAY_FORMAT, "tensor record 0: x"},
        {"overlap",
         TENSOR_WITH(HEAD
                     ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[0,1],[0,1]],[[0,2]]]"),
         ASSAY_FORMAT, "tensor record 0: x"},
        {"too short",
         TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[0,1]],[[0,2]]]"),
         ASSAY_FORMAT, "tensor record 0: x"},
        {"unknown kind", TENSOR_WITH(REST ",\"kind\":\"piece\""), ASSAY_FORMAT, "unknown kind 'piece'"},
        {"partial of nothing", TENSOR_WITH(REST ",\"kind\":\"partial\""), ASSAY_FORMAT,
         "kind partial needs a partial_group"},
        {"rows of nothing", TENSOR_WITH(REST ",\"kind\":\"rows\""), ASSAY_FORMAT,
         "kind rows needs a rows_id"},
        {"rows of a later record", TENSOR_WITH(REST ",\"kind\":\"rows\",\"rows_id\":3"), ASSAY_FORMAT,
         "rows_id 3 is not an earlier tensor record"},
        {"rows of the wrong length",
         "{\"type\":\"tensor\",\"id\":0,\"name\":\"r\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"I64\","
         "\"global_shape\":[1],\"data\":\"rows\"}\n"
         "{\"type\":\"tensor\",\"id\":1," REST ",\"kind\":\"rows\",\"rows_id\":0}\n",
         ASSAY_FORMAT,
         "rank-00000.jsonl:2: tensor record 1 'x': x: rows_id 0 must be a 1-D I64 tensor of 2 entries"},
        {"local piece of a larger one",
         TENSOR_WITH(HEAD ",\"global_shape\":[4,2],\"local_shape\":[2,2],\"segments\":[[[0,2]],[[0,2]]],"
                          "\"kind\":\"local\""),
         ASSAY_FORMAT, "kind local: global_shape must equal local_shape"},
        {"short hash", TENSOR_WITH(REST ",\"hash\":\"ab\""), ASSAY_FORMAT, "hash: expected 32 lower-case"},
        {"upper-case hash", TENSOR_WITH(REST ",\"hash\":\"0123456789ABCDEF0123456789ABCDEF\""), ASSAY_FORMAT,
         "hash: expected 32 lower-case"},
        {"neither data nor hash",
         TENSOR_WITH(
             "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"U8\",\"global_shape\":[2,2]"),
         ASSAY_FORMAT, "tensor record 0 'x': neither data nor hash"},
        {"no such key",
         TENSOR_WITH(
             "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"U8\",\"global_shape\":[2,2],"
             "\"data\":\"t9\""),
         ASSAY_NOT_FOUND, "there is no tensor 't9'"},
        {"no such file",
         TENSOR_WITH(
             "\"name\":\"x\",\"phase\":\"forward\",\"step\":1,\"dtype\":\"U8\",\"global_shape\":[2,2],"
             "\"data\":\"t0\""),
         ASSAY_NOT_FOUND, "rank-00000-step-00001.safetensors"},
        {"another dtype",
         TENSOR_WITH(
             "\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"dtype\":\"I8\",\"global_shape\":[2,2],"
             "\"data\":\"t0\""),
         ASSAY_MISMATCH, "tensor 't0': expected dtype I8, found U8"},
        {"another shape", TENSOR_WITH(HEAD ",\"global_shape\":[4]"), ASSAY_MISMATCH,
         "tensor 't0': expected shape [4], found [2,2]"},
        {"another content", TENSOR_WITH(REST ",\"hash\":\"0123456789abcdef0123456789abcdef\""),
         ASSAY_MISMATCH,
         "tensor record 0 'x': content hash: the record says 0123456789abcdef0123456789abcdef, the data has"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char lines[2048];
        snprintf(lines, sizeof lines, "%s%s", bad[i].text, END);
        expect_refused(&bad[i], INDEX, lines);
    }
}

Test(trace, steps_do_not_descend)
{
    static const bad_text bad = {"steps", "", ASSAY_FORMAT, "step 0 after step 1"};
    TEST_OK(assay_mkdir_p(dir));
    test_write_safetensors(test_path(path, dir, "rank-00000-step-00001.safetensors"),
                           "{\"t0\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}}", 4);
    expect_refused(&bad, INDEX,
                   TENSOR_WITH("\"name\":\"x\",\"phase\":\"forward\",\"step\":1,\"dtype\":\"U8\","
                               "\"global_shape\":[2,2],\"data\":\"t0\"") TENSOR("1") END);
}

Test(trace, bad_op_records)
{
    static const bad_text bad[] = {
        {"misspelt member", OP_WITH(",\"input\":{}"), ASSAY_FORMAT, "input: unknown member"},
        {"slot of a later record", OP_WITH(",\"inputs\":{\"x\":1}"), ASSAY_FORMAT,
         "rank-00000.jsonl:2: op record 0 'f': inputs.x names record 1, which is not an earlier tensor "
         "record"},
        {"slot by name", OP_WITH(",\"outputs\":{\"x\":\"0\"}"), ASSAY_FORMAT,
         "op record 0: outputs.x: expected a record id"},
        {"empty slot", OP_WITH(",\"outputs\":{\"\":0}"), ASSAY_FORMAT, "the slot name '' must have"},
        {"long slot", OP_WITH(",\"outputs\":{\"abcdefghijklmnopqrstuvwx\":0}"), ASSAY_FORMAT,
         "must have 1...23"},
        {"slot twice", OP_WITH(",\"outputs\":{\"x\":0,\"x\":0}"), ASSAY_FORMAT, "duplicate"},
        {"slots in a list", OP_WITH(",\"outputs\":[0]"), ASSAY_FORMAT, "outputs: expected an object"},
        {"attrs in a list", OP_WITH(",\"attrs\":[0]"), ASSAY_FORMAT, "attrs: expected an object"},
        {"unknown order", OP_WITH(",\"arith\":{\"accumulate\":\"F32\",\"order\":\"random\"}"),
         ASSAY_UNSUPPORTED, "random"},
        {"substituted twice", OP_WITH(",\"outputs\":{\"x\":0},\"substituted\":[\"x\",\"x\"]"), ASSAY_FORMAT,
         "op record 0: substituted: entry 1, 'x', must be an output"},
        {"substituted input", OP_WITH(",\"inputs\":{\"x\":0},\"substituted\":[\"x\"]"), ASSAY_FORMAT,
         "substituted: entry 0, 'x', must be an output"},
        {"internal that is recorded", OP_WITH(",\"outputs\":{\"x\":0},\"internal\":[\"x\"]"), ASSAY_FORMAT,
         "internal: entry 0, 'x', must be a slot that the record does not have"},
        {"internal that is read", OP_WITH(",\"inputs\":{\"x\":0},\"internal\":[\"x\"]"), ASSAY_FORMAT,
         "internal: entry 0, 'x', must be a slot that the record does not have"},
        {"internal twice", OP_WITH(",\"internal\":[\"x\",\"x\"]"), ASSAY_FORMAT, "internal: entry 1, 'x'"},
        {"internal by number", OP_WITH(",\"internal\":[1]"), ASSAY_FORMAT, "internal: entry 0, '?'"},
        {"too much that is internal", OP_WITH(",\"internal\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), ASSAY_FORMAT,
         "internal: expected a list of at most 4"},
        {"fused by name", OP_WITH(",\"fused\":\"add_rmsnorm_fwd\""), ASSAY_FORMAT,
         "fused: expected an object"},
        {"fused without a part", OP_WITH(",\"fused\":{\"op\":\"f\"}"), ASSAY_FORMAT, "part"},
        {"fused with too many parts", OP_WITH(",\"fused\":{\"op\":\"f\",\"part\":6}"), ASSAY_LIMIT,
         "fused: part: expected 0 to 5, found 6"},
        {"fused without a name", OP_WITH(",\"fused\":{\"op\":\"\",\"part\":0}"), ASSAY_FORMAT,
         "fused: op: the name is empty"},
        {"fused with more", OP_WITH(",\"fused\":{\"op\":\"f\",\"part\":0,\"of\":2}"), ASSAY_FORMAT, "of"},
        {"recompute by number", OP_WITH(",\"recompute\":1"), ASSAY_FORMAT, "recompute"},
        {"arithmetic of no output", OP_WITH(",\"outputs\":{\"x\":0},\"output_arith\":{\"y\":{}}"),
         ASSAY_FORMAT, "op record 0: output_arith.y: the record has no such output"},
        {"arithmetics in a list", OP_WITH(",\"output_arith\":[0]"), ASSAY_FORMAT,
         "output_arith: expected an object"},
        {"arithmetic beyond its limit",
         OP_WITH(",\"outputs\":{\"x\":0},\"output_arith\":{\"x\":{\"math_ulp\":9}}"), ASSAY_LIMIT,
         "output_arith.x"},
        {"group without ranks", OP_WITH(",\"group\":\"tp\""), ASSAY_FORMAT, "one is there without the other"},
        {"ranks without group", OP_WITH(",\"group_ranks\":[0]"), ASSAY_FORMAT,
         "one is there without the other"},
        {"rank outside", OP_WITH(",\"group\":\"tp\",\"group_ranks\":[1]"), ASSAY_FORMAT,
         "group_ranks: entry 0 must be a rank in 0...0"},
        {"too many ranks", OP_WITH(",\"group\":\"tp\",\"group_ranks\":[0,0]"), ASSAY_FORMAT,
         "expected an array of 1...1 ranks"},
        {"negative variant", OP_WITH(",\"variant\":-1"), ASSAY_LIMIT, "variant"},
        {"same sequence", OP_WITH("") OP_WITH(""), ASSAY_FORMAT, "op record 0: sequence after 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char lines[2048];
        snprintf(lines, sizeof lines, "%s%s%s", TENSOR("0"), bad[i].text, END);
        expect_refused(&bad[i], INDEX, lines);
    }
}

Test(trace, a_collective_has_this_rank_in_its_group)
{
    static const bad_text bad = {"another's group", "", ASSAY_FORMAT,
                                 "op record 0: group_ranks: this rank, 0, is not in it"};
    TEST_OK(assay_mkdir_p(dir));
    put("rank-00001.jsonl", END);
    expect_refused(&bad, "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":2}",
                   OP_WITH(",\"group\":\"tp\",\"group_ranks\":[1]") END);
}

Test(trace, a_rank_outside_the_world_is_named)
{
    assay_trace *t = NULL;
    write_foreign(INDEX, END);
    put("rank-00001.jsonl", END);
    TEST_FAILS(assay_trace_open(&t, dir, false), ASSAY_MISMATCH,
               "rank-00001.jsonl: a rank outside the world of 1");
}

Test(trace, hash_only_records_have_a_hash)
{
    static const bad_text bad = {"no hash", "", ASSAY_FORMAT, "the trace is hash_only"};
    expect_refused(&bad, "{\"format\":\"assay-trace\",\"version\":1,\"world_size\":1,\"hash_only\":true}",
                   TENSOR("0") END);
}

Test(trace, corrupt_data_is_found_when_asked)
{
    assay_trace *t = NULL;
    uint64_t bytes = 0;
    write_rank(1);
    write_rank(0);
    char *data = test_read(test_path(path, dir, "rank-00001-step-00000.safetensors"), &bytes);
    data[bytes - 1] ^= 1;
    test_write(path, data, (size_t)bytes);
    free(data);
    TEST_OK(assay_trace_open(&t, dir, false));
    assay_trace_close(t);
    TEST_FAILS(assay_trace_open(&t, dir, true), ASSAY_MISMATCH, "content hash: the record says");
    cr_expect_not_null(strstr(assay_error_message(), "rank-00001.jsonl:"), "%s", assay_error_message());
}

Test(trace, phase_names_round_trip)
{
    for (int i = 0; i < ASSAY_PHASE_COUNT; i++) {
        assay_phase phase = ASSAY_PHASE_COUNT;
        TEST_OK(assay_phase_from_name(assay_phase_name((assay_phase)i), &phase));
        cr_expect_eq((int)phase, i);
    }
}

/* A dimension's list has an end, and what is longer is refused by its length. */
Test(trace, more_segments_than_a_dimension_may_have_are_refused)
{
    static const bad_text bad = {"segments", "", ASSAY_LIMIT,
                                 "segments: dimension 0: 257 segments, at most 256"};
    char lines[8192];
    size_t n = (size_t)snprintf(lines, sizeof lines,
                                "{\"type\":\"tensor\",\"id\":0," HEAD
                                ",\"global_shape\":[514,2],\"local_shape\":[257,2],\"segments\":[[");
    for (int i = 0; i <= ASSAY_MAX_SEGMENTS; i++)
        n += (size_t)snprintf(lines + n, sizeof lines - n, "%s[%d,1]", i ? "," : "", 2 * i);
    snprintf(lines + n, sizeof lines - n, "],[[0,2]]]}\n%s", END);
    expect_refused(&bad, INDEX, lines);
}
