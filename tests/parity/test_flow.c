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

/* --- states that are written piece by piece ------------------------------------------------------------------- */

/* One operation reads or writes rows [first, first + n) of a tensor [4,2], each element `value`, but `other` in the first row. */
typedef struct access {
    const char *op;
    bool writes;
    assay_phase phase;
    int64_t step, microbatch, first, n;
    float value, other;
} access_line;

static void write_access(assay_trace_writer *w, const char *name, assay_dtype dtype, const access_line *a,
                         int number)
{
    const int64_t shape[2] = {4, 2};
    float data[8];
    double wide[8];
    char instance[16];
    snprintf(instance, sizeof instance, "line %d", number);
    assay_trace_tensor t = tensor_of(name, a->phase, dtype, 2, shape);
    assay_trace_op op = op_of(a->op, instance, a->phase);
    t.step = op.step = a->step;
    t.microbatch = op.microbatch = a->microbatch;
    must(assay_shard_narrow(&t.shard, 0, a->first, a->n));
    for (int64_t i = 0; i < 2 * a->n; i++)
        data[i] = i < 2 ? a->other : a->value, wide[i] = (double)data[i];
    must(assay_trace_write_tensor(w, &t, dtype == ASSAY_F64 ? (const void *)wide : data));
    if (a->writes)
        op_out(&op, "y", t.id);
    else
        op_in(&op, "x", t.id);
    must(assay_trace_write_op(w, &op));
}

/* Where nothing else is said, the one failure is of line `wrong`; -1: none fails. */
static void expect_story(const char *name, assay_dtype dtype, const access_line *lines, int n, int wrong,
                         const char *word)
{
    char dir[256], instance[16];
    assay_model_spec *spec;
    make_spec(&spec);
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    for (int i = 0; i < n; i++) {
        write_access(w, name, dtype, &lines[i], i);
        if (i + 1 == n || lines[i + 1].step != lines[i].step)
            must(assay_trace_end_step(w));
    }
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    assay_trace *trace = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_flow(trace, spec, r));
    const parity_claim *f = first_failure(r);
    snprintf(instance, sizeof instance, "line %d", wrong);
    cr_expect_eq(n_failed(r), wrong >= 0, "%s: %lld failures", word, (long long)n_failed(r));
    cr_expect_eq(f != NULL, wrong >= 0, "%s: %s", word, f ? f->message : "nothing found");
    if (f != NULL && wrong >= 0)
        cr_expect(strcmp(f->instance, instance) == 0 && strstr(f->message, word), "%s: %s", f->instance,
                  f->message);
    parity_report_destroy(r);
    assay_trace_close(trace);
    assay_spec_destroy(spec);
    remove_path(dir);
}

#define FORWARD ASSAY_PHASE_FORWARD
#define BACKWARD ASSAY_PHASE_BACKWARD
#define GRAD ASSAY_PHASE_GRAD
#define OPTIMIZER ASSAY_PHASE_OPTIMIZER

/* A part that is written behind the whole counts, too: gathered before the update, the whole is one step old. */
Test(parity_flow, a_later_write_of_a_part_is_not_forgotten)
{
    access_line early[] = {{"all_gather", true, OPTIMIZER, 0, -1, 0, 4, 1, 1},
                           {"adamw", true, OPTIMIZER, 0, -1, 2, 2, 5, 5},
                           {"linear_fwd", false, FORWARD, 1, 0, 0, 4, 1, 1}};
    expect_story(weight_name, ASSAY_F32, early, 3, 2, "is not what adamw line 1 wrote");
    early[2] = (access_line){"linear_fwd", false, FORWARD, 1, 0, 0, 2, 1, 1}; /* rows that it left alone */
    expect_story(weight_name, ASSAY_F32, early, 3, -1, "");
    access_line mixed[] = {early[0], early[1], {"linear_fwd", false, FORWARD, 1, 0, 0, 4, 5, 1}};
    mixed[1].first = 1, mixed[1].n = 3; /* what the rank holds: its own part is new, the others' is old */
    expect_story(weight_name, ASSAY_F32, mixed, 3, 2, "is what all_gather gathered, and adamw line 1");
    access_line late[] = {early[1], early[0], {"linear_fwd", false, FORWARD, 1, 0, 0, 4, 1, 1}};
    expect_story(weight_name, ASSAY_F32, late, 3, -1, "");
}

