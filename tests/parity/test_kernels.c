/* Laws of kernels that were asked for: a selection is what ran, every kernel of the engine answers, and what nothing could answer is
 * no row of the matrix. */
#include "parity/parity.h"
#include "tests/support/parity.h"

/* attention_fwd: k0, k1, k2 for BF16, k3 for BF16 on 9.0; linear_fwd: k0, k1; add_rmsnorm_fwd: k0, k1. */
static parity_ladder ladder_of(int capability)
{
    const char *text =
        "[{'op':'attention_fwd','family':'attention','variants':[{'name':'k0','least_capability':80},"
        "{'name':'k1','least_capability':80},{'name':'k2','least_capability':80,'act':'BF16'},"
        "{'name':'k3','least_capability':90,'most_capability':90,'act':'BF16'}]},"
        "{'op':'linear_fwd','family':'linear','variants':[{'name':'k0','least_capability':80},"
        "{'name':'k1','least_capability':80}]},"
        "{'op':'add_rmsnorm_fwd','family':'residual_norm','variants':[{'name':'k0','least_capability':80},"
        "{'name':'k1','least_capability':80}]}]";
    char json[1200];
    snprintf(json, sizeof json, "%s", text);
    for (char *at = json; *at != '\0'; at++)
        *at = *at == '\'' ? '"' : *at;
    return (parity_ladder){json_loads(json, 0, NULL), capability};
}

