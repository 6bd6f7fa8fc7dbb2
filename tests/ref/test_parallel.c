/* The first law of the reference: the sharded run equals the unsharded one, for every layout and model. */
#include "ref/parallel/collectives.h"
#include "ref/parallel/schedule.h"
#include "tests/support/ref_model.h"

/* --- models that no golden folder has ----------------------------------------------------------------------- */

/* Everything at once: sigmoid router with groups, bias and scaling, shared expert with gate, a dense layer
 * among experts, biases everywhere, q/k norm, a window, partial rope, odd vocabulary. */
static const char *const everything =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,"
    "\"add_qkv_bias\":true,\"add_proj_bias\":true,\"add_mlp_bias\":true,\"qk_layernorm\":true,"
    "\"init_method_std\":0.3,\"rotary_percent\":0.5,\"window\":[0,5,0,9],"
    "\"layer_is_moe\":[true,false,true,true],\"num_moe_experts\":8,\"moe_router_topk\":3,"
    "\"moe_ffn_hidden_size\":10,\"moe_router_score_function\":\"sigmoid\","
    "\"moe_router_topk_scaling_factor\":1.5,\"moe_router_num_groups\":4,\"moe_router_group_topk\":2,"
    "\"moe_router_enable_expert_bias\":true,\"moe_shared_expert_intermediate_size\":12,"
    "\"moe_shared_expert_gate\":true}";

/* Softmax after top-k, shared expert without gate, tied embedding. */
static const char *const tied_moe =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":4,\"vocab_size\":31,\"tie_word_embeddings\":true,"
    "\"init_method_std\":0.3,\"num_moe_experts\":4,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":8,"
    "\"moe_shared_expert_intermediate_size\":8}";

static const char *const dense_layouts[] = {
    "dp2", "tp2", "tp2,sp", "pp2", "pp2,tp2", "dp2,zero1", "tp2,dp2,zero1", "pp2,dp2,zero1", "tp2,sp,dp2,pp2",
};
static const char *const moe_layouts[] = {
    "dp2",           "tp2",
    "tp2,sp",        "ep2",
    "dp2,ep2",       "pp2",
    "tp2,ep2",       "tp2,sp,ep2",
    "tp2,ep4,dp2",   "tp2,sp,ep2,dp2",
    "pp2,tp2",       "dp2,zero1",
    "tp2,dp2,zero1", "dp4,ep2",
    "dp4,ep2,zero1", "tp2,sp,ep4,dp2,pp2,zero1",
};
/* Experts cut over etp: alone, folded over tp and over dp, beside an etp of one. */
static const char *const etp_layouts[] = {
    "etp2",
    "dp2,etp2",
    "tp2,etp2",
    "tp2,sp,ep2,dp2",
    "tp2,etp2,ep2",
    "tp2,sp,etp2,ep2,dp2",
    "tp2,etp2,dp2,zero1",
    "tp2,sp,etp2,pp2",
    "etp2,ep2,dp4,zero1",
    "tp2,dp2,zero1",
};
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static void set_options(model_case *c)
{
    c->options.lr = 1e-3;
    c->options.min_lr = 1e-4;
    c->options.weight_decay = 0.1;
    c->options.clip_grad = 0.5;
    c->options.moe_aux_loss_coeff.of[0] = 0.02;
    c->options.moe_z_loss_coeff = 0.003;
    c->options.moe_router_bias_update_rate = 0.01;
}

static void check_law(model_case *c, const char *const *layouts, int n)
{
    ref_run_result whole;
    set_options(c);
    require_ok(ref_run(&c->run, c->weights, &whole), "unsharded");
    cr_expect(isfinite(whole.loss[0]) && whole.loss[0] > 0.0);
    for (int i = 0; i < n; i++)
        expect_layout(c, &whole, layouts[i]);
    ref_run_result_free(&whole);
    close_case(c);
}

static void golden_law(const char *model, const char *const *layouts, int n)
{
    model_case c;
    open_golden(&c, model, "batch.safetensors"); /* [2,41]: dp cuts rows, tp an odd sequence */
    check_law(&c, layouts, n);
}

static const char *const two_rows[] = {"dp2",     "tp2",       "tp2,sp",        "pp2",
                                       "pp2,tp2", "dp2,zero1", "tp2,sp,dp2,pp2"};
