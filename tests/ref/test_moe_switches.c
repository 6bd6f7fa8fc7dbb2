/* Laws of the switches of a mixture of experts: rows of zeros beside those of tokens change nothing, and random logits are the
 * same numbers, in any layout. */
#include "ref/ops.h"
#include "tests/support/ref_model.h"

/* Eight experts, three for a token, and one that no token chooses; groups, expert bias, a shared expert with a gate. */
static const char *const experts =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,"
    "\"init_method_std\":0.3,\"layer_is_moe\":[true,false,true],\"num_moe_experts\":8,\"moe_router_topk\":3,"
    "\"moe_ffn_hidden_size\":10,\"moe_router_score_function\":\"sigmoid\","
    "\"moe_router_topk_scaling_factor\":1.5,\"moe_router_num_groups\":4,\"moe_router_group_topk\":2,"
    "\"moe_router_enable_expert_bias\":true,\"moe_shared_expert_intermediate_size\":12,"
    "\"moe_shared_expert_gate\":true}";

/* Rows are sent, gathered over etp, or stay; ranks of one microbatch and of several meet at an expert. */
static const char *const layouts[] = {"1",       "dp2,ep2", "tp2,sp",          "tp2,etp2,ep2",
                                      "dp4,ep4", "cp2,ep2", "tp4,ep2,sp,etp2", "tp2,sp,ep4,dp2,pp2,zero1"};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static void open_experts(model_case *c, int64_t microbatches, int64_t rows, double capacity)
{
    open_drawn(c, experts, 2, microbatches, rows, 9);
    ban_expert(c, 5);
    c->options.lr = 1e-3;
    c->options.weight_decay = 0.1;
    c->options.clip_grad = 0.5;
    c->options.moe_aux_loss_coeff.of[0] = 0.02;
    c->options.moe_z_loss_coeff = 0.003;
    c->options.moe_router_bias_update_rate = 0.01;
    c->options.moe_expert_capacity_factor = capacity;
}

/* The run without padding in layout 1, then runs with it. */
static void padding_law(model_case *c, bool to_capacity, assay_row_padding multiple, int n_layouts)
{
    ref_run_result plain;
    require_ok(ref_run(&c->run, c->weights, &plain), "without padding");
    c->options.moe_pad_expert_input_to_capacity = to_capacity;
    c->options.moe_router_padding_for_quantization = multiple;
    for (int i = 0; i < n_layouts; i++)
        expect_layout(c, &plain, layouts[i]);
    ref_run_result_free(&plain);
}

Test(ref_moe_switches, padding_to_capacity)
{
    for (int rows = 0; rows < 2; rows++) {
        model_case c;
        open_experts(&c, rows ? 3 : 4, rows ? 4 : 2, rows ? 0.4 : 0.75);
        c.options.moe_token_drop_policy = rows ? ASSAY_DROP_POSITION : ASSAY_DROP_PROBS;
        c.options.moe_token_dispatcher_type = rows ? ASSAY_DISPATCHER_ALLGATHER : ASSAY_DISPATCHER_ALLTOALL;
        padding_law(&c, true, ASSAY_PADDING_NONE, N_LAYOUTS);
        close_case(&c);
    }
}

/* A capacity beyond the tokens there are is that of all tokens. */
Test(ref_moe_switches, capacity_beyond_all_tokens)
{
    model_case c;
    open_experts(&c, 4, 2, 100.0);
    padding_law(&c, true, ASSAY_PADDING_NONE, 2);
    close_case(&c);
}

Test(ref_moe_switches, padding_to_a_multiple)
{
    for (int dispatcher = 0; dispatcher < 2; dispatcher++) {
        model_case c;
        open_experts(&c, 4, 2, dispatcher ? 0.75 : 0.0);
        c.options.moe_token_dispatcher_type =
            dispatcher ? ASSAY_DISPATCHER_ALLGATHER : ASSAY_DISPATCHER_ALLTOALL;
        padding_law(&c, false, dispatcher ? ASSAY_PADDING_FP8 : ASSAY_PADDING_MXFP8, 4);
        close_case(&c);
    }
}

Test(ref_moe_switches, padding_to_a_multiple_of_the_capacity)
{
    model_case c;
    open_experts(&c, 4, 2, 0.75);
    padding_law(&c, true, ASSAY_PADDING_FP8, 2);
    close_case(&c);
}

