/* A step's microbatches: stages, layers, embedding. */
#include "parity/checks/plan.h"

#include <string.h>

/* What one layer of one microbatch keeps. */
typedef struct layer_saved {
    plan_tensor input, mixed, residual, branch, output; /* mixed, branch: before dropout */
    plan_norm input_norm, mlp_norm;
    void *mixer, *mlp;
} layer_saved;

/* What one microbatch keeps on a chunk. */
typedef struct slot {
    plan_tensor ids, embedding, embedded, input;
    plan_output_saved output;
    layer_saved *layers;
    plan_tensor dy, dinput; /* gradients that arrive and leave */
} slot;

typedef struct chunk {
    int64_t first, count;           /* layers */
    bool first_of_all, last_of_all; /* virtual stage: embedding, head and loss */
    slot *slots;                    /* of every microbatch of the rank */
} chunk;

static const plan_kind *const mixers[ASSAY_MIXER_COUNT] = {
    [ASSAY_MIXER_ATTENTION] = &plan_self_attention, [ASSAY_MIXER_MLA] = &plan_mla};
static const plan_kind *const mlps[ASSAY_MLP_COUNT] = {
    [ASSAY_MLP_DENSE] = &plan_dense_mlp, [ASSAY_MLP_MOE] = &plan_moe_mlp};

/* --- batch -------------------------------------------------------------------------------------------------- */

/* This rank's rows, sequence outermost; shift: labels as targets of the position before. */
static plan_tensor batch_tensor(plan *p, const char *name, const int64_t *from, bool shift)
{
    const plan_tensor t = {
        .name = name, .phase = ASSAY_PHASE_FORWARD, .microbatch = p->microbatch, .dtype = ASSAY_I64};
    const int64_t n = p->sequence.region.length * p->B;
    int64_t *value = plan_integers(p, n);
    for (int64_t i = 0; value != NULL && i < n; i++) {
        const int64_t s = assay_sequence_position(&p->sequence.region, i / p->B) + (shift ? 1 : 0);
        const int64_t row = p->share.first_row + i % p->B;
        value[i] = s < p->S ? from[row * p->S + s] : ASSAY_IGNORE_INDEX;
    }
    return plan_with_integers(t, value, n);
}

/* --- embedding ----------------------------------------------------------------------------------------------- */

static void embedding_forward(plan *p, slot *s)
{
    s->embedding = plan_value(p, "embedding", "y", p->act);
    plan_add(p, "embedding_fwd", "embedding");
    plan_in(p, "ids", s->ids);
    plan_in(p, "weight", plan_param(p, "embedding.word_embeddings.weight"));
    plan_out(p, "y", s->embedding);
    plan_int(p, "vocab_start", plan_vocabulary(p, NULL));
    s->embedded = plan_row_output(p, "embedding.reduce", s->embedding);
    s->input = plan_dropout(p, "embedding.dropout", PLAN_DROP_EMBEDDING, s->embedded);
}

static void embedding_backward(plan *p, slot *s, plan_tensor dy)
{
    if (plan_is_frozen(p, "embedding.word_embeddings.weight"))
        return;
    const plan_tensor dembedded =
        plan_dropout_backward(p, "embedding.dropout", PLAN_DROP_EMBEDDING, dy, s->embedded);
    const plan_tensor whole = plan_row_output_backward(p, "embedding.reduce", dembedded, s->embedding);
    plan_add(p, "embedding_bwd", "embedding");
    plan_in(p, "dy", whole);
    plan_in(p, "ids", s->ids);
    plan_accumulate(p, "dweight", "embedding.word_embeddings.weight");
    plan_int(p, "vocab_start", plan_vocabulary(p, NULL));
    plan_int(p, "padding_idx", p->job->config->pad_token_id);
}

/* --- layers ------------------------------------------------------------------------------------------------- */

static plan_tensor layer_forward(plan *p, int64_t number, layer_saved *s, plan_tensor input)
{
    const plan_kind *mixer = mixers[p->job->config->mixer[number]], *mlp = mlps[p->job->config->mlp[number]];
    p->layer = number;
    s->input = input;
    s->mixer = plan_alloc(p, mixer->saved);
    s->mlp = plan_alloc(p, mlp->saved);
    if (p->st != ASSAY_OK)
        return input;
    s->input_norm = plan_rmsnorm(p, "input_layernorm", input);
    s->mixed = mixer->forward(p, s->input_norm.y, s->mixer);
    const plan_tensor mixed = plan_dropout(p, "self_attention.dropout", PLAN_DROP_MIXER, s->mixed);
    s->residual = plan_add_op(p, "self_attention.residual", input, mixed,
                              plan_value(p, "self_attention.residual", "y", p->act));
    s->mlp_norm = plan_rmsnorm(p, "pre_mlp_layernorm", s->residual);
    s->branch = mlp->forward(p, s->mlp_norm.y, s->mlp);
    const plan_tensor branch = plan_dropout(p, "mlp.dropout", PLAN_DROP_MLP, s->branch);
    s->output =
        plan_add_op(p, "mlp.residual", s->residual, branch, plan_value(p, "mlp.residual", "y", p->act));
    p->layer = -1;
    return s->output;
}

