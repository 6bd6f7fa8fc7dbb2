/* The report: results in the order in which the checks found them. */
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
    parity_result *results;
    int64_t totals[3]; /* by verdict */
    parity_gallery gallery;
    int64_t pictures, excerpts, drawn_in; /* those of the column of result `drawn_in` */
};

assay_status parity_report_create(parity_report **out)
{
    *out = calloc(1, sizeof **out);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "report");
    (*out)->origin = (parity_origin){.shard = 1, .shards = 1};
    return ASSAY_OK;
}

void parity_report_destroy(parity_report *r)
{
    if (!r)
        return;
    parity_gallery_free(&r->gallery);
    free(r->results);
    free(r);
}

void parity_report_set_context(parity_report *r, const parity_result *context)
{
    r->has_context = context != NULL;
    if (context)
        r->context = *context;
}

static void inherit(char *text, size_t capacity, const char *from)
{
    if (text[0] == '\0')
        snprintf(text, capacity, "%s", from);
}

assay_status parity_report_add(parity_report *r, const parity_result *result)
{
    ASSAY_CHECK((int64_t)result->check >= 0 && result->check < PARITY_CHECK_COUNT, ASSAY_INTERNAL,
                "a result of no check: %.200s %.200s", result->instance, result->message);
    if (r->n == r->capacity) {
        const int64_t capacity = r->capacity ? 2 * r->capacity : 256;
        parity_result *results = realloc(r->results, (size_t)capacity * sizeof *results);
        ASSAY_CHECK(results, ASSAY_OUT_OF_MEMORY, "report of %lld results", (long long)capacity);
        r->results = results;
        r->capacity = capacity;
    }
    parity_result *to = &r->results[r->n++];
    *to = *result;
    to->picture = to->excerpt = to->curve = 0;
    if (r->has_context) {
        inherit(to->case_name, sizeof to->case_name, r->context.case_name);
        inherit(to->engine, sizeof to->engine, r->context.engine);
        inherit(to->tier, sizeof to->tier, r->context.tier);
        /* The word that the user asked for: a trace names its layout canonically ("ep2" and "dp2,ep2" are
         * one). */
        if (r->context.layout[0] != '\0')
            snprintf(to->layout, sizeof to->layout, "%s", r->context.layout);
        inherit(to->precision, sizeof to->precision, r->context.precision);
        inherit(to->variants, sizeof to->variants, r->context.variants);
        inherit(to->reproduce, sizeof to->reproduce, r->context.reproduce);
    }
    char *const texts[] = {to->case_name, to->engine,    to->tier,    to->layout,
                           to->precision, to->variants,  to->tensor,  to->op,
                           to->instance,  to->diagnosis, to->message, to->reproduce};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assay_clean_text(texts[i]);
    /* An unknown verdict is nobody's pass. */
    const int64_t verdict = (int64_t)to->verdict;
    r->totals[verdict >= 0 && verdict <= PARITY_SKIP ? verdict : PARITY_FAIL]++;
    return ASSAY_OK;
}

static bool same_column(const parity_result *a, const parity_result *b)
{
    return strcmp(a->case_name, b->case_name) == 0 && strcmp(a->precision, b->precision) == 0 &&
           strcmp(a->layout, b->layout) == 0 && strcmp(a->variants, b->variants) == 0;
}

/* Another column begins to count anew. */
static void count_for(parity_report *r, const parity_result *to)
{
    if (!same_column(&r->results[r->drawn_in], to))
        r->pictures = r->excerpts = 0;
    r->drawn_in = r->n - 1;
}

static assay_status take_picture(parity_report *r, const parity_picture *picture, parity_result *to)
{
    const parity_drawn one = {.picture = picture};
    int none;
    count_for(r, to);
    if (r->pictures == PARITY_PICTURES_OF_COLUMN || r->gallery.n_pictures == PARITY_PICTURES)
        return ASSAY_OK;
    r->pictures++;
    return parity_gallery_take(&r->gallery, &one, &to->picture, &none);
}

static assay_status take_excerpt(parity_report *r, const parity_excerpt *excerpt, parity_result *to)
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

static assay_status take_curve(parity_report *r, const parity_curve *curve, parity_result *to)
{
    ASSAY_TRY(parity_gallery_curve(&r->gallery, &to->curve));
    parity_curve *copy = parity_gallery_curve_at(&r->gallery, to->curve);
    for (int64_t i = 0; i < curve->n; i++)
        ASSAY_TRY(parity_curve_add(copy, &curve->points[i]));
    copy->stride = curve->stride;
    return ASSAY_OK;
}

assay_status parity_report_add_drawn(parity_report *r, const parity_result *result, const parity_drawn *drawn)
{
    ASSAY_TRY(parity_report_add(r, result));
    parity_result *to = &r->results[r->n - 1];
    const bool failed = to->verdict == PARITY_FAIL;
    if (failed && drawn->picture != NULL)
        ASSAY_TRY(take_picture(r, drawn->picture, to));
    if (failed && drawn->excerpt != NULL)
        ASSAY_TRY(take_excerpt(r, drawn->excerpt, to));
    return drawn->curve != NULL && drawn->curve->n > 0 ? take_curve(r, drawn->curve, to) : ASSAY_OK;
}

static parity_drawn drawn_from(const parity_gallery *g, const parity_result *result)
{
    return (parity_drawn){.picture = parity_gallery_picture_at(g, result->picture),
                          .excerpt = parity_gallery_excerpt_at(g, result->excerpt),
                          .curve = parity_gallery_curve_at(g, result->curve)};
}

assay_status parity_report_add_from(parity_report *report, const parity_gallery *g, const parity_result *r)
{
    const parity_drawn drawn = drawn_from(g, r);
    return parity_report_add_drawn(report, r, &drawn);
}

parity_drawn parity_report_drawn(const parity_report *r, const parity_result *result)
{
    return drawn_from(&r->gallery, result);
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

const parity_result *parity_report_at(const parity_report *r, int64_t i)
{
    return i >= 0 && i < r->n ? &r->results[i] : NULL;
}

void parity_report_totals(const parity_report *r, int64_t *passed, int64_t *failed, int64_t *skipped)
{
    *passed = r->totals[PARITY_PASS];
    *failed = r->totals[PARITY_FAIL];
    *skipped = r->totals[PARITY_SKIP];
}
