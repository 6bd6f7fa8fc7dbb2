/* The parameter table: names, parts, cuts, and who counts in the norm. */
#include "core/base/dtype.h"
#include "core/model/spec.h"
#include "tests/support/core.h"
#include <jansson.h>

static const char *const golden_models[] = {"llama",        "llama_bias",        "qwen2",         "qwen3",
                                            "qwen3_moe",    "qwen3_moe_sparse2", "mixtral",       "mistral",
                                            "qwen2_moe",    "qwen2_moe_window",  "seed_oss",      "olmoe",
                                            "olmoe_noclip", "deepseek_v3",       "deepseek_v3_q", "ministral",
                                            "deepseek_v2",  "deepseek_v2_lite"};
enum { N_GOLDEN = sizeof golden_models / sizeof golden_models[0] };

/* A small model that has every kind of parameter and sizes that tell the axes apart. */
static assay_model_config everything(bool tied)
{
    static const char text[] =
        "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":10,\"ffn_hidden_size\":6,"
        "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":2,\"vocab_size\":13,"
        "\"add_qkv_bias\":true,\"add_proj_bias\":true,\"add_mlp_bias\":true,\"qk_layernorm\":true,"
        "\"num_moe_experts\":4,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":3,"
        "\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":true,"
        "\"moe_shared_expert_intermediate_size\":8,\"moe_shared_expert_gate\":true,"
        "\"layer_is_moe\":[false,true,false,true]}";
    assay_model_config c;
    json_t *root = NULL;
    expect_ok(assay_json_parse(&root, text, strlen(text), "text"));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(tied));
    expect_ok(assay_config_from_json(root, "text", &c));
    json_decref(root);
    return c;
}

static assay_model_spec *golden_spec(const char *name)
{
    char path[256];
    assay_model_config c;
    assay_model_spec *spec = NULL;
    snprintf(path, sizeof path, "%s/golden/models/%s", ASSAY_SOURCE_DIR, name);
    expect_ok(assay_config_load(path, &c));
    expect_ok(assay_spec_build(&c, &spec));
    cr_assert_not_null(spec);
    return spec;
}

static assay_model_spec *everything_spec(bool tied)
{
    const assay_model_config c = everything(tied);
    assay_model_spec *spec = NULL;
    expect_ok(assay_spec_build(&c, &spec));
    cr_assert_not_null(spec);
    return spec;
}

static assay_grid grid_of(const char *layout)
{
    assay_parallel_config p;
    assay_grid g;
    memset(&g, 0, sizeof g);
    expect_ok(assay_layout_parse(layout, &p));
    expect_ok(assay_grid_make(&p, &g));
    return g;
}

/* --- the table ---------------------------------------------------------------------------------------------- */

Test(core_spec, names_and_shapes_of_a_model_with_everything)
{
    static const struct {
        const char *name;
        int ndim;
        int64_t shape[3];
    } rows[] = {
        {"embedding.word_embeddings.weight", 2, {13, 10, 0}},
        {"decoder.layers.0.input_layernorm.weight", 1, {10, 0, 0}},
        {"decoder.layers.0.self_attention.linear_qkv.weight", 2, {16, 10, 0}},
        {"decoder.layers.0.self_attention.linear_qkv.bias", 1, {16, 0, 0}},
        {"decoder.layers.0.self_attention.q_layernorm.weight", 1, {2, 0, 0}},
        {"decoder.layers.0.self_attention.k_layernorm.weight", 1, {2, 0, 0}},
        {"decoder.layers.0.self_attention.linear_proj.weight", 2, {10, 8, 0}},
        {"decoder.layers.0.self_attention.linear_proj.bias", 1, {10, 0, 0}},
        {"decoder.layers.0.pre_mlp_layernorm.weight", 1, {10, 0, 0}},
        {"decoder.layers.0.mlp.linear_fc1.weight", 2, {12, 10, 0}},
        {"decoder.layers.0.mlp.linear_fc1.bias", 1, {12, 0, 0}},
        {"decoder.layers.0.mlp.linear_fc2.weight", 2, {10, 6, 0}},
        {"decoder.layers.0.mlp.linear_fc2.bias", 1, {10, 0, 0}},
        {"decoder.layers.1.mlp.router.weight", 2, {4, 10, 0}},
        {"decoder.layers.1.mlp.router.expert_bias", 1, {4, 0, 0}},
        {"decoder.layers.1.mlp.experts.linear_fc1.weight", 3, {4, 6, 10}},
        {"decoder.layers.1.mlp.experts.linear_fc2.weight", 3, {4, 10, 3}},
        {"decoder.layers.1.mlp.shared_experts.linear_fc1.weight", 2, {16, 10, 0}},
        {"decoder.layers.1.mlp.shared_experts.linear_fc2.weight", 2, {10, 8, 0}},
        {"decoder.layers.1.mlp.shared_experts.gate_weight", 2, {1, 10, 0}},
        {"decoder.final_layernorm.weight", 1, {10, 0, 0}},
        {"output_layer.weight", 2, {13, 10, 0}},
    };
    assay_model_spec *spec = everything_spec(false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_param_spec *p = assay_spec_find(spec, rows[i].name);
        cr_assert_not_null(p, "%s", rows[i].name);
        cr_expect_eq(p->ndim, rows[i].ndim, "%s", rows[i].name);
        cr_expect_arr_eq(p->shape, rows[i].shape, sizeof rows[i].shape, "%s", rows[i].name);
        cr_expect_eq(p->no_weight_decay, p->ndim == 1, "%s", rows[i].name);
        cr_expect_eq(p->is_expert, strstr(p->name, ".experts.") != NULL, "%s", rows[i].name);
        cr_expect_eq(p->trained, strstr(p->name, "expert_bias") == NULL, "%s", rows[i].name);
    }
    /* 2 x (8 + 4) dense, 2 x (8 + 7) experts, 3 outside. */
    cr_expect_eq(spec->n_params, 57);
    cr_expect_null(assay_spec_find(spec, "decoder.layers.1.mlp.linear_fc1.weight"));
    cr_expect_null(assay_spec_find(spec, "lm_head.weight"));
    assay_spec_destroy(spec);
    assay_spec_destroy(NULL);
}

