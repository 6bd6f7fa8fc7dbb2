/* index.html: a cell of a heat map, the worst of what it stands for. */
#include "parity/report/page.h"
#include <math.h>
#include <string.h>

static const struct look {
    const char *class, *sample, *words;
} looks[PARITY_HEATS] = {
    [PARITY_HEAT_NONE] = {"", "", "no such operation"},
    [PARITY_HEAT_EQUAL] = {"hr", "=", "equal: every bit, count and word as expected"},
    [PARITY_HEAT_ROUNDING] = {"hr", "0", "exact rounding: every element is correctly rounded"},
    [PARITY_HEAT_WITHIN] = {"hw", ".125", "within: at most 3/4 of the bound"},
    [PARITY_HEAT_NEAR] = {"hn", ".875", "near: more than 3/4 of the bound"},
    [PARITY_HEAT_VIOLATED] = {"hv", "3.2", "violated: beyond the bound, or not as expected"},
    [PARITY_HEAT_SKIPPED] = {"hs", "?", "not checked"},
};

void parity_put_heat_legend(FILE *f)
{
    fputs("<ul class=legend>", f);
    for (int k = PARITY_HEAT_EQUAL; k < PARITY_HEATS; k++)
        fprintf(f, "<li><b class=%s>%s</b>%s", looks[k].class, looks[k].sample, looks[k].words);
    fputs("</ul>", f);
}

parity_heat parity_heat_of(double ratio, double share)
{
    if (!(share <= 1.0))
        return PARITY_HEAT_VIOLATED;
    return ratio == 0.0    ? PARITY_HEAT_EQUAL
           : share == 0.0  ? PARITY_HEAT_ROUNDING
           : share <= 0.75 ? PARITY_HEAT_WITHIN
                           : PARITY_HEAT_NEAR;
}

/* ".125", "1.000", "inf" */
static void put_share(FILE *f, double share)
{
    char text[32];
    if (isinf(share) || isnan(share)) {
        fputs(isnan(share) ? "nan" : "&infin;", f);
        return;
    }
    snprintf(text, sizeof text, share > 1.0 ? "%.3g" : "%.3f", share);
    fputs(text[0] == '0' && text[1] == '.' ? text + 1 : text, f);
}

/* Tens of thousands of these make the page: what is calm needs no class, and no end tags (HTML needs none). */
void parity_put_heat(FILE *f, parity_heat heat, double share, int64_t link)
{
    if (heat > PARITY_HEAT_ROUNDING)
        fprintf(f, "<td class=%s>", looks[heat].class);
    else
        fputs("<td>", f);
    if (link >= 0)
        fprintf(f, "<a href=#f%lld>", (long long)link);
    if (heat >= PARITY_HEAT_WITHIN && heat <= PARITY_HEAT_VIOLATED)
        put_share(f, share);
    else
        fputs(looks[heat].sample, f);
    if (link >= 0)
        fputs("</a>", f);
}

void parity_heat_count(parity_heat_cell *c, const parity_claim *x, int64_t i)
{
    c->claims++;
    if (x->verdict == PARITY_SKIP) {
        c->skipped++;
        return;
    }
    if (!isnan(c->ratio) && !(x->ratio <= c->ratio))
        c->ratio = x->ratio;
    const bool worse = !isnan(c->share) && !(x->share <= c->share); /* a NaN is the worst and stays it */
    const bool failed = x->verdict == PARITY_FAIL;
    if (worse)
        c->share = x->share;
    if (c->worst < 0 || (failed && !c->failed) || (failed == c->failed && worse))
        c->worst = i;
    c->failed = c->failed || failed;
}

static parity_heat heat_of(const parity_heat_cell *c)
{
    if (c->failed)
        return PARITY_HEAT_VIOLATED;
    if (c->skipped > 0) /* a skip never hides under what holds beside it */
        return PARITY_HEAT_SKIPPED;
    return parity_heat_of(c->ratio, c->share);
}

void parity_put_heat_cell(const parity_page *p, const parity_heat_cell *c)
{
    const bool none = c == NULL || c->claims == 0;
    const int64_t link = !none && c->failed && p->shown[c->worst] ? c->worst : -1;
    parity_put_heat(p->f, none ? PARITY_HEAT_NONE : heat_of(c), none ? 0.0 : c->share, link);
}

void parity_layer_of(const char *instance, char out[ASSAY_NAME])
{
    static const char layers[] = "decoder.layers.";
    if (strncmp(instance, layers, sizeof layers - 1) == 0) {
        const char *number = instance + sizeof layers - 1;
        snprintf(out, ASSAY_NAME, "layer %.*s", (int)strcspn(number, "."), number);
        return;
    }
    size_t n = strcspn(instance, ".");
    if (strncmp(instance, "decoder.", 8) == 0)
        n = 8 + strcspn(instance + 8, ".");
    snprintf(out, ASSAY_NAME, "%.*s", (int)n, instance);
}