static void modules_again(plan *p, int64_t number, layer_saved *s)
{
    const plan_kind *mixer = mixers[p->job->config->mixer[number]], *mlp = mlps[p->job->config->mlp[number]];
    const bool norms = (p->again.modules & ASSAY_RECOMPUTE_LAYERNORM) != 0;
    const unsigned whole = mlp == &plan_moe_mlp ? ASSAY_RECOMPUTE_MOE : ASSAY_RECOMPUTE_MLP;
    p->layer = number;
    if (norms)
        (void)plan_rmsnorm(p, "input_layernorm", s->input);
    if (mixer->again)
        mixer->again(p, s->input_norm.y, s->mixer);
    if (norms)
        (void)plan_rmsnorm(p, "pre_mlp_layernorm", s->residual);
    if (p->again.modules & whole)
        (void)mlp->forward(p, s->mlp_norm.y, plan_alloc(p, mlp->saved));
    else if (mlp->again)
        mlp->again(p, s->mlp_norm.y, s->mlp);
    p->layer = -1;
}

static plan_tensor layer_backward(plan *p, int64_t number, layer_saved *s, plan_tensor dy)
{
    const plan_kind *mixer = mixers[p->job->config->mixer[number]], *mlp = mlps[p->job->config->mlp[number]];
    if (p->st != ASSAY_OK)
        return dy;
    p->layer = number;
    const plan_tensor dbranch = plan_dropout_backward(p, "mlp.dropout", PLAN_DROP_MLP, dy, s->branch);
    const plan_tensor dmlp = mlp->backward(p, dbranch, s->mlp);
    const plan_tensor dnorm = plan_value(p, "pre_mlp_layernorm", "dx", p->act);
    plan_rmsnorm_backward(p, "pre_mlp_layernorm", &s->mlp_norm, dmlp, dnorm);
    const plan_tensor dhidden =
        plan_add_op(p, "mlp.residual_grad", dy, dnorm, plan_grad(p, s->residual, p->act));
    const plan_tensor dmixed =
        plan_dropout_backward(p, "self_attention.dropout", PLAN_DROP_MIXER, dhidden, s->mixed);
    const plan_tensor dmixer = mixer->backward(p, dmixed, s->mixer);
    const plan_tensor dinput_norm = plan_value(p, "input_layernorm", "dx", p->act);
    plan_rmsnorm_backward(p, "input_layernorm", &s->input_norm, dmixer, dinput_norm);
    const plan_tensor dx =
        plan_add_op(p, "self_attention.residual_grad", dhidden, dinput_norm, plan_grad(p, s->input, p->act));
    p->layer = -1;
    return dx;
}

/* Whether layer l of a chunk is the last of a group of layers that run again together; *first: the first of them. */
static bool ends_group(const plan *p, const chunk *c, int64_t l, int64_t *first)
{
    const int64_t n = l >= 0 ? assay_recompute_layers(&p->again, c->count, l, first) : 0;
    return n > 0 && l == *first + n - 1;
}

static void run_again(plan *p, const chunk *c, const slot *s, int64_t l)
{
    layer_saved unused = {.mixer = NULL};
    (void)layer_forward(p, c->first + l, &unused, s->layers[l].input);
}

/* Before the last layer of a group is gathered for its backward: the forward of the others once more, each behind its
 * gathers. */
static void group_again(plan *p, const chunk *c, const slot *s, int64_t l)
{
    int64_t first;
    if (!ends_group(p, c, l, &first))
        return;
    p->recompute = true;
    p->phase = ASSAY_PHASE_FORWARD;
    for (int64_t i = first; i < l && p->st == ASSAY_OK; i++) {
        plan_unit_before(p, c->first + i, c->first + i + 1);
        run_again(p, c, s, i);
    }
    p->phase = ASSAY_PHASE_BACKWARD;
    p->recompute = false;
}

