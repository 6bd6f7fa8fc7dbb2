/* A campaign over the engine's kernels: many seeds, of which each asks every shape of every operation in one data mode, one rung and one
 * way of running, so that all of them meet (docs/CERTIFY.md, "A campaign").  Says what was covered, and what was not. */
#include "parity/certify/campaign_internal.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/run/run.h"
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_STRIDE = 10000000 };

/* The rounds in turn. */
static const machine machines[] = {
    {"exact units, in order, aligned", "forward", false, 0},
    {"truncating units, in reverse, other addresses", "reverse", true, 1},
    {"exact units, drawn orders, unaligned", "random", false, 2},
    {"truncating units, drawn orders, aligned", "random", true, 0},
    {"exact units, in reverse, other addresses", "reverse", false, 1},
    {"truncating units, in order, unaligned", "forward", true, 2},
};
enum { MACHINES = sizeof machines / sizeof *machines };

const char *const campaign_acts[ACTS] = {"F32", "BF16"};

const char *campaign_only(const campaign *c)
{
    const char *op = c->o->operation;
    return op[0] != '\0' && strcmp(op, "all") != 0 ? op : NULL;
}

/* --- shapes ------------------------------------------------------------------------------------------------------------ */
static assay_status note_shape(void *user, const parity_asked *a)
{
    campaign *c = user;
    while (a->shape >= c->room) {
        const int64_t room = c->room > 0 ? 2 * c->room : 1024;
        shape_row *more = realloc(c->shapes, (size_t)room * sizeof *more);
        ASSAY_CHECK(more != NULL, ASSAY_OUT_OF_MEMORY, "%lld shapes", (long long)room);
        memset(more + c->room, 0, (size_t)(room - c->room) * sizeof *more);
        c->shapes = more;
        c->room = room;
    }
    shape_row *s = &c->shapes[a->shape];
    s->op = a->op;
    s->modes |= 1u << a->mode;
    if (a->swept != NULL)
        snprintf(s->text, sizeof s->text, "%s=%lld of %.280s", a->swept, (long long)a->size, a->sizes);
    else
        snprintf(s->text, sizeof s->text, "%.300s", a->sizes);
    c->n_shapes = a->shape >= c->n_shapes ? a->shape + 1 : c->n_shapes;
    return ASSAY_OK;
}

static assay_status list_shapes(campaign *c)
{
    for (int64_t turn = 0; turn < PARITY_MODE_COUNT; turn++) {
        parity_ask q = {.act = ASSAY_F32, .world = 1};
        parity_ask_rotation(&q, turn, note_shape, c);
        ASSAY_TRY(q.st);
    }
    c->cells = calloc((size_t)c->n_shapes + 1, sizeof *c->cells);
    c->asked = calloc((size_t)c->n_shapes + 1, sizeof *c->asked);
    c->mode = calloc((size_t)c->n_shapes + 1, 1);
    ASSAY_CHECK(c->cells != NULL && c->asked != NULL && c->mode != NULL, ASSAY_OUT_OF_MEMORY, "%lld shapes",
                (long long)c->n_shapes);
    return ASSAY_OK;
}

/* --- one seed, one dtype ------------------------------------------------------------------------------------------------ */
static assay_status note_asked(void *user, const parity_asked *a)
{
    campaign *c = user;
    c->asked[c->n_asked] = a->shape;
    c->mode[c->n_asked++] = (unsigned char)a->mode;
    return ASSAY_OK;
}

static assay_status write_request(campaign *c, const char *path, int64_t turn)
{
    int rank = 0;
    assay_dtype act;
    ASSAY_TRY(assay_dtype_from_name(campaign_acts[c->act], &act));
    parity_ask q = {.act = act, .world = 1, .ranks = &rank, .tier = "local", .only = campaign_only(c)};
    q.n = c->seed * SEED_STRIDE;
    c->n_asked = 0;
    json_t *header =
        json_pack("{s:s, s:s}", "engine", "request", "precision", act == ASSAY_F32 ? "fp32" : "bf16");
    q.st = assay_trace_writer_open(&q.w, path, 0, 1, header, false);
    json_decref(header);
    if (q.st == ASSAY_OK)
        parity_ask_rotation(&q, turn, note_asked, c);
    q.st = q.st == ASSAY_OK ? assay_trace_end_step(q.w) : q.st;
    q.st = q.st == ASSAY_OK ? assay_trace_writer_close(q.w) : q.st;
    assay_trace_writer_destroy(q.w);
    json_decref(q.attrs);
    return q.st;
}

