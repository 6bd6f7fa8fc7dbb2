/* `assay run`: which layouts a case can be cut into and which kernels the engine has, before anything starts. */
#include "core/run/inputs.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

bool parity_layout_same(const char *a, const char *b)
{
    assay_parallel_config p, q;
    char x[ASSAY_LAYOUT_TEXT], y[ASSAY_LAYOUT_TEXT];
    if (strcmp(a, b) == 0)
        return true;
    if (assay_layout_parse(a, &p) != ASSAY_OK || assay_layout_parse(b, &q) != ASSAY_OK) {
        assay_error_clear();
        return false;
    }
    assay_layout_format(&p, x);
    assay_layout_format(&q, y);
    return strcmp(x, y) == 0;
}

/* Two spellings of one layout would be two rows of one thing. */
static void merge_given(parity_run_options *o)
{
    int kept = 0;
    for (int i = 0; i < o->n_layouts; i++) {
        int first = 0;
        while (first < kept && !parity_layout_same(o->layouts[first], o->layouts[i]))
            first++;
        if (first < kept)
            printf("--layout %s: is --layout %s, taken once\n", o->layouts[i], o->layouts[first]);
        else
            memmove(o->layouts[kept++], o->layouts[i], ASSAY_LAYOUT_TEXT);
    }
    o->n_layouts = kept;
}

assay_status parity_case_layout(const parity_case *c, const char *layout)
{
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    assay_status st = parity_case_config(c, config);
    if (st == ASSAY_OK)
        st = assay_inputs_layout(layout, &c->options, config, c->microbatches, c->micro_batch_size);
    free(config);
    return st == ASSAY_OK ? st : assay_context(st, "case %s, layout %s", c->name, layout);
}

/* A layout of the command line is for the cases that can be cut so: one at least, or it is a mistake. */
static assay_status check_given(const parity_run_state *s, const char *layout)
{
    assay_status st = ASSAY_OK;
    if (parity_run_operations_layout(s, layout))
        return ASSAY_OK;
    for (int i = 0; i < s->n_cases; i++) {
        assay_error_clear();
        st = parity_case_layout(&s->cases[i], layout);
        if (st == ASSAY_OK)
            return ASSAY_OK;
    }
    return s->n_cases > 1 ? assay_context(st, "--layout %s: none of the %d cases can be cut so; the last",
                                          layout, s->n_cases)
                          : st;
}

assay_status parity_run_check_layouts(parity_run_state *s)
{
    merge_given(&s->o);
    for (int i = 0; i < s->n_cases && s->o.n_layouts == 0; i++) /* else the given ones take their place */
        for (int k = 0; k < s->cases[i].n_layouts; k++)
            ASSAY_TRY(parity_case_layout(&s->cases[i], s->cases[i].layouts[k]));
    for (int k = 0; k < s->o.n_layouts; k++)
        ASSAY_TRY(check_given(s, s->o.layouts[k]));
    return ASSAY_OK;
}

assay_status parity_run_check_variants(const parity_run_state *s)
{
    const bool every = strcmp(s->o.variant, PARITY_EVERY_RUNG) == 0;
    ASSAY_CHECK(!every || s->n_cases == 0, ASSAY_INVALID_ARGUMENT,
                "--variant %s: the operations alone run on every rung, a case takes a word for each family "
                "(name them with --case " PARITY_OPERATIONS ")",
                s->o.variant);
    if (!every)
        ASSAY_TRY(parity_engine_check_variant(&s->engine, s->o.variant));
    for (int i = 0; i < s->n_cases; i++)
        for (int k = 0; k < s->cases[i].n_variants; k++) {
            const assay_status st = parity_engine_check_variant(&s->engine, s->cases[i].variants[k]);
            if (st != ASSAY_OK)
                return assay_context(st, "case %s", s->cases[i].name);
        }
    return ASSAY_OK;
}
