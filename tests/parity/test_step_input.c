/* Configurations, batches, layouts and options that cannot be: the message says what was expected, what was
 * found, where; exit code 2; no file changed. */
#include "core/files/tensorwriter.h"
#include "tests/support/cli.h"
#include <jansson.h>

TestSuite(step_input, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

static const char *const engines[] = {"ref", "sim"};

/* `words`: in the message, which stands there exactly once for all ranks together. */
static void refuse(const char *engine, const char *what, const char *const *words, const char *arguments)
{
    char title[400];
    snprintf(title, sizeof title, "%s, %s", engine, what);
    cli_write_text(cli_file("out"), "an older result");
    cli_result r = cli_run("step --engine %s --out out %s", engine, arguments);
    cli_expect_refusal(&r, title, words);
    cr_expect_eq(cli_count(r.err, words[0]), 1, "%s: one message, found\n%s", title, r.err);
    char *kept = cli_read(cli_file("out"));
    cr_expect_str_eq(kept, "an older result", "%s: the older result changed", title);
    free(kept);
    cli_free(&r);
    (void)unlink(cli_file("out"));
}

/* --- config.json -------------------------------------------------------------------------------------------
 */
typedef struct config_case {
    const char *change;   /* JSON object of fields to set; null: the field is deleted */
    const char *words[3]; /* in the message */
} config_case;

static void refuse_config(const char *model, const config_case *c)
{
    char base[CLI_PATH], arguments[CLI_PATH];
    const char *key;
    json_t *value;
    snprintf(base, sizeof base, MODELS "%s/config.json", model);
    json_t *config = json_load_file(base, 0, NULL), *change = json_loads(c->change, 0, NULL);
    cr_assert(config != NULL && change != NULL, "%s", c->change);
    json_object_foreach(change, key, value)
    {
        if (json_is_null(value))
            json_object_del(config, key);
        else
            json_object_set(config, key, value);
    }
    cr_assert_eq(assay_mkdir_p(cli_file("model")), ASSAY_OK);
    cr_assert_eq(json_dump_file(config, cli_file("model/config.json"), 0), 0);
    json_decref(config);
    json_decref(change);
    snprintf(arguments, sizeof arguments, "--model model --layout tp2 --batch " MODELS "%s/batch.safetensors",
             model);
    for (int e = 0; e < 2; e++)
        refuse(engines[e], c->change,
               (const char *const[]){"model/config.json", c->words[0], c->words[1], c->words[2], NULL},
               arguments);
}

static const config_case llama_cases[] = {
    {"{\"hidden_size\": null}", {"hidden_size: missing"}},
    {"{\"num_hidden_layers\": null}", {"num_hidden_layers: missing"}},
    {"{\"vocab_size\": null}", {"vocab_size: missing"}},
    {"{\"num_attention_heads\": null}", {"num_attention_heads: missing"}},
    {"{\"intermediate_size\": null}", {"intermediate_size: missing"}},
    {"{\"num_key_value_heads\": 3}", {"num_attention_heads 4", "num_key_value_heads 3"}},
    {"{\"num_key_value_heads\": 8}", {"num_attention_heads 4", "num_key_value_heads 8"}},
    {"{\"num_hidden_layers\": 1000000000}", {"num_hidden_layers: expected 1 to", "1000000000"}},
    {"{\"hidden_size\": -1}", {"hidden_size: expected 1 to", "found -1"}},
    {"{\"hidden_size\": 0}", {"hidden_size: expected 1 to", "found 0"}},
    {"{\"hidden_size\": 1e300}", {"hidden_size: expected an integer"}},
    {"{\"hidden_size\": \"64\"}", {"hidden_size: expected an integer", "string"}},
    {"{\"vocab_size\": 4611686018427387904}", {"vocab_size: expected 1 to", "4611686018427387904"}},
    {"{\"intermediate_size\": 1099511627776}", {"intermediate_size: expected 1 to", "1099511627776"}},
    {"{\"rms_norm_eps\": 1e300}", {"rms_norm_eps: expected 0 to 1"}},
    {"{\"rms_norm_eps\": -1}", {"rms_norm_eps: expected 0 to 1", "found -1"}},
    {"{\"head_dim\": 15}", {"head_dim 15", "even"}},
    {"{\"model_type\": \"gpt_bigcode\"}", {"unknown architecture 'gpt_bigcode'", "llama"}},
    {"{\"hidden_act\": \"gelu\"}", {"hidden_act", "unknown activation 'gelu'", "silu"}},
    {"{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"rope_theta\": 1e4, \"factor\": 4.0}}",
     {"rope_type", "unknown type 'dynamic'", "llama3 or yarn"}},
    {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e4}}",
     {"factor: missing", "llama3"}},
    {"{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": -5}}", {"rope_theta", "found -5"}},
};
Test(step_input, llama_configurations_that_cannot_be)
{
    for (size_t i = 0; i < sizeof llama_cases / sizeof *llama_cases; i++)
        refuse_config("llama", &llama_cases[i]);
}

