/* `assay run` on a tiny case: exit codes, report files, failures that are named and happen again, shards. */
#include "tests/support/cli.h"
#include <jansson.h>
#include <sys/stat.h>

static const char case_text[] =
    "{\"name\": \"tiny\", \"model\": {\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
    " \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": 257, \"max_position_embeddings\": 64,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"initializer_range\": 0.05,"
    " \"tie_word_embeddings\": true,"
    " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}},"
    " \"data\": {\"paths\": [\"text.md\"], \"steps\": 2, \"microbatches\": 2, \"micro_batch_size\": 1,"
    " \"seq_length\": 9, \"mask_probability\": 0.1}, \"layouts\": [\"1\", \"tp2\"],"
    " \"training\": {\"seed\": 7, \"lr\": 1e-3, \"adam_beta2\": 0.5}, \"precision\": [\"fp32\"]}\n";
static const char data_text[] =
    "The quick brown fox jumps over the lazy dog, again and again, until the page is full of words and "
    "nobody wants to read on. Then some more text follows, so that a few windows can be cut from it.\n";

static void setup(void)
{
    cli_setup();
    cli_write_text(cli_file("case.json"), case_text);
    cli_write_text(cli_file("text.md"), data_text);
}

TestSuite(run, .init = setup, .fini = cli_teardown, .timeout = 200);

typedef struct counts {
    long long passed, failed, skipped;
} counts;

/* The last line of stdout: "N passed, N failed, N skipped". */
static counts totals(const cli_result *r)
{
    counts c = {-1, -1, -1};
    size_t n = strlen(r->out);
    char tail = 0;
    cr_expect(n > 0 && r->out[n - 1] == '\n', "%s%s", r->out, r->err);
    if (n == 0)
        return c;
    r->out[n - 1] = 0;
    const char *line = strrchr(r->out, '\n');
    line = line != NULL ? line + 1 : r->out;
    cr_expect(sscanf(line, "%lld passed, %lld failed, %lld skipped%c", &c.passed, &c.failed, &c.skipped,
                     &tail) == 3,
              "last line: %s", line);
    r->out[n - 1] = '\n';
    return c;
}

typedef bool (*result_filter)(const json_t *line);

/* Reads results.jsonl: every line is an object with the promised members.  Counts verdicts, and the lines
 * that `wanted` accepts in *found (the first one's reproduction command in `again`). */
static counts read_results(const char *path, result_filter wanted, int *found, char again[1024])
{
    counts c = {0, 0, 0};
    bool ended = false;
    char *text = cli_read(path);
    cr_assert_neq(text[0], 0, "%s is empty", path);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, 0, NULL);
        cr_assert(json_is_object(o), "%s", line);
        if (json_is_true(json_object_get(o, "end"))) {
            cr_expect(json_integer_value(json_object_get(o, "passed")) == c.passed &&
                          json_integer_value(json_object_get(o, "failed")) == c.failed &&
                          json_integer_value(json_object_get(o, "skipped")) == c.skipped &&
                          strtok(NULL, "\n") == NULL,
                      "the last line counts the others: %s", line);
            json_decref(o);
            ended = true;
            break;
        }
        const char *verdict = json_string_value(json_object_get(o, "verdict"));
        const json_t *ratio = json_object_get(o, "ratio");
        cr_assert_not_null(verdict);
        c.passed += strcmp(verdict, "pass") == 0;
        c.failed += strcmp(verdict, "FAIL") == 0;
        c.skipped += strcmp(verdict, "skip") == 0;
        cr_expect(
            json_is_string(json_object_get(o, "case")) && json_is_string(json_object_get(o, "engine")) &&
                json_is_string(json_object_get(o, "layout")) && json_is_string(json_object_get(o, "check")) &&
                json_is_integer(json_object_get(o, "step")) && json_is_integer(json_object_get(o, "rank")) &&
                json_is_integer(json_object_get(o, "count")) &&
                json_is_string(json_object_get(o, "reproduce")),
            "a member is missing: %s", line);
        cr_expect(strcmp(verdict, "skip") == 0 || json_is_string(json_object_get(o, "tensor")) ||
                      json_is_string(json_object_get(o, "operation")) ||
                      json_is_string(json_object_get(o, "instance")),
                  "neither tensor nor operation: %s", line);
        cr_expect(json_is_real(ratio) || json_is_string(ratio), "%s", line);
        cr_expect(strcmp(verdict, "pass") != 0 || json_real_value(ratio) <= 1.0, "passed above 1: %s", line);
        if (wanted != NULL && wanted(o) && (*found)++ == 0)
            snprintf(again, 1024, "%s", json_string_value(json_object_get(o, "reproduce")));
        json_decref(o);
    }
    cr_expect(ended, "%s: no line of counts", path);
    free(text);
    return c;
}

