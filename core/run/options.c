/* The option table: one row for each member of assay_train_options, for command line and case file. */
#include "core/run/options.h"

#include "core/base/suggest.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *const precision_words[] = {"fp64", "fp32", "bf16", NULL};
static const char *const optimizer_words[] = {"adam", NULL};
static const char *const semantics_words[] = {"default", "megatron", NULL};
static const char *const lr_words[] = {"constant", "linear", "cosine", "WSD", NULL};
static const char *const dispatcher_words[] = {"alltoall", "allgather", NULL};
static const char *const drop_words[] = {"probs", "position", NULL};
static const char *const router_words[] = {"fp32", "model", "fp64", NULL};
static const char *const granularity_words[] = {"none", "full", "selective", NULL};
static const char *const method_words[] = {"uniform", "block", NULL};
/* As assay_load_balancing_words has them: the table below wants constants. */
static const char *const balancing_words[] = {"none", "aux_loss", "seq_aux_loss", "global_aux_loss", NULL};
static const char *const padding_words[] = {"none", "fp8", "mxfp8", NULL};
static const char *const wsd_words[] = {"linear", "cosine", "exponential", "minus_sqrt", NULL};

#define MEMBER(member) offsetof(assay_train_options, member), sizeof((assay_train_options *)0)->member
#define ROW_STRING(member, argument, where, group, help)                                                     \
    {                                                                                                        \
#member, ASSAY_OPT_STRING, MEMBER(member), 0, 0, NULL, argument, help, group, where                  \
    }
#define ROW_INT(member, min, max, where, group, help)                                                        \
    {                                                                                                        \
#member, ASSAY_OPT_INT, MEMBER(member), min, max, NULL, "N", help, group, where                      \
    }
#define ROW_DOUBLE(member, min, max, where, group, help)                                                     \
    {                                                                                                        \
#member, ASSAY_OPT_DOUBLE, MEMBER(member), min, max, NULL, "X", help, group, where                   \
    }
#define ROW_ENUM(member, words, argument, where, group, help)                                                \
    {                                                                                                        \
#member, ASSAY_OPT_ENUM, MEMBER(member), 0, 0, words, argument, help, group, where                   \
    }
#define ROW_BOOL(member, where, group, help)                                                                 \
    {                                                                                                        \
#member, ASSAY_OPT_BOOL, MEMBER(member), 0, 0, NULL, "BOOL", help, group, where                      \
    }
#define ROW_WORDS(member, words, argument, where, group, help)                                               \
    {                                                                                                        \
#member, ASSAY_OPT_ENUM_LIST, MEMBER(member), 0, 0, words, argument, help, group, where              \
    }
#define ROW_DOUBLES(member, min, max, where, group, help)                                                    \
    {                                                                                                        \
#member, ASSAY_OPT_DOUBLE_LIST, MEMBER(member), min, max, NULL, "X,...", help, group, where          \
    }
#define STEPS_MAX 1e12
enum {
    STEP = ASSAY_FOR_STEP,
    STEP_TRAIN = ASSAY_FOR_STEP | ASSAY_FOR_TRAIN,
    STEP_RUN = ASSAY_FOR_STEP | ASSAY_FOR_RUN,
    STEP_BENCH = ASSAY_FOR_STEP | ASSAY_FOR_BENCH,
    STEP_BENCH_TRAIN = STEP_BENCH | ASSAY_FOR_TRAIN,
    STEP_RUN_BENCH = STEP_RUN | ASSAY_FOR_BENCH,
    STEP_RUN_BENCH_OPS = STEP_RUN_BENCH | ASSAY_FOR_OPS,
    LAYOUTS = STEP_BENCH_TRAIN | ASSAY_FOR_BISECT,
    EVERYWHERE = LAYOUTS | ASSAY_FOR_RUN | ASSAY_FOR_CASE
};

