/* Laws of moe_router_dtype: `model` rounds the logits, and nothing else of a router, to what activations are stored in; where that is
 * the router's own type the two words are the same bits. */
#include "ref/replay.h"
#include "tests/support/ref_model.h"

static const char *const words[] = {"fp32", "model"};

typedef struct stored {
    int64_t logits, narrow_logits, probs, narrow_probs; /* elements, those that BF16 holds */
    double loss;
} stored;

static int64_t count(const assay_trace_tensor *t, int64_t *narrow)
{
    const double *x = t->data;
    int64_t n = 1;
    for (int i = 0; i < t->shard.ndim; i++)
        n *= t->shard.local_shape[i];
    for (int64_t i = 0; i < n; i++)
        *narrow += ref_round(x[i], ASSAY_BF16) == x[i];
    return n;
}

static stored run(assay_precision precision, const char *word)
{
    static const char gating[] = "mlp.router.gating.y", probs[] = "mlp.router.probs";
    model_case c;
    ref_run_result r;
    assay_trace *t;
    stored s = {0};
    char dir[64] = "/tmp/assay-test-XXXXXX", command[128];
    open_golden(&c, "qwen3_moe", "batch.safetensors");
    c.run.policy.precision = precision;
    c.options.moe_aux_loss_coeff.of[0] = 0.02;
    c.options.moe_z_loss_coeff = 0.003;
    require_ok(assay_train_option_set(&c.options, "moe-router-dtype", word), word);
    cr_assert_not_null(mkdtemp(dir));
    json_t *header = json_pack("{s:s}", "engine", "ref");
    require_ok(assay_trace_writer_open(&c.run.trace, dir, 0, 1, header, false), "trace");
    json_decref(header);
    require_ok(ref_run(&c.run, c.weights, &r), "run");
    require_ok(assay_trace_writer_close(c.run.trace), "close");
    assay_trace_writer_destroy(c.run.trace);
    require_ok(assay_trace_open(&t, dir, true), "open");
    for (int64_t j = 0; j < assay_trace_n_tensors(t, 0); j++) {
        const assay_trace_tensor *x = assay_trace_tensor_at(t, 0, j);
        if (x->dtype != ASSAY_F64 || x->phase != ASSAY_PHASE_FORWARD)
            continue;
        const size_t length = strlen(x->name);
        if (length > sizeof gating && strcmp(x->name + length - (sizeof gating - 1), gating) == 0)
            s.logits += count(x, &s.narrow_logits);
        if (length > sizeof probs && strcmp(x->name + length - (sizeof probs - 1), probs) == 0)
            s.probs += count(x, &s.narrow_probs);
    }
    s.loss = r.loss[0];
    assay_trace_close(t);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
    ref_run_result_free(&r);
    close_case(&c);
    return s;
}

Test(ref_router_dtype, logits_alone_are_rounded)
{
    for (int i = 0; i < 2; i++) {
        const stored s = run(ASSAY_PRECISION_BF16, words[i]);
        cr_expect(s.logits > 0 && s.probs > 0);
        if (i == 1)
            cr_expect_eq(s.narrow_logits, s.logits, "%lld of %lld logits", (long long)s.narrow_logits,
                         (long long)s.logits);
        else
            cr_expect_lt(s.narrow_logits, s.logits / 8);
        cr_expect_lt(s.narrow_probs, s.probs / 8);
    }
}

Test(ref_router_dtype, words_differ_only_where_activations_are_narrow)
{
    for (int p = 0; p < ASSAY_PRECISION_COUNT; p++) {
        const double wide = run((assay_precision)p, words[0]).loss,
                     model = run((assay_precision)p, words[1]).loss;
        cr_expect(p == ASSAY_PRECISION_BF16 ? wide != model : wide == model, "%s: %.17g and %.17g",
                  assay_precision_name((assay_precision)p), wide, model);
    }
}