static const char *const variables[] = {"ASSAY_SIM_ORDER", "ASSAY_SIM_STREAM_SEED",
                                        "ASSAY_SIM_MATRIX_TRUNCATES"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* The engine in the machine of the round; what the environment said before stands again behind it. */
static assay_status answer(const campaign *c)
{
    char variant[8], place[16], order[48], stream[32];
    char *was[VARIABLES];
    certify_options o = *c->o;
    const engine_trial t = {.o = &o, .e = c->e, .work = c->work, .act = campaign_acts[c->act]};
    const char *const more[] = {place, NULL};
    const bool drawn = strcmp(c->machine->order, "random") == 0;
    snprintf(variant, sizeof variant, "k%d", c->rung);
    snprintf(o.variant, sizeof o.variant, "%s", variant);
    snprintf(place, sizeof place, "--place=%d", c->machine->place);
    if (drawn)
        snprintf(order, sizeof order, "random:%lld", (long long)c->seed);
    else
        snprintf(order, sizeof order, "%s", c->machine->order);
    snprintf(stream, sizeof stream, "%lld", drawn ? (long long)c->seed : 0LL);
    const char *const values[VARIABLES] = {order, stream, c->machine->truncates ? "1" : "0"};
    for (int i = 0; i < VARIABLES; i++) {
        was[i] = getenv(variables[i]) != NULL ? strdup(getenv(variables[i])) : NULL;
        setenv(variables[i], values[i], 1);
    }
    const assay_status st = engine_answer(&t, "request", "answer", more, o.limit);
    for (int i = 0; i < VARIABLES; i++) {
        if (was[i] != NULL)
            setenv(variables[i], was[i], 1);
        else
            unsetenv(variables[i]);
        free(was[i]);
    }
    return st;
}

static void note_worst(campaign *c, const parity_claim *r)
{
    char mode[32];
    worst *w = NULL;
    const char *dot = strchr(r->instance, '.');
    snprintf(mode, sizeof mode, "%.*s", dot != NULL ? (int)strcspn(dot + 1, ".") : 0,
             dot != NULL ? dot + 1 : "");
    if (r->tensor[0] == '\0' || strcmp(mode, "nan") == 0 || strcmp(mode, "infinity") == 0)
        return;
    for (int i = 0; i < c->n_worst && w == NULL; i++)
        if (c->worst[i].act == c->act && strcmp(c->worst[i].op, r->op) == 0 &&
            strncmp(c->worst[i].slot, r->tensor, sizeof c->worst[i].slot - 1) == 0)
            w = &c->worst[i];
    if (w == NULL) {
        worst *more = realloc(c->worst, (size_t)(c->n_worst + 1) * sizeof *more);
        if (more == NULL)
            return;
        c->worst = more;
        w = &c->worst[c->n_worst++];
        *w = (worst){.act = c->act, .share = -1.0};
        snprintf(w->op, sizeof w->op, "%.47s", r->op);
        snprintf(w->slot, sizeof w->slot, "%.31s", r->tensor);
    }
    if (!(r->share <= w->share)) {
        w->share = r->share;
        snprintf(w->where, sizeof w->where, "%s, seed %lld", mode, (long long)c->seed);
    }
}

static void tell(const campaign *c, const char *op, const char *what, const char *message)
{
    char program[4 * ASSAY_PATH];
    parity_shell_word(c->o->program, program, sizeof program);
    printf("%s: seed %lld, %s, k%d, %s: %.300s\n  again: assay certify --engine %s%s%s --operation %s "
           "--campaign %lld-%lld --keep DIR\n",
           what, (long long)c->seed, campaign_acts[c->act], c->rung, c->machine->name, message, c->e->name,
           c->o->program[0] != '\0' ? " --program " : "", c->o->program[0] != '\0' ? program : "", op,
           (long long)c->seed, (long long)c->seed);
}

static assay_status judge(campaign *c, const char *request, const char *path)
{
    parity_report *report = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_create(&report));
    ASSAY_TRY_GOTO(parity_check_exact_taken(request, path, false, NULL, NULL, report), st, done);
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        char text[PARITY_TEXT + 160];
        c->elements += r->count;
        note_worst(c, r);
        if (r->verdict == PARITY_PASS)
            continue;
        c->violations++;
        snprintf(text, sizeof text, "%s of %.80s: %s", r->tensor, r->instance, r->message);
        tell(c, r->op, r->verdict == PARITY_SKIP ? "NOT JUDGED" : "VIOLATION", text);
    }
