/* A kernel of your own under the judge: RMSNorm in single precision, recorded with what it says of its arithmetic.
 *   record DIR [wrong]    wrong: it forgets eps */
#include <assay/core/files/trace.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { T = 5, H = 48 };
static const double eps = 1e-3;

static void rmsnorm(const float *x, const float *gamma, double added, float *y)
{
    for (int t = 0; t < T; t++) {
        float sum = 0.0f;
        for (int h = 0; h < H; h++)
            sum += x[t * H + h] * x[t * H + h];
        const float rstd = 1.0f / sqrtf(sum / (float)H + (float)added);
        for (int h = 0; h < H; h++)
            y[t * H + h] = x[t * H + h] * rstd * gamma[h];
    }
}

/* One observation; its record's number goes to *id. */
static assay_status record(assay_trace_writer *w, const char *name, int64_t rows, const float *data,
                           int64_t *id)
{
    assay_trace_tensor t = {.microbatch = 0, .dtype = ASSAY_F32, .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%s", name);
    assay_shard_whole(&t.shard, rows > 0 ? (int64_t[]){rows, H} : (int64_t[]){H}, rows > 0 ? 2 : 1);
    ASSAY_TRY(assay_trace_write_tensor(w, &t, data));
    *id = t.id;
    return ASSAY_OK;
}

static assay_status run(assay_trace_writer *w, bool wrong)
{
    static float x[T * H], gamma[H], y[T * H];
    int64_t ids[3];
    for (int i = 0; i < T * H; i++)
        x[i] = (float)((i * 37 % 101) - 50) / 64.0f;
    for (int h = 0; h < H; h++)
        gamma[h] = 1.0f + (float)(h % 7) / 8.0f;
    rmsnorm(x, gamma, wrong ? 0.0 : eps, y);
    ASSAY_TRY(record(w, "mine.x", T, x, &ids[0]));
    ASSAY_TRY(record(w, "mine.gamma", 0, gamma, &ids[1]));
    ASSAY_TRY(record(w, "mine.y", T, y, &ids[2]));

    /* The operation: docs/OPS.md has its slots and attributes, docs/TOLERANCES.md what a declaration means. */
    assay_arith arith = assay_arith_elementwise();
    arith.order = ASSAY_ORDER_SEQUENTIAL;
    assay_trace_op op = {.op = "rmsnorm_fwd",
                         .instance = "mine",
                         .arith = assay_declaration_make(arith),
                         .attrs = json_pack("{s:f}", "eps", eps),
                         .n_internal = 1,
                         .internal = {"rstd"},
                         .n_inputs = 2,
                         .n_outputs = 1,
                         .inputs = {{"x", ids[0]}, {"gamma", ids[1]}},
                         .outputs = {{"y", ids[2]}}};
    const assay_status st = assay_trace_write_op(w, &op);
    json_decref(op.attrs);
    ASSAY_TRY(st);
    ASSAY_TRY(assay_trace_end_step(w));
    return assay_trace_writer_close(w);
}

int main(int argc, char **argv)
{
    assay_trace_writer *w = NULL;
    if (argc < 2) {
        fputs("record DIR [wrong]\n", stderr);
        return 2;
    }
    json_t *header = json_pack("{s:s, s:s}", "engine", "mine", "precision", "fp32");
    assay_status st = assay_trace_writer_open(&w, argv[1], 0, 1, header, false);
    json_decref(header);
    if (st == ASSAY_OK) {
        st = run(w, argc > 2 && strcmp(argv[2], "wrong") == 0);
        assay_trace_writer_destroy(w);
    }
    if (st != ASSAY_OK)
        assay_error_print(stderr, "record", 0);
    return st == ASSAY_OK ? 0 : 2;
}
