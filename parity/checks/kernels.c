/* Whether the kernels that were asked for ran: of a run with a selection, and of single operations that every kernel was to answer.
 * Which kernels there are is what the engine's doctor says, not what the judged trace does. */
#include "core/model/ops.h"
#include "parity/checks/request.h"
#include "parity/judge/judge.h"

#include <stdlib.h>
#include <string.h>

enum { VARIANTS = 10, WORD = PARITY_LADDER_WORD, RAN = 320 };

/* --- the ladder --------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* Whether this kernel takes some call of activations in this dtype on the engine's device. */
static bool takes(const parity_ladder *l, const json_t *rung, const char *act)
{
    const json_int_t least = json_integer_value(json_object_get(rung, "least_capability")),
                     most = json_integer_value(json_object_get(rung, "most_capability"));
    const char *only = text_of(rung, "act");
    return (*only == '\0' || strcmp(only, act) == 0) && l->capability >= least &&
           (most == 0 || l->capability <= most);
}

static const json_t *rung_of(const json_t *op, int variant)
{
    char name[8];
    size_t i;
    const json_t *rung;
    snprintf(name, sizeof name, "k%d", variant);
    json_array_foreach(json_object_get(op, "variants"), i,
                       rung) if (strcmp(text_of(rung, "name"), name) == 0) return rung;
    return NULL;
}

bool parity_ladder_takes(const parity_ladder *l, const char *op, int variant, const char *act)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(l->operations, i, entry)
    {
        const json_t *rung = strcmp(text_of(entry, "op"), op) == 0 ? rung_of(entry, variant) : NULL;
        if (rung != NULL)
            return takes(l, rung, act);
    }
    return false;
}

/* Words of a selection, one after the other: "attention=k3", or "k0" with an empty family.  false: none left. */
static bool next_word(const char **at, char word[WORD], char family[WORD], int *variant)
{
    const size_t length = strcspn(*at, ",");
    if (length == 0)
        return false;
    snprintf(word, WORD, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == ',');
    const char *equals = strchr(word, '='), *number = equals != NULL ? equals + 1 : word;
    snprintf(family, WORD, "%.*s", equals != NULL ? (int)(equals - word) : 0, word);
    *variant = number[0] == 'k' && number[1] >= '0' && number[1] <= '9' ? number[1] - '0' : -1;
    return true;
}

bool parity_ladder_answers(const parity_ladder *l, const char *selection, const char *act,
                           char missing[PARITY_LADDER_WORD])
{
    char word[WORD], family[WORD];
    int variant;
    size_t i;
    const json_t *entry;
    while (next_word(&selection, word, family, &variant)) {
        bool any = family[0] == '\0' || variant < 0 || l->operations == NULL;
        json_array_foreach(l->operations, i, entry) any =
            any || (strcmp(text_of(entry, "family"), family) == 0 &&
                    parity_ladder_takes(l, text_of(entry, "op"), variant, act));
        if (any)
            continue;
        snprintf(missing, PARITY_LADDER_WORD, "%s", word);
        return false;
    }
    return true;
}

/* --- of a run ----------------------------------------------------------------------------------------------- */

typedef struct counts {
    int n;                    /* rows of operations */
    int64_t (*ran)[VARIANTS]; /* records of each, by variant */
    const char *selection, *act;
    const parity_ladder *ladder;
} counts;

/* What ran a record: the operation whose kernel it was, and not one that was left out or a collective. */
static const assay_op *kernel_of(const assay_trace_op *op)
{
    const assay_op *row = assay_op_find(op->fused[0] != '\0' ? op->fused : op->op);
    return row == NULL || row->collective || op->variant < 0 || op->variant >= VARIANTS ||
                   strcmp(op->variant_name, "skipped") == 0
               ? NULL
               : row;
}

/* Which records of a request count. */
typedef enum kind { ANY, LATTICE, RANDOM } kind;

static bool is_of_kind(const assay_trace_op *op, kind wanted)
{
    return wanted == ANY || parity_asked_on_lattice(op) == (wanted == LATTICE);
}

