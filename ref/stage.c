/* The model, stage by stage. */
#include "ref/stage.h"
#include "ref/documents.h"
#include "ref/objective.h"

#include "ref/parallel/collectives.h"
#include "ref/parallel/fsdp.h"
#include "ref/parallel/tensor.h"

static bool is_first(const ref_pass *p)
{
    return p->stage == 0 && p->chunk == 0;
}

static bool is_last(const ref_pass *p)
{
    const assay_parallel_config *g = &p->e->grid.p;
    return p->stage == g->pipeline_model_parallel_size - 1 &&
           p->chunk == g->virtual_pipeline_model_parallel_size - 1;
}

static void enter_layer(ref_pass *p, int64_t layer)
{
    p->layer = layer;
    p->prefix[0] = '\0';
    if (layer >= 0)
        snprintf(p->prefix, sizeof p->prefix, "decoder.layers.%lld.", (long long)layer);
}

/* --- tokens ------------------------------------------------------------------------------------------------- */

/* Token ids and targets in token order t = s*B + b.  Labels in the Hugging Face sense are shifted by the model:
 * position s predicts the label of s + 1; Megatron-LM's are shifted in the file. */
static assay_status load_tokens(ref_pass *p, ref_stage_acts *a)
{
    const assay_batches *batches = p->e->run->batches;
    const int64_t s_all = p->e->seq, b_all = p->e->batch;
    ASSAY_TRY(ref_ints_new(&p->arena, &a->ids, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &a->targets, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t first = p->ranks[r].share.first_row, m = ref_pass_microbatch(p, r);
        const int64_t *ids = assay_batches_ids(batches, p->step, m) + first * s_all;
        const int64_t *labels = assay_batches_labels(batches, p->step, m) + first * s_all;
        const int64_t tokens = ref_pass_region_tokens(p, r);
        ASSAY_TRY(ref_int_piece_new(&p->arena, &a->ids.at[r], tokens, 1));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &a->targets.at[r], tokens, 1));
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t s = p->ranks[r].position[t], at = t % b_all * s_all + s;
            a->ids.at[r].x[t] = ids[at];
            a->targets.at[r].x[t] = batches->shifted ? labels[at]
                                    : s + 1 < s_all  ? labels[at + 1]
                                                     : ASSAY_IGNORE_INDEX;
        }
    }
    return ASSAY_OK;
}

/* --- loss --------------------------------------------------------------------------------------------------- */

/* stats [3,T] of every vocabulary piece, all-gathered over tp; every tp rank then has the whole loss. */
static assay_status cross_entropy_fwd(ref_pass *p, ref_stage_acts *a)
{
    ref_tensor stats, gathered, loss;
    double **send = p->e->send, **recv = p->e->recv;
    const int tp = p->e->grid.p.tensor_model_parallel_size;
    ASSAY_TRY(ref_new(p, &stats, "loss.stats", "stats"));
    ASSAY_TRY(ref_new(p, &gathered, "loss.gather", "recv"));
    stats.token_rows = gathered.token_rows = false;
    ASSAY_TRY(ref_new(p, &a->lse, "loss", "lse"));
    ASSAY_TRY(ref_new(p, &loss, "loss", "loss"));
    for (int r = 0; r < p->n; r++) {
        const ref_param *w = ref_pass_param(p, r, p->e->output);
        const int64_t t = a->logits.at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &stats.at[r], 3, t));
        ASSAY_TRY(ref_piece_new(&p->arena, &gathered.at[r], 3 * tp, t));
        ref_cross_entropy_stats(stats.at[r].x, a->logits.at[r].x, a->targets.at[r].x,
                                w->shard.segments[0][0].start, t, a->logits.at[r].cols);
    }
    ASSAY_TRY(ref_store(p, &stats, REF_STORE_LOSS));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_TP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = stats.at[member].x;
            recv[i] = gathered.at[member].x;
            p->e->counts[i] = 3 * a->logits.at[member].rows;
        }
        ref_all_gather(recv, send, p->e->counts, g.size);
    }
    for (int r = 0; r < p->n; r++) {
        const int64_t t = a->logits.at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &a->lse.at[r], t, 1));
        ASSAY_TRY(ref_piece_new(&p->arena, &loss.at[r], t, 1));
        ref_cross_entropy_loss(a->lse.at[r].x, loss.at[r].x, gathered.at[r].x, a->targets.at[r].x, tp, t);
    }
    ASSAY_TRY(ref_store(p, &a->lse, REF_STORE_LOSS));
    ASSAY_TRY(ref_store(p, &loss, REF_STORE_LOSS));
    for (int r = 0; r < p->n; r++)
        p->ranks[r].loss_sums[p->microbatch] = ref_sum(loss.at[r].x, loss.at[r].rows);
    return ASSAY_OK;
}

/* The weight of a target of rank r's microbatch in the objective.  Megatron-LM takes the mean over the positions of a
 * context-parallel rank, and the mean of these means: of those of dp, too, where they share a microbatch. */
