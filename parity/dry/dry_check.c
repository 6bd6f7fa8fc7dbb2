/* Dry run: what is checked in which order, and where findings go. */
#include "core/run/inputs.h"
#include "parity/dry/dry.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"groups", "owners", "data", "calls"};

void dry_holds(dry *d, dry_kind kind, int64_t n)
{
    d->n_claims[kind] += n;
}

void dry_fails(dry *d, dry_kind kind, const char *fmt, ...)
{
    d->n_claims[kind]++;
    d->n_failed++;
    if (d->n_findings == DRY_MAX_FINDINGS)
        return;
    dry_finding *f = &d->findings[d->n_findings++];
    f->check = kinds[kind];
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
}

const char *dry_fault(const dry *d, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(d->o.fault, word, n) == 0 && d->o.fault[n] == ':' ? d->o.fault + n + 1 : NULL;
}

static bool has_word(const char *layout, const char *prefix)
{
    const size_t n = strlen(prefix);
    for (const char *w = layout; w != NULL; w = strchr(w, ',')) {
        w += *w == ',';
        if (strncmp(w, prefix, n) == 0 && w[n] >= '0' && w[n] <= '9')
            return true;
    }
    return false;
}

/* The layout of `world` ranks: dp is what is left when it has no word of its own. */
static assay_status make_grid(dry *d)
{
    assay_parallel_config p;
    ASSAY_TRY(assay_layout_parse(d->o.layout, &p));
    if (d->o.world > 0 && !has_word(d->o.layout, "dp")) {
        const int64_t rest =
            (int64_t)p.tensor_model_parallel_size * p.context_parallel_size * p.pipeline_model_parallel_size;
        ASSAY_CHECK(d->o.world % rest == 0, ASSAY_INVALID_ARGUMENT,
                    "--world %lld: expected a multiple of tp*cp*pp = %lld of layout %s",
                    (long long)d->o.world, (long long)rest, d->o.layout);
        p.data_parallel_size = (int)(d->o.world / rest);
    }
    ASSAY_TRY(assay_grid_make(&p, &d->grid));
    ASSAY_CHECK(d->o.world == 0 || d->o.world == d->grid.world, ASSAY_INVALID_ARGUMENT,
                "--world %lld: layout %s has %d ranks", (long long)d->o.world, d->o.layout, d->grid.world);
    assay_layout_format(&p, d->canonical);
    d->stages = p.pipeline_model_parallel_size;
    d->stage_ranks = d->grid.world / d->stages;
    return ASSAY_OK;
}

static assay_status check_fault(const dry *d)
{
    const char *rank = dry_fault(d, "swap") ? dry_fault(d, "swap") : dry_fault(d, "lost");
    ASSAY_CHECK(d->o.fault[0] == '\0' || rank || dry_fault(d, "owner") || dry_fault(d, "group"),
                ASSAY_INVALID_ARGUMENT,
                "--fault '%s': expected owner:PARAMETER, group:KIND, swap:RANK or lost:RANK", d->o.fault);
    if (rank != NULL) {
        char *end;
        const long value = strtol(rank, &end, 10);
        ASSAY_CHECK(end != rank && *end == '\0' && value >= 0 && value < d->grid.world,
                    ASSAY_INVALID_ARGUMENT, "--fault '%s': expected a rank from 0 to %d", d->o.fault,
                    d->grid.world - 1);
    }
    if (dry_fault(d, "owner") != NULL)
        ASSAY_CHECK(assay_spec_find(d->spec, dry_fault(d, "owner")) != NULL, ASSAY_INVALID_ARGUMENT,
                    "--fault '%s': the model has no such parameter", d->o.fault);
    return ASSAY_OK;
}

static assay_status prepare(dry *d)
{
    assay_train_options options;
    assay_train_options_default(&options);
    ASSAY_TRY(dry_model_load(d->o.model, &d->config));
    ASSAY_TRY(make_grid(d));
    ASSAY_TRY(assay_grid_check_model(&d->grid, &d->config));
    if (d->o.num_microbatches == 0)
        d->o.num_microbatches = 2 * (int64_t)d->stages;
    ASSAY_TRY(assay_inputs_layout(d->canonical, &options, &d->config,
                                  d->o.num_microbatches * d->grid.p.data_parallel_size,
                                  d->o.micro_batch_size));
    ASSAY_TRY(assay_spec_build(&d->config, &d->spec));
    ASSAY_TRY(check_fault(d));
    for (int64_t i = 0; i < d->spec->n_params; i++) {
        const assay_param_spec *p = &d->spec->params[i];
        int64_t n = p->trained ? 1 : 0;
        for (int k = 0; k < p->ndim; k++)
            n *= p->shape[k];
        d->n_parameters += n;
    }
    const size_t stages = (size_t)d->stages;
    d->ranks = calloc((size_t)d->grid.world, sizeof *d->ranks);
    d->lists = calloc(stages, sizeof *d->lists);
    d->memory = calloc(stages, sizeof *d->memory);
    d->wire = calloc(stages, sizeof *d->wire);
    ASSAY_CHECK(d->ranks && d->lists && d->memory && d->wire, ASSAY_OUT_OF_MEMORY, "a world of %d ranks",
                d->grid.world);
    return parity_map_create(&d->names.map);
}

assay_status dry_make(dry *d, const dry_options *o)
{
    memset(d, 0, sizeof *d);
    d->o = *o;
    ASSAY_TRY(prepare(d));
    ASSAY_TRY(dry_check_groups(d));
    ASSAY_TRY(dry_check_owners(d));
    ASSAY_TRY(dry_check_data(d));
    ASSAY_TRY(dry_check_calls(d));
    ASSAY_TRY(dry_count_wire(d));
    return dry_count_memory(d);
}

void dry_free(dry *d)
{
    for (int s = 0; d->lists != NULL && s < d->stages; s++)
        free(d->lists[s].calls);
    for (int i = 0; i < d->names.n; i++)
        free(d->names.text[i]);
    free(d->names.text);
    parity_map_destroy(d->names.map);
    assay_spec_destroy(d->spec);
    free(d->ranks);
    free(d->lists);
    free(d->memory);
    free(d->wire);
    memset(d, 0, sizeof *d);
}
