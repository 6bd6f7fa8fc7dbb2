/* Laws of the dry run: what it says of a plan is what asking every rank and every element says; planted faults are named. */
#include "parity/dry/dry.h"
#include "tests/support/plan.h"

#include <math.h>

/* --- public configurations ---------------------------------------------------------------------------------- */

Test(parity_dry, public_models_have_their_published_numbers_of_parameters)
{
    for (int i = 0; i < dry_model_count(); i++) {
        double billions, found = 0.0;
        const char *name = dry_model_at(i, &billions);
        assay_model_config *c = malloc(sizeof *c);
        assay_model_spec *spec;
        must(dry_model_load(name, c));
        must(assay_spec_build(c, &spec));
        for (int64_t k = 0; k < spec->n_params; k++)
            found += spec->params[k].trained ? (double)assay_param_elements(&spec->params[k]) : 0.0;
        cr_expect(fabs(found / 1e9 - billions) <= 0.05, "%s: published %.1f billion, found %.3f", name,
                  billions, found / 1e9);
        assay_spec_destroy(spec);
        free(c);
    }
    assay_model_config *c = malloc(sizeof *c);
    cr_expect_eq(dry_model_load("no-such-model", c), ASSAY_NOT_FOUND);
    cr_expect(strstr(assay_error_message(), "or one of llama-3.1-405b, qwen3-235b-a22b"));
    free(c);
}

/* --- random plans ------------------------------------------------------------------------------------------- */

/* A folder that holds one of the two models of tests/support/plan.h. */
static void write_model(char dir[256], const char *model)
{
    char path[300];
    must(assay_mkdir_p(fresh_path(dir, "dry")));
    snprintf(path, sizeof path, "%s/config.json", dir);
    must(assay_write_file(path, model, strlen(model)));
}

static uint32_t draw(uint32_t *x, uint32_t n)
{
    *x = *x * 1664525u + 1013904223u;
    return (*x >> 16) % n;
}

/* A layout of at most 64 ranks for four layers, four heads in two groups, four experts; "" when the dice are against it. */
static void draw_layout(uint32_t *x, char *out, size_t capacity)
{
    static const char *const tp[] = {"", "tp2,", "tp2,sp,"}, *const pp[] = {"", "pp2,", "pp4,", "pp2,vpp2,"};
    static const char *const ep[] = {"", "ep2,", "ep4,"}, *const zero[] = {"zero0",       "zero1",
                                                                           "zero2",       "zero3",
                                                                           "zero1,hsdp2", "zero3,hsdp2"};
    static const char *const cp[] = {"", "", "cp2,"};
    assay_parallel_config p;
    assay_grid g;
    snprintf(out, capacity, "%s%s%s%sdp%u,%s", tp[draw(x, 3)], cp[draw(x, 3)], pp[draw(x, 4)], ep[draw(x, 3)],
             1 + draw(x, 4), zero[draw(x, 6)]);
    if (assay_layout_parse(out, &p) != ASSAY_OK || assay_grid_make(&p, &g) != ASSAY_OK || g.world > 64)
        out[0] = '\0';
    assay_error_clear();
}

static dry_options options_of(const char *dir, const char *layout, uint32_t *x)
{
    dry_options o = {.precision = ASSAY_PRECISION_BF16, .moe_aux_loss_coeff = 0.01};
    snprintf(o.model, sizeof o.model, "%s", dir);
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    o.micro_batch_size = 1 + draw(x, 3);
    o.num_microbatches = 4 * (1 + draw(x, 2));
    o.seq_length = 5 + draw(x, 90);
    return o;
}

