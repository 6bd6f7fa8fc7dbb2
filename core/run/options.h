/* Options of a run: one table; the same names on the command line (`--clip-grad 1.0`) and in a case file
 * ("clip_grad": 1.0).  Field names are Megatron-LM's.  Every field can be overridden by its long option. */
#ifndef ASSAY_CORE_OPTIONS_H
#define ASSAY_CORE_OPTIONS_H

#include "core/model/config.h"
#include "core/model/grid.h"
#include "core/model/optimizer.h"
#include "core/model/recipe.h"

ASSAY_BEGIN_DECLS

typedef enum { ASSAY_LR_CONSTANT, ASSAY_LR_LINEAR, ASSAY_LR_COSINE, ASSAY_LR_WSD } assay_lr_decay_style;
typedef enum {
    ASSAY_WSD_LINEAR,
    ASSAY_WSD_COSINE,
    ASSAY_WSD_EXPONENTIAL,
    ASSAY_WSD_MINUS_SQRT
} assay_wsd_decay_style;

/* How tokens get to their experts (docs/LAYOUTS.md 6). */
typedef enum { ASSAY_DISPATCHER_ALLTOALL, ASSAY_DISPATCHER_ALLGATHER } assay_token_dispatcher;
/* Which tokens an expert beyond its capacity lets go. */
typedef enum { ASSAY_DROP_PROBS, ASSAY_DROP_POSITION } assay_drop_policy;
/* What a router's logits are stored in: F32, or the activations' type, Megatron-LM's None (docs/OPS.md 9.2). */
typedef enum { ASSAY_ROUTER_FP32, ASSAY_ROUTER_MODEL, ASSAY_ROUTER_FP64 } assay_router_dtype;
/* Rows of an expert are filled up to a multiple that products of that format need. */
typedef enum { ASSAY_PADDING_NONE, ASSAY_PADDING_FP8, ASSAY_PADDING_MXFP8 } assay_row_padding;
/* MEGATRON: what Megatron-LM computes also where it depends on the layout (docs/MEGATRON.md). */
typedef enum { ASSAY_SEMANTICS_DEFAULT, ASSAY_SEMANTICS_MEGATRON } assay_semantics;

enum { ASSAY_PATH = 1024 };

/* Everything an engine needs to train.  Units: steps are optimizer steps. */
/* Recomputation of activations (core/run/recompute.h). */
typedef enum {
    ASSAY_RECOMPUTE_NONE,
    ASSAY_RECOMPUTE_FULL,
    ASSAY_RECOMPUTE_SELECTIVE
} assay_recompute_granularity;
typedef enum { ASSAY_RECOMPUTE_UNIFORM, ASSAY_RECOMPUTE_BLOCK } assay_recompute_method;

