/* Claims: results with texts that are kept once. */
#include "core/base/text.h"
#include "parity/judge/judge.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Texts of a result in the order of parity_claim's. */
#define TEXT(member)                                                                                         \
    {                                                                                                        \
        offsetof(parity_result, member), sizeof((parity_result *)NULL)->member                               \
    }
static const struct text_member {
    size_t at, bytes;
} members[PARITY_TEXTS] = {TEXT(case_name), TEXT(precision), TEXT(layout),    TEXT(variants),
                           TEXT(op),        TEXT(instance),  TEXT(tensor),    TEXT(engine),
                           TEXT(tier),      TEXT(message),   TEXT(diagnosis), TEXT(reproduce)};
#undef TEXT
_Static_assert(offsetof(parity_claim, reproduce) ==
                   offsetof(parity_claim, text) + (PARITY_TEXTS - 1) * sizeof(const char *),
               "twelve texts without a gap");
_Static_assert(offsetof(parity_claim, op) - offsetof(parity_claim, text) == 4 * sizeof(const char *) &&
                   offsetof(parity_claim, engine) - offsetof(parity_claim, op) == 3 * sizeof(const char *) &&
                   offsetof(parity_claim, message) - offsetof(parity_claim, engine) ==
                       2 * sizeof(const char *),
               "in the order of the table");
_Static_assert(sizeof(parity_claim) <= 256, "hundreds of thousands are held at once");

static const char nothing[] = ""; /* one pointer, as other texts are */

void parity_claim_init(parity_claim *c)
{
    memset(c, 0, sizeof *c);
    c->check = PARITY_CHECK_COUNT;
    c->verdict = PARITY_SKIP;
    c->phase = ASSAY_PHASE_FORWARD;
    c->step = c->microbatch = -1;
    c->rank = -1;
    for (int k = 0; k < PARITY_TEXTS; k++)
        c->text[k] = nothing;
}

parity_claim parity_claim_of(const parity_result *r)
{
    parity_claim c;
    memset(&c, 0, sizeof c); /* a part is written with its padding */
    c.check = r->check, c.verdict = r->verdict, c.phase = r->phase;
    c.ratio = r->ratio, c.share = r->share;
    c.picture = r->picture, c.excerpt = r->excerpt, c.curve = r->curve;
    c.rank = r->rank, c.variant = r->variant, c.index_ndim = r->index_ndim;
    c.is_distance = r->is_distance;
    c.step = r->step, c.microbatch = r->microbatch;
    c.count = r->count, c.n_bad = r->n_bad, c.n_ambiguous = r->n_ambiguous;
    c.found = r->found, c.expected = r->expected, c.allowance = r->allowance;
    memcpy(c.index, r->index, sizeof c.index);
    for (int k = 0; k < PARITY_TEXTS; k++)
        c.text[k] = (const char *)r + members[k].at;
    return c;
}

size_t parity_claim_text_bytes(int k)
{
    return members[k].bytes;
}

/* A text that is found needs no cleaning: only clean ones were put. */
static assay_status keep_clean(const char *text, parity_map *texts, const char **kept)
{
    *kept = parity_map_kept(texts, text);
    if (*kept != NULL)
        return ASSAY_OK;
    char *copy = strdup(text);
    ASSAY_CHECK(copy != NULL, ASSAY_OUT_OF_MEMORY, "texts of a report");
    assay_clean_text(copy);
    const assay_status st = parity_map_keep(texts, copy, kept);
    free(copy);
    return st;
}

assay_status parity_claim_keep(parity_claim *c, const parity_claim *like, parity_map *texts, bool clean)
{
    for (int k = 0; k < PARITY_TEXTS; k++) {
        const char *text = c->text[k];
        if (text[0] == '\0')
            c->text[k] = nothing;
        else if (like != NULL && (text == like->text[k] || strcmp(text, like->text[k]) == 0))
            c->text[k] = like->text[k];
        else
            ASSAY_TRY(clean ? keep_clean(text, texts, &c->text[k])
                            : parity_map_keep(texts, text, &c->text[k]));
    }
    return ASSAY_OK;
}

void parity_claim_from_op(parity_claim *c, const assay_trace_op *op)
{
    c->op = op->op;
    c->instance = op->instance;
    c->phase = op->phase;
    c->step = op->step;
    c->microbatch = op->microbatch;
    c->rank = op->rank;
    c->variant = op->variant;
}