static const assay_option_row table[] = {
    ROW_STRING(model, "DIR", STEP_RUN_BENCH | ASSAY_FOR_TRAIN | ASSAY_FOR_BISECT, "Data",
               "folder of a model, Hugging Face or Megatron-LM (docs/MEGATRON.md)"),
    ROW_STRING(batch, "FILE", STEP_RUN_BENCH | ASSAY_FOR_BISECT, "Data",
               "safetensors file with I64 input_ids and labels, or tokens and shifted labels"),
    ROW_STRING(out, "FILE", STEP, "Data", "result file (safetensors); required"),
    ROW_STRING(trace, "DIR", STEP, "Data", "trace folder"),
    ROW_STRING(load, "DIR", STEP_TRAIN, "Data", "checkpoint folder to resume from"),
    {"override_checkpoint_args", ASSAY_OPT_BOOL, MEMBER(override_checkpoint_args), 0, 0, NULL, "BOOL",
     "continue the checkpoint with the training options of this run where they differ, and say each", "Data",
     STEP_TRAIN},
    ROW_BOOL(finetune, STEP_TRAIN, "Data", "take the checkpoint's weights alone and begin at step 0"),
    ROW_BOOL(no_load_optim, STEP_TRAIN, "Data",
             "do not load optimizer states and masters; --finetune implies it, refused without"),
    ROW_BOOL(no_load_rng, STEP_TRAIN, "Data",
             "go on with this run's random streams where they cannot be mapped"),
    ROW_BOOL(round_checkpoint, STEP_TRAIN, "Data",
             "round the F64 of an fp64 checkpoint to this run's masters"),
    ROW_STRING(ignore_missing_keys, "PATTERN,...", STEP_TRAIN, "Data",
               "keys that the checkpoint may lack, as in 'lm_head.*': they keep the model's values"),
    ROW_STRING(ignore_unexpected_keys, "PATTERN,...", STEP_TRAIN, "Data", "keys that the model may lack"),
    ROW_STRING(ignore_mismatched_keys, "PATTERN,...", STEP_TRAIN, "Data",
               "keys whose shapes may differ: they keep the model's values"),
    ROW_STRING(save, "DIR", STEP_TRAIN, "Data", "checkpoint folder to write after the last step"),
    ROW_INT(save_interval, 0, STEPS_MAX, STEP_TRAIN, "Data", "--save holds iter_0000010, ... every N steps"),
    ROW_BOOL(no_save_optim, STEP_TRAIN, "Data", "checkpoints without optimizer states and masters"),
    ROW_BOOL(skip_save_model_weight, STEP_TRAIN, "Data",
             "store the masters in model-*, in place of weights and masters"),
    ROW_BOOL(async_save, STEP_TRAIN, "Data", "train on while writer processes save; the next save waits"),
    ROW_INT(save_total_limit, 0, STEPS_MAX, STEP_TRAIN, "Data", "checkpoints kept beside the best; 0: all"),
    ROW_INT(max_shard_size, 0, (int64_t)1 << 53, STEP_TRAIN, "Data", "bytes of a checkpoint's file; 0: 5 GB"),
    ROW_BOOL(save_differing_replicas, STEP, "Data", "save a checkpoint whose replicas differ; it says so"),
    ROW_STRING(metrics, "FILE", STEP_TRAIN, "Data", "one JSON object for each step (docs/TRAIN.md)"),
    ROW_INT(log_interval, 0, STEPS_MAX, STEP_TRAIN, "Run",
            "a line of output every so many steps; 0 (default): none"),
    ROW_INT(save_after, 0, STEPS_MAX, STEP, "Data", "write --save after this global step; 0: after the last"),
    ROW_STRING(layout, "LAYOUT", LAYOUTS, "Run", "parallel layout, as in tp2,sp,ep2,dp2,zero1"),
    ROW_INT(num_layers_in_first_pipeline_stage, 0, ASSAY_MAX_PIPELINE_LAYERS, LAYOUTS, "Run",
            "layers of the first pipeline stage (layout word firstN)"),
    ROW_INT(num_layers_in_last_pipeline_stage, 0, ASSAY_MAX_PIPELINE_LAYERS, LAYOUTS, "Run",
            "layers of the last pipeline stage (layout word lastN)"),
    ROW_BOOL(account_for_embedding_in_pipeline_split, LAYOUTS, "Run",
             "the embedding counts as a layer of the first stage (layout word embed)"),
    ROW_BOOL(account_for_loss_in_pipeline_split, LAYOUTS, "Run",
             "the loss counts as a layer of the last stage (layout word loss)"),
    ROW_STRING(pipeline_model_parallel_layout, "TEXT", LAYOUTS, "Run",
               "layers of every virtual stage, as in 'Et*3|(tt|)*2L' (layout word stages=TEXT)"),
    ROW_ENUM(precision, precision_words, "fp64|fp32|bf16", LAYOUTS, "Run", "fp64, fp32 or bf16"),
    {"seed", ASSAY_OPT_SEED, MEMBER(seed), 0, 0, NULL, "N",
     "seed of the tokens and masked labels of a case; and of its weights, where the case holds a "
     "configuration "
     "and --draw-weights names no other",
     "Run", ASSAY_FOR_RUN | ASSAY_FOR_CASE | ASSAY_FOR_TRAIN},
    {"draw_weights", ASSAY_OPT_INT, MEMBER(draw_weights), -1, 0x1p63, NULL, "SEED",
     "draw the weights of a folder that holds a configuration alone; -1 (default): refuse such a folder",
     "Run", EVERYWHERE},
    ROW_INT(train_iters, 0, STEPS_MAX, STEP_RUN | ASSAY_FOR_TRAIN | ASSAY_FOR_BISECT, "Run",
            "optimizer steps; 0 (default): all that the data holds"),
    ROW_STRING(variant, "FAMILY=kN,...", STEP_RUN_BENCH_OPS | ASSAY_FOR_TRAIN | ASSAY_FOR_BISECT, "Run",
               "kernel variants, as in attention=k1,rmsnorm=k0"),
    {"trace_hash_only", ASSAY_OPT_BOOL, MEMBER(trace_hash_only), 0, 0, NULL, "BOOL",
     "trace without tensor data", "Run", STEP},
    ROW_STRING(
        fault, "FAULT", STEP_RUN | ASSAY_FOR_BISECT, "Run",
        "plant a fault (self-tests; docs/ADDING.md): skip:INSTANCE, attr:INSTANCE:NAME=X, ..., or a word"),
    ROW_STRING(
        substitute, "FILE", STEP_RUN, "Run",
        "debugging (docs/DEBUG.md): rules, one a line, whose calls run another variant (k0:INSTANCE) or get "
        "their results from a trace of the reference (values:INSTANCE); assay bisect writes them"),
    ROW_STRING(
        substitute_values, "DIR", STEP_RUN, "Run",
        "debugging: the trace that --substitute takes values from, of assay step --engine ref --trace"),
    {"collective_timeout", ASSAY_OPT_DOUBLE, MEMBER(collective_timeout), 0, 1e6, NULL, "SECONDS",
     "longest wait for a collective; 0: ASSAY_COLLECTIVE_TIMEOUT_S, else 300", "Run",
     STEP_RUN_BENCH_OPS | ASSAY_FOR_TRAIN | ASSAY_FOR_BISECT},
    ROW_STRING(
        freeze, "PATTERN,...", EVERYWHERE, "Optimizer",
        "weights that are not trained, as in 'embedding.*,decoder.layers.0.*'; '!PATTERN' trains again"),
    ROW_ENUM(optimizer, optimizer_words, "adam", EVERYWHERE, "Optimizer", "adam (AdamW)"),
    ROW_DOUBLE(lr, 0, 1e6, EVERYWHERE, "Optimizer", "learning rate (default 1e-3)"),
    ROW_DOUBLE(min_lr, 0, 1e6, EVERYWHERE, "Optimizer", "lowest learning rate of the schedule (default 0)"),
    ROW_DOUBLE(lr_warmup_init, 0, 1e6, EVERYWHERE, "Optimizer",
               "learning rate at the start of warm-up (default 0)"),
    ROW_ENUM(lr_decay_style, lr_words, "STYLE", EVERYWHERE, "Optimizer",
             "constant (default), linear, cosine or WSD"),
    ROW_ENUM(lr_wsd_decay_style, wsd_words, "STYLE", EVERYWHERE, "Optimizer",
             "linear, cosine, exponential (default) or minus_sqrt"),
    ROW_INT(lr_warmup_iters, 0, STEPS_MAX, EVERYWHERE, "Optimizer", "steps of warm-up (default 0)"),
    ROW_INT(lr_decay_iters, 0, STEPS_MAX, EVERYWHERE, "Optimizer", "steps until min_lr; 0: train_iters"),
    ROW_INT(lr_wsd_decay_iters, 0, STEPS_MAX, EVERYWHERE, "Optimizer", "steps of the decay phase of WSD"),
    ROW_DOUBLE(weight_decay, 0, 1e6, EVERYWHERE, "Optimizer", "decoupled weight decay (default 0.01)"),
    ROW_DOUBLE(adam_beta1, 0, 1, EVERYWHERE, "Optimizer", "decay rate of the first moment (default 0.9)"),
    ROW_DOUBLE(adam_beta2, 0, 1, EVERYWHERE, "Optimizer", "decay rate of the second moment (default 0.999)"),
    ROW_DOUBLE(adam_eps, 0, 1e6, EVERYWHERE, "Optimizer",
               "added to the root of the second moment (default 1e-8)"),
    ROW_DOUBLE(clip_grad, 0, 1e30, EVERYWHERE, "Optimizer",
               "largest global gradient norm (default 1); 0: no clipping"),
    ROW_INT(ddp_bucket_size, 0, 1099511627776.0, EVERYWHERE, "Optimizer",
            "elements of a gradient bucket before it is closed; 0: 4194304, with zero2 and zero3 a unit"),
    {"gradient_accumulation_fusion", ASSAY_OPT_BOOL, MEMBER(gradient_accumulation_fusion), 0, 0, NULL, "BOOL",
     "products add weight gradients to the main gradients in F32 (default true); false: stored as "
     "activations are, then added",
     "Optimizer", EVERYWHERE},
    {"log_num_zeros_in_grad", ASSAY_OPT_BOOL, MEMBER(log_num_zeros_in_grad), 0, 0, NULL, "BOOL",
     "count the zeros in the gradients of every step", "Optimizer", EVERYWHERE},
    {"overlap_grad_reduce", ASSAY_OPT_BOOL, MEMBER(overlap_grad_reduce), 0, 0, NULL, "BOOL",
     "reduce gradients while the backward pass goes on", "Optimizer", EVERYWHERE},
    {"async_tensor_model_parallel_allreduce", ASSAY_OPT_BOOL, MEMBER(async_tensor_model_parallel_allreduce),
     0, 0, NULL, "BOOL",
     "sum the gradient of a column-parallel linear's input over tp while the weight's gradient is computed",
     "Run", EVERYWHERE},
    {"tp_comm_overlap", ASSAY_OPT_BOOL, MEMBER(tp_comm_overlap), 0, 0, NULL, "BOOL",
     "linears cut over tp in splits of the rows: one split is gathered or summed while another is multiplied",
     "Run", EVERYWHERE},
    {"enable_cuda_graph", ASSAY_OPT_BOOL, MEMBER(enable_cuda_graph), 0, 0, NULL, "BOOL",
     "launch the forward and the backward of a microbatch as CUDA graphs: engines gpu and sim, layouts of dp "
     "and zero1 alone (no tp, cp, pp, zero2, zero3), no trace; experts without ep, capacities and padding",
     "Run", STEP_BENCH_TRAIN},
    {"overlap_param_gather", ASSAY_OPT_BOOL, MEMBER(overlap_param_gather), 0, 0, NULL, "BOOL",
     "gather parameters of a sharded optimizer or model while the pass before their use goes on", "Optimizer",
     EVERYWHERE},
    ROW_ENUM(recompute_granularity, granularity_words, "none|full|selective", EVERYWHERE, "Recomputation",
             "what runs its forward again before its backward: nothing, whole layers, modules of layers"),
    ROW_ENUM(recompute_method, method_words, "uniform|block", EVERYWHERE, "Recomputation",
             "full: groups of layers that keep one input each, or the first layers of each chunk"),
    ROW_INT(recompute_num_layers, 0, ASSAY_MAX_PIPELINE_LAYERS, EVERYWHERE, "Recomputation",
            "full: layers of a group (uniform), layers of a chunk that run again (block); 0: 1"),
    ROW_STRING(recompute_modules, "MODULE,...", EVERYWHERE, "Recomputation",
               "selective: core_attn (the default), layernorm, mlp, moe, moe_act, shared_experts"),
    ROW_WORDS(moe_router_load_balancing_type, balancing_words, "TYPE,...", EVERYWHERE, "Mixture of experts",
              "balancing losses: aux_loss (default; of a microbatch), seq_aux_loss (of a sequence), "
              "global_aux_loss (of the step so far), none"),
    ROW_DOUBLES(
        moe_aux_loss_coeff, 0, 1e6, EVERYWHERE, "Mixture of experts",
        "coefficient of each balancing loss (default 0: a Hugging Face config's router_aux_loss_coef is "
        "not read)"),
    ROW_DOUBLE(moe_input_jitter_eps, 0, 1, EVERYWHERE, "Mixture of experts",
               "what a router reads is multiplied by numbers drawn from [1 - X, 1 + X]"),
    ROW_DOUBLE(moe_z_loss_coeff, 0, 1e6, EVERYWHERE, "Mixture of experts", "router z-loss"),
    ROW_DOUBLE(moe_router_bias_update_rate, 0, 1e6, EVERYWHERE, "Mixture of experts",
               "step of the expert bias (default 1e-3)"),
    ROW_ENUM(moe_token_dispatcher_type, dispatcher_words, "alltoall|allgather", EVERYWHERE,
             "Mixture of experts", "how tokens get to their experts: rows are sent, or all tokens gathered"),
    ROW_DOUBLE(moe_expert_capacity_factor, 0, 1e6, EVERYWHERE, "Mixture of experts",
               "tokens that an expert takes of a microbatch, as a multiple of an even share; 0: all"),
    {"moe_expert_rank_capacity_factor", ASSAY_OPT_DOUBLE, MEMBER(moe_expert_rank_capacity_factor), 0, 1e6,
     NULL, "X",
     "engines: memory for X even shares of the rows that ep sends a rank, and an error beyond; 0: for all "
     "that may come",
     "Mixture of experts", STEP_BENCH_TRAIN},
    ROW_ENUM(moe_router_dtype, router_words, "fp32|model", EVERYWHERE, "Mixture of experts",
             "what a router's logits are stored in: fp32, or the activations' type (Megatron-LM's None)"),
    ROW_ENUM(
        moe_token_drop_policy, drop_words, "POLICY", EVERYWHERE, "Mixture of experts",
        "which tokens an expert beyond its capacity lets go: probs (the smallest) or position (the last)"),
    ROW_BOOL(
        moe_router_force_load_balancing, EVERYWHERE, "Mixture of experts",
        "random logits in place of the router's, the same in every layout; gradients go straight through"),
    ROW_BOOL(moe_shared_expert_overlap, EVERYWHERE, "Mixture of experts",
             "the shared expert runs beside the dispatch of tokens to the others"),
    ROW_BOOL(moe_alltoall_halves, EVERYWHERE, "Mixture of experts",
             "rows of one half of a rank's experts travel while the other half computes"),
    ROW_BOOL(moe_pad_expert_input_to_capacity, EVERYWHERE, "Mixture of experts",
             "every expert computes as many rows as its capacity, zeros where tokens are missing"),
    ROW_ENUM(moe_router_padding_for_quantization, padding_words, "none|fp8|mxfp8", EVERYWHERE,
             "Mixture of experts",
             "rows of every expert, zeros added, are a multiple of 16 (fp8) or 32 (mxfp8)"),
    ROW_DOUBLE(attention_dropout, 0, 1, EVERYWHERE, "Dropout",
               "share of the attention probabilities that become 0; less than 1"),
    ROW_DOUBLE(hidden_dropout, 0, 1, EVERYWHERE, "Dropout",
               "share of the elements of the embedding's output, and of what every mixer and MLP adds, that "
               "become 0; less than 1"),
    ROW_DOUBLE(residual_dropout, 0, 1, EVERYWHERE, "Dropout",
               "the same of what every mixer and MLP adds alone (Hugging Face's name); less than 1"),
    {"dropout_seed", ASSAY_OPT_SEED, MEMBER(dropout_seed), 0, 0, NULL, "N",
     "seed of the masks, which are the same in every layout (default 1234)", "Dropout", EVERYWHERE},
    {"calculate_per_token_loss", ASSAY_OPT_BOOL, MEMBER(calculate_per_token_loss), 0, 0, NULL, "BOOL",
     "gradients of the mean over all targets of a step (default true); false: of the mean of microbatch "
     "means",
     "Loss", EVERYWHERE},
    ROW_INT(loss_subbatch_sequence_length, 0, 1099511627776.0, EVERYWHERE, "Loss",
            "positions of a sequence whose logits exist at once: their loss and gradient are made together, "
            "in the backward; 0: all at once"),
    ROW_ENUM(semantics, semantics_words, "default|megatron", EVERYWHERE, "Loss",
             "default: no layout changes a number; megatron: Megatron-LM's numbers where they depend on the "
             "layout"),
    {.name = NULL},
};