/* Every element of every parameter, every rank: holders, members of the norm, owners of the states. */
static void count_elements(const dry *d)
{
    const assay_grid *g = &d->grid;
    for (int64_t i = 0; i < d->spec->n_params; i++) {
        const assay_param_spec *p = &d->spec->params[i];
        assay_shard whole, s;
        assay_shard_whole(&whole, p->shape, p->ndim);
        const int64_t n = assay_shard_count(&whole);
        int *held = calloc((size_t)n, sizeof *held), *owned = calloc((size_t)n, sizeof *owned);
        int64_t *number = calloc((size_t)n, sizeof *number), *local = calloc((size_t)n, sizeof *local);
        for (int64_t k = 0; k < n; k++)
            number[k] = k;
        for (int r = 0; r < g->world; r++) {
            if (!assay_param_on_rank(p, g, &d->config, r))
                continue;
            must(assay_param_shard(p, g, r, &s));
            const int64_t count = assay_shard_count(&s);
            (void)assay_shard_copy(local, &s, number, &whole, sizeof *number, NULL, false, NULL);
            int index, members;
            members = assay_grid_group(g, assay_param_shard_group(p, g), r, NULL, &index);
            int64_t first = 0, length = count;
            if (g->p.zero_stage > 0)
                assay_param_owned_range(p, i, count, members, index, &first, &length);
            for (int64_t k = 0; k < count; k++)
                held[local[k]]++;
            for (int64_t k = first; k < first + length; k++)
                owned[local[k]]++;
        }
        int cut = 1;
        for (int k = 0; k < p->ndim; k++)
            cut *= g->size[p->axis[k]];
        const bool tied = p->on_first_stage && p->on_last_stage && d->stages > 1;
        const int copies = d->stage_ranks / cut * (tied ? 2 : 1);
        const int shards =
            g->p.zero_stage > 0 ? assay_grid_group(g, assay_param_shard_group(p, g), 0, NULL, NULL) : 1;
        for (int64_t k = 0; k < n; k++) {
            cr_assert_eq(held[k], copies, "%s: %s[%lld]: %d holders, expected %d", d->canonical, p->name,
                         (long long)k, held[k], copies);
            cr_assert_eq(owned[k], copies / shards, "%s: %s[%lld]: %d owners of states, expected %d",
                         d->canonical, p->name, (long long)k, owned[k], copies / shards);
        }
        free(held);
        free(owned);
        free(number);
        free(local);
    }
}

/* Every rank of a stage calls what its first rank calls: the law behind the classes. */
static void compare_all_ranks(dry *d)
{
    dry_list one = {0};
    for (int r = 0; r < d->grid.world; r++) {
        const dry_list *wanted = &d->lists[r / d->stage_ranks];
        must(dry_calls(d, r, d->o.num_microbatches, &one));
        cr_assert_eq(one.n, wanted->n, "%s: rank %d", d->canonical, r);
        for (int64_t k = 0; k < one.n; k++) {
            const dry_call *a = &one.calls[k], *b = &wanted->calls[k];
            cr_assert(a->op == b->op && a->phase == b->phase && a->group == b->group &&
                          a->dtype == b->dtype && a->name == b->name && a->peer == b->peer &&
                          a->microbatch == b->microbatch,
                      "%s: rank %d, call %lld", d->canonical, r, (long long)k);
        }
    }
    free(one.calls);
}

Test(parity_dry, random_plans_hold_and_classes_speak_for_all_ranks, .timeout = 240)
{
    char dir[256], layout[ASSAY_LAYOUT_TEXT];
    uint32_t x = 20260722;
    int tried = 0;
    write_model(dir, plan_deep_model);
    while (tried < 32) {
        draw_layout(&x, layout, sizeof layout);
        if (layout[0] == '\0')
            continue;
        tried++;
        dry_options o = options_of(dir, layout, &x);
        dry *all = malloc(sizeof *all), *few = malloc(sizeof *few);
        must(dry_make(all, &o));
        cr_expect_eq(all->n_failed, 0, "%s: %s", layout, all->findings[0].text);
        cr_expect(all->exact);
        count_elements(all);
        compare_all_ranks(all);
        o.classes = true;
        must(dry_make(few, &o));
        cr_expect_eq(few->n_failed, 0, "%s by classes: %s", layout, few->findings[0].text);
        cr_expect(!few->exact);
        dry_free(all);
        dry_free(few);
        free(all);
        free(few);
    }
    remove_path(dir);
}

/* The order of calls is that of the whole sequence, however short the plan's own is. */
Test(parity_dry, a_short_sequence_has_the_plan_of_a_long_one)
{
    char dir[256];
    uint32_t x = 7;
    write_model(dir, plan_deep_model);
    dry *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    dry_options o = options_of(dir, "tp2,sp,pp2,ep2,dp2", &x);
    o.seq_length = 9;
    must(dry_make(a, &o));
    o.seq_length = 4 * 100000 + 1; /* the same remainder */
    must(dry_make(b, &o));
    for (int s = 0; s < 2; s++) {
        cr_assert_eq(a->lists[s].n, b->lists[s].n);
        for (int64_t k = 0; k < a->lists[s].n; k++)
            cr_assert_str_eq(a->names.text[a->lists[s].calls[k].name],
                             b->names.text[b->lists[s].calls[k].name]);
    }
    cr_expect(b->wire[0].total > 1000.0 * a->wire[0].total, "but bytes are those of the long one");
    dry_free(a);
    dry_free(b);
    free(a);
    free(b);
    remove_path(dir);
}

