/* What the candidate's masters are behind each step.  Where a gradient is smaller than its own uncertainty, AdamW makes a step of +-lr of its
 * sign (whole_jumps.c), and such a jump is seen in every gradient of the next step: rarely, and then by far more than rounding.  A second
 * look therefore lets the reference's runs go on from the candidate's masters, as they take its experts, and judges the masters of every step:
 * each against one update of the reference's own, from where the candidate was. */
#include "parity/checks/whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nothing is replayed behind the last step. */
static int64_t slots_of(const parity_whole_choices *c)
{
    return c->steps > 1 ? (c->steps - 1) * c->spec->n_params : 0;
}

/* *master NULL: not recorded, or nothing that a step can begin with.  The judge of that tensor says so (whole.c). */
static assay_status read_master(const parity_index *x, const assay_param_spec *p, int64_t step,
                                double **master)
{
    char name[ASSAY_NAME + 16];
    parity_global g = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    snprintf(name, sizeof name, "%s.main_param", p->name);
    const parity_entry *e = parity_index_find(x, name, ASSAY_PHASE_OPTIMIZER, step, -1);
    if (e == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY(parity_entry_assemble(x, e, &g, &finding));
    if (g.complete && g.count == assay_param_elements(p) && assay_dtype_precision(g.dtype) != 0)
        st = parity_decode_all(g.data, g.count, g.dtype, master);
    for (int64_t i = 0; st == ASSAY_OK && *master != NULL && i < g.count; i++)
        if (!isfinite((*master)[i])) {
            free(*master);
            *master = NULL;
        }
    parity_global_free(&g);
    return st;
}

static void hash_of_masters(parity_whole_choices *c, char (*parts)[ASSAY_SHA256_HEX])
{
    const int64_t n = slots_of(c);
    for (int64_t i = 0; i < n; i++)
        if (c->masters[i] != NULL)
            assay_sha256_bytes(c->masters[i],
                               (size_t)assay_param_elements(&c->spec->params[i % c->spec->n_params]) *
                                   sizeof(double),
                               parts[i]);
    assay_sha256_bytes(parts, (size_t)n * sizeof *parts, c->masters_hash);
}

assay_status parity_whole_read_masters(const parity_index *x, parity_whole_choices *c)
{
    const int64_t n = slots_of(c);
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_hash_init());
    char(*parts)[ASSAY_SHA256_HEX] = calloc((size_t)n + 1, sizeof *parts);
    c->masters = calloc((size_t)n + 1, sizeof *c->masters);
    ASSAY_CHECK_GOTO(parts && c->masters, ASSAY_OUT_OF_MEMORY, st, done, "masters of %lld steps",
                     (long long)c->steps);
    for (int64_t i = 0; i < n; i++) {
        const assay_param_spec *p = &c->spec->params[i % c->spec->n_params];
        if (assay_param_needs_grad(p))
            ASSAY_TRY_GOTO(read_master(x, p, i / c->spec->n_params, &c->masters[i]), st, done);
    }
    hash_of_masters(c, parts);
done:
    free(parts);
    return st;
}

bool parity_whole_master(void *choices, int64_t step, int64_t param, double *master, int64_t n)
{
    const parity_whole_choices *c = choices;
    const int64_t at = step * c->spec->n_params + param;
    if (at >= slots_of(c) || c->masters[at] == NULL || n != assay_param_elements(&c->spec->params[param]))
        return false;
    memcpy(master, c->masters[at], (size_t)n * sizeof *master);
    return true;
}

void parity_whole_free_choices(parity_whole_choices *c)
{
    for (int64_t i = 0; c->masters != NULL && i < slots_of(c); i++)
        free(c->masters[i]);
    free(c->masters);
    free(c->indices);
    *c = (parity_whole_choices){0};
}
