/* What every rank of a step or a bench would refuse, refused once, before any rank is started. */
#include "core/files/batches.h"
#include "core/model/spec.h"
#include "core/run/inputs.h"
#include "parity/run/engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

assay_status parity_check_no_experts(const assay_train_options *o, const char *what)
{
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++)
        ASSAY_CHECK(strncmp(row->name, "moe_", 4) != 0 || !assay_train_option_given(o, row->name),
                    ASSAY_INVALID_ARGUMENT, "--%s: has no meaning here: %s experts", row->name, what);
    return ASSAY_OK;
}

assay_status parity_check_expert_options(const assay_train_options *o, const assay_model_config *config)
{
    char what[ASSAY_PATH + 16];
    snprintf(what, sizeof what, "%s has no", o->model);
    if (config->num_moe_experts == 0)
        ASSAY_TRY(parity_check_no_experts(o, what));
    ASSAY_CHECK(!assay_train_option_given(o, "moe_token_drop_policy") ||
                    o->moe_expert_capacity_factor > 0.0 ||
                    (config->training.given && config->training.moe_expert_capacity_factor > 0.0),
                ASSAY_INVALID_ARGUMENT,
                "--moe_token_drop_policy: has no meaning here: nothing is dropped without "
                "moe_expert_capacity_factor");
    return ASSAY_OK;
}

assay_status parity_check_optimizer_options(const assay_train_options *o, const char *what)
{
    static const char *const names[] = {"optimizer",
                                        "lr",
                                        "min_lr",
                                        "lr_warmup_init",
                                        "lr_decay_style",
                                        "lr_wsd_decay_style",
                                        "lr_warmup_iters",
                                        "lr_decay_iters",
                                        "lr_wsd_decay_iters",
                                        "weight_decay",
                                        "adam_beta1",
                                        "adam_beta2",
                                        "adam_eps",
                                        "clip_grad",
                                        "moe_router_bias_update_rate"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ASSAY_CHECK(
            !assay_train_option_given(o, names[i]), ASSAY_INVALID_ARGUMENT,
            "--%s: has no meaning here: %s holds one batch [b,s] without an optimizer step (steps are "
            "[steps,microbatches,b,s])",
            names[i], what);
    return ASSAY_OK;
}

static void warn_idle(const char *program, const assay_train_options *o, const char *name, bool idle,
                      const char *why)
{
    char spelling[64];
    if (!idle || !assay_train_option_given(o, name))
        return;
    snprintf(spelling, sizeof spelling, "%s", name);
    for (char *c = spelling; *c != '\0'; c++)
        if (*c == '_')
            *c = '-'; /* as --help lists it */
    fprintf(stderr, "%s: warning: --%s changes nothing: %s\n", program, spelling, why);
}

assay_status parity_warn_idle_options(const char *program, const assay_train_options *o)
{
    assay_parallel_config p;
    ASSAY_TRY(assay_layout_parse(o->layout[0] != '\0' ? o->layout : "1", &p));
    const bool tp1 = p.tensor_model_parallel_size == 1,
               dp1 = p.data_parallel_size * p.context_parallel_size == 1,
               constant = o->lr_decay_style == ASSAY_LR_CONSTANT;
    static const char traced[] = "a run with a trace makes one operation after the other";
    const struct {
        const char *name;
        bool on, of_tp;
    } beside[] = {{"tp_comm_overlap", o->tp_comm_overlap, true},
                  {"async_tensor_model_parallel_allreduce", o->async_tensor_model_parallel_allreduce, true},
                  {"moe_shared_expert_overlap", o->moe_shared_expert_overlap, false},
                  {"moe_alltoall_halves", o->moe_alltoall_halves, false}};
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        const bool trace = beside[i].on && o->trace[0] != '\0';
        warn_idle(program, o, beside[i].name, trace, traced);
        warn_idle(program, o, beside[i].name, beside[i].on && beside[i].of_tp && tp1 && !trace,
                  "the layout has no tp");
    }
    warn_idle(program, o, "moe_expert_rank_capacity_factor", p.expert_model_parallel_size == 1,
              "the layout has no ep");
    warn_idle(program, o, "overlap_grad_reduce", o->overlap_grad_reduce && dp1,
              "the layout has no dp and no cp");
    warn_idle(program, o, "min_lr", constant, "lr_decay_style is constant");
    warn_idle(program, o, "lr_decay_iters", constant, "lr_decay_style is constant");
    warn_idle(program, o, "lr_wsd_decay_iters", o->lr_decay_style != ASSAY_LR_WSD,
              "lr_decay_style is not WSD");
    warn_idle(program, o, "lr_wsd_decay_style", o->lr_decay_style != ASSAY_LR_WSD,
              "lr_decay_style is not WSD");
    warn_idle(program, o, "lr_warmup_init", o->lr_warmup_iters == 0, "lr_warmup_iters is 0");
    return ASSAY_OK;
}

assay_status parity_engine_check_inputs(const parity_engine *e, const assay_train_options *o)
{
    assay_batches batches = {0};
    assay_model_spec *spec = NULL;
    assay_weights_source source;
    assay_train_options meant; /* with what the model's folder says */
    assay_parallel_config layout;
    bool stored = false;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(o->precision != ASSAY_PRECISION_FP64, ASSAY_UNSUPPORTED,
                "precision fp64: engine %s computes in fp32 or bf16; --engine ref computes in fp64", e->name);
    ASSAY_TRY(parity_engine_check_variant(e, o->variant));
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(assay_config_load(o->model, config), st, done);
    ASSAY_TRY_GOTO(parity_check_expert_options(o, config), st, done);
    meant = *o;
    ASSAY_TRY_GOTO(assay_inputs_take_config(&meant, config), st, done);
    ASSAY_TRY_GOTO(assay_inputs_spec(&meant, config, &spec), st, done);
    ASSAY_TRY_GOTO(assay_spec_check_folder(spec, o->model, &stored), st, done);
    ASSAY_TRY_GOTO(assay_inputs_weights(o->model, assay_inputs_load(o), o->draw_weights, &source), st, done);
    ASSAY_TRY_GOTO(assay_batches_open(&batches, o->batch, config->vocab_size), st, done);
    if (!batches.training)
        ASSAY_TRY_GOTO(parity_check_optimizer_options(o, o->batch), st, done);
    ASSAY_TRY_GOTO(assay_inputs_layout(o->layout[0] != 0 ? o->layout : "1", &meant, config,
                                       batches.microbatches, batches.b),
                   st, done);
    ASSAY_TRY_GOTO(assay_layout_parse(o->layout[0] != 0 ? o->layout : "1", &layout), st, done);
    ASSAY_TRY_GOTO(assay_inputs_documents(&meant, batches.position_ids != NULL, layout.context_parallel_size),
                   st, done);
    ASSAY_TRY_GOTO(assay_inputs_steps(o, batches.training, batches.steps), st, done);
done:
    assay_batches_close(&batches);
    assay_spec_destroy(spec);
    free(config);
    return st;
}
