/* Final norm, output layer and loss of a microbatch: whole, or all in the backward, part by part of the positions. */
#include "parity/checks/plan.h"

int64_t plan_vocabulary(const plan *p, int64_t *n)
{
    int64_t start;
    const int64_t held = plan_piece(p->job->config->vocab_size, p->tp, p->at.tp, &start);
    if (n != NULL)
        *n = held;
    return start;
}

static const char *output_weight(const plan *p)
{
    return p->job->config->tie_word_embeddings ? "embedding.word_embeddings.weight" : "output_layer.weight";
}

int64_t plan_output_parts(const plan *p)
{
    return assay_loss_parts(p->job->options, p->sequence.region.length);
}

/* --- the weight of a target --------------------------------------------------------------------------------- */

/* Of this microbatch, on the positions of this rank. */
static int64_t targets_here(const plan *p)
{
    const assay_batches *b = p->job->batches;
    const int64_t *labels = assay_batches_labels(b, p->step, p->microbatch);
    int64_t n = 0;
    for (int64_t i = 0; i < p->sequence.region.length * p->B; i++) {
        const int64_t s = assay_sequence_position(&p->sequence.region, i / p->B) + (b->shifted ? 0 : 1);
        n += s < p->S && labels[(p->share.first_row + i % p->B) * p->S + s] != ASSAY_IGNORE_INDEX;
    }
    return n;
}

/* The weight of a target of this microbatch in the objective. */
static double target_weight(const plan *p)
{
    const assay_batches *b = p->job->batches;
    const assay_train_options *o = p->job->options;
    if (o->calculate_per_token_loss)
        return 1.0 / (double)p->n_targets;
    const int ranks = p->cp * (p->share.rows_split ? p->job->grid->p.data_parallel_size : 1);
    if (o->semantics == ASSAY_SEMANTICS_MEGATRON && ranks > 1) {
        const int64_t here = targets_here(p);
        return 1.0 / ((double)b->microbatches * (double)ranks * (double)(here > 0 ? here : 1));
    }
    const int64_t n = plan_targets(b, p->step, p->microbatch);
    return 1.0 / ((double)b->microbatches * (double)(n > 0 ? n : 1));
}

/* --- rows of a part ----------------------------------------------------------------------------------------- */

/* What is read and made of one part of the positions; whole: of all, whose pieces the plan leaves open. */
typedef struct part {
    assay_sequence *positions; /* NULL: whole */
    int64_t first;             /* number of its first position among this rank's */
    plan_tensor x, targets, logits, lse, loss, dlogits, dx;
} part;

static void cut(assay_shard *s, int dim, int64_t global, int64_t start, int64_t length)
{
    const assay_segment piece = {.start = start, .length = length};
    s->global_shape[dim] = global;
    s->local_shape[dim] = length;
    assay_shard_set(s, dim, &piece, length > 0 ? 1 : 0);
}

/* The tensor's rows of the part: positions, rows of the batch, and columns [start, start + n) of `columns` (0: it has none). */
static plan_tensor rows_of(plan *p, const part *o, plan_tensor t, int64_t columns, int64_t start, int64_t n)
{
    assay_shard *s = o->positions != NULL ? plan_alloc(p, sizeof *s) : NULL;
    if (s == NULL)
        return t;
    s->ndim = columns > 0 ? 3 : 2;
    assay_sequence_place(o->positions, p->S, s, 0);
    cut(s, 1, p->job->batches->b, p->share.first_row, p->B);
    if (columns > 0)
        cut(s, 2, columns, start, n);
    t.shard = s;
    if (t.integers != NULL)
        t = plan_with_integers(t, t.integers + o->first * p->B, o->positions->length * p->B);
    return t;
}

/* [3,S,B] of this rank alone, or [pieces,3,S,B]. */
static plan_tensor stats_of(plan *p, const part *o, plan_tensor t, int64_t pieces)
{
    assay_shard *s = o->positions != NULL ? plan_alloc(p, sizeof *s) : NULL;
    if (s == NULL)
        return t;
    const int64_t shape[4] = {pieces, 3, o->positions->length, p->B};
    const int lead = pieces > 0 ? 0 : 1;
    assay_shard_whole(s, shape + lead, 4 - lead);
    t.shard = s;
    return t;
}

/* --- operations --------------------------------------------------------------------------------------------- */

static void loss_forward(plan *p, const part *o)
{
    plan_tensor stats = stats_of(p, o, plan_value(p, "loss.stats", "stats", p->accumulated), 0);
    plan_add(p, "linear_fwd", "output_layer");
    plan_in(p, "x", o->x);
    plan_in(p, "weight", plan_param(p, output_weight(p)));
    plan_out(p, "y", o->logits);
    plan_word(p, "dtype", assay_dtype_name(p->accumulated));
    plan_add(p, "cross_entropy_stats", "loss.stats");
    plan_in(p, "logits", o->logits);
    plan_in(p, "targets", o->targets);
    plan_out(p, "stats", stats);
    plan_int(p, "vocab_start", plan_vocabulary(p, NULL));
    if (p->tp > 1) {
        const plan_tensor all = stats_of(p, o, plan_value(p, "loss.gather", "recv", p->accumulated), p->tp);
        plan_add_collective(p, "all_gather", "loss.gather", ASSAY_GROUP_TP, p->accumulated);
        plan_in(p, "send", stats);
        plan_out(p, "recv", all);
        stats = all;
    }
    plan_add(p, "cross_entropy_loss", "loss");
    plan_in(p, "stats", stats);
    plan_in(p, "targets", o->targets);
    plan_out(p, "lse", o->lse);
    plan_out(p, "loss", o->loss);
}