static void expect_equal_counts(counts a, counts b, const char *what)
{
    cr_expect(a.passed == b.passed && a.failed == b.failed && a.skipped == b.skipped,
              "%s: %lld %lld %lld and %lld %lld %lld", what, a.passed, a.failed, a.skipped, b.passed,
              b.failed, b.skipped);
}

/* junit.xml and index.html tell the same counts. */
static void expect_reports(const char *dir, counts c)
{
    char path[CLI_PATH], expected[200];
    snprintf(path, sizeof path, "%s/junit.xml", dir);
    char *text = cli_read(cli_file(path));
    snprintf(expected, sizeof expected,
             "<testsuites name=\"assay\" tests=\"%lld\" failures=\"%lld\" skipped=\"%lld\">",
             c.passed + c.failed + c.skipped, c.failed, c.skipped);
    cr_expect(strstr(text, expected) != NULL, "%s: expected %s", path, expected);
    cr_expect_eq(cli_count(text, "<testcase "), c.passed + c.failed + c.skipped);
    cr_expect_eq(cli_count(text, "<failure "), c.failed);
    cr_expect(strstr(text, "</testsuites>") != NULL);
    free(text);
    snprintf(path, sizeof path, "%s/index.html", dir);
    text = cli_read(cli_file(path));
    cr_expect(strstr(text, "<html") != NULL && strstr(text, "</html>") != NULL &&
              strstr(text, "tiny") != NULL);
    free(text);
    snprintf(path, sizeof path, "%s/facts.json", dir);
    json_t *facts = json_load_file(cli_file(path), 0, NULL);
    cr_expect(json_is_object(facts), "%s", path);
    json_decref(facts);
}

static bool is_local_or_whole_tp2(const json_t *o)
{
    return strcmp(json_string_value(json_object_get(o, "layout")), "tp2") == 0 &&
           json_real_value(json_object_get(o, "ratio")) > 0.0;
}

Test(run, an_honest_engine_passes_and_the_reports_say_so)
{
    int found = 0;
    char again[1024];
    cli_result r = cli_run("run --engine sim --quiet --report rep case.json");
    cli_expect_success(&r, "run");
    const counts c = totals(&r);
    cr_expect_eq(c.failed, 0);
    cr_expect_eq(c.skipped, 0);
    expect_equal_counts(c, read_results(cli_file("rep/results.jsonl"), is_local_or_whole_tp2, &found, again),
                        "table and results.jsonl");
    cr_expect_gt(found, 50, "only %d results of tp2 have an error at all: was anything compared?", found);
    expect_reports("rep", c);
    cr_expect_not(cli_exists(cli_file("rep/work/tiny/fp32-tp2")), "scratch of a passed task was kept");
    cli_free(&r);
}

static bool is_failed_all_reduce(const json_t *o)
{
    const char *op = json_string_value(json_object_get(o, "operation"));
    return strcmp(json_string_value(json_object_get(o, "verdict")), "FAIL") == 0 && op != NULL &&
           strcmp(json_string_value(json_object_get(o, "check")), "local") == 0 &&
           strcmp(op, "all_reduce") == 0;
}

/* The planted fault is found at its operation, and the command that the report gives finds it again. */
Test(run, a_missing_all_reduce_is_named_and_fails_again)
{
    int found = 0;
    char again[1024] = "";
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --layout tp2 --fault skip_all_reduce case.json");
    cr_expect(r.code == 1 && !cli_unclean(&r), "exit code %d\n%s", r.code, r.err);
    cr_expect(strstr(r.out, "all_reduce") != NULL, "the operation is not in the table:\n%s", r.out);
    const counts c = totals(&r);
    cr_expect_gt(c.failed, 0);
    expect_equal_counts(c, read_results(cli_file("rep/results.jsonl"), is_failed_all_reduce, &found, again),
                        "table and results.jsonl");
    expect_reports("rep", c);
    cr_expect_eq(found, 1, "all_reduce failed in %d results of the local check", found);
    cr_expect(cli_exists(cli_file("rep/work/tiny/fp32-tp2/trace")), "traces of a failed task are kept");
    cli_free(&r);
    cr_assert_eq(strncmp(again, "assay ", 6), 0, "%s", again);
    r = cli_run("%s", again + 6);
    cr_expect_eq(r.code, 1, "%s: exit code %d\n%s", again, r.code, r.err);
    cr_expect(strstr(r.out, "all_reduce") != NULL, "%s\n%s", again, r.out);
    expect_equal_counts(c, totals(&r), again);
    cli_free(&r);
}