Test(kernels, a_ladder_says_which_dtype_and_device_a_kernel_takes)
{
    static const struct {
        const char *op, *act;
        int variant, capability;
        bool takes;
    } rows[] = {{"attention_fwd", "BF16", 3, 90, true},   {"attention_fwd", "F32", 3, 90, false},
                {"attention_fwd", "BF16", 3, 100, false}, {"attention_fwd", "BF16", 3, 80, false},
                {"attention_fwd", "BF16", 2, 100, true},  {"attention_fwd", "F32", 2, 100, false},
                {"attention_fwd", "F32", 1, 80, true},    {"linear_fwd", "F32", 2, 90, false},
                {"no_operation", "F32", 0, 90, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_ladder l = ladder_of(rows[i].capability);
        cr_expect_eq(parity_ladder_takes(&l, rows[i].op, rows[i].variant, rows[i].act), rows[i].takes,
                     "row %zu", i);
        json_decref(l.operations);
    }
}

Test(kernels, a_selection_that_nothing_could_answer_is_known)
{
    static const struct {
        const char *selection, *act, *missing;
    } rows[] = {{"fastest", "F32", NULL},
                {"k3", "F32", NULL},
                {"attention=k3", "BF16", NULL},
                {"attention=k3", "F32", "attention=k3"},
                {"linear=k1,attention=k2", "F32", "attention=k2"},
                {"k1,attention=k0", "F32", NULL},
                {"linear=k2", "BF16", "linear=k2"}};
    char missing[PARITY_LADDER_WORD];
    parity_ladder l = ladder_of(90), silent = {NULL, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool answers = parity_ladder_answers(&l, rows[i].selection, rows[i].act, missing);
        cr_expect_eq(answers, rows[i].missing == NULL, "%s %s", rows[i].selection, rows[i].act);
        if (rows[i].missing != NULL && !answers)
            cr_expect_str_eq(missing, rows[i].missing);
        cr_expect(parity_ladder_answers(&silent, rows[i].selection, rows[i].act, missing));
    }
    json_decref(l.operations);
}

typedef struct record {
    const char *op, *fused;
    int variant;
} record;

/* A trace of these records, without tensors; act: as an answer says it.  The last `random` of them have random inputs. */
static void write_trace(char dir[256], const char *tier, const char *act, const record *records, int n,
                        int random)
{
    assay_trace_writer *w = open_writer(fresh_path(dir, "trace"), 0, 1, NULL);
    for (int i = 0; i < n; i++) {
        char instance[64];
        snprintf(instance, sizeof instance, "%s.%s.%d", i < n - random ? tier : "local.zero_mean",
                 records[i].op, i);
        assay_trace_op op = op_of(records[i].op, instance, ASSAY_PHASE_FORWARD);
        op.variant = records[i].variant;
        snprintf(op.variant_name, sizeof op.variant_name, "k%d", records[i].variant);
        snprintf(op.fused, sizeof op.fused, "%s", records[i].fused != NULL ? records[i].fused : "");
        op.attrs = json_pack("{s:s}", "act", act);
        must(assay_trace_write_op(w, &op));
        json_decref(op.attrs);
    }
    close_writer(w);
}

/* "" all hold; else the failures' and skips' messages. */
static void judge(const char *selection, const char *act, const parity_ladder *l, const record *records,
                  int n, char said[2000], int64_t *claims)
{
    char dir[256];
    assay_trace *t = NULL;
    parity_report *r = NULL;
    write_trace(dir, "layer", act, records, n, 0);
    must(assay_trace_open(&t, dir, true));
    must(parity_report_create(&r));
    must(parity_check_kernels(t, l, selection, act, r));
    said[0] = '\0';
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *c = parity_report_at(r, i);
        cr_expect_eq(c->check, PARITY_CHECK_PLAN);
        if (c->verdict != PARITY_PASS)
            snprintf(said + strlen(said), 2000 - strlen(said), "%s %s: %s\n", parity_verdict_name(c->verdict),
                     c->tensor, c->message);
    }
    *claims = parity_report_count(r);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

static const record fell[] = {{"attention_fwd", NULL, 1},
                              {"attention_fwd", NULL, 1},
                              {"linear_fwd", NULL, 1}},
                    some[] = {{"attention_fwd", NULL, 1},
                              {"attention_fwd", NULL, 3},
                              {"linear_fwd", NULL, 1}},
                    together[] = {{"add", "add_rmsnorm_fwd", 1}, {"rmsnorm_fwd", "add_rmsnorm_fwd", 1}},
                    apart[] = {{"add", NULL, 1}, {"rmsnorm_fwd", NULL, 2}};

Test(kernels, a_selection_is_what_ran)
{
    static const struct {
        const char *selection, *act;
        const record *records;
        int n;
        int64_t claims;
        const char *said[2];
    } rows[] = {
        {"", "BF16", fell, 3, 0, {NULL, NULL}},
        {"fastest", "BF16", fell, 3, 0, {NULL, NULL}},
        {"attention=k3", "BF16", some, 3, 1, {NULL, NULL}},
        {"linear=k1,attention=k3", "BF16", some, 3, 2, {NULL, NULL}},
        {"attention=k3", "BF16", fell, 3, 1, {"FAIL attention=k3: ", "what ran: attention_fwd k1 (2)\n"}},
        {"linear=k1,attention=k2",
         "BF16",
         fell,
         3,
         2,
         {"FAIL attention=k2: ", "no record of attention is of k2"}},
        {"attention=k3", "F32", fell, 3, 1, {"skip attention=k3: ", "has a k3 of attention for F32"}},
        {"linear=k1", "F32", together, 2, 1, {"skip linear=k1: ", "what ran: nothing"}},
        {"attention=k2", "BF16", some, 3, 1, {"FAIL attention=k2: ", "1 records are of higher kernels"}},
        {"k0", "BF16", fell, 3, 1, {"FAIL k0: ", "3 records are of higher kernels"}},
        {"k1", "BF16", fell, 3, 1, {NULL, NULL}},
        {"k2", "BF16", fell, 3, 1, {"FAIL k2: ", "no record is of k2"}},
        {"k1,attention=k3", "BF16", some, 3, 2, {NULL, NULL}},
        {"k0,attention=k3", "BF16", some, 3, 2, {"FAIL k0: ", "what ran: linear_fwd k1 (1)\n"}},
        {"residual_norm=k1", "F32", together, 2, 1, {NULL, NULL}},
        {"residual_norm=k0", "F32", together, 2, 1, {"FAIL residual_norm=k0: ", "2 records are of higher"}},
        {"residual_norm=k0", "F32", apart, 2, 1, {NULL, NULL}},
        {"residual_norm=k1", "F32", apart, 2, 1, {"skip residual_norm=k1: ", "what ran: nothing"}},
    };
    parity_ladder l = ladder_of(90), silent = {NULL, 0};
    char said[2000];
    int64_t claims;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        judge(rows[i].selection, rows[i].act, &l, rows[i].records, rows[i].n, said, &claims);
        cr_expect_eq(claims, rows[i].claims, "row %zu: %d claims", i, (int)claims);
        cr_expect_eq(said[0] == '\0', rows[i].said[0] == NULL, "row %zu: %s", i, said);
        for (int k = 0; k < 2 && rows[i].said[k] != NULL; k++)
            cr_expect(strstr(said, rows[i].said[k]) != NULL, "row %zu: %s", i, said);
    }
    /* what ran needs no ladder; whether something else could have does */
    judge("attention=k3", "BF16", &silent, some, 3, said, &claims);
    cr_expect_str_empty(said);
    judge("attention=k3", "BF16", &silent, fell, 3, said, &claims);
    cr_expect(strstr(said, "skip attention=k3: ") && strstr(said, "does not say which kernels it has"), "%s",
              said);
    judge("k2", "BF16", &silent, fell, 3, said, &claims);
    cr_expect(strstr(said, "skip k2: ") && strstr(said, "does not say which kernels it has"), "%s", said);
    json_decref(l.operations);
}

