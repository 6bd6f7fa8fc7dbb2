/* One decoder layer (pre-norm): hidden + Mixer(norm(hidden)), then hidden + MLP(norm(hidden)).  docs/OPS.md section 9. */
#include "gpu/layer.h"
#include "gpu/dropout.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

const gpu_layer_kind *const gpu_mixers[ASSAY_MIXER_COUNT] = {
    [ASSAY_MIXER_ATTENTION] = &gpu_self_attention,
    [ASSAY_MIXER_MLA] = &gpu_mla,
};
const gpu_layer_kind *const gpu_mlps[ASSAY_MLP_COUNT] = {
    [ASSAY_MLP_DENSE] = &gpu_dense,
    [ASSAY_MLP_MOE] = &gpu_moe,
};

/* --- parameters --------------------------------------------------------------------------------------------- */
static const gpu_kind_param norms[] = {
    {"input_layernorm.weight", offsetof(gpu_layer, input_layernorm), true},
    {"pre_mlp_layernorm.weight", offsetof(gpu_layer, pre_mlp_layernorm), true},
    {0},
};

static assay_status find_params(gpu_model *m, gpu_layer *l, const gpu_kind_param *params)
{
    for (const gpu_kind_param *p = params; p->name; p++) {
        char name[ASSAY_NAME];
        snprintf(name, sizeof name, "decoder.layers.%lld.%s", (long long)l->number, p->name);
        gpu_param *found = gpu_model_find(m, name);
        ASSAY_CHECK(found || !p->needed, ASSAY_INTERNAL, "%s: the parameter table lacks it", name);
        memcpy((char *)l + p->offset, &found, sizeof found);
    }
    return ASSAY_OK;
}

assay_status gpu_layer_create(gpu_model *m, gpu_layer *l, int64_t number)
{
    l->number = number;
    l->window = m->config->window[number];
    l->mixer = gpu_mixers[m->config->mixer[number]];
    ASSAY_CHECK(l->mixer != NULL, ASSAY_UNSUPPORTED, "layer %lld: mixer %s: not computed in this version",
                (long long)number, assay_mixer_name(m->config->mixer[number]));
    l->mlp = gpu_mlps[m->config->mlp[number]];
    ASSAY_TRY(find_params(m, l, norms));
    ASSAY_TRY(find_params(m, l, l->mixer->params));
    return find_params(m, l, l->mlp->params);
}

/* --- forward, backward -------------------------------------------------------------------------------------- */
static void enter(gpu_run *run, const gpu_layer *l)
{
    run->layer = l->number;
    run->waits_at_entry = run->comm.waits;
}

static void leave(gpu_run *run)
{
    run->layer = -1;
    run->layer_waits += run->comm.waits - run->waits_at_entry;
}

gpu_arena *gpu_module_arena(gpu_model *m, gpu_microbatch_state *mb, unsigned modules)
{
    return (m->recompute.modules & modules) != 0 && !m->run->recompute ? &m->dropped : &mb->arena;
}

static assay_status norm_fwd(gpu_model *m, gpu_microbatch_state *mb, const char *at, gpu_param *gamma,
                             gpu_value *y, gpu_value *rstd, gpu_value *x)
{
    gpu_arena *keep = gpu_module_arena(m, mb, ASSAY_RECOMPUTE_LAYERNORM);
    return GPU_CALL(m->run, "rmsnorm_fwd", at, GPU_T("x", x), GPU_T("gamma", gpu_param_use(m, gamma)),
                    GPU_F("eps", m->eps), GPU_NEW("y", y, gpu_tokens(m, keep, m->sp, gpu_dim_hidden(m))),
                    GPU_NEW("rstd", rstd, gpu_token_rows(m, &mb->arena, m->sp)));
}

/* The norm's backward and the residual's gradient, to which it adds its own: sum = dresidual + dx.  sum is made by its description, or
 * there. */