static const char *const two_rows_moe[] = {"dp2", "tp2",     "tp2,sp",         "ep2",        "dp2,ep2",
                                           "pp2", "tp2,ep2", "tp2,sp,ep2,dp2", "tp2,ep4,dp2"};

Test(ref_parallel, llama_rows)
{
    golden_law("llama", two_rows, COUNT(two_rows));
}
Test(ref_parallel, qwen2_rows)
{
    golden_law("qwen2", two_rows, COUNT(two_rows));
}
Test(ref_parallel, qwen3_moe_rows)
{
    golden_law("qwen3_moe", two_rows_moe, COUNT(two_rows_moe));
}

/* OLMoE: the q/k norm over all heads and the clip; with tp4 two ranks hold one key head. */
Test(ref_parallel, olmoe_rows)
{
    static const char *const layouts[] = {"dp2", "ep2",    "dp2,ep2,zero1", "pp2",        "pp2,dp2,ep2",
                                          "tp2", "tp2,sp", "tp2,sp,ep2",    "tp2,sp,cp2", "tp2,etp2",
                                          "tp4", "tp4,sp", "tp4,dp2,zero1"};
    golden_law("olmoe", layouts, COUNT(layouts));
}
/* Multi-latent attention: its heads are cut, what is compressed is whole. */
Test(ref_parallel, deepseek_v3_q_rows)
{
    golden_law("deepseek_v3_q", two_rows, COUNT(two_rows));
}
Test(ref_parallel, deepseek_v2_rows)
{
    static const char *const layouts[] = {"dp2", "dp2,ep2", "pp3", "cp2,ep2", "dp2,ep2,zero3"};
    golden_law("deepseek_v2", layouts, COUNT(layouts));
}
Test(ref_parallel, deepseek_v3_rows)
{
    static const char *const layouts[] = {"dp2",     "dp2,ep2", "pp3",        "cp2",
                                          "cp2,ep2", "cp3,ep3", "pp3,dp2,ep2"};
    golden_law("deepseek_v3", layouts, COUNT(layouts));
}

/* One key head on every rank: its norm has no other columns; three groups on three ranks. */
Test(ref_parallel, norms_over_all_heads)
{
    static const char *const one =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
        "\"num_attention_heads\":8,\"num_query_groups\":1,\"kv_channels\":6,\"vocab_size\":31,"
        "\"qk_layernorm\":true,\"qk_layernorm_full_width\":true,\"init_method_std\":0.3}";
    static const char *const three =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":18,\"ffn_hidden_size\":12,"
        "\"num_attention_heads\":6,\"num_query_groups\":3,\"kv_channels\":4,\"vocab_size\":31,"
        "\"qk_layernorm\":true,\"qk_layernorm_full_width\":true,\"init_method_std\":0.3}";
    static const char *const layouts[] = {"tp2", "tp4,sp", "tp2,pp2", "tp4,dp2,zero1",
                                          "tp2,sp,cp2,dp2,zero3"};
    static const char *const of_three[] = {"tp3", "tp3,sp,dp2,zero2", "tp3,sp,cp2,p2p"};
    model_case c;
    open_drawn(&c, one, 2, 2, 2, 7);
    check_law(&c, layouts, COUNT(layouts));
    open_drawn(&c, three, 2, 2, 2, 13);
    check_law(&c, of_three, COUNT(of_three));
}

/* Two microbatches of two rows: dp2 cuts the microbatches, dp4 is impossible. */
Test(ref_parallel, llama_training)
{
    model_case c;
    open_golden(&c, "llama", "train_batch.safetensors");
    check_law(&c, dense_layouts, COUNT(dense_layouts));
}
Test(ref_parallel, qwen3_moe_training)
{
    model_case c;
    open_golden(&c, "qwen3_moe", "train_batch.safetensors");
    check_law(&c, moe_layouts, 12);
}

Test(ref_parallel, everything_microbatches)
{
    model_case c;
    open_drawn(&c, everything, 2, 4, 2, 41);
    ban_expert(&c, 5);
    check_law(&c, moe_layouts, COUNT(moe_layouts));
}

