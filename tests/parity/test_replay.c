/* Laws of the local check: an honest operation passes, an element outside its bound is found and named, a
 * declaration that is not kept is seen, collectives are judged over all of their ranks. */
#include "tests/support/parity.h"

enum { T = 3, N = 4, K = 600 };

/* x [T,K] w [N,K]: positive numbers, so that a wrong accumulation precision shows. */
static void operands(float *x, float *w)
{
    for (int i = 0; i < T * K; i++)
        x[i] = 0.5f + 0.5f * (float)fabs(sin(0.37 * i));
    for (int i = 0; i < N * K; i++)
        w[i] = 0.5f + 0.5f * (float)fabs(cos(0.73 * i));
}

static float dot(const float *x, const float *w)
{
    float s = 0;
    for (int k = 0; k < K; k++)
        s = fmaf(x[k], w[k], s);
    return s;
}

/* The operation with y altered in place `at` (-1: nowhere); narrow: sums in bf16 steps. */
static bool substituted; /* what the records of linear() say of y */

static parity_report *linear(int at, float change, bool narrow)
{
    char dir[256];
    float x[T * K], w[N * K], y[T * N];
    operands(x, w);
    for (int t = 0; t < T; t++) {
        for (int n = 0; n < N; n++) {
            y[t * N + n] = dot(x + t * K, w + n * K);
            if (narrow)
                y[t * N + n] = (float)(floor((double)y[t * N + n] * 4.0) / 4.0);
        }
    }
    if (at >= 0)
        y[at] += change;
    assay_trace_writer *out = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    for (int copy = 0; copy < 2; copy++) { /* the second is judged from the cache */
        assay_trace_op o = op_of("linear_fwd", "decoder.layers.0.mlp.linear_fc1", ASSAY_PHASE_FORWARD);
        o.arith.all.order = ASSAY_ORDER_SEQUENTIAL;
        o.arith.all.fma = true;
        op_in(&o, "x", put_f32(out, "x.y", ASSAY_PHASE_FORWARD, T, K, x));
        op_in(&o, "weight", put_f32(out, "w", ASSAY_PHASE_FORWARD, N, K, w));
        op_out(&o, "y", put_f32(out, "fc1.y", ASSAY_PHASE_FORWARD, T, N, y));
        o.substituted[0] = substituted;
        must(assay_trace_write_op(out, &o));
    }
    close_writer(out);
    return judge_local(dir);
}

/* A correct result that the record calls substituted is no pass: nobody saw the operation's own. A wrong one stays a failure. */
Test(parity_replay, a_substituted_output_does_not_pass)
{
    substituted = true;
    parity_report *right = linear(-1, 0, false), *wrong = linear(5, 1.0f, false);
    substituted = false;
    cr_expect_null(first_failure(right));
    cr_expect_eq(n_passed(right), 0);
    cr_expect_geq(n_skipped(right), 1);
    cr_expect_not_null(strstr(parity_report_at(right, 0)->message, "output y was substituted"));
    cr_expect_not_null(first_failure(wrong));
    parity_report_destroy(right);
    parity_report_destroy(wrong);
}

enum { ROWS = 600, H = 4 };

/* rmsnorm_bwd whose dgamma[0] lies between the bound of a tree of 32 lanes and that of one chain; `own`: the record declares
 * the tree for dgamma, else one chain for both outputs, as a shared declaration has to. */
