/* The report: results in the order in which the checks found them, kept as claims: a run has hundreds of thousands, most of
 * whose texts are those of the one before. */
#include "core/base/text.h"
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"

#include <stdlib.h>
#include <string.h>

struct parity_report {
    parity_result context;
    bool has_context;
    parity_origin origin;
    int64_t n, capacity;
    parity_claim *claims;
    parity_map *texts; /* of the claims, each once */
    int64_t totals[3]; /* by verdict */
    parity_gallery gallery;
    int64_t pictures, excerpts, drawn_in; /* those of the column of claim `drawn_in` */
};

assay_status parity_report_create(parity_report **out)
{
    parity_report *r = calloc(1, sizeof *r);
    *out = NULL;
    ASSAY_CHECK(r, ASSAY_OUT_OF_MEMORY, "report");
    r->origin = (parity_origin){.shard = 1, .shards = 1};
    const assay_status st = parity_map_create(&r->texts);
    if (st != ASSAY_OK) {
        free(r);
        return st;
    }
    *out = r;
    return ASSAY_OK;
}

void parity_report_destroy(parity_report *r)
{
    if (!r)
        return;
    parity_gallery_free(&r->gallery);
    parity_map_destroy(r->texts);
    free(r->claims);
    free(r);
}

void parity_report_set_context(parity_report *r, const parity_result *context)
{
    r->has_context = context != NULL;
    if (context)
        r->context = *context;
}

static void inherit(const char **text, const char *from)
{
    if ((*text)[0] == '\0')
        *text = from;
}

static void inherit_context(const parity_report *r, parity_claim *c)
{
    if (!r->has_context)
        return;
    inherit(&c->case_name, r->context.case_name);
    inherit(&c->engine, r->context.engine);
    inherit(&c->tier, r->context.tier);
    /* The word that the user asked for: a trace names its layout canonically ("ep2" and "dp2,ep2" are one). */
    if (r->context.layout[0] != '\0')
        c->layout = r->context.layout;
    inherit(&c->precision, r->context.precision);
    inherit(&c->variants, r->context.variants);
    inherit(&c->reproduce, r->context.reproduce);
}

/* Adds a claim of which nothing is drawn yet. */
static assay_status add(parity_report *r, const parity_claim *claim)
{
    parity_claim c = *claim; /* it may be one of this report, which moves */
    ASSAY_CHECK((int64_t)c.check >= 0 && c.check < PARITY_CHECK_COUNT, ASSAY_INTERNAL,
                "a result of no check: %.200s %.200s", c.instance, c.message);
    if (r->n == r->capacity) {
        const int64_t capacity = r->capacity ? 2 * r->capacity : 256;
        parity_claim *claims = realloc(r->claims, (size_t)capacity * sizeof *claims);
        ASSAY_CHECK(claims, ASSAY_OUT_OF_MEMORY, "report of %lld results", (long long)capacity);
        r->claims = claims;
        r->capacity = capacity;
    }
    c.picture = c.excerpt = c.curve = 0;
    inherit_context(r, &c);
    ASSAY_TRY(parity_claim_keep(&c, r->n > 0 ? &r->claims[r->n - 1] : NULL, r->texts, true));
    r->claims[r->n++] = c;
    /* An unknown verdict is nobody's pass. */
    const int64_t verdict = (int64_t)c.verdict;
    r->totals[verdict >= 0 && verdict <= PARITY_SKIP ? verdict : PARITY_FAIL]++;
    return ASSAY_OK;
}

assay_status parity_report_add(parity_report *r, const parity_result *result)
{
    const parity_claim claim = parity_claim_of(result);
    return add(r, &claim);
}

/* Equal texts of a report are one pointer. */
static bool same_column(const parity_claim *a, const parity_claim *b)
{
    return a->case_name == b->case_name && a->precision == b->precision && a->layout == b->layout &&
           a->variants == b->variants;
}

/* Another column begins to count anew. */
static void count_for(parity_report *r, const parity_claim *to)
{
    if (!same_column(&r->claims[r->drawn_in], to))
        r->pictures = r->excerpts = 0;
    r->drawn_in = r->n - 1;
}