static const config_case moe_cases[] = {
    {"{\"num_experts_per_tok\": 9}", {"num_experts_per_tok: expected 1 to 8", "found 9"}},
    {"{\"num_experts_per_tok\": 0}", {"num_experts_per_tok: expected 1 to", "found 0"}},
    {"{\"num_experts\": null}", {"num_experts", "missing"}},
    {"{\"num_experts\": -4}", {"num_experts: expected", "found -4"}},
    {"{\"moe_intermediate_size\": null}", {"moe_intermediate_size: missing"}},
    {"{\"mlp_only_layers\": [7]}", {"mlp_only_layers[0]", "found 7"}},
    {"{\"decoder_sparse_step\": 0}", {"decoder_sparse_step", "found 0"}},
};
Test(step_input, moe_configurations_that_cannot_be)
{
    for (size_t i = 0; i < sizeof moe_cases / sizeof *moe_cases; i++)
        refuse_config("qwen3_moe", &moe_cases[i]);
}

Test(step_input, configuration_files_that_are_none)
{
    static const struct {
        const char *text, *words[2]; /* text NULL: no file */
    } cases[] = {
        {NULL, {"No such file"}},
        {"", {"model/config.json"}},
        {"{\"model_type\":", {"model/config.json:1:"}},
        {"[]", {"expected an object"}},
        {"{\"model_type\": \"llama\", \"model_type\": \"qwen2\"}", {"duplicate object key"}},
        {"{}", {"model_type"}},
    };
    const char *arguments = "--model model --layout tp2 --batch " MODELS "llama/batch.safetensors";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(assay_mkdir_p(cli_file("model")), ASSAY_OK);
        if (cases[i].text != NULL)
            cli_write_text(cli_file("model/config.json"), cases[i].text);
        for (int e = 0; e < 2; e++)
            refuse(engines[e], cases[i].text != NULL ? cases[i].text : "no file",
                   (const char *const[]){"model/config.json", cases[i].words[0], NULL}, arguments);
    }
}

/* --- batches -----------------------------------------------------------------------------------------------
 */
enum { B = 2, S = 6, N = B * S };

static void write_batch(const int64_t *ids, const int64_t *labels, const int64_t *shape, int ndim)
{
    assay_tensorwriter *w;
    cr_assert_eq(assay_tensorwriter_create(&w, cli_file("batch")), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorwriter_add_copy(w, "input_ids", ASSAY_I64, shape, ndim, ids), ASSAY_OK);
    if (labels != NULL)
        cr_assert_eq(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, ndim, labels), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
}

static void refuse_batch(const char *what, const char *word, const char *more)
{
    for (int e = 0; e < 2; e++)
        refuse(engines[e], what, (const char *const[]){"error: batch", word, more, NULL},
               "--model " MODELS "llama --layout tp2 --batch batch");
}

static const int64_t plain[2] = {B, S};

static void count_up(int64_t *ids, int64_t *labels, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = labels[i] = i;
}

Test(step_input, token_ids_outside_the_vocabulary_are_named_with_their_place)
{
    static const int64_t wrong[] = {131, 100000, -1, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t ids[N], labels[N];
        char found[64];
        count_up(ids, labels, N);
        ids[S + 3] = wrong[i];
        write_batch(ids, labels, plain, 2);
        snprintf(found, sizeof found, "input_ids[1,3] is %lld", (long long)wrong[i]);
        refuse_batch(found, found, "outside the vocabulary 0...130");
    }
}

Test(step_input, labels_outside_the_vocabulary_are_named_with_their_place)
{
    static const int64_t wrong[] = {131, -1, -99, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t ids[N], labels[N];
        char found[64];
        count_up(ids, labels, N);
        labels[S + 3] = wrong[i];
        write_batch(ids, labels, plain, 2);
        snprintf(found, sizeof found, "labels[1,3] is %lld", (long long)wrong[i]);
        refuse_batch(found, found, "outside the vocabulary 0...130 and not -100");
    }
}

