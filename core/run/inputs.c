/* What a run reads. */
#include "core/run/inputs.h"

#include "core/files/batches.h"

assay_status assay_inputs_weights(const char *folder, const char *load, int64_t draw_weights,
                                  assay_weights_source *source)
{
    const bool named = folder != NULL && folder[0] != '\0';
    const bool loaded = load != NULL && load[0] != '\0';
    bool stored = false;
    if (named)
        ASSAY_TRY(assay_tensorfile_in_folder(folder, &stored));
    ASSAY_CHECK(
        !stored || draw_weights < 0, ASSAY_INVALID_ARGUMENT,
        "--draw-weights %lld: expected a folder that holds a configuration alone, but %s holds weights",
        (long long)draw_weights, folder);
    ASSAY_CHECK(
        stored || loaded || draw_weights >= 0, ASSAY_INVALID_ARGUMENT,
        "%s: expected weights (model.safetensors, or model.safetensors.index.json with its shards), found a "
        "configuration alone; to draw the weights from a seed: --draw-weights SEED",
        named ? folder : "model");
    *source = stored ? ASSAY_WEIGHTS_STORED : loaded ? ASSAY_WEIGHTS_LOADED : ASSAY_WEIGHTS_DRAWN;
    return ASSAY_OK;
}

assay_status assay_inputs_spec(const assay_train_options *o, const assay_model_config *config,
                               assay_model_spec **out)
{
    ASSAY_TRY(assay_spec_build(config, out));
    const assay_status st = assay_spec_freeze(*out, o->freeze);
    if (st != ASSAY_OK) {
        assay_spec_destroy(*out);
        *out = NULL;
    }
    return st;
}

const char *assay_inputs_load(const assay_train_options *o)
{
    return o->ignore_missing_keys[0] == '\0' && o->ignore_mismatched_keys[0] == '\0' ? o->load : "";
}

/* Options of experts that contradict each other or this model. */
static assay_status check_experts(const assay_train_options *o, const assay_model_config *config)
{
    ASSAY_CHECK(
        o->moe_expert_rank_capacity_factor == 0.0 || o->moe_expert_rank_capacity_factor >= 1.0,
        ASSAY_INVALID_ARGUMENT,
        "moe_expert_rank_capacity_factor: expected 0, or 1 or more, found %g: ranks have an even share "
        "on average",
        o->moe_expert_rank_capacity_factor);
    ASSAY_CHECK(!o->moe_pad_expert_input_to_capacity || o->moe_expert_capacity_factor > 0.0,
                ASSAY_INVALID_ARGUMENT,
                "moe_pad_expert_input_to_capacity without moe_expert_capacity_factor");
    ASSAY_CHECK(o->semantics != ASSAY_SEMANTICS_MEGATRON || !o->moe_pad_expert_input_to_capacity ||
                    !config->moe_router_enable_expert_bias,
                ASSAY_UNSUPPORTED,
                "semantics megatron: moe_pad_expert_input_to_capacity with moe_router_enable_expert_bias: "
                "Megatron-LM counts the rows of padding for the expert bias, which is not reproduced");
    ASSAY_CHECK(
        o->semantics != ASSAY_SEMANTICS_MEGATRON || !o->moe_router_force_load_balancing, ASSAY_UNSUPPORTED,
        "semantics megatron: moe_router_force_load_balancing: Megatron-LM draws from torch's generator of "
        "every rank, which is not reproduced");
    ASSAY_CHECK(
        o->semantics != ASSAY_SEMANTICS_MEGATRON || !(o->moe_input_jitter_eps > 0.0), ASSAY_UNSUPPORTED,
        "semantics megatron: moe_input_jitter_eps: Megatron-LM draws from torch's generator of every rank, "
        "which is not reproduced");
    return ASSAY_OK;
}

