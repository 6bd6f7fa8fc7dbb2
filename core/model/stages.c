/* Which decoder layers a virtual pipeline stage holds.  Source: Megatron-LM transformer_block.get_num_layers_to_build,
 * transformer_layer.get_transformer_layer_offset (core 0.16); the balanced cut of a number that does not divide is ours. */
#include "core/model/grid.h"

/* Virtual stage v = chunk * pp + stage. */
static int virtual_stages(const assay_grid *g)
{
    return g->p.pipeline_model_parallel_size * g->p.virtual_pipeline_model_parallel_size;
}

static bool is_balanced(const assay_parallel_config *p)
{
    return p->num_layers_in_first_pipeline_stage == 0 && p->num_layers_in_last_pipeline_stage == 0 &&
           !p->account_for_embedding_in_pipeline_split && !p->account_for_loss_in_pipeline_split;
}

/* What first and last leave to the stages between (without them: every stage). */
typedef struct middle {
    int64_t layers;
    int stages;
} middle;

static middle middle_of(const assay_parallel_config *p, const assay_model_config *c)
{
    return (middle){.layers = c->num_layers - p->num_layers_in_first_pipeline_stage -
                              p->num_layers_in_last_pipeline_stage,
                    .stages = p->pipeline_model_parallel_size - (p->num_layers_in_first_pipeline_stage > 0) -
                              (p->num_layers_in_last_pipeline_stage > 0)};
}

/* Layers with the embedding and the loss counted as one each, where the layout says so. */
static int64_t counted_layers(const assay_parallel_config *p, const assay_model_config *c)
{
    return c->num_layers + (p->account_for_embedding_in_pipeline_split ? 1 : 0) +
           (p->account_for_loss_in_pipeline_split ? 1 : 0);
}

/* Layers of virtual stage v of a cut with first, last, embed or loss. */
static int64_t layers_of(const assay_grid *g, const assay_model_config *c, int v)
{
    const assay_parallel_config *p = &g->p;
    const int pp = p->pipeline_model_parallel_size, vpp = p->virtual_pipeline_model_parallel_size;
    const int stage = v % pp;
    if (p->account_for_embedding_in_pipeline_split || p->account_for_loss_in_pipeline_split)
        return counted_layers(p, c) / virtual_stages(g) -
               (v == 0 && p->account_for_embedding_in_pipeline_split) -
               (v == virtual_stages(g) - 1 && p->account_for_loss_in_pipeline_split);
    if (stage == 0 && p->num_layers_in_first_pipeline_stage > 0)
        return p->num_layers_in_first_pipeline_stage / vpp;
    if (stage == pp - 1 && p->num_layers_in_last_pipeline_stage > 0)
        return p->num_layers_in_last_pipeline_stage / vpp;
    const middle m = middle_of(p, c);
    return m.layers / m.stages / vpp;
}

static void stage_layers(const assay_grid *g, const assay_model_config *c, int v, int64_t *first,
                         int64_t *count)
{
    if (g->p.pipeline_model_parallel_layout[0] != '\0') {
        assay_pipeline_layout_stage(g->p.pipeline_model_parallel_layout, v, first, count);
        return;
    }
    if (is_balanced(&g->p)) {
        assay_split(c->num_layers, virtual_stages(g), v, first, count);
        return;
    }
    *first = 0;
    for (int i = 0; i < v; i++)
        *first += layers_of(g, c, i);
    *count = layers_of(g, c, v);
}

/* The virtual stage of a layer. */
static int stage_of(const assay_grid *g, const assay_model_config *c, int64_t layer)
{
    if (g->p.pipeline_model_parallel_layout[0] != '\0')
        return assay_pipeline_layout_stage_of(g->p.pipeline_model_parallel_layout, layer);
    if (is_balanced(&g->p)) {
        const int64_t base = c->num_layers / virtual_stages(g), longer = c->num_layers % virtual_stages(g);
        const int64_t in_longer = longer * (base + 1);
        return (int)(layer < in_longer ? layer / (base + 1) : longer + (layer - in_longer) / base);
    }
    int v = 0;
    for (int64_t end = layers_of(g, c, 0); end <= layer; end += layers_of(g, c, v))
        v++;
    return v;
}

