/* The engine's own kernels through its operation door, over the same requests. */
#include "parity/certify/engine.h"

#include "core/base/log.h"
#include "parity/certify/probe.h"
#include "parity/checks/request.h"
#include <stdlib.h>
#include <string.h>

enum { EXTRA = 8 };

void engine_path(char out[ASSAY_PATH], const engine_trial *t, const char *what)
{
    snprintf(out, ASSAY_PATH, "%.900s/%s.%s", t->work, what, t->act);
}

certify_result *engine_result_of(const engine_trial *t, const char *op)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->results[i].op->name, op) == 0)
            return &t->results[i];
    return NULL;
}

assay_status engine_answer(const engine_trial *t, const char *asked, const char *what,
                           const char *const *more, double limit)
{
    char request[ASSAY_PATH], out[ASSAY_PATH], log[ASSAY_PATH + 8], request_option[ASSAY_PATH + 16],
        out_option[ASSAY_PATH + 16];
    const char *extra[EXTRA + 3] = {request_option, out_option}, *variant = t->o->variant;
    assay_train_options train;
    double wall;
    int n = 2;
    assay_train_options_default(&train);
    snprintf(train.variant, sizeof train.variant, "%s", strcmp(variant, "fastest") == 0 ? "" : variant);
    snprintf(train.layout, sizeof train.layout, "1");
    train.precision = strcmp(t->act, "BF16") == 0 ? ASSAY_PRECISION_BF16 : ASSAY_PRECISION_FP32;
    engine_path(request, t, asked);
    engine_path(out, t, what);
    snprintf(log, sizeof log, "%.1000s.log", out);
    snprintf(request_option, sizeof request_option, "--request=%s", request);
    snprintf(out_option, sizeof out_option, "--out=%s", out);
    for (int i = 0; more != NULL && more[i] != NULL && i < EXTRA; i++)
        extra[n++] = more[i];
    return parity_engine_run(t->e, "ops", &train, extra, log, true, limit, &wall);
}

static int list_operations(const char *only, certify_result *results)
{
    int n = 0;
    for (int i = 0; assay_op_at(i) != NULL; i++) {
        const assay_op *op = assay_op_at(i);
        if (op->collective || op->foreign ||
            (only[0] != '\0' && strcmp(only, "all") != 0 && strcmp(only, op->name) != 0))
            continue;
        if (results != NULL)
            results[n].op = op;
        n++;
    }
    return n;
}

/* The description of a certificate: the program and the variant; engine_note_ran adds what ran of it. */
static json_t *subject_of(const certify_options *o, const parity_engine *e, const assay_op *op,
                          const char *sha)
{
    const char *slash = strrchr(e->program, '/');
    char name[160];
    const char *variant = o->variant[0] != '\0' ? o->variant : CERTIFY_FASTEST;
    /* a call that the asked variant does not take runs a lower one: subject.ran counts them */
    const bool at_most = strcmp(variant, CERTIFY_FASTEST) != 0 && strcmp(variant, "k0") != 0;
    snprintf(name, sizeof name, "assay engine %s, %s%s", op->name, at_most ? "at most " : "", variant);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:[], s:{s:s, s:[], s:b, s:s}}", "kind", "engine",
                     "name", name, "variant", variant, "file", slash != NULL ? slash + 1 : e->program,
                     "symbol", op->name, "sha256", sha, "ran", "description", "operation", op->name,
                     "declared", "adapts", 1, "version", parity_version());
}

static int64_t count_records(const assay_trace *t, const char *op)
{
    int64_t n = 0;
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++)
        n += strcmp(assay_trace_op_at(t, 0, i)->op, op) == 0;
    return n;
}

/* What the door itself holds: it stops with an error where guards, inputs or a call are not as they should be. */
static void take_door(const engine_trial *t, certify_result *r, int64_t calls)
{
    const bool simulated = strcmp(t->e->name, "sim") == 0;
    const int64_t runs = simulated ? 5 : 3;
    static const certify_trial door[] = {CERTIFY_CRASH,  CERTIFY_TIME,      CERTIFY_ACCEPTS,  CERTIFY_GUARDS,
                                         CERTIFY_INPUTS, CERTIFY_SIMULATOR, CERTIFY_WORKSPACE};
    for (size_t i = 0; i < sizeof door / sizeof *door; i++)
        if (simulated || door[i] != CERTIFY_SIMULATOR)
            r->board.trial[door[i]].calls += runs * calls;
    r->calls += calls;
    r->board.runs += runs * calls;
}

