/* Laws of answers by every rung: each record of each rung is judged under its own name, and none is left out. */
#include "parity/run/engine.h"
#include "tests/support/exact.h"

enum { MOST = 64, RUNGS = 10 };

/* A request of the records of two operations out of all. */
static void write_request(char dir[256], const char *act)
{
    char all[256];
    int n = 0;
    must(parity_exact_request(fresh_path(all, "all"), 1, act));
    assay_trace *t = open_trace(all);
    assay_trace_writer *w = open_writer(fresh_path(dir, "request"), 0, 1, NULL);
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0) && n < MOST; i++) {
        assay_trace_op op = *assay_trace_op_at(t, 0, i);
        if (strcmp(op.op, "rmsnorm_fwd") != 0 && strcmp(op.op, "linear_fwd") != 0)
            continue;
        for (int k = 0; k < op.n_inputs; k++) {
            assay_trace_tensor in = *assay_trace_op_tensor(t, &op, op.inputs[k].slot);
            must(assay_trace_write_tensor(w, &in, in.data));
            op.inputs[k].tensor = in.id;
        }
        must(assay_trace_write_op(w, &op));
        n++;
    }
    cr_assert_gt(n, 8);
    close_writer(w);
    assay_trace_close(t);
    remove_path(all);
}

/* word: what it runs with, "--every-rung" or a variant; NULL: the fastest kernels. */
static assay_trace *run_engine(const char *request, const char *word, char out[256])
{
    parity_engine engine;
    char in[300], to[300], log[300];
    assay_train_options o;
    assay_train_options_default(&o);
    must(parity_engine_find("sim", "", &engine));
    snprintf(in, sizeof in, "--request=%s", request);
    snprintf(to, sizeof to, "--out=%s", fresh_path(out, "answer"));
    snprintf(log, sizeof log, "%s.log", out);
    const bool flag = word != NULL && word[0] == '-';
    if (word != NULL && !flag)
        snprintf(o.variant, sizeof o.variant, "%s", word);
    snprintf(o.layout, sizeof o.layout, "1");
    const char *const extra[] = {in, to, flag ? word : NULL, NULL};
    must(parity_engine_run(&engine, "ops", &o, extra, log, true, 120.0, NULL));
    parity_engine_free(&engine);
    return open_trace(out);
}

static const assay_trace_op *record_of(const assay_trace *t, const char *instance, int variant)
{
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        if (strcmp(op->instance, instance) == 0 && op->variant == variant)
            return op;
    }
    return NULL;
}

/* What the runs of one rung each leave, with its bits, is in the one of every rung, and nothing else. */
Test(parity_exact_rungs, every_rung_is_what_runs_of_one_rung_each_are)
{
    static const char *const words[] = {NULL, "k0", "k1", "k2", "k3"};
    char request[256], out[256], other[256];
    bool seen[MOST * RUNGS] = {false};
    int64_t found = 0;
    write_request(request, "BF16");
    assay_trace *every = run_engine(request, "--every-rung", out);
    cr_assert_lt(assay_trace_n_ops(every, 0), MOST * RUNGS);
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        assay_trace *one = run_engine(request, words[k], other);
        for (int64_t i = 0; i < assay_trace_n_ops(one, 0); i++) {
            const assay_trace_op *a = assay_trace_op_at(one, 0, i),
                                 *b = record_of(every, a->instance, a->variant);
            cr_assert_not_null(b, "%s k%d", a->instance, a->variant);
            const char *slot = a->outputs[0].slot;
            cr_expect(assay_trace_same_content(assay_trace_op_tensor(one, a, slot),
                                               assay_trace_op_tensor(every, b, slot)),
                      "%s k%d", a->instance, a->variant);
            found += !seen[b->sequence];
            seen[b->sequence] = true;
        }
        assay_trace_close(one);
        remove_path(other);
    }
    cr_expect_eq(found, assay_trace_n_ops(every, 0));
    cr_expect_not_null(record_of(every, assay_trace_op_at(every, 0, 0)->instance, 0));
    assay_trace_close(every);
    remove_path(out);
    remove_path(request);
}

/* The reference's answer as k2, k1 and k0; in record `at` one element of k`changed` differs, and k0 is k`last` (0: there, -1: missing). */
static parity_report *judge_three(const char *request, int64_t at, int changed, int last,
                                  char name[ASSAY_NAME])
{
    char dir[256];
    assay_trace *t = open_trace(request);
    assay_trace_writer *w = NULL;
    json_t *header = json_pack("{s:b}", "every_rung", 1);
    must(assay_trace_writer_open(&w, fresh_path(dir, "answer"), 0, 1, header, false));
    json_decref(header);
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++)
        for (int k = 2; k >= 0; k--) {
            const int variant = k == 0 && i == at ? last : k;
            if (variant >= 0)
                answer_as(w, t, assay_trace_op_at(t, 0, i), variant, i == at && k == changed);
        }
    memcpy(name, assay_trace_op_at(t, 0, at)->instance, ASSAY_NAME);
    close_writer(w);
    assay_trace_close(t);
    parity_report *r = new_report();
    cr_expect_eq(parity_check_exact(request, dir, false, r), ASSAY_MISMATCH,
                 "answers of one rung were asked for");
    assay_error_clear();
    must(parity_check_exact(request, dir, true, r));
    remove_path(dir);
    return r;
}

Test(parity_exact_rungs, a_fault_of_one_rung_fails_under_its_name_alone)
{
    char request[256], name[ASSAY_NAME], wanted[ASSAY_NAME + 8];
    write_request(request, "F32");
    for (int changed = 0; changed < 3; changed++) {
        parity_report *r = judge_three(request, 0, changed, 0, name);
        snprintf(wanted, sizeof wanted, "%s k%d", name, changed);
        cr_expect_eq(n_failed(r), 1);
        for (int64_t i = 0; i < parity_report_count(r); i++) {
            const parity_claim *x = parity_report_at(r, i);
            const char *rung = strchr(x->instance, ' ');
            cr_assert(rung != NULL && rung[1] == 'k', "%s", x->instance);
            if (x->verdict == PARITY_FAIL)
                cr_expect_str_eq(x->instance, wanted);
            else
                cr_expect_null(strpbrk(rung + 2, "."), "%s", x->instance);
        }
        parity_report_destroy(r);
    }
    remove_path(request);
}

/* Of record 1 with k`last` in place of k0: `failures`, one of which says `words`. */
static void expect_said(int last, int64_t failures, const char *words)
{
    char request[256], name[ASSAY_NAME];
    bool said = false;
    write_request(request, "F32");
    parity_report *r = judge_three(request, 1, -1, last, name);
    cr_expect_eq(n_failed(r), failures, "%s", words);
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        said = said || (x->verdict == PARITY_FAIL && strstr(x->message, words) != NULL);
    }
    cr_expect(said, "%s", words);
    parity_report_destroy(r);
    remove_path(request);
}

Test(parity_exact_rungs, an_answer_without_k0_has_left_a_rung_out)
{
    expect_said(-1, 1, "with k0, which takes every call");
}

/* Nothing is passed over: a rung that is no rung is not looked for, and of two answers of one rung one would hide the other. */
Test(parity_exact_rungs, every_record_of_an_answer_is_judged)
{
    expect_said(12, 2, "with k12: expected k0 to k9");
    expect_said(2, 2, "with k2 twice");
}
