/* The engine in the simulator against Hugging Face's numbers, and every layout against one rank.  The
 * tolerances are those of a smoke test; bounds are the judge's. */
#include "tests/support/engine.h"

static const double golden_tolerance = 1e-4, layout_tolerance = 2e-5;

TestSuite(engine_step, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

static void forward_backward_golden(const char *model)
{
    ENGINE_RUN(1, "step --model %s%s --batch %s%s/batch.safetensors --out %s", GOLDEN, model, GOLDEN, model,
               engine_file("out"));
    char golden[ENGINE_PATH];
    snprintf(golden, sizeof golden, "%s%s/golden.safetensors", GOLDEN, model);
    engine_compare(engine_file("out"), golden, golden_tolerance, "");
}

Test(engine_step, llama_agrees_with_golden)
{
    forward_backward_golden("llama");
}
Test(engine_step, llama_with_biases_agrees_with_golden)
{
    forward_backward_golden("llama_bias");
}
Test(engine_step, qwen2_agrees_with_golden)
{
    forward_backward_golden("qwen2");
}
Test(engine_step, qwen3_agrees_with_golden)
{
    forward_backward_golden("qwen3");
}
Test(engine_step, qwen3_moe_agrees_with_golden)
{
    forward_backward_golden("qwen3_moe");
}
Test(engine_step, qwen3_moe_sparse_agrees_with_golden)
{
    forward_backward_golden("qwen3_moe_sparse2");
}
Test(engine_step, mixtral_agrees_with_golden)
{
    forward_backward_golden("mixtral");
}
Test(engine_step, mistral_agrees_with_golden)
{
    forward_backward_golden("mistral");
}
Test(engine_step, ministral_agrees_with_golden)
{
    forward_backward_golden("ministral");
}
Test(engine_step, qwen2_moe_agrees_with_golden)
{
    forward_backward_golden("qwen2_moe");
}
Test(engine_step, qwen2_moe_window_agrees_with_golden)
{
    forward_backward_golden("qwen2_moe_window");
}
Test(engine_step, seed_oss_agrees_with_golden)
{
    forward_backward_golden("seed_oss");
}
/* q/k norms over all heads; clip_qkv, and none. */
Test(engine_step, olmoe_agrees_with_golden)
{
    forward_backward_golden("olmoe");
}
Test(engine_step, olmoe_without_clip_agrees_with_golden)
{
    forward_backward_golden("olmoe_noclip");
}
Test(engine_step, deepseek_v3_agrees_with_golden)
{
    forward_backward_golden("deepseek_v3");
}
Test(engine_step, deepseek_v3_without_a_compressed_q_agrees_with_golden)
{
    forward_backward_golden("deepseek_v3_q");
}

Test(engine_step, deepseek_v2_agrees_with_golden)
{
    forward_backward_golden("deepseek_v2");
    forward_backward_golden("deepseek_v2_lite");
}

Test(engine_step, yarn_agrees_with_golden)
{
    forward_backward_golden("llama_yarn");
    forward_backward_golden("deepseek_v3_yarn");
}

Test(engine_step, padding_of_the_embedding_agrees_with_golden)
{
    forward_backward_golden("../padding/untied");
    forward_backward_golden("../padding/tied");
    forward_backward_golden("../padding/class_default");
}

/* Uneven sequence pieces under sp: 41 tokens. */
Test(engine_step, uneven_sequence_pieces_agree_with_golden)
{
    ENGINE_RUN(2, "step --model %sqwen2 --batch %sqwen2/batch.safetensors --layout tp2,sp --out %s", GOLDEN,
               GOLDEN, engine_file("out"));
    engine_compare(engine_file("out"), GOLDEN "qwen2/golden.safetensors", golden_tolerance, "");
}

/* Documents packed in rows, against Hugging Face. */
static void packed_golden(const char *model, const char *layout, int world)
{
    char golden[512];
    ENGINE_RUN(world, "step --model %s%s --batch %s../packed/%s/batch.safetensors --layout %s --out %s",
               GOLDEN, model, GOLDEN, model, layout, engine_file("out"));
    snprintf(golden, sizeof golden, "%s../packed/%s/golden.safetensors", GOLDEN, model);
    engine_compare(engine_file("out"), golden, golden_tolerance, "");
}
Test(engine_step, packed_documents_agree_with_golden)
{
    packed_golden("llama", "1", 1);
    packed_golden("qwen2", "tp2,sp,cp2,p2p", 4);
    packed_golden("qwen2_moe", "cp2,a2a,ep2", 2);
    packed_golden("llama", "cp3,pp2", 6);
}

#define TRAIN "--lr 1e-3 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad "

static void train_golden(const char *model, const char *clip, const char *layout, int world)
{
    ENGINE_RUN(world,
               "step --model %s%s --batch %s%s/train_batch.safetensors --layout %s --out %s " TRAIN "%s",
               GOLDEN, model, GOLDEN, model, layout, engine_file("out"), clip);
    char golden[ENGINE_PATH];
    snprintf(golden, sizeof golden, "%s%s/train_golden.safetensors", GOLDEN, model);
    engine_compare(engine_file("out"), golden, golden_tolerance, "");
}

Test(engine_step, llama_trains_as_golden)
{
    train_golden("llama", "1.0", "1", 1);
}
Test(engine_step, llama_trains_as_golden_dp2)
{
    train_golden("llama", "1.0", "dp2", 2);
}
Test(engine_step, llama_trains_as_golden_zero1)
{
    train_golden("llama", "1.0", "dp2,zero1", 2);
}
Test(engine_step, llama_trains_as_golden_tp2)
{
    train_golden("llama", "1.0", "tp2", 2);
}
Test(engine_step, llama_trains_as_golden_pp2)
{
    train_golden("llama", "1.0", "pp2", 2);
}
Test(engine_step, olmoe_trains_as_golden)
{
    train_golden("olmoe", "1.0", "1", 1);
}
Test(engine_step, olmoe_trains_as_golden_ep2_pp2)
{
    train_golden("olmoe", "1.0", "ep2,pp2", 4);
}
/* Losses and norms of three steps.  Not every weight: an expert that few tokens chose has gradients near 0, of which AdamW takes
 * the sign: 1.4e-4 of the largest weight here in fp32, 1.3e-4 with transformers in float32. */
Test(engine_step, deepseek_v3_trains_as_golden)
{
    ENGINE_RUN(1,
               "step --model %sdeepseek_v3 --batch %sdeepseek_v3/train_batch.safetensors --out %s " TRAIN
               "4.0 --moe-router-bias-update-rate 0",
               GOLDEN, GOLDEN, engine_file("out"));
    engine_compare(engine_file("out"), GOLDEN "deepseek_v3/train_golden.safetensors", golden_tolerance,
                   "loss");
    engine_compare(engine_file("out"), GOLDEN "deepseek_v3/train_golden.safetensors", golden_tolerance,
                   "grad_norm");
}
Test(engine_step, qwen3_moe_trains_as_golden)
{
    train_golden("qwen3_moe", "5.0", "1", 1);
}
Test(engine_step, qwen3_moe_trains_as_golden_ep2)
{
    train_golden("qwen3_moe", "5.0", "ep2", 2);
}
Test(engine_step, qwen3_moe_trains_as_golden_tp2_sp_ep2_dp2)
{
    train_golden("qwen3_moe", "5.0", "tp2,sp,ep2,dp2", 4);
}

/* --- a model with everything: sigmoid router with groups and bias, shared expert with gate, windows, biases,
 * partial rotation, auxiliary losses, tied embeddings, odd sizes
 * --------------------------------------------------------------- */
static const char everything[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":4,\"kv_channels\":8,\"vocab_size\":37,\"qk_layernorm\":"
    "true,"
    "\"add_qkv_bias\":true,\"add_proj_bias\":true,\"tie_word_embeddings\":true,\"init_method_std\":0.2,"
    "\"num_moe_experts\":8,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":12,"
    "\"moe_router_score_function\":\"sigmoid\",\"moe_router_topk_scaling_factor\":2.5,"
    "\"moe_router_num_groups\":4,\"moe_router_group_topk\":2,\"moe_router_enable_expert_bias\":true,"
    "\"moe_shared_expert_intermediate_size\":12,\"moe_shared_expert_gate\":true,\"window\":[0,4],"
    "\"layer_is_moe\":[true,true],\"rotary_percent\":0.5}";
#define MOE                                                                                                  \
    DRAWN "--moe-aux-loss-coeff 0.02 --moe-z-loss-coeff 0.01 --moe-router-bias-update-rate 0.01 --adam-eps " \
          "1e-2"

/* first: 0 with one forward and backward of two rows, 1 training alone. */
static void everything_agrees_at(const char *layout, int world, int64_t length, int first)
{
    char model[ENGINE_PATH];
    const int64_t forward[2] = {2, length}, train[4] = {3, 4, 2, length};
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, everything);
    engine_write_batch(engine_file("fb"), forward, 2, 37, 5);
    engine_write_batch(engine_file("train"), train, 4, 37, 3);
    for (int form = first; form < 2; form++) {
        const char *batch = form == 0 ? "fb" : "train";
        ENGINE_RUN(1, "step --model %s --batch %s --out %s " MOE, model, engine_file(batch),
                   engine_file("one"));
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s --out %s " MOE, model, engine_file(batch),
                   layout, engine_file("out"));
        engine_compare(engine_file("out"), engine_file("one"), layout_tolerance, "");
    }
}

