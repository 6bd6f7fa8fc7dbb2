/* Laws of the routing check: an admissible choice passes, a wrong or malformed one fails, ambiguous tokens
 * are counted. */
#include "tests/support/parity.h"

enum { T = 3, E = 4, K = 2 };

static parity_report *route(const float *logits, const int64_t *indices, const int64_t *counts)
{
    char dir[256];
    const int64_t te[2] = {T, E}, tk[2] = {T, K}, e[1] = {E}, rows[1] = {T * K};
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    assay_trace_op o = op_of("router_fwd", "decoder.layers.0.mlp.router", ASSAY_PHASE_FORWARD);
    o.attrs = json_pack("{s:i, s:s, s:b, s:b, s:f, s:i, s:i}", "topk", K, "score_function", "softmax",
                        "pre_softmax", 1, "norm_topk_prob", 0, "scaling_factor", 1.0, "num_groups", 0,
                        "group_topk", 0);
    float scores[T * E], probs[T * K];
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int i = 0; i < E; i++)
            sum += exp((double)logits[t * E + i]);
        for (int i = 0; i < E; i++)
            scores[t * E + i] = (float)(exp((double)logits[t * E + i]) / sum);
        for (int k = 0; k < K; k++) {
            const int64_t x = indices[t * K + k];
            probs[t * K + k] = x >= 0 && x < E ? scores[t * E + x] : 0;
        }
    }
    op_in(&o, "logits", put_f32(w, "logits", ASSAY_PHASE_FORWARD, T, E, logits));
    assay_trace_tensor i = tensor_of("indices", ASSAY_PHASE_FORWARD, ASSAY_I64, 2, tk);
    must(assay_trace_write_tensor(w, &i, indices));
    op_out(&o, "indices", i.id);
    op_out(&o, "probs", put_f32(w, "probs", ASSAY_PHASE_FORWARD, T, K, probs));
    op_out(&o, "scores", put_f32(w, "scores", ASSAY_PHASE_FORWARD, T, E, scores));
    must(assay_trace_write_op(w, &o));
    json_decref(o.attrs);
    o = op_of("permute_plan", "decoder.layers.0.mlp.permute_plan", ASSAY_PHASE_FORWARD);
    op_in(&o, "indices", i.id);
    assay_trace_tensor c = tensor_of("counts", ASSAY_PHASE_FORWARD, ASSAY_I64, 1, e);
    must(assay_trace_write_tensor(w, &c, counts));
    op_out(&o, "tokens_per_expert", c.id);
    must(assay_trace_write_op(w, &o));
    close_writer(w);
    (void)te;
    (void)rows;
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_routing(t, r));
    assay_trace_close(t);
    remove_path(dir);
    return r;
}

/* Row 2 has two keys for its second place that rounding may order either way. */
static const float logits[T * E] = {1, 2, 3, 0, 4, 0, 1, 3, 5, 2, 2.0000002f, 0};
static const int64_t good[T * K] = {1, 2, 0, 3, 0, 1}, good_counts[E] = {2, 2, 1, 1};

Test(parity_routing, admissible_choices_pass_and_ambiguous_ones_are_counted)
{
    parity_report *r = route(logits, good, good_counts);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    const parity_claim *x = parity_report_at(r, 0);
    cr_assert_str_eq(x->tensor, "indices");
    cr_assert_eq(x->count, T);
    cr_assert_eq(x->n_ambiguous, 1);
    parity_report_destroy(r);
}

Test(parity_routing, a_wrong_expert_is_named_by_its_row)
{
    const int64_t wrong[T * K] = {1, 2, 0, 1, 0, 1}, counts[E] = {2, 3, 1, 0};
    parity_report *r = route(logits, wrong, counts);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_eq(n_failed(r), 1);
    cr_assert_eq(f->index[0], 1);
    cr_assert(strstr(f->message, "not admissible"), "%s", f->message);
    parity_report_destroy(r);
}

Test(parity_routing, experts_exist_ascend_and_are_chosen_once)
{
    const int64_t twice[T * K] = {1, 2, 0, 0, 0, 1}, outside[T * K] = {1, 2, 0, 4, 0, 1},
                            order[T * K] = {2, 1, 0, 3, 0, 1}, negative[T * K] = {-1, 2, 0, 3, 0, 1};
    const int64_t *const all[4] = {twice, outside, order, negative};
    for (int i = 0; i < 4; i++) {
        int64_t counts[E] = {0};
        for (int k = 0; k < T * K; k++) {
            if (all[i][k] >= 0 && all[i][k] < E)
                counts[all[i][k]]++;
        }
        parity_report *r = route(logits, all[i], counts);
        const parity_claim *f = first_failure(r);
        cr_assert_not_null(f);
        cr_assert(strstr(f->message, "expected ascending numbers below 4"), "%s", f->message);
        parity_report_destroy(r);
    }
}

Test(parity_routing, counts_are_those_of_the_choice)
{
    const int64_t counts[E] = {2, 1, 2, 1};
    parity_report *r = route(logits, good, counts);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_str_eq(f->tensor, "tokens_per_expert");
    cr_assert_eq(f->n_bad, 2);
    parity_report_destroy(r);
}
