/* Who holds what of a layout, for drawings: words of each pipeline stage, bytes of each rank. */
#include "parity/dry/dry_svg.h"
#include "core/base/file.h"
#include "parity/report/page.h"

#include <stdlib.h>
#include <string.h>

/* "embedding, layers 0-1, 4-5, head" */
void dry_stage_words(const assay_grid *g, const assay_model_config *c, int stage, char out[DRY_STAGE_WORDS])
{
    size_t used = 0;
    bool any = false;
    out[0] = '\0';
    if (stage == 0)
        used += (size_t)snprintf(out, DRY_STAGE_WORDS, "embedding");
    for (int chunk = 0; chunk < g->p.virtual_pipeline_model_parallel_size && used + 64 < DRY_STAGE_WORDS;
         chunk++) {
        int64_t first, count;
        assay_grid_stage_layers(g, c, stage, chunk, &first, &count);
        if (count == 0)
            continue;
        used += (size_t)snprintf(out + used, DRY_STAGE_WORDS - used, "%s%s%lld", used > 0 ? ", " : "",
                                 any ? "" : "layers ", (long long)first);
        if (count > 1)
            used +=
                (size_t)snprintf(out + used, DRY_STAGE_WORDS - used, "-%lld", (long long)(first + count - 1));
        any = true;
    }
    if (stage == g->p.pipeline_model_parallel_size - 1 && used + 8 < DRY_STAGE_WORDS)
        snprintf(out + used, DRY_STAGE_WORDS - used, "%shead", used > 0 ? ", " : "");
}

/* The dry run's own count of owners, and nothing else of it. */
assay_status dry_held(const assay_model_config *c, const assay_model_spec *spec, const assay_grid *g,
                      assay_precision precision, dry_memory *out)
{
    assay_status st = ASSAY_OK;
    dry *d = calloc(1, sizeof *d);
    ASSAY_CHECK(d != NULL, ASSAY_OUT_OF_MEMORY, "who holds what");
    d->config = *c;
    d->spec = (assay_model_spec *)(uintptr_t)spec; /* read */
    d->grid = *g;
    d->o.precision = precision;
    d->stages = g->p.pipeline_model_parallel_size;
    d->stage_ranks = g->world / d->stages;
    d->ranks = calloc((size_t)g->world, sizeof *d->ranks);
    ASSAY_CHECK_GOTO(d->ranks != NULL, ASSAY_OUT_OF_MEMORY, st, done, "a world of %d ranks", g->world);
    ASSAY_TRY_GOTO(dry_check_owners(d), st, done);
    for (int r = 0; r < g->world; r++)
        dry_states(d, r, &out[r]);
done:
    free(d->ranks);
    free(d);
    return st;
}

json_t *dry_held_json(const assay_model_config *c, const assay_model_spec *spec, const assay_grid *g,
                      assay_precision precision)
{
    char words[DRY_STAGE_WORDS];
    dry_memory *all = calloc((size_t)g->world, sizeof *all);
    json_t *stages = json_array(), *ranks = json_array();
    if (all != NULL && dry_held(c, spec, g, precision, all) == ASSAY_OK) {
        for (int s = 0; s < g->p.pipeline_model_parallel_size; s++) {
            dry_stage_words(g, c, s, words);
            json_array_append_new(stages, json_string(words));
        }
        for (int r = 0; r < g->world; r++)
            json_array_append_new(ranks, json_pack("[f,f,f,f]", all[r].parameters, all[r].gradients,
                                                   all[r].masters, all[r].moments));
    }
    assay_error_clear(); /* without it the drawing has no bytes */
    free(all);
    return json_pack("{s:o,s:o}", "stages", stages, "ranks", ranks);
}

static assay_status put_file(const parity_layout_drawing *drawing, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    if (strcmp(path, "-") == 0) {
        parity_put_layout_svg(stdout, drawing);
        return ASSAY_OK;
    }
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    parity_put_layout_svg(f, drawing);
    const bool ok = ferror(f) == 0;
    assay_status st = fclose(f) == 0 && ok ? assay_write_file(path, text, bytes)
                                           : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
    free(text);
    return st;
}

assay_status dry_grid_svg(const assay_grid *g, const char *layout, const char *path)
{
    const parity_layout_drawing drawing = {.grid = g, .name = layout, .marked = -1, .alone = true};
    return put_file(&drawing, path);
}

assay_status dry_svg(const dry *d, const char *path)
{
    assay_status st = ASSAY_OK;
    parity_rank_bytes *ranks = calloc((size_t)d->grid.world, sizeof *ranks);
    char(*words)[DRY_STAGE_WORDS] = calloc((size_t)d->stages, sizeof *words);
    const char **stages = calloc((size_t)d->stages, sizeof *stages);
    ASSAY_CHECK_GOTO(ranks && words && stages, ASSAY_OUT_OF_MEMORY, st, done, "%s", path);
    for (int s = 0; s < d->stages; s++) {
        dry_stage_words(&d->grid, &d->config, s, words[s]);
        stages[s] = words[s];
        for (int i = 0; i < d->stage_ranks; i++) {
            dry_memory m;
            const int rank = s * d->stage_ranks + i;
            ASSAY_TRY_GOTO(dry_rank_memory(d, rank, &m), st, done);
            ranks[rank] =
                (parity_rank_bytes){m.parameters, m.gradients, m.masters, m.moments, m.activations[0]};
        }
    }
    const parity_layout_drawing drawing = {.grid = &d->grid,
                                           .name = d->canonical,
                                           .stages = stages,
                                           .ranks = ranks,
                                           .activations = true,
                                           .marked = -1,
                                           .alone = true};
    st = put_file(&drawing, path);
done:
    free(stages);
    free(words);
    free(ranks);
    return st;
}
