/* Traces of a small model, made by the engine on the simulator, and the plan's verdict on changed copies. */
#ifndef TESTS_PLAN_SUPPORT_H
#define TESTS_PLAN_SUPPORT_H

#include "core/files/documents.h"
#include "core/files/tensorwriter.h"
#include "parity/run/engine.h"
#include "parity/run/trace_mutate.h"
#include "tests/support/parity.h"

enum { PLAN_STEPS = 2, PLAN_MICROBATCHES = 2, PLAN_ROWS = 2, PLAN_SEQUENCE = 7, PLAN_VOCAB = 41 };

/* One dense layer with a window, one MoE layer with everything that an MoE layer can have; biases, norms of q
 * and k, clip_qkv, an uneven vocabulary and sequence. */
static const char plan_model[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":24,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":41,"
    "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5,\"add_qkv_bias\":true,\"add_proj_bias\":true,"
    "\"add_mlp_bias\":true,\"qk_layernorm\":true,\"clip_qkv\":0.5,\"rope_type\":\"linear\",\"rope_factor\":2."
    "0,"
    "\"window\":[3,0],\"layer_is_moe\":[false,true],\"num_moe_experts\":4,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":8,\"moe_router_score_function\":\"sigmoid\",\"norm_topk_prob\":true,"
    "\"moe_router_topk_scaling_factor\":2.3,\"moe_router_num_groups\":2,\"moe_router_group_topk\":1,"
    "\"moe_router_enable_expert_bias\":true,\"moe_shared_expert_intermediate_size\":8,"
    "\"moe_shared_expert_gate\":true,\"tie_word_embeddings\":true}";

/* Four layers of them for four virtual stages, the expert bias in the second chunk of the second stage. */
static const char plan_deep_model[] =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":16,\"ffn_hidden_size\":24,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":41,"
    "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5,\"layer_is_moe\":[false,false,false,true],"
    "\"num_moe_experts\":4,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":8,"
    "\"moe_router_score_function\":\"sigmoid\",\"norm_topk_prob\":true,"
    "\"moe_router_enable_expert_bias\":true,\"tie_word_embeddings\":true}";

/* Norms over all heads of q and of k. */
static const char plan_full_width_model[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":24,\"ffn_hidden_size\":16,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":41,"
    "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5,\"qk_layernorm\":true,"
    "\"qk_layernorm_full_width\":true}";

typedef struct plan_cell {
    char dir[256], trace_dir[300], save[300], out[300];
    assay_train_options options;
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    assay_grid grid;
    assay_trace *trace;
} plan_cell;

/* Twice as many microbatches where data-parallel ranks shall have several; packed: rows of several documents. */
static inline void plan_write_batch(const char *path, bool many, bool packed)
{
    enum { N = 2 * PLAN_STEPS * PLAN_MICROBATCHES * PLAN_ROWS * PLAN_SEQUENCE };
    const int64_t shape[4] = {PLAN_STEPS, (many ? 2 : 1) * PLAN_MICROBATCHES, PLAN_ROWS, PLAN_SEQUENCE};
    int64_t ids[N], labels[N], positions[N];
    uint32_t x = 12345;
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int64_t)((x >> 16) % PLAN_VOCAB);
        if (i % PLAN_SEQUENCE == 0)
            assay_documents_draw(16, i / PLAN_SEQUENCE, PLAN_SEQUENCE, 2, positions + i);
        labels[i] = i % 5 == 0 || (packed && positions[i] == 0) ? ASSAY_IGNORE_INDEX : ids[i];
    }
    assay_tensorwriter *w;
    must(assay_tensorwriter_create(&w, path));
    must(assay_tensorwriter_add_copy(w, "input_ids", ASSAY_I64, shape, 4, ids));
    must(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, 4, labels));
    if (packed)
        must(assay_tensorwriter_add_copy(w, "position_ids", ASSAY_I64, shape, 4, positions));
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

/* Trains a model in a layout, with a fault or "", a capacity factor or 0, and a dispatcher, and opens the trace.  "LAYOUT
 * overlap": communication beside compute; "LAYOUT packed": documents packed in rows; "LAYOUT buckets": small ones; "LAYOUT balancing":
 * all balancing losses of a router; "LAYOUT balancing megatron": under --semantics megatron; "LAYOUT unfused": no
 * gradient_accumulation_fusion; "LAYOUT full=N", "LAYOUT selective=MODULES": recomputation; "LAYOUT jitter": of the router's input; "LAYOUT zeros": those in gradients are
 * counted; "LAYOUT padded": experts are padded to their capacity; "LAYOUT fp8": to multiples of 16; "LAYOUT forced": experts are
 * chosen by random logits; "LAYOUT dropout": of hidden states and probabilities; "LAYOUT residual": Hugging Face's; "LAYOUT parts": the loss
 * of three positions at a time. */