done:
    parity_report_destroy(report);
    return st;
}

/* Which rung ran each call. */
static assay_status count_calls(campaign *c, const char *path)
{
    assay_trace *trace = NULL;
    ASSAY_TRY(assay_trace_open(&trace, path, false));
    const int64_t n = assay_trace_n_ops(trace, 0);
    for (int64_t i = 0; i < n && i < c->n_asked; i++) {
        const int variant = assay_trace_op_at(trace, 0, i)->variant;
        if (variant >= 0 && variant < RUNGS)
            c->cells[c->asked[i]].calls[variant][c->act][c->mode[i]]++;
    }
    c->calls += n;
    assay_trace_close(trace);
    ASSAY_CHECK(n == c->n_asked, ASSAY_MISMATCH, "%s: %lld records, asked were %lld", path, (long long)n,
                (long long)c->n_asked);
    return ASSAY_OK;
}

/* An engine that does not come to its end is a finding, and the other seeds go on. */
static assay_status try_one(campaign *c, int64_t turn)
{
    char request[ASSAY_PATH], path[ASSAY_PATH];
    const engine_trial t = {.work = c->work, .act = campaign_acts[c->act]};
    engine_path(request, &t, "request");
    engine_path(path, &t, "answer");
    ASSAY_TRY(assay_remove_tree(request, c->work));
    ASSAY_TRY(assay_remove_tree(path, c->work));
    ASSAY_TRY(write_request(c, request, turn));
    if (answer(c) != ASSAY_OK) {
        c->broken++;
        tell(c, campaign_only(c) != NULL ? campaign_only(c) : "all", "BROKEN", assay_error_message());
        assay_error_clear();
        return ASSAY_OK;
    }
    ASSAY_TRY(count_calls(c, path));
    return judge(c, request, path);
}

static assay_status try_seed(campaign *c, int64_t seed)
{
    const int64_t round = (int64_t)c->rungs * PARITY_MODE_COUNT, at = seed % round, before = c->violations;
    const int64_t calls = c->calls, broken = c->broken;
    const double start = assay_monotonic_s();
    c->seed = seed;
    c->rung = (int)(at % c->rungs);
    c->machine = &machines[seed / round % MACHINES];
    for (c->act = 0; c->act < ACTS; c->act++)
        ASSAY_TRY(try_one(c, at / c->rungs));
    printf("seed %lld: k%d, %s: %lld calls, %lld violations, %.1f s\n", (long long)seed, c->rung,
           c->machine->name, (long long)(c->calls - calls),
           (long long)(c->violations - before + c->broken - broken), assay_monotonic_s() - start);
    fflush(stdout);
    return ASSAY_OK;
}