/* The answers to a request of attention and linear; the last `random` of them are those to random inputs, which are asked for, too. */
static parity_report *judge_rungs(const char *tier, const parity_ladder *l, const char *act,
                                  const record *answers, int n, int random)
{
    static const record asked[] = {{"attention_fwd", NULL, 0},
                                   {"linear_fwd", NULL, 0},
                                   {"attention_fwd", NULL, 0},
                                   {"linear_fwd", NULL, 0}};
    char request[256], answer[256];
    parity_report *r = NULL;
    write_trace(request, tier, act, asked, random > 0 ? 4 : 2, random > 0 ? 2 : 0);
    write_trace(answer, tier, act, answers, n, random);
    must(parity_report_create(&r));
    must(parity_check_rungs(request, answer, l, act, r));
    remove_path(request);
    remove_path(answer);
    return r;
}

static void expect_rungs(const parity_report *r, int64_t passed, int64_t failed, int64_t skipped,
                         const char *words)
{
    int64_t n[3];
    bool said = words == NULL;
    parity_report_totals(r, &n[0], &n[1], &n[2]);
    for (int64_t i = 0; i < parity_report_count(r); i++)
        said = said || strstr(parity_report_at(r, i)->message, words) != NULL;
    cr_expect(n[0] == passed && n[1] == failed && n[2] == skipped, "%d passed, %d failed, %d skipped",
              (int)n[0], (int)n[1], (int)n[2]);
    cr_expect(said, "%s", words);
}

Test(kernels, every_kernel_that_the_doctor_lists_has_answered)
{
    static const record all[] = {{"attention_fwd", NULL, 3}, {"attention_fwd", NULL, 2},
                                 {"attention_fwd", NULL, 1}, {"attention_fwd", NULL, 0},
                                 {"linear_fwd", NULL, 1},    {"linear_fwd", NULL, 0}};
    static const struct {
        int first, n, capability;
        const char *act;
        int64_t passed, failed;
        const char *words;
    } rows[] = {{0, 6, 90, "BF16", 2, 0, NULL},
                {1, 5, 90, "BF16", 1, 1, "k3 of attention_fwd answered nothing"},
                {1, 5, 100, "BF16", 2, 0, NULL},
                {2, 4, 90, "BF16", 1, 2, "k2 of attention_fwd answered nothing"},
                {2, 4, 90, "F32", 2, 0, NULL},
                {2, 3, 90, "F32", 1, 1, "k0 of linear_fwd answered nothing"},
                {4, 2, 90, "F32", 1, 2, "k1 of attention_fwd answered nothing"},
                {0, 6, 90, "F32", 1, 2,
                 "k3 of attention_fwd answered, which the engine's doctor does not have for F32"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_ladder l = ladder_of(rows[i].capability);
        parity_report *r = judge_rungs("exact", &l, rows[i].act, all + rows[i].first, rows[i].n, 0);
        expect_rungs(r, rows[i].passed, rows[i].failed, 0, rows[i].words);
        for (int64_t k = 0; k < parity_report_count(r); k++)
            cr_expect_eq(parity_report_at(r, k)->check, PARITY_CHECK_EXACT);
        parity_report_destroy(r);
        json_decref(l.operations);
    }
    parity_ladder l = ladder_of(90), silent = {NULL, 0};
    parity_report *r = judge_rungs("local.zero_mean", &l, "BF16", all, 6, 0);
    cr_expect_eq(parity_report_at(r, 0)->check, PARITY_CHECK_LOCAL, "random inputs alone were asked");
    parity_report_destroy(r);
    /* a kernel that lattice inputs reach and random ones do not */
    static const record both[] = {{"attention_fwd", NULL, 1}, {"linear_fwd", NULL, 1},
                                  {"attention_fwd", NULL, 0}, {"linear_fwd", NULL, 0},
                                  {"attention_fwd", NULL, 1}, {"attention_fwd", NULL, 0},
                                  {"linear_fwd", NULL, 0}};
    r = judge_rungs("exact", &l, "F32", both, 7, 3);
    expect_rungs(r, 3, 1, 0, "k1 of linear_fwd answered nothing: no request of F32 with random inputs");
    parity_report_destroy(r);
    r = judge_rungs("exact", &silent, "BF16", all, 6, 0);
    expect_rungs(r, 0, 0, 1, "does not say which kernels it has");
    parity_report_destroy(r);
    json_decref(l.operations);
}