_Static_assert(sizeof table / sizeof table[0] <= 128, "assay_train_options.given has a bit for each row");

static bool is_given(const assay_train_options *o, ptrdiff_t row)
{
    return (o->given[row / 64] >> (row % 64) & 1) != 0;
}

static void set_given(assay_train_options *o, ptrdiff_t row)
{
    o->given[row / 64] |= (uint64_t)1 << (row % 64);
}

void assay_train_options_default(assay_train_options *o)
{
    memset(o, 0, sizeof *o);
    snprintf(o->layout, sizeof o->layout, "1");
    o->precision = ASSAY_PRECISION_FP32;
    o->seed = 1234;
    o->dropout_seed = 1234;
    o->draw_weights = -1;
    o->lr = 1e-3;
    o->weight_decay = 0.01;
    o->adam_beta1 = 0.9;
    o->adam_beta2 = 0.999;
    o->adam_eps = 1e-8;
    o->clip_grad = 1.0;
    o->moe_router_load_balancing_type = (assay_word_list){.n = 1, .of = {ASSAY_BALANCING_AUX}};
    o->moe_aux_loss_coeff.n = 1;
    o->moe_router_bias_update_rate = 1e-3;
    o->gradient_accumulation_fusion = true;
    o->calculate_per_token_loss = true;
    o->lr_wsd_decay_style = ASSAY_WSD_EXPONENTIAL;
}

