/* Final norm, output layer and loss of a microbatch, whole or in parts of its positions. */
#include "gpu/output.h"

#include "gpu/describe.h"
#include "gpu/parallel/linear.h"
#include "gpu/parallel/tensor.h"
#include "gpu/weight_grads.h"

/* Positions of this rank whose logits exist at once, and their rows. */
typedef struct part {
    gpu_dim positions;
    gpu_arena *keep;         /* where logits and lse go */
    gpu_value *x, *targets;  /* what is read */
    gpu_value *logits, *lse; /* what is made */
    gpu_value *loss, *dx;    /* described, or these rows of what is there */
} part;

static gpu_dim vocabulary(const gpu_model *m)
{
    return gpu_dim_tp(m, m->config->vocab_size, 1);
}

/* [pieces,3,S,B], or [3,S,B] when pieces is 0 */
static gpu_value stats_of(gpu_model *m, const part *p, int64_t pieces)
{
    const gpu_dim dim[4] = {gpu_dim_whole(pieces), gpu_dim_whole(3), p->positions, gpu_dim_batch(m)};
    const int lead = pieces > 0 ? 0 : 1;
    gpu_value v = gpu_value_describe(&m->scratch, 4 - lead, dim + lead, 2 - lead);
    v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

/* --- parts -------------------------------------------------------------------------------------------------- */
static assay_status part_loss(gpu_model *m, const part *p)
{
    gpu_run *run = m->run;
    gpu_value stats, gathered, *all = &stats;
    const gpu_dim logits[3] = {p->positions, gpu_dim_batch(m), vocabulary(m)};
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "output_layer", GPU_T("x", p->x),
                       GPU_T("weight", gpu_param_use(m, m->output_layer)),
                       GPU_W("dtype", assay_dtype_name(run->recipe->op[ASSAY_OPS_LOSS].act)),
                       GPU_NEW("y", p->logits, gpu_value_describe(p->keep, 3, logits, 0))));
    ASSAY_TRY(GPU_CALL(run, "cross_entropy_stats", "loss.stats", GPU_T("logits", p->logits),
                       GPU_T("targets", p->targets), GPU_I("vocab_start", vocabulary(m).start),
                       GPU_NEW("stats", &stats, stats_of(m, p, 0))));
    if (m->tp > 1) {
        all = gpu_value_set(&gathered, stats_of(m, p, m->tp));
        ASSAY_TRY(gpu_all_gather(m, "loss.gather", ASSAY_GROUP_TP, all, &stats));
    }
    return GPU_CALL(run, "cross_entropy_loss", "loss", GPU_T("stats", all), GPU_T("targets", p->targets),
                    GPU_NEW("lse", p->lse, gpu_value_describe(p->keep, 2, logits, 0)),
                    GPU_T("loss", p->loss));
}

static assay_status loss_bwd(gpu_model *m, const gpu_microbatch_state *mb, const part *p, gpu_value *dlogits)
{
    return GPU_CALL(m->run, "cross_entropy_bwd", "loss", GPU_T("logits", p->logits), GPU_T("lse", p->lse),
                    GPU_T("targets", p->targets), GPU_I("vocab_start", vocabulary(m).start),
                    GPU_F("scale", (double)(float)mb->loss_scale),
                    GPU_NEW("dlogits", dlogits, gpu_grad_of(m, p->logits)));
}

static assay_status part_bwd(gpu_model *m, const gpu_microbatch_state *mb, const part *p)
{
    gpu_run *run = m->run;
    gpu_value dlogits;
    ASSAY_TRY(loss_bwd(m, mb, p, &dlogits));
    ASSAY_TRY(gpu_linear_bwd_weight(m, "output_layer", &dlogits, p->x, m->output_layer));
    return GPU_CALL(run, "linear_bwd_input", "output_layer", GPU_T("dy", &dlogits),
                    GPU_T("weight", gpu_param_use(m, m->output_layer)), GPU_T("dx", p->dx));
}

/* --- around them -------------------------------------------------------------------------------------------- */
/* entered: the last layer has run the norm. */
static assay_status norm_fwd(gpu_model *m, gpu_output_acts *a, gpu_arena *keep, gpu_value *hidden,
                             bool entered)
{
    if (!entered)
        ASSAY_TRY(GPU_CALL(m->run, "rmsnorm_fwd", "decoder.final_layernorm", GPU_T("x", hidden),
                           GPU_T("gamma", gpu_param_use(m, m->final_layernorm)), GPU_F("eps", m->eps),
                           GPU_NEW("y", &a->norm, gpu_tokens(m, keep, m->sp, gpu_dim_hidden(m))),
                           GPU_NEW("rstd", &a->rstd, gpu_token_rows(m, keep, m->sp))));
    return gpu_column_parallel_input(m, keep, m->sp, "decoder.gather", &a->whole, &a->norm);
}

static assay_status norm_bwd(gpu_model *m, gpu_output_acts *a, gpu_value *hidden, gpu_value *dnorm,
                             gpu_value *dhidden)
{
    gpu_value_grad(m->run, dhidden, hidden);
    return GPU_CALL(m->run, "rmsnorm_bwd", "decoder.final_layernorm", GPU_T("dy", dnorm), GPU_T("x", hidden),
                    GPU_T("gamma", gpu_param_use(m, m->final_layernorm)), GPU_T("rstd", &a->rstd),
                    GPU_T("dgamma", gpu_param_grad(m, m->final_layernorm)), GPU_F("eps", m->eps),
                    GPU_T("dx", dhidden));
}