Test(run, other_planted_faults_are_failures)
{
    static const char *const faults[] = {"double_microbatch", "flipped_sign", "wrong_scale", "stale_weight"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        cli_result r =
            cli_run("run --engine sim --quiet --report rep --layout 1 --fault %s case.json", faults[i]);
        cr_expect(r.code == 1 && !cli_unclean(&r), "%s: exit code %d\n%s", faults[i], r.code, r.err);
        cr_expect_gt(totals(&r).failed, 0, "%s", faults[i]);
        cli_free(&r);
    }
}

Test(run, shards_join_to_the_whole)
{
    cli_result whole = cli_run("run --engine sim --quiet --report whole case.json");
    cli_expect_success(&whole, "whole");
    counts parts = {0, 0, 0};
    for (int i = 1; i <= 2; i++) {
        cli_result r = cli_run("run --engine sim --quiet --report part%d --shard %d/2 case.json", i, i);
        cli_expect_success(&r, "shard");
        const counts c = totals(&r);
        cr_expect_gt(c.passed, 0);
        parts.passed += c.passed;
        cli_free(&r);
    }
    cli_result joined = cli_run("report merge part1/results.jsonl part2/results.jsonl --report joined");
    cli_expect_success(&joined, "merge");
    expect_equal_counts(totals(&whole), totals(&joined), "whole and joined");
    expect_equal_counts(totals(&whole), parts, "whole and sum of shards");
    expect_equal_counts(totals(&whole), read_results(cli_file("joined/results.jsonl"), NULL, NULL, NULL),
                        "joined results.jsonl");
    char *a = cli_read(cli_file("whole/results.jsonl")), *b = cli_read(cli_file("joined/results.jsonl"));
    cr_expect_str_eq(a, b, "joined results are those of the whole run, line by line");
    free(a);
    free(b);
    cli_free(&whole);
    cli_free(&joined);
}

Test(run, a_failure_in_a_shard_is_a_failure_of_the_whole)
{
    cli_result a = cli_run(
                   "run --engine sim --quiet --report a --fault skip_all_reduce --shard 1/2 case.json"),
               b = cli_run(
                   "run --engine sim --quiet --report b --fault skip_all_reduce --shard 2/2 case.json"),
               r = cli_run("report merge a b --report joined");
    cr_expect_eq(r.code, 1, "%s", r.err);
    cr_expect_gt(totals(&r).failed, 0);
    cr_expect_eq(totals(&r).failed, totals(&a).failed + totals(&b).failed);
    cr_expect_eq(totals(&r).passed, totals(&a).passed + totals(&b).passed);
    cli_free(&a);
    cli_free(&b);
    cli_free(&r);
}

Test(run, only_all_parts_of_one_run_are_joined)
{
    static const struct {
        const char *paths, *words[3];
    } rows[] = {
        {"p1", {"a run of 3 parts", "missing 2/3 3/3"}},
        {"p1 p3", {"missing 2/3"}},
        {"p1 p2 p2", {"p2: part 2 of 3, which p2 already is"}},
        {"p1 p2 other", {"other: part 3 of 3 of run", "expected a part of 3 of run"}},
        {"p1 p2 replayed.jsonl", {"replayed.jsonl: expected results of assay run"}},
        {"p1 p2 cut.jsonl", {"cut.jsonl: expected a last line with the counts"}},
    };
    for (int i = 1; i <= 3; i++) {
        cli_result r =
            cli_run("run --engine sim --quiet --report p%d --layout 1 --layout tp2 --layout dp2 --shard %d/3 "
                    "--check plan --keep case.json",
                    i, i);
        cli_expect_success(&r, "shard");
        cli_free(&r);
    }
    cli_result r =
        cli_run("run --engine sim --quiet --report other --layout 1 --layout tp2 --layout tp2,sp --shard 3/3 "
                "--check plan case.json");
    cli_free(&r);
    r = cli_run("replay --out replayed.jsonl p1/work/tiny/fp32-1/trace");
    cli_expect_success(&r, "replay");
    cli_free(&r);
    char *text = cli_read(cli_file("p3/results.jsonl"));
    cli_write(cli_file("cut.jsonl"), text,
              strlen(text) / 2 +
                  (size_t)(strchr(text + strlen(text) / 2, '\n') - text - (long)(strlen(text) / 2)) + 1);
    free(text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r = cli_run("report merge %s --report joined", rows[i].paths);
        cli_expect_refusal(&r, rows[i].paths, rows[i].words);
        cr_expect_not(cli_exists(cli_file("joined")), "%s", rows[i].paths);
        cli_free(&r);
    }
    r = cli_run("report merge p3/results.jsonl p1 p2 --report joined");
    cli_expect_success(&r, "all parts, in any order");
    cli_free(&r);
}