static void everything_agrees(const char *layout, int world)
{
    everything_agrees_at(layout, world, 7, 0);
}

static void everything_trains(const char *layout, int world)
{
    everything_agrees_at(layout, world, 7, 1);
}

/* Three tokens for four tensor-parallel ranks: one of them has no piece of the sequence. */
Test(engine_step, everything_with_an_empty_sequence_piece)
{
    everything_agrees_at("tp4,sp,ep2", 4, 3, 0);
}
Test(engine_step, everything_with_an_empty_token_shard)
{
    everything_agrees_at("tp4,ep4", 4, 3, 0);
}

/* Many small buckets: parameters end where a bucket ends, shards are ragged. */
Test(engine_step, everything_in_small_buckets)
{
    everything_agrees("tp2,sp,dp2,ep2,zero1 --ddp-bucket-size 700", 4);
}

Test(engine_step, everything_dp2)
{
    everything_agrees("dp2", 2);
}
Test(engine_step, everything_tp2)
{
    everything_agrees("tp2", 2);
}
Test(engine_step, everything_tp2_sp)
{
    everything_agrees("tp2,sp", 2);
}
Test(engine_step, everything_ep2)
{
    everything_agrees("ep2", 2);
}
Test(engine_step, everything_pp2)
{
    everything_agrees("pp2", 2);
}
Test(engine_step, everything_tp2_sp_ep2_dp2)
{
    everything_agrees("tp2,sp,ep2,dp2", 4);
}
Test(engine_step, everything_tp2_ep4_dp2_pp2_zero1)
{
    everything_agrees("tp2,ep4,dp2,pp2,zero1", 8);
}