/* Before the backward of layer l of a chunk: its forward once more where it ends a group, or that of the modules which are
 * not kept. */
static void layer_again(plan *p, const chunk *c, const slot *s, int64_t l)
{
    int64_t first;
    p->recompute = true;
    p->phase = ASSAY_PHASE_FORWARD;
    if (ends_group(p, c, l, &first))
        run_again(p, c, s, l);
    else if (p->again.num_layers == 0 && p->again.modules != 0)
        modules_again(p, c->first + l, &s->layers[l]);
    p->phase = ASSAY_PHASE_BACKWARD;
    p->recompute = false;
}

/* --- stages ------------------------------------------------------------------------------------------------- */

/* The stages are a ring: behind the last one comes the first with its next chunk. */
static int peer(const plan *p, bool ahead)
{
    const int stages = p->job->grid->p.pipeline_model_parallel_size;
    return (p->at.pp + (ahead ? 1 : stages - 1)) % stages;
}

static void receive(plan *p, const char *at, plan_tensor t, bool from_ahead)
{
    plan_add_collective(p, "recv", at, ASSAY_GROUP_PP, t.dtype);
    plan_out(p, "recv", t);
    plan_int(p, "peer", peer(p, from_ahead));
}

static void send(plan *p, const char *at, plan_tensor t, bool ahead)
{
    plan_add_collective(p, "send", at, ASSAY_GROUP_PP, t.dtype);
    plan_in(p, "send", t);
    plan_int(p, "peer", peer(p, ahead));
}

/* The hidden state that layer `layer` reads, and behind the last one the final norm. */
static plan_tensor hidden_before(plan *p, int64_t layer)
{
    const char *embedded = plan_hidden_dropout(p, PLAN_DROP_EMBEDDING) > 0.0 ? "embedding.dropout.y"
                           : p->tp > 1                                       ? "embedding.reduce.recv"
                                                                             : "embedding.y";
    return (plan_tensor){
        .name =
            layer > 0 ? plan_text(p, "decoder.layers.%lld.mlp.residual.y", (long long)layer - 1) : embedded,
        .phase = ASSAY_PHASE_FORWARD,
        .microbatch = p->microbatch,
        .dtype = p->act};
}

/* What a pass needs, what it does, what it leaves to its neighbour. */
typedef void (*pass_part)(plan *p, const chunk *c, slot *s);

static void forward_arrives(plan *p, const chunk *c, slot *s)
{
    const assay_batches *b = p->job->batches;
    s->layers = plan_alloc(p, (size_t)c->count * sizeof *s->layers);
    s->ids = batch_tensor(p, "input_ids", assay_batches_ids(b, p->step, p->microbatch), false);
    s->output.targets =
        batch_tensor(p, "targets", assay_batches_labels(b, p->step, p->microbatch), !b->shifted);
    if (c->first_of_all)
        return;
    s->input = hidden_before(p, c->first);
    receive(p, "pipeline.recv_forward", s->input, false);
}

static int64_t unit_behind(const plan *p, const chunk *c, int64_t l)
{
    const bool output = c->last_of_all && plan_output_parts(p) == 0;
    return l + 1 < c->count ? c->first + l + 1 : output ? PLAN_UNIT_OUTPUT : PLAN_UNIT_NONE;
}

static void forward_runs(plan *p, const chunk *c, slot *s)
{
    if (c->first_of_all) {
        plan_unit_before(p, PLAN_UNIT_EMBEDDING, unit_behind(p, c, -1));
        embedding_forward(p, s);
    }
    plan_tensor hidden = s->input;
    for (int64_t l = 0; l < c->count && p->st == ASSAY_OK; l++) {
        plan_unit_before(p, c->first + l, unit_behind(p, c, l));
        hidden = layer_forward(p, c->first + l, &s->layers[l], hidden);
    }
    s->output.hidden = hidden;
    if (!c->last_of_all || plan_output_parts(p) > 0)
        return;
    plan_unit_before(p, PLAN_UNIT_OUTPUT, PLAN_UNIT_NONE);
    plan_output_forward(p, &s->output);
}

static void forward_leaves(plan *p, const chunk *c, slot *s)
{
    if (!c->last_of_all)
        send(p, "pipeline.send_forward", hidden_before(p, c->first + c->count), true);
    (void)s;
}

static void backward_arrives(plan *p, const chunk *c, slot *s)
{
    if (c->last_of_all)
        return;
    s->dy = plan_grad(p, hidden_before(p, c->first + c->count), p->act);
    receive(p, "pipeline.recv_backward", s->dy, true);
}