/* --- planted faults ----------------------------------------------------------------------------------------- */

static void expect_found(const char *dir, const char *layout, bool classes, const char *fault,
                         const char *check, const char *text)
{
    uint32_t x = 3;
    dry_options o = options_of(dir, layout, &x);
    o.classes = classes;
    snprintf(o.fault, sizeof o.fault, "%s", fault);
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    cr_assert_gt(d->n_failed, 0, "%s in %s: not found", fault, layout);
    bool named = false;
    for (int i = 0; i < d->n_findings; i++)
        named = named || (strcmp(d->findings[i].check, check) == 0 && strstr(d->findings[i].text, text));
    cr_expect(named, "%s in %s: expected %s '%s', found %s '%s'", fault, layout, check, text,
              d->findings[0].check, d->findings[0].text);
    dry_free(d);
    free(d);
}

Test(parity_dry, planted_faults_are_named)
{
    char dir[256];
    write_model(dir, plan_deep_model);
    for (int classes = 0; classes < 2; classes++) {
        const char *l = "tp2,sp,pp2,ep2,dp2,zero1";
        expect_found(dir, l, classes, "group:edp", "groups", "rank 7 is no member");
        expect_found(dir, l, classes, "group:dp_cp", "groups", "rank 7 is no member");
        expect_found(dir, l, classes, "owner:decoder.layers.1.mlp.linear_fc1.weight", "owners",
                     "decoder.layers.1.mlp.linear_fc1.weight: a piece has 3 owners on stage 0, expected 2");
        expect_found(dir, l, classes, "owner:decoder.layers.3.mlp.experts.linear_fc2.weight", "owners",
                     "holds another piece");
        expect_found(dir, l, classes, "swap:5", "calls", "rank 5");
        expect_found(dir, l, classes, "lost:6", "calls", "rank 6");
        expect_found(dir, l, classes, "swap:4", "calls", "rank 4");
    }
    remove_path(dir);
}

/* Two query groups on four ranks: a row of a key or value head lies in the pieces of two, every other row in one. */
Test(parity_dry, shared_key_heads_have_the_owners_that_they_should)
{
    static const char *const layouts[] = {"tp4", "tp4,sp,dp2,zero1"};
    char dir[256];
    write_model(dir, plan_full_width_model);
    for (int i = 0; i < 2; i++)
        for (int classes = 0; classes < 2; classes++) {
            uint32_t x = 3;
            dry_options o = options_of(dir, layouts[i], &x);
            o.classes = classes;
            dry *d = malloc(sizeof *d);
            must(dry_make(d, &o));
            cr_expect_eq(d->n_failed, 0, "%s: %s", layouts[i], d->n_findings > 0 ? d->findings[0].text : "");
            dry_free(d);
            free(d);
            expect_found(dir, layouts[i], classes, "owner:decoder.layers.0.self_attention.linear_qkv.weight",
                         "owners",
                         i == 0 ? "linear_qkv.weight: row 0 is in 0 pieces" : "holds another piece");
        }
    remove_path(dir);
}

/* Two stages that wait for each other: the second one sends its gradient after the norm. */
Test(parity_dry, a_deadlock_between_stages_is_named)
{
    char dir[256];
    uint32_t x = 5;
    write_model(dir, plan_deep_model);
    dry_options o = options_of(dir, "pp2,dp2", &x);
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    cr_assert_eq(d->n_failed, 0);
    dry_list *last = &d->lists[1];
    int64_t send = last->n;
    while (send-- > 0)
        if (last->calls[send].op == DRY_SEND)
            break;
    const dry_call moved = last->calls[send];
    memmove(&last->calls[send], &last->calls[send + 1], (size_t)(last->n - send - 1) * sizeof moved);
    last->calls[last->n - 1] = moved;
    const int ranks[2] = {0, 2};
    const dry_list *lists[2] = {&d->lists[0], &d->lists[1]};
    must(dry_match(d, 2, ranks, lists));
    cr_assert_eq(d->n_failed, 1);
    cr_expect(strstr(d->findings[0].text, "deadlock: 2 wait for ever"), "%s", d->findings[0].text);
    cr_expect(strstr(d->findings[0].text, "rank 0 in recv pipeline.recv_backward"), "%s",
              d->findings[0].text);
    dry_free(d);
    free(d);
    remove_path(dir);
}