/* M = 3 is odd: dp cuts the rows, and the auxiliary loss counts tokens over dp. */
Test(ref_parallel, everything_rows)
{
    model_case c;
    open_drawn(&c, everything, 2, 3, 4, 13);
    ban_expert(&c, 0);
    check_law(&c, moe_layouts, COUNT(moe_layouts));
}

Test(ref_parallel, experts_cut_over_etp)
{
    for (int rows = 0; rows < 2; rows++) {
        model_case c;
        open_drawn(&c, everything, 2, rows ? 3 : 4, rows ? 4 : 2, rows ? 13 : 9);
        ban_expert(&c, 5);
        check_law(&c, etp_layouts, COUNT(etp_layouts));
    }
}

/* Tokens gathered in place of rows sent: the same numbers. */
Test(ref_parallel, gathered_tokens)
{
    static const char *const layouts[] = {"ep2", "tp2,etp2", "tp2,sp,ep2", "tp2,sp,etp2,ep2,dp2",
                                          "dp4,ep4,zero1"};
    for (int rows = 0; rows < 2; rows++) {
        model_case c;
        open_drawn(&c, everything, 2, rows ? 3 : 4, rows ? 4 : 2, 9);
        ban_expert(&c, 5);
        c.options.moe_token_dispatcher_type = ASSAY_DISPATCHER_ALLGATHER;
        c.options.moe_expert_capacity_factor = rows ? 0.8 : 0.0;
        check_law(&c, layouts, COUNT(layouts));
    }
}

/* More ranks than the sequence has rows: some send nothing and still hold slices that others need. */
Test(ref_parallel, experts_cut_over_etp_without_tokens)
{
    static const char *const layouts[] = {"tp4,etp2", "tp4,sp,etp4", "tp4,etp2,ep2"};
    model_case c;
    open_drawn(&c, tied_moe, 1, 1, 2, 3);
    check_law(&c, layouts, COUNT(layouts));
}

/* Capacities are those of the microbatch, not of a rank: no layout changes what is let go. */
Test(ref_parallel, capacities)
{
    static const char *const layouts[] = {
        "dp2", "tp2,sp", "ep2", "tp2,etp2,ep2", "tp2,sp,ep4,dp2,pp2,zero1", "cp2,ep2"};
    for (int rows = 0; rows < 2; rows++) {
        model_case c;
        open_drawn(&c, everything, 2, rows ? 3 : 4, rows ? 4 : 2, 9);
        ban_expert(&c, 5);
        c.options.moe_expert_capacity_factor = rows ? 0.4 : 0.75;
        c.options.moe_token_drop_policy = rows ? ASSAY_DROP_POSITION : ASSAY_DROP_PROBS;
        check_law(&c, layouts, COUNT(layouts));
    }
}

Test(ref_parallel, tied_experts)
{
    model_case c;
    open_drawn(&c, tied_moe, 2, 4, 1, 7);
    check_law(&c, moe_layouts, COUNT(moe_layouts));
}

/* A sequence shorter than tp: one rank has no tokens at all. */
Test(ref_parallel, empty_sequence_piece)
{
    static const char *const layouts[] = {"tp4,sp", "tp4", "tp4,sp,ep4"};
    model_case c;
    open_drawn(&c, tied_moe, 1, 1, 2, 3);
    check_law(&c, layouts, COUNT(layouts));
}

/* More microbatches than stages, and fewer. */
Test(ref_parallel, pipeline_depths)
{
    static const char *const layouts[] = {"pp2", "pp4", "pp4,dp2", "pp4,tp2,sp,ep2"};
    model_case c;
    open_drawn(&c, everything, 1, 2, 2, 9);
    check_law(&c, layouts, COUNT(layouts));
}

/* --- context parallelism -------------------------------------------------------------------------------------- */

static const char *const cp_layouts[] = {
    "cp2",
    "cp3",
    "cp4",
    "tp2,cp2",
    "tp2,sp,cp2",
    "cp2,dp2",
    "cp2,dp2,zero1",
    "pp2,cp2",
    "pp2,vpp2,cp2",
    "cp2,ep2",
    "tp2,sp,cp2,ep4",
    "cp4,ep2",
    "cp2,ep4,dp2",
    "tp2,cp2,ep8,dp2,zero1",
    "tp2,sp,cp2,pp2,dp2,zero1",
};