static assay_status take_dropout(assay_train_options *o, const assay_config_training *t)
{
    if (!assay_train_option_given(o, "attention_dropout"))
        o->attention_dropout = t->attention_dropout;
    if (!assay_train_option_given(o, "hidden_dropout"))
        o->hidden_dropout = t->hidden_dropout;
    if (!assay_train_option_given(o, "residual_dropout"))
        o->residual_dropout = t->residual_dropout;
    ASSAY_CHECK(o->hidden_dropout == 0.0 || o->residual_dropout == 0.0, ASSAY_INVALID_ARGUMENT,
                "hidden_dropout %.17g and residual_dropout %.17g: expected one of them to be 0",
                o->hidden_dropout, o->residual_dropout);
    ASSAY_CHECK(
        o->semantics != ASSAY_SEMANTICS_MEGATRON ||
            (o->attention_dropout == 0.0 && o->hidden_dropout == 0.0 && o->residual_dropout == 0.0),
        ASSAY_UNSUPPORTED,
        "semantics megatron: dropout: Megatron-LM draws from torch's generator of every rank, which is "
        "not reproduced");
    return ASSAY_OK;
}

/* What a configuration in Megatron-LM's words says of training, where the command line says nothing. */
static void take_training(assay_train_options *o, const assay_config_training *t)
{
    if (!assay_train_option_given(o, "moe_router_load_balancing_type"))
        o->moe_router_load_balancing_type = t->moe_router_load_balancing_type;
    if (!assay_train_option_given(o, "moe_aux_loss_coeff"))
        o->moe_aux_loss_coeff = t->moe_aux_loss_coeff;
    if (!assay_train_option_given(o, "moe_input_jitter_eps"))
        o->moe_input_jitter_eps = t->moe_input_jitter_eps;
    if (!assay_train_option_given(o, "moe_z_loss_coeff"))
        o->moe_z_loss_coeff = t->moe_z_loss_coeff;
    if (!assay_train_option_given(o, "moe_router_bias_update_rate"))
        o->moe_router_bias_update_rate = t->moe_router_bias_update_rate;
    if (!assay_train_option_given(o, "calculate_per_token_loss"))
        o->calculate_per_token_loss = t->calculate_per_token_loss;
    if (!assay_train_option_given(o, "moe_expert_capacity_factor"))
        o->moe_expert_capacity_factor = t->moe_expert_capacity_factor;
    if (!assay_train_option_given(o, "moe_token_drop_policy"))
        o->moe_token_drop_policy = t->drops_by_position ? ASSAY_DROP_POSITION : ASSAY_DROP_PROBS;
    if (!assay_train_option_given(o, "moe_router_dtype"))
        o->moe_router_dtype = t->rounds_router_logits ? ASSAY_ROUTER_MODEL : ASSAY_ROUTER_FP32;
    if (!assay_train_option_given(o, "moe_router_force_load_balancing"))
        o->moe_router_force_load_balancing = t->moe_router_force_load_balancing;
    if (!assay_train_option_given(o, "moe_shared_expert_overlap"))
        o->moe_shared_expert_overlap = t->moe_shared_expert_overlap;
    if (!assay_train_option_given(o, "moe_pad_expert_input_to_capacity"))
        o->moe_pad_expert_input_to_capacity = t->moe_pad_expert_input_to_capacity;
    if (!assay_train_option_given(o, "moe_router_padding_for_quantization"))
        o->moe_router_padding_for_quantization =
            t->pads_rows_for_fp8 ? ASSAY_PADDING_FP8 : ASSAY_PADDING_NONE;
}

assay_status assay_inputs_take_config(assay_train_options *o, const assay_model_config *config)
{
    ASSAY_CHECK(o->moe_router_dtype != ASSAY_ROUTER_FP64, ASSAY_UNSUPPORTED,
                "moe_router_dtype: " ASSAY_NO_FP64_ROUTER);
    ASSAY_TRY(take_dropout(o, &config->training));
    if (config->training.given)
        take_training(o, &config->training);
    ASSAY_TRY(assay_balancing_check(o));
    return check_experts(o, config);
}

