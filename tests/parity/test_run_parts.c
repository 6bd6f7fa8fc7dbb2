/* A matrix in parts: all parts of one run, each once, join to the whole. */
#include "tests/support/run.h"

#include <sys/stat.h>
#include <unistd.h>

TestSuite(run_parts, .init = run_setup, .fini = cli_teardown, .timeout = 200);

Test(run_parts, shards_join_to_the_whole)
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

/* The reports of the joined parts tell what the parts told: seconds of every task, hosts, commands; and a part that came
 * without. */
Test(run_parts, what_the_parts_told_is_joined)
{
    for (int i = 1; i <= 2; i++) {
        cli_result r = cli_run("run --engine sim --quiet --report part%d --shard %d/2 case.json", i, i);
        cli_expect_success(&r, "shard");
        cli_free(&r);
    }
    cli_result joined = cli_run("report merge part1/results.jsonl part2 --report joined --summary joined.md");
    cli_expect_success(&joined, "merge");
    expect_reports("joined", totals(&joined));
    char *junit = cli_read(cli_file("joined/junit.xml")), *page = cli_read(cli_file("joined.md"));
    cr_expect_eq(cli_count(junit, "<property name=\"seconds\""), cli_count(junit, "<testsuite "));
    cr_expect_eq(cli_count(page, "--shard 1/2"), 1);
    cr_expect_eq(cli_count(page, "--shard 2/2"), 1);
    cr_expect_eq(strncmp(page, "## assay: pass\n", 15), 0, "%s", page);
    free(page);
    free(junit);
    unlink(cli_file("part2/facts.json"));
    cli_result alone = cli_run("report merge part1 part2 --report joined --summary -");
    cli_expect_success(&alone, "merge without the facts of part 2");
    cr_expect_eq(strncmp(alone.out, "## assay: pass\n", 15), 0, "the page alone: %s", alone.out);
    cr_expect_not_null(strstr(alone.out, "| parts without facts.json | part2 |"), "%s", alone.out);
    cr_expect_not_null(strstr(alone.err, "0 failed"), "all else: %s", alone.err);
    cli_free(&joined);
    cli_free(&alone);
}

Test(run_parts, a_failure_in_a_shard_is_a_failure_of_the_whole)
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
    /* Pictures, curves, layouts and times are those of the parts. */
    char *first = cli_read(cli_file("a/results.jsonl")), *second = cli_read(cli_file("b/results.jsonl")),
         *joined = cli_read(cli_file("joined/results.jsonl")),
         *page = cli_read(cli_file("joined/index.html"));
    cr_expect_gt(cli_count(joined, "\"picture\":{"), 0);
    cr_expect_eq(cli_count(joined, "\"picture\":{"),
                 cli_count(first, "\"picture\":{") + cli_count(second, "\"picture\":{"));
    cr_expect_eq(cli_count(joined, "\"curve\":{"),
                 cli_count(first, "\"curve\":{") + cli_count(second, "\"curve\":{"));
    cr_expect_eq(cli_count(page, "<figcaption>In this comparison "), cli_count(joined, "\"picture\":{"));
    cr_expect_eq(cli_count(page, "<figcaption>tiny fp32, loss, 1 run:"), 1);
    cr_expect_gt(cli_count(page, "data-parameters="), 0);
    cr_expect_eq(cli_count(page, "engine, traced run<td>"), 1);
    free(first);
    free(second);
    free(joined);
    free(page);
    cli_free(&a);
    cli_free(&b);
    cli_free(&r);
}

Test(run_parts, only_all_parts_of_one_run_are_joined)
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

/* What --shard makes can be joined: no more parts than that, and all of them. */
Test(run_parts, as_many_parts_as_can_be_joined)
{
    char paths[256 * 8] = "";
    cli_result r = cli_run("run --engine sim --report p --shard 1/257 case.json");
    cli_expect_refusal(
        &r, "too many",
        (const char *const[]){"--shard: expected I/N with 1 <= I <= N <= 256, found 1/257", NULL});
    cr_expect_not(cli_exists(cli_file("p")));
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report p1 --layout 1 --check plan --shard 1/256 case.json");
    cli_expect_success(&r, "the most");
    cli_free(&r);
    r = cli_run("report merge p1 --report joined");
    cli_expect_refusal(&r, "one of 256",
                       (const char *const[]){"missing 2/256 ", " 13/256 and 243 more", NULL});
    cli_free(&r);
    for (int i = 2; i <= 256; i++)
        snprintf(paths + strlen(paths), 8, " q%d", i);
    r = cli_run("report merge p1%s --report joined", paths);
    cli_expect_refusal(&r, "256 arguments", (const char *const[]){"q2", "cannot open", NULL});
    cli_free(&r);
}

