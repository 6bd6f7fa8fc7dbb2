/* Answers of a trial against the reference: what passed by which claim, and how close each output came. */
#include "parity/certify/ranks.h"
#include "parity/certify/shapes.h"

#include <math.h>
#include <string.h>

bool certify_passes(const certify_result *r)
{
    const int64_t judged = r->board.trial[CERTIFY_EXACT].calls + r->board.trial[CERTIFY_LOCAL].calls;
    return judged > 0 && certify_findings(&r->board) == 0 && !r->stopped;
}

void certify_result_free(certify_result *r)
{
    json_decref(r->subject);
    json_decref(r->where);
    json_decref(r->not_tried);
    json_decref(r->throughput);
    memset(r, 0, sizeof *r);
}

static certify_result *result_of(certify_result *results, int n, const char *op)
{
    for (int i = 0; i < n; i++)
        if (strcmp(results[i].op->name, op) == 0 ||
            (strcmp(op, "recv") == 0 && strcmp(results[i].op->name, "send") == 0))
            return &results[i];
    return NULL;
}

/* "local.nan.rmsnorm_fwd" -> "nan" */
static void mode_of(const char *instance, char out[32])
{
    const char *dot = strchr(instance, '.');
    snprintf(out, 32, "%.*s", dot != NULL ? (int)strcspn(dot + 1, ".") : 0, dot != NULL ? dot + 1 : "");
}

static certify_trial trial_of(const parity_claim *r)
{
    char mode[32];
    mode_of(r->instance, mode);
    if (r->check == PARITY_CHECK_EXACT)
        return CERTIFY_EXACT;
    return strcmp(mode, "nan") == 0 || strcmp(mode, "infinity") == 0 ? CERTIFY_SPECIAL : CERTIFY_LOCAL;
}

/* The symbols of a call. */
static assay_status bind_call(const assay_trace *request, const assay_trace_op *asked, const assay_op *op,
                              assay_dtype act, assay_op_operand operands[ASSAY_MAX_SLOTS],
                              assay_op_binding *binding)
{
    for (int i = 0; i < asked->n_inputs; i++) {
        const assay_trace_tensor *t = assay_trace_tensor_by_id(request, asked->rank, asked->inputs[i].tensor);
        operands[i] =
            (assay_op_operand){asked->inputs[i].slot, t->dtype, t->shard.ndim, t->shard.local_shape};
    }
    return assay_op_check(op, asked->attrs, act, act, operands, asked->n_inputs, NULL, -1, binding);
}

/* How close the output came: worst over the data modes that have a bound. */
static void note_output(certify_result *into, const parity_claim *r, const char *act)
{
    certify_output *o = NULL;
    char mode[32], place[96];
    if (trial_of(r) != CERTIFY_LOCAL || r->tensor[0] == '\0' || r->count == 0)
        return;
    for (int i = 0; i < into->n_outputs && o == NULL; i++)
        if (strcmp(into->output[i].slot, r->tensor) == 0 && strcmp(into->output[i].dtype, act) == 0)
            o = &into->output[i];
    if (o == NULL && into->n_outputs < CERTIFY_OUTPUTS) {
        o = &into->output[into->n_outputs++];
        snprintf(o->op, sizeof o->op, "%s", r->op);
        snprintf(o->slot, sizeof o->slot, "%.31s", r->tensor);
        snprintf(o->dtype, sizeof o->dtype, "%.7s", act);
        o->ratio = -1.0;
    }
    if (o == NULL)
        return;
    o->elements += r->count;
    o->share = r->share > o->share ? r->share : o->share;
    if (r->ratio <= o->ratio)
        return;
    mode_of(r->instance, mode);
    size_t n = 0;
    place[0] = '\0';
    for (int d = 0; d < r->index_ndim && n + 24 < sizeof place; d++)
        n += (size_t)snprintf(place + n, sizeof place - n, "%s%lld", d > 0 ? ", " : "",
                              (long long)r->index[d]);
    o->ratio = r->ratio;
    snprintf(o->place, sizeof o->place, "%s, element [%s]", mode, place);
}