Test(core_spec, names_are_unique)
{
    assay_model_spec *spec = everything_spec(false);
    for (int64_t i = 0; i < spec->n_params; i++)
        cr_expect_eq(assay_spec_find(spec, spec->params[i].name), &spec->params[i]);
    assay_spec_destroy(spec);
}

Test(core_spec, a_tied_model_has_no_output_layer_and_its_embedding_on_both_ends)
{
    assay_model_spec *tied = everything_spec(true), *untied = everything_spec(false);
    cr_expect_null(assay_spec_find(tied, "output_layer.weight"));
    const assay_param_spec *p = assay_spec_find(tied, "embedding.word_embeddings.weight");
    cr_expect(p->on_first_stage && p->on_last_stage);
    p = assay_spec_find(untied, "embedding.word_embeddings.weight");
    cr_expect(p->on_first_stage && !p->on_last_stage);
    p = assay_spec_find(untied, "output_layer.weight");
    cr_expect(!p->on_first_stage && p->on_last_stage);
    assay_spec_destroy(tied);
    assay_spec_destroy(untied);
}

Test(core_spec, init_rules)
{
    assay_model_spec *spec = everything_spec(false);
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        const bool norm = strstr(p->name, "layernorm") != NULL, bias = strstr(p->name, "bias") != NULL;
        const bool output = (strstr(p->name, "linear_proj") || strstr(p->name, "linear_fc2")) && !bias;
        const assay_init expected = norm     ? ASSAY_INIT_ONE
                                    : bias   ? ASSAY_INIT_ZERO
                                    : output ? ASSAY_INIT_OUTPUT_NORMAL
                                             : ASSAY_INIT_NORMAL;
        cr_expect_eq(p->init, expected, "%s", p->name);
    }
    assay_spec_destroy(spec);
}

/* --- Hugging Face parts ------------------------------------------------------------------------------------- */

/* Each canonical row is written once, each row of each part is read once, and the row lengths agree. */
static void check_parts(const assay_param_spec *p)
{
    int64_t rows = p->shape[0];
    for (int d = 1; d < p->ndim - 1; d++)
        rows *= p->shape[d];
    const int64_t row_length = p->ndim > 1 ? p->shape[p->ndim - 1] : 1;
    unsigned char *filled = calloc((size_t)rows, 1);
    for (int i = 0; i < p->n_parts; i++) {
        const assay_hf_part *part = &p->parts[i];
        cr_assert(part->ndim == 1 || part->ndim == 2);
        cr_expect_eq(part->ndim == 2, p->ndim > 1, "%s", part->name);
        cr_expect_eq(part->ndim == 2 ? part->shape[1] : 1, row_length, "%s", part->name);
        unsigned char *used = calloc((size_t)part->shape[0], 1);
        for (int k = 0; k < part->n_pieces; k++) {
            const assay_hf_piece piece = part->pieces[k];
            for (int64_t r = 0; r < piece.rows; r++) {
                cr_assert(piece.dst + r < rows && piece.src + r < part->shape[0], "%s", part->name);
                filled[piece.dst + r]++;
                used[piece.src + r]++;
            }
        }
        for (int64_t r = 0; r < part->shape[0]; r++)
            cr_expect_eq(used[r], 1, "%s row %lld is read %d times", part->name, (long long)r, used[r]);
        free(used);
    }
    for (int64_t r = 0; r < rows; r++)
        cr_expect_eq(filled[r], 1, "%s row %lld is written %d times", p->name, (long long)r, filled[r]);
    free(filled);
}

