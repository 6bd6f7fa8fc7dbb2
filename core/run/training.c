/* The training recipe of a run. */
#include "core/run/training.h"

#include <stdlib.h>
#include <string.h>

static const char *const always[] = {"precision",
                                     "optimizer",
                                     "lr",
                                     "lr_decay_style",
                                     "lr_warmup_iters",
                                     "weight_decay",
                                     "adam_beta1",
                                     "adam_beta2",
                                     "adam_eps",
                                     "clip_grad",
                                     "draw_weights",
                                     "moe_aux_loss_coeff",
                                     "moe_z_loss_coeff",
                                     "moe_router_bias_update_rate",
                                     "moe_expert_capacity_factor",
                                     NULL};
static const char *const of_frozen[] = {"freeze", NULL};
static const char *const of_balancing[] = {"moe_router_load_balancing_type", NULL};
static const char *const of_means[] = {"calculate_per_token_loss", NULL};
static const char *const of_stored[] = {"gradient_accumulation_fusion", NULL};
static const char *const of_megatron[] = {"semantics", NULL};
static const char *const of_warmup[] = {"lr_warmup_init", NULL};
static const char *const of_decay[] = {"min_lr", "lr_decay_iters", NULL};
static const char *const of_capacity[] = {"moe_token_drop_policy", NULL};
static const char *const of_router[] = {"moe_router_dtype", NULL};
static const char *const of_forcing[] = {"moe_router_force_load_balancing", NULL};
static const char *const of_jitter[] = {"moe_input_jitter_eps", NULL};
static const char *const of_dropout[] = {"attention_dropout", "hidden_dropout", "residual_dropout",
                                         "dropout_seed", NULL};
static const char *const of_wsd[] = {"lr_wsd_decay_style", "lr_wsd_decay_iters", NULL};

static void take(json_t *to, const json_t *from, const char *const *names)
{
    for (; *names != NULL; names++)
        json_object_set(to, *names, json_object_get(from, *names));
}

json_t *assay_training_to_json(const assay_train_options *o)
{
    assay_train_options used = *o;
    used.lr_decay_iters = o->lr_decay_iters > 0 ? o->lr_decay_iters : o->train_iters;
    json_t *all = assay_train_options_to_json(&used, ASSAY_FOR_STEP), *training = json_object();
    if (all == NULL || training == NULL) {
        json_decref(all);
        json_decref(training);
        return NULL;
    }
    take(training, all, always);
    if (o->freeze[0] != '\0')
        take(training, all, of_frozen);
    if (o->moe_router_load_balancing_type.n != 1 ||
        o->moe_router_load_balancing_type.of[0] != ASSAY_BALANCING_AUX)
        take(training, all, of_balancing);
    if (!o->calculate_per_token_loss)
        take(training, all, of_means);
    if (!o->gradient_accumulation_fusion)
        take(training, all, of_stored);
    if (o->semantics != ASSAY_SEMANTICS_DEFAULT)
        take(training, all, of_megatron);
    if (o->lr_warmup_iters > 0)
        take(training, all, of_warmup);
    if (o->lr_decay_style != ASSAY_LR_CONSTANT)
        take(training, all, of_decay);
    if (o->lr_decay_style == ASSAY_LR_WSD)
        take(training, all, of_wsd);
    if (o->moe_expert_capacity_factor > 0.0)
        take(training, all, of_capacity);
    if (o->moe_router_dtype != ASSAY_ROUTER_FP32)
        take(training, all, of_router);
    if (o->moe_router_force_load_balancing)
        take(training, all, of_forcing);
    if (o->moe_input_jitter_eps > 0.0)
        take(training, all, of_jitter);
    if (o->attention_dropout > 0.0 || assay_branch_dropout(o) > 0.0)
        take(training, all, of_dropout);
    json_decref(all);
    return training;
}

typedef struct difference_list {
    char text[700]; /* "lr: 0.001 there, 0.002 here; ..." */
    int n;
    bool optimizer;
} difference_list;

static void value_text(const json_t *value, char *out, size_t capacity)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    snprintf(out, capacity, "%s", text != NULL ? text : "absent");
    free(text);
}

