/* Laws of the self-test: every way to change a trace changes what it says and nothing else; the mutants that
 * come with assay can be read; a run of the command finds a planted fault and exits 0, and exits 1 when a
 * fault is not where the mutant says. */
#include "tests/support/parity.h"

#include "parity/run/cases.h"
#include "parity/run/mutant.h"

/* Two ranks: a cast in two row pieces, a replicated add, a choice of experts. */
static void write_source(const char *dir)
{
    for (int rank = 0; rank < 2; rank++) {
        float x[8], sum[8];
        const int64_t shape[2] = {2, 2};
        const int64_t choice[4] = {0, 2, 1, 3};
        for (int i = 0; i < 8; i++) {
            x[i] = (float)(i + 1);
            sum[i] = 2 * x[i];
        }
        assay_trace_writer *w = open_writer(dir, rank, 2, "tp2");
        assay_trace_op o = op_of("cast", "piece", ASSAY_PHASE_FORWARD);
        op_out(&o, "y", put_rows_f32(w, "piece.y", 4, 2, 2 * rank, 2, x + 4 * rank));
        must(assay_trace_write_op(w, &o));
        o = op_of("add", "copy", ASSAY_PHASE_FORWARD);
        op_in(&o, "a", put_f32(w, "x", ASSAY_PHASE_FORWARD, 4, 2, x));
        op_in(&o, "b", put_f32(w, "x", ASSAY_PHASE_FORWARD, 4, 2, x));
        op_out(&o, "y", put_f32(w, "copy.y", ASSAY_PHASE_FORWARD, 4, 2, sum));
        must(assay_trace_write_op(w, &o));
        o = op_of("router_fwd", "choice", ASSAY_PHASE_FORWARD);
        assay_trace_tensor t = tensor_of("choice.indices", ASSAY_PHASE_FORWARD, ASSAY_I64, 2, shape);
        must(assay_trace_write_tensor(w, &t, choice));
        op_out(&o, "indices", t.id);
        must(assay_trace_write_op(w, &o));
        close_writer(w);
    }
}

static assay_trace *mutate(const char *kind, const char *op, const char *instance, const char *slot, int rank,
                           char dir[256])
{
    char from[256];
    parity_mutation m = {.rank = rank, .step = -1, .microbatch = -1};
    snprintf(m.kind, sizeof m.kind, "%s", kind);
    snprintf(m.op, sizeof m.op, "%s", op);
    snprintf(m.instance, sizeof m.instance, "%s", instance);
    snprintf(m.slot, sizeof m.slot, "%s", slot);
    write_source(fresh_path(from, "from"));
    assay_trace *source = open_trace(from);
    must(parity_trace_mutate(source, fresh_path(dir, "to"), &m));
    assay_trace_close(source);
    remove_path(from);
    return open_trace(dir);
}

/* The failing assemble result of the mutated trace. */
static void expect_assemble(const char *kind, const char *op, const char *instance, int rank,
                            const char *tensor, const char *word)
{
    char dir[256];
    assay_trace *t = mutate(kind, op, instance, "y", rank, dir);
    parity_report *r = new_report();
    must(parity_check_assemble(t, r));
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f, "%s", kind);
    cr_assert_eq(n_failed(r), 1);
    cr_assert_str_eq(f->tensor, tensor);
    cr_assert(strstr(f->message, word), "%s: %s", kind, f->message);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_selftest, pieces_can_go_missing_overlap_and_differ)
{
    expect_assemble("missing", "cast", "piece", 1, "piece.y", "missing shard");
    expect_assemble("overlap", "cast", "piece", 1, "piece.y", "overlap");
    expect_assemble("value", "add", "copy", 1, "copy.y", "replicas differ");
    expect_assemble("nan", "add", "copy", 0, "copy.y", "replicas differ");
}

static void expect_local(const char *kind, bool fails, const char *diagnosis)
{
    char dir[256];
    assay_trace *t = mutate(kind, "add", "copy", "y", 0, dir);
    parity_report *r = new_report();
    must(parity_check_local(t, r));
    const parity_claim *f = NULL;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        if (strcmp(x->op, "add") == 0 && strcmp(x->tensor, "y") == 0)
            f = x;
    }
    cr_assert_not_null(f);
    cr_assert_eq(f->verdict == PARITY_FAIL, fails, "%s: %s", kind, f->message);
    cr_assert(strstr(f->diagnosis, diagnosis), "%s: %s", kind, f->diagnosis);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_selftest, values_change_as_the_word_says)
{
    expect_local("element", true, "only the element [2, 0] is wrong");
    expect_local("swap_rows", true, "permuted");
    expect_local("sign", true, "sign");
    expect_local("double", true, "2 times the expected one = tp");
    expect_local("poison", true, "never written");
    expect_local("nan", true, "NaN");
}