static void count(const assay_trace *t, kind wanted, counts *c)
{
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            const assay_op *row = is_of_kind(op, wanted) ? kernel_of(op) : NULL;
            int k = 0;
            while (row != NULL && assay_op_at(k) != row)
                k++;
            if (row != NULL)
                c->ran[k][op->variant]++;
        }
}

/* Whether the word is what this operation was to run by: its family's, or "kN" where that has none. */
static bool is_of(const counts *c, const assay_op *op, const char *family)
{
    char word[WORD], other[WORD];
    int variant;
    if (op->collective || family[0] != '\0')
        return !op->collective && strcmp(op->family, family) == 0;
    for (const char *at = c->selection; next_word(&at, word, other, &variant);)
        if (strcmp(other, op->family) == 0)
            return false;
    return true;
}

/* "attention_fwd k1 (16), attention_bwd k1 (16)" */
static void tell(const counts *c, const char *family, char out[RAN])
{
    size_t used = 0;
    snprintf(out, RAN, "nothing");
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < VARIANTS && used < RAN; k++)
            if (c->ran[i][k] > 0 && is_of(c, assay_op_at(i), family))
                used += (size_t)snprintf(out + used, RAN - used, "%s%s k%d (%lld)", used > 0 ? ", " : "",
                                         assay_op_at(i)->name, k, (long long)c->ran[i][k]);
}

/* Of the operations of a word: records at its variant, above it, and of those that have such a kernel. */
static void sum_up(const counts *c, const char *family, int variant, int64_t *at, int64_t *above,
                   int64_t *could, bool *fused)
{
    *at = *above = *could = 0;
    *fused = true;
    for (int i = 0; i < c->n; i++) {
        const assay_op *op = assay_op_at(i);
        int64_t all = 0;
        if (!is_of(c, op, family))
            continue;
        *fused = *fused && assay_op_n_parts(op) > 0;
        for (int k = 0; k < VARIANTS; k++) {
            all += c->ran[i][k];
            *at += k == variant ? c->ran[i][k] : 0;
            *above += k > variant ? c->ran[i][k] : 0;
        }
        if (parity_ladder_takes(c->ladder, op->name, variant, c->act))
            *could += all;
    }
}

/* k0 of a fused operation is its parts, each by itself: it has no record. */
static void judge_word(const counts *c, const char *word, const char *family, int variant, parity_result *r)
{
    int64_t at, above, could;
    bool fused;
    char ran[RAN];
    sum_up(c, family, variant, &at, &above, &could, &fused);
    tell(c, family, ran);
    snprintf(r->tensor, sizeof r->tensor, "%s", word);
    if (above > 0)
        parity_result_fail(r, "%s was asked for, and %lld records are of higher kernels; what ran: %s", word,
                           (long long)above, ran);
    else if (at > 0 || (fused && variant == 0) ||
             (family[0] == '\0' && could == 0 && c->ladder->operations != NULL))
        r->verdict = PARITY_PASS;
    else if (could > 0)
        parity_result_fail(r, "%s was asked for, and no record%s%s is of k%d; what ran: %s", word,
                           family[0] != '\0' ? " of " : "", family, variant, ran);
    else if (c->ladder->operations == NULL)
        parity_result_skip(
            r, "%s was asked for, and the engine does not say which kernels it has (doctor --ops)", word);
    else
        parity_result_skip(
            r, "%s was asked for, and no operation of this run has a k%d of %s for %s; what ran: %s", word,
            variant, family, c->act, ran);
}

assay_status parity_check_kernels(const assay_trace *t, const parity_ladder *ladder, const char *selection,
                                  const char *act, parity_report *report)
{
    char word[WORD], family[WORD];
    int variant;
    counts c = {.selection = selection, .act = act, .ladder = ladder};
    assay_status st = ASSAY_OK;
    while (assay_op_at(c.n) != NULL)
        c.n++;
    c.ran = calloc((size_t)c.n, sizeof *c.ran);
    ASSAY_CHECK(c.ran != NULL, ASSAY_OUT_OF_MEMORY, "kernels of %d operations", c.n);
    count(t, ANY, &c);
    for (const char *at = selection; st == ASSAY_OK && next_word(&at, word, family, &variant);) {
        parity_result r;
        if (variant < 0)
            continue; /* "fastest" */
        parity_result_init(&r);
        r.check = PARITY_CHECK_PLAN;
        parity_result_from_trace(&r, t);
        snprintf(r.instance, sizeof r.instance, "kernels");
        judge_word(&c, word, family, variant, &r);
        st = parity_report_add(report, &r);
    }
    free(c.ran);
    return st;
}

