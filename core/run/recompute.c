/* Which layers and modules run again. */
#include "core/run/recompute.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bit;
} modules[] = {
    {"core_attn", ASSAY_RECOMPUTE_CORE_ATTN},
    {"layernorm", ASSAY_RECOMPUTE_LAYERNORM},
    {"mlp", ASSAY_RECOMPUTE_MLP},
    {"moe", ASSAY_RECOMPUTE_MOE},
    {"moe_act", ASSAY_RECOMPUTE_MOE_ACT},
    {"shared_experts", ASSAY_RECOMPUTE_SHARED_EXPERTS},
};
enum { N_MODULES = sizeof modules / sizeof modules[0] };

static assay_status add_module(unsigned *bits, const char *word, size_t n)
{
    for (int i = 0; i < N_MODULES; i++)
        if (strlen(modules[i].name) == n && memcmp(modules[i].name, word, n) == 0) {
            ASSAY_CHECK((*bits & modules[i].bit) == 0, ASSAY_INVALID_ARGUMENT,
                        "recompute_modules: %s: more than once", modules[i].name);
            *bits |= modules[i].bit;
            return ASSAY_OK;
        }
    ASSAY_FAIL(n == 11 && memcmp(word, "mla_up_proj", n) == 0 ? ASSAY_UNSUPPORTED : ASSAY_INVALID_ARGUMENT,
               "recompute_modules: expected core_attn, layernorm, mlp, moe, moe_act, shared_experts, found "
               "'%.*s'",
               (int)(n < 64 ? n : 64), word);
}

/* Words with commas or spaces between them. */
static assay_status parse_modules(unsigned *bits, const char *text)
{
    for (const char *at = text; *at != '\0';) {
        const size_t n = strcspn(at, ", ");
        if (n > 0)
            ASSAY_TRY(add_module(bits, at, n));
        at += n + (at[n] != '\0');
    }
    ASSAY_CHECK(*bits != 0, ASSAY_INVALID_ARGUMENT, "recompute_modules: expected at least one module");
    ASSAY_CHECK(!(*bits & ASSAY_RECOMPUTE_MOE) ||
                    !(*bits & (ASSAY_RECOMPUTE_MOE_ACT | ASSAY_RECOMPUTE_SHARED_EXPERTS)),
                ASSAY_INVALID_ARGUMENT,
                "recompute_modules: moe runs the whole MoE layer again, moe_act and shared_experts with it: "
                "say one or the other");
    return ASSAY_OK;
}

assay_status assay_recompute_from_options(assay_recompute *r, const assay_train_options *o)
{
    *r = (assay_recompute){.method = o->recompute_method};
    const bool full = o->recompute_granularity == ASSAY_RECOMPUTE_FULL,
               selective = o->recompute_granularity == ASSAY_RECOMPUTE_SELECTIVE;
    ASSAY_CHECK(full || o->recompute_num_layers == 0, ASSAY_INVALID_ARGUMENT,
                "recompute_num_layers: expected together with recompute_granularity full");
    ASSAY_CHECK(full || o->recompute_method == ASSAY_RECOMPUTE_UNIFORM, ASSAY_INVALID_ARGUMENT,
                "recompute_method: expected together with recompute_granularity full");
    ASSAY_CHECK(selective || o->recompute_modules[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "recompute_modules: expected together with recompute_granularity selective");
    if (full)
        r->num_layers = o->recompute_num_layers > 0 ? o->recompute_num_layers : 1;
    if (selective && o->recompute_modules[0] == '\0')
        r->modules = ASSAY_RECOMPUTE_CORE_ATTN;
    else if (selective)
        ASSAY_TRY(parse_modules(&r->modules, o->recompute_modules));
    return ASSAY_OK;
}

int64_t assay_recompute_layers(const assay_recompute *r, int64_t n, int64_t l, int64_t *first)
{
    *first = l;
    if (r->num_layers == 0)
        return 0;
    if (r->method == ASSAY_RECOMPUTE_BLOCK)
        return l < r->num_layers ? 1 : 0;
    *first = l / r->num_layers * r->num_layers;
    return n - *first < r->num_layers ? n - *first : r->num_layers;
}