/* The first label of a row is no target of any position. */
Test(step_input, labels_all_masked_have_no_loss)
{
    for (int first = 0; first < 2; first++) {
        int64_t ids[N], labels[N];
        count_up(ids, labels, N);
        for (int i = 0; i < N; i++)
            labels[i] = first && i % S == 0 ? 5 : -100;
        write_batch(ids, labels, plain, 2);
        refuse_batch(first ? "only first labels" : "all masked", "all labels are masked", "");
    }
}

Test(step_input, a_step_without_a_target_is_named)
{
    int64_t ids[2 * N], labels[2 * N];
    count_up(ids, labels, 2 * N);
    for (int i = N; i < 2 * N; i++)
        labels[i] = -100;
    write_batch(ids, labels, (const int64_t[]){2, 1, B, S}, 4);
    refuse_batch("second step masked", "step 1: all labels are masked", "");
}

Test(step_input, batches_of_a_wrong_shape)
{
    int64_t ids[N], labels[N];
    count_up(ids, labels, N);
    write_batch(ids, labels, (const int64_t[]){1, B, S}, 3);
    refuse_batch("three dimensions", "3 dimensions", "[steps,microbatches,b,s]");
    write_batch(ids, labels, (const int64_t[]){0, S}, 2);
    refuse_batch("no rows", "dimension 0 is 0", "input_ids");
    write_batch(ids, NULL, plain, 2);
    refuse_batch("no labels", "labels", "");
}

/* --- layouts and options -----------------------------------------------------------------------------------
 */
typedef struct argument_case {
    const char *arguments, *words[3];
} argument_case;

static void refuse_arguments(const char *model, const char *batch, const argument_case *c, int n,
                             const char *engine)
{
    for (int i = 0; i < n; i++) {
        char arguments[CLI_LINE];
        snprintf(arguments, sizeof arguments, "--model " MODELS "%s --batch " MODELS "%s/%s.safetensors %s",
                 model, model, batch, c[i].arguments);
        for (int e = 0; e < 2; e++)
            if (engine == NULL || strcmp(engine, engines[e]) == 0)
                refuse(engines[e], c[i].arguments,
                       (const char *const[]){c[i].words[0], c[i].words[1], c[i].words[2], NULL}, arguments);
    }
}
#define REFUSE_ARGUMENTS(model, batch, cases, engine)                                                        \
    refuse_arguments(model, batch, cases, (int)(sizeof cases / sizeof *cases), engine)

Test(step_input, layouts_that_do_not_divide_the_model)
{
    static const argument_case cases[] = {
        {"--layout tp3", {"tp3", "4 attention heads"}},
        {"--layout pp5", {"pp5", "2 layers"}},
        {"--layout ep2", {"ep2", "no experts"}},
        {"--layout dp4", {"data_parallel_size 4", "1 microbatches", "2 rows"}},
        {"--layout cp4,a2a", {"cp4,a2a", "2 query groups"}},
        {"--layout tp2,etp2", {"etp2", "no experts"}},
        {"--layout pp2,vpp2", {"pp2,vpp2", "4 virtual stages, but the model has 2 layers"}},
        {"--layout dp2,hsdp2", {"hsdp2", "nothing is sharded"}},
    };
    REFUSE_ARGUMENTS("llama", "batch", cases, NULL);
}
Test(step_input, layouts_that_do_not_divide_the_experts)
{
    static const argument_case cases[] = {{"--layout ep3", {"ep3", "8 experts"}}};
    REFUSE_ARGUMENTS("qwen3_moe", "batch", cases, NULL);
}

Test(step_input, layouts_that_are_none)
{
    static const argument_case cases[] = {
        {"--layout xx", {"unknown word 'xx'", "tpN"}},
        {"--layout tp0", {"expected tp1 to"}},
        {"--layout tp", {"error: layout 'tp'"}},
        {"--layout tp2,tp2", {"given twice"}},
        {"--layout tp2,", {"unknown word ''"}},
        {"--layout ,", {"unknown word ''"}},
        {"--layout tp-2", {"unknown word 'tp-2'"}},
        {"--layout tp99999999999", {"error: layout 'tp99999999999'"}},
        {"--layout sp", {"sp needs tp of at least 2", "found tp1"}},
        {"--layout 1,tp2", {"unknown word '1'"}},
        {"--layout tp16384,dp16384", {"16384"}},
    };
    REFUSE_ARGUMENTS("llama", "batch", cases, NULL);
}

