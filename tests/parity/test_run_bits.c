/* `assay run`, equality of bits: the run with every change at once, and which change is named when its bits differ. */
#include "tests/support/run.h"
#include <sys/stat.h>

TestSuite(run_bits, .init = run_setup, .fini = cli_teardown, .timeout = 200);

/* The simulator with a mistake in every run without a trace whose command line has all of these words. */
static void engine_that_errs_where(const char *name, const char *words)
{
    char text[2000], word[64];
    int n = snprintf(text, sizeof text,
                     "#!/bin/sh\n[ \"$1\" = step ] || exec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n"
                     "case \"$*\" in *--trace=*) exec " ASSAY_BIN_DIR "/assay-sim \"$@\";; esac\n");
    for (int at = 0, used = 0; sscanf(words + at, "%63s%n", word, &used) == 1; at += used)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "case \"$*\" in *%s*) ;; *) exec " ASSAY_BIN_DIR "/assay-sim \"$@\";; esac\n", word);
    snprintf(text + n, sizeof text - (size_t)n,
             "exec " ASSAY_BIN_DIR
             "/assay-sim \"$@\" --fault=scale:decoder.layers.0.input_layernorm:y=1.25\n");
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

typedef struct seen {
    int repeat, overlap, recompute, fusion, graph, together; /* failed claims under each name */
    int tp;                                                  /* of overlap, as are those of `overlap` */
    int all_passed;                                          /* passed claims of the run with every change */
    int shown; /* failed claims with their first elements beside */
} seen;

static seen read_seen(const char *path)
{
    seen s = {0};
    char *text = cli_read(path);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, 0, NULL);
        const char *op = json_string_value(json_object_get(o, "operation"));
        const char *check = json_string_value(json_object_get(o, "check"));
        const char *verdict = json_string_value(json_object_get(o, "verdict"));
        if (op != NULL && check != NULL && verdict != NULL && strcmp(check, "bitwise") == 0) {
            const bool fails = strcmp(verdict, "FAIL") == 0;
            s.shown += fails && json_object_get(o, "excerpt") != NULL;
            s.repeat += fails && strcmp(op, "repeat") == 0;
            s.overlap += fails && strcmp(op, "overlap_grad_reduce") == 0;
            s.tp += fails && strcmp(op, "tp_comm_overlap") == 0;
            s.recompute += fails && strcmp(op, "recompute") == 0;
            s.fusion += fails && strcmp(op, "fusion") == 0;
            s.graph += fails && strcmp(op, "graph") == 0;
            s.together += fails && strncmp(op, "repeat+", 7) == 0;
            s.all_passed += !fails && (strcmp(op, "repeat+overlap+recompute+fusion") == 0 ||
                                       strcmp(op, "repeat+recompute+fusion+graph") == 0);
        }
        json_decref(o);
    }
    free(text);
    return s;
}

static seen run_in(const char *layout, const char *engine, int code)
{
    cli_result r = cli_run("run --engine-program %s --quiet --report %s.rep --layout %s --check bitwise "
                           "case.json",
                           cli_file(engine), engine, layout);
    char path[128];
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", engine, r.code, r.out, r.err);
    cli_free(&r);
    snprintf(path, sizeof path, "%s.rep/results.jsonl", engine);
    return read_seen(cli_file(path));
}

static seen run_with(const char *engine, int code)
{
    return run_in("dp2", engine, code);
}

Test(run_bits, one_run_holds_every_change)
{
    engine_that_errs_where("honest", "--no-such-word");
    const seen s = run_with("honest", 0);
    cr_expect_gt(s.all_passed, 5);
    cr_expect_eq(s.repeat + s.overlap + s.recompute + s.fusion + s.together, 0);
}