Test(core_spec, parts_tile_every_parameter_exactly_once)
{
    for (int m = 0; m < N_GOLDEN + 1; m++) {
        assay_model_spec *spec = m < N_GOLDEN ? golden_spec(golden_models[m]) : everything_spec(false);
        for (int64_t i = 0; i < spec->n_params; i++)
            check_parts(&spec->params[i]);
        assay_spec_destroy(spec);
    }
}

/* The header of golden/models/NAME/model.safetensors. */
static json_t *file_header(const char *name)
{
    char path[256];
    char *text = NULL;
    uint64_t bytes = 0, length = 0;
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/golden/models/%s/model.safetensors", ASSAY_SOURCE_DIR, name);
    expect_ok(assay_read_file(path, 1 << 26, &text, &bytes));
    cr_assert(bytes > 8);
    memcpy(&length, text, 8);
    cr_assert(length <= bytes - 8);
    expect_ok(assay_json_parse(&root, text + 8, (size_t)length, path));
    free(text);
    json_object_del(root, "__metadata__");
    return root;
}

Test(core_spec, parts_are_exactly_the_tensors_that_transformers_wrote)
{
    for (int m = 0; m < N_GOLDEN; m++) {
        assay_model_spec *spec = golden_spec(golden_models[m]);
        json_t *header = file_header(golden_models[m]);
        for (int64_t i = 0; i < spec->n_params; i++) {
            for (int k = 0; k < spec->params[i].n_parts; k++) {
                const assay_hf_part *part = &spec->params[i].parts[k];
                const json_t *shape = json_object_get(json_object_get(header, part->name), "shape");
                cr_expect_eq((int)json_array_size(shape), part->ndim, "%s: %s", golden_models[m], part->name);
                for (int d = 0; d < part->ndim; d++)
                    cr_expect_eq(json_integer_value(json_array_get(shape, (size_t)d)), part->shape[d],
                                 "%s: %s", golden_models[m], part->name);
                json_object_del(header, part->name);
            }
        }
        const char *key;
        json_t *value;
        json_object_foreach(header, key, value)
            cr_expect(false, "%s: nobody reads %s", golden_models[m], key);
        json_decref(header);
        assay_spec_destroy(spec);
    }
}

Test(core_spec, qkv_rows_are_interleaved_by_group)
{
    /* 4 heads, 2 groups, head dimension 16: a group is 2 query heads, its key head, its value head. */
    static const struct {
        const char *name;
        assay_hf_piece pieces[2];
    } rows[] = {
        {"model.layers.1.self_attn.q_proj.weight", {{0, 0, 32}, {64, 32, 32}}},
        {"model.layers.1.self_attn.k_proj.weight", {{32, 0, 16}, {96, 16, 16}}},
        {"model.layers.1.self_attn.v_proj.weight", {{48, 0, 16}, {112, 16, 16}}},
    };
    assay_model_spec *spec = golden_spec("llama");
    const assay_param_spec *p = assay_spec_find(spec, "decoder.layers.1.self_attention.linear_qkv.weight");
    cr_assert_not_null(p);
    cr_assert_eq(p->n_parts, 3);
    for (int i = 0; i < 3; i++) {
        cr_expect_str_eq(p->parts[i].name, rows[i].name);
        cr_assert_eq(p->parts[i].n_pieces, 2);
        for (int k = 0; k < 2; k++) {
            cr_expect_eq(p->parts[i].pieces[k].dst, rows[i].pieces[k].dst);
            cr_expect_eq(p->parts[i].pieces[k].src, rows[i].pieces[k].src);
            cr_expect_eq(p->parts[i].pieces[k].rows, rows[i].pieces[k].rows);
        }
    }
    assay_spec_destroy(spec);
}