static parity_report *norm_backward(bool own)
{
    static float dy[ROWS * H], x[ROWS * H];
    static double wide[2][ROWS * H];
    float gamma[H], rstd[ROWS], old[H] = {0}, dx[ROWS * H], dgamma[H];
    double gammas[H], rstds[ROWS], olds[H] = {0};
    char dir[256];
    for (int i = 0; i < ROWS * H; i++) {
        wide[0][i] = (double)(dy[i] = (float)(i % 7 + 1) / 8.0f);
        wide[1][i] = (double)(x[i] = (float)(i % 5 + 1) / 4.0f);
    }
    for (int i = 0; i < H; i++)
        gammas[i] = (double)(gamma[i] = 1.0f);
    for (int i = 0; i < ROWS; i++)
        rstds[i] = (double)(rstd[i] = 0.75f);
    assay_arith chain = assay_arith_elementwise(), tree;
    chain.order = ASSAY_ORDER_SEQUENTIAL;
    tree = chain;
    tree.order = ASSAY_ORDER_TREE;
    tree.lanes = 32;
    assay_declaration declared = assay_declaration_make(chain);
    const ref_value in[] = {{"gamma", ASSAY_F32, 1, {H}, H, .value = gammas},
                            {"dy", ASSAY_F32, 2, {ROWS, H}, ROWS * H, .value = wide[0]},
                            {"x", ASSAY_F32, 2, {ROWS, H}, ROWS * H, .value = wide[1]},
                            {"rstd", ASSAY_F32, 1, {ROWS}, ROWS, .value = rstds},
                            {"dgamma_in", ASSAY_F32, 1, {H}, H, .value = olds}};
    ref_replay_result loose, tight;
    must(ref_replay("rmsnorm_bwd", NULL, &declared, in, 5, NULL, 0, &loose));
    must(assay_declaration_set(&declared, "dgamma", tree));
    must(ref_replay("rmsnorm_bwd", NULL, &declared, in, 5, NULL, 0, &tight));
    cr_assert_str_eq(tight.outputs[1].slot, "dgamma");
    const double inner = tight.outputs[1].bound[0], outer = loose.outputs[1].bound[0];
    cr_assert(outer > 4.0 * inner && loose.outputs[0].bound[0] == tight.outputs[0].bound[0]);
    for (int i = 0; i < ROWS * H; i++)
        dx[i] = (float)tight.outputs[0].value[i];
    for (int i = 0; i < H; i++)
        dgamma[i] = (float)(tight.outputs[1].value[i] + (i == 0 ? (inner + outer) / 2.0 : 0.0));
    ref_replay_free(&loose);
    ref_replay_free(&tight);

    assay_trace_writer *out = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    assay_trace_op o = op_of("rmsnorm_bwd", "decoder.final_layernorm", ASSAY_PHASE_BACKWARD);
    o.arith = own ? declared : assay_declaration_make(chain);
    op_in(&o, "gamma", put_vector_f32(out, "g", H, gamma));
    op_in(&o, "dy", put_f32(out, "dy", ASSAY_PHASE_BACKWARD, ROWS, H, dy));
    op_in(&o, "x", put_f32(out, "x", ASSAY_PHASE_FORWARD, ROWS, H, x));
    op_in(&o, "rstd", put_vector_f32(out, "r", ROWS, rstd));
    op_in(&o, "dgamma_in", put_vector_f32(out, "old", H, old));
    op_out(&o, "dx", put_f32(out, "dx", ASSAY_PHASE_BACKWARD, ROWS, H, dx));
    op_out(&o, "dgamma", put_vector_f32(out, "dg", H, dgamma));
    must(assay_trace_write_op(out, &o));
    close_writer(out);
    return judge_local(dir);
}

/* The output is as far off as the arithmetic that the two outputs used to share allows; its own does not. */
Test(parity_replay, an_output_is_judged_by_its_own_arithmetic)
{
    parity_report *shared = norm_backward(false), *own = norm_backward(true);
    cr_expect_null(first_failure(shared));
    const parity_claim *bad = first_failure(own);
    cr_assert_not_null(bad);
    cr_expect_str_eq(bad->tensor, "dgamma");
    cr_expect_eq(bad->n_bad, 1);
    parity_report_destroy(shared);
    parity_report_destroy(own);
}

Test(parity_replay, an_honest_operation_is_within_its_bound)
{
    parity_report *r = linear(-1, 0, false);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    const parity_claim *x = parity_report_at(r, 0);
    cr_assert_eq(x->count, 2 * T * N);
    cr_assert(x->ratio > 0.0 && x->ratio <= 1.0, "%g", x->ratio);
    parity_report_destroy(r);
}