/* A batch [b,s] asks for no optimizer step: what belongs to one is refused, once, by whichever engine. */
Test(step_input, options_of_optimizer_steps_need_steps)
{
    static const char *const rows[] = {
        "--engine sim --lr 1e-3",        "--engine ref --clip-grad 1", "--engine sim --layout tp2 --save ck",
        "--engine sim --weight-decay 0", "--engine sim --load ck",     "--engine sim --lr-warmup-iters=1"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run(
            "step --model " MODELS "llama --batch " MODELS "llama/batch.safetensors --out none %s", rows[i]);
        cli_expect_refusal(&r, rows[i], (const char *const[]){"has no meaning here", "[b,s]", NULL});
        cr_expect_eq(cli_count(r.err, "error: "), 1, "%s: one message\n%s", rows[i], r.err);
        cli_free(&r);
    }
}

/* Ignored in silence before: what chooses kernels beside the reference, warm-up longer than the steps of the file. */
Test(step_input, options_without_effect_are_refused)
{
    static const char *const rows[][2] = {
        {"--engine ref --variant k0", "--variant has no meaning with --engine ref"},
        {"--engine ref --enable-cuda-graph", "--enable-cuda-graph has no meaning with --engine ref"},
        {"--engine ref --moe-expert-rank-capacity-factor 2",
         "--moe-expert-rank-capacity-factor has no meaning with --engine ref"},
        {"--engine ref --engine-program /bin/true", "--engine-program has no meaning with --engine ref"},
        {"--engine ref --lr 1 --lr-warmup-iters 10", "lr_warmup_iters 10 must be less than"},
        {"--engine sim --lr 1 --lr-warmup-iters 10", "lr_warmup_iters 10 must be less than"},
        {"--engine ref --save ck --save-after 999", "save_after 999: expected a step up to the last"},
        {"--engine sim --save ck --save-after 999", "save_after 999: expected a step up to the last"},
        {"--engine ref --recompute-granularity selective --recompute-modules bogus", "bogus"},
        {"--engine gpu --engine-program " ASSAY_BIN_DIR "/assay-sim", "engine gpu: expected a program of it"},
        {"--engine ref --freeze a --freeze b", "--freeze b: expected once, found --freeze a before it"},
        {"--engine ref --moe-aux-loss-coeff 0.1", "--moe_aux_loss_coeff: has no meaning here"},
        {"--engine sim --moe-shared-expert-overlap", "llama has no experts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("step %s --model " MODELS "llama --batch " MODELS
                               "llama/train_batch.safetensors --out none",
                               rows[i][0]);
        cli_expect_refusal(&r, rows[i][0], (const char *const[]){rows[i][1], NULL});
        cli_free(&r);
    }
}