assay_status assay_inputs_steps(const assay_train_options *o, bool training, int64_t steps)
{
    ASSAY_CHECK(o->train_iters <= steps, ASSAY_INVALID_ARGUMENT,
                "train_iters %lld: the batch file holds %lld steps", (long long)o->train_iters,
                (long long)steps);
    const int64_t last = o->train_iters > 0 ? o->train_iters : steps;
    ASSAY_CHECK(!training || o->save_after <= last, ASSAY_INVALID_ARGUMENT,
                "save_after %lld: expected a step up to the last, %lld: nothing would be saved",
                (long long)o->save_after, (long long)last);
    if (!training || o->train_iters > 0)
        return ASSAY_OK;
    assay_train_options implied = *o;
    implied.train_iters = steps;
    const assay_status st = assay_train_options_check(&implied);
    return st == ASSAY_OK ? st : assay_context(st, "the batch file holds %lld steps", (long long)steps);
}

assay_status assay_inputs_rows(const assay_train_options *o, const assay_model_config *config,
                               bool rows_split)
{
    const bool balances =
        config->num_moe_experts > 0 &&
        (assay_balancing_coeff(o, ASSAY_BALANCING_AUX) > 0.0 ||
         assay_balancing_coeff(o, ASSAY_BALANCING_SEQ_AUX) > 0.0 ||
         assay_balancing_coeff(o, ASSAY_BALANCING_GLOBAL_AUX) > 0.0 || o->moe_z_loss_coeff > 0.0);
    ASSAY_CHECK(
        o->semantics != ASSAY_SEMANTICS_MEGATRON || !rows_split || !balances, ASSAY_UNSUPPORTED,
        "semantics megatron: balancing losses where dp ranks share the rows of a microbatch: every rank "
        "of Megatron-LM has losses of its own rows, which is not reproduced; expected a number of "
        "microbatches that dp divides");
    return ASSAY_OK;
}

assay_status assay_inputs_layout(const char *layout, const assay_train_options *o,
                                 const assay_model_config *config, int64_t microbatches, int64_t b)
{
    assay_parallel_config p;
    assay_grid grid;
    assay_batch_share share;
    ASSAY_TRY(assay_layout_parse(layout, &p));
    ASSAY_TRY(assay_grid_make(&p, &grid));
    ASSAY_TRY(assay_grid_check_model(&grid, config));
    ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(o), microbatches, b, grid.p.data_parallel_size, 0,
                                     &share));
    ASSAY_TRY(assay_inputs_rows(o, config, share.rows_split));
    const int64_t stages = p.pipeline_model_parallel_size;
    ASSAY_CHECK(p.virtual_pipeline_model_parallel_size == 1 || share.n_microbatches <= stages ||
                    share.n_microbatches % stages == 0,
                ASSAY_INVALID_ARGUMENT,
                "layout: vpp%d: expected a number of microbatches of a data-parallel rank that is a multiple "
                "of pp%d or "
                "at most that, found %lld",
                p.virtual_pipeline_model_parallel_size, p.pipeline_model_parallel_size,
                (long long)share.n_microbatches);
    return o->moe_alltoall_halves ? assay_inputs_halves(o, config, &p) : ASSAY_OK;
}

assay_status assay_inputs_documents(const assay_train_options *o, bool packed, int cp)
{
    const bool cut = packed && cp > 1 && o->semantics == ASSAY_SEMANTICS_MEGATRON;
    ASSAY_CHECK(!cut || o->calculate_per_token_loss, ASSAY_UNSUPPORTED,
                "semantics megatron with documents packed in rows, cp%d and calculate_per_token_loss false: "
                "Megatron-LM takes the mean over a rank's targets and gives every rank a part of each "
                "document, here it has a part of the row",
                cp);
    ASSAY_CHECK(!cut || !(o->moe_expert_capacity_factor > 0.0), ASSAY_UNSUPPORTED,
                "semantics megatron with documents packed in rows, cp%d and moe_expert_capacity_factor: "
                "Megatron-LM decides over a rank's tokens and gives every rank a part of each document, here "
                "it has a part of the row",
                cp);
    return ASSAY_OK;
}

typedef struct obstacle {
    bool there;
    const char *what;
} obstacle;

