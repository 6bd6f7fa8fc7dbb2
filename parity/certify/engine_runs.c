/* The engine's runs over the same request: at other addresses, on other garbage, in other orders of threads and streams. */
#include "parity/certify/engine.h"

#include "parity/judge/judge.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The garbage of outputs at the first two places (gpu/execute.c). */
static const unsigned char garbage[] = {0xFF, 0x5A};

const json_t *engine_variants_of(const engine_trial *t, const char *op)
{
    for (size_t i = 0; i < json_array_size(t->operations); i++) {
        const json_t *row = json_array_get(t->operations, i);
        const char *name = json_string_value(json_object_get(row, "op"));
        if (name != NULL && strcmp(name, op) == 0)
            return json_object_get(row, "variants");
    }
    return NULL;
}

bool engine_by_library(const engine_trial *t, const char *op, int variant)
{
    const json_t *rung = json_array_get(engine_variants_of(t, op), (size_t)variant);
    return json_is_true(json_object_get(rung, "by_library"));
}

/* --- two answers ---------------------------------------------------------------------------------------------------- */
typedef struct pair {
    const engine_trial *t;
    certify_trial trial;
    const char *how; /* "at other addresses" */
    bool written;    /* the garbages differ: what has them in both is written by nobody */
    bool *
        elsewhere; /* [operations]: set where another variant ran, or a library's, that may have another algorithm at
                        this alignment: bits are not compared.  NULL: every record has equal bits */
    bool any_nan; /* two that are no number are equal */
} pair;

/* Elements that hold the garbage of both runs. */
static void compare_written(const pair *p, const assay_trace_op *op, const char *slot,
                            const assay_trace_tensor *x, const assay_trace_tensor *y, certify_result *into)
{
    const assay_op_slot *row = assay_op_slot_find(into->op, slot, true);
    const size_t unit = (size_t)assay_dtype_bytes(x->dtype);
    const unsigned char *a = x->data, *b = y->data;
    into->board.trial[CERTIFY_WRITTEN].calls++;
    if (row == NULL || row->role != ASSAY_SLOT_OUT || a == NULL || b == NULL || x->bytes != y->bytes)
        return;
    for (size_t e = 0; e + unit <= x->bytes; e += unit) {
        size_t k = 0;
        while (k < unit && a[e + k] == garbage[0] && b[e + k] == garbage[1])
            k++;
        if (k < unit)
            continue;
        certify_bad(&into->board, CERTIFY_WRITTEN, "%s of %.100s (%s): element %zu is written by nobody",
                    slot, op->instance, p->t->act, e / unit);
        return;
    }
}

/* Which of two NaN an addition hands on is no device's choice (it makes one of its own, 0x7FFFFFFF), but it is that of the host compiler in
 * the simulator, which may write one sum in two ways for two alignments. */
static bool same_numbers(const assay_trace_tensor *x, const assay_trace_tensor *y)
{
    const int64_t n = assay_shard_count(&x->shard);
    if (x->data == NULL || y->data == NULL || x->dtype != y->dtype || x->bytes != y->bytes)
        return false;
    const size_t unit = (size_t)assay_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < n; i++)
        if (memcmp((const char *)x->data + (size_t)i * unit, (const char *)y->data + (size_t)i * unit,
                   unit) != 0 &&
            !(isnan(parity_decode(x->data, i, x->dtype)) && isnan(parity_decode(y->data, i, y->dtype))))
            return false;
    return true;
}

static void compare_record(const pair *p, const assay_trace *a, const assay_trace *b, int64_t i)
{
    const assay_trace_op *x = assay_trace_op_at(a, 0, i), *y = assay_trace_op_at(b, 0, i);
    certify_result *into = engine_result_of(p->t, x->op);
    bool same = true;
    if (into == NULL)
        return;
    const bool elsewhere =
        p->elsewhere != NULL && (x->variant != y->variant || engine_by_library(p->t, x->op, x->variant));
    if (elsewhere)
        p->elsewhere[into - p->t->results] = true;
    for (int k = 0; k < x->n_outputs; k++) {
        const assay_trace_tensor *v = assay_trace_op_tensor(a, x, x->outputs[k].slot);
        const assay_trace_tensor *w = assay_trace_op_tensor(b, y, x->outputs[k].slot);
        if (v != NULL && w != NULL && p->written)
            compare_written(p, x, x->outputs[k].slot, v, w, into);
        if (elsewhere || !same)
            continue;
        same =
            v != NULL && w != NULL && (assay_trace_same_content(v, w) || (p->any_nan && same_numbers(v, w)));
        if (!same)
            certify_bad(&into->board, p->trial, "%s of %.100s (%s) has other bits %s", x->outputs[k].slot,
                        x->instance, p->t->act, p->how);
    }
    into->board.trial[p->trial].calls += !elsewhere;
    into->excused_bits += elsewhere;
}

static assay_status compare(const pair *p, const char *what)
{
    char first[ASSAY_PATH], other[ASSAY_PATH];
    assay_trace *a = NULL, *b = NULL;
    assay_status st = ASSAY_OK;
    engine_path(first, p->t, "answer");
    engine_path(other, p->t, what);
    ASSAY_TRY_GOTO(assay_trace_open(&a, first, true), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&b, other, true), st, done);
    ASSAY_CHECK_GOTO(assay_trace_n_ops(a, 0) == assay_trace_n_ops(b, 0), ASSAY_MISMATCH, st, done,
                     "%s: %lld records, %s: %lld", first, (long long)assay_trace_n_ops(a, 0), other,
                     (long long)assay_trace_n_ops(b, 0));
    for (int64_t i = 0; i < assay_trace_n_ops(a, 0); i++)
        compare_record(p, a, b, i);