/* Parts are of one run when they read the same bytes: one changed weight of a model folder is another run. */
Test(run, parts_of_other_weights_are_not_joined)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    cr_assert_eq(assay_mkdir_p(cli_file("folder")), ASSAY_OK);
    for (int part = 1; part <= 3; part++) {
        for (int k = 0; k < 2; k++) {
            char from[512], to[64], *bytes = NULL;
            uint64_t n = 0;
            snprintf(from, sizeof from, MODELS "llama/%s", names[k]);
            snprintf(to, sizeof to, "folder/%s", names[k]);
            cr_assert_eq(assay_read_file(from, 1 << 26, &bytes, &n), ASSAY_OK, "%s", assay_error_message());
            if (k == 1 && part == 3)
                bytes[n - 1] = (char)(bytes[n - 1] ^ 1);
            cr_assert_eq(assay_write_file(cli_file(to), bytes, n), ASSAY_OK);
            free(bytes);
        }
        cli_result r =
            cli_run("run --engine sim --quiet --report w%d --layout 1 --layout tp2 --precision fp32 "
                    "--train-iters 1 --check plan --model folder --shard %d/2",
                    part, part == 1 ? 1 : 2);
        cli_expect_success(&r, "shard");
        cli_free(&r);
    }
    cli_result r = cli_run("report merge w1 w3 --report joined");
    cli_expect_refusal(&r, "other weights", (const char *const[]){"w3: part 2 of 2 of run", NULL});
    cli_free(&r);
    r = cli_run("report merge w1 w2 --report joined");
    cli_expect_success(&r, "the same weights");
    cli_free(&r);
}

/* --- the report folder -------------------------------------------------------------------------------------- */
Test(run, a_folder_of_somebody_else_is_not_touched)
{
    cr_assert_eq(assay_mkdir_p(cli_file("mine/work")), ASSAY_OK);
    cli_write_text(cli_file("mine/work/thesis.tex"), "years");
    cli_result r = cli_run("run --engine sim --quiet --layout 1 --report mine case.json");
    cli_expect_refusal(&r, "mine",
                       (const char *const[]){"mine: expected a new or empty folder", "found work", NULL});
    cli_free(&r);
    cr_expect(cli_exists(cli_file("mine/work/thesis.tex")));
    /* A report folder of ours, in which somebody put a folder `work` of his own. */
    r = cli_run("run --engine sim --quiet --layout 1 --report ours case.json");
    cli_expect_success(&r, "ours");
    cli_free(&r);
    cr_assert_eq(assay_remove_tree(cli_file("ours/work"), cli_folder), ASSAY_OK);
    cr_assert_eq(assay_mkdir_p(cli_file("ours/work")), ASSAY_OK);
    cli_write_text(cli_file("ours/work/thesis.tex"), "years");
    r = cli_run("run --engine sim --quiet --layout 1 --report ours case.json");
    cli_expect_refusal(&r, "ours", (const char *const[]){"ours/work: expected a new or empty folder", NULL});
    cli_free(&r);
    cr_expect(cli_exists(cli_file("ours/work/thesis.tex")));
    r = cli_run("report merge ours --report mine");
    cli_expect_refusal(&r, "merge", (const char *const[]){"mine: expected a new or empty folder", NULL});
    cli_free(&r);
}