static void compare(const char *dir, const char *name, const json_t *there, const json_t *here, FILE *say,
                    difference_list *list)
{
    char a[64], b[64];
    if (there != NULL && here != NULL && json_equal(there, here))
        return;
    value_text(there, a, sizeof a);
    value_text(here, b, sizeof b);
    const size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s%s: %s there, %s here", list->n > 0 ? "; " : "",
             name, a, b);
    list->n++;
    list->optimizer = list->optimizer || strcmp(name, "optimizer") == 0;
    if (say != NULL)
        fprintf(say, "WARNING: checkpoint %s: %s: trained with %s, continued with %s\n", dir, name, a, b);
}

static void compare_all(const char *dir, const json_t *there, const json_t *here, FILE *say,
                        difference_list *list)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)here, name, value)
        compare(dir, name, json_object_get(there, name), value, say, list);
    json_object_foreach((json_t *)(uintptr_t)there, name, value) if (json_object_get(here, name) == NULL)
        compare(dir, name, value, NULL, say, list);
}

assay_status assay_training_check(const char *dir, const json_t *header, const assay_train_options *o,
                                  FILE *say)
{
    const json_t *there = json_object_get(header, "training");
    difference_list list = {.n = 0};
    ASSAY_CHECK(json_is_object(there), ASSAY_FORMAT,
                "checkpoint %s: header: expected the object 'training', the options that it was trained with",
                dir);
    json_t *here = assay_training_to_json(o);
    ASSAY_CHECK(here != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint %s: training options", dir);
    if (o->draw_weights < 0) /* the checkpoint's weights hold, whatever they began as */
        json_object_set(here, "draw_weights", json_object_get(there, "draw_weights"));
    compare_all(dir, there, here, NULL, &list);
    if (list.n > 0 && !list.optimizer && o->override_checkpoint_args && say != NULL) {
        difference_list said = {.n = 0};
        compare_all(dir, there, here, say, &said);
    }
    json_decref(here);
    ASSAY_CHECK(!list.optimizer, ASSAY_MISMATCH,
                "checkpoint %s: trained by another optimizer, whose states are others: %s", dir, list.text);
    ASSAY_CHECK(list.n == 0 || o->override_checkpoint_args, ASSAY_MISMATCH,
                "checkpoint %s: trained with other options: %s; to continue with those of this run: "
                "--override-checkpoint-args",
                dir, list.text);
    return ASSAY_OK;
}

/* --- rows of a microbatch ----------------------------------------------------------------------------------- */
/* Whether two rows have another number of targets: then microbatches of them do, too. */
static bool targets_differ(const assay_batches *b)
{
    const int64_t rows = b->steps * b->microbatches * b->b;
    int64_t first = -1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = 0;
        for (int64_t s = b->shifted ? 0 : 1; s < b->s; s++)
            n += b->labels[r * b->s + s] != ASSAY_IGNORE_INDEX;
        if (first >= 0 && n != first)
            return true;
        first = n;
    }
    return false;
}

void assay_training_say_rows(const char *dir, const json_t *header, const assay_train_options *o,
                             const assay_model_config *config, const assay_batches *b, FILE *say)
{
    const json_t *there = json_object_get(header, "micro_batch_size");
    if (!json_is_integer(there) || json_integer_value(there) == b->b || say == NULL)
        return;
    const bool experts = config->num_moe_experts > 0;
    const struct {
        bool is;
        const char *why;
    } rows[] = {
        {experts && assay_balancing_coeff(o, ASSAY_BALANCING_AUX) > 0.0, "aux_loss is that of a microbatch"},
        {experts && assay_balancing_coeff(o, ASSAY_BALANCING_GLOBAL_AUX) > 0.0,
         "global_aux_loss runs over microbatches"},
        {experts && o->moe_expert_capacity_factor > 0.0,
         "moe_expert_capacity_factor is a share of a microbatch"},
        {!o->calculate_per_token_loss && targets_differ(b),
         "calculate_per_token_loss false: a mean of means over microbatches, whose targets differ in number"},
        {o->attention_dropout > 0.0 || assay_branch_dropout(o) > 0.0, "dropout draws by microbatch"},
        {experts && o->moe_input_jitter_eps > 0.0, "moe_input_jitter_eps draws by microbatch"},
        {experts && o->moe_router_force_load_balancing,
         "moe_router_force_load_balancing draws by microbatch"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].is)
            fprintf(say,
                    "WARNING: checkpoint %s: micro_batch_size: trained with %lld, continued with %lld: %s\n",
                    dir, (long long)json_integer_value(there), (long long)b->b, rows[i].why);
}
