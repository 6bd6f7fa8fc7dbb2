/* Laws of the exact check: the reference's own answer passes, one changed element of any operation fails. */
#include "tests/support/parity.h"

#include "ref/ops.h"

enum { MUTANT_NONE = -1 };

static void decode(const assay_trace_tensor *t, const char *slot, ref_value *v)
{
    memset(v, 0, sizeof *v);
    snprintf(v->slot, sizeof v->slot, "%s", slot);
    v->dtype = t->dtype;
    v->ndim = t->shard.ndim;
    memcpy(v->shape, t->shard.local_shape, sizeof v->shape);
    v->count = assay_shard_count(&t->shard);
    if (t->dtype == ASSAY_I64) {
        v->ivalue = malloc((size_t)v->count * 8 + 8);
        if (v->count)
            memcpy(v->ivalue, t->data, (size_t)v->count * 8);
        return;
    }
    v->value = malloc((size_t)v->count * 8 + 8);
    for (int64_t i = 0; i < v->count; i++) {
        float f;
        if (t->dtype == ASSAY_F64) {
            memcpy(&v->value[i], (const char *)t->data + 8 * i, 8);
            continue;
        }
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        v->value[i] = (double)f;
    }
}

/* Stored dtype of an output: sums in double, integers and what a collective moves as they are, the rest F32. */
static assay_dtype stored(const char *op, const ref_value *v)
{
    if (v->ivalue)
        return ASSAY_I64;
    if (!ref_replay_knows(op))
        return v->dtype;
    static const char *const in_double[] = {"sumsq", "sum", "total", "clip_coefficient"};
    for (size_t i = 0; i < sizeof in_double / sizeof *in_double; i++)
        if (strcmp(op, in_double[i]) == 0)
            return ASSAY_F64;
    return ASSAY_F32;
}

static int64_t write_output(assay_trace_writer *w, const assay_trace_op *op, const ref_value *v, bool change)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%.100s.%s", op->instance, v->slot);
    const assay_dtype dtype = stored(op->op, v);
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, dtype, v->ndim, v->shape);
    t.microbatch = -1;
    char *bytes = calloc((size_t)v->count + 1, 8);
    for (int64_t i = 0; i < v->count; i++) {
        const float f = v->value ? (float)v->value[i] : 0;
        if (dtype == ASSAY_F32)
            memcpy(bytes + 4 * i, &f, 4);
        else
            memcpy(bytes + 8 * i,
                   dtype == ASSAY_I64 ? (const void *)&v->ivalue[i] : (const void *)&v->value[i], 8);
    }
    if (change && v->count > 0 && dtype == ASSAY_F32) {
        const int64_t at = v->count / 2; /* far beyond every bound of random inputs */
        float f;
        memcpy(&f, bytes + 4 * at, 4);
        f = 1000.5f - 3.0f * f; /* also where the truth is a residue near 0 */
        memcpy(bytes + 4 * at, &f, 4);
    } else if (change && v->count > 0)
        bytes[dtype == ASSAY_F32   ? 4 * (v->count / 2) + 2
              : dtype == ASSAY_F64 ? 8 * (v->count / 2) + 6
                                   : 8 * (v->count / 2)] ^= 0x20;
    must(assay_trace_write_tensor(w, &t, bytes));
    free(bytes);
    return t.id;
}

/* Answers one operation with the reference; returns whether something could be changed. */
static bool answer(assay_trace_writer *w, const assay_trace *request, const assay_trace_op *asked,
                   bool change)
{
    ref_value inputs[ASSAY_MAX_SLOTS];
    assay_trace_op op = *asked;
    op.n_inputs = op.n_outputs = 0;
    for (int i = 0; i < asked->n_inputs; i++) {
        const assay_trace_tensor *from = assay_trace_op_tensor(request, asked, asked->inputs[i].slot);
        assay_trace_tensor t = *from;
        decode(from, asked->inputs[i].slot, &inputs[i]);
        must(assay_trace_write_tensor(w, &t, from->data));
        op_in(&op, asked->inputs[i].slot, t.id);
    }
    bool changed = false;
    if (ref_replay_knows(asked->op)) {
        ref_replay_result result;
        must(ref_replay(asked->op, asked->attrs, &asked->arith, inputs, asked->n_inputs, NULL, 0, &result));
        for (int i = 0; i < result.n_outputs; i++) {
            ref_value *v = &result.outputs[i];
            op_out(&op, v->slot, write_output(w, asked, v, change && i == 0));
            changed = changed || (change && i == 0 && v->count > 0);
        }
        ref_replay_free(&result);
    } else { /* a collective of one rank is a copy */
        op_out(&op, "recv", write_output(w, asked, &inputs[0], change));
        snprintf(op.outputs[0].slot, ASSAY_SLOT_NAME, "recv");
        changed = change && inputs[0].count > 0;
    }
    for (int i = 0; i < asked->n_inputs; i++) {
        free(inputs[i].value);
        free(inputs[i].ivalue);
    }
    must(assay_trace_write_op(w, &op));
    return changed;
}