static assay_status take_picture(parity_report *r, const parity_picture *picture, parity_claim *to)
{
    const parity_drawn one = {.picture = picture};
    int none;
    count_for(r, to);
    if (r->pictures == PARITY_PICTURES_OF_COLUMN || r->gallery.n_pictures == PARITY_PICTURES)
        return ASSAY_OK;
    r->pictures++;
    return parity_gallery_take(&r->gallery, &one, &to->picture, &none);
}

static assay_status take_excerpt(parity_report *r, const parity_excerpt *excerpt, parity_claim *to)
{
    parity_excerpt *copy;
    count_for(r, to);
    if (r->excerpts == PARITY_EXCERPTS_OF_COLUMN || r->gallery.n_excerpts == PARITY_EXCERPTS)
        return ASSAY_OK;
    ASSAY_TRY(parity_gallery_excerpt(&r->gallery, &copy, &to->excerpt));
    *copy = *excerpt;
    assay_clean_text(copy->title);
    for (int c = 0; c < copy->n_columns; c++)
        assay_clean_text(copy->heads[c]);
    for (int i = 0; i < copy->n_rows; i++)
        for (int c = 0; c < copy->n_columns; c++)
            assay_clean_text(copy->rows[i].cells[c]);
    r->excerpts++;
    return ASSAY_OK;
}

static assay_status take_curve(parity_report *r, const parity_curve *curve, parity_claim *to)
{
    ASSAY_TRY(parity_gallery_curve(&r->gallery, &to->curve));
    parity_curve *copy = parity_gallery_curve_at(&r->gallery, to->curve);
    for (int64_t i = 0; i < curve->n; i++)
        ASSAY_TRY(parity_curve_add(copy, &curve->points[i]));
    copy->stride = curve->stride;
    return ASSAY_OK;
}

assay_status parity_report_add_claim(parity_report *r, const parity_claim *claim, const parity_drawn *drawn)
{
    ASSAY_TRY(add(r, claim));
    if (drawn == NULL)
        return ASSAY_OK;
    parity_claim *to = &r->claims[r->n - 1];
    const bool failed = to->verdict == PARITY_FAIL;
    if (failed && drawn->picture != NULL)
        ASSAY_TRY(take_picture(r, drawn->picture, to));
    if (failed && drawn->excerpt != NULL)
        ASSAY_TRY(take_excerpt(r, drawn->excerpt, to));
    return drawn->curve != NULL && drawn->curve->n > 0 ? take_curve(r, drawn->curve, to) : ASSAY_OK;
}

assay_status parity_report_add_drawn(parity_report *r, const parity_result *result, const parity_drawn *drawn)
{
    const parity_claim claim = parity_claim_of(result);
    return parity_report_add_claim(r, &claim, drawn);
}

parity_drawn parity_gallery_drawn(const parity_gallery *g, const parity_claim *c)
{
    return (parity_drawn){.picture = parity_gallery_picture_at(g, c->picture),
                          .excerpt = parity_gallery_excerpt_at(g, c->excerpt),
                          .curve = parity_gallery_curve_at(g, c->curve)};
}

assay_status parity_report_add_from(parity_report *report, const parity_gallery *g, const parity_result *r)
{
    const parity_claim claim = parity_claim_of(r);
    const parity_drawn drawn = parity_gallery_drawn(g, &claim);
    return parity_report_add_claim(report, &claim, &drawn);
}

parity_drawn parity_report_drawn(const parity_report *r, const parity_claim *claim)
{
    return parity_gallery_drawn(&r->gallery, claim);
}

void parity_report_set_origin(parity_report *r, const parity_origin *origin)
{
    r->origin = *origin;
}

const parity_origin *parity_report_origin(const parity_report *r)
{
    return &r->origin;
}

int64_t parity_report_count(const parity_report *r)
{
    return r->n;
}

const parity_claim *parity_report_at(const parity_report *r, int64_t i)
{
    return i >= 0 && i < r->n ? &r->claims[i] : NULL;
}

void parity_report_totals(const parity_report *r, int64_t *passed, int64_t *failed, int64_t *skipped)
{
    *passed = r->totals[PARITY_PASS];
    *failed = r->totals[PARITY_FAIL];
    *skipped = r->totals[PARITY_SKIP];
}
