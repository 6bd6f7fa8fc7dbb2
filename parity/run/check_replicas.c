/* Ranks that hold the same piece of a parameter: AdamW is called alike there and leaves the same. */
#include "parity/run/check.h"

#include <math.h>
#include <string.h>

enum { PIECE = 448, KEY = 512 };

typedef struct replicas {
    check_state *c;
    parity_map *first, /* piece of a parameter in a step -> rank << 40 | operation: who had it first */
        *counts,       /* of this rank: piece and step -> how many operations there were */
        *stepped; /* rank and piece -> 1, with a step behind: there was one in it; rank and step: it has records of it */
    int rank;
    bool reduced; /* it has gradients behind a reduction over ranks: its copies are no runs of their own */
} replicas;

static double number(const assay_trace_op *op, const char *key)
{
    const json_t *x = json_object_get(op->attrs, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* The parameter and the place in the whole. */
static assay_status piece_of(const assay_trace_op *op, const assay_shard *s, char piece[PIECE])
{
    int n = snprintf(piece, PIECE, "%s", op->instance);
    for (int d = 0; d < s->ndim; d++)
        for (int k = 0; k < s->n_segments[d] && n < PIECE; k++)
            n += snprintf(piece + n, PIECE - (size_t)n, "%c%lld+%lld", k == 0 ? '|' : ',',
                          (long long)s->segments[d][k].start, (long long)s->segments[d][k].length);
    ASSAY_CHECK(n < PIECE, ASSAY_INVALID_ARGUMENT, "%s: expected a place of less than %d letters",
                op->instance, PIECE);
    return ASSAY_OK;
}

/* The piece, the step, and which of its operations there. */
static assay_status key_of(replicas *r, const char *piece, int64_t step, char key[KEY])
{
    const int n = snprintf(key, KEY, "%s|%lld", piece, (long long)step);
    const int64_t before = parity_map_get(r->counts, key);
    ASSAY_TRY(parity_map_put(r->counts, key, before < 0 ? 1 : before + 1));
    snprintf(key + n, KEY - (size_t)n, "|%lld", (long long)(before < 0 ? 0 : before));
    return ASSAY_OK;
}

static bool has_stepped(const replicas *r, int rank, const char *piece, int64_t step)
{
    char key[KEY];
    snprintf(key, KEY, "%d|%s|%lld", rank, piece, (long long)step);
    return parity_map_get(r->stepped, key) >= 0;
}

/* step below 0: in any. */
static assay_status note_step(replicas *r, const char *piece, int64_t step)
{
    char key[KEY];
    snprintf(key, KEY, "%d|%s|%lld", r->rank, piece, (long long)step);
    return parity_map_put(r->stepped, key, 1);
}

static void finding(replicas *r, int other, const assay_trace_op *op, const char *text)
{
    char said[PARITY_TEXT];
    snprintf(said, sizeof said,
             "AdamW of %.200s in step %lld %.200s: both ranks hold this piece of the parameter, and train it "
             "apart",
             op->instance, (long long)op->step, text);
    if (r->reduced)
        check_fail(r->c, CHECK_CONTINUITY, "%s", said);
    else if (r->c->unchecked[CHECK_CONTINUITY][0] == '\0')
        snprintf(r->c->unchecked[CHECK_CONTINUITY], PARITY_TEXT,
                 "%.700s; no reduction over ranks %d and %d was recorded, they may be runs of their own",
                 said, other, r->rank);
}

static void compare(replicas *r, int other, const assay_trace_op *a, const assay_trace_op *b)
{
    static const char *const attributes[] = {"lr", "weight_decay", "beta1", "beta2", "eps", "step"};
    char text[256];
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        const double x = number(a, attributes[i]), y = number(b, attributes[i]);
        if (x == y || isnan(x) || isnan(y))
            continue;
        snprintf(text, sizeof text, "has %s %.9g on rank %d, %.9g on rank %d", attributes[i], y, r->rank, x,
                 other);
        finding(r, other, b, text);
        return;
    }
    const assay_trace_tensor *x = assay_trace_op_tensor(r->c->trace, a, "main_param"),
                             *y = assay_trace_op_tensor(r->c->trace, b, "main_param");
    if (x->dtype != y->dtype || !assay_trace_content_comparable(x, y) || assay_trace_same_content(x, y))
        return;
    snprintf(text, sizeof text, "leaves another main_param on rank %d than on rank %d", r->rank, other);
    finding(r, other, b, text);
}

static assay_status walk_rank(replicas *r)
{
    const assay_trace *t = r->c->trace;
    int64_t last = -1;
    for (int64_t i = 0; i < assay_trace_n_tensors(t, r->rank); i++) {
        const int64_t step = assay_trace_tensor_at(t, r->rank, i)->step;
        if (step != last)
            ASSAY_TRY(note_step(r, "", step));
        last = step;
    }
    for (int64_t i = 0; i < assay_trace_n_ops(t, r->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, r->rank, i);
        const assay_trace_tensor *p = strcmp(op->op, "adamw") == 0 && op->phase == ASSAY_PHASE_OPTIMIZER
                                          ? assay_trace_op_tensor(t, op, "main_param")
                                          : NULL;
        char piece[PIECE], key[KEY];
        if (p == NULL || p->kind != ASSAY_PIECE_SHARD)
            continue;
        ASSAY_TRY(piece_of(op, &p->shard, piece));
        ASSAY_TRY(note_step(r, piece, op->step));
        ASSAY_TRY(note_step(r, piece, -1));
        ASSAY_TRY(key_of(r, piece, op->step, key));
        const int64_t who = parity_map_get(r->first, key);
        if (who < 0)
            ASSAY_TRY(parity_map_put(r->first, key, (int64_t)r->rank << 40 | i));
        else
            compare(r, (int)(who >> 40),
                    assay_trace_op_at(t, (int)(who >> 40), who & (((int64_t)1 << 40) - 1)), op);
    }
    return ASSAY_OK;
}

/* A step that one rank made with a piece, and another, which makes it in other steps and has records of this one, did not: as a GradScaler
 * that found an infinity on one rank alone leaves it. */
static assay_status find_left_out(replicas *r)
{
    const assay_trace *t = r->c->trace;
    for (int64_t i = 0; i < assay_trace_n_ops(t, r->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, r->rank, i);
        const assay_trace_tensor *p = strcmp(op->op, "adamw") == 0 && op->phase == ASSAY_PHASE_OPTIMIZER
                                          ? assay_trace_op_tensor(t, op, "main_param")
                                          : NULL;
        char piece[PIECE], text[128];
        if (p == NULL || p->kind != ASSAY_PIECE_SHARD)
            continue;
        ASSAY_TRY(piece_of(op, &p->shard, piece));
        for (int other = 0; other < assay_trace_world(t); other++) {
            if (!has_stepped(r, other, piece, -1) || !has_stepped(r, other, "", op->step) ||
                has_stepped(r, other, piece, op->step))
                continue;
            snprintf(text, sizeof text, "is called on rank %d and not on rank %d", r->rank, other);
            finding(r, other, op, text);
            return ASSAY_OK;
        }
    }
    return ASSAY_OK;
}

static bool is_reduced(const assay_trace *t, int rank)
{
    for (int64_t i = 0; i < assay_trace_n_tensors(t, rank); i++)
        if (assay_trace_tensor_at(t, rank, i)->phase == ASSAY_PHASE_REDUCED_GRAD)
            return true;
    return false;
}

assay_status check_replicas(check_state *c)
{
    replicas r = {.c = c};
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_map_create(&r.first), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&r.stepped), st, done);
    for (r.rank = 0; r.rank < assay_trace_world(c->trace) && st == ASSAY_OK; r.rank++) {
        r.reduced = is_reduced(c->trace, r.rank);
        st = parity_map_create(&r.counts);
        if (st == ASSAY_OK)
            st = walk_rank(&r);
        parity_map_destroy(r.counts);
        r.counts = NULL;
    }
    for (r.rank = 0; r.rank < assay_trace_world(c->trace) && st == ASSAY_OK; r.rank++) {
        r.reduced = is_reduced(c->trace, r.rank);
        st = find_left_out(&r);
    }
done:
    parity_map_destroy(r.stepped);
    parity_map_destroy(r.first);
    return st;
}