static assay_status norm_bwd_residual(gpu_model *m, const char *norm, const char *residual, gpu_param *gamma,
                                      gpu_value *sum, gpu_value *dresidual, gpu_value *dy, gpu_value *x,
                                      gpu_value *rstd)
{
    gpu_value dx;
    const gpu_call_args parts[] = {
        {.op = "rmsnorm_bwd",
         .at = norm,
         .arg = {GPU_T("dy", dy), GPU_T("x", x), GPU_T("gamma", gpu_param_use(m, gamma)), GPU_T("rstd", rstd),
                 GPU_T("dgamma", gpu_param_grad(m, gamma)), GPU_F("eps", m->eps),
                 GPU_NEW("dx", &dx, gpu_tokens(m, &m->scratch, m->sp, gpu_dim_hidden(m)))}},
        {.op = "add", .at = residual, .arg = {GPU_T("a", dresidual), GPU_T("b", &dx), GPU_T("y", sum)}},
    };
    return gpu_call_fused(m->run, "rmsnorm_bwd_add", parts, 2);
}

/* The mixer's residual and the norm that reads it: one launch where there is a kernel for it. */
static assay_status residual_norm_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                                      gpu_value *branch)
{
    gpu_arena *keep = gpu_module_arena(m, mb, ASSAY_RECOMPUTE_LAYERNORM);
    const gpu_dim H = gpu_dim_hidden(m);
    const gpu_call_args parts[] = {
        {.op = "add",
         .at = "self_attention.residual",
         .arg = {GPU_T("a", &a->input), GPU_T("b", branch),
                 GPU_NEW("y", &a->hidden, gpu_tokens(m, &mb->arena, m->sp, H))}},
        {.op = "rmsnorm_fwd",
         .at = "pre_mlp_layernorm",
         .arg = {GPU_T("x", &a->hidden), GPU_T("gamma", gpu_param_use(m, l->pre_mlp_layernorm)),
                 GPU_F("eps", m->eps), GPU_NEW("y", &a->norm, gpu_tokens(m, keep, m->sp, H)),
                 GPU_NEW("rstd", &a->rstd, gpu_token_rows(m, &mb->arena, m->sp))}},
    };
    return gpu_call_fused(m->run, "add_rmsnorm_fwd", parts, 2);
}

/* The MLP's residual and the norm behind the layer, likewise.  The parts belong to two layers: their instances are whole names. */
static assay_status output_norm_fwd(gpu_model *m, const gpu_layer *l, gpu_layer_acts *a, gpu_value *branch,
                                    const gpu_next_norm *next)
{
    char at[ASSAY_NAME];
    gpu_instance(m->run, "mlp.residual", at);
    m->run->layer = -1;
    ASSAY_TRY(gpu_param_acquire(m, next->unit, next->behind));
    const gpu_call_args parts[] = {
        {.op = "add", .at = at, .arg = {GPU_T("a", &a->hidden), GPU_T("b", branch), GPU_T("y", &a->output)}},
        {.op = "rmsnorm_fwd",
         .at = next->at,
         .arg = {GPU_T("x", &a->output), GPU_T("gamma", gpu_param_use(m, next->gamma)), GPU_F("eps", m->eps),
                 GPU_T("y", next->y), GPU_T("rstd", next->rstd)}},
    };
    gpu_value_name(m->run, next->y, next->at, "y");
    gpu_value_name(m->run, next->rstd, next->at, "rstd");
    ASSAY_TRY(gpu_call_fused(m->run, "add_rmsnorm_fwd", parts, 2));
    m->run->layer = l->number;
    return ASSAY_OK;
}

/* Whether the layer's whole MLP is a module that runs again. */
static bool mlp_runs_again(const gpu_model *m, const gpu_layer *l)
{
    return (m->recompute.modules & (l->mlp == &gpu_moe ? ASSAY_RECOMPUTE_MOE : ASSAY_RECOMPUTE_MLP)) != 0;
}