Test(parity_selftest, operations_vanish_repeat_and_lie)
{
    char dir[256];
    const int64_t wanted[3] = {2, 4, 3};
    const char *const word[3] = {"drop_op", "repeat_op", "arithmetic"};
    for (int i = 0; i < 3; i++) {
        assay_trace *t = mutate(word[i], "add", "copy", "", 0, dir);
        cr_assert_eq(assay_trace_n_ops(t, 0), wanted[i], "%s", word[i]);
        cr_assert_eq(assay_trace_n_ops(t, 1), 3);
        if (i == 2)
            cr_assert_eq(assay_trace_op_at(t, 0, 1)->arith.all.accumulate, ASSAY_F64);
        assay_trace_close(t);
        remove_path(dir);
    }
    assay_trace *t = mutate("expert", "router_fwd", "choice", "indices", 0, dir);
    const assay_trace_tensor *x = assay_trace_op_tensor(t, assay_trace_op_at(t, 0, 2), "indices");
    int64_t choice[4];
    memcpy(choice, x->data, sizeof choice);
    const int64_t changed[4] = {0, 1, 1, 3};
    cr_assert_arr_eq(choice, changed, sizeof changed);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_selftest, a_fault_that_cannot_be_planted_is_an_error)
{
    char from[256], to[256];
    write_source(fresh_path(from, "from"));
    assay_trace *t = open_trace(from);
    parity_mutation m = {.kind = "value", .op = "add", .instance = "nowhere", .slot = "y"};
    cr_assert_eq(parity_trace_mutate(t, fresh_path(to, "a"), &m), ASSAY_NOT_FOUND);
    remove_path(to);
    snprintf(m.kind, sizeof m.kind, "melt");
    cr_assert_eq(parity_trace_mutate(t, fresh_path(to, "b"), &m), ASSAY_INVALID_ARGUMENT);
    remove_path(to);
    assay_trace_close(t);
    remove_path(from);
}

Test(parity_selftest, the_mutants_that_come_with_assay_cover_every_check)
{
    char **paths;
    int n;
    bool check[PARITY_CHECK_COUNT] = {false};
    must(parity_cases_list(ASSAY_SOURCE_DIR "/parity/mutants", &paths, &n));
    cr_assert_geq(n, 12);
    for (int i = 0; i < n; i++) {
        parity_mutant m;
        must(parity_mutant_load(paths[i], &m));
        check[m.expected_check] = true;
        cr_assert(strstr(paths[i], m.name), "%s is called %s", paths[i], m.name);
        free(paths[i]);
    }
    free(paths);
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        cr_assert(check[k], "no planted fault for the check %s", parity_check_name((parity_check)k));
}

static int selftest(const char *mutants, const char *only)
{
    char text[9][512] = {"selftest",
                         "--engine-program",
                         ASSAY_BIN_DIR "/assay-sim",
                         "--case-file",
                         ASSAY_SOURCE_DIR "/parity/cases/qwen3_moe.json",
                         "--mutants",
                         "",
                         "--only",
                         ""};
    char *argv[10] = {NULL};
    snprintf(text[6], sizeof text[6], "%s", mutants);
    snprintf(text[8], sizeof text[8], "%s", only ? only : "");
    const int argc = only ? 9 : 7;
    for (int i = 0; i < argc; i++)
        argv[i] = text[i];
    return parity_main_selftest(argc, argv);
}

Test(parity_selftest, a_planted_engine_fault_is_caught)
{
    cr_assert_eq(selftest(ASSAY_SOURCE_DIR "/parity/mutants", "engine_flipped_sign"), 0);
}

Test(parity_selftest, a_fault_that_is_elsewhere_fails_and_a_broken_mutant_is_refused)
{
    char dir[256], path[300];
    must(assay_mkdir_p(fresh_path(dir, "mutants")));
    snprintf(path, sizeof path, "%s/a.json", dir);
    const char *wrong =
        "{\"name\":\"a\",\"kind\":\"engine\",\"layout\":\"1\",\"expected_check\":\"local\","
        "\"expected_instance\":\"decoder.layers.1\",\"fault\":\"flipped_sign\",\"planted\":\"x\"}";
    must(assay_write_file(path, wrong, strlen(wrong)));
    cr_assert_eq(selftest(dir, NULL), 1);
    const char *broken = "{\"name\":\"a\",\"kind\":\"trace\",\"fault\":\"melt\"}";
    must(assay_write_file(path, broken, strlen(broken)));
    cr_assert_eq(selftest(dir, NULL), 2);
    remove_path(dir);
}