static void loss_backward(plan *p, const part *o)
{
    plan_add(p, "cross_entropy_bwd", "loss");
    plan_in(p, "logits", o->logits);
    plan_in(p, "lse", o->lse);
    plan_in(p, "targets", o->targets);
    plan_out(p, "dlogits", o->dlogits);
    plan_int(p, "vocab_start", plan_vocabulary(p, NULL));
    plan_f32(p, "scale", target_weight(p));
    plan_linear_backward(p, "output_layer", o->dlogits, o->x, output_weight(p), NULL, o->dx);
}

static void sum_loss(plan *p, plan_tensor loss)
{
    plan_add(p, "sum", "loss.sum");
    plan_in(p, "x", loss);
    plan_out(p, "y", plan_value(p, "loss.sum", "y", ASSAY_F64));
}

static plan_tensor norm_backward(plan *p, const plan_output_saved *s, plan_tensor dx)
{
    const plan_tensor dhidden = plan_grad(p, s->final_norm.x, p->act);
    const plan_tensor dnorm =
        plan_column_input_backward(p, "decoder.gather", "output_layer.reduce_grad", dx, s->final_norm.y);
    plan_rmsnorm_backward(p, "decoder.final_layernorm", &s->final_norm, dnorm, dhidden);
    return dhidden;
}

static void norm_forward(plan *p, plan_output_saved *s)
{
    s->final_norm = plan_rmsnorm(p, "decoder.final_layernorm", s->hidden);
    s->x = plan_column_input(p, "decoder.gather", s->final_norm.y);
    s->logits = plan_value(p, "output_layer", "y", p->accumulated);
    s->lse = plan_value(p, "loss", "lse", p->accumulated);
}

void plan_output_forward(plan *p, plan_output_saved *s)
{
    norm_forward(p, s);
    const part o = {.x = s->x,
                    .targets = s->targets,
                    .logits = s->logits,
                    .lse = s->lse,
                    .loss = plan_value(p, "loss", "loss", p->accumulated)};
    loss_forward(p, &o);
    sum_loss(p, o.loss);
}

/* Part i: its loss, then at once its gradient. */
static void one_part(plan *p, const plan_output_saved *s, int64_t i, plan_tensor loss, plan_tensor dx)
{
    const int64_t length = p->job->options->loss_subbatch_sequence_length, h = p->job->config->hidden_size;
    const int64_t columns = p->job->config->vocab_size;
    int64_t n;
    const int64_t start = plan_vocabulary(p, &n);
    part o = {.positions = plan_alloc(p, sizeof *o.positions), .first = i * length};
    if (o.positions == NULL)
        return;
    assay_sequence_cut(&p->sequence.region, o.first, length, o.positions);
    p->phase = ASSAY_PHASE_FORWARD;
    o.x = rows_of(p, &o, s->x, h, 0, h);
    o.targets = rows_of(p, &o, s->targets, 0, 0, 0);
    o.logits = rows_of(p, &o, s->logits, columns, start, n);
    o.lse = rows_of(p, &o, s->lse, 0, 0, 0);
    o.loss = rows_of(p, &o, loss, 0, 0, 0);
    loss_forward(p, &o);
    p->phase = ASSAY_PHASE_BACKWARD;
    o.dlogits = rows_of(p, &o, plan_grad(p, s->logits, p->act), columns, start, n);
    o.dx = rows_of(p, &o, dx, h, 0, h);
    loss_backward(p, &o);
}

plan_tensor plan_output_backward(plan *p, plan_output_saved *s)
{
    const int64_t parts = plan_output_parts(p);
    if (parts == 0) {
        const part o = {.x = s->x,
                        .targets = s->targets,
                        .logits = s->logits,
                        .lse = s->lse,
                        .dlogits = plan_grad(p, s->logits, p->act),
                        .dx = plan_grad(p, s->x, p->act)};
        loss_backward(p, &o);
        return norm_backward(p, s, o.dx);
    }
    p->phase = ASSAY_PHASE_FORWARD;
    norm_forward(p, s);
    const plan_tensor loss = plan_value(p, "loss", "loss", p->accumulated);
    p->phase = ASSAY_PHASE_BACKWARD;
    const plan_tensor dx = plan_grad(p, s->x, p->act);
    for (int64_t i = 0; i < parts && p->st == ASSAY_OK; i++)
        one_part(p, s, i, loss, dx);
    p->phase = ASSAY_PHASE_FORWARD;
    sum_loss(p, loss);
    p->phase = ASSAY_PHASE_BACKWARD;
    return norm_backward(p, s, dx);
}