Test(core_spec, experts_are_cut_from_files_one_by_one)
{
    assay_model_spec *spec = golden_spec("mixtral");
    const assay_param_spec *p = assay_spec_find(spec, "decoder.layers.1.mlp.experts.linear_fc1.weight");
    cr_assert_not_null(p);
    cr_assert_eq(p->n_parts, 8);
    cr_expect_str_eq(p->parts[5].name, "model.layers.1.block_sparse_moe.experts.2.w3.weight");
    cr_expect_eq(p->parts[5].pieces[0].dst, 2 * 56 + 28);
    p = assay_spec_find(spec, "decoder.layers.1.mlp.router.weight");
    cr_expect_str_eq(p->parts[0].name, "model.layers.1.block_sparse_moe.gate.weight");
    assay_spec_destroy(spec);
}

Test(core_spec, a_parameter_without_a_hugging_face_name_is_refused)
{
    assay_model_config c = everything(false);
    assay_model_spec *spec = NULL;
    c.arch = ASSAY_ARCH_QWEN3_MOE;
    expect_error(assay_spec_build(&c, &spec), ASSAY_UNSUPPORTED,
                 "decoder.layers.1.mlp.router.expert_bias: Hugging Face's qwen3_moe has no such parameter");
    cr_expect_null(spec);
    c.num_layers = 0;
    expect_error(assay_spec_build(&c, &spec), ASSAY_LIMIT, "num_hidden_layers: expected 1 to 1024, found 0");
}

/* --- frozen weights ----------------------------------------------------------------------------------------- */

static bool frozen(const assay_model_spec *spec, const char *name)
{
    const assay_param_spec *p = assay_spec_find(spec, name);
    cr_assert_not_null(p, "%s", name);
    cr_expect_eq(assay_param_needs_grad(p), p->trained && !p->frozen);
    return p->frozen;
}

static void expect_freeze(const assay_model_config *c, const char *patterns, assay_status status,
                          const char *message)
{
    assay_model_spec *spec = NULL;
    expect_ok(assay_spec_build(c, &spec));
    expect_error(assay_spec_freeze(spec, patterns), status, message);
    assay_spec_destroy(spec);
}

/* Canonical names or the folder's; the last pattern that names a weight holds; parts of a parameter are no parameter. */
Test(core_spec, patterns_freeze_weights)
{
    const assay_model_config c = everything(false);
    assay_model_spec *spec = NULL;
    expect_ok(assay_spec_build(&c, &spec));
    expect_ok(assay_spec_freeze(spec, ""));
    for (int64_t i = 0; i < spec->n_params; i++)
        cr_expect(!spec->params[i].frozen);
    expect_ok(assay_spec_freeze(spec, "embedding.*,decoder.layers.1.*,!*.pre_mlp_layernorm.weight"));
    cr_expect(frozen(spec, "embedding.word_embeddings.weight"));
    cr_expect(frozen(spec, "decoder.layers.1.mlp.router.weight"));
    cr_expect(frozen(spec, "decoder.layers.1.mlp.experts.linear_fc1.weight"));
    cr_expect(!frozen(spec, "decoder.layers.1.mlp.router.expert_bias"), "a buffer");
    cr_expect(!frozen(spec, "decoder.layers.1.pre_mlp_layernorm.weight"));
    cr_expect(!frozen(spec, "decoder.layers.0.input_layernorm.weight"));
    assay_spec_destroy(spec);
    expect_freeze(&c, "decoder.layers.9.*", ASSAY_INVALID_ARGUMENT, "names no weight of the model");
    expect_freeze(&c, "*", ASSAY_INVALID_ARGUMENT, "leaves no weight to train");
    expect_freeze(&c, "embedding.*,", ASSAY_INVALID_ARGUMENT, "behind the last comma");
    expect_freeze(&c, ",embedding.*", ASSAY_INVALID_ARGUMENT, "expected patterns of 1 to");
}

Test(core_spec, names_of_the_folder_freeze_what_they_name_whole)
{
    assay_model_spec *spec = golden_spec("qwen3_moe");
    const assay_model_config c = spec->config;
    expect_ok(assay_spec_freeze(spec, "model.embed_tokens.weight,model.layers.1.self_attn.[qkv]_proj.*"));
    cr_expect(frozen(spec, "embedding.word_embeddings.weight"));
    cr_expect(frozen(spec, "decoder.layers.1.self_attention.linear_qkv.weight"));
    cr_expect(!frozen(spec, "decoder.layers.0.self_attention.linear_qkv.weight"));
    assay_spec_destroy(spec);
    expect_freeze(&c, "model.layers.0.self_attn.q_proj.weight", ASSAY_UNSUPPORTED,
                  "names model.layers.0.self_attn.q_proj.weight, a part of "
                  "decoder.layers.0.self_attention.linear_qkv.weight");
}

/* --- cuts --------------------------------------------------------------------------------------------------- */