assay_status gpu_layer_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                           bool entered, const gpu_next_norm *next)
{
    gpu_run *run = m->run;
    const size_t mark = m->scratch.used, dropped = m->dropped.used;
    gpu_acts_mark mlp;
    const double drop = assay_branch_dropout(m->options);
    gpu_value branch;
    enter(run, l);
    if (!entered)
        ASSAY_TRY(norm_fwd(m, mb, "input_layernorm", l->input_layernorm, &a->input_norm, &a->input_rstd,
                           &a->input));
    ASSAY_TRY(l->mixer->fwd(m, mb, l, a, &a->mixed, &a->input_norm));
    ASSAY_TRY(gpu_dropout_fwd(m, &m->scratch, "self_attention.dropout", GPU_DROP_MIXER, l->number, drop,
                              &branch, &a->mixed));
    ASSAY_TRY(residual_norm_fwd(m, mb, l, a, &branch));
    mlp = (gpu_acts_mark){.arena = mb->arena.used, .host = mb->host.used};
    ASSAY_TRY(l->mlp->fwd(m, mb, l, a, &a->mlp_out, &a->norm));
    ASSAY_TRY(
        gpu_dropout_fwd(m, &m->scratch, "mlp.dropout", GPU_DROP_MLP, l->number, drop, &branch, &a->mlp_out));
    gpu_value_name(run, &a->output, "mlp.residual", "y");
    if (next)
        ASSAY_TRY(output_norm_fwd(m, l, a, &branch, next));
    else
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.residual", GPU_T("a", &a->hidden), GPU_T("b", &branch),
                           GPU_T("y", &a->output)));
    if (mlp_runs_again(m, l)) {
        gpu_arena_reset(&mb->arena, mlp.arena);
        gpu_arena_reset(&mb->host, mlp.host);
    }
    leave(run);
    gpu_arena_reset(&m->scratch, mark);
    gpu_arena_reset(&m->dropped, dropped);
    return ASSAY_OK;
}

assay_status gpu_layer_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a)
{
    const bool with_norms = (m->recompute.modules & ASSAY_RECOMPUTE_LAYERNORM) != 0;
    const size_t mark = m->scratch.used;
    gpu_value branch;
    enter(m->run, l);
    if (with_norms)
        ASSAY_TRY(norm_fwd(m, mb, "input_layernorm", l->input_layernorm, &a->input_norm, &a->input_rstd,
                           &a->input));
    ASSAY_TRY(l->mixer->again(m, mb, l, a));
    if (with_norms)
        ASSAY_TRY(norm_fwd(m, mb, "pre_mlp_layernorm", l->pre_mlp_layernorm, &a->norm, &a->rstd, &a->hidden));
    if (mlp_runs_again(m, l))
        ASSAY_TRY(l->mlp->fwd(m, mb, l, a, &branch, &a->norm));
    else
        ASSAY_TRY(l->mlp->again(m, mb, l, a));
    leave(m->run);
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}

assay_status gpu_layer_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dx, gpu_value *dy)
{
    gpu_run *run = m->run;
    const size_t mark = m->scratch.used;
    const double drop = assay_branch_dropout(m->options);
    gpu_value dnorm, dropped, dhidden = gpu_grad_of(m, &a->hidden);
    enter(run, l);
    ASSAY_TRY(gpu_dropout_bwd(m, "mlp.dropout", GPU_DROP_MLP, l->number, drop, &dropped, dy, &a->mlp_out));
    ASSAY_TRY(l->mlp->bwd(m, l, a, &dnorm, &dropped));
    ASSAY_TRY(norm_bwd_residual(m, "pre_mlp_layernorm", "mlp.residual_grad", l->pre_mlp_layernorm, &dhidden,
                                dy, &dnorm, &a->hidden, &a->rstd));
    ASSAY_TRY(gpu_dropout_bwd(m, "self_attention.dropout", GPU_DROP_MIXER, l->number, drop, &dropped,
                              &dhidden, &a->mixed));
    ASSAY_TRY(l->mixer->bwd(m, l, a, &dnorm, &dropped));
    gpu_value_grad(run, dx, &a->input);
    ASSAY_TRY(norm_bwd_residual(m, "input_layernorm", "self_attention.residual_grad", l->input_layernorm, dx,
                                &dhidden, &dnorm, &a->input, &a->input_rstd));
    leave(run);
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}