enum { MAX_REQUESTS = 2048, GROUPS = 3 };

/* One operation of the request: whether an element of its answer was changed, and whether it failed. */
typedef struct outcome {
    char instance[ASSAY_NAME];
    bool changed, failed;
} outcome;

/* Answers all; of every operation i with i % GROUPS == group the first output is changed.  Returns their number. */
static int64_t judge(const char *request_dir, int64_t group, outcome *out, parity_report *r)
{
    char dir[256];
    assay_trace *request = open_trace(request_dir);
    assay_trace_writer *w = open_writer(fresh_path(dir, "answer"), 0, 1, NULL);
    const int64_t n = assay_trace_n_ops(request, 0);
    cr_assert_leq(n, MAX_REQUESTS);
    for (int64_t i = 0; i < n; i++) {
        const assay_trace_op *asked = assay_trace_op_at(request, 0, i);
        memcpy(out[i].instance, asked->instance, ASSAY_NAME);
        out[i].changed = answer(w, request, asked, i % GROUPS == group);
        out[i].failed = false;
    }
    close_writer(w);
    assay_trace_close(request);
    must(parity_check_exact(request_dir, dir, r));
    remove_path(dir);
    for (int64_t k = 0; k < parity_report_count(r); k++)
        for (int64_t i = 0; i < n && parity_report_at(r, k)->verdict == PARITY_FAIL; i++)
            out[i].failed = out[i].failed || strcmp(out[i].instance, parity_report_at(r, k)->instance) == 0;
    return n;
}

Test(parity_exact, the_reference_answers_its_own_request)
{
    static outcome out[MAX_REQUESTS];
    char dir[256];
    must(parity_exact_request(fresh_path(dir, "request"), 1, "F32"));
    parity_report *r = new_report();
    const int64_t n = judge(dir, MUTANT_NONE, out, r);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_gt(n_passed(r), 180);
    cr_assert_gt(n, 500);
    parity_report_destroy(r);
    remove_path(dir);
}

/* Lattice inputs and random inputs of both modes: exactly the changed operations fail, each under its own number. */
Test(parity_exact, one_changed_element_of_any_operation_fails_there)
{
    static outcome out[MAX_REQUESTS];
    char dir[256];
    must(parity_exact_request(fresh_path(dir, "request"), 1, "F32"));
    int64_t tried = 0;
    for (int64_t group = 0; group < GROUPS; group++) {
        parity_report *r = new_report();
        const int64_t n = judge(dir, group, out, r);
        for (int64_t i = 0; i < n; i++) {
            cr_expect_eq(out[i].failed, out[i].changed, "%s: changed %d, failed %d", out[i].instance,
                         out[i].changed, out[i].failed);
            tried += out[i].changed;
        }
        parity_report_destroy(r);
    }
    cr_assert_gt(tried, 400);
    remove_path(dir);
}