int64_t assay_loss_parts(const assay_train_options *o, int64_t positions)
{
    const int64_t length = o->loss_subbatch_sequence_length;
    if (length == 0)
        return 0;
    return positions > 0 ? (positions - 1) / length + 1 : 1;
}

const assay_option_row *assay_train_option_table(void)
{
    return table;
}

/* `name` in either spelling. */
static const assay_option_row *find_row(const char *name)
{
    for (const assay_option_row *row = table; row->name != NULL; row++) {
        const char *a = row->name, *b = name;
        while (*a != '\0' && (*a == *b || (*a == '_' && *b == '-'))) {
            a++;
            b++;
        }
        if (*a == '\0' && *b == '\0')
            return row;
    }
    return NULL;
}

/* --- from text --------------------------------------------------------------------------------------------
 */

static assay_status parse_int(const char *text, const char *name, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    const bool starts_well = (text[0] >= '0' && text[0] <= '9') || text[0] == '-' || text[0] == '+';
    ASSAY_CHECK(starts_well && *end == '\0' && errno == 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected an integer, found '%.64s'", name, text);
    *out = value;
    return ASSAY_OK;
}

static assay_status parse_double(const char *text, const char *name, double *out)
{
    char *end;
    const double value = strtod(text, &end);
    const bool starts_well = text[0] != '\0' && strchr("+-.0123456789", text[0]) != NULL;
    /* value - value is 0 for finite numbers only. */
    ASSAY_CHECK(starts_well && *end == '\0' && value - value == 0.0, ASSAY_INVALID_ARGUMENT,
                "%s: expected a number, found '%.64s'", name, text);
    *out = value;
    return ASSAY_OK;
}

static assay_status parse_seed(const char *text, const char *name, uint64_t *out)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 0);
    ASSAY_CHECK(text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected an integer from 0 to 2^64 - 1, found '%.64s'", name, text);
    *out = value;
    return ASSAY_OK;
}