/* Every layout draws the same logits; the router learns from them, and no expert is left out. */
Test(ref_moe_switches, forced_balancing)
{
    for (int rows = 0; rows < 2; rows++) {
        model_case c;
        ref_run_result plain;
        double largest = 0.0;
        open_experts(&c, rows ? 3 : 4, rows ? 4 : 2, rows ? 0.8 : 0.0);
        c.options.moe_router_force_load_balancing = true;
        require_ok(ref_run(&c.run, c.weights, &plain), "forced balancing");
        for (int64_t i = 0; i < plain.n_tensors; i++) {
            const ref_named_tensor *t = &plain.tensors[i];
            for (int64_t k = 0;
                 strcmp(t->kind, "grad") == 0 && strstr(t->name, "mlp.router.weight") && k < named_count(t);
                 k++)
                largest = fmax(largest, fabs(t->data[k]));
        }
        cr_expect_gt(largest, 0.0, "the gradient goes straight through");
        for (int i = 1; i < N_LAYOUTS; i += 2)
            expect_layout(&c, &plain, layouts[i]);
        c.options.moe_router_force_load_balancing = false;
        ref_run_result own;
        set_layout(&c, "1");
        require_ok(ref_run(&c.run, c.weights, &own), "the router's own choice");
        cr_expect(own.loss[0] != plain.loss[0] && own.loss[1] != plain.loss[1]);
        ref_run_result_free(&own);
        ref_run_result_free(&plain);
        close_case(&c);
    }
}

/* Mean 0, variance 1, another number for every token, expert, layer and draw. */
Test(ref_moe_switches, random_logits_are_normal_and_distinct)
{
    enum { T = 500, E = 8 };
    static double y[4][T * E];
    static int64_t token[T];
    for (int64_t t = 0; t < T; t++)
        token[t] = T - 1 - t;
    ref_random_logits(y[0], token, T, E, 0, 0, T);
    ref_random_logits(y[1], token, T, E, 1, 0, T);
    ref_random_logits(y[2], token, T, E, 0, 1, T);
    ref_random_logits(y[3], token + 1, T - 1, E, 0, 0, T);
    for (int i = 0; i < 3; i++) {
        double sum = 0.0, squares = 0.0;
        for (int k = 0; k < T * E; k++) {
            sum += y[i][k];
            squares += y[i][k] * y[i][k];
        }
        cr_expect_lt(fabs(sum / (T * E)), 0.06, "mean %g", sum / (T * E));
        cr_expect_lt(fabs(squares / (T * E) - 1.0), 0.1, "variance %g", squares / (T * E));
    }
    cr_expect_neq(y[0][5], y[1][5], "layers differ");
    cr_expect_neq(y[0][5], y[2][5], "draws differ");
    cr_expect_eq(memcmp(y[3], y[0] + E, (T - 1) * E * sizeof(double)), 0, "a token keeps its numbers");
}

/* Uniform around 1, another number for every token, column, layer and draw; its own transpose. */
Test(ref_moe_switches, jitter_is_uniform_and_distinct)
{
    enum { T = 64, H = 33 };
    static double one[T * H], y[3][T * H];
    int64_t token[T];
    double sum = 0.0, squares = 0.0, least = 2.0, most = 0.0;
    for (int i = 0; i < T; i++)
        token[i] = i;
    for (int i = 0; i < T * H; i++)
        one[i] = 1.0;
    ref_input_jitter(y[0], one, token, T, H, &(ref_jitter){.eps = 0.25, .layer = 1, .draw = 2, .tokens = T});
    ref_input_jitter(y[1], one, token, T, H, &(ref_jitter){.eps = 0.25, .layer = 2, .draw = 2, .tokens = T});
    ref_input_jitter(y[2], one, token, T, H, &(ref_jitter){.eps = 0.25, .layer = 1, .draw = 3, .tokens = T});
    int64_t same = 0;
    for (int i = 0; i < T * H; i++) {
        const double u = (y[0][i] - 1.0) / 0.25;
        sum += u;
        squares += u * u;
        least = u < least ? u : least;
        most = u > most ? u : most;
        same += (y[0][i] == y[1][i]) + (y[0][i] == y[2][i]) + (i > 0 && y[0][i] == y[0][i - 1]);
    }
    cr_expect(fabs(sum) < 5.0 * sqrt(T * H / 3.0), "mean %g", sum / (T * H));
    cr_expect(fabs(squares / (T * H) - 1.0 / 3.0) < 0.04, "variance %g", squares / (T * H));
    cr_expect(least >= -1.0 && least < -0.99 && most <= 1.0 && most > 0.99, "%g to %g", least, most);
    cr_expect_leq(same, 2);
    ref_input_jitter(y[1], one, token + 7, T - 7, H,
                     &(ref_jitter){.eps = 0.25, .layer = 1, .draw = 2, .tokens = T});
    cr_expect_eq(memcmp(y[1], y[0] + 7 * H, (size_t)((T - 7) * H) * sizeof(double)), 0, "by global token");
    ref_input_jitter(y[1], one, token, T, H, &(ref_jitter){.eps = 0.0, .layer = 1, .draw = 2, .tokens = T});
    cr_expect_eq(memcmp(y[1], one, sizeof one), 0);
}
