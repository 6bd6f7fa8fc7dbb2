/* What the candidate's clip_qkv let pass.  A clamp is continuous and its derivative is not: a value that rounding carries across the limit
 * lets a whole gradient pass or none of it, which is no rounding of that gradient.  The reference's runs therefore let pass what the
 * candidate let pass, as they take its experts; that each decision follows from the recorded value is what the local check holds. */
#include "parity/checks/whole.h"

#include "ref/replay.h"
#include <math.h>
#include <stdlib.h>

enum { BITS = 62 }; /* decisions in a number, which stays positive */

/* Elements of an operand in a microbatch. */
static int64_t elements_of(const parity_whole_choices *c, ref_clip_operand operand)
{
    const assay_model_config *m = &c->spec->config;
    const int64_t heads = operand == REF_CLIP_Q ? m->num_attention_heads : m->num_query_groups;
    return c->tokens * heads * m->kv_channels;
}

/* One more number says whether there is a record. */
static int64_t numbers_of(const parity_whole_choices *c, ref_clip_operand operand)
{
    return 1 + (elements_of(c, operand) + BITS - 1) / BITS;
}

static int64_t numbers_of_layer(const parity_whole_choices *c)
{
    int64_t n = 0;
    for (int k = 0; k < REF_CLIP_OPERANDS; k++)
        n += numbers_of(c, (ref_clip_operand)k);
    return n;
}

static bool clips(const parity_whole_choices *c)
{
    return c->spec->config.clip_qkv > 0.0;
}

int64_t parity_whole_clip_numbers(const parity_whole_choices *c)
{
    return clips(c) ? c->steps * c->microbatches * c->spec->config.num_layers * numbers_of_layer(c) : 0;
}

static int64_t *numbers_at(const parity_whole_choices *c, int64_t step, int64_t microbatch, int64_t layer,
                           ref_clip_operand operand)
{
    const int64_t block = (step * c->microbatches + microbatch) * c->spec->config.num_layers + layer;
    int64_t at = c->clips + block * numbers_of_layer(c);
    for (int k = 0; k < (int)operand; k++)
        at += numbers_of(c, (ref_clip_operand)k);
    return c->indices + at;
}

/* What passes is what the clamp left below the limit, as its stored type holds that. */
static assay_status read_clip(const parity_index *x, parity_whole_choices *c, int64_t step,
                              int64_t microbatch, int64_t layer, ref_clip_operand operand)
{
    static const char letters[] = {'q', 'k', 'v'};
    char name[ASSAY_NAME];
    parity_result finding;
    parity_global g = {0};
    double *value = NULL;
    int64_t *to = numbers_at(c, step, microbatch, layer, operand);
    assay_status st = ASSAY_OK;
    snprintf(name, sizeof name, "decoder.layers.%lld.self_attention.clip_%c.y", (long long)layer,
             letters[operand]);
    const parity_entry *e = parity_index_find(x, name, ASSAY_PHASE_FORWARD, step, microbatch);
    for (int64_t i = 0; i < numbers_of(c, operand); i++)
        to[i] = 0;
    parity_result_init(&finding);
    if (e == NULL)
        return ASSAY_OK;
    ASSAY_TRY(parity_entry_assemble(x, e, &g, &finding));
    if (!g.complete || g.count != elements_of(c, operand) || assay_dtype_precision(g.dtype) == 0) {
        parity_whole_refuse(c, e, &finding, g.complete);
        goto done;
    }
    const double given = c->spec->config.clip_qkv;
    const double limit = g.dtype == ASSAY_F64 ? given : ref_round((double)(float)given, g.dtype);
    ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &value), st, done);
    to[0] = 1;
    for (int64_t i = 0; i < g.count; i++)
        if (fabs(value[i]) < limit)
            to[1 + i / BITS] |= INT64_C(1) << i % BITS;
done:
    free(value);
    parity_global_free(&g);
    return st;
}

assay_status parity_whole_read_clips(const parity_index *x, parity_whole_choices *c)
{
    for (int64_t s = 0; s < c->steps && clips(c); s++)
        for (int64_t b = 0; b < c->microbatches; b++)
            for (int64_t l = 0; l < c->spec->config.num_layers; l++)
                for (int k = 0; k < REF_CLIP_OPERANDS; k++)
                    ASSAY_TRY(read_clip(x, c, s, b, l, (ref_clip_operand)k));
    return ASSAY_OK;
}

bool parity_whole_clip(void *choices, int64_t step, int64_t microbatch, int64_t layer,
                       ref_clip_operand operand, bool *passes, int64_t n)
{
    const parity_whole_choices *c = choices;
    if (!clips(c) || step >= c->steps || microbatch >= c->microbatches || n != elements_of(c, operand))
        return false;
    const int64_t *from = numbers_at(c, step, microbatch, layer, operand);
    for (int64_t i = 0; i < n && from[0] != 0; i++)
        passes[i] = (from[1 + i / BITS] >> i % BITS & 1) != 0;
    return from[0] != 0;
}