Test(parity_replay, one_element_off_is_named_with_its_place)
{
    parity_report *r = linear(6, 0.05f, false);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_str_eq(f->op, "linear_fwd");
    cr_assert_str_eq(f->instance, "decoder.layers.0.mlp.linear_fc1");
    cr_assert_str_eq(f->tensor, "y");
    cr_assert(f->n_bad == 1 && f->count == T * N, "the first copy alone");
    cr_assert_eq(f->index[0], 1);
    cr_assert_eq(f->index[1], 2);
    cr_assert(f->ratio > 1.0);
    cr_assert(strstr(f->diagnosis, "only the element [1, 2]"), "%s", f->diagnosis);
    parity_report_destroy(r);
}

Test(parity_replay, not_a_number_fails)
{
    parity_report *r = linear(0, NAN, false);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert(isinf(f->ratio));
    cr_assert(strstr(f->diagnosis, "NaN"), "%s", f->diagnosis);
    parity_report_destroy(r);
}

Test(parity_replay, a_declaration_that_is_not_kept_is_seen)
{
    parity_report *r = linear(-1, 0, true);
    cr_assert_eq(n_failed(r), 1);
    parity_report_destroy(r);
}

Test(parity_replay, unknown_operations_are_skips_and_bad_slots_failures)
{
    char dir[256];
    const float data[4] = {1, 2, 3, 4};
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    assay_trace_op o = op_of("fourier_fwd", "a", ASSAY_PHASE_FORWARD);
    op_in(&o, "x", put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 2, data));
    must(assay_trace_write_op(w, &o));
    o = op_of("add", "b", ASSAY_PHASE_FORWARD);
    op_in(&o, "a", put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 2, data));
    must(assay_trace_write_op(w, &o));
    close_writer(w);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_local(t, r));
    cr_assert_eq(parity_report_count(r), 2);
    cr_assert_eq(parity_report_at(r, 0)->verdict, PARITY_FAIL); /* failures stand first */
    cr_assert_eq(parity_report_at(r, 1)->verdict, PARITY_SKIP);
    cr_assert(strstr(parity_report_at(r, 0)->message, "add: slot b: expected a tensor, found none"), "%s",
              parity_report_at(r, 0)->message);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

/* --- collectives -------------------------------------------------------------------------------------------- */

typedef struct call {
    const char *op;
    int64_t send_rows[2], recv_rows[2];
    float recv[2][16];
    int absent;            /* rank without a record, -1 */
    const char *counts[2]; /* JSON */
} call;

static float sent(int rank, int64_t i)
{
    return (float)(100 * rank + i + 1);
}

static parity_report *collective(const call *c)
{
    char dir[256];
    static const int ranks[2] = {0, 1};
    fresh_path(dir, "t");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 2, "tp2");
        float data[16];
        for (int i = 0; i < 16; i++)
            data[i] = sent(rank, i);
        assay_trace_op o = op_of(c->op, "embedding.reduce", ASSAY_PHASE_FORWARD);
        snprintf(o.group, sizeof o.group, "tp");
        o.n_group_ranks = 2;
        o.group_ranks = ranks;
        o.arith.all.order = ASSAY_ORDER_SEQUENTIAL;
        o.attrs = json_pack("{s:s}", "dtype", "F32");
        if (strstr(o.op, "reduce"))
            json_object_set_new(o.attrs, "reduction", json_string("sum"));
        if (strcmp(o.op, "pair") == 0)
            json_object_set_new(o.attrs, "peer", json_integer(1 - rank));
        if (c->counts[rank]) {
            json_t *list = json_loads(c->counts[rank], 0, NULL);
            json_object_set_new(o.attrs, "counts", list);
        }
        if (strcmp(o.op, "pair") == 0)
            snprintf(o.op, sizeof o.op, "%s", rank == 0 ? "send" : "recv");
        if (strcmp(o.op, "recv") != 0)
            op_in(&o, "send", put_f32(w, "s", ASSAY_PHASE_FORWARD, c->send_rows[rank], 1, data));
        if (strcmp(o.op, "send") != 0)
            op_out(&o, "recv", put_f32(w, "r", ASSAY_PHASE_FORWARD, c->recv_rows[rank], 1, c->recv[rank]));
        if (rank != c->absent)
            must(assay_trace_write_op(w, &o));
        json_decref(o.attrs);
        close_writer(w);
    }
    return judge_local(dir);
}

