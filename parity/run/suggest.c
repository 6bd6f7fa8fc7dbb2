/* `assay replay --suggest`: the tightest declaration of arithmetic under which every recorded element of an operation passes.
 *
 * Tightness is what a declaration allows: the sum of all bounds and last roundings of an operation's first record.  Declarations
 * are tried from the tightest on, each until a record fails. */
#include "parity/judge/suspect.h"
#include "parity/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = 2048 };

typedef struct candidate {
    assay_arith arith;
    double width;
} candidate;

typedef struct kind {
    const assay_trace *trace;
    const char *op;
    const assay_trace_op *first;
    int64_t records;
} kind;

/* Widths in steps of 1 %: closer ones are one, and the plainer declaration goes first (fewer roundings, the usual accumulator). */
static double step_of(double width)
{
    return isfinite(width) && width > 0.0 ? floor(log(width) * 100.0) : width;
}

static int compare_candidates(const void *a, const void *b)
{
    const candidate *p = a, *q = b;
    const double x = step_of(p->width), y = step_of(q->width);
    if (x != y)
        return (x > y) - (x < y);
    if (p->arith.rounding != q->arith.rounding)
        return (p->arith.rounding > q->arith.rounding) - (p->arith.rounding < q->arith.rounding);
    if (p->arith.accumulate != q->arith.accumulate)
        return p->arith.accumulate == ASSAY_F32 ? -1 : 1;
    return (p->width > q->width) - (p->width < q->width);
}

/* Whether every element of a record passes; width: what the declaration allows there. */
static assay_status try_record(const kind *k, const assay_trace_op *op, const assay_arith *arith,
                               bool *passes, double *width)
{
    suspect_trial t;
    bool readable = false;
    const assay_status st = suspect_open(&t, k->trace, op, &readable);
    int64_t bad = -1;
    t.declared = assay_declaration_make(*arith);
    if (st == ASSAY_OK && readable)
        bad = suspect_count(&t, width);
    *passes = bad == 0;
    if (bad < 0)
        *width = (double)INFINITY;
    suspect_close(&t);
    return st;
}

/* All declarations that differ in what a bound depends on. */
static int list_candidates(const kind *k, candidate *out)
{
    static const assay_dtype accumulate[] = {ASSAY_F64, ASSAY_F32};
    static const int tiles[] = {0, 16, 64, 128}, lanes[] = {1, 8, 32, 256}, ulps[] = {1, 2, 4, 8};
    const assay_order declared = k->first->arith.all.order;
    const unsigned rounding = suspect_roundings(k->op);
    const bool attention = strncmp(k->op, "attention_", 10) == 0;
    int n = 0;
    for (int a = 0; a < 2; a++)
        for (int o = 0; o < (declared == ASSAY_ORDER_NONE ? 1 : 6); o++)
            for (int t = 0; t < (attention ? 4 : 1); t++)
                for (int u = 0; u < 4; u++)
                    for (unsigned r = 0; r <= rounding; r++) {
                        if (r & ~rounding)
                            continue;
                        assay_arith x = assay_arith_elementwise();
                        x.accumulate = accumulate[a];
                        x.math_ulp = ulps[u];
                        x.fma = true;
                        x.tile = tiles[t];
                        x.rounding = r;
                        if (declared != ASSAY_ORDER_NONE) {
                            x.order = o == 0   ? ASSAY_ORDER_SEQUENTIAL
                                      : o == 5 ? ASSAY_ORDER_UNKNOWN
                                               : ASSAY_ORDER_TREE;
                            x.lanes = o >= 1 && o <= 4 ? lanes[o - 1] : 1;
                        }
                        if (n < MAX_CANDIDATES && (x.order != ASSAY_ORDER_TREE || x.lanes > 1))
                            out[n++].arith = x;
                    }
    return n;
}

static assay_status passes_all(const kind *k, const assay_arith *arith, bool *passes)
{
    double width;
    *passes = true;
    for (int rank = 0; rank < assay_trace_world(k->trace); rank++)
        for (int64_t i = 0; *passes && i < assay_trace_n_ops(k->trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(k->trace, rank, i);
            if (strcmp(op->op, k->op) == 0)
                ASSAY_TRY(try_record(k, op, arith, passes, &width));
        }
    return ASSAY_OK;
}

static void print_kind(const kind *k, const candidate *found, double declared, FILE *out)
{
    fprintf(out, "%-20s %lld record%s  ", k->op, (long long)k->records, k->records == 1 ? "" : "s");
    if (found == NULL) {
        fprintf(out, "no declaration under which every element passes (assay check says what is wrong)\n");
        return;
    }
    json_t *arith = assay_arith_to_json(&found->arith);
    char *text = arith != NULL ? json_dumps(arith, JSON_COMPACT) : NULL;
    fprintf(out, "%s", text != NULL ? text : "?");
    if (isfinite(declared) && declared > 0.0)
        fprintf(out, "  allows %.3g of what is declared", found->width / declared);
    fputc('\n', out);
    free(text);
    json_decref(arith);
}

static assay_status suggest_kind(const kind *k, FILE *out, bool *found)
{
    candidate *all = calloc(MAX_CANDIDATES, sizeof *all);
    assay_status st = ASSAY_OK;
    double declared = (double)INFINITY;
    bool passes = false;
    ASSAY_CHECK(all != NULL, ASSAY_OUT_OF_MEMORY, "declarations");
    const int n = list_candidates(k, all);
    ASSAY_TRY_GOTO(try_record(k, k->first, &k->first->arith.all, &passes, &declared), st, done);
    for (int i = 0; i < n; i++)
        ASSAY_TRY_GOTO(try_record(k, k->first, &all[i].arith, &passes, &all[i].width), st, done);
    qsort(all, (size_t)n, sizeof *all, compare_candidates);
    passes = false;
    int i = 0;
    for (; i < n && isfinite(all[i].width) && !passes; i++)
        ASSAY_TRY_GOTO(passes_all(k, &all[i].arith, &passes), st, done);
    *found = passes;
    print_kind(k, passes ? &all[i - 1] : NULL, declared, out);
done:
    free(all);
    return st;
}

static bool is_new(const assay_trace *t, int rank, int64_t at, const char *op)
{
    for (int r = 0; r <= rank; r++)
        for (int64_t i = 0; i < (r < rank ? assay_trace_n_ops(t, r) : at); i++)
            if (strcmp(assay_trace_op_at(t, r, i)->op, op) == 0)
                return false;
    return true;
}

static int64_t records_of(const assay_trace *t, const char *op)
{
    int64_t n = 0;
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++)
            n += strcmp(assay_trace_op_at(t, rank, i)->op, op) == 0;
    return n;
}

assay_status parity_suggest(const char *dir, FILE *out, int *exit_code)
{
    assay_trace *t = NULL;
    assay_status st = ASSAY_OK;
    int64_t kinds = 0, explained = 0;
    *exit_code = 2;
    ASSAY_TRY(assay_trace_open(&t, dir, true));
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            bool found = false;
            if (!ref_replay_knows(op->op) || !is_new(t, rank, i, op->op))
                continue;
            const kind k = {.trace = t, .op = op->op, .first = op, .records = records_of(t, op->op)};
            ASSAY_TRY_GOTO(suggest_kind(&k, out, &found), st, done);
            kinds++;
            explained += found;
        }
    if (kinds == 0)
        fprintf(out, "nothing to suggest: %s records no operation that the reference computes\n", dir);
    *exit_code = kinds == 0 ? 2 : explained < kinds ? 1 : 0;
done:
    assay_trace_close(t);
    return st;
}