Test(run, a_second_run_in_the_folder_is_refused_by_the_holder)
{
    char line[CLI_LINE], holder[64];
    snprintf(line, sizeof line, ASSAY_BIN_DIR "/assay run --engine sim --quiet --report rep case.json");
    const pid_t first = cli_start(line);
    for (int i = 0; i < 2000 && !cli_exists(cli_file("rep/work/.assay-report")); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    cli_result r = cli_run("run --engine sim --quiet --report rep case.json");
    snprintf(holder, sizeof holder, "process %ld", (long)first);
    cli_expect_refusal(&r, "second", (const char *const[]){"another run works in this folder", holder, NULL});
    cli_free(&r);
    r = cli_wait(first);
    cli_expect_success(&r, "first");
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --layout 1 case.json");
    cli_expect_success(&r, "after it");
    cli_free(&r);
}

/* A stopped run says what it had done (tp2 first: it takes longest), and nothing of it goes on. */
Test(run, a_stopped_run_leaves_a_partial_report_and_no_process)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line,
             ASSAY_BIN_DIR "/assay run --engine sim --quiet --jobs 1 --report rep case.json");
    const pid_t pid = cli_start(line);
    for (int i = 0; i < 2000 && !cli_exists(cli_file("rep/work/tiny/fp32-1/train.log")); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    kill(pid, SIGTERM);
    cli_result r = cli_wait(pid);
    cr_expect_eq(r.code, 2, "%d %s", r.code, r.err);
    const counts c = totals(&r);
    cr_expect(c.passed > 100 && c.skipped == 1 && c.failed == 0, "%s", r.out);
    cr_expect(strstr(r.out, "stopped by signal 15") != NULL, "%s", r.out);
    expect_reports("rep", c);
    cr_expect_eq(kill(-pid, 0), -1, "a process of the group still runs");
    cli_free(&r);
}

Test(run, one_check_alone)
{
    cli_result r = cli_run("run --engine sim --quiet --report rep --layout 1 --check local case.json");
    cli_expect_success(&r, "--check local");
    cr_expect_gt(totals(&r).passed, 50);
    char *text = cli_read(cli_file("rep/results.jsonl"));
    cr_expect_eq(cli_count(text, "\"check\":\"local\""), totals(&r).passed);
    free(text);
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --layout 1 --check routing case.json");
    cr_expect_eq(r.code, 2, "nothing was compared: exit code %d", r.code);
    cr_expect_eq(totals(&r).skipped, 0, "a dense model has no routing");
    cli_free(&r);
}

/* --- bad input: exit code 2, one message, and the report folder as it was
 * ------------------------------------- */
static void refuse(const char *what, const char *arguments, const char *const *words)
{
    cr_assert_eq(assay_mkdir_p(cli_file("rep/work")), ASSAY_OK);
    cli_write_text(cli_file("rep/results.jsonl"), "older");
    cli_write_text(cli_file("rep/work/older"), "older");
    cli_result r = cli_run("run --engine sim --report rep %s", arguments);
    cli_expect_refusal(&r, what, words);
    cr_expect_eq(cli_count(r.err, "error: "), 1, "%s: one message\n%s", what, r.err);
    char *kept = cli_read(cli_file("rep/results.jsonl"));
    cr_expect_str_eq(kept, "older", "%s", what);
    free(kept);
    cr_expect(cli_exists(cli_file("rep/work/older")), "%s: scratch was removed", what);
    cli_free(&r);
}

Test(run, an_empty_token_file_is_named)
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

Test(run, cases_that_cannot_be)
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
        {"\"training\": {", "\"checks\": [\"taste\"], \"training\": {", {"unknown check taste", "checks[0]"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change_case(cases[i].from, cases[i].to);
        refuse(cases[i].to, "case.json",
               (const char *const[]){"case.json", cases[i].words[0], cases[i].words[1], NULL});
    }
}