/* Sharded gradients and parameters; with shards in several copies; with the communication beside the compute. */
Test(engine_step, everything_dp2_zero2)
{
    everything_agrees("dp2,zero2", 2);
}
Test(engine_step, everything_dp2_zero3)
{
    everything_agrees("dp2,zero3", 2);
}
Test(engine_step, everything_tp2_sp_dp2_zero2)
{
    everything_agrees("tp2,sp,dp2,zero2", 4);
}
Test(engine_step, everything_ep2_dp4_zero3)
{
    everything_trains("ep2,dp4,zero3", 4);
}
Test(engine_step, everything_pp2_dp2_zero2)
{
    everything_agrees("pp2,dp2,zero2", 4);
}
Test(engine_step, everything_pp2_dp2_zero3)
{
    everything_agrees("pp2,dp2,zero3", 4);
}
Test(engine_step, everything_tp2_sp_ep4_dp2_pp2_zero3)
{
    everything_agrees("tp2,sp,ep4,dp2,pp2,zero3 --overlap-grad-reduce --overlap-param-gather", 8);
}
Test(engine_step, everything_ep2_dp4_zero3_hsdp2)
{
    everything_trains("ep2,dp4,zero3,hsdp2 --overlap-grad-reduce --overlap-param-gather", 4);
}
Test(engine_step, everything_dp4_zero2_hsdp2)
{
    everything_trains("dp4,zero2,hsdp2", 4);
}
Test(engine_step, everything_tp2_pp2_dp2_zero1_hsdp2)
{
    everything_agrees("tp2,pp2,dp2,zero1,hsdp2 --overlap-grad-reduce", 8);
}
Test(engine_step, everything_dp4_zero1_hsdp2)
{
    everything_trains("dp4,zero1,hsdp2 --ddp-bucket-size 700 --overlap-grad-reduce --overlap-param-gather",
                      4);
}

/* A run with a trace computes the same bits as one without. */
Test(engine_step, trace_changes_nothing)
{
    ENGINE_RUN(2, "step --model %sqwen3_moe --batch %sqwen3_moe/batch.safetensors --layout ep2 --out %s",
               GOLDEN, GOLDEN, engine_file("plain"));
    ENGINE_RUN(
        2, "step --model %sqwen3_moe --batch %sqwen3_moe/batch.safetensors --layout ep2 --out %s --trace %s",
        GOLDEN, GOLDEN, engine_file("out"), engine_file("trace"));
    engine_compare(engine_file("out"), engine_file("plain"), 0.0, "");
}

Test(engine_step, bf16_is_close_and_repeats_bitwise)
{
    for (int i = 0; i < 2; i++)
        ENGINE_RUN(
            2,
            "step --model %sllama --batch %sllama/batch.safetensors --precision bf16 --layout tp2 --out %s",
            GOLDEN, GOLDEN, engine_file(i ? "out" : "first"));
    engine_compare(engine_file("out"), engine_file("first"), 0.0, "");
    engine_compare(engine_file("out"), GOLDEN "llama/golden.safetensors", 0.1, "");
}