/* A tensor of another microbatch that arrives in the place of the right one. */
Test(parity_dry, transfers_that_meet_are_one_tensor)
{
    char dir[256];
    uint32_t x = 5;
    write_model(dir, plan_deep_model);
    dry_options o = options_of(dir, "pp4", &x);
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    for (int64_t i = 0; i < d->lists[2].n; i++)
        if (d->lists[2].calls[i].op == DRY_RECV && d->lists[2].calls[i].microbatch == 1) {
            d->lists[2].calls[i].microbatch = 2;
            break;
        }
    const int ranks[4] = {0, 1, 2, 3};
    const dry_list *lists[4] = {&d->lists[0], &d->lists[1], &d->lists[2], &d->lists[3]};
    must(dry_match(d, 4, ranks, lists));
    cr_assert_eq(d->n_failed, 1);
    cr_expect(strstr(d->findings[0].text, "microbatch 1) meets") ||
                  strstr(d->findings[0].text, "microbatch 2) meets"),
              "%s", d->findings[0].text);
    dry_free(d);
    free(d);
    remove_path(dir);
}

/* --- bytes, memory, shrinking ------------------------------------------------------------------------------- */

/* By hand: 2 layers of hidden 16 on tp2, one microbatch of one row of 8 tokens, fp32. */
Test(parity_dry, bytes_and_memory_by_hand)
{
    static const char model[] =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":24,"
        "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":42,"
        "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5}";
    char dir[256];
    write_model(dir, model);
    dry_options o = {
        .precision = ASSAY_PRECISION_FP32, .micro_batch_size = 1, .num_microbatches = 1, .seq_length = 8};
    snprintf(o.model, sizeof o.model, "%s", dir);
    snprintf(o.layout, sizeof o.layout, "tp2");
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    cr_assert_eq(d->n_failed, 0);
    /* embedding 1; a layer 2 forward, 2 backward; output 1: each 2 * 1/2 * 8 * 16 floats; loss.gather 1/2 * 2 * 3 * 8 */
    cr_expect_float_eq(d->wire[0].bytes[ASSAY_GROUP_TP], 4.0 * ((1 + 8 + 1) * 128.0 + 24.0), 1e-9);
    /* per rank: embedding and head 21*16 each; a layer: qkv 24*16, proj 16*12, fc1 24*16, fc2 16*12, norms 32; final 16 */
    const double n = 2 * 21 * 16 + 2 * (24 * 16 + 16 * 12 + 24 * 16 + 16 * 12 + 32) + 16;
    cr_expect_float_eq(d->memory[0].parameters, 4.0 * n, 1e-9);
    cr_expect_float_eq(d->memory[0].gradients, 4.0 * n, 1e-9);
    cr_expect_float_eq(d->memory[0].masters, 4.0 * n, 1e-9);
    cr_expect_float_eq(d->memory[0].moments, 8.0 * n, 1e-9);
    cr_expect_eq(d->n_parameters, 2 * 42 * 16 + 2 * (48 * 16 + 16 * 24 + 48 * 16 + 16 * 24 + 32) + 16);
    dry_free(d);
    free(d);
    remove_path(dir);
}

/* The same model on cp2, 4 positions a rank: floats of keys and values that travel in 2 layers, forward and backward. */
Test(parity_dry, bytes_of_context_parallelism_by_hand)
{
    static const struct {
        const char *layout;
        double floats;
    } rows[] = {
        {"cp2", 2 * 2 * (96.0 / 2 + 96.0 / 2)},                /* k, v of all 8 positions: 96 each */
        {"cp2,a2a", 2 * 2 * (2 * 96.0 / 2 + 2 * 48.0 / 2)},    /* own q, o: 96; k, v: 48 */
        {"cp2,p2p", 2 * (2 * 48.0 + 2 * 48.0 + 2 * 2 * 48.0)}, /* k, v; again; dk, dv and home */
    };
    static const char model[] =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":24,"
        "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":42,"
        "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5}";
    for (int i = 0; i < 3; i++) {
        char dir[256];
        write_model(dir, model);
        dry_options o = {
            .precision = ASSAY_PRECISION_FP32, .micro_batch_size = 1, .num_microbatches = 1, .seq_length = 8};
        snprintf(o.model, sizeof o.model, "%s", dir);
        snprintf(o.layout, sizeof o.layout, "%s", rows[i].layout);
        dry *d = malloc(sizeof *d);
        must(dry_make(d, &o));
        cr_expect_eq(d->n_failed, 0);
        cr_expect_float_eq(d->wire[0].bytes[ASSAY_GROUP_CP], 4.0 * rows[i].floats, 1e-9, "%s: %g",
                           rows[i].layout, d->wire[0].bytes[ASSAY_GROUP_CP]);
        dry_free(d);
        free(d);
        remove_path(dir);
    }
}

