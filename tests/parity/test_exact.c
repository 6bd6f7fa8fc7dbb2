/* Laws of the exact check: the reference's own answer passes, one changed element of any operation fails. */
#include "tests/support/exact.h"

enum { MUTANT_NONE = -1 };

enum { MAX_REQUESTS = 4096, GROUPS = 3 };

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
        out[i].changed = answer_as(w, request, asked, 0, i % GROUPS == group);
        out[i].failed = false;
    }
    close_writer(w);
    assay_trace_close(request);
    must(parity_check_exact(request_dir, dir, false, r));
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

/* A wrong answer is not hidden by a right one behind it. */
Test(parity_exact, an_answer_counts_once)
{
    char request_dir[256], dir[256];
    must(parity_exact_request(fresh_path(request_dir, "request"), 1, "F32"));
    assay_trace *request = open_trace(request_dir);
    assay_trace_writer *w = open_writer(fresh_path(dir, "answer"), 0, 1, NULL);
    parity_report *r = new_report();
    const int64_t n = assay_trace_n_ops(request, 0);
    answer_as(w, request, assay_trace_op_at(request, 0, 0), 0, true);
    for (int64_t i = 0; i < n; i++)
        answer_as(w, request, assay_trace_op_at(request, 0, i), 0, false);
    close_writer(w);
    must(parity_check_exact(request_dir, dir, false, r));
    cr_assert_eq(n_failed(r), 1);
    cr_expect(strstr(first_failure(r)->message, "twice"), "%s", first_failure(r)->message);
    parity_report_destroy(r);
    assay_trace_close(request);
    remove_path(dir);
    remove_path(request_dir);
}

/* An answer under a name that was not asked is judged by nobody: a run that made one is not what was asked for. */
Test(parity_exact, an_answer_that_nobody_asked_fails)
{
    char request_dir[256], dir[256];
    must(parity_exact_request(fresh_path(request_dir, "request"), 1, "F32"));
    assay_trace *request = open_trace(request_dir);
    assay_trace_writer *w = open_writer(fresh_path(dir, "answer"), 0, 1, NULL);
    parity_report *r = new_report();
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0); i++)
        answer_as(w, request, assay_trace_op_at(request, 0, i), 0, false);
    assay_trace_op stranger = *assay_trace_op_at(request, 0, 0);
    snprintf(stranger.instance, sizeof stranger.instance, "exact.of_its_own");
    answer_as(w, request, &stranger, 0, true);
    close_writer(w);
    must(parity_check_exact(request_dir, dir, false, r));
    cr_assert_eq(n_failed(r), 1);
    cr_expect(strstr(first_failure(r)->message, "exact.of_its_own, which nobody asked it"), "%s",
              first_failure(r)->message);
    parity_report_destroy(r);
    assay_trace_close(request);
    remove_path(dir);
    remove_path(request_dir);
}

/* Right numbers in a wider or a narrower type are no answer: they would be compared as that type rounds them. */
Test(parity_exact, an_output_of_another_dtype_fails)
{
    static const assay_dtype others[] = {ASSAY_F64, ASSAY_BF16};
    static outcome out[MAX_REQUESTS];
    char dir[256];
    must(parity_exact_request(fresh_path(dir, "request"), 1, "F32"));
    for (int k = 0; k < 2; k++) {
        parity_report *r = new_report();
        int64_t tried = 0;
        stored_floats = others[k];
        const int64_t n = judge(dir, MUTANT_NONE, out, r);
        stored_floats = ASSAY_F32;
        for (int64_t i = 0; i < n; i++) {
            const char *op = strchr(out[i].instance, '.') + 1;
            op += strncmp(out[i].instance, "local.", 6) == 0 ? strcspn(op, ".") + 1 : 0;
            if (strncmp(op, "rmsnorm_fwd.", 12) != 0 && strncmp(op, "swiglu_bwd.", 11) != 0)
                continue;
            cr_expect(out[i].failed, "%s", out[i].instance);
            tried++;
        }
        cr_assert_gt(tried, 30);
        parity_report_destroy(r);
    }
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
    must(parity_check_exact(dir, other, false, r));
    cr_assert_gt(n_failed(r), 100);
    cr_assert_eq(n_passed(r), 0);
    parity_report_destroy(r);
    remove_path(other);
    remove_path(dir);
}
