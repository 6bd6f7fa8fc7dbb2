/* `assay bisect`: planted mistakes are named by the smallest set that heals them; no mismatch, and one that nothing heals, are said. */
#include "parity/run/bisect.h"
#include "tests/support/cli.h"
#include <jansson.h>

TestSuite(bisect, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

/* --- the search ---------------------------------------------------------------------------------------------- */
enum { N = 1000 };
typedef struct mistakes {
    int64_t at[4], n;
    bool alone; /* heals with these alone: what else is replaced spoils it */
} mistakes;

static assay_status heals(void *user, const bool *set, bool *healed)
{
    const mistakes *m = user;
    int64_t size = 0;
    *healed = true;
    for (int64_t i = 0; i < N; i++)
        size += set[i];
    for (int64_t i = 0; i < m->n; i++)
        *healed = *healed && set[m->at[i]];
    *healed = *healed && (!m->alone || size == m->n || size == N);
    return ASSAY_OK;
}

static bisect_search find(mistakes *m, int64_t limit, bool *set)
{
    bisect_search s = {.test = heals, .user = m, .n = N, .limit = limit};
    memset(set, true, N);
    cr_assert_eq(bisect_smallest(&s, set), ASSAY_OK, "%s", assay_error_message());
    return s;
}

static void expect_set(const bool *set, const mistakes *m)
{
    int64_t size = 0;
    for (int64_t i = 0; i < N; i++)
        size += set[i];
    cr_expect_eq(size, m->n, "%lld elements, expected %lld", (long long)size, (long long)m->n);
    for (int64_t i = 0; i < m->n; i++)
        cr_expect(set[m->at[i]], "element %lld is missing", (long long)m->at[i]);
}

Test(bisect, one_element_takes_as_many_tests_as_halving)
{
    bool set[N];
    for (int64_t at = 0; at < N; at += 111) {
        mistakes m = {{at}, 1, false};
        const bisect_search s = find(&m, 100, set);
        expect_set(set, &m);
        cr_expect(!s.stopped && s.tests <= 11, "%lld tests", (long long)s.tests);
    }
}

Test(bisect, sets_are_found_whole)
{
    bool set[N];
    mistakes two = {{0, N - 1}, 2, false}, four = {{17, 18, 500, 777}, 4, false};
    find(&two, 1000, set);
    expect_set(set, &two);
    const bisect_search s = find(&four, 1000, set);
    expect_set(set, &four);
    cr_expect_leq(s.tests, 60);
}

/* Where more replaced does not heal more, the set that is left heals and none of it can be left out. */
Test(bisect, what_does_not_grow_still_ends_in_a_set_that_heals)
{
    bool set[N], healed;
    mistakes m = {{5, 600}, 2, true};
    find(&m, 100000, set);
    cr_assert_eq(heals(&m, set, &healed), ASSAY_OK);
    cr_expect(healed);
}

Test(bisect, a_search_that_is_stopped_leaves_a_set_that_heals)
{
    bool set[N], healed;
    mistakes m = {{100, 900}, 2, false};
    for (int64_t limit = 0; limit < 25; limit++) {
        const bisect_search s = find(&m, limit, set);
        cr_assert_eq(heals(&m, set, &healed), ASSAY_OK);
        cr_expect(healed, "limit %lld", (long long)limit);
        cr_expect_leq(s.tests, limit);
        cr_expect(s.stopped || limit > 10);
    }
}

/* --- the verb ------------------------------------------------------------------------------------------------ */
#define LLAMA "bisect --engine sim --model " MODELS "llama --batch " MODELS "llama/batch.safetensors "
#define MOE                                                                                                  \
    "bisect --engine sim --model " MODELS "qwen3_moe --batch " MODELS                                        \
    "qwen3_moe/train_batch.safetensors --train-iters 1 "

/* The JSON verdict of a run in a folder of the test's own; freed by the caller. */
static json_t *verdict_of(const char *arguments, int code)
{
    cli_result r = cli_run("%s --json --keep %s", arguments, cli_file("kept"));
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", arguments, r.code, r.out, r.err);
    json_t *v = json_loads(r.out, 0, NULL);
    cr_assert_not_null(v, "%s\n%s", r.out, r.err);
    cr_expect_eq(json_integer_value(json_object_get(v, "exit_code")), code);
    cli_free(&r);
    return v;
}

static const char *text_of(const json_t *v, const char *key)
{
    const char *text = json_string_value(json_object_get(v, key));
    return text != NULL ? text : "";
}

typedef struct expected {
    const char *arguments, *by, *set[2]; /* "op instance phase" */
} expected;

static void expect_found(const expected *e)
{
    json_t *v = verdict_of(e->arguments, 1);
    const json_t *set = json_object_get(v, "set");
    const size_t n = e->set[1] != NULL ? 2 : 1;
    cr_expect_str_eq(text_of(v, "replaced_by"), e->by, "%s: %s", e->arguments, text_of(v, "sentence"));
    cr_assert_eq(json_array_size(set), n, "%s: %s", e->arguments, text_of(v, "sentence"));
    for (size_t i = 0; i < n; i++) {
        char one[400];
        const json_t *o = json_array_get(set, i);
        snprintf(one, sizeof one, "%s %s %s", text_of(o, "op"), text_of(o, "instance"), text_of(o, "phase"));
        cr_expect_str_eq(one, e->set[i], "%s", e->arguments);
    }
    json_decref(v);
}

/* What was found heals by the command that is printed, too. */
Test(bisect, a_kernel_variant_is_named)
{
    const expected e = {
        LLAMA
        "--layout tp2,sp --fault scale:decoder.layers.1.input_layernorm:y=1.25,op=rmsnorm_fwd,variant=k1",
        "variant 0",
        {"rmsnorm_fwd decoder.layers.1.input_layernorm forward"}};
    expect_found(&e);
    char *rules = cli_read(cli_file("kept/set.txt"));
    cr_expect_str_eq(rules, "k0:decoder.layers.1.input_layernorm,op=rmsnorm_fwd,phase=forward\n");
    free(rules);
    cli_result r =
        cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                "llama/batch.safetensors --layout tp2,sp --fault "
                "scale:decoder.layers.1.input_layernorm:y=1.25,op=rmsnorm_fwd,variant=k1 --substitute %s "
                "--out %s",
                cli_file("kept/set.txt"), cli_file("healed.safetensors"));
    cr_expect_eq(r.code, 0, "%s", r.err);
    cr_expect(strstr(r.err, "WARNING: 1 rules of") != NULL, "%s", r.err);
    cli_free(&r);
}