/* S = 41 and 13: no number of chunks divides them; windows of 5 and 9 reach across the pieces. */
Test(ref_parallel, context_microbatches)
{
    model_case c;
    open_drawn(&c, everything, 2, 4, 2, 41);
    check_law(&c, cp_layouts, COUNT(cp_layouts));
}

Test(ref_parallel, context_rows)
{
    model_case c;
    open_drawn(&c, everything, 2, 3, 4, 13);
    check_law(&c, cp_layouts, COUNT(cp_layouts));
}

/* Where all ranks have as many targets the mean of their means is the mean, also of ranks that share a microbatch. */
Test(ref_parallel, means_of_ranks_with_as_many_targets)
{
    static const char *const layouts[] = {"cp2", "cp2,dp2", "tp2,sp,cp2,a2a,dp2"};
    model_case c;
    ref_run_result whole;
    open_drawn(&c, tied_moe, 2, 3, 2, 8);
    set_options(&c);
    c.batches.shifted = true;
    for (int64_t i = 0; i < 2 * 3 * 2 * 8; i++)
        c.batches.labels[i] = c.batches.labels[i] == ASSAY_IGNORE_INDEX ? 3 : c.batches.labels[i];
    c.options.semantics = ASSAY_SEMANTICS_MEGATRON;
    c.options.calculate_per_token_loss = false;
    require_ok(ref_run(&c.run, c.weights, &whole), "alone");
    for (int i = 0; i < COUNT(layouts); i++)
        expect_layout(&c, &whole, layouts[i]);
    ref_run_result_free(&whole);
    close_case(&c);
}

/* Fewer positions than chunks: ranks with one empty chunk, or with no position at all. */
Test(ref_parallel, context_of_few_positions)
{
    static const char *const layouts[] = {"cp2",        "cp4",     "cp16",    "tp2,sp,cp4",
                                          "tp2,sp,cp2", "cp4,ep4", "pp2,cp3", "cp2,dp2,zero1"};
    for (int64_t s = 3; s <= 7; s++) {
        model_case c;
        open_drawn(&c, tied_moe, 1, 2, 2, s);
        check_law(&c, layouts, COUNT(layouts));
    }
}

static const char *const ring_layouts[] = {
    "cp2,p2p",     "cp3,p2p",     "cp4,p2p",     "tp2,sp,cp2,p2p", "cp2,p2p,dp2,zero1",
    "pp2,cp2,p2p", "cp2,p2p,ep2", "cp4,p2p,ep4", "tp2,cp3,p2p",    "tp2,sp,cp2,p2p,pp2,ep2",
};
/* `everything` has 2 query groups, `tied_moe` 4 */
static const char *const dealt_layouts[] = {"cp2,a2a", "cp2,a2a,dp2,zero1", "pp2,cp2,a2a", "cp2,a2a,ep2"};
static const char *const four_groups[] = {"cp2,a2a", "cp4,a2a", "tp2,sp,cp2,a2a", "tp2,cp2,a2a,ep4",
                                          "cp4,a2a,ep2"};

/* Odd sequences in both ways to cut them over dp, and sequences shorter than the ring. */
Test(ref_parallel, context_over_a_ring)
{
    model_case c;
    open_drawn(&c, everything, 1, 4, 2, 19);
    check_law(&c, ring_layouts, COUNT(ring_layouts));
    open_drawn(&c, everything, 1, 3, 4, 13);
    check_law(&c, ring_layouts, COUNT(ring_layouts));
    for (int64_t s = 3; s <= 5; s++) {
        open_drawn(&c, tied_moe, 1, 2, 2, s);
        check_law(&c, ring_layouts, 4);
    }
}

Test(ref_parallel, context_over_dealt_heads)
{
    model_case c;
    open_drawn(&c, everything, 1, 4, 2, 19);
    check_law(&c, dealt_layouts, COUNT(dealt_layouts));
    for (int64_t s = 3; s <= 9; s += 2) {
        open_drawn(&c, tied_moe, 1, 2, 2, s);
        check_law(&c, four_groups, COUNT(four_groups));
    }
}

Test(ref_parallel, context_of_goldens)
{
    static const char *const models[] = {"llama", "qwen3_moe", "olmoe"};
    static const char *const layouts[] = {"cp2", "cp3", "cp2,dp2", "cp2,a2a", "cp3,p2p"};
    for (int i = 0; i < COUNT(models); i++)
        golden_law(models[i], layouts, COUNT(layouts));
}