static double target_weight(const ref_pass *p, const ref_stage_acts *a, int r)
{
    const assay_batches *b = p->e->run->batches;
    const int ranks = p->e->grid.p.context_parallel_size *
                      (p->ranks[r].share.rows_split ? p->e->grid.p.data_parallel_size : 1);
    if (p->e->options.calculate_per_token_loss)
        return 1.0 / (double)p->e->targets;
    if (p->e->options.semantics == ASSAY_SEMANTICS_MEGATRON && ranks > 1) {
        const ref_int_piece *targets = &a->targets.at[r];
        int64_t local = 0;
        for (int64_t t = 0; t < targets->rows; t++)
            local += targets->x[t] != ASSAY_IGNORE_INDEX;
        return 1.0 / ((double)b->microbatches * (double)ranks * (double)(local > 0 ? local : 1));
    }
    const int64_t n = ref_microbatch_targets(b, p->step, ref_pass_microbatch(p, r));
    return 1.0 / ((double)b->microbatches * (double)(n > 0 ? n : 1));
}

/* dlogits of weight 1, each row times the weight of its target in another layout's objective. */
static assay_status weigh_rows(ref_pass *p, ref_tensor *dlogits, const ref_stage_acts *a)
{
    ref_piece weights, *x = &dlogits->at[0];
    ASSAY_TRY(ref_piece_new(&p->arena, &weights, x->rows, 1));
    ASSAY_TRY(ref_objective_target_weights(p, a->targets.at[0].x, weights.x));
    for (int64_t t = 0; t < x->rows; t++)
        for (int64_t v = 0; v < x->cols; v++)
            x->x[t * x->cols + v] *= weights.x[t];
    return ASSAY_OK;
}

static assay_status cross_entropy_bwd(ref_pass *p, ref_tensor *dlogits, const ref_stage_acts *a)
{
    const bool other = ref_has_objective(p) && !p->e->options.calculate_per_token_loss;
    ASSAY_TRY(ref_new_grad(p, dlogits, &a->logits, NULL));
    for (int r = 0; r < p->n; r++) {
        const ref_param *w = ref_pass_param(p, r, p->e->output);
        const ref_piece *logits = &a->logits.at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dlogits->at[r], logits->rows, logits->cols));
        ref_cross_entropy_bwd(dlogits->at[r].x, logits->x, a->lse.at[r].x, a->targets.at[r].x,
                              w->shard.segments[0][0].start, other ? 1.0 : target_weight(p, a, r),
                              logits->rows, logits->cols);
    }
    if (other)
        ASSAY_TRY(weigh_rows(p, dlogits, a));
    return ref_store(p, dlogits, REF_STORE_LINEAR);
}

/* Logits of every rank into the whole tensor [b,s,v] (Hugging Face order). */
static void collect_logits(const ref_pass *p, const ref_stage_acts *a)
{
    const ref_engine *e = p->e;
    for (int r = 0; r < p->n && e->logits; r++) {
        const ref_piece *logits = &a->logits.at[r];
        const int64_t v0 = ref_pass_param(p, r, e->output)->shard.segments[0][0].start;
        for (int64_t t = 0; t < logits->rows; t++) {
            const int64_t s = p->ranks[r].position[t], b = p->ranks[r].share.first_row + t % e->batch;
            double *row = e->logits + (b * e->seq + s) * e->config->vocab_size + v0;
            for (int64_t v = 0; v < logits->cols; v++)
                row[v] = logits->x[t * logits->cols + v];
        }
    }
}

/* --- stage -------------------------------------------------------------------------------------------------- */

static assay_status head_fwd(ref_pass *p, ref_stage_acts *a)
{
    const bool sp = p->e->grid.p.sequence_parallel;
    ASSAY_TRY(ref_ranks_rmsnorm(p, &a->normed, &a->rstd, &a->output, p->e->final_layernorm,
                                "decoder.final_layernorm"));
    ASSAY_TRY(ref_column_parallel_input(p, &a->whole, &a->normed, sp, "decoder.gather"));
    ASSAY_TRY(
        ref_ranks_linear(p, &a->logits, &a->whole, p->e->output, -1, false, "output_layer", REF_STORE_LOSS));
    collect_logits(p, a);
    return cross_entropy_fwd(p, a);
}

static assay_status head_bwd(ref_pass *p, ref_tensor *dhidden, const ref_stage_acts *a)
{
    const bool sp = p->e->grid.p.sequence_parallel;
    ref_tensor dlogits, dwhole, dnormed;
    ASSAY_TRY(cross_entropy_bwd(p, &dlogits, a));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, &dlogits, &a->whole, p->e->output, -1, NULL));
    ASSAY_TRY(ref_column_parallel_input_bwd(p, &dnormed, &dwhole, sp, sp ? "decoder" : "output_layer"));
    return ref_ranks_rmsnorm_bwd(p, dhidden, &dnormed, &a->output, &a->rstd, p->e->final_layernorm, NULL);
}