/* Sizes and attributes of the call that a claim is about: " (T=300 H=264 eps=1e-06)"; "": it is not found. */
static void sizes_of(const parity_claim *r, const assay_trace *t, assay_dtype act, char *out, size_t capacity)
{
    assay_op_operand operands[ASSAY_MAX_SLOTS];
    assay_op_binding binding;
    char text[320];
    out[0] = '\0';
    if (t != NULL)
        for (int rank = 0; rank < assay_trace_world(t) && out[0] == '\0'; rank++)
            for (int64_t i = 0; i < assay_trace_n_ops(t, rank) && out[0] == '\0'; i++) {
                const assay_trace_op *asked = assay_trace_op_at(t, rank, i);
                const assay_op *op = assay_op_find(asked->op);
                const size_t n = strlen(asked->instance);
                if (op == NULL || strncmp(asked->instance, r->instance, n) != 0 ||
                    (r->instance[n] != '\0' && r->instance[n] != ' ') ||
                    bind_call(t, asked, op, act, operands, &binding) != ASSAY_OK)
                    continue;
                certify_call_text(op, &binding, asked->attrs, text, sizeof text);
                snprintf(out, capacity, " (%s)", text);
            }
    assay_error_clear();
}

static void take(certify_result *into, const parity_claim *r, certify_trial only, const char *act,
                 const assay_trace *request)
{
    char sizes[352] = "";
    assay_dtype dtype;
    const certify_trial t = only != CERTIFY_TRIALS ? only : trial_of(r);
    into->board.trial[t].calls++;
    if (only == CERTIFY_TRIALS)
        note_output(into, r, act);
    if (r->verdict == PARITY_PASS)
        return;
    if (into->board.trial[t].bad == 0 && assay_dtype_from_name(act, &dtype) == ASSAY_OK)
        sizes_of(r, request, dtype, sizes, sizeof sizes);
    certify_bad(&into->board, t, "%.40s of %.60s (%s): %.200s%s%.150s%s",
                r->tensor[0] != '\0' ? r->tensor : r->op, r->instance, act, r->message,
                r->diagnosis[0] != '\0' ? "; looks like: " : "", r->diagnosis, sizes);
}

typedef struct filter {
    const char *shapes;
    assay_dtype act;
    certify_result *results; /* of the operations that are judged */
    int n;
} filter;

/* Whether the description's shapes take a record, of a collective that of one rank.  What cannot be told is taken: an answer has to be
 * there. */
static bool takes(const filter *f, const assay_trace *request, const assay_trace_op *asked)
{
    assay_op_operand operands[ASSAY_MAX_SLOTS];
    assay_op_binding binding;
    const assay_op *op = assay_op_find(asked->op);
    char why[96];
    if (op == NULL)
        return true;
    assay_status st = bind_call(request, asked, op, f->act, operands, &binding);
    if (st == ASSAY_OK && op->collective)
        st = certify_bind_received(&binding, asked, asked->rank, assay_trace_world(request),
                                   asked->n_inputs > 0 ? operands[0].shape[0] : -1);
    if (st != ASSAY_OK) {
        assay_error_clear();
        return true; /* the judge refuses it by name */
    }
    return certify_shapes_take(f->shapes, op, &binding, asked->attrs, why, sizeof why) != 0;
}

/* "exact.all_gather.7" and "exact.recv.7" of the ranks of one call. */
static const char *number_of(const assay_trace_op *asked)
{
    const char *dot = strrchr(asked->instance, '.');
    return dot != NULL ? dot : asked->instance;
}

