/* What cannot be judged is refused before anything starts: exit code 2, one message, and the report folder as it was. */
#include "tests/support/run.h"

TestSuite(run_refusals, .init = run_setup, .fini = cli_teardown, .timeout = 200);

static void refuse(const char *what, const char *arguments, const char *const *words)
{
    cr_assert_eq(assay_mkdir_p(cli_file("rep/work")), ASSAY_OK);
    cli_write_text(cli_file("rep/results.jsonl"), "older");
    cli_write_text(cli_file("rep/work/older"), "older");
    cli_result r = cli_run("run %s--report rep %s",
                           strstr(arguments, "--engine ") != NULL ? "" : "--engine sim ", arguments);
    cli_expect_refusal(&r, what, words);
    cr_expect_eq(cli_count(r.err, "error: "), 1, "%s: one message\n%s", what, r.err);
    char *kept = cli_read(cli_file("rep/results.jsonl"));
    cr_expect_str_eq(kept, "older", "%s", what);
    free(kept);
    cr_expect(cli_exists(cli_file("rep/work/older")), "%s: scratch was removed", what);
    cli_free(&r);
}

Test(run_refusals, an_empty_token_file_is_named)
{
    cli_write_text(cli_file("text.md"), "");
    refuse("empty", "case.json", (const char *const[]){"text.md", "empty", NULL});
    cli_write_text(cli_file("text.md"), "abc");
    refuse("short", "case.json", (const char *const[]){"case.json", "4 tokens", "seq_length 9", NULL});
    (void)unlink(cli_file("text.md"));
    refuse("absent", "case.json", (const char *const[]){"text.md", "No such file", NULL});
}

/* case.json with `from` replaced by `to`. */
static void change_case(const char *from, const char *to)
{
    char text[4096];
    const char *at = strstr(case_text, from);
    cr_assert_not_null(at, "%s", from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - case_text), case_text, to, at + strlen(from));
    cli_write_text(cli_file("case.json"), text);
}