/* What a backward gathers ahead of layer l: nothing where a group begins with another layer. */
static int64_t unit_before(const plan *p, const chunk *c, int64_t l)
{
    int64_t first = l;
    const bool group = ends_group(p, c, l - 1, &first) && first < l - 1;
    return l > 0 && !group ? c->first + l - 1 : PLAN_UNIT_NONE;
}

static void backward_runs(plan *p, const chunk *c, slot *s)
{
    plan_tensor dy = s->dy;
    if (c->last_of_all) {
        plan_unit_before(p, PLAN_UNIT_OUTPUT, unit_before(p, c, c->count));
        dy = plan_output_backward(p, &s->output);
        plan_unit_reduce(p, PLAN_UNIT_OUTPUT);
    }
    for (int64_t l = c->count - 1; l >= 0 && p->st == ASSAY_OK; l--) {
        group_again(p, c, s, l);
        plan_unit_before(p, c->first + l, unit_before(p, c, l));
        layer_again(p, c, s, l);
        dy = layer_backward(p, c->first + l, &s->layers[l], dy);
        plan_unit_reduce(p, c->first + l);
    }
    s->dinput = dy;
    if (!c->first_of_all)
        return;
    plan_unit_before(p, PLAN_UNIT_EMBEDDING, PLAN_UNIT_NONE);
    embedding_backward(p, s, dy);
    plan_unit_reduce(p, PLAN_UNIT_EMBEDDING);
}

static void backward_leaves(plan *p, const chunk *c, slot *s)
{
    if (!c->first_of_all)
        send(p, "pipeline.send_backward", s->dinput, false);
}

/* One part of a pass, in its place of the plan. */
static void add_part(plan *p, const chunk *chunks, const plan_pass *pass, pass_part forward,
                     pass_part backward)
{
    const assay_parallel_config *l = &p->job->grid->p;
    const int last = l->pipeline_model_parallel_size * l->virtual_pipeline_model_parallel_size - 1;
    const int stage = pass->chunk * l->pipeline_model_parallel_size + p->at.pp;
    const chunk *c = &chunks[pass->chunk];
    if (p->st != ASSAY_OK)
        return;
    p->microbatch = p->share.first_microbatch + pass->index;
    p->phase = pass->backward ? ASSAY_PHASE_BACKWARD : ASSAY_PHASE_FORWARD;
    p->pass = 2 * pass->index + (pass->backward ? 1 : 0);
    p->stage = pass->backward ? last - stage : stage;
    (pass->backward ? backward : forward)(p, c, &c->slots[pass->index]);
}

static chunk *make_chunks(plan *p, int n)
{
    const int last = p->job->grid->p.pipeline_model_parallel_size - 1;
    chunk *chunks = plan_alloc(p, (size_t)n * sizeof *chunks);
    for (int i = 0; i < n && p->st == ASSAY_OK; i++) {
        chunk *c = &chunks[i];
        assay_grid_stage_layers(p->job->grid, p->job->config, p->at.pp, i, &c->first, &c->count);
        c->first_of_all = p->at.pp == 0 && i == 0;
        c->last_of_all = p->at.pp == last && i == n - 1;
        c->slots = plan_alloc(p, (size_t)p->share.n_microbatches * sizeof *c->slots);
    }
    return chunks;
}

void plan_microbatches(plan *p)
{
    const assay_parallel_config *l = &p->job->grid->p;
    const int n_chunks = l->virtual_pipeline_model_parallel_size;
    const int64_t n = 2 * p->share.n_microbatches * n_chunks;
    plan_pass *passes = plan_alloc(p, (size_t)n * sizeof *passes);
    const chunk *chunks = make_chunks(p, n_chunks);
    if (p->st != ASSAY_OK)
        return;
    plan_schedule(l->pipeline_model_parallel_size, n_chunks, p->at.pp, p->share.n_microbatches, passes);
    p->part = 1;
    for (int64_t first = 0, end; first < n && p->st == ASSAY_OK; first = end) {
        for (end = first + 1; end < n && passes[end].round == passes[first].round; end++)
            continue;
        p->block++;
        for (int64_t i = first; i < end; i++)
            add_part(p, chunks, &passes[i], forward_arrives, backward_arrives);
        for (int64_t i = first; i < end; i++) {
            p->block++;
            add_part(p, chunks, &passes[i], forward_runs, backward_runs);
        }
        p->block++;
        for (int64_t i = first; i < end; i++)
            add_part(p, chunks, &passes[i], forward_leaves, backward_leaves);
    }
}