/* --- fewer key/value heads than tensor-parallel ranks ----------------------------------------------------------- */

static const char *const shared_heads[] = {
    "tp4",           "tp4,sp",         "tp4,dp2,zero1", "tp4,sp,dp2,zero1", "tp4,dp2,zero2",
    "tp4,dp2,zero3", "tp4,sp,pp2,ep4", "tp4,sp,cp2",    "tp4,pp2,vpp2",     "tp4,sp,ep4,dp2,zero1",
};

/* Two groups on four ranks, with biases and q/k norms; one on two and on four (multi-query attention), without. */
Test(ref_parallel, shared_key_and_value_heads)
{
    model_case c;
    open_drawn(&c, everything, 2, 2, 2, 9);
    check_law(&c, shared_heads, COUNT(shared_heads));
}

Test(ref_parallel, one_key_and_value_head)
{
    static const char *const one =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
        "\"num_attention_heads\":8,\"num_query_groups\":1,\"kv_channels\":6,\"vocab_size\":31,"
        "\"tie_word_embeddings\":true,\"add_qkv_bias\":true,\"init_method_std\":0.3}";
    static const char *const layouts[] = {"tp2", "tp4,sp", "tp2,pp2", "tp4,dp2,zero1",
                                          "tp2,sp,cp2,dp2,zero1"};
    model_case c;
    open_drawn(&c, one, 2, 2, 2, 7);
    check_law(&c, layouts, COUNT(layouts));
}

/* Layers that the stages do not divide, stages and chunks without layers; a tied embedding across them. */
static const char *const uneven_layouts[] = {
    "pp3",
    "pp3,first2",
    "pp2,last1,tp2,sp",
    "pp2,embed,loss",
    "pp4,stages=E|t*2|t*2|L",
    "tp2,sp,pp3,stages=E|t*4|L,ep2,dp2,zero1",
    "pp2,stages=E|t*3||tL",
};

Test(ref_parallel, uneven_stages)
{
    for (int64_t m = 1; m <= 4; m += 3) {
        model_case c;
        open_drawn(&c, everything, 1, m, 2, 9);
        check_law(&c, uneven_layouts, COUNT(uneven_layouts));
    }
}

Test(ref_parallel, uneven_stages_of_a_tied_model)
{
    static const char *const layouts[] = {"pp2,stages=E|ttL", "tp2,pp3,stages=E|t*2|L,dp2,zero1",
                                          "tp2,sp,pp2,first1,dp2,zero1"};
    model_case c;
    open_drawn(&c, tied_moe, 1, 2, 2, 7);
    check_law(&c, layouts, COUNT(layouts));
}

/* --- schedule ----------------------------------------------------------------------------------------------- */

static const char *const chunk_layouts[] = {"pp2,vpp2", "pp2,vpp2,dp2,zero1", "pp2,vpp2,tp2,sp,ep2"};

/* Interleaved pipelines: fewer, as many, more microbatches than stages, and a number they do not divide. */
Test(ref_parallel, chunks_of_a_pipeline)
{
    for (int64_t m = 1; m <= 5; m++) {
        model_case c;
        open_drawn(&c, everything, 1, m, 2, 9);
        check_law(&c, chunk_layouts, COUNT(chunk_layouts));
    }
}

Test(ref_parallel, chunks_of_a_tied_golden)
{
    static const char *const layouts[] = {"pp2,vpp2", "pp2,vpp2,tp2"};
    model_case c;
    open_golden(&c, "qwen2", "batch.safetensors");
    check_law(&c, layouts, COUNT(layouts));
}

/* --- ZeRO-2, ZeRO-3, HSDP ----------------------------------------------------------------------------------- */