/* The outputs of an attention over documents whose first keys all move by `shift` (0: as they are). */
static void replay_moved(const assay_trace *request, const assay_trace_op *asked, int64_t shift,
                         ref_replay_result *out)
{
    ref_value inputs[ASSAY_MAX_SLOTS];
    for (int i = 0; i < asked->n_inputs; i++) {
        decode(assay_trace_op_tensor(request, asked, asked->inputs[i].slot), asked->inputs[i].slot,
               &inputs[i]);
        for (int64_t k = 0; strcmp(asked->inputs[i].slot, "first_key") == 0 && k < inputs[i].count; k++)
            inputs[i].ivalue[k] += shift;
    }
    must(ref_replay(asked->op, asked->attrs, &asked->arith, inputs, asked->n_inputs, NULL, 0, out));
    for (int i = 0; i < asked->n_inputs; i++) {
        free(inputs[i].value);
        free(inputs[i].ivalue);
    }
}

static ref_value integers_of(const assay_trace *request, const assay_trace_op *asked, const char *slot)
{
    ref_value v;
    decode(assay_trace_op_tensor(request, asked, slot), slot, &v);
    return v;
}

/* Queries for which a key comes or goes when first keys move by `shift`. */
static int64_t queries_that_see_a_move(const assay_trace *request, const assay_trace_op *asked, int64_t shift)
{
    const int64_t batch = json_integer_value(json_object_get(asked->attrs, "batch"));
    ref_value q = integers_of(request, asked, "q_position"), k = integers_of(request, asked, "k_position"),
              first = integers_of(request, asked, "first_key");
    int64_t n = 0;
    for (int64_t i = 0; i < q.count; i++) {
        const int64_t edge = shift > 0 ? first.ivalue[i] : first.ivalue[i] - 1;
        for (int64_t j = i % batch; j < k.count; j += batch)
            n += k.ivalue[j] == edge && edge <= q.ivalue[i];
    }
    free(q.ivalue);
    free(k.ivalue);
    free(first.ivalue);
    return n;
}

/* A mask that is off by one token is seen by every exact request of attention over documents that has a key there, in both
 * directions. */
Test(parity_exact, a_document_mask_that_is_off_by_one_changes_the_answer)
{
    char dir[256];
    int tried = 0;
    must(parity_exact_request(fresh_path(dir, "request"), 1, "F32"));
    assay_trace *t = open_trace(dir);
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        if (strncmp(op->instance, "exact.", 6) != 0 || !assay_trace_op_tensor(t, op, "first_key"))
            continue;
        for (int64_t shift = -1; shift <= 1; shift += 2) {
            const bool seen = queries_that_see_a_move(t, op, shift) > 0;
            ref_replay_result honest, moved;
            replay_moved(t, op, 0, &honest);
            replay_moved(t, op, shift, &moved);
            int64_t differ = 0;
            for (int o = 0; o < honest.n_outputs; o++) /* with a scale of 0, dv alone */
                for (int64_t k = 0; k < honest.outputs[o].count; k++)
                    differ += (float)honest.outputs[o].value[k] != (float)moved.outputs[o].value[k];
            cr_expect_eq(differ > 0, seen, "%s: moved by %d", op->instance, (int)shift);
            ref_replay_free(&honest);
            ref_replay_free(&moved);
            tried += seen;
        }
    }
    cr_expect_gt(tried, 80);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_exact, requests_are_written_for_every_rank_and_act_dtype)
{
    char dir[256];
    must(parity_exact_request(fresh_path(dir, "request"), 3, "BF16"));
    assay_trace *t = open_trace(dir);
    cr_assert_eq(assay_trace_world(t), 3);
    cr_assert_gt(assay_trace_n_ops(t, 0), assay_trace_n_ops(t, 2));
    cr_assert_str_eq(json_string_value(json_object_get(assay_trace_op_at(t, 2, 0)->attrs, "act")), "BF16");
    assay_trace_close(t);
    remove_path(dir);
    cr_assert_eq(parity_exact_request("/nonexistent/x", 1, "F8_E4M3"), ASSAY_INVALID_ARGUMENT);
}

Test(parity_exact, a_missing_answer_is_a_failure)
{
    char dir[256], other[256];
    must(parity_exact_request(fresh_path(dir, "request"), 1, "F32"));
    close_writer(open_writer(fresh_path(other, "answer"), 0, 1, NULL));
    parity_report *r = new_report();
    must(parity_check_exact(dir, other, r));
    cr_assert_gt(n_failed(r), 100);
    cr_assert_eq(n_passed(r), 0);
    parity_report_destroy(r);
    remove_path(other);
    remove_path(dir);
}
