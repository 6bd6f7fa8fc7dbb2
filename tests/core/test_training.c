/* The training recipe that a checkpoint carries: every difference is named, one that is not read is none. */
#include "core/run/training.h"
#include "tests/support/core.h"

static assay_train_options options(const char *const *set)
{
    assay_train_options o;
    assay_train_options_default(&o);
    o.train_iters = 9;
    snprintf(o.load, sizeof o.load, "c");
    for (; *set != NULL; set += 2)
        expect_ok(assay_train_option_set(&o, set[0], set[1]));
    return o;
}

/* The header of a checkpoint that was saved under `o`. */
static json_t *header(const assay_train_options *o)
{
    json_t *head = json_object();
    json_object_set_new(head, "training", assay_training_to_json(o));
    return head;
}

typedef struct pair {
    const char *there[7], *here[7]; /* name, text, ... */
    const char *message;            /* NULL: no difference */
} pair;

static const pair pairs[] = {
    {{"lr", "1e-3"}, {"lr", "1e-3"}, NULL},
    {{"lr", "1e-3"}, {"lr", "2e-3"}, "lr: 0.001 there, 0.002 here"},
    {{"precision", "bf16"}, {NULL}, "precision: \"bf16\" there, \"fp32\" here"},
    {{"adam_beta1", "0.8"}, {NULL}, "adam_beta1: 0.8"},
    {{NULL}, {"adam_beta2", "0.95"}, "adam_beta2: 0.999"},
    {{NULL}, {"adam_eps", "1e-5"}, "adam_eps: "},
    {{NULL}, {"weight_decay", "0"}, "weight_decay: 0.01"},
    {{NULL}, {"clip_grad", "0"}, "clip_grad: 1.0 there, 0.0 here"},
    {{NULL}, {"moe_aux_loss_coeff", "0.1"}, "moe_aux_loss_coeff: "},
    {{"moe_router_load_balancing_type", "seq_aux_loss"},
     {NULL},
     "moe_router_load_balancing_type: \"seq_aux_loss\" there, absent here"},
    {{NULL}, {"moe_z_loss_coeff", "0.1"}, "moe_z_loss_coeff: "},
    {{NULL}, {"moe_router_bias_update_rate", "0"}, "moe_router_bias_update_rate: "},
    {{NULL}, {"lr_warmup_iters", "3"}, "lr_warmup_iters: 0 there, 3 here"},
    {{NULL}, {"lr_decay_style", "cosine"}, "lr_decay_style: \"constant\" there, \"cosine\" here"},
    {{"freeze", "embedding.*"}, {NULL}, "freeze: \"embedding.*\" there, absent here"},
    {{"freeze", "embedding.*"}, {"freeze", "embedding.*"}, NULL},
    /* What a schedule does not read is no difference. */
    {{"min_lr", "1e-5"}, {NULL}, NULL},
    {{"lr_decay_iters", "5"}, {NULL}, NULL},
    {{"train_iters", "5"}, {NULL}, NULL},
    {{"lr_warmup_init", "1e-5"}, {NULL}, NULL},
    /* What it reads is one; 0 is train_iters. */
    {{"lr_decay_style", "linear", "min_lr", "1e-5"}, {"lr_decay_style", "linear"}, "min_lr: "},
    {{"lr_decay_style", "linear", "lr_decay_iters", "5"},
     {"lr_decay_style", "linear"},
     "lr_decay_iters: 5 there, 9 here"},
    {{"lr_decay_style", "linear", "lr_decay_iters", "9"}, {"lr_decay_style", "linear"}, NULL},
    {{"lr_decay_style", "linear", "train_iters", "5"},
     {"lr_decay_style", "linear", "lr_decay_iters", "5"},
     NULL},
    {{"lr_decay_style", "WSD", "lr_wsd_decay_iters", "2"},
     {"lr_decay_style", "WSD", "lr_wsd_decay_iters", "3"},
     "lr_wsd_decay_iters: 2 there, 3 here"},
    /* A seed of weights is compared where this run draws. */
    {{"draw_weights", "5"}, {"draw_weights", "6"}, "draw_weights: 5 there, 6 here"},
    {{NULL}, {"draw_weights", "6"}, "draw_weights: -1 there, 6 here"},
    {{"draw_weights", "5"}, {NULL}, NULL},
    /* How it is computed is no part of the recipe. */
    {{"layout", "tp2", "variant", "k0", "ddp_bucket_size", "8"}, {NULL}, NULL},
};
enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

Test(core_training, a_difference_is_refused_by_name)
{
    for (int i = 0; i < N_PAIRS; i++) {
        const assay_train_options there = options(pairs[i].there), here = options(pairs[i].here);
        json_t *head = header(&there);
        if (pairs[i].message != NULL) {
            expect_error(assay_training_check("c", head, &here, stderr), ASSAY_MISMATCH, pairs[i].message);
            cr_expect(strstr(assay_error_message(), "--override-checkpoint-args"), "%s",
                      assay_error_message());
        } else
            expect_ok(assay_training_check("c", head, &here, stderr));
        json_decref(head);
    }
}

