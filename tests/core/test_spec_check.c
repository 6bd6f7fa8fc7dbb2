/* Whether a folder's tensors are the model's: strangers are named, however many tensors there are. */
#include "core/files/tensorwriter.h"
#include "core/model/spec.h"
#include "tests/support/core.h"
#include <jansson.h>

static assay_model_spec *many_experts(int layers)
{
    char path[256];
    assay_model_config c;
    assay_model_spec *spec = NULL;
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/golden/models/mixtral/config.json", ASSAY_SOURCE_DIR);
    expect_ok(assay_json_load(&root, path));
    json_t *small = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "hidden_size", 4, "intermediate_size", 2,
                              "num_attention_heads", 1, "num_key_value_heads", 1, "num_hidden_layers", layers,
                              "num_local_experts", 256, "vocab_size", 8);
    cr_assert_eq(json_object_update(root, small), 0);
    expect_ok(assay_config_from_json(root, "config.json", &c));
    expect_ok(assay_spec_build(&c, &spec));
    cr_assert_not_null(spec);
    json_decref(small);
    json_decref(root);
    return spec;
}

static void write_parts(const assay_model_spec *spec, const char *folder, const char *stranger)
{
    static const float zeros[256 * 4]; /* the largest: a router */
    char path[128];
    assay_tensorwriter *w = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    expect_ok(assay_tensorwriter_create(&w, path));
    for (int64_t i = 0; i < spec->n_params; i++)
        for (int k = 0; k < spec->params[i].n_parts; k++) {
            const assay_hf_part *p = &spec->params[i].parts[k];
            expect_ok(assay_tensorwriter_add_ref(w, p->name, ASSAY_F32, p->shape, p->ndim, zeros));
        }
    if (stranger != NULL)
        expect_ok(assay_tensorwriter_add_ref(w, stranger, ASSAY_F32, (const int64_t[]){4}, 1, zeros));
    expect_ok(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

Test(core_spec_check, strangers_are_named)
{
    static const struct {
        const char *stranger, *words; /* NULL: it is the model's, or may lie there */
    } rows[] = {
        {NULL, NULL},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
        {"a", "tensor 'a' has no place"},
        {"zz", "tensor 'zz' has no place"},
        {"model.layers.1.enorm.weight", "'model.layers.1.enorm.weight' has no place in this model (mixtral): "
                                        "it has layers 0 to 0, and those of multi-token"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[64];
        bool stored = false;
        assay_model_spec *spec = many_experts(1);
        make_scratch(folder);
        write_parts(spec, folder, rows[i].stranger);
        assay_error_clear();
        const assay_status st = assay_spec_check_folder(spec, folder, &stored);
        cr_expect(stored);
        cr_expect_eq(st, rows[i].words != NULL ? ASSAY_MISMATCH : ASSAY_OK, "%s", rows[i].stranger);
        cr_expect(rows[i].words == NULL || strstr(assay_error_message(), rows[i].words) != NULL, "%s",
                  assay_error_message());
        assay_spec_destroy(spec);
        drop_scratch(folder);
    }
}

/* Each of 98,000 names was compared with all of the model's: 5 10^9 comparisons of long names. */
Test(core_spec_check, many_tensors_are_no_trap, .timeout = 100)
{
    char folder[64];
    bool stored = false;
    assay_model_spec *spec = many_experts(128);
    make_scratch(folder);
    write_parts(spec, folder, "zz");
    expect_error(assay_spec_check_folder(spec, folder, &stored), ASSAY_MISMATCH, "tensor 'zz' has no place");
    assay_spec_destroy(spec);
    drop_scratch(folder);
}
