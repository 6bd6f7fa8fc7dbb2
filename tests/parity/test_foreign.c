/* Laws of traces that another framework made (golden/foreign, recorded by golden/assay_trace): an honest run passes, with the
 * rounding points that it declares and not without them; a planted fault is named at its operation and nowhere before. */
#include "tests/support/parity.h"

static parity_report *replay(const char *name)
{
    char dir[512];
    snprintf(dir, sizeof dir, ASSAY_SOURCE_DIR "/golden/foreign/%s", name);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_local(t, r));
    cr_expect(assay_trace_is_foreign(t));
    assay_trace_close(t);
    return r;
}

Test(parity_foreign, an_honest_run_of_hugging_face_passes)
{
    static const struct {
        const char *name;
        int64_t claims;
    } rows[] = {{"llama", 153}, {"llama_bf16", 90}, {"moe", 64}, {"layernorm", 20}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t passed, failed, skipped;
        parity_report *r = replay(rows[i].name);
        parity_report_totals(r, &passed, &failed, &skipped);
        cr_expect(passed == rows[i].claims && failed == 0 && skipped == 0, "%s: %d %d %d", rows[i].name,
                  (int)passed, (int)failed, (int)skipped);
        parity_report_destroy(r);
    }
}

Test(parity_foreign, a_planted_fault_is_named_at_its_operation)
{
    static const struct {
        const char *name, *instance, *op;
        int64_t failed; /* outputs: forward and backward of every layer, or of the one that is wrong */
    } rows[] = {
        {"gqa", "model.layers.0.self_attn.core_attention", "attention_fwd", 8},
        {"eps", "model.layers.1.post_attention_layernorm", "rmsnorm_fwd", 2},
        {"mask", "model.layers.0.self_attn.core_attention", "attention_fwd", 8},
        {"labels", "loss_function", "cross_entropy_fwd", 2},
        {"expert", "model.layers.0.mlp.experts.down_proj", "grouped_linear_fwd", 3},
        {"layernorm_eps", "narrow.1", "layernorm_fwd", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t passed, failed, skipped;
        parity_report *r = replay(rows[i].name);
        parity_report_totals(r, &passed, &failed, &skipped);
        const parity_claim *first = first_failure(r);
        cr_expect_eq(failed, rows[i].failed, "%s: %d", rows[i].name, (int)failed);
        cr_assert_not_null(first, "%s", rows[i].name);
        cr_expect_str_eq(first->instance, rows[i].instance);
        cr_expect_str_eq(first->op, rows[i].op);
        parity_report_destroy(r);
    }
}

static parity_report *replay_altered(const char *name, const char *file, const char *from, const char *to)
{
    char dir[256];
    copy_altered(dir, ASSAY_SOURCE_DIR "/golden/foreign", name, file, from, to);
    return judge_local(dir);
}

/* Without its declaration the same run is not within what it says of itself: no bound is wider than its declaration. */
Test(parity_foreign, a_rounding_point_that_is_not_declared_is_seen)
{
    static const struct {
        const char *name, *words, *family; /* of the operations that fail */
    } rows[] = {
        {"llama_bf16", "\"rounding\": [\"before_gamma\"]", "rmsnorm"},
        {"llama_bf16", "\"rounding\": [\"before_up\"]", "swiglu"},
        {"llama_bf16", "\"rounding\": [\"products\"]", "rope"},
        {"llama_bf16", "\"rounding\": [\"scores\"]", "attention_fwd"},
        {"llama_bf16", "\"rounding\": [\"scores\", \"heads\"]", "attention_bwd"},
        {"moe", "\"rounding\": [\"products\", \"partial_sums\"]", "weighted_combine"},
        {"layernorm", "\"rounding\": [\"statistics\", \"partial_sums\"]", "layernorm_bwd"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parity_report *r =
            replay_altered(rows[i].name, "rank-00000.jsonl", rows[i].words, "\"rounding\": []");
        const parity_claim *first = first_failure(r);
        cr_assert_not_null(first, "%s", rows[i].words);
        for (int64_t k = 0; k < parity_report_count(r); k++)
            if (parity_report_at(r, k)->verdict == PARITY_FAIL)
                cr_expect(strncmp(parity_report_at(r, k)->op, rows[i].family, strlen(rows[i].family)) == 0,
                          "%s: %s", rows[i].words, parity_report_at(r, k)->op);
        parity_report_destroy(r);
    }
}

/* A missing output is a failure in a trace of our engines, whatever the record says of it. */
Test(parity_foreign, our_engines_keep_no_output_to_themselves)
{
    parity_report *r = replay_altered("llama_bf16", "index.json", "\"pytorch\"", "\"gpu\"");
    int norms = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        norms += strcmp(x->op, "rmsnorm_fwd") == 0 && x->verdict == PARITY_FAIL &&
                 strstr(x->message, "rstd") != NULL;
    }
    cr_expect_eq(norms, 5, "%d", norms);
    parity_report_destroy(r);
}