static const char *const layouts[] = {"1",
                                      "dp2",
                                      "tp2",
                                      "tp2,sp",
                                      "ep2",
                                      "dp2,ep2",
                                      "pp2",
                                      "tp2,sp,ep2",
                                      "tp2,sp,ep2,dp2",
                                      "tp2,sp,ep4",
                                      "ep4",
                                      "ep2,dp4",
                                      "pp4",
                                      "tp2,pp2",
                                      "tp2,sp,ep4,pp2",
                                      "tp2,ep2,dp2,pp2",
                                      "dp3,pp2,zero1",
                                      "ep2,dp4,pp4",
                                      "pp2,vpp2,dp2",
                                      "cp2,dp2",
                                      "tp2,ep2,etp3,dp3",
                                      "tp2,sp,cp2,pp2,vpp2,ep2,etp3,dp3,zero1"};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };
/* More tensor-parallel ranks than the two query groups. */
static const char *const shared_layouts[] = {"tp4", "tp4,sp,dp2,zero1", "tp4,pp2,ep2", "tp4,cp2,pp2,vpp2"};
enum { N_SHARED = sizeof shared_layouts / sizeof shared_layouts[0] };

/* Adds 1 to the first n elements of the global tensor that the piece holds. */
static void paint_first(const assay_shard *s, int64_t n, unsigned char *elements)
{
    int64_t index[ASSAY_MAX_DIMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0;
        for (int d = 0; d < s->ndim; d++)
            at = at * s->global_shape[d] + assay_shard_global_index(s, d, index[d]);
        elements[at]++;
        for (int d = s->ndim - 1; d >= 0 && ++index[d] == s->local_shape[d]; d--)
            index[d] = 0;
    }
}

static void paint(const assay_shard *s, unsigned char *elements)
{
    paint_first(s, assay_shard_count(s), elements);
}

static int64_t elements_of(const assay_param_spec *p)
{
    int64_t n = 0;
    cr_assert(assay_shape_count(p->shape, p->ndim, &n));
    return n;
}

Test(core_spec, ranks_that_count_in_the_norm_hold_every_element_once)
{
    for (int tied = 0; tied < 2; tied++) {
        assay_model_spec *spec = everything_spec(tied);
        for (int l = 0; l < N_LAYOUTS + N_SHARED; l++) {
            const char *layout = l < N_LAYOUTS ? layouts[l] : shared_layouts[l - N_LAYOUTS];
            assay_grid g = grid_of(layout);
            assay_model_config wide = spec->config;
            wide.ffn_hidden_size *= 2; /* six rows are no multiple of four */
            expect_ok(assay_grid_check_cut(&g, &wide));
            for (int64_t i = 0; i < spec->n_params; i++) {
                const assay_param_spec *p = &spec->params[i];
                const int64_t n = elements_of(p);
                unsigned char *elements = calloc((size_t)n, 1);
                for (int rank = 0; rank < g.world; rank++) {
                    assay_shard s;
                    if (!assay_param_counts_in_norm(p, &g, &spec->config, rank))
                        continue;
                    expect_ok(assay_param_shard(p, &g, rank, &s));
                    paint_first(&s, assay_param_counted(p, &g, &spec->config, rank, assay_shard_count(&s)),
                                elements);
                }
                for (int64_t k = 0; k < n; k++)
                    cr_assert_eq(elements[k], p->trained ? 1 : 0, "%s %s element %lld counts %d times",
                                 layout, p->name, (long long)k, elements[k]);
                free(elements);
            }
        }
        assay_spec_destroy(spec);
    }
}