/* --- the campaign -------------------------------------------------------------------------------------------------------- */
assay_status certify_campaign_seeds(const char *text, int64_t *first, int64_t *last)
{
    char *end = NULL;
    *first = 0;
    *last = strtoll(text, &end, 10) - 1;
    if (end != text && *end == '-') {
        const char *second = end + 1;
        *first = *last + 1;
        *last = strtoll(second, &end, 10);
        end = end == second ? NULL : end;
    }
    ASSAY_CHECK(text[0] >= '0' && text[0] <= '9' && end != NULL && *end == '\0' && *first >= 0 &&
                    *last >= *first && *last < 100000,
                ASSAY_INVALID_ARGUMENT,
                "--campaign: expected a number of seeds, or the first and the last as in 36-71 (below "
                "100000), found %.40s",
                text);
    return ASSAY_OK;
}

/* *last: with --fail-fast, the first seed under which something does not hold. */
static assay_status run_all(campaign *c, int64_t first, int64_t *last)
{
    ASSAY_TRY(list_shapes(c));
    /* one call is too small for threads, which would wait for each other most of the time */
    omp_set_num_threads(1);
    /* requests and answers are read once, here */
    setenv("ASSAY_FSYNC", "0", 0);
    for (int64_t s = first; s <= *last; s++) {
        ASSAY_TRY(try_seed(c, s));
        if (c->o->fail_fast && c->violations + c->broken > 0)
            *last = s;
    }
    return ASSAY_OK;
}

assay_status certify_campaign(const certify_options *o, const char *work, int *code)
{
    parity_engine e;
    FILE *table = NULL;
    int64_t first, last, open = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(certify_campaign_seeds(o->campaign, &first, &last));
    const assay_op *op = assay_op_find(o->operation);
    ASSAY_CHECK(o->operation[0] == '\0' || strcmp(o->operation, "all") == 0 ||
                    (op != NULL && !op->collective && !op->foreign),
                ASSAY_NOT_FOUND,
                "--operation: expected all or an operation of docs/OPS.md that is no collective, found %s",
                o->operation);
    ASSAY_TRY(parity_engine_find(o->engine, o->program[0] != '\0' ? o->program : NULL, &e));
    campaign c = {.o = o, .e = &e, .work = work, .rungs = parity_engine_highest_variant(&e) + 1};
    ASSAY_TRY_GOTO(parity_engine_learn(&e), st, done);
    ASSAY_CHECK_GOTO(e.ladder.operations != NULL, ASSAY_FORMAT, st, done,
                     "%s doctor --ops: expected a list 'operations'", e.program);
    c.operations = e.ladder.operations;
    if (o->cells[0] != '\0') { /* before the work, and over nothing */
        table = fopen(o->cells, "wx");
        ASSAY_CHECK_GOTO(table != NULL, ASSAY_IO, st, done,
                         "--cells: %s: expected a file that can be made and is not there yet: %s", o->cells,
                         strerror(errno));
    }
    ASSAY_TRY_GOTO(run_all(&c, first, &last), st, done);
    ASSAY_CHECK_GOTO(c.calls + c.broken > 0, ASSAY_NOT_FOUND, st, done,
                     "--campaign: these seeds ask nothing of %s: nothing was checked", o->operation);
    campaign_print_worst(&c);
    campaign_print_coverage(&c, &open);
    if (table != NULL) {
        st = campaign_write_cells(&c, table, o->cells);
        table = NULL;
        ASSAY_TRY_GOTO(st, st, done);
    }
    const int64_t round = (int64_t)c.rungs * PARITY_MODE_COUNT;
    const bool whole = last - first + 1 >= round;
    printf("\n%lld seeds, %lld calls, %lld elements: %lld violations, %lld runs that did not end well; %s\n",
           (long long)(last - first + 1), (long long)c.calls, (long long)c.elements, (long long)c.violations,
           (long long)c.broken,
           !whole     ? "less than a round: nothing is said of what was covered"
           : open > 0 ? "rungs above that did not run, or not on all data"
                      : "every rung ran on every data mode at every shape that it takes");
    *code = c.violations + c.broken > 0 || (whole && open > 0) ? 1 : 0;
done:
    if (table != NULL)
        fclose(table);
    parity_engine_free(&e);
    free(c.shapes);
    free(c.cells);
    free(c.asked);
    free(c.mode);
    free(c.worst);
    return st;
}
