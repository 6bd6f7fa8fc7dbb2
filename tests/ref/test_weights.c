/* Drawn weights of the reference: the formula of docs/CONVENTIONS.md at every global index, whatever the number of threads. */
#include "core/base/hash.h"
#include "core/base/philox.h"
#include "tests/support/ref_model.h"
#include <omp.h>

static const char config_text[] =
    "{\"model_type\":\"megatron\",\"num_layers\":1,\"hidden_size\":256,\"ffn_hidden_size\":512,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":401,"
    "\"max_position_embeddings\":64,\"layernorm_epsilon\":1e-5}";

static void expect_formula(double constant_std)
{
    static const int threads[] = {1, 2, 5};
    json_t *root = NULL;
    assay_model_spec *spec = NULL;
    assay_model_config *config = calloc(1, sizeof *config);
    require_ok(assay_json_parse(&root, config_text, strlen(config_text), "config"), "config");
    require_ok(assay_config_from_json(root, "config", config), "config");
    config->init_constant_std = constant_std;
    require_ok(assay_spec_build(config, &spec), "spec");
    json_decref(root);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        double **weights = NULL;
        int64_t drawn = 0, bad = 0;
        omp_set_num_threads(threads[t]);
        require_ok(ref_weights_load(spec, NULL, NULL, 77, &weights), "weights");
        for (int64_t i = 0; i < spec->n_params; i++) {
            const assay_param_spec *p = &spec->params[i];
            const double scale = ref_init_std(p, config) * ASSAY_PHILOX_UNIT;
            int64_t n;
            cr_assert(assay_shape_count(p->shape, p->ndim, &n));
            for (int64_t k = 0; k < n; k++) {
                const bool random = scale > 0.0;
                const int64_t z = assay_philox_normal4(77, assay_name_hash(p->name), (uint64_t)k);
                const double middle = p->init == ASSAY_INIT_ONE ? 1.0 : 0.0;
                const double expected = (double)(float)(middle + (double)z * scale);
                drawn += random;
                bad += weights[i][k] != expected;
            }
        }
        cr_expect_eq(bad, 0, "%d threads: %lld elements", threads[t], (long long)bad);
        cr_expect_gt(drawn, 100000, "large enough for several threads");
        ref_weights_free(spec, weights);
    }
    assay_spec_destroy(spec);
    free(config);
}

/* Ones and zeros, too, where they are drawn around those. */
Test(ref_weights, every_element_is_the_formula_whatever_the_threads)
{
    expect_formula(0.0);
    expect_formula(0.1);
}