/* Two query groups on four ranks: a rank has its query heads and the key and value head of its group. */
Test(core_spec, ranks_share_a_key_and_value_head)
{
    assay_model_spec *spec = everything_spec(false); /* 4 heads of 2: a group is q q k v of 2 rows each */
    const assay_param_spec *w = assay_spec_find(spec, "decoder.layers.0.self_attention.linear_qkv.weight");
    const assay_param_spec *b = assay_spec_find(spec, "decoder.layers.0.self_attention.linear_qkv.bias");
    const assay_param_spec *o = assay_spec_find(spec, "decoder.layers.0.self_attention.linear_proj.weight");
    assay_grid g = grid_of("tp4,dp2");
    assay_model_config wide = spec->config;
    wide.ffn_hidden_size *= 2;
    expect_ok(assay_grid_check_cut(&g, &wide));
    cr_expect(g.size[ASSAY_AXIS_KV] == 2 && g.size[ASSAY_AXIS_KV_HEAD] == 2);
    for (int rank = 0; rank < g.world; rank++) {
        const int tp = rank % 4, first = tp / 2 * 2;
        assay_shard s, t;
        int members[4], index;
        expect_ok(assay_param_shard(w, &g, rank, &s));
        expect_ok(assay_shard_check(&s, w->name));
        cr_expect(s.local_shape[0] == 6 && s.n_segments[0] == 2);
        cr_expect_eq(s.segments[0][0].start, tp / 2 * 8 + tp % 2 * 2);
        cr_expect_eq(s.segments[0][1].start, tp / 2 * 8 + 4);
        cr_expect_eq(assay_param_shared_from(w, &g, assay_shard_count(&s)), 2 * 10);
        expect_ok(assay_param_shard(b, &g, rank, &t));
        cr_expect_eq(assay_param_shared_from(b, &g, assay_shard_count(&t)), 2);
        expect_ok(assay_param_shard(o, &g, rank, &t));
        cr_expect_eq(assay_param_shared_from(o, &g, assay_shard_count(&t)), assay_shard_count(&t));
        cr_expect_eq(assay_grid_group(&g, ASSAY_GROUP_KV, rank, members, &index), 2);
        cr_expect(members[0] == rank / 4 * 4 + first && members[1] == members[0] + 1 && index == tp % 2);
        cr_expect_eq(assay_grid_group(&g, ASSAY_GROUP_KV_HEAD, rank, members, &index), 2);
        cr_expect(members[0] == rank / 4 * 4 + tp % 2 && members[1] == members[0] + 2 && index == tp / 2);
    }
    assay_spec_destroy(spec);
}

static bool same_piece(const assay_shard *a, const assay_shard *b)
{
    for (int d = 0; d < a->ndim; d++) {
        if (a->n_segments[d] != b->n_segments[d] ||
            memcmp(a->segments[d], b->segments[d], (size_t)a->n_segments[d] * sizeof(assay_segment)) != 0)
            return false;
    }
    return true;
}

/* The ranks of the reduce group hold the same piece, and every element is on as many ranks as every other. */
Test(core_spec, shards_tile_and_replicas_are_the_reduce_group)
{
    assay_model_spec *spec = everything_spec(true);
    for (int l = 0; l < N_LAYOUTS; l++) {
        const assay_grid g = grid_of(layouts[l]);
        for (int64_t i = 0; i < spec->n_params; i++) {
            const assay_param_spec *p = &spec->params[i];
            const int64_t n = elements_of(p);
            unsigned char *elements = calloc((size_t)n, 1);
            for (int rank = 0; rank < g.world; rank++) {
                assay_shard mine, other;
                int members[64];
                if (!assay_param_on_rank(p, &g, &spec->config, rank))
                    continue;
                expect_ok(assay_param_shard(p, &g, rank, &mine));
                expect_ok(assay_shard_check(&mine, p->name));
                paint(&mine, elements);
                const int size = assay_grid_group(&g, assay_param_reduce_group(p), rank, members, NULL);
                for (int k = 0; k < size; k++) {
                    cr_expect(assay_param_on_rank(p, &g, &spec->config, members[k]));
                    expect_ok(assay_param_shard(p, &g, members[k], &other));
                    cr_expect(same_piece(&mine, &other), "%s %s", layouts[l], p->name);
                }
            }
            cr_expect(elements[0] > 0, "%s %s is on no rank", layouts[l], p->name);
            for (int64_t k = 1; k < n; k++)
                cr_assert_eq(elements[k], elements[0], "%s %s", layouts[l], p->name);
            free(elements);
        }
    }
    assay_spec_destroy(spec);
}

Test(core_spec, every_rank_holds_its_own_layers_and_no_other)
{
    assay_model_spec *spec = everything_spec(true);
    const assay_grid g = grid_of("tp2,pp2,dp2");
    for (int rank = 0; rank < g.world; rank++) {
        assay_coords at;
        assay_grid_coords(&g, rank, &at);
        for (int64_t i = 0; i < spec->n_params; i++) {
            const assay_param_spec *p = &spec->params[i];
            const bool embedding = strstr(p->name, "embedding") != NULL;
            const bool expected = p->layer >= 0 ? p->layer / 2 == at.pp : embedding || at.pp == 1;
            cr_expect_eq(assay_param_on_rank(p, &g, &spec->config, rank), expected, "%s", p->name);
        }
    }
    assay_spec_destroy(spec);
}