Test(core_training, an_overridden_difference_is_said)
{
    for (int i = 0; i < N_PAIRS; i++) {
        const assay_train_options there = options(pairs[i].there);
        assay_train_options here = options(pairs[i].here);
        char *text = NULL;
        size_t bytes = 0;
        FILE *say = open_memstream(&text, &bytes);
        json_t *head = header(&there);
        here.override_checkpoint_args = true;
        expect_ok(assay_training_check("c", head, &here, say));
        expect_ok(assay_training_check("c", head, &here, NULL));
        fclose(say);
        cr_expect_eq(strstr(text, "WARNING: checkpoint c: ") != NULL, pairs[i].message != NULL, "%d: %s", i,
                     text);
        free(text);
        json_decref(head);
    }
}

/* There is one optimizer yet: the header is made to name another. */
Test(core_training, another_optimizer_is_refused_always)
{
    assay_train_options o = options((const char *const[]){NULL});
    json_t *head = header(&o);
    json_object_set_new(json_object_get(head, "training"), "optimizer", json_string("muon"));
    o.override_checkpoint_args = true;
    o.lr = 0.5;
    char *text = NULL;
    size_t bytes = 0;
    FILE *say = open_memstream(&text, &bytes);
    expect_error(assay_training_check("c", head, &o, say), ASSAY_MISMATCH,
                 "another optimizer, whose states are others: optimizer: \"muon\" there, \"adam\" here");
    fclose(say);
    cr_expect_str_eq(text, "", "nothing is said to be continued");
    free(text);
    json_decref(head);
}

Test(core_training, a_header_without_a_recipe_is_refused)
{
    const assay_train_options o = options((const char *const[]){NULL});
    json_t *head = json_object();
    expect_error(assay_training_check("c", head, &o, stderr), ASSAY_FORMAT, "expected the object 'training'");
    json_decref(head);
}

/* A member of a later version is a difference, not nothing. */
Test(core_training, an_unknown_member_is_a_difference)
{
    const assay_train_options o = options((const char *const[]){NULL});
    json_t *head = header(&o);
    json_object_set_new(json_object_get(head, "training"), "dropout", json_real(0.1));
    expect_error(assay_training_check("c", head, &o, stderr), ASSAY_MISMATCH,
                 "dropout: 0.1 there, absent here");
    json_decref(head);
}

/* --- rows of a microbatch ----------------------------------------------------------------------------------- */
/* What is said where a run of microbatches of 2 rows goes on with those of 1; the second of 4 rows of 4 positions may have a target less. */
static void say_rows(const char *const *set, int64_t experts, bool masked, int64_t there, char out[2000])
{
    static assay_model_config config;
    int64_t labels[16] = {0};
    const assay_batches b = {.steps = 1, .microbatches = 4, .b = 1, .s = 4, .labels = labels};
    const assay_train_options o = options(set);
    FILE *f = tmpfile();
    json_t *head = header(&o);
    cr_assert_not_null(f);
    config.num_moe_experts = experts;
    labels[6] = masked ? ASSAY_IGNORE_INDEX : 0;
    if (there > 0)
        json_object_set_new(head, "micro_batch_size", json_integer(there));
    assay_training_say_rows("c", head, &o, &config, &b, f);
    assay_training_say_rows("c", head, &o, &config, &b, NULL);
    rewind(f);
    out[fread(out, 1, 1999, f)] = '\0';
    fclose(f);
    json_decref(head);
}

Test(core_training, rows_of_a_microbatch_are_said_where_they_change_a_number)
{
    static const struct {
        const char *set[5];
        int64_t experts;
        bool masked;
        const char *why; /* NULL: nothing changes */
    } rows[] = {
        {{NULL}, 4, true, NULL},
        {{"moe_aux_loss_coeff", "0.1"}, 4, false, "aux_loss is that of a microbatch"},
        {{"moe_aux_loss_coeff", "0.1"}, 0, false, NULL},
        {{"moe_router_load_balancing_type", "seq_aux_loss", "moe_aux_loss_coeff", "0.1"}, 4, false, NULL},
        {{"moe_router_load_balancing_type", "global_aux_loss", "moe_aux_loss_coeff", "0.1"},
         4,
         false,
         "global_aux_loss runs over microbatches"},
        {{"moe_z_loss_coeff", "0.1"}, 4, false, NULL},
        {{"moe_expert_capacity_factor", "1"}, 4, false, "moe_expert_capacity_factor"},
        {{"calculate_per_token_loss", "false"}, 0, true, "calculate_per_token_loss false: a mean of means"},
        {{"calculate_per_token_loss", "false"}, 0, false, NULL},
        {{"hidden_dropout", "0.1"}, 0, false, "dropout draws by microbatch"},
        {{"moe_input_jitter_eps", "0.1"}, 4, false, "moe_input_jitter_eps draws"},
        {{"moe_router_force_load_balancing", "true"}, 4, false, "moe_router_force_load_balancing draws"},
    };
    char said[2000], wanted[200];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        say_rows(rows[i].set, rows[i].experts, rows[i].masked, 2, said);
        snprintf(wanted, sizeof wanted,
                 "WARNING: checkpoint c: micro_batch_size: trained with 2, continued with 1: %s",
                 rows[i].why != NULL ? rows[i].why : "");
        cr_expect(rows[i].why != NULL
                      ? strstr(said, wanted) == said && strchr(said, '\n') == said + strlen(said) - 1
                      : said[0] == '\0',
                  "row %zu: %s", i, said);
        say_rows(rows[i].set, rows[i].experts, rows[i].masked, 1, said);
        cr_expect_str_eq(said, "", "row %zu: the same rows", i);
        say_rows(rows[i].set, rows[i].experts, rows[i].masked, 0, said);
        cr_expect_str_eq(said, "", "row %zu: a checkpoint of before", i);
    }
}