/* Once, before anything starts: no rank of an engine says it. */
Test(run, a_layout_that_no_case_can_be_cut_into_is_refused)
{
    static const struct {
        const char *layout, *words[2];
    } rows[] = {
        {"dp4", {"case tiny, layout dp4: ", "data_parallel_size 4 divides neither the 2 microbatches"}},
        {"tp3", {"case tiny, layout tp3: ", "tp3 does not divide 2 attention heads"}},
        {"pp2", {"case tiny, layout pp2: ", "pp2, but the model has 1 layers"}},
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
    change_case("\"tp2\"]", "\"tp3\"]");
    cli_result r = cli_run("run --engine sim --quiet --report rep case.json");
    cli_expect_refusal(&r, "a case's own", (const char *const[]){"case tiny, layout tp3: ", NULL});
    cli_free(&r);
}

/* Among several cases, those that cannot be cut so are skips with the reason. */
Test(run, a_case_that_cannot_be_cut_is_skipped_with_the_reason)
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
Test(run, what_is_given_twice_is_taken_once_or_refused)
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

Test(run, options_that_cannot_be)
{
    static const struct {
        const char *arguments, *words[3];
    } cases[] = {
        {"--check taste case.json", {"--check: expected one of plan, exact, local", "taste"}},
        {"--precision fp64 case.json", {"--precision: expected fp32 or bf16", "fp64"}},
        {"--shard 0/2 case.json", {"--shard: expected I/N", "0/2"}},
        {"--shard 3/2 case.json", {"--shard: expected I/N", "3/2"}},
        {"--shard 5/9 case.json", {"nothing to run"}},
        {"--jobs 0 case.json", {"--jobs: expected an integer from 1", "found 0"}},
        {"--timeout x case.json", {"--timeout: expected an integer", "found x"}},
        {"--layout tp2,xx case.json", {"unknown word 'xx'"}},
        {"--variant atention=k0 case.json", {"unknown family 'atention'", "did you mean attention?"}},
        {"--variant k10 case.json", {"variant 'k10': expected fastest, kN or FAMILY=kN"}},
        {"--case nobody case.json", {"--case nobody", "no case has this name"}},
        {"--engine ref case.json", {"expected auto, gpu or sim", "ref"}},
        {"--engine-program /nowhere case.json", {"/nowhere", "executable"}},
        {"--engine-program /bin/true case.json", {"/bin/true", "JSON object"}},
        {"--engine-program /bin/false case.json", {"/bin/false", "exit status 1"}},
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
        {"--model " MODELS "llama --batch " MODELS "llama/train_batch.safetensors --train-iters 99",
         {"--train-iters 99", "holds"}},
        {"nowhere.json", {"nowhere.json", "No such file"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].arguments, cases[i].arguments,
               (const char *const[]){cases[i].words[0], cases[i].words[1], NULL});
}

static bool is_failure(const json_t *o)
{
    return strcmp(json_string_value(json_object_get(o, "verdict")), "FAIL") == 0;
}

/* --- a folder of the user's ---------------------------------------------------------------------------------- */
Test(run, a_model_folder_is_judged_on_its_batch)
{
    cli_result r = cli_run(
        "run --engine sim --quiet --report rep --keep --layout tp2 --precision fp32 --variant fastest "
        "--model " MODELS "llama --batch " MODELS "llama/batch.safetensors");
    cli_expect_success(&r, "run --model");
    cr_expect_gt(totals(&r).passed, 200);
    cli_free(&r);
    /* The case's batch file is the user's: the [b,s] one as one step of one microbatch. */
    assay_tensorfile *given, *used;
    const assay_tensor_info *a, *b;
    cr_assert_eq(assay_tensorfile_open(&given, MODELS "llama/batch.safetensors"), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&used, cli_file("rep/work/llama/batch.safetensors")), ASSAY_OK, "%s",
                 assay_error_message());
    a = assay_tensorfile_find(given, "input_ids");
    b = assay_tensorfile_find(used, "input_ids");
    cr_expect(b->ndim == 4 && b->shape[0] == 1 && b->shape[1] == 1 && b->shape[2] == a->shape[0] &&
              b->shape[3] == a->shape[1] && memcmp(a->data, b->data, (size_t)a->count * 8) == 0);
    assay_tensorfile_close(given);
    assay_tensorfile_close(used);
}

/* What is wrong with that folder is found, and the printed command finds it again. */
Test(run, a_fault_in_a_model_folder_is_found_again)
{
    int found = 0;
    char again[1024];
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --layout tp2 --precision fp32 --variant fastest "
                "--train-iters 1 --fault skip_all_reduce --model " MODELS "llama");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cli_free(&r);
    (void)read_results(cli_file("rep/results.jsonl"), is_failure, &found, again);
    cr_expect_gt(found, 0);
    cr_expect(strstr(again, " --model=" MODELS "llama ") != NULL && strstr(again, "--case") == NULL, "%s",
              again);
    r = cli_run("%s --report again", again + strlen("assay "));
    cr_expect_eq(r.code, 1, "%s\n%s%s", again, r.out, r.err);
    cli_free(&r);
}