Test(run_refusals, cases_that_cannot_be)
{
    static const struct {
        const char *from, *to, *words[2];
    } cases[] = {
        {"\"hidden_size\": 16", "\"hidden_size\": -16", {"hidden_size: expected 1 to", "-16"}},
        {"\"vocab_size\": 257", "\"vocab_size\": 100", {"vocabulary of 257", "100"}},
        {"\"name\": \"tiny\"", "\"name\": \"../up\"", {"name: expected [a-z0-9_-]+", "../up"}},
        {"\"lr\": 1e-3", "\"lrr\": 1e-3", {"lrr", "unknown option"}},
        {"\"lr\": 1e-3", "\"adam_beta1\": 1", {"training", "adam_beta1: expected less than 1"}},
        {"\"lr\": 1e-3", "\"out\": \"/tmp/x\"", {"out: has no meaning here"}},
        {"\"lr\": 1e-3", "\"save\": \"/tmp/x\"", {"save: has no meaning here"}},
        {"\"lr\": 1e-3", "\"trace\": \"/tmp/x\"", {"trace: has no meaning here"}},
        {"\"lr\": 1e-3", "\"layout\": \"tp2\"", {"layout: has no meaning here"}},
        {"\"lr\": 1e-3", "\"lr\": -1", {"lr: expected 0 to", "-1"}},
        {"\"tp2\"]", "\"tp2,xx\"]", {"unknown word 'xx'", "tpN"}},
        {"[\"fp32\"]", "[\"fp64\"]", {"precision[0]", "fp32 or bf16, found fp64"}},
        {"\"lr\": 1e-3", "\"adam_beta1\": 1", {"training", "adam_beta1: expected less than 1"}},
        {"[\"fp32\"]", "[\"fp31\"]", {"precision: expected one of", "fp31"}},
        {"\"steps\": 2", "\"steps\": -1", {"steps: expected 0 to", "found -1"}},
        {"\"steps\": 2", "\"steps\": 0", {"steps 0 is one batch", "expected 1 microbatch, found 2"}},
        {"\"seq_length\": 9", "\"seq_length\": 1", {"seq_length: expected 2 to", "found 1"}},
        {"\"mask_probability\": 0.1", "\"mask_probability\": 1.0", {"mask_probability", "1"}},
        {"\"steps\": 2", "\"steps\": 2, \"steps\": 3", {"duplicate", "steps"}},
        {"\"name\"", "\"surprise\": 1, \"name\"", {"surprise: unknown member"}},
        {"\"name\"", "\"description\": 5, \"name\"", {"description: expected a string"}},
        {"\"rms_norm_eps\"",
         "\"rms_norm_epss\"",
         {"model: rms_norm_epss: no configuration", "did you mean rms_norm_eps?"}},
        {"\"hidden_size\"",
         "\"num_key_value_head\": 1, \"hidden_size\"",
         {"did you mean num_key_value_heads?"}},
        {"\"hidden_size\"", "\"quantization_config\": {}, \"hidden_size\"", {"quantization_config"}},
        {"\"rope_theta\"", "\"rope_thetta\"", {"model: rope_parameters", "did you mean rope_theta?"}},
        {"text.md", "texts.md", {"data: paths", "texts.md"}},
        {"\"training\": {", "\"checks\": [\"taste\"], \"training\": {", {"unknown check taste", "checks[0]"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change_case(cases[i].from, cases[i].to);
        refuse(cases[i].to, "case.json",
               (const char *const[]){"case.json", cases[i].words[0], cases[i].words[1], NULL});
    }
}

/* Once, before anything starts: no rank of an engine says it. */
Test(run_refusals, a_layout_that_no_case_can_be_cut_into_is_refused)
{
    static const struct {
        const char *layout, *words[2];
    } rows[] = {
        {"dp4", {"case tiny, layout dp4: ", "data_parallel_size 4 divides neither the 2 microbatches"}},
        {"tp3", {"case tiny, layout tp3: ", "tp3 does not divide 2 attention heads"}},
        {"pp2", {"case tiny, layout pp2: ", "pp2,vpp1: 2 virtual stages, but the model has 1 layers"}},
        {"ep2", {"case tiny, layout ep2: ", "ep2, but the model has no experts"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r =
            cli_run("run --engine sim --quiet --report rep --layout 1 --layout %s case.json", rows[i].layout);
        cli_expect_refusal(&r, rows[i].layout,
                           (const char *const[]){rows[i].words[0], rows[i].words[1], NULL});
        cr_expect_eq(cli_count(r.err, "error: "), 1, "%s", r.err);
        cr_expect_not(cli_exists(cli_file("rep")));
        cli_free(&r);
    }
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --moe-alltoall-halves --case qwen3_moe --layout dp2");
    cli_expect_refusal(
        &r, "an option that no layout has a use for",
        (const char *const[]){"case qwen3_moe, layout ", "moe_alltoall_halves: without ep", NULL});
    cr_expect_not(cli_exists(cli_file("rep")));
    cli_free(&r);
    change_case("\"tp2\"]", "\"tp3\"]");
    r = cli_run("run --engine sim --quiet --report rep case.json");
    cli_expect_refusal(&r, "a case's own", (const char *const[]){"case tiny, layout tp3: ", NULL});
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --check plan --layout 1 case.json");
    cr_expect_eq(r.code, 0, "a layout that is not asked for: %s", r.err);
    cli_free(&r);
}

/* Among several cases, those that cannot be cut so are skips with the reason. */
Test(run_refusals, a_case_that_cannot_be_cut_is_skipped_with_the_reason)
{
    char *text = cli_read(cli_file("case.json"));
    change_case("\"name\": \"tiny\"", "\"name\": \"wide\"");
    char *wide = cli_read(cli_file("case.json"));
    char *at = strstr(wide, "\"microbatches\": 2");
    cr_assert_not_null(at);
    at[strlen("\"microbatches\": ")] = '4';
    cli_write_text(cli_file("wide.json"), wide);
    cli_write_text(cli_file("case.json"), text);
    free(wide);
    free(text);
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --check plan --layout dp4 case.json wide.json");
    cr_expect(r.code == 2 && !cli_unclean(&r), "exit code %d\n%s", r.code, r.err);
    const counts c = totals(&r);
    cr_expect_eq(c.skipped, 1);
    cr_expect_eq(c.failed, 0);
    cr_expect_gt(c.passed, 50, "the other case was checked");
    cr_expect(
        strstr(r.out, "case tiny, layout dp4: data_parallel_size 4 divides neither the 2 microbatches") !=
            NULL,
        "%s", r.out);
    cr_expect_not(cli_exists(cli_file("rep/work/tiny/fp32-dp4")), "nothing was started for it");
    expect_reports("rep", c);
    cli_free(&r);
}

/* Two spellings of one layout are one task. */
Test(run_refusals, what_is_given_twice_is_taken_once_or_refused)
{
    cli_result r = cli_run(
        "run --engine sim --quiet --report rep --check plan --layout tp2 --layout tp2 --layout tp2,pp1 "
        "case.json");
    cli_expect_success(&r, "layouts");
    cr_expect(strstr(r.out, "--layout tp2: is --layout tp2, taken once") != NULL &&
                  strstr(r.out, "--layout tp2,pp1: is --layout tp2, taken once") != NULL &&
                  strstr(r.out, "\n1 tasks of 1 combinations") != NULL,
              "%s", r.out);
    cli_free(&r);
    refuse("precision", "--precision fp32 --precision bf16 case.json",
           (const char *const[]){"--precision bf16: expected once, found --precision fp32 before it", NULL});
    refuse("check", "--check plan --check flow case.json",
           (const char *const[]){"--check flow: expected once, found --check plan before it", NULL});
    refuse("none of this precision", "--precision bf16 case.json",
           (const char *const[]){"--precision bf16: case tiny has no such precision", NULL});
    refuse("no experts", "--moe-z-loss-coeff 0.1 case.json",
           (const char *const[]){"--moe_z_loss_coeff: has no meaning here: no case has experts", NULL});
    refuse("case", "case.json case.json",
           (const char *const[]){"the case is named tiny, and so is the one in", NULL});
    change_case("\"precision\"", "\"variants\": [\"linaer=k0\"], \"precision\"");
    refuse("variants", "case.json",
           (const char *const[]){"case tiny: variant 'linaer=k0'", "did you mean linear?", NULL});
    static const char *const changes[][3] = {
        {"\"tp2\"]", "\"tp1\"]", "layouts[1]: tp1 is layouts[0], 1, again"},
        {"[\"fp32\"]", "[\"fp32\", \"fp32\"]", "precision[1]: fp32 again"},
        {"\"precision\"", "\"variants\": [\"k0\", \"k0\"], \"precision\"", "variants[1]: k0 again"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        change_case(changes[i][0], changes[i][1]);
        refuse(changes[i][1], "case.json", (const char *const[]){changes[i][2], NULL});
    }
}

Test(run_refusals, options_that_cannot_be)
{
    static const struct {
        const char *arguments, *words[3];
    } cases[] = {
        {"--check taste case.json", {"--check: expected one of plan, exact, local", "taste"}},
        {"--precision fp64 case.json", {"--precision: expected fp32 or bf16", "fp64"}},
        {"--shard 0/2 case.json", {"--shard: expected I/N", "0/2"}},
        {"--shard 3/2 case.json", {"--shard: expected I/N", "3/2"}},
        {"--jobs 0 case.json", {"--jobs: expected an integer from 1", "found 0"}},
        {"--timeout x case.json", {"--timeout: expected an integer", "found x"}},
        {"--layout tp2,xx case.json", {"unknown word 'xx'"}},
        {"--variant atention=k0 case.json", {"unknown family 'atention'", "did you mean attention?"}},
        {"--variant k10 case.json", {"variant 'k10': expected fastest, kN or FAMILY=kN"}},
        {"--case nobody case.json", {"--case nobody", "no case has this name"}},
        {"--engine ref case.json", {"expected auto, gpu or sim", "ref"}},
        {"--engine-program /nowhere case.json", {"/nowhere", "executable"}},
        {"--engine-program /bin/true case.json", {"/bin/true", "JSON object"}},
        {"--engine-program /bin/false case.json", {"/bin/false", "ended with exit code 1"}},
        {"--surprise case.json", {"--surprise", "unknown option"}},
        {"--out nowhere/x case.json", {"'--out'", "has no meaning here"}},
        {"--trace t case.json", {"'--trace'", "has no meaning here"}},
        {"--load t case.json", {"'--load'", "has no meaning here"}},
        {"--save=t case.json", {"'--save=t'", "has no meaning here"}},
        {"--save-after 1 case.json", {"'--save-after'", "has no meaning here"}},
        {"--trace-hash-only case.json", {"'--trace-hash-only'", "has no meaning here"}},
        {"--model nowhere", {"nowhere", "No such file"}},
        {"--model nowhere case.json", {"--model nowhere: is a case by itself"}},
        {"--batch b.safetensors case.json", {"--batch b.safetensors: needs --model"}},
        {"--model " MODELS "llama --batch b.safetensors", {"b.safetensors", "No such file"}},
        {"--model " MODELS "llama --seed 3 --batch " MODELS "llama/train_batch.safetensors",
         {"--seed: has no meaning for data that is there already"}},
        {"--model " MODELS "llama --batch " MODELS "llama/train_batch.safetensors --train-iters 99",
         {"--train-iters 99", "holds"}},
        {"nowhere.json", {"nowhere.json", "No such file"}},
        {"--case operations --fault skip_all_reduce", {"--fault: has no meaning for the operations alone"}},
        {"--case operations --lr 1e-3", {"--lr: has no meaning for the operations alone"}},
        {"--case llama --variant every", {"--variant every: the operations alone", "--case operations"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].arguments, cases[i].arguments,
               (const char *const[]){cases[i].words[0], cases[i].words[1], NULL});
}