static inline void plan_cell_run_with(plan_cell *c, const char *model, const char *layout,
                                      assay_precision precision, const char *planted, double capacity,
                                      assay_token_dispatcher dispatcher)
{
    char path[300];
    parity_engine engine;
    assay_parallel_config p;
    memset(c, 0, sizeof *c);
    must(assay_mkdir_p(fresh_path(c->dir, "cell")));
    assay_train_options *o = &c->options;
    assay_train_options_default(o);
    snprintf(o->model, sizeof o->model, "%s/model", c->dir);
    must(assay_mkdir_p(o->model));
    snprintf(path, sizeof path, "%s/model/config.json", c->dir);
    must(assay_write_file(path, model, strlen(model)));
    snprintf(o->batch, sizeof o->batch, "%s/batch.safetensors", c->dir);
    snprintf(c->trace_dir, sizeof c->trace_dir, "%s/trace", c->dir);
    snprintf(c->save, sizeof c->save, "%s/save", c->dir);
    snprintf(c->out, sizeof c->out, "%s/out.safetensors", c->dir);
    const bool overlap = strstr(layout, " overlap"), packed = strstr(layout, " packed");
    snprintf(o->layout, sizeof o->layout, "%.*s", (int)strcspn(layout, " "), layout);
    o->gradient_accumulation_fusion = strstr(layout, " unfused") == NULL;
    o->ddp_bucket_size = strstr(layout, " buckets") ? 150 : 0;
    o->loss_subbatch_sequence_length = strstr(layout, " parts") ? 3 : 0;
    o->moe_router_force_load_balancing = strstr(layout, " forced") != NULL;
    if (strstr(layout, " dropout")) {
        o->attention_dropout = 0.3;
        o->hidden_dropout = 0.2;
        o->dropout_seed = 99;
    }
    o->residual_dropout = strstr(layout, " residual") ? 0.25 : 0.0;
    o->moe_pad_expert_input_to_capacity = strstr(layout, " padded") != NULL;
    o->moe_router_padding_for_quantization = strstr(layout, " fp8") ? ASSAY_PADDING_FP8 : ASSAY_PADDING_NONE;
    o->overlap_grad_reduce = overlap;
    o->moe_input_jitter_eps = strstr(layout, " jitter") ? 0.25 : 0.0;
    o->moe_router_dtype = strstr(layout, " model_router") ? ASSAY_ROUTER_MODEL : ASSAY_ROUTER_FP32;
    o->log_num_zeros_in_grad = strstr(layout, " zeros") != NULL;
    const char *full = strstr(layout, " full="), *selective = strstr(layout, " selective=");
    if (full || selective)
        o->recompute_granularity = full ? ASSAY_RECOMPUTE_FULL : ASSAY_RECOMPUTE_SELECTIVE;
    if (full)
        o->recompute_num_layers = atoi(full + 6);
    if (selective)
        snprintf(o->recompute_modules, sizeof o->recompute_modules, "%s", selective + 11);
    o->overlap_param_gather = overlap && strstr(layout, "zero");
    plan_write_batch(o->batch, strstr(layout, "zero2") || strstr(layout, "zero3") || overlap, packed);
    o->precision = precision;
    o->draw_weights = 1234;
    o->lr = 2e-3;
    o->min_lr = 1e-4;
    o->lr_decay_style = ASSAY_LR_COSINE;
    o->lr_decay_iters = 5;
    o->weight_decay = 0.1;
    o->clip_grad = 0.25;
    o->moe_aux_loss_coeff.of[0] = 0.01;
    if (strstr(layout, " balancing") != NULL) {
        o->moe_router_load_balancing_type =
            (assay_word_list){3, {ASSAY_BALANCING_AUX, ASSAY_BALANCING_SEQ_AUX, ASSAY_BALANCING_GLOBAL_AUX}};
        o->moe_aux_loss_coeff = (assay_number_list){3, {0.01, 0.02, 0.03}};
    }
    o->semantics = strstr(layout, " megatron") ? ASSAY_SEMANTICS_MEGATRON : ASSAY_SEMANTICS_DEFAULT;
    o->moe_z_loss_coeff = 0.001;
    o->moe_router_bias_update_rate = 0.001;
    o->moe_expert_capacity_factor = capacity;
    o->moe_token_dispatcher_type = dispatcher;
    must(parity_engine_find("sim", ASSAY_BIN_DIR "/assay-sim", &engine));
    assay_train_options run = *o;
    snprintf(run.trace, sizeof run.trace, "%s", c->trace_dir);
    snprintf(run.fault, sizeof run.fault, "%s", planted);
    snprintf(run.save, sizeof run.save, "%s", c->save);
    run.save_differing_replicas = true;
    snprintf(run.out, sizeof run.out, "%s", c->out);
    snprintf(path, sizeof path, "%s/log", c->dir);
    must(parity_engine_run(&engine, "step", &run, NULL, path, true, 120.0, NULL));
    parity_engine_free(&engine);
    c->config = malloc(sizeof *c->config);
    must(assay_config_load(o->model, c->config));
    must(assay_spec_build(c->config, &c->spec));
    must(assay_batches_open(&c->batches, o->batch, c->config->vocab_size));
    must(assay_layout_parse(o->layout, &p));
    must(assay_grid_make(&p, &c->grid));
    must(assay_grid_check_model(&c->grid, c->config));
    c->trace = open_trace(c->trace_dir);
}

static inline void plan_cell_run(plan_cell *c, const char *model, const char *layout,
                                 assay_precision precision, const char *planted)
{
    plan_cell_run_with(c, model, layout, precision, planted, 0.0, ASSAY_DISPATCHER_ALLTOALL);
}

static inline void plan_cell_make(plan_cell *c, const char *layout, assay_precision precision)
{
    plan_cell_run(c, plan_model, layout, precision, "");
}

static inline void plan_cell_free(plan_cell *c)
{
    assay_trace_close(c->trace);
    assay_batches_close(&c->batches);
    assay_spec_destroy(c->spec);
    free(c->config);
    remove_path(c->dir);
}

static inline parity_report *plan_judge(const plan_cell *c, const assay_trace *t)
{
    parity_report *r = new_report();
    must(parity_check_plan(t, c->spec, &c->grid, &c->options, &c->batches, r));
    return r;
}

#endif