assay_status ref_stage_fwd(ref_pass *p, ref_stage_acts *a, const ref_tensor *input)
{
    void *layers;
    ref_tensor hidden;
    p->phase = ASSAY_PHASE_FORWARD;
    enter_layer(p, -1);
    assay_grid_stage_layers(&p->e->grid, p->e->config, p->stage, p->chunk, &a->first_layer, &a->n_layers);
    ASSAY_TRY(ref_arena_alloc(&p->arena, a->n_layers, sizeof *a->layers, &layers));
    a->layers = layers;
    ASSAY_TRY(load_tokens(p, a));
    ASSAY_TRY(ref_documents_load(p));
    if (is_first(p)) {
        ref_tensor partial;
        ASSAY_TRY(ref_unit_acquire(p, REF_UNIT_EMBEDDING));
        ASSAY_TRY(ref_ranks_embedding(p, &partial, &a->ids, p->e->embedding));
        ASSAY_TRY(ref_row_parallel_output(p, &a->embedded, &partial, p->e->grid.p.sequence_parallel,
                                          "embedding.reduce"));
        a->input = a->embedded;
        if (p->e->options.hidden_dropout > 0.0)
            ASSAY_TRY(ref_ranks_dropout(p, &a->input, &a->embedded, p->e->options.hidden_dropout,
                                        REF_DROP_EMBEDDING, "embedding.dropout"));
        ASSAY_TRY(ref_unit_release(p, REF_UNIT_EMBEDDING));
    } else {
        a->input = *input;
    }
    hidden = a->input;
    for (int64_t l = 0; l < a->n_layers; l++) {
        const ref_tensor x = hidden;
        enter_layer(p, a->first_layer + l);
        ASSAY_TRY(ref_unit_acquire(p, p->layer));
        ASSAY_TRY(ref_layer_fwd(p, &a->layers[l], &hidden, &x));
        ASSAY_TRY(ref_unit_release(p, p->layer));
    }
    enter_layer(p, -1);
    a->output = hidden;
    if (!is_last(p))
        return ASSAY_OK;
    ASSAY_TRY(ref_unit_acquire(p, REF_UNIT_OUTPUT));
    ASSAY_TRY(head_fwd(p, a));
    return ref_unit_release(p, REF_UNIT_OUTPUT);
}

/* With recomputation a layer goes forward again before its backward.  Which modules do, or how many layers at once, is a
 * matter of memory, and this memory is not given back: the whole layer runs, from the input that it had. */
static assay_status layer_again(ref_pass *p, ref_layer_acts *a)
{
    const ref_tensor x = a->input;
    ref_tensor unused;
    if (p->e->options.recompute_granularity == ASSAY_RECOMPUTE_NONE)
        return ASSAY_OK;
    p->phase = ASSAY_PHASE_FORWARD;
    p->e->again = true;
    const assay_status st = ref_layer_fwd(p, a, &unused, &x);
    p->e->again = false;
    p->phase = ASSAY_PHASE_BACKWARD;
    return st;
}

assay_status ref_stage_bwd(ref_pass *p, ref_stage_acts *a, const ref_tensor *doutput, ref_tensor *dinput)
{
    ref_tensor dhidden;
    p->phase = ASSAY_PHASE_BACKWARD;
    enter_layer(p, -1);
    if (is_last(p)) {
        ASSAY_TRY(ref_unit_acquire(p, REF_UNIT_OUTPUT));
        ASSAY_TRY(head_bwd(p, &dhidden, a));
        ASSAY_TRY(ref_unit_release(p, REF_UNIT_OUTPUT));
    } else {
        dhidden = *doutput;
    }
    for (int64_t l = a->n_layers - 1; l >= 0; l--) {
        const ref_tensor dy = dhidden;
        enter_layer(p, a->first_layer + l);
        ASSAY_TRY(ref_unit_acquire(p, p->layer));
        ASSAY_TRY(layer_again(p, &a->layers[l]));
        ASSAY_TRY(ref_layer_bwd(p, &dhidden, &a->layers[l], &dy));
        ASSAY_TRY(ref_unit_release(p, p->layer));
    }
    enter_layer(p, -1);
    *dinput = dhidden;
    if (is_first(p) && assay_param_needs_grad(&p->e->spec->params[p->e->embedding])) {
        ref_tensor dwhole, dembedded = dhidden;
        ASSAY_TRY(ref_unit_acquire(p, REF_UNIT_EMBEDDING));
        if (p->e->options.hidden_dropout > 0.0)
            ASSAY_TRY(ref_ranks_dropout_bwd(p, &dembedded, &dhidden, &a->embedded,
                                            p->e->options.hidden_dropout, REF_DROP_EMBEDDING));
        ASSAY_TRY(ref_row_parallel_output_bwd(p, &dwhole, &dembedded, p->e->grid.p.sequence_parallel,
                                              "embedding.reduce"));
        ASSAY_TRY(ref_ranks_embedding_bwd(p, &dwhole, &a->ids, p->e->embedding));
        ASSAY_TRY(ref_unit_release(p, REF_UNIT_EMBEDDING));
    }
    return ASSAY_OK;
}
