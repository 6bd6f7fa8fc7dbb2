/* `assay run` on a tiny case in the test's folder, and what its reports say. */
#ifndef TESTS_RUN_SUPPORT_H
#define TESTS_RUN_SUPPORT_H

#include "tests/support/cli.h"
#include <jansson.h>

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

static inline void run_setup(void)
{
    cli_setup();
    cli_write_text(cli_file("case.json"), case_text);
    cli_write_text(cli_file("text.md"), data_text);
}

typedef struct counts {
    long long passed, failed, skipped;
} counts;

/* The last line of stdout: "N passed, N failed, N skipped". */
static inline counts totals(const cli_result *r)
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
static inline counts read_results(const char *path, result_filter wanted, int *found, char again[1024])
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

static inline void expect_equal_counts(counts a, counts b, const char *what)
{
    cr_expect(a.passed == b.passed && a.failed == b.failed && a.skipped == b.skipped,
              "%s: %lld %lld %lld and %lld %lld %lld", what, a.passed, a.failed, a.skipped, b.passed,
              b.failed, b.skipped);
}

/* junit.xml and index.html tell the same counts: the claims of junit.xml stand in the properties of its suites, and its test
 * cases are as many as it says. */
static inline void expect_reports(const char *dir, counts c)
{
    char path[CLI_PATH], expected[200];
    counts claims = {0};
    snprintf(path, sizeof path, "%s/junit.xml", dir);
    char *text = cli_read(cli_file(path));
    snprintf(expected, sizeof expected,
             "<testsuites name=\"assay\" tests=\"%d\" failures=\"%d\" errors=\"%d\"",
             cli_count(text, "<testcase "), cli_count(text, "<failure "), cli_count(text, "<error "));
    cr_expect(strstr(text, expected) != NULL, "%s: expected %s", path, expected);
    for (const char *at = text; (at = strstr(at, "name=\"claims\" value=\"")) != NULL; at++) {
        long long n[3] = {0};
        cr_expect_eq(
            sscanf(at, "name=\"claims\" value=\"%lld passed, %lld failed, %lld skipped", &n[0], &n[1], &n[2]),
            3);
        claims.passed += n[0], claims.failed += n[1], claims.skipped += n[2];
    }
    expect_equal_counts(claims, c, path);
    cr_expect((cli_count(text, "<failure ") > 0) == (c.failed > 0));
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

#endif