typedef struct assay_train_options {
    char model[ASSAY_PATH]; /* Hugging Face folder */
    char batch[ASSAY_PATH]; /* safetensors with I64 input_ids, labels */
    char out[ASSAY_PATH];   /* result safetensors */
    char trace[ASSAY_PATH]; /* trace folder, "" = off */
    char load[ASSAY_PATH];  /* checkpoint folder to resume from, "" = none */
    char save[ASSAY_PATH];  /* checkpoint folder to write after the last step, "" = none */
    bool
        override_checkpoint_args; /* load under other training options than the checkpoint's: core/run/training.h */
    char layout[ASSAY_LAYOUT_TEXT];
    /* Megatron-LM's long options of the layout; assay_options_parse writes them into `layout` as its words. */
    int64_t num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage;
    bool account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split;
    char pipeline_model_parallel_layout[4 * ASSAY_PIPELINE_LAYOUT];
    assay_precision precision;
    uint64_t seed;        /* of the tokens and masked labels that a case of `assay run` draws */
    int64_t draw_weights; /* seed of the weights of a folder that holds none; -1: such a folder is refused */
    int64_t train_iters;  /* steps to run; 0 = all that the batch holds */
    char metrics[ASSAY_PATH]; /* one JSON object a step, "" = none: core/run/metrics.h */
    int64_t log_interval;     /* a line of text every so many steps; 0 = none */
    int64_t
        save_interval; /* `save` is a folder of checkpoints iter_0000010, one every so many steps and behind the last; 0 = `save` is one */
    bool no_save_optim, skip_save_model_weight; /* what a checkpoint leaves out: docs/CHECKPOINT.md */
    bool finetune, no_load_optim, no_load_rng;  /* what of a checkpoint is not taken */
    bool round_checkpoint;                      /* a checkpoint of fp64 is rounded to the run's masters */
    char ignore_missing_keys[256], ignore_unexpected_keys[256], ignore_mismatched_keys[256];
    bool async_save;          /* writer processes write what the ranks copied, while they train on */
    int64_t save_total_limit; /* checkpoints that a folder of them keeps, beside the best; 0 = all */
    bool
        save_differing_replicas; /* a checkpoint whose replicas differ says so in place of being refused: for the judge */
    int64_t
        max_shard_size; /* bytes of the tensors of one file of a checkpoint; 0 = 5 GB, as transformers 4 */
    int64_t save_after; /* write `save` after this many steps (global step number); 0 = after the last */

    char freeze[512]; /* "PATTERN,...": weights that get no gradient (assay_spec_freeze) */
    assay_optimizer optimizer;
    double lr, min_lr, lr_warmup_init;
    assay_lr_decay_style lr_decay_style;
    assay_wsd_decay_style lr_wsd_decay_style;
    int64_t lr_warmup_iters, lr_decay_iters /* 0 = train_iters */, lr_wsd_decay_iters;
    double weight_decay;
    double adam_beta1, adam_beta2, adam_eps;
    double clip_grad;        /* 0 = no clipping */
    int64_t ddp_bucket_size; /* elements of a gradient bucket before it is closed; 0 = the engine's own */
    bool
        log_num_zeros_in_grad; /* zeros in the reduced gradients are counted, once for each set of replicas */
    bool overlap_grad_reduce;  /* reductions begin while the last microbatch's backward goes on */
    bool overlap_param_gather; /* gathers of parameters run ahead of their use */
    bool
        async_tensor_model_parallel_allreduce; /* the sum of an input's gradient over tp runs beside the product of the weight's */
    bool
        tp_comm_overlap; /* collectives over tp of some rows run beside the products that feed or follow them */
    bool enable_cuda_graph; /* the engine launches a microbatch's passes as graphs: gpu/graph.h */
    assay_recompute_granularity recompute_granularity;
    assay_recompute_method recompute_method;
    int64_t recompute_num_layers;                   /* 0 = 1 */
    char recompute_modules[96];                     /* "core_attn,moe_act"; "" = core_attn */
    assay_word_list moe_router_load_balancing_type; /* of assay_load_balancing */
    assay_number_list moe_aux_loss_coeff;           /* one for each of them */
    double moe_z_loss_coeff;
    double
        moe_input_jitter_eps; /* what the router reads is multiplied by numbers in [1 - eps, 1 + eps]; 0: not */
    double moe_router_bias_update_rate;
    double moe_expert_capacity_factor; /* 0 = every token reaches its experts */
    double
        moe_expert_rank_capacity_factor; /* rows that a rank has memory for, of an even share; 0 = all that may come */
    assay_drop_policy moe_token_drop_policy;
    assay_router_dtype moe_router_dtype;  /* fp64 is refused by assay_inputs_take_config */
    bool moe_router_force_load_balancing; /* experts are chosen by random logits */
    bool moe_shared_expert_overlap;       /* the shared expert runs beside the dispatch */
    bool moe_alltoall_halves; /* the experts' rows travel in two halves, beside the products of the other */
    bool moe_pad_expert_input_to_capacity; /* every expert has as many rows as it may take */
    assay_row_padding moe_router_padding_for_quantization;
    assay_token_dispatcher moe_token_dispatcher_type;
    double attention_dropout; /* of the softmax probabilities; 0 <= p < 1, as the two that follow */
    double hidden_dropout;    /* of the embedding's output and of what every mixer and MLP adds */
    double residual_dropout;  /* of what every mixer and MLP adds, alone */
    uint64_t dropout_seed;
    bool
        gradient_accumulation_fusion; /* weight gradients are added in F32 as they are made; false: rounded to act first */
    bool calculate_per_token_loss; /* objective: the mean over targets; false: the mean of microbatch means */
    int64_t
        loss_subbatch_sequence_length; /* positions whose logits exist at once; 0 = all: docs/LAYOUTS.md 11 */
    assay_semantics semantics;

    char variant[256]; /* "attention=k1,rmsnorm=k0": kernel variants by op family; "" = fastest */
    bool trace_hash_only;
    double collective_timeout;          /* seconds; 0 = the engine's own */
    char substitute[ASSAY_PATH];        /* file of rules: gpu/rules.h; "" = none */
    char substitute_values[ASSAY_PATH]; /* trace of the reference for them; "" = none */
    char fault[96];                     /* planted fault for self-tests, "" = none: docs/ADDING.md */

    uint64_t given[2]; /* bit i % 64 of word i / 64: row i of the option table was set, to whatever value */
} assay_train_options;