/* Megatron-LM takes them without a word, and so do scripts that keep them for every layout: said, not refused. */
Test(step_input, options_that_change_nothing_are_said)
{
    static const char *const rows[][2] = {
        {"--tp-comm-overlap", "--tp-comm-overlap changes nothing: the layout has no tp"},
        {"--overlap-grad-reduce", "--overlap-grad-reduce changes nothing: the layout has no dp and no cp"},
        {"--layout tp2 --tp-comm-overlap --trace t", "--tp-comm-overlap changes nothing: a run with a trace"},
        {"--lr 1 --lr 2", "--lr 2 replaces --lr 1 before it"},
        {"--lr 1 --min-lr 0.1", "--min-lr changes nothing: lr_decay_style is constant"},
        {"--lr_decay_iters 9", "--lr-decay-iters changes nothing: lr_decay_style is constant"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("step --engine sim %s --model " MODELS "llama --batch " MODELS
                               "llama/train_batch.safetensors --out out%zu",
                               rows[i][0], i);
        cli_expect_success(&r, rows[i][0]);
        cr_expect(strstr(r.err, rows[i][1]) != NULL, "%s: %s", rows[i][0], r.err);
        cli_free(&r);
    }
}

/* Of experts: without ep no rank gets rows of another, and less than an even share is too little for some rank of every step. */
Test(step_input, memory_for_rows_of_experts)
{
    static const char model[] =
        "--model " MODELS "qwen3_moe --batch " MODELS "qwen3_moe/train_batch.safetensors";
    cli_result r = cli_run("step --engine sim --moe-expert-rank-capacity-factor 2 %s --out said", model);
    cli_expect_success(&r, "without ep");
    cr_expect(strstr(r.err, "--moe-expert-rank-capacity-factor changes nothing: the layout has no ep") !=
                  NULL,
              "%s", r.err);
    cli_free(&r);
    r = cli_run("step --engine sim --layout dp2,ep2 --moe-expert-rank-capacity-factor 0.5 %s --out none",
                model);
    cli_expect_refusal(
        &r, "a half",
        (const char *const[]){"moe_expert_rank_capacity_factor: expected 0, or 1 or more, found 0.5", NULL});
    cli_free(&r);
}

Test(step_input, a_drop_policy_without_a_capacity_is_refused)
{
    cli_result r = cli_run("step --engine ref --moe-token-drop-policy position --model " MODELS
                           "qwen3_moe --batch " MODELS "qwen3_moe/batch.safetensors --out none");
    cli_expect_refusal(&r, "policy",
                       (const char *const[]){"moe_token_drop_policy: has no meaning here", NULL});
    cli_free(&r);
}

Test(step_input, options_out_of_range)
{
    static const argument_case cases[] = {
        {"--nope", {"--nope", "unknown option"}},
        {"--nope=3", {"--nope", "unknown option"}},
        {"stray", {"unexpected argument", "stray"}},
        {"--precision fp8", {"expected one of fp64, fp32, bf16", "fp8"}},
        {"--lr x", {"lr: expected a number", "'x'"}},
        {"--lr nan", {"lr: expected a number", "nan"}},
        {"--lr 1e999", {"error: lr"}},
        {"--lr -1", {"lr: expected 0 to", "found -1"}},
        {"--adam-beta2 1.5", {"adam_beta2: expected 0 to 1", "1.5"}},
        {"--adam-beta1 1", {"adam_beta1: expected less than 1"}},
        {"--train-iters -3", {"train_iters: expected 0 to", "-3"}},
        {"--train-iters 1.5", {"train_iters: expected an integer"}},
        {"--train-iters 5", {"holds 1 steps", "train_iters"}},
        {"--lr-decay-style steep", {"lr_decay_style: expected one of", "steep"}},
        {"--timeout -1", {"--timeout", "-1"}},
        {"--fault meteor", {"meteor"}},
        {"--layout", {"layout"}},
    };
    REFUSE_ARGUMENTS("llama", "batch", cases, NULL);
}

Test(step_input, fp64_is_refused_by_the_engine_by_name)
{
    static const argument_case cases[] = {
        {"--precision fp64 --layout tp2", {"precision fp64", "fp32 or bf16", "engine sim"}}};
    REFUSE_ARGUMENTS("llama", "batch", cases, "sim");
}

Test(step_input, unknown_variant_is_refused_by_the_engine)
{
    static const argument_case cases[] = {
        {"--variant attention=k9", {"unknown variant 'k9'", "k0"}},
        {"--variant k0,rmsnrom=k0", {"unknown family 'rmsnrom'", "did you mean rmsnorm?"}},
        {"--variant attention", {"expected fastest, kN or FAMILY=kN"}},
        {"--variant linear=k0,linear=k1", {"linear is named twice"}},
        {"--variant linear=k0,k1", {"what all families get comes first, in front of linear=k0"}},
        {"--variant gravity=k0", {"unknown family 'gravity'"}}};
    REFUSE_ARGUMENTS("llama", "batch", cases, "sim");
}

Test(step_input, what_must_be_given_is_named)
{
    static const argument_case cases[] = {
        {"step", {"--model", "Hugging Face folder"}},
        {"step --model a", {"--batch", "safetensors"}},
        {"step --model a --batch b", {"--out", "file to write"}},
        {"step --engine tpu --model a --batch b --out c", {"--engine", "tpu", "ref, gpu, sim or auto"}},
        {"step --engine ref --model nowhere --batch b --out c", {"nowhere", "No such file"}},
        {"step --engine ref --batch b --out c --model " MODELS "llama", {"error: b: ", "No such file"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run("%s", cases[i].arguments);
        cli_expect_refusal(
            &r, cases[i].arguments,
            (const char *const[]){cases[i].words[0], cases[i].words[1], cases[i].words[2], NULL});
        cr_expect_not(cli_exists(cli_file("c")));
        cli_free(&r);
    }
}