/* More parts than tasks: one without a task is green and joins. */
Test(run_parts, a_part_without_a_task_is_empty)
{
    for (int i = 1; i <= 3; i++) {
        cli_result r = cli_run("run --engine sim --quiet --report e%d --layout 1 --layout tp2 --shard %d/3 "
                               "--check plan case.json",
                               i, i);
        cli_expect_success(&r, "shard");
        cr_expect_eq(strstr(r.out, "part 3 of 3: none of the 2 tasks of the matrix: an empty part") != NULL,
                     i == 3, "%s", r.out);
        cr_expect_eq(totals(&r).passed > 0, i < 3);
        cli_free(&r);
    }
    cli_result r = cli_run("report merge e1 e2 e3 --report joined");
    cli_expect_success(&r, "with the empty part");
    cli_free(&r);
    r = cli_run("report merge e1 e2 --report joined");
    cli_expect_refusal(&r, "without it", (const char *const[]){"missing 3/3", NULL});
    cli_free(&r);
    r = cli_run("run --engine sim --report e4 --precision bf16 --shard 1/3 case.json");
    cli_expect_refusal(&r, "no task at all", (const char *const[]){"case tiny has no such precision", NULL});
    cli_free(&r);
}

/* Under its name, through a link, by its file. */
Test(run_parts, a_part_is_no_target)
{
    static const char *const rows[] = {"p1 p2 --report p1",
                                       "p1 p2 --report p2",
                                       "p1 p2 --report link",
                                       "p1/results.jsonl p2 --report p1",
                                       "p1 p2/results.jsonl --report ./p2",
                                       "p1 p2 --report joined --summary p2/results.jsonl"};
    char *before[2];
    for (int i = 1; i <= 2; i++) {
        char path[64];
        cli_result r =
            cli_run("run --engine sim --quiet --report p%d --check plan --shard %d/2 case.json", i, i);
        cli_expect_success(&r, "shard");
        cli_free(&r);
        snprintf(path, sizeof path, "p%d/results.jsonl", i);
        before[i - 1] = cli_read(cli_file(path));
    }
    cr_assert_eq(symlink("p1", cli_file("link")), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("report merge %s", rows[i]);
        cli_expect_refusal(&r, rows[i], (const char *const[]){"which would be written over", NULL});
        cli_free(&r);
    }
    char *a = cli_read(cli_file("p1/results.jsonl")), *b = cli_read(cli_file("p2/results.jsonl"));
    cr_expect(strcmp(a, before[0]) == 0 && strcmp(b, before[1]) == 0, "the parts are as they were");
    free(a), free(b), free(before[0]), free(before[1]);
}

/* Parts are of one run when they read the same bytes: one changed weight of a model folder is another run. */
Test(run_parts, parts_of_other_weights_are_not_joined)
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

/* Another build is another program, whatever version it says: what the first part has shown of one engine, or by one judge, is not
 * said of the other. */
Test(run_parts, parts_of_another_build_are_not_joined)
{
    static const char member[] = "\"judge_sources\":\"";
    char *program = NULL;
    uint64_t n = 0;
    cr_assert_eq(assay_read_file(ASSAY_BIN_DIR "/assay-sim", 1 << 30, &program, &n), ASSAY_OK);
    cli_write(cli_file("assay-sim"), program, n + 1); /* and the zero behind the file */
    cr_assert_eq(chmod(cli_file("assay-sim"), 0700), 0);
    free(program);
    for (int part = 1; part <= 3; part++) {
        cli_result r =
            cli_run("run --engine-program %s/assay-sim --quiet --report b%d --layout 1 --layout tp2 --check "
                    "plan --shard %d/2 case.json",
                    part == 3 ? "." : ASSAY_BIN_DIR, part, part == 1 ? 1 : 2);
        cli_expect_success(&r, "shard");
        cli_free(&r);
    }
    char *judged = cli_read(cli_file("b2/results.jsonl")), *at = strstr(judged, member);
    cr_assert_not_null(at, "%s", judged);
    at += sizeof member - 1;
    *at = *at == '0' ? '1' : '0';
    cli_write_text(cli_file("judged.jsonl"), judged);
    free(judged);
    cli_result r = cli_run("report merge b1 b3 --report joined");
    cli_expect_refusal(
        &r, "another engine",
        (const char *const[]){"b3: results of the engine program of SHA-256 ", "those of b1 are of ", NULL});
    cli_free(&r);
    r = cli_run("report merge b1 judged.jsonl --report joined");
    cli_expect_refusal(&r, "another judge",
                       (const char *const[]){"judged.jsonl: judged by an assay whose sources have SHA-256 ",
                                             "b1 by one of ", NULL});
    cli_free(&r);
    cr_expect_not(cli_exists(cli_file("joined")));
    r = cli_run("report merge b1 b2 --report joined --summary joined.md");
    cli_expect_success(&r, "the same builds");
    cli_free(&r);
    char *page = cli_read(cli_file("joined.md"));
    cr_expect_eq(cli_count(page, "| program, SHA-256 |"), 1, "%s", page);
    cr_expect_eq(cli_count(page, "| sources of the judge, SHA-256 |"), 1, "%s", page);
    free(page);
}

Test(run_parts, merging_what_is_no_result_is_refused)
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
