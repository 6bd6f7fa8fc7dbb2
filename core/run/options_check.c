/* What one option alone does not say: options that contradict each other. */
#include "core/run/options.h"

assay_status assay_train_options_check(const assay_train_options *o)
{
    assay_parallel_config p;
    assay_grid g;
    ASSAY_TRY(assay_layout_parse(o->layout, &p));
    ASSAY_TRY(assay_grid_make(&p, &g));
    ASSAY_CHECK(o->adam_beta1 < 1.0, ASSAY_INVALID_ARGUMENT, "adam_beta1: expected less than 1, found %.17g",
                o->adam_beta1);
    ASSAY_CHECK(o->adam_beta2 < 1.0, ASSAY_INVALID_ARGUMENT, "adam_beta2: expected less than 1, found %.17g",
                o->adam_beta2);
    ASSAY_CHECK(o->adam_eps > 0.0, ASSAY_INVALID_ARGUMENT, "adam_eps: expected more than 0, found %.17g",
                o->adam_eps);
    const struct {
        const char *name;
        double p;
    } dropout[] = {{"attention_dropout", o->attention_dropout},
                   {"hidden_dropout", o->hidden_dropout},
                   {"residual_dropout", o->residual_dropout}};
    for (int i = 0; i < 3; i++)
        ASSAY_CHECK(dropout[i].p >= 0.0 && dropout[i].p < 1.0, ASSAY_INVALID_ARGUMENT,
                    "%s: expected 0 or more and less than 1, found %.17g", dropout[i].name, dropout[i].p);
    ASSAY_CHECK(o->hidden_dropout == 0.0 || o->residual_dropout == 0.0, ASSAY_INVALID_ARGUMENT,
                "hidden_dropout %.17g and residual_dropout %.17g: expected one of them to be 0",
                o->hidden_dropout, o->residual_dropout);
    ASSAY_CHECK(o->min_lr <= o->lr, ASSAY_INVALID_ARGUMENT, "min_lr %.17g is greater than lr %.17g",
                o->min_lr, o->lr);
    ASSAY_CHECK(o->lr_warmup_init <= o->lr, ASSAY_INVALID_ARGUMENT,
                "lr_warmup_init %.17g is greater than lr %.17g", o->lr_warmup_init, o->lr);
    const int64_t decay = o->lr_decay_iters > 0 ? o->lr_decay_iters : o->train_iters;
    /* decay == 0: the number of steps is known when the batch file is open. */
    ASSAY_CHECK(decay == 0 || o->lr_warmup_iters < decay, ASSAY_INVALID_ARGUMENT,
                "lr_warmup_iters %lld must be less than lr_decay_iters %lld", (long long)o->lr_warmup_iters,
                (long long)decay);
    ASSAY_CHECK(decay == 0 || o->lr_wsd_decay_iters <= decay, ASSAY_INVALID_ARGUMENT,
                "lr_wsd_decay_iters %lld must be at most lr_decay_iters %lld",
                (long long)o->lr_wsd_decay_iters, (long long)decay);
    ASSAY_CHECK(o->lr_decay_style != ASSAY_LR_WSD || o->lr_wsd_decay_iters > 0, ASSAY_INVALID_ARGUMENT,
                "lr_decay_style WSD needs lr_wsd_decay_iters of at least 1");
    ASSAY_CHECK(o->save_after == 0 || o->save[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "save_after %lld without save", (long long)o->save_after);
    ASSAY_CHECK(o->save_interval == 0 || (o->save[0] != '\0' && o->save_after == 0), ASSAY_INVALID_ARGUMENT,
                "save_interval %lld %s", (long long)o->save_interval,
                o->save_after != 0 ? "with save_after" : "without save");
    ASSAY_CHECK(!o->async_save || o->save[0] != '\0', ASSAY_INVALID_ARGUMENT, "async_save without save");
    ASSAY_CHECK(o->max_shard_size == 0 || o->save[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "max_shard_size %lld without save", (long long)o->max_shard_size);
    ASSAY_CHECK(o->trace[0] == '\0' || (o->log_interval == 0 && o->metrics[0] == '\0'), ASSAY_UNSUPPORTED,
                "trace with log_interval or metrics: a run that can be stopped has a reduction that a plan "
                "does not know");
    ASSAY_CHECK(o->save[0] != '\0' || (!o->no_save_optim && !o->skip_save_model_weight),
                ASSAY_INVALID_ARGUMENT, "%s without save",
                o->no_save_optim ? "no_save_optim" : "skip_save_model_weight");
    const char *without = o->finetune                    ? "finetune"
                          : o->no_load_rng               ? "no_load_rng"
                          : o->round_checkpoint          ? "round_checkpoint"
                          : o->ignore_missing_keys[0]    ? "ignore_missing_keys"
                          : o->ignore_unexpected_keys[0] ? "ignore_unexpected_keys"
                          : o->ignore_mismatched_keys[0] ? "ignore_mismatched_keys"
                                                         : NULL;
    ASSAY_CHECK(without == NULL || o->load[0] != '\0', ASSAY_INVALID_ARGUMENT, "%s without load", without);
    ASSAY_CHECK(
        !o->no_load_optim || o->finetune, ASSAY_UNSUPPORTED,
        "no_load_optim without finetune: the optimizer's step is the run's here, so that states cannot "
        "begin anew in the middle of a run; --finetune begins at step 0 with the checkpoint's weights");
    ASSAY_CHECK(!o->override_checkpoint_args || o->load[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "override_checkpoint_args without load");
    ASSAY_CHECK(!o->trace_hash_only || o->trace[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "trace_hash_only without trace");
    return ASSAY_OK;
}

int64_t assay_row_multiple(const assay_train_options *o)
{
    static const int64_t multiple[] = {
        [ASSAY_PADDING_NONE] = 1, [ASSAY_PADDING_FP8] = 16, [ASSAY_PADDING_MXFP8] = 32};
    return multiple[o->moe_router_padding_for_quantization];
}

bool assay_pads_rows(const assay_train_options *o)
{
    return o->moe_pad_expert_input_to_capacity ||
           o->moe_router_padding_for_quantization != ASSAY_PADDING_NONE;
}