/* Three microbatches of two rows or six of one: accumulation on parts; experts over edp, or alone (edp 1). */
static const char *const zero_layouts[] = {
    "zero3",
    "dp2,zero2",
    "dp2,zero3",
    "dp3,zero2",
    "dp3,zero3",
    "dp6,zero3",
    "tp2,sp,dp2,zero2",
    "tp2,dp3,zero3",
    "ep2,dp2,zero3",
    "ep2,dp6,zero2",
    "tp2,sp,ep4,dp2,zero3",
    "pp2,dp2,zero1",
    "pp2,dp2,zero2",
    "pp2,dp3,zero3",
    "pp2,tp2,sp,dp2,zero3",
};
static const char *const hsdp_layouts[] = {
    "dp2,zero1,hsdp2",     "dp6,zero1,hsdp2",        "dp6,zero2,hsdp3",     "dp6,zero3,hsdp2",
    "ep2,dp6,zero3,hsdp3", "tp2,sp,dp6,zero3,hsdp3", "pp2,dp6,zero2,hsdp2", "pp2,dp6,zero3,hsdp3",
};

Test(ref_parallel, sharded_gradients_and_parameters)
{
    model_case c;
    open_drawn(&c, everything, 3, 6, 1, 7);
    check_law(&c, zero_layouts, COUNT(zero_layouts));
}
Test(ref_parallel, sharded_gradients_and_parameters_tied)
{
    model_case c;
    open_drawn(&c, tied_moe, 2, 6, 1, 7);
    check_law(&c, zero_layouts, COUNT(zero_layouts));
}
Test(ref_parallel, shards_in_several_copies)
{
    model_case c;
    open_drawn(&c, everything, 2, 6, 1, 7);
    check_law(&c, hsdp_layouts, COUNT(hsdp_layouts));
    open_drawn(&c, tied_moe, 2, 6, 1, 7);
    check_law(&c, hsdp_layouts, COUNT(hsdp_layouts));
}
Test(ref_parallel, sharded_one_forward_and_backward)
{
    static const char *const layouts[] = {"dp2,zero2", "dp2,zero3", "tp2,sp,dp2,zero3", "pp2,dp2,zero3"};
    golden_law("llama", layouts, COUNT(layouts));
    golden_law("qwen2", layouts, COUNT(layouts));
}

/* No rank ever holds the weights of two units, let alone the model. */
Test(ref_parallel, gathered_weights_are_those_of_one_unit)
{
    model_case c;
    ref_run_result r;
    int64_t all = 0, most = 0, unit[8] = {0};
    open_drawn(&c, everything, 1, 2, 1, 7);
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const assay_param_spec *p = &c.spec->params[i];
        const int at = p->layer >= 0 ? (int)p->layer : p->on_first_stage ? 6 : 7;
        int64_t n;
        cr_assert(assay_shape_count(p->shape, p->ndim, &n));
        all += n;
        unit[at] += assay_param_needs_grad(p) ? n : 0;
        most = unit[at] > most ? unit[at] : most;
    }
    set_options(&c);
    set_layout(&c, "dp2,zero3");
    require_ok(ref_run(&c.run, c.weights, &r), "dp2,zero3");
    cr_expect_eq(r.most_held, most, "%ld elements of %ld held at once, the largest unit has %ld",
                 (long)r.most_held, (long)all, (long)most);
    cr_expect_lt(r.most_held, all / 2);
    ref_run_result_free(&r);
    close_case(&c);
}

/* A distributed optimizer that gives whole matrices to one rank: the same numbers, other owners. */
Test(ref_parallel, whole_matrices_on_one_rank)
{
    static const char *const layouts[] = {"dp2,zero1", "tp2,dp2,zero1", "dp4,ep2,zero1",  "dp3,zero1",
                                          "dp3,zero2", "dp4,ep2,zero3", "dp4,zero3,hsdp2"};
    model_case c;
    open_drawn(&c, everything, 2, 12, 1, 7);
    for (int64_t i = 0; i < c.spec->n_params; i++)
        if (c.spec->params[i].ndim >= 2)
            c.spec->params[i].ownership = ASSAY_OWN_MATRIX;
    check_law(&c, layouts, COUNT(layouts));
}

/* Every microbatch goes through every chunk once in each direction, forward before backward, backwards of a chunk
 * in microbatch order. */
static void expect_complete(const ref_action *list, int chunks, int64_t microbatches)
{
    int64_t f[8] = {0}, b[8] = {0};
    for (int64_t i = 0; i < 2 * chunks * microbatches; i++) {
        const ref_action a = list[i];
        cr_assert(a.chunk >= 0 && a.chunk < chunks);
        cr_assert_eq(a.microbatch, a.forward ? f[a.chunk] : b[a.chunk], "microbatches come in order");
        *(a.forward ? &f[a.chunk] : &b[a.chunk]) += 1;
        cr_assert(b[a.chunk] <= f[a.chunk]);
    }
    for (int c = 0; c < chunks; c++)
        cr_assert(f[c] == microbatches && b[c] == microbatches);
}