Test(bisect, two_operations_are_both_named)
{
    const expected e = {LLAMA "--layout dp2 --fault scale:decoder.layers.[01].mlp.linear_fc1:y=1.5",
                        "the reference's values",
                        {"linear_fwd decoder.layers.0.mlp.linear_fc1 forward",
                         "linear_fwd decoder.layers.1.mlp.linear_fc1 forward"}};
    expect_found(&e);
}

Test(bisect, bf16_a_reduction_over_tp)
{
    const expected e = {
        LLAMA
        "--precision bf16 --layout tp2,sp --fault skip:decoder.layers.0.self_attention.reduce,phase=forward",
        "the reference's values",
        {"reduce_scatter decoder.layers.0.self_attention.reduce forward"}};
    expect_found(&e);
}

/* Pieces of weights, of sums over tp, rows of experts and states cut by zero1 are those of whole tensors. */
Test(bisect, experts_gradients_and_states_of_a_sharded_run)
{
    static const expected list[] = {
        {MOE "--layout tp2,sp,ep2,dp2 --fault scale:decoder.layers.2.mlp.experts.linear_fc1:y=1.25",
         "the reference's values",
         {"grouped_linear_fwd decoder.layers.2.mlp.experts.linear_fc1 forward"}},
        {MOE
         "--layout dp2,zero1 --fault scale:decoder.layers.2.self_attention.linear_qkv.weight:exp_avg=1.25",
         "the reference's values",
         {"adamw decoder.layers.2.self_attention.linear_qkv.weight optimizer"}},
        {LLAMA "--layout tp2,sp --fault scale:decoder.layers.1.self_attention.linear_proj:dweight=1.5",
         "the reference's values",
         {"linear_bwd_weight decoder.layers.1.self_attention.linear_proj backward"}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        expect_found(&list[i]);
        cr_assert_eq(assay_remove_tree(cli_file("kept"), cli_folder), ASSAY_OK);
    }
}

Test(bisect, no_mismatch_is_said)
{
    json_t *v = verdict_of(LLAMA "--layout tp2,sp", 0);
    cr_expect(strncmp(text_of(v, "sentence"), "RIGHT: no mismatch", 18) == 0, "%s", text_of(v, "sentence"));
    json_decref(v);
}

/* Two operations add to the gradient of a tied embedding, and only the later one can be replaced: it is not called the culprit. */
Test(bisect, what_overwrites_a_mistake_is_not_accused)
{
    json_t *v = verdict_of(LLAMA "--fault scale:output_layer:dweight=1.5", 1);
    const json_t *one = json_array_get(json_object_get(v, "set"), 0);
    cr_expect_str_eq(text_of(one, "op"), "embedding_bwd", "%s", text_of(v, "sentence"));
    cr_expect(strstr(text_of(v, "sentence"), "may overwrite what others left that contradict what they read: "
                                             "linear_bwd_weight k1 of output_layer") != NULL,
              "%s", text_of(v, "sentence"));
    json_decref(v);
}

/* A clean target is no mismatch, whatever else is wrong. */
Test(bisect, the_target_decides)
{
    json_t *v = verdict_of(LLAMA "--fault scale:decoder.layers.0.input_layernorm:dgamma=2 --target loss", 0);
    json_decref(v);
    cli_result r = cli_run(LLAMA "--target nothing");
    cr_expect(r.code == 2 && strstr(r.err, "--target nothing: no tensor") != NULL, "%s", r.err);
    cli_free(&r);
}

/* The norm of gradients is summed over the wrong group: no operation has a value that mends it. */
Test(bisect, what_nothing_heals_is_said)
{
    json_t *v = verdict_of("bisect --engine sim --model " MODELS "llama --batch " MODELS
                           "llama/train_batch.safetensors --train-iters 1 --layout tp2,dp2 --fault "
                           "group:grad_norm.reduce:tp",
                           1);
    cr_expect_str_eq(text_of(v, "replaced_by"), "nothing");
    cr_expect(strstr(text_of(v, "sentence"), "it stays with the reference's values in place of") != NULL,
              "%s", text_of(v, "sentence"));
    cr_expect_eq(json_array_size(json_object_get(v, "set")), 0);
    json_decref(v);
}

/* Choices of experts are never replaced: who made a wrong one is named all the same. */
Test(bisect, a_choice_that_cannot_be_replaced_is_accused)
{
    json_t *v = verdict_of(MOE "--layout ep2 --fault wrong_expert", 1);
    cr_expect_str_eq(text_of(v, "replaced_by"), "nothing");
    cr_expect(strstr(text_of(v, "sentence"), "these contradict what they read: router_fwd k1 of "
                                             "decoder.layers.0.mlp.router (forward)") != NULL,
              "%s", text_of(v, "sentence"));
    json_decref(v);
}

Test(bisect, refusals_name_the_option)
{
    static const struct {
        const char *more, *words;
    } list[] = {{"--trace x", "--trace: has no meaning here"},
                {"--load x", "--load: has no meaning here"},
                {"--substitute x", "--substitute: has no meaning here"},
                {"--engine ref", "--engine: expected gpu, sim or auto"},
                {"--runs 3", "--runs"},
                {"--keep /tmp", "--keep /tmp: expected a new folder"},
                {"--precision fp64", "precision fp64"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        cli_result r = cli_run(LLAMA "%s", list[i].more);
        cr_expect(r.code == 2 && strstr(r.err, list[i].words) != NULL, "%s: %d %s", list[i].more, r.code,
                  r.err);
        cli_free(&r);
    }
}

/* A run whose results something else made is certified by nobody. */
Test(bisect, assay_run_does_not_certify_substituted_results)
{
    cli_result r = cli_run("step --engine ref --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out %s --trace %s",
                           cli_file("ref.safetensors"), cli_file("reference"));
    cr_assert_eq(r.code, 0, "%s", r.err);
    cli_free(&r);
    cli_write_text(cli_file("rules"), "values:decoder.layers.0.input_layernorm:y\n");
    r = cli_run(
        "run --engine sim --model " MODELS "llama --batch " MODELS
        "llama/batch.safetensors --layout 1 --precision fp32 --variant fastest --check whole --substitute %s "
        "--substitute-values %s",
        cli_file("rules"), cli_file("reference"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "are not the engine's own") != NULL, "%s", r.out);
    cli_free(&r);
}