/* Pieces of `loss_subbatch_sequence_length` positions that the loss of `positions` is made in, at least 1 (then an empty one); 0: it
 * is made whole. */
int64_t assay_loss_parts(const assay_train_options *o, int64_t positions);

void assay_train_options_default(assay_train_options *o);

/* Dropout of what a mixer or an MLP adds to the residual stream: hidden_dropout or residual_dropout, of which one is 0. */
static inline double assay_branch_dropout(const assay_train_options *o)
{
    return o->hidden_dropout > 0.0 ? o->hidden_dropout : o->residual_dropout;
}

/* Where an option has a meaning; elsewhere it is refused.  STEP: `assay step` and the engine programs.  RUN: the
 * command line of `assay run`.  CASE: the member "training" of a case file.  BENCH: `assay bench`.  TRAIN: `assay train`.  BISECT: `assay
 * bisect`.  OPS: the verb `ops` of the engine programs. */
enum {
    ASSAY_FOR_STEP = 1,
    ASSAY_FOR_RUN = 2,
    ASSAY_FOR_CASE = 4,
    ASSAY_FOR_BENCH = 8,
    ASSAY_FOR_OPS = 16,
    ASSAY_FOR_TRAIN = 32,
    ASSAY_FOR_BISECT = 64
};

/* One row of the option table. */
typedef enum {
    ASSAY_OPT_STRING,
    ASSAY_OPT_INT,
    ASSAY_OPT_DOUBLE,
    ASSAY_OPT_BOOL,
    ASSAY_OPT_ENUM,
    ASSAY_OPT_SEED,
    ASSAY_OPT_ENUM_LIST,  /* "a,b", in JSON "a" or ["a", "b"]: assay_word_list */
    ASSAY_OPT_DOUBLE_LIST /* "0.1,2", in JSON 0.1 or [0.1, 2]: assay_number_list */
} assay_option_type;
typedef struct assay_option_row {
    const char *name; /* snake_case as in a case file; the long option has '-' for '_' */
    assay_option_type type;
    size_t offset, size;      /* in assay_train_options */
    double min, max;          /* inclusive */
    const char *const *words; /* ENUM, ENUM_LIST: NULL-terminated */
    const char *argument;     /* what it takes, in --help */
    const char *help;
    const char *group; /* heading in --help */
    unsigned where;    /* sum of ASSAY_FOR_ */
} assay_option_row;
/* Ends with a row of name NULL. */
const assay_option_row *assay_train_option_table(void);
/* Sets one option from text; name in either spelling.  Messages name the option, what was expected and found.
 */
assay_status assay_train_option_set(assay_train_options *o, const char *name, const char *text);
/* Whether the option (snake_case) was set, to whatever value. */
bool assay_train_option_given(const assay_train_options *o, const char *name);
/* Sets every member of a JSON object; one without a meaning `where` (ASSAY_FOR_) is an error. */
assay_status assay_train_options_from_json(assay_train_options *o, const json_t *object, unsigned where,
                                           const char *what);