Test(run_bits, the_change_that_differs_is_named)
{
    engine_that_errs_where("recomputes", "--recompute-granularity=full");
    seen s = run_with("recomputes", 1);
    cr_expect_gt(s.recompute, 0);
    cr_expect_gt(s.shown, 0);
    cr_expect_eq(s.repeat + s.overlap + s.fusion + s.together + s.all_passed, 0);
    engine_that_errs_where("overlaps", "--overlap-grad-reduce");
    s = run_with("overlaps", 1);
    cr_expect_gt(s.overlap, 0);
    cr_expect_eq(s.tp + s.repeat + s.recompute + s.fusion + s.together + s.all_passed, 0);
    engine_that_errs_where("splits", "--tp-comm-overlap");
    s = run_in("tp2,dp2", "splits", 1);
    cr_expect_gt(s.tp, 0);
    cr_expect_eq(s.overlap + s.repeat + s.recompute + s.fusion + s.together + s.all_passed, 0);
    engine_that_errs_where("fuses", "residual_norm=k0");
    s = run_with("fuses", 1);
    cr_expect_gt(s.fusion, 0);
    cr_expect_eq(s.repeat + s.overlap + s.recompute + s.together + s.all_passed, 0);
}

Test(run_bits, graphs_are_turned_where_nothing_is_between_their_launches)
{
    engine_that_errs_where("plain", "--no-such-word");
    seen s = run_in("1", "plain", 0);
    cr_expect_gt(s.all_passed, 5);
    engine_that_errs_where("captures", "--enable-cuda-graph");
    s = run_in("1", "captures", 1);
    cr_expect_gt(s.graph, 0);
    cr_expect_eq(s.repeat + s.recompute + s.together + s.all_passed, 0);
}

Test(run_bits, a_second_run_that_differs_is_named)
{
    engine_that_errs_where("again", "step");
    const seen s = run_with("again", 1);
    cr_expect_gt(s.repeat, 0);
    cr_expect_eq(s.together + s.all_passed, 0);
}

/* Neither change alone differs: what was found stays said. */
Test(run_bits, changes_that_differ_only_together_are_named_together)
{
    engine_that_errs_where("both", "--overlap-grad-reduce --recompute-granularity=full");
    const seen s = run_with("both", 1);
    cr_expect_gt(s.together, 0);
    cr_expect_eq(s.repeat + s.overlap + s.recompute + s.fusion, 0);
}

/* The simulator behind these lines of a shell script. */
static void engine_behind(const char *name, const char *lines)
{
    char text[1000];
    snprintf(text, sizeof text, "#!/bin/sh\n%sexec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n", lines);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

/* The right bits are no sign of it: without the option they are those of any run. */
/* With communication beside compute the only forward of a step waits for parameters, its only backward sends gradients: no pass is left
 * for a graph, and none is asked for. */
Test(run_bits, no_graph_is_asked_for_where_every_pass_waits)
{
    static const struct {
        const char *layout, *claim;
    } rows[] = {{"dp2,zero1", "repeat+overlap+recompute+fusion\""},
                {"dp2", "repeat+overlap+recompute+fusion+graph\""},
                {"1", "repeat+recompute+fusion+graph\""}};
    char *text = strdup(case_text), *steps = strstr(text, "\"steps\": 2");
    steps[strlen("\"steps\": ")] = '3';
    cli_write_text(cli_file("case.json"), text);
    free(text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("run --engine sim --quiet --report rep --layout %s --check bitwise case.json",
                               rows[i].layout);
        cli_expect_success(&r, rows[i].layout);
        cli_free(&r);
        char *results = cli_read(cli_file("rep/results.jsonl"));
        cr_expect(strstr(results, rows[i].claim) != NULL, "%s: no claim %s", rows[i].layout, rows[i].claim);
        free(results);
    }
}

Test(run_bits, graphs_that_were_not_launched_again_are_no_graphs)
{
    engine_behind("unwilling", "for word; do shift; [ \"$word\" = --enable-cuda-graph=true ] || "
                               "set -- \"$@\" \"$word\"; done\n");
    const seen s = run_in("1", "unwilling", 1);
    cr_expect_gt(s.graph, 0);
    cr_expect_eq(s.repeat + s.recompute + s.fusion + s.together, 0);
    cr_expect_eq(s.all_passed, 0);
}

Test(run_bits, a_fused_family_that_the_engine_does_not_list_is_missed)
{
    engine_behind("renamed", "[ \"$1\" != doctor ] || { " ASSAY_BIN_DIR
                             "/assay-sim \"$@\" | sed s/residual_norm/normed_residual/; exit; }\n");
    const seen s = run_in("1", "renamed", 1);
    cr_expect_eq(s.fusion, 1);
    cr_expect_eq(s.repeat + s.recompute + s.graph + s.together, 0);
}