static assay_status parse_bool(const char *text, const char *name, bool *out)
{
    const bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    const bool no = strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
    ASSAY_CHECK(yes || no, ASSAY_INVALID_ARGUMENT, "%s: expected true or false, found '%.64s'", name, text);
    *out = yes;
    return ASSAY_OK;
}

static assay_status parse_word(const assay_option_row *row, const char *text, const char *name, int *out)
{
    char expected[128];
    size_t used = 0;
    expected[0] = '\0';
    for (int i = 0; row->words[i] != NULL; i++) {
        if (strcmp(row->words[i], text) == 0) {
            *out = i;
            return ASSAY_OK;
        }
        used +=
            (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", i ? ", " : "", row->words[i]);
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: expected one of %s, found '%.64s'", name, expected, text);
}

/* Writes an int into an enum member; every enum of assay_train_options has the size of an int. */
static void store_enum(assay_train_options *o, const assay_option_row *row, int value)
{
    _Static_assert(sizeof(assay_precision) == sizeof(int) && sizeof(assay_lr_decay_style) == sizeof(int) &&
                       sizeof(assay_wsd_decay_style) == sizeof(int) &&
                       sizeof(assay_drop_policy) == sizeof(int) && sizeof(assay_row_padding) == sizeof(int) &&
                       sizeof(assay_token_dispatcher) == sizeof(int) &&
                       sizeof(assay_optimizer) == sizeof(int) && sizeof(assay_semantics) == sizeof(int),
                   "enum members are written as int");
    memcpy((char *)o + row->offset, &value, sizeof value);
}

static assay_status check_number(const assay_option_row *row, double value, const char *name)
{
    ASSAY_CHECK(value >= row->min && value <= row->max, ASSAY_INVALID_ARGUMENT,
                "%s: expected %.17g to %.17g, found %.17g", name, row->min, row->max, value);
    return ASSAY_OK;
}

/* Entry `i` of a list into a member that is one. */
static assay_status set_entry(assay_train_options *o, const assay_option_row *row, const char *name, int i,
                              const char *text)
{
    char *at = (char *)o + row->offset;
    ASSAY_CHECK(i < ASSAY_MAX_LIST, ASSAY_LIMIT, "%s: at most %d entries", name, ASSAY_MAX_LIST);
    if (row->type == ASSAY_OPT_ENUM_LIST) {
        assay_word_list *words = (void *)at;
        words->n = i + 1;
        return parse_word(row, text, name, &words->of[i]);
    }
    assay_number_list *numbers = (void *)at;
    numbers->n = i + 1;
    ASSAY_TRY(parse_double(text, name, &numbers->of[i]));
    return check_number(row, numbers->of[i], name);
}

/* "a,b". */
static assay_status set_list(assay_train_options *o, const assay_option_row *row, const char *name,
                             const char *text)
{
    memset((char *)o + row->offset, 0, row->size);
    for (int i = 0;; i++) {
        char entry[64];
        const size_t length = strcspn(text, ",");
        ASSAY_CHECK(length < sizeof entry, ASSAY_LIMIT, "%s: '%.64s': at most %zu bytes", name, text,
                    sizeof entry - 1);
        memcpy(entry, text, length);
        entry[length] = '\0';
        ASSAY_TRY(set_entry(o, row, name, i, entry));
        if (text[length] == '\0')
            return ASSAY_OK;
        text += length + 1;
    }
}

static assay_status set_row(assay_train_options *o, const assay_option_row *row, const char *name,
                            const char *text)
{
    char *at = (char *)o + row->offset;
    int64_t whole = 0;
    double real = 0.0;
    uint64_t seed = 0;
    bool flag = false;
    int word = 0;
    switch (row->type) {
    case ASSAY_OPT_STRING:
        ASSAY_CHECK(strlen(text) < row->size, ASSAY_LIMIT, "%s: %zu bytes, at most %zu fit", name,
                    strlen(text), row->size - 1);
        memset(at, 0, row->size);
        memcpy(at, text, strlen(text) + 1);
        if (strcmp(row->argument, "DIR") == 0)
            ASSAY_TRY(assay_option_folder(name, text, at, row->size));
        break;
    case ASSAY_OPT_INT:
        ASSAY_TRY(parse_int(text, name, &whole));
        ASSAY_TRY(check_number(row, (double)whole, name));
        memcpy(at, &whole, sizeof whole);
        break;
    case ASSAY_OPT_DOUBLE:
        ASSAY_TRY(parse_double(text, name, &real));
        ASSAY_TRY(check_number(row, real, name));
        memcpy(at, &real, sizeof real);
        break;
    case ASSAY_OPT_BOOL:
        ASSAY_TRY(parse_bool(text, name, &flag));
        memcpy(at, &flag, sizeof flag);
        break;
    case ASSAY_OPT_ENUM:
        ASSAY_TRY(parse_word(row, text, name, &word));
        store_enum(o, row, word);
        break;
    case ASSAY_OPT_SEED:
        ASSAY_TRY(parse_seed(text, name, &seed));
        memcpy(at, &seed, sizeof seed);
        break;
    case ASSAY_OPT_ENUM_LIST:
    case ASSAY_OPT_DOUBLE_LIST:
        ASSAY_TRY(set_list(o, row, name, text));
        break;
    }
    set_given(o, row - table);
    return ASSAY_OK;
}

static const char *suggest_row(assay_suggestion *s, const char *name)
{
    assay_suggest_begin(s, name, strlen(name));
    for (const assay_option_row *row = table; row->name != NULL; row++)
        assay_suggest_add(s, row->name);
    return assay_suggest_end(s, "");
}

assay_status assay_train_option_set(assay_train_options *o, const char *name, const char *text)
{
    const assay_option_row *row = find_row(name);
    assay_suggestion near;
    ASSAY_CHECK(row != NULL, ASSAY_INVALID_ARGUMENT, "%.64s: unknown option%s", name,
                suggest_row(&near, name));
    ASSAY_TRY(set_row(o, row, row->name, text));
    return ASSAY_OK;
}

bool assay_train_option_given(const assay_train_options *o, const char *name)
{
    const assay_option_row *row = find_row(name);
    return row != NULL && is_given(o, row - table);
}

/* --- JSON -------------------------------------------------------------------------------------------------
 */

/* Integers go through text, so that both ways in have one parser and one set of messages. */
static assay_status set_json_integer(assay_train_options *o, const assay_option_row *row, const char *name,
                                     const json_t *value)
{
    char text[32];
    ASSAY_CHECK(json_is_integer(value), ASSAY_FORMAT, "%s: expected an integer", name);
    snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    return set_row(o, row, name, text);
}

static assay_status set_json_entry(assay_train_options *o, const assay_option_row *row, const char *name,
                                   int i, const json_t *value)
{
    if (row->type == ASSAY_OPT_ENUM_LIST) {
        ASSAY_CHECK(json_is_string(value), ASSAY_FORMAT, "%s: expected a string, or a list of them", name);
        return set_entry(o, row, name, i, json_string_value(value));
    }
    char text[40];
    ASSAY_CHECK(json_is_number(value), ASSAY_FORMAT, "%s: expected a number, or a list of them", name);
    snprintf(text, sizeof text, "%.17g", json_number_value(value));
    return set_entry(o, row, name, i, text);
}

/* One entry, or an array. */
static assay_status set_json_list(assay_train_options *o, const assay_option_row *row, const char *name,
                                  const json_t *value)
{
    const int n = json_is_array(value) ? (int)json_array_size(value) : 1;
    ASSAY_CHECK(n >= 1, ASSAY_FORMAT, "%s: an empty list", name);
    memset((char *)o + row->offset, 0, row->size);
    for (int i = 0; i < n; i++)
        ASSAY_TRY(
            set_json_entry(o, row, name, i, json_is_array(value) ? json_array_get(value, (size_t)i) : value));
    return ASSAY_OK;
}

static assay_status set_json(assay_train_options *o, const assay_option_row *row, const char *name,
                             const json_t *value)
{
    char *at = (char *)o + row->offset;
    switch (row->type) {
    case ASSAY_OPT_STRING:
    case ASSAY_OPT_ENUM:
        ASSAY_CHECK(json_is_string(value), ASSAY_FORMAT, "%s: expected a string", name);
        ASSAY_TRY(set_row(o, row, name, json_string_value(value)));
        break;
    case ASSAY_OPT_INT:
        ASSAY_TRY(set_json_integer(o, row, name, value));
        break;
    case ASSAY_OPT_SEED: /* JSON integers end at 2^63 - 1: larger seeds are strings */
        if (json_is_string(value))
            ASSAY_TRY(set_row(o, row, name, json_string_value(value)));
        else
            ASSAY_TRY(set_json_integer(o, row, name, value));
        break;
    case ASSAY_OPT_DOUBLE: {
        ASSAY_CHECK(json_is_number(value), ASSAY_FORMAT, "%s: expected a number", name);
        const double real = json_number_value(value);
        ASSAY_TRY(check_number(row, real, name));
        memcpy(at, &real, sizeof real);
        break;
    }
    case ASSAY_OPT_BOOL: {
        ASSAY_CHECK(json_is_boolean(value), ASSAY_FORMAT, "%s: expected true or false", name);
        const bool flag = json_is_true(value);
        memcpy(at, &flag, sizeof flag);
        break;
    }
    case ASSAY_OPT_ENUM_LIST:
    case ASSAY_OPT_DOUBLE_LIST:
        ASSAY_TRY(set_json_list(o, row, name, value));
        break;
    }
    set_given(o, row - table);
    return ASSAY_OK;
}

assay_status assay_train_options_from_json(assay_train_options *o, const json_t *object, unsigned where,
                                           const char *what)
{
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object", what);
    assay_train_options result = *o; /* nothing is changed unless everything is right */
    for (void *it = json_object_iter((json_t *)(uintptr_t)object); it != NULL;
         it = json_object_iter_next((json_t *)(uintptr_t)object, it)) {
        const char *key = json_object_iter_key(it);
        const assay_option_row *row = find_row(key);
        assay_suggestion near;
        ASSAY_CHECK(row != NULL, ASSAY_FORMAT, "%s: %.64s: unknown option%s", what, key,
                    suggest_row(&near, key));
        ASSAY_CHECK((row->where & where) != 0, ASSAY_FORMAT, "%s: %s: has no meaning here", what, row->name);
        const assay_status st = set_json(&result, row, row->name, json_object_iter_value(it));
        if (st != ASSAY_OK)
            return assay_hop(assay_context(st, "%s", what), __FILE__, __LINE__, __func__);
    }
    *o = result;
    return ASSAY_OK;
}

/* A list of one entry is that entry. */
static json_t *list_to_json(const assay_train_options *o, const assay_option_row *row)
{
    const bool is_words = row->type == ASSAY_OPT_ENUM_LIST;
    const void *at = (const char *)o + row->offset;
    const assay_word_list *words = at;
    const assay_number_list *numbers = at;
    const int n = is_words ? words->n : numbers->n;
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list,
                              is_words ? json_string(row->words[words->of[i]]) : json_real(numbers->of[i]));
    if (n != 1)
        return list;
    json_t *one = json_incref(json_array_get(list, 0));
    json_decref(list);
    return one;
}

static json_t *row_to_json(const assay_train_options *o, const assay_option_row *row)
{
    const char *at = (const char *)o + row->offset;
    int64_t whole;
    uint64_t seed;
    double real;
    bool flag;
    int word;
    char text[32];
    switch (row->type) {
    case ASSAY_OPT_STRING:
        return json_string(at);
    case ASSAY_OPT_INT:
        memcpy(&whole, at, sizeof whole);
        return json_integer(whole);
    case ASSAY_OPT_DOUBLE:
        memcpy(&real, at, sizeof real);
        return json_real(real);
    case ASSAY_OPT_BOOL:
        memcpy(&flag, at, sizeof flag);
        return json_boolean(flag);
    case ASSAY_OPT_ENUM:
        memcpy(&word, at, sizeof word);
        return json_string(row->words[word]);
    case ASSAY_OPT_SEED:
        memcpy(&seed, at, sizeof seed);
        if (seed <= (uint64_t)INT64_MAX)
            return json_integer((json_int_t)seed);
        snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
        return json_string(text);
    case ASSAY_OPT_ENUM_LIST:
    case ASSAY_OPT_DOUBLE_LIST:
        return list_to_json(o, row);
    }
    return NULL;
}

json_t *assay_train_options_to_json(const assay_train_options *o, unsigned where)
{
    json_t *object = json_object();
    for (const assay_option_row *row = table; row->name != NULL; row++) {
        if ((row->where & where) != 0 && json_object_set_new(object, row->name, row_to_json(o, row)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* --- rules that span options -------------------------------------------------------------------------------- */

/* Appends a word to the text of a layout. */
static assay_status add_word(char *layout, size_t capacity, const char *word)
{
    const size_t used = strcmp(layout, "1") == 0 ? 0 : strlen(layout);
    ASSAY_CHECK(used + strlen(word) + 2 <= capacity, ASSAY_LIMIT,
                "layout '%s' and %s: more than %zu characters", layout, word, capacity - 1);
    snprintf(layout + used, capacity - used, "%s%s", used > 0 ? "," : "", word);
    return ASSAY_OK;
}

assay_status assay_train_options_join_layout(assay_train_options *o)
{
    char word[ASSAY_PIPELINE_LAYOUT + 16], text[ASSAY_PIPELINE_LAYOUT];
    assay_pipeline_layout found;
    if (o->num_layers_in_first_pipeline_stage > 0) {
        snprintf(word, sizeof word, "first%lld", (long long)o->num_layers_in_first_pipeline_stage);
        ASSAY_TRY(add_word(o->layout, sizeof o->layout, word));
    }
    if (o->num_layers_in_last_pipeline_stage > 0) {
        snprintf(word, sizeof word, "last%lld", (long long)o->num_layers_in_last_pipeline_stage);
        ASSAY_TRY(add_word(o->layout, sizeof o->layout, word));
    }
    if (o->account_for_embedding_in_pipeline_split)
        ASSAY_TRY(add_word(o->layout, sizeof o->layout, "embed"));
    if (o->account_for_loss_in_pipeline_split)
        ASSAY_TRY(add_word(o->layout, sizeof o->layout, "loss"));
    if (o->pipeline_model_parallel_layout[0] != '\0') {
        ASSAY_TRY(assay_pipeline_layout_parse(o->pipeline_model_parallel_layout, text, &found));
        snprintf(word, sizeof word, "stages=%s", text);
        ASSAY_TRY(add_word(o->layout, sizeof o->layout, word));
    }
    o->num_layers_in_first_pipeline_stage = o->num_layers_in_last_pipeline_stage = 0;
    o->account_for_embedding_in_pipeline_split = o->account_for_loss_in_pipeline_split = false;
    memset(o->pipeline_model_parallel_layout, 0, sizeof o->pipeline_model_parallel_layout);
    return ASSAY_OK;
}

double assay_balancing_coeff(const assay_train_options *o, assay_load_balancing type)
{
    const assay_word_list *types = &o->moe_router_load_balancing_type;
    for (int i = 0; i < types->n && i < o->moe_aux_loss_coeff.n; i++)
        if (types->of[i] == (int)type && type != ASSAY_BALANCING_NONE)
            return o->moe_aux_loss_coeff.of[i];
    return 0.0;
}

const char *assay_router_loss_name(int k)
{
    static const char *const names[ASSAY_ROUTER_LOSSES] = {"aux_loss", "z_loss", "seq_aux_loss",
                                                           "global_aux_loss"};
    return names[k];
}

double assay_router_loss_coeff(const assay_train_options *o, int k)
{
    static const assay_load_balancing types[ASSAY_ROUTER_LOSSES] = {
        ASSAY_BALANCING_AUX, ASSAY_BALANCING_NONE, ASSAY_BALANCING_SEQ_AUX, ASSAY_BALANCING_GLOBAL_AUX};
    return k == 1 ? o->moe_z_loss_coeff : assay_balancing_coeff(o, types[k]);
}

bool assay_needs_all_rows(const assay_train_options *o)
{
    return o->semantics == ASSAY_SEMANTICS_DEFAULT &&
           assay_balancing_coeff(o, ASSAY_BALANCING_GLOBAL_AUX) > 0.0;
}

assay_status assay_balancing_check(const assay_train_options *o)
{
    const assay_word_list *types = &o->moe_router_load_balancing_type;
    ASSAY_CHECK(types->n == o->moe_aux_loss_coeff.n, ASSAY_MISMATCH,
                "moe_aux_loss_coeff: expected %d coefficients, one for each moe_router_load_balancing_type, "
                "found %d",
                types->n, o->moe_aux_loss_coeff.n);
    for (int i = 0; i < types->n; i++)
        for (int j = 0; j < i; j++)
            ASSAY_CHECK(types->of[i] != types->of[j], ASSAY_INVALID_ARGUMENT,
                        "moe_router_load_balancing_type: %s twice",
                        assay_load_balancing_words()[types->of[i]]);
    return ASSAY_OK;
}

void assay_train_options_merge(assay_train_options *into, const assay_train_options *given,
                               const char *const *except)
{
    for (const assay_option_row *row = table; row->name; row++) {
        bool kept = !is_given(given, row - table);
        for (int k = 0; !kept && except && except[k]; k++)
            kept = strcmp(except[k], row->name) == 0;
        if (kept)
            continue;
        memcpy((char *)into + row->offset, (const char *)given + row->offset, row->size);
        set_given(into, row - table);
    }
}