done:
    assay_trace_close(a);
    assay_trace_close(b);
    return st;
}

/* --- the runs ---------------------------------------------------------------------------------------------------------- */

static const char *const later[] = {"--place=1", NULL}, *const odd[] = {"--place=2", NULL};

/* What ran otherwise at another alignment is judged like the first answer. */
static assay_status try_unaligned(const engine_trial *t, bool *elsewhere)
{
    const pair unaligned = {t,     CERTIFY_REPEAT, "at addresses that are aligned to an element alone",
                            false, elsewhere,      strcmp(t->e->name, "sim") == 0};
    char request[ASSAY_PATH], answer[ASSAY_PATH];
    engine_path(request, t, "request");
    engine_path(answer, t, "unaligned");
    if (!t->ahead)
        ASSAY_TRY(engine_answer(t, "request", "unaligned", odd, t->o->limit));
    ASSAY_TRY(compare(&unaligned, "unaligned"));
    for (int i = 0; i < t->n; i++)
        if (elsewhere[i])
            ASSAY_TRY(certify_judge(request, answer, false, NULL, CERTIFY_TRIALS, &t->results[i], 1));
    return ASSAY_OK;
}

assay_status engine_try_places(const engine_trial *t)
{
    const pair at_others = {t, CERTIFY_REPEAT, "at other addresses and on other garbage", true, NULL, false};
    bool *elsewhere = calloc((size_t)t->n, sizeof *elsewhere);
    ASSAY_CHECK(elsewhere != NULL, ASSAY_OUT_OF_MEMORY, "%d operations", t->n);
    assay_status st = t->ahead ? ASSAY_OK : engine_answer(t, "request", "repeat", later, t->o->limit);
    if (st == ASSAY_OK)
        st = compare(&at_others, "repeat");
    if (st == ASSAY_OK)
        st = try_unaligned(t, elsewhere);
    free(elsewhere);
    return st;
}

/* Sets a variable for one run; NULL: takes it away. */
static void set_variable(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

enum { ORDER_VARIABLES = 3 };
static const char *const order_variables[ORDER_VARIABLES] = {"ASSAY_SIM_ORDER", "ASSAY_SIM_STREAM_SEED",
                                                             "ASSAY_SIM_THREADS"};
static const struct {
    const char *what, *values[ORDER_VARIABLES], *how;
} orders[] = {
    {"reverse", {"reverse", "1", "1"}, "when threads and blocks run in reverse order"},
    {"random", {"random:7", "2", "2"}, "when threads, blocks and streams run in a drawn order"},
};
enum { ORDERS = sizeof orders / sizeof *orders };

static assay_status run_in_order(const engine_trial *t, int i)
{
    char *was[ORDER_VARIABLES];
    for (int k = 0; k < ORDER_VARIABLES; k++) {
        was[k] = getenv(order_variables[k]) != NULL ? strdup(getenv(order_variables[k])) : NULL;
        set_variable(order_variables[k], orders[i].values[k]);
    }
    const assay_status st = engine_answer(t, "request", orders[i].what, NULL, t->o->limit);
    for (int k = 0; k < ORDER_VARIABLES; k++) {
        set_variable(order_variables[k], was[k]);
        free(was[k]);
    }
    return st;
}

assay_status engine_try_orders(const engine_trial *t)
{
    if (strcmp(t->e->name, "sim") != 0)
        return ASSAY_OK; /* a device has its own */
    for (int i = 0; i < ORDERS; i++) {
        const pair p = {t, CERTIFY_THREADS, orders[i].how, false, NULL, false};
        if (!t->ahead)
            ASSAY_TRY(run_in_order(t, i));
        ASSAY_TRY(compare(&p, orders[i].what));
    }
    return ASSAY_OK;
}

/* --- beside the other dtype ------------------------------------------------------------------------------------------ */

static assay_status run_all(const engine_trial *t)
{
    ASSAY_TRY(engine_answer(t, "request", "answer", NULL, t->o->limit));
    ASSAY_TRY(engine_answer(t, "request", "repeat", later, t->o->limit));
    ASSAY_TRY(engine_answer(t, "request", "unaligned", odd, t->o->limit));
    for (int i = 0; i < ORDERS; i++)
        ASSAY_TRY(run_in_order(t, i));
    return ASSAY_OK;
}

/* The child starts programs and computes nothing: threads of OpenMP do not outlive a fork. */
pid_t engine_run_ahead(const engine_trial *t)
{
    fflush(NULL);
    const pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent && run_all(t) == ASSAY_OK)
        _exit(0);
    assay_error_print(stderr, "assay certify", 0);
    _exit(1);
}

assay_status engine_join_ahead(engine_trial *t, pid_t pid, bool wanted)
{
    int status = 1;
    if (pid > 0 && !wanted)
        kill(pid, SIGKILL);
    while (pid > 0 && waitpid(pid, &status, 0) < 0)
        ASSAY_CHECK(errno == EINTR, ASSAY_IO, "waiting for the runs of %s: %s", t->act, strerror(errno));
    t->ahead = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    /* Not made again: a run that crashes once in a while would pass. */
    ASSAY_CHECK(t->ahead || !wanted || pid <= 0, ASSAY_CHILD, "a run of %s ended badly (its error is above)",
                t->act);
    return ASSAY_OK;
}
