/* Law: what an operation reads is what its producer wrote. */
#include "tests/support/parity.h"

static const float one[4] = {1, 2, 3, 4}, two[4] = {2, 4, 6, 8}, zero[4] = {0, 0, 0, 0};

typedef struct story {
    const float *read;    /* what the second operation reads as a.y */
    const float *weight;  /* what step 1 reads as the parameter */
    const float *grad_in; /* what step 1's gradient starts from */
    bool unwritten;       /* the second operation reads a name nobody wrote */
    bool overwrites;      /* the second operation does not read the gradient */
    bool always;          /* step 0's gradient starts from grad_in, too */
} story;

static const char *const weight_name = "decoder.final_layernorm.weight";

static void write_step(assay_trace_writer *w, int64_t step, const story *s)
{
    const int64_t shape[2] = {2, 2};
    const bool second = step == 1;
    assay_trace_tensor t = tensor_of("a.y", ASSAY_PHASE_FORWARD, ASSAY_F32, 2, shape);
    t.step = step;
    must(assay_trace_write_tensor(w, &t, one));
    assay_trace_op make = op_of("cast", "a", ASSAY_PHASE_FORWARD);
    make.step = step;
    op_out(&make, "y", t.id);
    must(assay_trace_write_op(w, &make));

    assay_trace_op use = op_of("linear_bwd_weight", "b", ASSAY_PHASE_BACKWARD);
    use.step = step;
    if (second && s->unwritten)
        snprintf(t.name, sizeof t.name, "c.y");
    must(assay_trace_write_tensor(w, &t, second ? s->read : one));
    op_in(&use, "x", t.id);
    snprintf(t.name, sizeof t.name, "%s.main_grad", weight_name);
    must(assay_trace_write_tensor(w, &t, second || s->always ? s->grad_in : zero));
    op_in(&use, "dweight_in", t.id);
    must(assay_trace_write_tensor(w, &t, two));
    op_out(&use, "dweight", t.id);
    use.attrs = second && s->overwrites ? json_pack("{s:b}", "accumulate", false) : NULL;
    must(assay_trace_write_op(w, &use));
    json_decref(use.attrs);

    assay_trace_op update = op_of("adamw", weight_name, ASSAY_PHASE_OPTIMIZER);
    update.step = step;
    update.microbatch = -1;
    t.microbatch = -1;
    snprintf(t.name, sizeof t.name, "%s", weight_name);
    must(assay_trace_write_tensor(w, &t, second ? s->weight : one));
    op_in(&update, "weight", t.id);
    must(assay_trace_write_tensor(w, &t, two));
    op_out(&update, "param", t.id);
    must(assay_trace_write_op(w, &update));
    must(assay_trace_end_step(w));
}

static void make_spec(assay_model_spec **spec)
{
    char path[512];
    assay_model_config *c = malloc(sizeof *c);
    snprintf(path, sizeof path, "%s/golden/models/llama", ASSAY_SOURCE_DIR);
    must(assay_config_load(path, c));
    must(assay_spec_build(c, spec));
    free(c);
}

static parity_report *flow_of(const story *s)
{
    char dir[256];
    assay_model_spec *spec;
    make_spec(&spec);
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    write_step(w, 0, s);
    write_step(w, 1, s);
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_flow(t, spec, r));
    assay_trace_close(t);
    assay_spec_destroy(spec);
    remove_path(dir);
    return r;
}

static void expect_failure(const story *s, const char *instance, const char *slot, const char *word)
{
    parity_report *r = flow_of(s);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_eq(n_failed(r), 1);
    cr_assert_str_eq(f->instance, instance);
    cr_assert_str_eq(f->tensor, slot);
    cr_assert(strstr(f->message, word) || strstr(f->diagnosis, word), "%s [%s]", f->message, f->diagnosis);
    parity_report_destroy(r);
}

Test(parity_flow, whole_edges_pass)
{
    parity_report *r = flow_of(&(story){one, two, zero, false, false, false});
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(n_passed(r), 3, "x, dweight_in, weight");
    parity_report_destroy(r);
}

Test(parity_flow, a_broken_edge_is_named_and_explained)
{
    const float other[4] = {1, 2, 3, 5};
    expect_failure(&(story){other, two, zero, false, false, false}, "b", "x", "a.y is not what cast a wrote");
    expect_failure(&(story){other, two, zero, false, false, false}, "b", "x",
                   "only the element [1, 1] is wrong");
    expect_failure(&(story){two, two, zero, false, false, false}, "b", "x", "it is the content of");
}

