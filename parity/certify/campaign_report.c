/* What was covered, and how close it came. */
#include "parity/certify/campaign_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct coverage {
    int64_t calls[ACTS], shapes, pairs, of;
    int32_t least;
} coverage;

/* Of one rung: shapes at which it ran, pairs of a data mode and such a shape in a dtype, and how often the rarest was asked. */
static coverage covered(const campaign *c, const char *op, int rung)
{
    coverage v = {.least = INT32_MAX};
    for (int64_t s = 0; s < c->n_shapes; s++) {
        bool any = false;
        for (int a = 0; a < ACTS && c->shapes[s].op != NULL && strcmp(c->shapes[s].op, op) == 0; a++) {
            const int32_t *calls = c->cells[s].calls[rung][a];
            int32_t sum = 0;
            for (int m = 0; m < PARITY_MODE_COUNT; m++)
                sum += calls[m];
            for (int m = 0; m < PARITY_MODE_COUNT && sum > 0; m++)
                if ((c->shapes[s].modes >> m & 1u) != 0) {
                    v.of++;
                    v.pairs += calls[m] > 0;
                    v.least = calls[m] < v.least ? calls[m] : v.least;
                }
            v.calls[a] += sum;
            any = any || sum > 0;
        }
        v.shapes += any;
    }
    return v;
}

static int64_t shapes_of(const campaign *c, const char *op)
{
    int64_t n = 0;
    for (int64_t s = 0; s < c->n_shapes; s++)
        n += c->shapes[s].op != NULL && strcmp(c->shapes[s].op, op) == 0;
    return n;
}

/* The engine's row of an operation; NULL: it has none. */
static const json_t *row_of(const campaign *c, const char *op)
{
    for (size_t i = 0; i < json_array_size(c->operations); i++) {
        const json_t *row = json_array_get(c->operations, i);
        const char *name = json_string_value(json_object_get(row, "op"));
        if (name != NULL && strcmp(name, op) == 0)
            return row;
    }
    return NULL;
}

/* A rung that is listed has run in every dtype that it takes on this device, on all data; one that is not listed has not run. */
static bool print_rung(const campaign *c, const char *op, const json_t *variant, int rung, int64_t shapes)
{
    const coverage v = covered(c, op, rung);
    bool whole = variant != NULL && v.pairs == v.of;
    char said[96] = "";
    int64_t calls = 0;
    bool any = false;
    for (int a = 0; a < ACTS; a++) {
        const bool taken = parity_ladder_takes(&c->e->ladder, op, rung, campaign_acts[a]),
                   ran = v.calls[a] > 0;
        calls += v.calls[a];
        any = any || taken;
        whole = whole && taken == ran;
        if (taken != ran && variant != NULL)
            snprintf(said + strlen(said), sizeof said - strlen(said), "  %s in %s%s", ran ? "ran" : "never",
                     campaign_acts[a], taken ? "" : ", which it does not take");
    }
    if (variant == NULL && calls == 0)
        return true;
    if (!any && calls == 0) {
        printf("%-26s k%-3d takes nothing on this device\n", op, rung);
        return true;
    }
    printf("%-26s k%-3d %9lld %9lld  %4lld of %-4lld %6lld of %-6lld %s%.0d%s\n", op, rung,
           (long long)v.calls[0], (long long)v.calls[1], (long long)v.shapes, (long long)shapes,
           (long long)v.pairs, (long long)v.of, calls > 0 && v.least == 0 ? "0" : "",
           calls > 0 ? (int)v.least : 0, variant == NULL ? "  ran, and is not listed" : said);
    return whole && calls > 0;
}

void campaign_print_coverage(const campaign *c, int64_t *open)
{
    printf("\n%-26s %-4s %9s %9s  %-11s %-15s %s\n", "operation", "rung", campaign_acts[0], campaign_acts[1],
           "shapes", "shape x mode", "rarest");
    for (int i = 0; assay_op_at(i) != NULL; i++) {
        const assay_op *op = assay_op_at(i);
        if (op->collective || op->foreign ||
            (campaign_only(c) != NULL && strcmp(campaign_only(c), op->name) != 0))
            continue;
        const json_t *variants = json_object_get(row_of(c, op->name), "variants");
        const int64_t shapes = shapes_of(c, op->name);
        const int n = (int)json_array_size(variants);
        if (shapes == 0 || n == 0) {
            printf("%-26s %s\n", op->name,
                   shapes == 0 ? "no shape of it is asked" : "the engine lists no rung of it");
            (*open)++;
        }
        for (int k = 0; k < RUNGS && shapes > 0; k++)
            *open += !print_rung(c, op->name, json_array_get(variants, (size_t)k), k, shapes);
    }
}

static int by_share(const void *a, const void *b)
{
    const double x = ((const worst *)a)->share, y = ((const worst *)b)->share;
    return (x < y) - (x > y);
}

void campaign_print_worst(campaign *c)
{
    int exact = 0;
    qsort(c->worst, (size_t)c->n_worst, sizeof *c->worst, by_share);
    printf("\nworst beyond the output's own rounding, of data without NaN and infinities:\n");
    for (int i = 0; i < c->n_worst; i++) {
        const worst *w = &c->worst[i];
        if (w->share > 0.0)
            printf("%-26s %-17s %-4s %6.3f  %s\n", w->op, w->slot, campaign_acts[w->act], w->share, w->where);
        else
            exact++;
    }
    printf("%d outputs more are exact, or the rounding of the exact value\n", exact);
}

assay_status campaign_write_cells(const campaign *c, FILE *f, const char *path)
{
    fprintf(f, "operation\trung\tdtype\tmode\tshape\tcalls\n");
    for (int64_t s = 0; s < c->n_shapes; s++)
        for (int k = 0; k < RUNGS; k++)
            for (int i = 0; i < ACTS * PARITY_MODE_COUNT; i++) {
                const int a = i / PARITY_MODE_COUNT, m = i % PARITY_MODE_COUNT;
                if (c->cells[s].calls[k][a][m] > 0)
                    fprintf(f, "%s\tk%d\t%s\t%s\t%s\t%d\n", c->shapes[s].op, k, campaign_acts[a],
                            parity_data_mode_name((parity_data_mode)m), c->shapes[s].text,
                            (int)c->cells[s].calls[k][a][m]);
            }
    const bool bad = ferror(f) != 0;
    ASSAY_CHECK(fclose(f) == 0 && !bad, ASSAY_IO, "--cells: %s: could not be written", path);
    return ASSAY_OK;
}