/* An option that is given wins over the case's, also where its value is the program's default. */
Test(run, an_option_at_its_default_replaces_the_case_s_own)
{
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --keep --layout 1 --adam-beta2 0.999 case.json");
    cli_expect_success(&r, "run");
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep2 --keep --layout 1 case.json");
    cli_expect_success(&r, "run");
    cli_free(&r);
    char *one = cli_read(cli_file("rep/work/tiny/fp32-1/trace/index.json"));
    char *other = cli_read(cli_file("rep2/work/tiny/fp32-1/trace/index.json"));
    cr_expect(strstr(one, "\"adam_beta2\": 0.999") != NULL, "%.600s", one);
    cr_expect(strstr(other, "\"adam_beta2\": 0.5") != NULL, "%.600s", other);
    free(one);
    free(other);
}

/* --- engines that do not do their work ------------------------------------------------------------------------ */
static void fake_engine(const char *name, const char *body)
{
    char text[2000];
    snprintf(text, sizeof text, "#!/bin/sh\nif [ \"$1\" = doctor ]; then %s; fi\nexit 0\n", body);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

Test(run, an_engine_that_writes_nothing_is_no_success)
{
    fake_engine("idle", "echo '{\"simulated\": true}'");
    cli_result r = cli_run("step --engine-program %s --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out result",
                           cli_file("idle"));
    cli_expect_refusal(&r, "nothing", (const char *const[]){"wrote no --out result", NULL});
    cli_free(&r);
    cli_write_text(cli_file("result"), "of yesterday");
    r = cli_run("step --engine-program %s --model " MODELS "llama --batch " MODELS
                "llama/batch.safetensors --out result",
                cli_file("idle"));
    cli_expect_refusal(&r, "old", (const char *const[]){"--out result is what lay there before", NULL});
    cli_free(&r);
    r = cli_run("run --engine-program %s --quiet --layout 1 --report rep case.json", cli_file("idle"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cli_free(&r);
}

/* A machine that has the toolkit and no device: the reason is told once, where the engine is chosen. */
Test(run, an_engine_without_a_device_does_not_shout)
{
    fake_engine("empty", "echo 'assay-gpu: error: no CUDA device answers: none found' >&2; exit 2");
    cli_result r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("empty"));
    cli_expect_refusal(
        &r, "empty",
        (const char *const[]){"no device answers (exit status 2): no CUDA device answers: none found", NULL});
    cr_expect(strstr(r.err, "assay-gpu: error") == NULL, "%s", r.err);
    cli_free(&r);
}

Test(run, an_engine_that_never_answers_is_given_up)
{
    fake_engine("silent", "sleep 1000");
    setenv("ASSAY_DOCTOR_TIMEOUT", "0.5", 1);
    cli_result r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("silent"));
    cli_expect_refusal(&r, "silent", (const char *const[]){"doctor: no answer within 0.5 s", NULL});
    cli_free(&r);
    setenv("ASSAY_DOCTOR_TIMEOUT", "soon", 1);
    r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("silent"));
    cli_expect_refusal(&r, "limit",
                       (const char *const[]){"ASSAY_DOCTOR_TIMEOUT: expected seconds, found soon", NULL});
    cli_free(&r);
    unsetenv("ASSAY_DOCTOR_TIMEOUT");
}

Test(run, a_full_disk_under_the_output_is_no_success)
{
    static const char *const words[] = {"--help", "--version",  "layout tp2",
                                        "doctor", "run --help", "step --version"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char command[CLI_LINE];
        snprintf(command, sizeof command, ASSAY_BIN_DIR "/assay %s > /dev/full 2> /dev/null", words[i]);
        const int status = system(command);
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s: exit code %d", words[i],
                  WEXITSTATUS(status));
    }
}

Test(run, merging_what_is_no_result_is_refused)
{
    cli_write_text(cli_file("bad.jsonl"), "{\"case\": 1}\n");
    cli_result r = cli_run("report merge bad.jsonl --report joined");
    cli_expect_refusal(&r, "bad.jsonl", (const char *const[]){"bad.jsonl", NULL});
    cr_expect_not(cli_exists(cli_file("joined")));
    cli_free(&r);
    r = cli_run("report merge nowhere.jsonl --report joined");
    cli_expect_refusal(&r, "nowhere.jsonl", (const char *const[]){"nowhere.jsonl", "No such file", NULL});
    cli_free(&r);
}