static assay_status sum_loss(gpu_model *m, const gpu_microbatch_state *mb, gpu_value *loss)
{
    const gpu_dim one = gpu_dim_whole(1);
    gpu_value sum = gpu_named(m, gpu_value_describe(NULL, 1, &one, -1), "loss.sum", "y");
    sum.t = gpu_tensor_1d(m->loss_sums + mb->index, ASSAY_F64, 1);
    sum = gpu_partial(m, sum, m->rows_split ? ASSAY_GROUP_DP_CP : ASSAY_GROUP_CP);
    return GPU_CALL(m->run, "sum", "loss.sum", GPU_T("x", loss), GPU_T("y", &sum));
}

/* --- whole -------------------------------------------------------------------------------------------------- */
static part whole(const gpu_model *m, gpu_microbatch_state *mb)
{
    gpu_output_acts *a = &mb->output;
    return (part){.positions = gpu_dim_sequence(m, false),
                  .keep = &mb->arena,
                  .x = &a->whole,
                  .targets = &mb->targets,
                  .logits = &a->logits,
                  .lse = &a->lse};
}

assay_status gpu_output_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, bool entered)
{
    gpu_value loss = gpu_token_rows(m, &m->scratch, false);
    part p = whole(m, mb);
    p.loss = &loss;
    ASSAY_TRY(norm_fwd(m, &mb->output, &mb->arena, hidden, entered));
    ASSAY_TRY(part_loss(m, &p));
    return sum_loss(m, mb, &loss);
}

assay_status gpu_output_bwd(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, gpu_value *dhidden)
{
    gpu_output_acts *a = &mb->output;
    gpu_value dlogits, dnorm, dx = gpu_partial(m, gpu_grad_of(m, &a->whole), ASSAY_GROUP_TP);
    const part p = whole(m, mb);
    const gpu_column_linear c = {.at = "output_layer",
                                 .reduce = "output_layer.reduce_grad",
                                 .gather = "decoder.gather",
                                 .weight = m->output_layer,
                                 .sp = m->sp};
    ASSAY_TRY(loss_bwd(m, mb, &p, &dlogits));
    ASSAY_TRY(gpu_column_linear_bwd(m, &c, &dnorm, &dx, &dlogits, &a->whole, &a->norm));
    return norm_bwd(m, a, hidden, &dnorm, dhidden);
}

/* --- in parts ----------------------------------------------------------------------------------------------- */
/* The rows of part `i` of a value of all positions of this rank. */
static gpu_value rows_of(const gpu_model *m, const gpu_value *v, int64_t i)
{
    const int64_t first = i * m->options->loss_subbatch_sequence_length;
    gpu_value rows = *v;
    rows.dim[0] = gpu_dim_positions(m->S, &m->loss_positions[i]);
    rows.t = gpu_tensor_rows(v->t, first * m->B, rows.dim[0].length * m->B);
    return rows;
}

/* A value that several calls of `op` write, rows by rows. */
static assay_status make_for(const gpu_model *m, const char *op, assay_slot_class stored, gpu_value *v)
{
    const bool backward = m->run->phase == ASSAY_PHASE_BACKWARD;
    return gpu_value_make(v, assay_op_dtype(assay_op_find(op), m->run->recipe, stored, backward));
}

static assay_status one_part(gpu_model *m, gpu_microbatch_state *mb, int64_t i, gpu_value *loss,
                             gpu_value *dx)
{
    const size_t mark = m->scratch.used;
    gpu_value x = rows_of(m, &mb->output.whole, i), targets = rows_of(m, &mb->targets, i);
    gpu_value loss_rows = rows_of(m, loss, i), dx_rows = rows_of(m, dx, i);
    const part p = {.positions = x.dim[0],
                    .keep = &m->scratch,
                    .x = &x,
                    .targets = &targets,
                    .logits = &mb->output.logits,
                    .lse = &mb->output.lse,
                    .loss = &loss_rows,
                    .dx = &dx_rows};
    m->run->phase = ASSAY_PHASE_FORWARD;
    ASSAY_TRY(part_loss(m, &p));
    m->run->phase = ASSAY_PHASE_BACKWARD;
    ASSAY_TRY(part_bwd(m, mb, &p));
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}

assay_status gpu_output_parts(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, gpu_value *dhidden)
{
    gpu_output_acts *a = &mb->output;
    gpu_run *run = m->run;
    gpu_value loss, dx, dnorm;
    run->phase = ASSAY_PHASE_FORWARD;
    ASSAY_TRY(norm_fwd(m, a, &m->scratch, hidden, false));
    loss = gpu_named(m, gpu_token_rows(m, &m->scratch, false), "loss", "loss");
    ASSAY_TRY(make_for(m, "cross_entropy_loss", ASSAY_CLASS_F32, &loss));
    run->phase = ASSAY_PHASE_BACKWARD;
    dx = gpu_partial(m, gpu_grad_of(m, &a->whole), ASSAY_GROUP_TP);
    ASSAY_TRY(make_for(m, "linear_bwd_input", ASSAY_CLASS_ACT, &dx));
    for (int64_t i = 0; i < m->loss_parts; i++) {
        run->part = i + 1;
        ASSAY_TRY(one_part(m, mb, i, &loss, &dx));
    }
    run->part = 0;
    run->phase = ASSAY_PHASE_FORWARD;
    ASSAY_TRY(sum_loss(m, mb, &loss));
    run->phase = ASSAY_PHASE_BACKWARD;
    ASSAY_TRY(gpu_column_parallel_input_bwd(m, m->sp, "output_layer.reduce_grad", "decoder.gather", &dnorm,
                                            &dx, &a->norm));
    return norm_bwd(m, a, hidden, &dnorm, dhidden);
}