/* --- of single operations ----------------------------------------------------------------------------------- */

static bool is_asked(const assay_trace *request, kind wanted, const char *op, const char *act)
{
    for (int rank = 0; rank < assay_trace_world(request); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(request, rank); i++) {
            const assay_trace_op *asked = assay_trace_op_at(request, rank, i);
            const char *own = json_string_value(json_object_get(asked->attrs, "act"));
            if (is_of_kind(asked, wanted) && strcmp(asked->op, op) == 0 &&
                strcmp(own != NULL ? own : "F32", act) == 0)
                return true;
        }
    return false;
}

/* Every kernel of the operation that takes this dtype here has an answer of this kind, and no other has. */
static assay_status judge_rungs(const counts *c, int row, kind asked, parity_report *report)
{
    const char *op = assay_op_at(row)->name;
    bool holds = true;
    parity_result r;
    parity_result_init(&r);
    r.check = asked == LATTICE ? PARITY_CHECK_EXACT : PARITY_CHECK_LOCAL;
    snprintf(r.op, sizeof r.op, "%s", op);
    snprintf(r.instance, sizeof r.instance, "kernels");
    for (int k = VARIANTS - 1; k >= 0; k--) {
        const bool has = parity_ladder_takes(c->ladder, op, k, c->act);
        if (has == (c->ran[row][k] > 0))
            continue;
        snprintf(r.tensor, sizeof r.tensor, "k%d", k);
        if (has)
            parity_result_fail(&r, "k%d of %s answered nothing: no request of %s with %s inputs reached it",
                               k, op, c->act, asked == LATTICE ? "lattice" : "random");
        else
            parity_result_fail(&r, "k%d of %s answered, which the engine's doctor does not have for %s", k,
                               op, c->act);
        ASSAY_TRY(parity_report_add(report, &r));
        holds = false;
    }
    r.verdict = PARITY_PASS;
    return holds ? parity_report_add(report, &r) : ASSAY_OK;
}

/* An engine of somebody else need not say what it has: then nobody knows whether all of it answered. */
static assay_status add_unknown(parity_report *report)
{
    parity_result r;
    parity_result_init(&r);
    r.check = PARITY_CHECK_EXACT;
    snprintf(r.instance, sizeof r.instance, "kernels");
    parity_result_skip(&r, "the engine does not say which kernels it has (doctor --ops)");
    return parity_report_add(report, &r);
}

static assay_status judge_kind(const assay_trace *request, const assay_trace *answer, kind asked, counts *c,
                               parity_report *report)
{
    assay_status st = ASSAY_OK;
    c->ran = calloc((size_t)c->n, sizeof *c->ran);
    ASSAY_CHECK(c->ran != NULL, ASSAY_OUT_OF_MEMORY, "kernels of %d operations", c->n);
    count(answer, asked, c);
    for (int i = 0; i < c->n && st == ASSAY_OK; i++)
        if (!assay_op_at(i)->collective && is_asked(request, asked, assay_op_at(i)->name, c->act))
            st = judge_rungs(c, i, asked, report);
    free(c->ran);
    c->ran = NULL;
    return st;
}

assay_status parity_check_rungs(const char *request_dir, const char *answer_dir, const parity_ladder *ladder,
                                const char *act, parity_report *report)
{
    assay_trace *request = NULL, *answer = NULL;
    counts c = {.selection = "", .act = act, .ladder = ladder};
    assay_status st = ASSAY_OK;
    if (ladder->operations == NULL)
        return add_unknown(report);
    ASSAY_TRY_GOTO(assay_trace_open(&request, request_dir, false), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&answer, answer_dir, false), st, done);
    while (assay_op_at(c.n) != NULL)
        c.n++;
    for (kind k = LATTICE; k <= RANDOM && st == ASSAY_OK; k++)
        st = judge_kind(request, answer, k, &c, report);
done:
    assay_trace_close(answer);
    assay_trace_close(request);
    return st;
}