Test(core_spec, pieces_of_known_parameters)
{
    static const struct {
        const char *layout, *name;
        int rank, dim, n;
        assay_segment segments[2];
    } rows[] = {
        {"tp2", "decoder.layers.0.mlp.linear_fc1.weight", 1, 0, 2, {{3, 3}, {9, 3}}},
        {"tp2", "decoder.layers.0.mlp.linear_fc1.bias", 0, 0, 2, {{0, 3}, {6, 3}}},
        {"tp2", "decoder.layers.0.mlp.linear_fc2.weight", 1, 1, 1, {{3, 3}}},
        {"tp2", "decoder.layers.0.mlp.linear_fc2.bias", 1, 0, 1, {{0, 10}}},
        {"tp2", "decoder.layers.0.self_attention.linear_qkv.weight", 1, 0, 1, {{8, 8}}},
        {"tp2", "decoder.layers.0.self_attention.linear_proj.weight", 1, 1, 1, {{4, 4}}},
        {"tp2", "embedding.word_embeddings.weight", 0, 0, 1, {{0, 7}}},
        {"tp2", "output_layer.weight", 1, 0, 1, {{7, 6}}},
        {"ep2", "decoder.layers.1.mlp.experts.linear_fc1.weight", 1, 0, 1, {{2, 2}}},
        {"tp2,ep4", "decoder.layers.1.mlp.experts.linear_fc2.weight", 3, 0, 1, {{3, 1}}},
        {"tp2", "decoder.layers.1.mlp.shared_experts.linear_fc1.weight", 1, 0, 2, {{4, 4}, {12, 4}}},
        {"ep2", "decoder.layers.1.mlp.router.weight", 1, 0, 1, {{0, 4}}},
    };
    assay_model_spec *spec = everything_spec(false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_grid g = grid_of(rows[i].layout);
        const assay_param_spec *p = assay_spec_find(spec, rows[i].name);
        assay_shard s;
        cr_assert_not_null(p);
        expect_ok(assay_param_shard(p, &g, rows[i].rank, &s));
        cr_expect_eq(s.n_segments[rows[i].dim], rows[i].n, "%s", rows[i].name);
        for (int k = 0; k < rows[i].n; k++) {
            cr_expect_eq(s.segments[rows[i].dim][k].start, rows[i].segments[k].start, "%s", rows[i].name);
            cr_expect_eq(s.segments[rows[i].dim][k].length, rows[i].segments[k].length, "%s", rows[i].name);
        }
    }
    assay_shard s;
    const assay_grid g = grid_of("dp2");
    expect_error(assay_param_shard(&spec->params[0], &g, 2, &s), ASSAY_INVALID_ARGUMENT,
                 "rank 2 of a world of 2");
    expect_error(assay_param_shard(&spec->params[0], &g, -1, &s), ASSAY_INVALID_ARGUMENT, "rank -1");
    assay_spec_destroy(spec);
}

Test(core_spec, more_ranks_than_rows_leaves_empty_pieces)
{
    assay_model_config c = everything(false);
    assay_model_spec *spec = NULL;
    assay_shard s;
    c.vocab_size = 3;
    expect_ok(assay_spec_build(&c, &spec));
    const assay_grid g = grid_of("tp4");
    expect_ok(assay_param_shard(assay_spec_find(spec, "output_layer.weight"), &g, 3, &s));
    cr_expect_eq(s.n_segments[0], 0);
    cr_expect_eq(s.local_shape[0], 0);
    cr_expect_eq(assay_shard_count(&s), 0);
    expect_ok(assay_shard_check(&s, "empty"));
    assay_spec_destroy(spec);
}

Test(core_spec, gradients_that_are_summed_over_tp)
{
    /* Parameter; with tp2; with tp2,sp. */
    static const struct {
        const char *rest;
        bool tp, sp;
    } rows[] = {
        {"0.input_layernorm.weight", false, true},
        {"0.pre_mlp_layernorm.weight", false, true},
        {"0.self_attention.q_layernorm.weight", true, true},
        {"0.self_attention.k_layernorm.weight", true, true},
        {"0.self_attention.linear_qkv.weight", false, false},
        {"0.self_attention.linear_qkv.bias", false, false},
        {"0.self_attention.linear_proj.weight", false, false},
        {"0.self_attention.linear_proj.bias", false, false},
        {"0.mlp.linear_fc1.bias", false, false},
        {"0.mlp.linear_fc2.bias", false, false},
        {"1.mlp.router.weight", true, true},
        {"1.mlp.router.expert_bias", false, false},
        {"1.mlp.experts.linear_fc1.weight", false, false},
        {"1.mlp.shared_experts.gate_weight", true, true},
        {"1.mlp.shared_experts.linear_fc1.weight", false, false},
    };
    assay_model_spec *spec = everything_spec(false);
    const assay_grid one = grid_of("dp2"), tp = grid_of("tp2"), sp = grid_of("tp2,sp");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[ASSAY_NAME];
        snprintf(name, sizeof name, "decoder.layers.%s", rows[i].rest);
        const assay_param_spec *p = assay_spec_find(spec, name);
        cr_assert_not_null(p, "%s", name);
        cr_expect(!assay_param_sum_over_tp(p, &one), "%s", name);
        cr_expect_eq(assay_param_sum_over_tp(p, &tp), rows[i].tp, "%s", name);
        cr_expect_eq(assay_param_sum_over_tp(p, &sp), rows[i].sp, "%s", name);
    }
    const assay_param_spec *final = assay_spec_find(spec, "decoder.final_layernorm.weight");
    cr_expect(!assay_param_sum_over_tp(final, &tp) && assay_param_sum_over_tp(final, &sp));
    assay_spec_destroy(spec);
}