/* Two halves, and the whole is read: neither may be what it was. */
Test(parity_flow, every_half_of_a_state_is_held_to_its_write)
{
    access_line halves[] = {{"linear_fwd", false, FORWARD, 0, 0, 0, 4, 1, 1},
                            {"adamw", true, OPTIMIZER, 0, -1, 0, 1, 7, 7},
                            {"adamw", true, OPTIMIZER, 0, -1, 1, 3, 5, 5},
                            {"linear_fwd", false, FORWARD, 1, 0, 0, 4, 5, 7}};
    expect_story(weight_name, ASSAY_F32, halves, 4, -1, "");
    halves[3].other = 1; /* the first half is the old one */
    expect_story(weight_name, ASSAY_F32, halves, 4, 3, "is not what adamw line 1 wrote");
    halves[3].other = 7, halves[3].value = 1;
    expect_story(weight_name, ASSAY_F32, halves, 4, 3, "is not what adamw line 2 wrote");
}

/* Rows that no operation writes must stay what they were, and must have been seen. */
Test(parity_flow, the_rest_of_a_state_stays_what_it_was)
{
    access_line rest[] = {{"linear_fwd", false, FORWARD, 0, 0, 0, 4, 1, 1},
                          {"adamw", true, OPTIMIZER, 0, -1, 0, 1, 7, 7},
                          {"linear_fwd", false, FORWARD, 1, 0, 0, 4, 1, 7}};
    expect_story(weight_name, ASSAY_F32, rest, 3, -1, "");
    rest[2].value = 2;
    expect_story(weight_name, ASSAY_F32, rest, 3, 2, "the first observation");
    rest[2].value = 1;
    expect_story(weight_name, ASSAY_F32, rest + 1, 2, 1, "of 8 elements that were read no operation");
    access_line apart[] = {rest[1], {"adamw", false, OPTIMIZER, 0, -1, 1, 3, 1, 1}};
    expect_story(weight_name, ASSAY_F32, apart, 2, -1, "");
}

/* One number has a producer as every other has: a factor of the step before is no factor of this step. */
Test(parity_flow, numbers_and_tables_belong_to_their_step)
{
    access_line scale[] = {{"clip_coefficient", true, OPTIMIZER, 0, -1, 0, 4, 1, 1},
                           {"adamw", false, OPTIMIZER, 1, -1, 0, 4, 1, 1}};
    expect_story("clip.scale", ASSAY_F64, scale, 2, 1, "no operation of rank 0 wrote clip.scale");
    scale[1].step = 0;
    expect_story("clip.scale", ASSAY_F64, scale, 2, -1, "");
}

/* What sums over ranks have taken is complete: of the step, or of its microbatch. */
Test(parity_flow, a_gradient_is_not_written_once_it_was_taken)
{
    char name[96];
    snprintf(name, sizeof name, "%s.main_grad", weight_name);
    access_line late[] = {{"linear_bwd_weight", true, BACKWARD, 0, 0, 0, 4, 1, 1},
                          {"reduce_scatter", false, GRAD, 0, -1, 0, 4, 1, 1},
                          {"embedding_bwd", true, BACKWARD, 0, 0, 0, 4, 2, 2}};
    expect_story(name, ASSAY_F32, late, 3, 2, "is written after reduce_scatter line 1 has read it");
    late[1].microbatch = 0;
    expect_story(name, ASSAY_F32, late, 3, 2, "is written after reduce_scatter line 1 has read it");
    late[2].microbatch = 1; /* every microbatch is reduced by itself */
    expect_story(name, ASSAY_F32, late, 3, -1, "");
    late[2].step = 1;
    late[1].microbatch = -1;
    expect_story(name, ASSAY_F32, late, 3, -1, "");
    access_line nobody[] = {{"reduce_scatter", false, GRAD, 0, -1, 0, 4, 0, 0}};
    expect_story(name, ASSAY_F32, nobody, 1, -1, "");
    nobody[0].value = 1;
    expect_story(name, ASSAY_F32, nobody, 1, 0, "expected zeros");
}
