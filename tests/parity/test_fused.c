/* Records of operations that ran in one launch: each part is judged by what it read, also where that stayed inside; parts that are
 * missing, swapped, of two launches or wired to something else are named. */
#include "tests/support/parity_fused.h"

TestSuite(parity_fused, .timeout = 60);

enum { T = 3, H = 40 };
#define ADD "decoder.layers.0.self_attention.residual"
#define NORM "decoder.layers.0.pre_mlp_layernorm"

typedef struct launch {
    bool unrounded; /* the norm reads the sum before it is stored in bf16 */
    bool internal;  /* ... and the record says so */
    bool other_x;   /* the norm's record names a tensor that is not the residual */
    bool no_eps;    /* eps is forgotten */
    bool swapped;   /* the norm is recorded first */
    int alone;      /* only this part is recorded; 2: both */
    int64_t later;  /* microbatches by which the norm's record is of another call */
    const char *op; /* of the mark; NULL: add_rmsnorm_fwd */
    int part;       /* added to the norm's number */
} launch;

static void mark(assay_trace_op *o, const launch *l, int part)
{
    snprintf(o->fused, sizeof o->fused, "%s", l->op ? l->op : "add_rmsnorm_fwd");
    o->fused_part = part;
    o->arith.all.math_ulp = 2;
}

static void write_launch(assay_trace_writer *w, const launch *l)
{
    float a[T * H], b[T * H], gamma[H], x[T * H], residual[T * H], y[T * H], rstd[T];
    for (int i = 0; i < T * H; i++) {
        a[i] = rounded(sinf(0.7f * (float)i));
        b[i] = rounded(0.01f * cosf(3.1f * (float)i));
        x[i] = l->unrounded ? a[i] + b[i] : rounded(a[i] + b[i]);
        residual[i] = rounded(a[i] + b[i]);
    }
    for (int j = 0; j < H; j++)
        gamma[j] = rounded(0.5f + 0.01f * (float)j);
    for (int i = 0; i < T; i++) {
        float sum = 0.0f;
        for (int j = 0; j < H; j++)
            sum = fmaf(x[i * H + j], x[i * H + j], sum);
        rstd[i] = 1.0f / sqrtf(sum / (float)H + (l->no_eps ? 0.0f : 1e-2f));
        for (int j = 0; j < H; j++)
            y[i * H + j] = rounded(x[i * H + j] * rstd[i] * gamma[j]);
    }
    assay_trace_op add = op_of("add", ADD, ASSAY_PHASE_FORWARD),
                   norm = op_of("rmsnorm_fwd", NORM, ASSAY_PHASE_FORWARD);
    op_in(&add, "a", put_bf16(w, "a", 2, (int64_t[]){T, H}, a));
    op_in(&add, "b", put_bf16(w, "b", 2, (int64_t[]){T, H}, b));
    op_out(&add, "y", put_bf16(w, "residual", 2, (int64_t[]){T, H}, residual));
    op_in(&norm, "gamma", put_bf16(w, "gamma", 1, (int64_t[]){H}, gamma));
    op_reads(&norm, "x",
             l->internal ? -1 : put_bf16(w, "residual", 2, (int64_t[]){T, H}, l->other_x ? a : residual),
             l->internal);
    op_out(&norm, "y", put_bf16(w, "y", 2, (int64_t[]){T, H}, y));
    op_out(&norm, "rstd", put_vector_f32(w, "rstd", T, rstd));
    norm.attrs = json_pack("{s:f}", "eps", 1e-2);
    norm.arith.all.order = ASSAY_ORDER_SEQUENTIAL;
    norm.arith.all.fma = true;
    norm.microbatch += l->later;
    mark(&add, l, 0);
    mark(&norm, l, 1 + l->part);
    if (l->swapped)
        must(assay_trace_write_op(w, &norm));
    if (l->alone != 1)
        must(assay_trace_write_op(w, &add));
    if (l->alone != 0 && !l->swapped)
        must(assay_trace_write_op(w, &norm));
    json_decref(norm.attrs);
}

static parity_report *judge(const launch *l)
{
    char dir[256];
    assay_trace_writer *w = open_writer(fresh_path(dir, "fused"), 0, 1, "1");
    write_launch(w, l);
    close_writer(w);
    return judge_local(dir);
}

Test(parity_fused, parts_of_one_launch_are_judged_by_what_they_read)
{
    static const launch honest[] = {{.alone = 2}, {.alone = 2, .unrounded = true, .internal = true}};
    for (size_t i = 0; i < 2; i++)
        expect_passed(judge(&honest[i]), 3, i);
}

Test(parity_fused, what_is_not_one_launch_is_named)
{
    static const struct {
        launch l;
        const char *instance, *words;
    } rows[] = {
        {{.alone = 2, .unrounded = true}, NORM, "y"}, /* the record says that it read the stored sum */
        {{.alone = 2, .internal = true}, NORM, "y"},  /* the record says that it did not */
        {{.alone = 2, .no_eps = true}, NORM, "y"},
        {{.alone = 2, .no_eps = true, .unrounded = true, .internal = true}, NORM, "y"},
        {{.alone = 0}, ADD, "part 1 of 2 is expected to be rmsnorm_fwd of the same launch, found no record"},
        {{.alone = 1}, NORM, "part 0 of 2 is expected to be add of the same launch, found no record"},
        {{.alone = 2, .swapped = true}, NORM, "part 0 of 2 is expected to be add"},
        {{.alone = 2, .later = 1},
         ADD,
         "part 1 of 2 is expected to be rmsnorm_fwd of the same launch, found rmsnorm_fwd"},
        {{.alone = 2, .other_x = true},
         ADD,
         "x of rmsnorm_fwd is expected to be what add stored in y, or internal: found another tensor"},
        {{.alone = 2, .part = 1}, ADD, "part 1 of 2"},
        {{.alone = 2, .op = "rmsnorm_bwd"}, ADD, "no operation rmsnorm_bwd has parts"},
        {{.alone = 2, .op = "add_softmax"}, ADD, "no operation add_softmax has parts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_named(judge(&rows[i].l), rows[i].instance, rows[i].words, i);
}

/* Without the mark an input that nobody recorded is missing, and no excuse in a trace of our engines. */
Test(parity_fused, internal_inputs_belong_to_a_launch)
{
    launch l = {.alone = 1, .internal = true, .unrounded = true};
    parity_report *r = judge(&l);
    cr_expect_gt(n_failed(r), 0);
    parity_report_destroy(r);
}
