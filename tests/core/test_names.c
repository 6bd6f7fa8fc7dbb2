/* Laws of the name maps: every Hugging Face tensor of the parameter table has a row, the pieces of a parameter are those of its
 * output, a user's rows go first, and a map file that is not one is refused by what is wrong with it. */
#include "core/base/file.h"
#include "core/model/names.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    assay_model_config *config;
    assay_model_spec *spec;
    assay_names *names;
} fixture;

static fixture open_names(const char *model)
{
    fixture f = {.config = calloc(1, sizeof *f.config)};
    char path[512];
    snprintf(path, sizeof path, ASSAY_SOURCE_DIR "/golden/models/%s", model);
    cr_assert_eq(assay_config_load(path, f.config), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_spec_build(f.config, &f.spec), ASSAY_OK);
    cr_assert_eq(assay_names_build(f.spec, &f.names), ASSAY_OK, "%s", assay_error_message());
    return f;
}

static void close_names(fixture *f)
{
    assay_names_destroy(f->names);
    assay_spec_destroy(f->spec);
    free(f->config);
}

static const assay_name_match *find(const fixture *f, const char *theirs, assay_phase phase)
{
    static assay_name_match match[ASSAY_NAME_MATCHES];
    cr_assert_gt(assay_names_find(f->names, theirs, phase, match), 0, "%s", theirs);
    return match;
}

Test(names, every_tensor_of_every_class_has_a_row_in_every_state)
{
    static const char *const models[] = {"llama",     "llama_bias",  "mistral",         "mixtral",
                                         "olmoe",     "qwen2",       "qwen2_moe",       "qwen3",
                                         "qwen3_moe", "seed_oss",    "deepseek_v3",     "deepseek_v3_q",
                                         "ministral", "deepseek_v2", "deepseek_v2_lite"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fixture f = open_names(models[m]);
        for (int64_t i = 0; i < f.spec->n_params; i++)
            for (int k = 0; k < f.spec->params[i].n_parts; k++)
                for (const assay_name_state *s = assay_name_states(); s->theirs != NULL; s++) {
                    const assay_param_spec *p = &f.spec->params[i];
                    char theirs[ASSAY_NAME + 32], ours[ASSAY_NAME + 32];
                    snprintf(theirs, sizeof theirs, "%s%s", p->parts[k].name, s->theirs);
                    snprintf(ours, sizeof ours, "%s%s", p->name, s->ours);
                    const assay_name_match *match = find(&f, theirs, s->their_phase);
                    cr_expect_str_eq(match->ours, ours, "%s: %s", models[m], theirs);
                    cr_expect_eq(match->phase, s->phase);
                    cr_expect_eq(match->row->n_pieces, p->n_parts > 1 ? p->parts[k].n_pieces : 0);
                }
        close_names(&f);
    }
}

Test(names, an_output_is_cut_as_the_weight_that_makes_it)
{
    fixture f = open_names("llama");
    const assay_name_row *w = find(&f, "model.layers.1.self_attn.k_proj.weight", ASSAY_PHASE_FORWARD)->row;
    const assay_name_match *y = find(&f, "model.layers.1.self_attn.k_proj", ASSAY_PHASE_FORWARD);
    cr_expect_str_eq(y->ours, "decoder.layers.1.self_attention.linear_qkv.y");
    cr_expect_eq(y->row->axes, ASSAY_AXES_BATCH_FIRST);
    cr_expect_eq(y->row->pieces, w->pieces);
    cr_expect(y->row->extent == 128 && y->row->their_extent == 32 && y->row->n_pieces == 2);
    cr_expect(y->row->pieces[0].dst == 32 && y->row->pieces[0].rows == 16 && y->row->pieces[1].dst == 96);
    y = find(&f, "model.layers.0.self_attn.o_proj.dx", ASSAY_PHASE_BACKWARD);
    cr_expect_str_eq(y->ours, "decoder.layers.0.self_attention.core_attention.o.grad");
    assay_name_match none[ASSAY_NAME_MATCHES];
    cr_expect_eq(assay_names_find(f.names, "model.layers.0.self_attn.o_proj.dx", ASSAY_PHASE_FORWARD, none),
                 0);
    cr_expect_eq(assay_names_find(f.names, "model.layers.2.mlp", ASSAY_PHASE_FORWARD, none), 0);
    close_names(&f);
}

#define A "model.layers.0.self_attn."
#define O "decoder.layers.0.self_attention."