static void expect_call(const call *c, bool good, const char *word)
{
    parity_report *r = collective(c);
    const parity_claim *f = first_failure(r);
    if (good)
        print_failures(r);
    cr_assert_eq(f == NULL, good, "%s: %s", c->op, f ? f->message : "passed");
    cr_assert_gt(parity_report_count(r), 0);
    if (word)
        cr_assert(strstr(f->message, word) || strstr(f->diagnosis, word), "%s: %s [%s]", c->op, f->message,
                  f->diagnosis);
    parity_report_destroy(r);
}

Test(parity_replay, all_reduce)
{
    call c = {.op = "all_reduce", .send_rows = {3, 3}, .recv_rows = {3, 3}, .absent = -1};
    for (int i = 0; i < 3; i++)
        c.recv[0][i] = c.recv[1][i] = sent(0, i) + sent(1, i);
    expect_call(&c, true, NULL);
    for (int i = 0; i < 3; i++)
        c.recv[1][i] = sent(1, i);
    expect_call(&c, false, "expected 10");
    c.absent = 1;
    expect_call(&c, false, "rank 1 of the group never joined");
    c.absent = -1;
    c.send_rows[1] = 2;
    expect_call(&c, false, "different numbers of elements");
}

Test(parity_replay, reduce_scatter_with_uneven_pieces)
{
    call c = {.op = "reduce_scatter", .send_rows = {5, 5}, .recv_rows = {3, 2}, .absent = -1};
    for (int i = 0; i < 5; i++)
        c.recv[i / 3][i % 3] = sent(0, i) + sent(1, i);
    expect_call(&c, true, NULL);
    c.recv[1][1] = -c.recv[1][1];
    expect_call(&c, false, "only the element [1, 0]");
    c.recv_rows[1] = 1;
    expect_call(&c, false, "do not have the size of a send");
}

Test(parity_replay, all_gather_is_bitwise)
{
    call c = {.op = "all_gather", .send_rows = {2, 1}, .recv_rows = {3, 3}, .absent = -1};
    for (int r = 0; r < 2; r++) {
        c.recv[r][0] = sent(0, 0);
        c.recv[r][1] = sent(0, 1);
        c.recv[r][2] = sent(1, 0);
    }
    expect_call(&c, true, NULL);
    c.recv[0][2] = nextafterf(c.recv[0][2], 1e9f);
    expect_call(&c, false, NULL);
}

Test(parity_replay, all_to_all_with_uneven_counts)
{
    call c = {.op = "all_to_all",
              .send_rows = {3, 3},
              .recv_rows = {2, 4},
              .absent = -1,
              .counts = {"[1,2]", "[1,2]"}};
    const float first[2] = {sent(0, 0), sent(1, 0)};
    const float second[4] = {sent(0, 1), sent(0, 2), sent(1, 1), sent(1, 2)};
    memcpy(c.recv[0], first, sizeof first);
    memcpy(c.recv[1], second, sizeof second);
    expect_call(&c, true, NULL);
    c.recv[1][2] = c.recv[1][3] = 0;
    expect_call(&c, false, "zero where values belong");
    c.counts[0] = "[3,0]";
    expect_call(&c, false, "more is sent");
    c.counts[0] = "[1,5]";
    expect_call(&c, false, "do not fit the send buffers");
}

Test(parity_replay, broadcast_and_pairs)
{
    call c = {.op = "broadcast", .send_rows = {2, 2}, .recv_rows = {2, 2}, .absent = -1};
    for (int r = 0; r < 2; r++) {
        c.recv[r][0] = sent(0, 0);
        c.recv[r][1] = sent(0, 1);
    }
    expect_call(&c, true, NULL);
    c.op = "pair";
    expect_call(&c, true, NULL);
    c.recv[1][0] = 7;
    expect_call(&c, false, NULL);
    c.absent = 0;
    expect_call(&c, false, "rank 0 of the group never joined");
}
