/* `assay bisect`: planted mistakes are named by the smallest set that heals them; no mismatch, and one that nothing heals, are said. */
#include "parity/run/bisect.h"
#include "tests/support/cli.h"
#include <jansson.h>

TestSuite(bisect, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

/* --- the search ---------------------------------------------------------------------------------------------- */
enum { N = 1000 };
typedef struct mistakes {
    int64_t at[N / 10], n;
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
    bisect_search s = {.test = heals, .user = m, .n = N, .limit = limit, .most = N};
    memset(set, true, N);
    cr_assert_eq(bisect_smallest(&s, set), ASSAY_OK, "%s", assay_error_message());
    bisect_search_forget(&s);
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

/* Many are found by groups: ten elements each, of which three hold what is needed; and the bound holds there, too. */
Test(bisect, many_elements_are_found_by_groups)
{
    bool set[N], healed;
    int64_t group[N];
    mistakes m = {{42, 137, 138, 990}, 4, false};
    for (int64_t i = 0; i < N; i++)
        group[i] = i / 10;
    bisect_search s = {.test = heals, .user = &m, .n = N, .limit = 1000, .most = 3};
    memset(set, true, N);
    cr_assert_eq(bisect_smallest(&s, set), ASSAY_OK);
    cr_expect(s.many);
    cr_assert_eq(bisect_fewest_groups(&s, group, N / 10, set), ASSAY_OK);
    for (int64_t i = 0; i < N; i++)
        cr_expect_eq(set[i], i / 10 == 4 || i / 10 == 13 || i / 10 == 99, "element %lld", (long long)i);
    cr_expect_leq(s.tests, 180, "%lld tests", (long long)s.tests);
    cr_assert_eq(bisect_thin_out(&s, set), ASSAY_OK);
    expect_set(set, &m);
    bisect_search_forget(&s);
    for (int64_t limit = 0; limit < 60; limit++) {
        bisect_search bounded = {.test = heals, .user = &m, .n = N, .limit = limit, .most = 3};
        memset(set, true, N);
        cr_assert_eq(bisect_fewest_groups(&bounded, group, N / 10, set), ASSAY_OK);
        cr_assert_eq(heals(&m, set, &healed), ASSAY_OK);
        cr_expect(healed && bounded.tests <= limit && (bounded.stopped || limit > 20), "limit %lld",
                  (long long)limit);
        bisect_search_forget(&bounded);
    }
}

/* Scattered groups, all groups; and the bound holds there, too. */
Test(bisect, many_groups_are_found_one_by_one)
{
    bool set[N], healed;
    int64_t group[N];
    mistakes some = {.n = 20}, all = {.n = N / 10};
    for (int64_t i = 0; i < N; i++)
        group[i] = i / 10;
    for (int64_t i = 0; i < some.n; i++)
        some.at[i] = 50 * i + i;
    for (int64_t i = 0; i < all.n; i++)
        all.at[i] = 10 * i + 3;
    for (int k = 0; k < 2; k++) {
        mistakes *m = k == 0 ? &some : &all;
        for (int64_t limit = 0; limit <= 250; limit += 25) {
            bisect_search s = {.test = heals, .user = m, .n = N, .limit = limit, .most = 3};
            memset(set, true, N);
            cr_assert_eq(bisect_fewest_groups(&s, group, N / 10, set), ASSAY_OK);
            cr_assert_eq(heals(m, set, &healed), ASSAY_OK);
            cr_expect(healed && s.tests <= limit && s.stopped == (limit < (k == 0 ? 150 : 225)),
                      "limit %lld: %lld tests", (long long)limit, (long long)s.tests);
            for (int64_t i = 0; i < N && !s.stopped && k == 0; i++) {
                bool wanted = false;
                for (int64_t j = 0; j < m->n; j++)
                    wanted = wanted || m->at[j] / 10 == i / 10;
                cr_expect_eq(set[i], wanted, "element %lld", (long long)i);
            }
            bisect_search_forget(&s);
        }
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

/* A shell runs the printed command; once, its trace is new. */
static void expect_command(const json_t *v)
{
    char line[CLI_LINE];
    const int n = snprintf(line, sizeof line, "PATH=" ASSAY_BIN_DIR ":$PATH; { %s; } >%s 2>&1",
                           text_of(v, "command"), cli_file("again.log"));
    cr_assert(n < CLI_LINE);
    const int code = system(line);
    char *log = cli_read(cli_file("again.log"));
    cr_expect_eq(code, 0, "%s: %s", line, log);
    free(log);
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
    expect_command(v);
    json_decref(v);
}

/* What was found heals by the command that is printed, too. */
Test(bisect, a_kernel_variant_is_named)
{
    const expected e = {
        LLAMA
        "--layout tp2,sp --fault scale:decoder.layers.1.input_layernorm:y=1.25,op=rmsnorm_fwd,variant=k2",
        "variant 0",
        {"rmsnorm_fwd decoder.layers.1.input_layernorm forward"}};
    expect_found(&e);
    char *rules = cli_read(cli_file("kept/set.txt"));
    cr_expect_str_eq(rules, "k0:decoder.layers.1.input_layernorm,op=rmsnorm_fwd,phase=forward\n");
    free(rules);
    cli_result r =
        cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                "llama/batch.safetensors --layout tp2,sp --fault "
                "scale:decoder.layers.1.input_layernorm:y=1.25,op=rmsnorm_fwd,variant=k2 --substitute %s "
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

/* The engine's program, and a default that stands against the configuration, are in the command that repeats the set. */
Test(bisect, the_command_has_what_was_asked_for)
{
    json_t *v = verdict_of(LLAMA "--engine-program " ASSAY_BIN_DIR
                                 "/assay-sim --attention-dropout 0 --layout dp2 --fault "
                                 "scale:decoder.layers.0.mlp.linear_fc1:y=1.5",
                           1);
    const char *command = text_of(v, "command");
    cr_expect(strstr(command, " --engine-program " ASSAY_BIN_DIR "/assay-sim ") != NULL, "%s", command);
    cr_expect(strstr(command, " --attention-dropout=0 ") != NULL, "%s", command);
    expect_command(v);
    json_decref(v);
}

/* --runs is kept: with few a set that heals and is not known to be the smallest, with fewer an error. */
Test(bisect, no_more_runs_than_asked_for)
{
    for (int64_t runs = 4; runs <= 12; runs++) {
        cli_result r = cli_run(LLAMA "--json --runs %lld "
                                     "--layout dp2 --fault scale:decoder.layers.[01].mlp.linear_fc1:y=1.5",
                               (long long)runs);
        json_t *v = json_loads(r.out, 0, NULL);
        cr_expect(r.code == 1 || r.code == 2, "%s%s", r.out, r.err);
        if (r.code == 2)
            cr_expect(strstr(r.err, "made before it was known what heals; of the last one ") && runs < 8,
                      "%lld: %s", (long long)runs, r.err);
        else
            cr_expect_leq(json_integer_value(json_object_get(v, "runs")), runs);
        json_decref(v);
        cli_free(&r);
    }
}

/* A kernel that is wrong wherever it runs: five operations, by kinds and layers. */
Test(bisect, a_kernel_that_is_wrong_everywhere_is_named_by_layers)
{
    json_t *v = verdict_of(
        LLAMA "--target output_layer.y --fault scale:*layernorm:y=1.25,op=rmsnorm_fwd,variant=k2", 1);
    cr_expect_str_eq(text_of(v, "replaced_by"), "variant 0");
    cr_expect_eq(json_array_size(json_object_get(v, "set")), 5, "%s", text_of(v, "sentence"));
    cr_expect(strstr(text_of(v, "sentence"), "these operations run variant 0: rmsnorm_fwd in layers 0-1 and "
                                             "outside of the layers (5) (none of them can be left out)."),
              "%s", text_of(v, "sentence"));
    json_decref(v);
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

/* --- against another run ------------------------------------------------------------------------------------ */
/* Two layouts of the engine: the planted fault is of the first alone, and rows of experts of the second are put in the first's order. */
Test(bisect, two_layouts_of_the_engine)
{
    static const expected list[] = {
        {LLAMA "--layout tp2,sp --against-layout dp2 --fault "
               "skip:decoder.layers.0.self_attention.reduce,phase=forward",
         "the other run's values",
         {"reduce_scatter decoder.layers.0.self_attention.reduce forward"}},
        {MOE "--layout dp2 --against-layout tp2,sp,ep2,dp2 --fault "
             "scale:decoder.layers.2.mlp.experts.linear_fc1:y=1.25",
         "the other run's values",
         {"grouped_linear_fwd decoder.layers.2.mlp.experts.linear_fc1 forward"}},
        {LLAMA "--layout dp2 --against-layout tp2,sp --fault "
               "scale:decoder.layers.1.self_attention.linear_proj:dweight=1.5",
         "the other run's values",
         {"linear_bwd_weight decoder.layers.1.self_attention.linear_proj backward"}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        expect_found(&list[i]);
        cr_assert_eq(assay_remove_tree(cli_file("kept"), cli_folder), ASSAY_OK);
    }
    json_t *v = verdict_of(MOE "--layout tp2,sp,ep2,dp2 --against-layout dp2", 0);
    cr_expect(strstr(text_of(v, "sentence"), "agree with the run of sim (dp2, fp32)") != NULL, "%s",
              text_of(v, "sentence"));
    json_decref(v);
}

#define PLANTED ASSAY_SOURCE_DIR "/golden/planted/"

/* The batch that the traces of golden/planted recorded, as a batch file; `first` in place of its first token (-1: its own). */
static const char *recorded_batch(int64_t first)
{
    static const char header[] =
        "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[2,7],\"data_offsets\":[0,112]},"
        "\"labels\":{\"dtype\":\"I64\",\"shape\":[2,7],\"data_offsets\":[112,224]}}";
    char file[8 + sizeof header - 1 + 224];
    const uint64_t bytes = sizeof header - 1;
    int64_t ids[14] = {0};
    assay_trace *t;
    cr_assert_eq(assay_trace_open(&t, PLANTED "honest_llama", true), ASSAY_OK, "%s", assay_error_message());
    for (int64_t i = 0; i < assay_trace_n_tensors(t, 0); i++) {
        const assay_trace_tensor *r = assay_trace_tensor_at(t, 0, i);
        if (strcmp(r->name, "input_ids") == 0 && r->bytes == sizeof ids)
            memcpy(ids, r->data, sizeof ids);
    }
    assay_trace_close(t);
    ids[0] = first >= 0 ? first : ids[0];
    memcpy(file, &bytes, 8);
    memcpy(file + 8, header, bytes);
    memcpy(file + 8 + bytes, ids, sizeof ids);
    memcpy(file + 8 + bytes + sizeof ids, ids, sizeof ids);
    cli_write(cli_file("batch.safetensors"), file, sizeof file);
    return cli_file("batch.safetensors");
}

/* Runs of Hugging Face with a wrong theta and with a mask that is off by one: ours follows them where their results are put in
 * place of ours, and where they part is named.  The honest one agrees. */
Test(bisect, a_trace_of_hugging_face)
{
    static const struct {
        const char *trace, *precision, *words;
        int code;
    } list[] = {
        {"honest_llama", "bf16", "agree with the run of pytorch (Hugging Face, bf16)", 0},
        {"theta", "fp32", "the other run's: rope_fwd in layers 0-1 (4); rope_bwd in layers 0-1 (4) (none", 1},
        {"mask", "bf16",
         "the other run's: attention_fwd k1 of decoder.layers.0.self_attention.core_attention (forward); "
         "attention_fwd k1 of decoder.layers.1.self_attention.core_attention (forward); attention_bwd k1 of "
         "decoder.layers.1.self_attention.core_attention (backward); attention_bwd k1 of "
         "decoder.layers.0.self_attention.core_attention (backward) (none",
         1}};
    char batch[256];
    snprintf(batch, sizeof batch, "%s", recorded_batch(-1));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char line[2000];
        snprintf(line, sizeof line,
                 "bisect --engine sim --model " PLANTED
                 "models/llama --batch %s --precision %s --against " PLANTED "%s",
                 batch, list[i].precision, list[i].trace);
        json_t *v = verdict_of(line, list[i].code);
        cr_expect(strstr(text_of(v, "sentence"), list[i].words) != NULL, "%s: %s", list[i].trace,
                  text_of(v, "sentence"));
        json_decref(v);
        cr_assert_eq(assay_remove_tree(cli_file("kept"), cli_folder), ASSAY_OK);
    }
}

Test(bisect, another_run_that_is_none_of_this_batch_or_precision_is_refused)
{
    static const struct {
        int64_t first;
        const char *more, *words;
    } list[] = {
        {1, "--precision bf16 --against " PLANTED "honest_llama", "expected the input_ids of --batch"},
        {-1, "--against " PLANTED "honest_llama",
         "expected a run in fp32, as --precision says, or in fp64, "
         "found bf16"},
        {-1, "--against " PLANTED "honest_llama --against-layout dp2", "expected one of them"},
        {-1, "--against hashes", "expected values, found hashes alone"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const char *batch = recorded_batch(list[i].first);
        cli_result r = {0};
        if (strstr(list[i].more, "hashes") != NULL) {
            r = cli_run("step --engine sim --model " PLANTED
                        "models/llama --batch %s --out out --trace hashes "
                        "--trace-hash-only",
                        batch);
            cr_assert_eq(r.code, 0, "%s", r.err);
            cli_free(&r);
        }
        r = cli_run("bisect --engine sim --model " PLANTED "models/llama --batch %s %s", batch, list[i].more);
        cr_expect(r.code == 2 && strstr(r.err, list[i].words) != NULL, "%s: %d %s", list[i].more, r.code,
                  r.err);
        cli_free(&r);
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

#define TRAINING                                                                                             \
    "bisect --engine sim --model " MODELS "llama --batch " MODELS                                            \
    "llama/train_batch.safetensors --layout tp2,dp2 "

/* The loss is summed by nobody: no operation has a value that mends it. */
Test(bisect, what_nothing_heals_is_said)
{
    json_t *v = verdict_of(TRAINING "--train-iters 1 --fault skip:loss.reduce", 1);
    cr_expect_str_eq(text_of(v, "replaced_by"), "nothing");
    cr_expect(strstr(text_of(v, "sentence"), "it stays with the reference's values in place of") != NULL,
              "%s", text_of(v, "sentence"));
    cr_expect_eq(json_array_size(json_object_get(v, "set")), 0);
    json_decref(v);
}

/* A sum over the wrong group has no value in the reference either, and the updates behind it would hide it: what feeds the first
 * wrong tensor and is not as planned is named, without a search. */
static void expect_named(const char *arguments, const char *words)
{
    json_t *v = verdict_of(arguments, 1);
    cr_expect_str_eq(text_of(v, "replaced_by"), "nothing");
    cr_expect(strstr(text_of(v, "sentence"), words) != NULL, "%s", text_of(v, "sentence"));
    cr_expect_leq(json_integer_value(json_object_get(v, "runs")), 4);
    json_decref(v);
}

Test(bisect, a_norm_over_the_wrong_group_is_named)
{
    expect_named(
        TRAINING "--fault norm_over_wrong_group",
        "grad_norm comes from what is not as planned, and the reference has no value for it: all_reduce of "
        "grad_norm.reduce (optimizer): group: expected world [0, 1, 2, 3], found tp ");
}

Test(bisect, a_loss_over_the_wrong_group_is_named)
{
    expect_named(TRAINING "--fault group:loss.reduce:tp",
                 "loss comes from what is not as planned, and the reference has no value for "
                 "it: all_reduce of loss.reduce (optimizer): group: expected ");
}

/* What is not as planned and feeds something else explains nothing: the operation that does is found. */
Test(bisect, what_is_not_as_planned_elsewhere_is_not_accused)
{
    json_t *v = verdict_of(TRAINING "--train-iters 1 --fault group:grad_norm.reduce:tp --target loss", 0);
    cr_expect(strncmp(text_of(v, "sentence"), "RIGHT: no mismatch", 18) == 0, "%s", text_of(v, "sentence"));
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
    } list[] = {{"--trace x", "'--trace': the option has no meaning here"},
                {"--load x", "'--load': the option has no meaning here"},
                {"--substitute x", "'--substitute': the option has no meaning here"},
                {"--engine ref", "--engine: expected gpu, sim or auto"},
                {"--runs 3", "--runs"},
                {"--keep /tmp", "--keep /tmp: expected a new folder"},
                {"--tp-comm-overlap --layout tp2", "a run with a trace makes one operation after the other"},
                {"--precision fp64", "precision fp64"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const bool own = strncmp(list[i].more, "--engine", 8) == 0;
        cli_result r =
            cli_run("bisect %s--model " MODELS "llama --batch " MODELS "llama/batch.safetensors %s",
                    own ? "" : "--engine sim ", list[i].more);
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
