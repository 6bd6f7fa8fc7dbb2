/* Every form of --fault plants what it says: results differ from the clean run's, and a form that meets nothing is refused. */
#include "core/base/json.h"
#include "tests/support/engine.h"
#include <sys/stat.h>

TestSuite(engine_fault_forms, .init = engine_setup, .fini = engine_teardown, .timeout = 600);

#define RUN                                                                                                  \
    "step --model " GOLDEN "%s --batch " GOLDEN "%s/%s.safetensors --weight-decay 0.1 --clip-grad 1.0 "      \
    "--moe-aux-loss-coeff 0.01 "
#define MOE "qwen3_moe"
#define BIASED "llama_bias"

static const struct planted {
    const char *fault, *model, *layout;
    int world;
} forms[] = {
    {"skip:decoder.layers.1.mlp.reduce", "llama", "tp2", 2},
    {"skip:decoder.layers.0.self_attention.residual", MOE, "1", 1},
    {"omit:decoder.layers.1.self_attention.reduce,phase=forward", "llama", "tp2,sp", 2},
    {"omit:decoder.layers.*.mlp.router.aux_counts", MOE, "tp2,sp", 2},
    {"repeat:decoder.layers.1.self_attention.linear_proj,op=linear_bwd_weight", MOE, "1", 1},
    {"extra:decoder.layers.0.self_attention.reduce,phase=forward", "llama", "tp2", 2},
    {"negate:decoder.layers.1.input_layernorm:dx", MOE, "1", 1},
    {"hold:decoder.layers.1.self_attention.linear_proj.weight:exp_avg", MOE, "1", 1},
    {"spoil:decoder.layers.*.mlp.router", MOE, "1", 1},
    {"zero_chunk:decoder.layers.*.mlp.combine", MOE, "ep2", 2},
    {"attr:decoder.layers.0.self_attention.core_attention:scale=2", MOE, "1", 1},
    {"attr:rope:rotary_base=2", MOE, "1", 1},
    {"attr:decoder.layers.0.pre_mlp_layernorm:eps=+0.5", MOE, "1", 1},
    {"attr:decoder.layers.0.mlp.router:norm_topk_prob=false", MOE, "1", 1},
    {"attr:decoder.layers.0.mlp.router:score_function=sigmoid", MOE, "1", 1},
    {"attr:embedding:vocab_start=+1", "llama", "1", 1},
    {"attr:*.weight:lr=2,op=adamw", "llama", "1", 1},
    {"input:decoder.layers.0.self_attention.linear_qkv:x@microbatch-1,op=linear_bwd_weight", MOE, "1", 1},
    {"drop:decoder.layers.0.self_attention.linear_qkv:bias", BIASED, "1", 1},
    {"group:grad_norm.reduce:tp", "llama", "tp2,dp2", 4},
    {"leaf:position_ids:shift", MOE, "1", 1},
    {"leaf:targets:shift", MOE, "1", 1},
    {"leaf:position_ids:order", "llama", "cp2", 2},
    {"leaf:targets:order", MOE, "cp2,a2a", 2},
    {"nudge:decoder.layers.1.self_attention.core_attention:q_position,op=attention_fwd", MOE, "1", 1},
    {"merge_skipped", "llama", "cp2,p2p", 2},
    {"heads_in_one_part", "llama", "cp2,a2a", 2},
    {"wrong_attention_scale@decoder.layers.1.self_attention.core_attention", MOE, "1", 1},
    {"doubled_loss", "llama", "1", 1},
    {"hidden_bf16", "llama", "1", 1},
};

Test(engine_fault_forms, results_differ_from_the_clean_run)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const struct planted *f = &forms[i];
        const char *batch = strcmp(f->model, BIASED) == 0 ? "batch" : "train_batch";
        char clean[512], planted[512];
        snprintf(clean, sizeof clean, "%s", engine_file("clean"));
        snprintf(planted, sizeof planted, "%s", engine_file("planted"));
        ENGINE_RUN(f->world, RUN "--layout %s --out %s", f->model, f->model, batch, f->layout, clean);
        ENGINE_RUN(f->world, RUN "--layout %s --out %s --fault %s", f->model, f->model, batch, f->layout,
                   planted, f->fault);
        cr_expect_gt(engine_worst(planted, clean), 1e-9, "%s changed nothing", f->fault);
        remove(clean);
        remove(planted);
    }
}

/* llama with biases on row-parallel linears and heads that tp divides. */
Test(engine_fault_forms, a_bias_on_every_tp_rank_is_counted_twice)
{
    const char *folder = engine_file("biased"), *config = engine_file("biased/config.json");
    json_t *c = NULL;
    cr_assert_eq(assay_json_load(&c, GOLDEN "llama/config.json"), ASSAY_OK, "%s", assay_error_message());
    json_object_set_new(c, "attention_bias", json_true());
    json_object_set_new(c, "mlp_bias", json_true());
    cr_assert_eq(mkdir(folder, 0700), 0);
    cr_assert_eq(assay_json_save(c, config), ASSAY_OK, "%s", assay_error_message());
    json_decref(c);
#define BIAS_RUN                                                                                             \
    "step " DRAWN "--model %s/biased --batch " GOLDEN                                                        \
    "llama/train_batch.safetensors --layout tp2 --out %s/%s "
    ENGINE_RUN(2, BIAS_RUN, engine_folder, engine_folder, "clean");
    ENGINE_RUN(2, BIAS_RUN "--fault bias_everywhere", engine_folder, engine_folder, "planted");
    cr_expect_gt(engine_worst(engine_file("planted"), engine_file("clean")), 1e-9);
}

static const struct refused {
    const char *fault, *message;
} refusals[] = {
    {"skip:decoder.layers.9.mlp.reduce", "this run never met it"},
    {"attr:decoder.layers.0.self_attention.core_attention:base=2", "this run never met it"},
    {"negate:embedding:dx", "this run never met it"},
    {"ids_of_another_rank", "this run never met it"},
    {"leaf:position_ids:rank", "this run never met it"},
    {"leaf:position_ids:row", "this run never met it"},
    {"nudge:decoder.layers.0.self_attention.core_attention:first_key", "this run never met it"},
    {"positions_not_reset", "needs a batch of rows with several documents"},
    {"input:embedding:ids@microbatch-2", "expected input:INSTANCE:SLOT@microbatch-1"},
    {"attr:loss:scale", "expected attr:INSTANCE:NAME=X"},
    {"drop:decoder.layers.0.self_attention.linear_qkv:x", "is not optional"},
    {"attr:decoder.layers.0.mlp.router:score_function=tanh", "cannot be tanh"},
    {"leaf:input_ids:backwards",
     "expected leaf:NAME:shift, leaf:NAME:rank, leaf:NAME:order or leaf:NAME:row"},
    {"skip:loss,when=now", "expected op=, phase=, step=N, microbatch=N, part=N, run=1, run=2 or variant=kN"},
    {"negate:loss:y,variant=2", "variant=: expected kN, found '2'"},
    {"skip:loss,op=softmax", "no operation is called softmax"},
    {"negate:loss", "needs a slot"},
    {"gremlin:loss", "unknown, expected one of skip_all_reduce"},
    {"doubled_loss@loss", "expected doubled_loss@INSTANCE"},
    {"missing_reduction", "needs tp of at least 2"},
};

Test(engine_fault_forms, what_cannot_bite_is_refused)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char command[512];
        snprintf(command, sizeof command, RUN "--fault %s", MOE, MOE, "train_batch", refusals[i].fault);
        engine_must_fail(1, refusals[i].message, command);
    }
}