/* The gradient is wrong from step 0 on, what is read before it in the same operation from step 1 on. */
Test(parity_flow, what_is_wrong_in_the_earlier_step_is_named_first)
{
    const float other[4] = {1, 2, 3, 5};
    parity_report *r = flow_of(&(story){other, two, one, false, false, true});
    cr_assert_eq(n_failed(r), 2);
    cr_expect_str_eq(parity_report_at(r, 0)->tensor, "dweight_in");
    cr_expect_str_eq(parity_report_at(r, 1)->tensor, "x");
    parity_report_destroy(r);
}

Test(parity_flow, a_stale_weight_is_recognised)
{
    expect_failure(&(story){one, one, zero, false, false, false}, weight_name, "weight",
                   "stale: it is the initial value");
}

Test(parity_flow, a_gradient_enters_a_step_as_zeros)
{
    expect_failure(&(story){one, two, two, false, false, false}, "b", "dweight_in", "expected zeros");
}

/* What a product overwrites is not read; its other inputs are. */
Test(parity_flow, what_is_overwritten_is_not_judged)
{
    parity_report *r = flow_of(&(story){one, two, two, false, true, false});
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    parity_report_destroy(r);
    expect_failure(&(story){two, two, two, false, true, false}, "b", "x", "it is the content of");
}

Test(parity_flow, real_values_that_nobody_wrote_fail)
{
    expect_failure(&(story){one, two, zero, true, false, false}, "b", "x",
                   "no operation of rank 0 wrote c.y");
}

/* --- what is written part by part ---------------------------------------------------------------------------- */

/* Rows of a.y [4,2]: each of the parts [0,1), [1,3), [3,4) is written by an operation of its own, but for part `skipped`; then an
 * operation reads `n` rows from `first` on, with `wrong` added to the last element. */
static int64_t failures_of_parts(int skipped, int64_t first, int64_t n, float wrong, assay_piece_kind kind)
{
    static const int64_t parts[3][2] = {{0, 1}, {1, 2}, {3, 1}};
    static const float all[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t shape[2] = {4, 2};
    float read[8];
    char dir[256];
    assay_model_spec *spec;
    make_spec(&spec);
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    assay_trace_tensor t = tensor_of("a.y", ASSAY_PHASE_FORWARD, ASSAY_F32, 2, shape);
    t.kind = kind;
    snprintf(t.partial_group, sizeof t.partial_group, "%s", kind == ASSAY_PIECE_PARTIAL ? "tp" : "");
    for (int i = 0; i < 3; i++) {
        if (i == skipped)
            continue;
        assay_shard_whole(&t.shard, shape, 2);
        must(assay_shard_narrow(&t.shard, 0, parts[i][0], parts[i][1]));
        must(assay_trace_write_tensor(w, &t, all + 2 * parts[i][0]));
        assay_trace_op make = op_of("cast", "a", ASSAY_PHASE_FORWARD);
        op_out(&make, "y", t.id);
        must(assay_trace_write_op(w, &make));
    }
    memcpy(read, all + 2 * first, (size_t)n * 2 * sizeof *read);
    read[2 * n - 1] += wrong;
    assay_shard_whole(&t.shard, shape, 2);
    must(assay_shard_narrow(&t.shard, 0, first, n));
    must(assay_trace_write_tensor(w, &t, read));
    assay_trace_op use = op_of("sum", "b", ASSAY_PHASE_FORWARD);
    op_in(&use, "x", t.id);
    must(assay_trace_write_op(w, &use));
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    assay_trace *trace;
    parity_report *r = new_report();
    must(assay_trace_open(&trace, dir, true));
    must(parity_check_flow(trace, spec, r));
    const int64_t failed = n_failed(r);
    parity_report_destroy(r);
    assay_trace_close(trace);
    assay_spec_destroy(spec);
    remove_path(dir);
    return failed;
}

Test(parity_flow, parts_that_several_operations_wrote_are_read_together)
{
    for (int kind = ASSAY_PIECE_SHARD; kind <= ASSAY_PIECE_PARTIAL; kind++) {
        const assay_piece_kind k = (assay_piece_kind)kind;
        cr_expect_eq(failures_of_parts(-1, 0, 4, 0.0f, k), 0, "all rows");
        cr_expect_eq(failures_of_parts(-1, 0, 2, 0.0f, k), 0, "rows across two parts");
        cr_expect_eq(failures_of_parts(-1, 0, 2, 1.0f, k), 1, "of a part that is not the last one");
        cr_expect_eq(failures_of_parts(-1, 0, 4, 1.0f, k), 1, "of the last part");
        for (int skipped = 0; skipped < 3; skipped++)
            cr_expect_eq(failures_of_parts(skipped, 0, 4, 0.0f, k), 1, "part %d was not written", skipped);
        cr_expect_eq(failures_of_parts(2, 3, 1, 0.0f, k), 1, "rows that nobody wrote");
    }
}