/* The ring of cp beside a pipeline, and MLA in all three ways, walked by every rank and by one of each class. */
Test(parity_dry, context_parallelism_of_public_models)
{
    static const struct {
        const char *model, *layout;
        int microbatches;
    } rows[] = {
        {"llama-3.1-405b", "cp2,p2p,pp4,dp2", 2},         {"deepseek-v3", "tp2,sp,cp2,pp4,ep4", 2},
        {"deepseek-v3", "tp2,sp,cp2,a2a,pp4,ep4", 2},     {"deepseek-v3", "cp4,p2p,pp4,ep4", 2},
        {"deepseek-v3", "tp2,sp,cp4,p2p,pp4,ep8,dp8", 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dry_options o = {.precision = ASSAY_PRECISION_BF16,
                         .micro_batch_size = 1,
                         .num_microbatches = rows[i].microbatches,
                         .seq_length = 4096};
        snprintf(o.model, sizeof o.model, "%s", rows[i].model);
        snprintf(o.layout, sizeof o.layout, "%s", rows[i].layout);
        dry *d = malloc(sizeof *d);
        must(dry_make(d, &o));
        cr_expect_eq(d->n_failed, 0, "%s: %s", rows[i].layout, d->n_failed ? d->findings[0].text : "");
        /* By hand: 128 heads over tp2, keys of 192 and values of 128 in bf16, half of the tokens sent; 16 layers on stage 0, 2
         * microbatches, forward and backward. */
        if (i == 1) {
            const double gathered = 4096.0 * 128 / 2 * (192 + 128) * 2 / 2;
            cr_expect_float_eq(d->wire[0].bytes[ASSAY_GROUP_CP], gathered * 2 * 16 * 2, 1.0, "%g",
                               d->wire[0].bytes[ASSAY_GROUP_CP]);
        }
        dry_free(d);
        free(d);
    }
}

/* Two copies of a sharded state: the copies sum a quarter of what a copy scatters. */
Test(parity_dry, copies_of_a_sharded_state_sum_their_parts)
{
    char dir[256];
    uint32_t x = 1;
    write_model(dir, plan_deep_model);
    dry_options o = options_of(dir, "dp8,zero1,hsdp2", &x);
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    cr_assert_eq(d->n_failed, 0);
    const double sum = 4.0 * (double)d->n_parameters; /* F32 of every element */
    double scattered = 0.0;
    for (int64_t i = 0; i < d->lists[0].n; i++)
        if (d->lists[0].calls[i].op == DRY_REDUCE_SCATTER)
            scattered++;
    cr_assert_gt(scattered, 0.0);
    const double inter = d->wire[0].bytes[ASSAY_GROUP_INTER_DP_CP] + d->wire[0].bytes[ASSAY_GROUP_INTER_EDP];
    cr_expect_float_eq(inter, 2.0 * 0.5 * sum / 4.0, 1e-6, "found %g of %g", inter, sum);
    dry_free(d);
    free(d);
    remove_path(dir);
}

Test(parity_dry, a_shrunk_layout_keeps_its_axes)
{
    char layout[ASSAY_LAYOUT_TEXT], dir[256];
    FILE *null = fopen("/dev/null", "w");
    json_t *root;
    uint32_t x = 1;
    write_model(dir, plan_deep_model);
    dry_options o = options_of(dir, "tp2,sp,pp4,ep4,dp4,zero1", &x);
    dry *d = malloc(sizeof *d);
    must(dry_make(d, &o));
    must(dry_shrink(d, null, layout, &root));
    cr_expect_str_eq(layout, "tp2,sp,pp2,ep2,dp2,zero1");
    json_decref(root);
    dry_free(d);
    o = options_of(dir, "tp4,sp,pp2", &x); /* two groups on four ranks: ranks still share a key head */
    must(dry_make(d, &o));
    must(dry_shrink(d, null, layout, &root));
    json_t *groups = json_object_get(json_object_get(root, "model"), "num_query_groups");
    cr_expect_str_eq(layout, "tp2,sp,pp2");
    cr_expect_eq(json_integer_value(groups), 1);
    json_decref(root);
    dry_free(d);
    free(d);
    fclose(null);
    remove_path(dir);
}
