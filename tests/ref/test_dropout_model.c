/* Laws of dropout in the model: one objective in every layout, and each share does something. */
#include "tests/support/ref_model.h"

static const char *const model =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":12,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":8,\"num_query_groups\":4,\"kv_channels\":6,\"vocab_size\":37,"
    "\"init_method_std\":0.3,\"add_proj_bias\":true,\"layer_is_moe\":[true,false,true,false],\"num_moe_"
    "experts\":4,"
    "\"moe_router_topk\":2,\"moe_ffn_hidden_size\":8,\"moe_shared_expert_intermediate_size\":8}";

static void open_model(model_case *c, double attention, double hidden, double residual)
{
    open_drawn(c, model, 2, 4, 2, 9);
    c->options.lr = 1e-3;
    c->options.clip_grad = 0.5;
    c->options.attention_dropout = attention;
    c->options.hidden_dropout = hidden;
    c->options.residual_dropout = residual;
}

/* Every axis, alone and together, and recomputation: the same losses, gradients and weights. */
static void layout_law(double attention, double hidden, double residual)
{
    static const char *const layouts[] = {"tp2",
                                          "tp4,sp",

                                          "pp2,vpp2",
                                          "cp2,p2p",

                                          "cp2,all_gather",
                                          "cp2,a2a",
                                          "dp2,ep2",

                                          "dp4,ep4,zero1",
                                          "tp2,sp,cp2,a2a,pp2",
                                          "dp2,zero3"};
    model_case c;
    ref_run_result plain;
    open_model(&c, attention, hidden, residual);
    require_ok(ref_run(&c.run, c.weights, &plain), "one rank");
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        expect_layout(&c, &plain, layouts[i]);
    c.options.recompute_granularity = ASSAY_RECOMPUTE_FULL;
    expect_layout(&c, &plain, "tp2,sp");
    ref_run_result_free(&plain);
    close_case(&c);
}

Test(ref_dropout_model, no_layout_changes_a_hidden_mask)
{
    layout_law(0.0, 0.2, 0.0);
}

Test(ref_dropout_model, no_layout_changes_an_attention_mask)
{
    layout_law(0.3, 0.0, 0.0);
}

Test(ref_dropout_model, no_layout_changes_a_residual_mask)
{
    layout_law(0.1, 0.0, 0.4);
}

/* Each share does something of its own, and so does the seed. */
Test(ref_dropout_model, shares_and_seed_matter)
{
    static const double shares[][3] = {{0, 0, 0}, {0.2, 0, 0}, {0, 0.2, 0}, {0, 0, 0.2}, {0.2, 0.2, 0}};
    double loss[6];
    for (int i = 0; i < 6; i++) {
        model_case c;
        ref_run_result r;
        open_model(&c, shares[i % 5][0], shares[i % 5][1], shares[i % 5][2]);
        if (i == 5) { /* without dropout the seed is nobody's */
            c.options.dropout_seed = 9;
            require_ok(ref_run(&c.run, c.weights, &r), "a seed without dropout");
            cr_expect(r.loss[0] == loss[0]);
            ref_run_result_free(&r);
            c.options.hidden_dropout = 0.2;
        }
        require_ok(ref_run(&c.run, c.weights, &r), "a share");
        loss[i] = r.loss[0];
        for (int j = 0; j < i; j++)
            cr_expect(loss[j] != loss[i], "runs %d and %d", j, i);
        ref_run_result_free(&r);
        close_case(&c);
    }
}
