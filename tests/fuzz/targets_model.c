/* What says how a model is and how it is cut: configurations, layouts, options, map files. */
#include "core/model/config.h"
#include "core/model/grid.h"
#include "core/model/names.h"
#include "core/model/spec.h"
#include "core/run/inputs.h"
#include "core/run/training.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *text_of(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    FUZZ_LAW(text != NULL, "%zu bytes", bytes);
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    return text;
}

/* A table of a few thousand rows; who says a million experts waits, and that is no finding. */
static bool is_small(const assay_model_config *c)
{
    return c->num_layers * (c->num_moe_experts + 8) <= 4096;
}

static void walk_spec(const assay_model_config *c)
{
    static const char *const layouts[] = {"tp2,sp,ep2,dp2,zero1", "tp4,pp2,cp2", "ep2,etp2,tp2,dp4,zero3"};
    assay_model_spec *spec;
    if (assay_spec_build(c, &spec) != ASSAY_OK)
        return;
    for (int k = 0; k < 3; k++) {
        assay_parallel_config p;
        assay_grid g;
        fuzz_must(assay_layout_parse(layouts[k], &p));
        fuzz_must(assay_grid_make(&p, &g));
        if (assay_grid_check_cut(&g, c) != ASSAY_OK)
            continue;
        for (int64_t i = 0; i < spec->n_params; i++)
            for (int rank = 0; rank < g.world; rank += g.world - 1) {
                assay_shard shard;
                if (assay_param_on_rank(&spec->params[i], &g, c, rank))
                    fuzz_must(assay_param_shard(&spec->params[i], &g, rank, &shard));
            }
    }
    assay_spec_destroy(spec);
}

/* What is read can be written, and reads back to the same. */
void fuzz_config(const uint8_t *data, size_t bytes)
{
    static assay_model_config first, second;
    json_t *root, *again = NULL, *once_more = NULL;
    if (assay_json_parse(&root, (const char *)data, bytes, "config.json") != ASSAY_OK)
        return;
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    if (assay_config_from_json(root, "config.json", &first) == ASSAY_OK) {
        fuzz_must(assay_config_check(&first, "again"));
        fuzz_must(assay_config_to_json(&first, &again));
        fuzz_must(assay_config_from_json(again, "written", &second));
        fuzz_must(assay_config_to_json(&second, &once_more));
        FUZZ_LAW(json_equal(again, once_more), "a configuration that is written reads otherwise");
        if (is_small(&first))
            walk_spec(&first);
        assay_train_options o;
        assay_train_options_default(&o);
        if (assay_inputs_take_config(&o, &first) == ASSAY_OK)
            (void)assay_inputs_layout("tp2,sp,ep2,dp2", &o, &first, 4, 2);
    }
    json_decref(again);
    json_decref(once_more);
    json_decref(root);
}

static void walk_stages(const assay_parallel_config *p)
{
    assay_pipeline_layout stages;
    char canonical[ASSAY_PIPELINE_LAYOUT];
    const char *text = p->pipeline_model_parallel_layout;
    if (text[0] == '\0')
        return;
    fuzz_must(assay_pipeline_layout_parse(text, canonical, &stages));
    FUZZ_LAW(strcmp(text, canonical) == 0, "%s is not %s", text, canonical);
    int64_t at = 0;
    for (int s = 0; s < stages.stages; s++) {
        int64_t first, count;
        assay_pipeline_layout_stage(text, s, &first, &count);
        FUZZ_LAW(first == at && count >= 0, "%s: stage %d", text, s);
        if (count > 0)
            FUZZ_LAW(assay_pipeline_layout_stage_of(text, first + count - 1) == s, "%s: stage %d", text, s);
        at += count;
    }
    FUZZ_LAW(at == stages.layers, "%s: %lld layers", text, (long long)at);
}

void fuzz_layout(const uint8_t *data, size_t bytes)
{
    char *text = text_of(data, bytes), canonical[ASSAY_LAYOUT_TEXT], again[ASSAY_LAYOUT_TEXT];
    assay_parallel_config p, q;
    assay_grid g;
    const assay_status st = assay_layout_parse(text, &p);
    free(text);
    if (st != ASSAY_OK)
        return;
    assay_layout_format(&p, canonical);
    fuzz_must(assay_layout_parse(canonical, &q));
    assay_layout_format(&q, again);
    FUZZ_LAW(strcmp(canonical, again) == 0, "%s reads as %s", canonical, again);
    walk_stages(&p);
    if (assay_grid_make(&p, &g) != ASSAY_OK)
        return;
    for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++)
        for (int rank = 0; rank<g.world; rank += g.world> 16 ? g.world / 8 : 1) {
            const assay_group_shape s = assay_grid_group_shape(&g, (assay_group)kind, rank);
            if (s.size == 0)
                continue;
            const int index = assay_group_index(&s, rank);
            FUZZ_LAW(index >= 0 && index < s.size && assay_group_member(&s, index) == rank,
                     "%s: rank %d is not in its group %s", canonical, rank,
                     assay_group_name((assay_group)kind));
            FUZZ_LAW(assay_group_member(&s, s.size - 1) < g.world, "%s: a rank beyond the world", canonical);
        }
}