/* An output that the table lets lie in an input's memory. */
static bool has_view(const assay_op *op)
{
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (op->slots[i].alias != NULL)
            return true;
    return false;
}

/* What a trial left out is said with its number where it counts other records of the operation. */
static void add_excused(json_t *list, int64_t calls, const char *of, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "%s of %lld calls: %s", of, (long long)calls, why);
    if (calls > 0)
        json_array_append_new(list, json_string(text));
}

static json_t *untried(const char *tier, const assay_op *op, const certify_result *r)
{
    json_t *list = json_array();
    char text[256];
    if (r->board.trial[CERTIFY_BATCH].calls == 0)
        json_array_append_new(list, json_string("batch invariance: not declared (products of a library), or "
                                                "no output has rows of its own"));
    else
        add_excused(list, r->excused_rows, "batch invariance",
                    "a library chose their algorithm (by_library in doctor --ops)");
    if (r->board.trial[CERTIFY_SIMULATOR].calls == 0)
        json_array_append_new(list,
                              json_string("barriers, races and masks: it did not run in the simulator"));
    if (r->board.trial[CERTIFY_EXACT].calls == 0)
        json_array_append_new(list, json_string("lattice inputs: there are none for this operation"));
    static const certify_trial always[] = {
        CERTIFY_CRASH,     CERTIFY_TIME,      CERTIFY_ACCEPTS, CERTIFY_GUARDS,  CERTIFY_PROBE,
        CERTIFY_INPUTS,    CERTIFY_WRITTEN,   CERTIFY_LOCAL,   CERTIFY_SPECIAL, CERTIFY_REPEAT,
        CERTIFY_WORKSPACE, CERTIFY_ARGUMENTS, CERTIFY_THREADS};
    const size_t n_always = sizeof always / sizeof *always;
    certify_add_extents(list, r);
    certify_add_uncalled(list, r, always, strcmp(tier, "sim") == 0 ? n_always : n_always - 1);
    add_excused(list, r->excused_bits, "equal bits at addresses of one element's alignment",
                "another variant ran there, or a library's (the bound judged them)");
    for (int m = 0; m < PARITY_MODE_COUNT; m++)
        if (parity_data_mode_refusal(op->name, (parity_data_mode)m) != NULL) {
            snprintf(text, sizeof text, "%s data: %s", parity_data_mode_name((parity_data_mode)m),
                     parity_data_mode_refusal(op->name, (parity_data_mode)m));
            json_array_append_new(list, json_string(text));
        }
    const char *const rest[] = {
        "rows with gaps: not declared, tensors are contiguous (gpu/ops.h)",
        "F32 shadows: not declared, the engine's operations have none",
        has_view(op) ? "in place: the view of an input, which is no copy"
                     : "in place: the table of operations declares none",
        strcmp(tier, "sim") == 0 ? "a real device: its arithmetic, memory order, streams and timing; "
                                   "compute-sanitizer; throughput"
                                 : "orders of threads and streams but the device's own; compute-sanitizer; "
                                   "throughput (assay bench measures it)"};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        json_array_append_new(list, json_string(rest[i]));
    return list;
}

static assay_status ask(const engine_trial *t, const certify_plan *plan)
{
    char request[ASSAY_PATH];
    assay_dtype dtype;
    engine_path(request, t, "request");
    ASSAY_TRY(assay_dtype_from_name(t->act, &dtype));
    return certify_request(request, dtype, plan, NULL);
}

/* --fail-fast, and something of an operation does not hold. */
static bool stops(const engine_trial *t)
{
    int64_t found = 0;
    for (int i = 0; i < t->n; i++)
        found += certify_findings(&t->results[i].board);
    return t->o->fail_fast && found > 0;
}