static bool is_taken(const void *user, const assay_trace *request, const assay_trace_op *asked)
{
    const filter *f = user;
    if (result_of(f->results, f->n, asked->op) == NULL)
        return false;
    if (f->shapes == NULL || f->shapes[0] == '\0')
        return true;
    if (!takes(f, request, asked))
        return false;
    /* a call of several ranks is made where all of them take it */
    for (int r = 0; r < assay_trace_world(request); r++)
        for (int64_t i = 0; r != asked->rank && i < assay_trace_n_ops(request, r); i++) {
            const assay_trace_op *other = assay_trace_op_at(request, r, i);
            if (strcmp(number_of(other), number_of(asked)) == 0) {
                if (!takes(f, request, other))
                    return false;
                break;
            }
        }
    return true;
}

assay_status certify_judge(const char *request, const char *answer, bool theirs, const char *shapes,
                           certify_trial only, certify_result *results, int n_results)
{
    parity_report *report = NULL;
    assay_trace *asked = NULL;
    assay_status st = ASSAY_OK;
    const char *act = strrchr(request, '.') + 1;
    filter f = {.shapes = shapes, .results = results, .n = n_results};
    ASSAY_TRY(assay_dtype_from_name(act, &f.act));
    ASSAY_TRY(parity_report_create(&report));
    ASSAY_TRY_GOTO(parity_check_exact_taken(request, answer, theirs, is_taken, &f, report), st, done);
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        certify_result *into = result_of(results, n_results, r->op);
        if (into == NULL &&
            r->verdict != PARITY_PASS) /* a record that nobody asked for is no operation's own */
            into = &results[0];
        /* opened once, where a finding asks for the sizes of its call; without them it is told, too */
        if (into != NULL && r->verdict != PARITY_PASS && asked == NULL &&
            assay_trace_open(&asked, request, false) != ASSAY_OK)
            assay_error_clear();
        if (into != NULL)
            take(into, r, only, act, asked);
    }
done:
    assay_trace_close(asked);
    parity_report_destroy(report);
    return st;
}

/* --- bits of two answers ------------------------------------------------------------------------------------- */
static void compare_record(const assay_trace *a, const assay_trace *b, int rank, int64_t i,
                           certify_trial which, certify_result *into)
{
    const assay_trace_op *p = assay_trace_op_at(a, rank, i), *q = assay_trace_op_at(b, rank, i);
    into->board.trial[which].calls++;
    for (int k = 0; k < p->n_outputs; k++) {
        const assay_trace_tensor *x = assay_trace_op_tensor(a, p, p->outputs[k].slot);
        const assay_trace_tensor *y = q != NULL ? assay_trace_op_tensor(b, q, p->outputs[k].slot) : NULL;
        if (x != NULL && y != NULL && assay_trace_same_content(x, y))
            continue;
        certify_bad(&into->board, which, "%s of %.100s has other bits in another run", p->outputs[k].slot,
                    p->instance);
        return;
    }
}

assay_status certify_judge_bits(const char *a_dir, const char *b_dir, certify_trial which,
                                certify_result *results, int n_results)
{
    assay_trace *a = NULL, *b = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_trace_open(&a, a_dir, true), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&b, b_dir, true), st, done);
    for (int r = 0; r < assay_trace_world(a); r++) {
        const int64_t n = assay_trace_n_ops(a, r);
        ASSAY_CHECK_GOTO(assay_trace_world(b) == assay_trace_world(a) && n == assay_trace_n_ops(b, r),
                         ASSAY_MISMATCH, st, done, "%s: %lld records of rank %d, %s: %lld", a_dir,
                         (long long)n, r, b_dir, (long long)assay_trace_n_ops(b, r));
        for (int64_t i = 0; i < n; i++) {
            certify_result *into = result_of(results, n_results, assay_trace_op_at(a, r, i)->op);
            if (into != NULL)
                compare_record(a, b, r, i, which, into);
        }
    }
done:
    assay_trace_close(a);
    assay_trace_close(b);
    return st;
}