static void json_options(const char *text, size_t bytes)
{
    assay_train_options o, p;
    json_t *root, *first, *second;
    if (assay_json_parse(&root, text, bytes, "training") != ASSAY_OK)
        return;
    assay_train_options_default(&o);
    assay_train_options_default(&p);
    if (assay_train_options_from_json(&o, root, ASSAY_FOR_CASE, "training") == ASSAY_OK) {
        (void)assay_train_options_check(&o);
        first = assay_train_options_to_json(&o, ASSAY_FOR_CASE);
        fuzz_must(assay_train_options_from_json(&p, first, ASSAY_FOR_CASE, "written"));
        second = assay_train_options_to_json(&p, ASSAY_FOR_CASE);
        FUZZ_LAW(json_equal(first, second), "options that are written read otherwise");
        json_decref(first);
        json_decref(second);
        json_decref(assay_training_to_json(&o));
        (void)assay_training_check("checkpoint", root, &o, NULL);
    }
    json_decref(root);
}

/* Those end the process, as they should. */
static bool asks_for_help(const char *word)
{
    static const char *const leave[] = {"--help", "--usage", "--version"};
    for (int i = 0; i < 3; i++)
        if (strlen(word) > 2 && strncmp(word, leave[i], strcspn(word, "=")) == 0)
            return true;
    return word[0] == '-' && word[1] != '-' && strchr(word, 'h') != NULL;
}

static assay_status any(void *user, const char *name, const char *text)
{
    (void)user;
    (void)name;
    (void)text;
    return ASSAY_OK;
}

/* A line is a word of the command line; an object is the member of a case. */
void fuzz_options(const uint8_t *data, size_t bytes)
{
    static const assay_extra_option extra[] = {
        {"engine", "ref|sim", "either"}, {"json", NULL, "a flag"}, {NULL, NULL, NULL}};
    char *text = text_of(data, bytes), *words[34] = {(char *)(uintptr_t) "fuzz"}, *rest = text;
    int n = 1;
    if (bytes > 0 && data[0] == '{')
        json_options(text, bytes);
    else {
        assay_train_options o;
        assay_train_options_default(&o);
        while (rest != NULL && n < 33) {
            words[n] = strsep(&rest, "\n");
            if (!asks_for_help(words[n]))
                n++;
        }
        words[n] = NULL;
        if (assay_options_parse(n, words, "fuzz", "", &o, ASSAY_FOR_STEP, extra, any, NULL) == ASSAY_OK) {
            (void)assay_train_options_check(&o);
            json_decref(assay_train_options_to_json(&o, ASSAY_FOR_STEP));
        }
    }
    free(text);
}

static assay_model_spec *spec_of(const char *config)
{
    assay_model_config c;
    assay_model_spec *spec;
    json_t *root;
    memset(&c, 0, sizeof c);
    fuzz_must(assay_json_parse(&root, config, strlen(config), "config.json"));
    fuzz_must(assay_config_from_json(root, "config.json", &c));
    json_decref(root);
    fuzz_must(assay_spec_build(&c, &spec));
    return spec;
}

void fuzz_map(const uint8_t *data, size_t bytes)
{
    static assay_model_spec *spec;
    assay_names *n;
    if (spec == NULL)
        spec =
            spec_of("{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,"
                    "\"intermediate_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                    "\"num_key_value_heads\":2,\"vocab_size\":32,\"max_position_embeddings\":64,"
                    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\"}");
    fuzz_must(assay_names_build(spec, &n));
    fuzz_folder_make();
    fuzz_write("map.json", data, bytes);
    const int64_t before = assay_names_count(n);
    if (assay_names_add_file(n, fuzz_path("map.json")) != ASSAY_OK)
        FUZZ_LAW(assay_names_count(n) == before, "a file that is refused added rows");
    for (int64_t i = 0; i < assay_names_count(n) && i < 64; i++) {
        const assay_name_row *row = assay_names_at(n, i);
        assay_name_match match[ASSAY_NAME_MATCHES];
        const int found =
            assay_names_find(n, row->theirs, row->parameter ? ASSAY_PHASE_FORWARD : row->their_phase, match);
        FUZZ_LAW(found > 0, "%s is not found", row->theirs);
        for (int k = 0; k < row->n_pieces; k++)
            FUZZ_LAW(row->pieces[k].dst + row->pieces[k].rows <= row->extent, "a piece leaves its tensor");
    }
    assay_names_destroy(n);
}