/* Every row that has a meaning `where` (ASSAY_FOR_). */
json_t *assay_train_options_to_json(const assay_train_options *o, unsigned where);
/* What was given on a command line replaces the same option in `into`, but for the names of `except` (NULL-terminated). */
void assay_train_options_merge(assay_train_options *into, const assay_train_options *given,
                               const char *const *except);
/* Adds the words of num_layers_in_first_pipeline_stage ... pipeline_model_parallel_layout to the layout and takes the
 * members back: a run has one text that says how it is cut. */
assay_status assay_train_options_join_layout(assay_train_options *o);
/* The coefficient of a balancing loss, 0 where it is not among the types. */
double assay_balancing_coeff(const assay_train_options *o, assay_load_balancing type);
/* The losses of a router as results hold them: 0 aux_loss, 1 z_loss, 2 seq_aux_loss, 3 global_aux_loss. */
enum { ASSAY_ROUTER_LOSSES = 4 };
const char *assay_router_loss_name(int k);
double assay_router_loss_coeff(const assay_train_options *o, int k);
/* One coefficient for each type, no type twice. */
assay_status assay_balancing_check(const assay_train_options *o);
/* Whether all data-parallel ranks must run every microbatch, each some of its rows (docs/SEMANTICS.md, global_aux_loss). */
bool assay_needs_all_rows(const assay_train_options *o);
/* Cross-field checks (beta in [0,1), warm-up within decay, ...). */
assay_status assay_train_options_check(const assay_train_options *o);
/* Rows of an expert are a multiple of it; whether experts compute rows of zeros beside those of tokens. */
int64_t assay_row_multiple(const assay_train_options *o);
bool assay_pads_rows(const assay_train_options *o);

/* Parses argv with glibc argp: the rows of the table that have a meaning `where` (ASSAY_FOR_), plus `extra` options of a program handled by a callback that
 * gets the snake_case name and the text (NULL for flags); `extra` ends with a row of name NULL and may be
 * NULL.  Prints --help and --usage.  Positional arguments go to the callback with name NULL.  Never exits
 * except for --help / --usage / --version. */
typedef struct assay_extra_option {
    const char *name;     /* snake_case */
    const char *argument; /* NULL: a flag; "FILE...": may stand several times, all others once */
    const char *help;     /* NULL: --help does not list it */
} assay_extra_option;
/* Values of such options: a whole number within limits; a text that fits.  Messages name the option, what was expected and found. */
assay_status assay_option_count(const char *name, const char *text, int64_t least, int64_t most,
                                int64_t *out);
assay_status assay_option_text(const char *name, const char *text, char *out, size_t capacity);
/* The same of a folder, without the slashes at its end (rows of the table whose argument is DIR are read so, too). */
assay_status assay_option_folder(const char *name, const char *text, char *out, size_t capacity);
typedef assay_status (*assay_option_callback)(void *user, const char *name, const char *text);
assay_status assay_options_parse(int argc, char **argv, const char *doc, const char *args_doc,
                                 assay_train_options *o /* may be NULL */, unsigned where,
                                 const assay_extra_option *extra, assay_option_callback callback, void *user);

/* What a program takes, as its own parser knows it: manual page and completion are made of this. */
typedef struct assay_option_view {
    const char *name;         /* "clip-grad" */
    const char *argument;     /* NULL: a flag */
    bool optional;            /* --name alone is legal, too */
    const char *const *words; /* all that the argument may be, NULL-terminated; NULL: see `argument` */
    bool list;                /* several of them, "a,b" */
    const char *help;
    const char *group; /* heading of the option table; "": the program's own; NULL: help, usage, version */
    bool own_text;     /* a row of the table, in words of this program */
} assay_option_view;
typedef struct assay_program_text {
    const char *doc, *args_doc;
    const assay_option_view *options;
    int n_options;
} assay_program_text;
typedef void (*assay_describe)(void *user, const assay_program_text *text);
/* From here on assay_options_parse parses nothing: it calls `describe` and ends the process, as --help does. */
void assay_options_describe(assay_describe describe, void *user);

ASSAY_END_DECLS

#endif