/* --- pieces of pieces --------------------------------------------------------------------------------------- */

static assay_shard two_halves(void)
{
    assay_shard s;
    assay_shard_whole(&s, (int64_t[]){20, 3}, 2);
    assay_shard_set(&s, 0, (const assay_segment[2]){{2, 4}, {12, 4}}, 2);
    s.local_shape[0] = 8;
    return s;
}

Test(core_spec, narrow_keeps_the_right_rows)
{
    const assay_shard whole = two_halves();
    for (int64_t start = 0; start <= 8; start++) {
        for (int64_t length = 0; start + length <= 8; length++) {
            assay_shard s = whole;
            expect_ok(assay_shard_narrow(&s, 0, start, length));
            expect_ok(assay_shard_check(&s, "narrowed"));
            cr_expect_eq(s.local_shape[0], length);
            for (int64_t i = 0; i < length; i++)
                cr_expect_eq(assay_shard_global_index(&s, 0, i),
                             assay_shard_global_index(&whole, 0, start + i));
        }
    }
    cr_expect_eq(assay_shard_global_index(&whole, 0, 3), 5);
    cr_expect_eq(assay_shard_global_index(&whole, 0, 4), 12);
    cr_expect_eq(assay_shard_global_index(&whole, 0, 8), -1);
    cr_expect_eq(assay_shard_count(&whole), 24);
}

Test(core_spec, narrow_refuses_what_is_not_there)
{
    static const int64_t wrong[][2] = {{-1, 1}, {0, -1}, {0, 9}, {8, 1}, {9, 0}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assay_shard s = two_halves();
        expect_error(assay_shard_narrow(&s, 0, wrong[i][0], wrong[i][1]), ASSAY_INVALID_ARGUMENT,
                     "of a piece of length 8");
    }
    assay_shard s = two_halves();
    expect_error(assay_shard_narrow(&s, 2, 0, 1), ASSAY_INVALID_ARGUMENT, "dimension 2 of a piece with 2");
}

Test(core_spec, broken_pieces_are_refused)
{
    assay_shard s = two_halves();
    expect_ok(assay_shard_check(&s, "good"));
    s.local_shape[0] = 7;
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT,
                 "t: dimension 0: segments hold 8, local shape says 7");
    s = two_halves();
    assay_shard_set(&s, 0, (const assay_segment[2]){{2, 4}, {5, 4}}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "segments [2, +4) and [5, +4) overlap");
    s = two_halves();
    assay_shard_set(&s, 0, (const assay_segment[2]){{2, 4}, {17, 4}}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "segment [17, +4) is not inside [0, 20)");
    s = two_halves();
    assay_shard_set(&s, 0, (const assay_segment[2]){{-1, 4}, {12, 4}}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "segment [-1, +4) is not inside");
    s = two_halves();
    assay_shard_set(&s, 0, (const assay_segment[2]){{2, INT64_MAX}, {12, 4}}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "is not inside");
    s = two_halves();
    assay_shard_set(&s, 0, (const assay_segment[2]){{2, 0}, {12, 4}}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "segment [2, +0)");
    s = two_halves();
    s.n_segments[0] = ASSAY_MAX_SEGMENTS + 1;
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "257 segments, at most 256");
    s = two_halves();
    s.ndim = 5;
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "t: 5 dimensions, at most 4");
    s = two_halves();
    s.global_shape[1] = -3;
    expect_error(assay_shard_check(&s, "t"), ASSAY_FORMAT, "dimension 1: negative extent");
    assay_shard_whole(&s, (int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}, 2);
    expect_error(assay_shard_check(&s, "t"), ASSAY_LIMIT, "more than 2^63 - 1 elements");
}