void assay_grid_stage_layers(const assay_grid *g, const assay_model_config *c, int pp, int chunk,
                             int64_t *first, int64_t *count)
{
    stage_layers(g, c, chunk * g->p.pipeline_model_parallel_size + pp, first, count);
}

void assay_grid_layer_stage(const assay_grid *g, const assay_model_config *c, int64_t layer, int *pp,
                            int *chunk)
{
    const int v = stage_of(g, c, layer);
    *pp = v % g->p.pipeline_model_parallel_size;
    *chunk = v / g->p.pipeline_model_parallel_size;
}

/* --- checks --------------------------------------------------------------------------------------------------- */

static assay_status check_ends(const assay_grid *g, const assay_model_config *c)
{
    const assay_parallel_config *p = &g->p;
    const int vpp = p->virtual_pipeline_model_parallel_size;
    const int first = p->num_layers_in_first_pipeline_stage, last = p->num_layers_in_last_pipeline_stage;
    const middle m = middle_of(p, c);
    ASSAY_CHECK(first % vpp == 0 && last % vpp == 0, ASSAY_INVALID_ARGUMENT,
                "layout: first%d, last%d: expected multiples of vpp%d", first, last, vpp);
    ASSAY_CHECK(m.layers >= 0 && (m.stages > 0 || m.layers == 0), ASSAY_INVALID_ARGUMENT,
                "layout: first%d, last%d leave %lld of %lld layers to %d stages", first, last,
                (long long)m.layers, (long long)c->num_layers, m.stages);
    ASSAY_CHECK(m.stages == 0 || m.layers % ((int64_t)m.stages * vpp) == 0, ASSAY_INVALID_ARGUMENT,
                "layout: first%d, last%d leave %lld layers, which %d stages of %d chunks do not divide",
                first, last, (long long)m.layers, m.stages, vpp);
    return ASSAY_OK;
}

static assay_status check_text(const assay_grid *g, const assay_model_config *c)
{
    const char *text = g->p.pipeline_model_parallel_layout;
    char canonical[ASSAY_PIPELINE_LAYOUT];
    assay_pipeline_layout found;
    ASSAY_TRY(assay_pipeline_layout_parse(text, canonical, &found));
    ASSAY_CHECK(found.stages == virtual_stages(g), ASSAY_INVALID_ARGUMENT,
                "layout: stages=%s has %d virtual stages, pp%d,vpp%d has %d", text, found.stages,
                g->p.pipeline_model_parallel_size, g->p.virtual_pipeline_model_parallel_size,
                virtual_stages(g));
    ASSAY_CHECK(found.layers == c->num_layers, ASSAY_INVALID_ARGUMENT,
                "layout: stages=%s has %lld layers, the model %lld", text, (long long)found.layers,
                (long long)c->num_layers);
    return ASSAY_OK;
}

assay_status assay_stages_check(const assay_grid *g, const assay_model_config *c)
{
    const assay_parallel_config *p = &g->p;
    const int n = virtual_stages(g), pp = p->pipeline_model_parallel_size,
              vpp = p->virtual_pipeline_model_parallel_size;
    if (p->pipeline_model_parallel_layout[0] != '\0')
        return check_text(g, c);
    if (p->num_layers_in_first_pipeline_stage > 0 || p->num_layers_in_last_pipeline_stage > 0)
        return check_ends(g, c);
    if (is_balanced(p)) {
        ASSAY_CHECK(n <= c->num_layers, ASSAY_INVALID_ARGUMENT,
                    "layout: pp%d,vpp%d: %d virtual stages, but the model has %lld layers (stages=TEXT may "
                    "leave some without)",
                    pp, vpp, n, (long long)c->num_layers);
        return ASSAY_OK;
    }
    ASSAY_CHECK(counted_layers(p, c) % n == 0, ASSAY_INVALID_ARGUMENT,
                "layout: pp%d,vpp%d: %d virtual stages do not divide %lld layers (%lld, and one for each of "
                "embed and loss)",
                pp, vpp, n, (long long)counted_layers(p, c), (long long)c->num_layers);
    return ASSAY_OK;
}