static assay_status try_dtype(const engine_trial *t, const char *sha, const certify_probe *probe)
{
    static assay_status (*const parts[])(const engine_trial *) = {engine_try_places, engine_try_orders,
                                                                  engine_try_rows, engine_try_illegal};
    char request[ASSAY_PATH], first[ASSAY_PATH];
    assay_trace *trace = NULL;
    engine_path(request, t, "request");
    engine_path(first, t, "answer");
    if (!t->ahead)
        ASSAY_TRY(engine_answer(t, "request", "answer", NULL, t->o->limit));
    ASSAY_TRY(certify_judge(request, first, false, NULL, CERTIFY_TRIALS, t->results, t->n));
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !stops(t); i++)
        ASSAY_TRY(parts[i](t));
    ASSAY_TRY(assay_trace_open(&trace, first, false));
    for (int i = 0; i < t->n; i++) {
        take_door(t, &t->results[i], count_records(trace, t->results[i].op->name));
        probe_hold(probe, trace, &t->results[i]);
        if (t->results[i].subject == NULL)
            t->results[i].subject = subject_of(t->o, t->e, t->results[i].op, sha);
    }
    const assay_status st = engine_note_ran(t, trace);
    assay_trace_close(trace);
    return st;
}

enum { ACTS = 2 };
static const char *const acts[ACTS] = {"F32", "BF16"};

assay_status certify_engine(const certify_options *o, const char *work, certify_result **out, int *n)
{
    parity_engine e;
    char sha[ASSAY_SHA256_HEX];
    json_t *operations = NULL;
    assay_status st = ASSAY_OK;
    const double start = assay_monotonic_s();
    *n = list_operations(o->operation, NULL);
    *out = NULL;
    ASSAY_CHECK(*n > 0, ASSAY_NOT_FOUND,
                "--operation: expected all or an operation of docs/OPS.md that is no collective, found %s",
                o->operation);
    ASSAY_TRY(parity_engine_find(o->engine, o->program[0] != '\0' ? o->program : NULL, &e));
    certify_result *results = calloc((size_t)*n, sizeof *results);
    ASSAY_CHECK_GOTO(results != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%d operations", *n);
    *out = results;
    (void)list_operations(o->operation, results);
    ASSAY_TRY_GOTO(assay_sha256_file(e.program, sha), st, done);
    ASSAY_TRY_GOTO(parity_engine_operations(&e, &operations), st, done);
    const engine_trial all = {.operations = operations, .o = o, .e = &e, .results = results, .n = *n};
    ASSAY_TRY_GOTO(engine_check_variant(&all), st, done);
    certify_probe probe;
    ASSAY_TRY_GOTO(probe_run(o, work, PROBE_STRIDE, &probe), st, done);
    certify_plan plan = {.op = *n == 1 ? results[0].op->name : NULL, .seeds = o->seeds};
    engine_trial t[ACTS];
    for (int d = 0; d < ACTS; d++) {
        t[d] = (engine_trial){.operations = operations,
                              .o = o,
                              .e = &e,
                              .work = work,
                              .act = acts[d],
                              .results = results,
                              .n = *n};
        ASSAY_TRY_GOTO(ask(&t[d], &plan), st, done);
    }
    /* on a device the runs would wait for each other, and count as slow */
    const pid_t ahead = strcmp(e.name, "sim") == 0 ? engine_run_ahead(&t[1]) : -1;
    st = try_dtype(&t[0], sha, &probe);
    const bool goes_on = st == ASSAY_OK && !stops(&t[0]);
    const assay_status joined = engine_join_ahead(&t[1], ahead, goes_on);
    ASSAY_TRY_GOTO(st != ASSAY_OK ? st : joined, st, done);
    if (goes_on)
        ASSAY_TRY_GOTO(try_dtype(&t[1], sha, &probe), st, done);
    const bool stopped = stops(&t[0]);
    for (int i = 0; i < *n; i++) {
        results[i].plan = (certify_plan){.op = results[i].op->name, .seeds = o->seeds};
        results[i].stopped = stopped;
        if (stopped)
            certify_list_stopped(&results[i]);
        else
            results[i].not_tried = untried(e.name, results[i].op, &results[i]);
        results[i].where = engine_where(&e);
        (void)json_object_set_new(results[i].where, "probe", probe_json(&probe));
        results[i].seconds = (assay_monotonic_s() - start) / *n;
    }
    st = certify_unchanged(e.program, sha);
done:
    json_decref(operations);
    parity_engine_free(&e);
    return st;
}