/* What stands between the launches of a microbatch with a mixture of experts. */
static assay_status check_graph_of_experts(const assay_train_options *o, const assay_parallel_config *p,
                                           bool rows_split)
{
    const bool whole = assay_balancing_coeff(o, ASSAY_BALANCING_AUX) > 0.0 || o->moe_z_loss_coeff > 0.0 ||
                       assay_balancing_coeff(o, ASSAY_BALANCING_GLOBAL_AUX) > 0.0;
    const obstacle list[] = {
        {p->expert_model_parallel_size > 1, "rows of experts that travel over ep are not captured"},
        {o->moe_expert_capacity_factor > 0.0, "the host waits for what the capacities of experts leave"},
        {assay_pads_rows(o), "the host waits for the rows of experts that are padded"},
        {rows_split && whole, "balancing losses over the rows of all dp ranks need a collective inside a "
                              "microbatch, which is not captured"},
        {o->semantics == ASSAY_SEMANTICS_MEGATRON && p->data_parallel_size > 1 &&
             assay_balancing_coeff(o, ASSAY_BALANCING_GLOBAL_AUX) > 0.0,
         "the running counts of global_aux_loss are summed over dp inside a microbatch, which is not "
         "captured"},
        {o->moe_input_jitter_eps > 0.0 || o->moe_router_force_load_balancing,
         "the router draws by numbers that a kernel gets from the host in every step"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        ASSAY_CHECK(!list[i].there, ASSAY_UNSUPPORTED, "enable_cuda_graph: %s", list[i].what);
    return ASSAY_OK;
}

assay_status assay_inputs_cuda_graph(const assay_train_options *o, const assay_model_config *config,
                                     const assay_parallel_config *p, bool rows_split)
{
    bool experts = false;
    for (int64_t l = 0; l < config->num_layers; l++)
        experts = experts || config->mlp[l] == ASSAY_MLP_MOE;
    const obstacle list[] = {
        {p->tensor_model_parallel_size > 1, "collectives over tp inside a microbatch are not captured"},
        {p->context_parallel_size > 1, "collectives over cp inside a microbatch are not captured"},
        {p->pipeline_model_parallel_size > 1, "sends and receives of a pipeline are not captured"},
        {p->zero_stage >= 2, "zero2 and zero3 gather and scatter inside a microbatch"},
        {o->hidden_dropout > 0.0 || o->attention_dropout > 0.0 || o->residual_dropout > 0.0,
         "dropout draws by numbers that a kernel gets from the host in every step"},
        {o->trace[0] != '\0', "a traced run looks between launches; leave out --trace"},
        {o->substitute[0] != '\0', "--substitute looks between launches"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        ASSAY_CHECK(!list[i].there, ASSAY_UNSUPPORTED, "enable_cuda_graph: %s", list[i].what);
    return experts ? check_graph_of_experts(o, p, rows_split) : ASSAY_OK;
}

assay_status assay_inputs_halves(const assay_train_options *o, const assay_model_config *config,
                                 const assay_parallel_config *p)
{
    const int64_t ep = p->expert_model_parallel_size;
    const obstacle list[] = {
        {ep == 1, "without ep no row of an expert travels"},
        {p->expert_tensor_parallel_size > 1, "rows that are gathered over etp travel whole"},
        {o->moe_token_dispatcher_type == ASSAY_DISPATCHER_ALLGATHER,
         "the all-gather dispatcher sends tokens, not the rows of experts"},
        {config->num_moe_experts < 2 * ep, "a rank has one expert, which has no halves"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        ASSAY_CHECK(!list[i].there, ASSAY_UNSUPPORTED, "moe_alltoall_halves: %s", list[i].what);
    return ASSAY_OK;
}

void assay_not_finite_text(const assay_not_finite *f, const int64_t *shape, int ndim, char *out,
                           size_t capacity)
{
    int64_t index[ASSAY_MAX_DIMS] = {0}, count = 1, rest = f->first;
    char place[ASSAY_MAX_DIMS * 24] = "";
    size_t used = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        index[d] = rest % shape[d];
        rest /= shape[d];
        count *= shape[d];
    }
    for (int d = 0; d < ndim; d++)
        used += (size_t)snprintf(place + used, sizeof place - used, "%s%lld", d > 0 ? "," : "",
                                 (long long)index[d]);
    snprintf(out, capacity,
             "%lld of %lld elements are not finite (%lld NaN, %lld infinite), the first at [%s]",
             (long long)(f->nan + f->infinite), (long long)count, (long long)f->nan, (long long)f->infinite,
             place);
}