Test(ref_parallel, schedule_1f1b)
{
    for (int stages = 1; stages <= 5; stages++)
        for (int64_t m = 1; m <= 7; m++)
            for (int stage = 0; stage < stages; stage++) {
                int64_t held = 0, in_flight = 0;
                ref_action *list = NULL;
                require_ok(ref_pipeline_schedule(stages, 1, stage, m, &list), "schedule");
                expect_complete(list, 1, m);
                for (int64_t i = 0; i < 2 * m; i++) {
                    held += list[i].forward ? 1 : -1;
                    in_flight = held > in_flight ? held : in_flight;
                }
                const int64_t depth = stages - stage;
                cr_assert_eq(in_flight, depth < m ? depth : m, "activations held: 1F1B's promise");
                free(list);
            }
}

/* Megatron-LM's table for pp 2, vpp 2, 4 microbatches, written out by hand. */
Test(ref_parallel, schedule_interleaved_by_hand)
{
    static const ref_action last[] = {
        {true, 0, 0},  {true, 1, 0}, /* warm-up */
        {true, 0, 1},  {false, 0, 1}, {true, 1, 1},  {false, 1, 1}, {true, 2, 0},
        {false, 0, 0}, {true, 3, 0},  {false, 1, 0}, {true, 2, 1},  {false, 2, 1},
        {true, 3, 1},  {false, 3, 1}, {false, 2, 0}, {false, 3, 0},
    };
    ref_action *list = NULL;
    require_ok(ref_pipeline_schedule(2, 2, 1, 4, &list), "schedule");
    for (int i = 0; i < COUNT(last); i++)
        cr_expect(list[i].forward == last[i].forward && list[i].microbatch == last[i].microbatch &&
                      list[i].chunk == last[i].chunk,
                  "action %d: %s of microbatch %ld, chunk %d", i, list[i].forward ? "forward" : "backward",
                  (long)list[i].microbatch, list[i].chunk);
    free(list);
}

Test(ref_parallel, schedule_interleaved_is_complete)
{
    for (int stages = 2; stages <= 4; stages++)
        for (int chunks = 2; chunks <= 4; chunks++)
            for (int64_t m = 1; m <= 9; m++)
                for (int stage = 0; stage < stages; stage++) {
                    ref_action *list = NULL;
                    require_ok(ref_pipeline_schedule(stages, chunks, stage, m, &list), "schedule");
                    expect_complete(list, chunks, m);
                    free(list);
                }
}

/* --- collectives -------------------------------------------------------------------------------------------- */

Test(ref_parallel, collectives_by_hand)
{
    double a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, *ab[2] = {a, b};
    double r0[3], r1[3], *r[2] = {r0, r1};
    const int64_t pieces[2] = {2, 1};
    ref_reduce_scatter(r, ab, pieces, 2);
    cr_expect(r0[0] == 11 && r0[1] == 22 && r1[0] == 33);
    ref_all_gather(r, ab, pieces, 2);
    cr_expect(r0[0] == 1 && r0[1] == 2 && r0[2] == 10 && r1[2] == 10);
    /* rank 0 sends 1 to itself, 2 to rank 1; rank 1 sends 3 to rank 0. */
    const int64_t counts[4] = {1, 2, 3, 0};
    double q0[4], q1[2], *q[2] = {q0, q1};
    ref_all_to_all(q, ab, counts, 2);
    cr_expect(q0[0] == 1 && q0[1] == 10 && q0[2] == 20 && q0[3] == 30 && q1[0] == 2 && q1[1] == 3);
    ref_all_reduce(ab, 2, 3);
    cr_expect(a[0] == 11 && b[2] == 33);
    a[0] = (double)NAN;
    ref_all_reduce_max(ab, 2, 2);
    cr_expect(isnan(b[0]) && b[1] == 22);
    ref_broadcast(ab, 1, 2, 3);
    cr_expect(a[2] == 33);
    ref_all_reduce(ab, 2, 0);
}