Test(names, what_stands_between_parameters_follows_the_class)
{
    static const struct {
        const char *model, *theirs, *ours;
        assay_name_relation relation;
    } rows[] = {
        {"llama", "lm_head", "output_layer.y", ASSAY_RELATION_EQUAL}, /* tied: no weight of its own */
        {"llama", "model.layers.0.mlp", "decoder.layers.0.mlp.linear_fc2.y", ASSAY_RELATION_EQUAL},
        {"qwen3", "model.layers.0.self_attn.rope_q.x", "decoder.layers.0.self_attention.q_layernorm.y",
         ASSAY_RELATION_EQUAL},
        {"olmoe", "model.layers.0.self_attn.rope_q.x", "decoder.layers.0.self_attention.clip_q.y",
         ASSAY_RELATION_EQUAL},
        {"olmoe", "model.layers.0.self_attn.core_attention.v", "decoder.layers.0.self_attention.clip_v.y",
         ASSAY_RELATION_EQUAL},
        {"olmoe_noclip", "model.layers.0.self_attn.rope_k.x", "decoder.layers.0.self_attention.k_layernorm.y",
         ASSAY_RELATION_EQUAL},
        {"mixtral", "model.layers.0.mlp", "decoder.layers.0.mlp.unpermute.y", ASSAY_RELATION_EQUAL},
        {"mixtral", "model.layers.0.mlp.gate.2", "decoder.layers.0.mlp.router.indices", ASSAY_RELATION_ROWS},
        {"mixtral", "model.layers.0.mlp.experts.gate_up_proj",
         "decoder.layers.0.mlp.experts.linear_fc1.weight", ASSAY_RELATION_EQUAL},
        {"qwen2_moe", "model.layers.0.mlp", "decoder.layers.0.mlp.shared_experts.add.y",
         ASSAY_RELATION_EQUAL},
        {"qwen2_moe", "loss", "loss.loss", ASSAY_RELATION_MEAN},
        {"qwen2_moe", "model.layers.0.mlp.shared_expert", "decoder.layers.0.mlp.shared_experts.linear_fc2.y",
         ASSAY_RELATION_EQUAL},
        {"deepseek_v3", "model.layers.1.mlp.shared_experts",
         "decoder.layers.1.mlp.shared_experts.linear_fc2.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", "model.layers.1.mlp.gate", "decoder.layers.1.mlp.router.gating.y",
         ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "q_a_proj.input", "decoder.layers.0.input_layernorm.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "q_a_layernorm.input", O "linear_q_down_proj.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "q_b_proj.input", O "q_layernorm.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "q_b_proj", O "linear_q_up_proj.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "kv_a_proj_with_mqa.input", "decoder.layers.0.input_layernorm.y",
         ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "kv_a_layernorm.input", O "kv_down_split.kv_compressed", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "kv_b_proj.input", O "kv_layernorm.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "core_attention.q", O "rope_q.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "core_attention.k", O "rope_kv.k", ASSAY_RELATION_EQUAL},
        {"deepseek_v3", A "core_attention.v", O "rope_kv.v", ASSAY_RELATION_EQUAL},
        {"deepseek_v2", A "core_attention.q", O "rope_q.y", ASSAY_RELATION_EQUAL},
        {"deepseek_v2", A "core_attention.k", O "rope_kv.k", ASSAY_RELATION_EQUAL},
        {"deepseek_v3_q", A "q_proj.input", "decoder.layers.0.input_layernorm.y", ASSAY_RELATION_EQUAL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f = open_names(rows[i].model);
        const assay_name_match *m = find(&f, rows[i].theirs, ASSAY_PHASE_FORWARD);
        cr_expect_str_eq(m->ours, rows[i].ours, "%s: %s: %s", rows[i].model, rows[i].theirs, m->ours);
        cr_expect_eq(m->row->relation, rows[i].relation);
        close_names(&f);
    }
}

/* Gradients of MLA's tensors; what a foreign trace holds in another shape, and what the model does not have, has no row. */
Test(names, gradients_of_mla_and_what_has_no_row)
{
    static const struct {
        const char *theirs, *ours;
    } rows[] = {{A "core_attention.dq", O "rope_q.y.grad"},
                {A "core_attention.dk", O "rope_kv.k.grad"},
                {A "core_attention.dv", O "rope_kv.v.grad"},
                {A "q_a_layernorm.dx", O "linear_q_down_proj.y.grad"},
                {A "kv_a_layernorm.dx", O "kv_down_split.kv_compressed.grad"},
                {A "q_b_proj.dx", O "q_layernorm.y.grad"},
                {A "kv_b_proj.dx", O "kv_layernorm.y.grad"}};
    static const char *const none[] = {A "rope_q.x",  A "rope_q.y",  A "rope_k.x",
                                       A "rope_k.y",  A "rope_q.dx", A "rope_q.dy",
                                       A "rope_k.dx", A "rope_k.dy", A "q_a_proj.dx"};
    fixture f = open_names("deepseek_v3"), q = open_names("deepseek_v3_q"), plain = open_names("llama");
    assay_name_match match[ASSAY_NAME_MATCHES];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_str_eq(find(&f, rows[i].theirs, ASSAY_PHASE_BACKWARD)->ours, rows[i].ours);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        for (int phase = ASSAY_PHASE_FORWARD; phase <= ASSAY_PHASE_BACKWARD; phase++)
            cr_expect_eq(assay_names_find(f.names, none[i], (assay_phase)phase, match), 0, "%s", none[i]);
    cr_expect_eq(assay_names_find(q.names, A "q_a_layernorm.input", ASSAY_PHASE_FORWARD, match), 0);
    cr_expect_eq(assay_names_find(plain.names, A "kv_a_layernorm.input", ASSAY_PHASE_FORWARD, match), 0);
    cr_expect_str_eq(find(&plain, A "core_attention.k", ASSAY_PHASE_FORWARD)->ours, O "rope_k.y");
    close_names(&f);
    close_names(&q);
    close_names(&plain);
}

static assay_status add(fixture *f, const char *text)
{
    char path[] = "/tmp/assay-map-XXXXXX";
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    const assay_status st = assay_names_add_file(f->names, path);
    unlink(path);
    return st;
}

#define FILE_OF(rows) "{\"format\":\"assay-map\",\"version\":1,\"rows\":[" rows "]}"

Test(names, rows_of_a_user_go_first_and_a_star_is_a_layer)
{
    fixture f = open_names("llama");
    const int64_t before = assay_names_count(f.names);
    cr_assert_eq(
        add(&f, FILE_OF("{\"theirs\":\"blocks.*.attn\",\"ours\":\"decoder.layers.*.self_attention.linear_"
                        "proj.y\",\"axes\":\"batch_first\"},"
                        "{\"theirs\":\"logits\",\"ours\":\"mine\",\"axes\":\"heads_first\"}")),
        ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_names_count(f.names), before + 3);
    cr_expect_str_eq(find(&f, "blocks.1.attn", ASSAY_PHASE_FORWARD)->ours,
                     "decoder.layers.1.self_attention.linear_proj.y");
    cr_expect_str_eq(find(&f, "logits", ASSAY_PHASE_FORWARD)->ours, "mine");
    cr_expect_str_eq(find(&f, "model.norm", ASSAY_PHASE_FORWARD)->ours, "decoder.final_layernorm.y");
    close_names(&f);
}

Test(names, a_file_that_is_no_map_is_refused_and_changes_nothing)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"[]", "expected an object"},
        {"{\"format\":\"assay-map\",\"version\":2,\"rows\":[]}", "version 1, found assay-map, version 2"},
        {FILE_OF("{\"theirs\":\"a\"}"), "ours"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"axis\":\"same\"}"), "axis"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"axes\":\"sideways\"}"), "found \"sideways\""},
        {FILE_OF("{\"theirs\":\"a*\",\"ours\":\"b\"}"), "a * in both"},
        {FILE_OF("{\"theirs\":\"a**\",\"ours\":\"b*\"}"), "at most one *"},
        {FILE_OF("{\"theirs\":\"\",\"ours\":\"b\"}"), "expected a name"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"phase\":\"sideways\"}"), "sideways"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"pieces\":[[0,0,2]]}"), "extent"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"pieces\":[[0,0,3]],\"extent\":4,\"their_extent\":2}"),
         "leaves"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"pieces\":[[0,0,-1]],\"extent\":4,\"their_extent\":2}"),
         "from 0 on"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"pieces\":[[0,0,1]],\"extent\":4,\"their_extent\":2}"),
         "every row of theirs"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"pieces\":[[0,0,2],[2,1,1]],\"extent\":4,\"their_"
                 "extent\":3}"),
         "share rows"},
        {FILE_OF("{\"theirs\":\"a\",\"ours\":\"b\",\"parameter\":true,\"axes\":\"batch_first\"}"), "no axes"},
    };
    fixture f = open_names("llama");
    const int64_t before = assay_names_count(f.names);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_neq(add(&f, rows[i].text), ASSAY_OK, "%s", rows[i].text);
        cr_expect(strstr(assay_error_message(), rows[i].message), "%s: %s", rows[i].text,
                  assay_error_message());
        cr_expect_eq(assay_names_count(f.names), before);
        find(&f, "model.norm", ASSAY_PHASE_FORWARD);
    }
    close_names(&f);
}

/* A small file and many layers: memory follows the file, not what a * of it stands for. */
Test(names, a_star_for_too_many_layers_is_refused)
{
    fixture f = open_names("llama");
    enum { ROWS = 300 };
    char *text = calloc(ROWS + 2, 64);
    size_t at = (size_t)sprintf(text, "{\"format\":\"assay-map\",\"version\":1,\"rows\":[");
    for (int i = 0; i < ROWS; i++)
        at += (size_t)sprintf(text + at, "%s{\"theirs\":\"t%d.*\",\"ours\":\"o%d.*\"}", i ? "," : "", i, i);
    sprintf(text + at, "]}");
    const int64_t before = assay_names_count(f.names);
    f.spec->config.num_layers = ASSAY_MAX_LAYERS;
    cr_expect_eq(add(&f, text), ASSAY_LIMIT);
    cr_expect(strstr(assay_error_message(), "262144 names"), "%s", assay_error_message());
    cr_expect_eq(assay_names_count(f.names), before);
    f.spec->config.num_layers = 2;
    cr_expect_eq(add(&f, text), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_names_count(f.names), before + 2 * ROWS);
    free(text);
    close_names(&f);
}
