/* The objective and its gradient, threads, routing replay, bad input, and the file that `assay step` writes.
 */
#include "core/files/tensorfile.h"
#include "tests/support/ref_model.h"
#include <fcntl.h>
#include <omp.h>
#include <sys/stat.h>

static const char *const moe_model =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"vocab_size\":23,\"add_qkv_bias\":true,"
    "\"add_proj_bias\":true,\"add_mlp_bias\":true,\"qk_layernorm\":true,\"init_method_std\":0.3,"
    "\"window\":[0,4,0],\"layer_is_moe\":[true,false,true],\"num_moe_experts\":6,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":8,\"moe_router_score_function\":\"%s\",\"moe_router_pre_softmax\":%s,"
    "\"norm_topk_prob\":%s,\"moe_shared_expert_intermediate_size\":6,\"moe_shared_expert_gate\":true}";

static void open_moe(model_case *c, const char *score, const char *pre, const char *norm, int64_t steps,
                     int64_t m)
{
    char json[2048];
    snprintf(json, sizeof json, moe_model, score, pre, norm);
    open_drawn(c, json, steps, m, 2, 9);
    c->options.lr = 1e-3;
    c->options.clip_grad = 1.0;
    c->options.moe_aux_loss_coeff.of[0] = 0.05;
    c->options.moe_z_loss_coeff = 0.01;
}

/* --- weights without a gradient ------------------------------------------------------------------------------ */

/* Freezing weights changes no other gradient by a bit; they have none, do not count in the norm and stay. */
Test(ref_train, frozen_weights_have_no_gradient)
{
    model_case c;
    ref_run_result all, some;
    double sum = 0.0;
    open_moe(&c, "softmax", "true", "true", 2, 2);
    c.options.clip_grad = 0.0;
    require_ok(ref_run(&c.run, c.weights, &all), "all");
    for (int64_t i = 0; i < c.spec->n_params; i++)
        c.spec->params[i].frozen = i % 2 == 0;
    require_ok(ref_run(&c.run, c.weights, &some), "frozen");
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const assay_param_spec *p = &c.spec->params[i];
        const ref_named_tensor *g = ref_result_find(&all, "grad", p->name, 0);
        const ref_named_tensor *mine = ref_result_find(&some, "grad", p->name, 0);
        const ref_named_tensor *w = ref_result_find(&some, "weight", p->name, 1);
        if (!p->trained)
            continue;
        cr_assert(g && w, "%s", p->name);
        cr_assert_eq(mine != NULL, !p->frozen, "%s", p->name);
        cr_assert_eq(ref_result_find(&some, "exp_avg", p->name, 1) != NULL, !p->frozen, "%s", p->name);
        for (int64_t k = 0; k < named_count(g); k++) {
            if (p->frozen) {
                cr_assert_eq(w->data[k], c.weights[i][k], "%s moved", p->name);
                continue;
            }
            cr_assert_eq(mine->data[k], g->data[k], "%s element %ld", p->name, (long)k);
            sum += g->data[k] * g->data[k];
        }
    }
    cr_expect(fabs(some.grad_norm[0] / sqrt(sum) - 1.0) < 1e-14);
    cr_expect(some.grad_norm[0] < all.grad_norm[0]);
    ref_run_result_free(&all);
    ref_run_result_free(&some);
    close_case(&c);
}

/* --- gradient = derivative of the objective ----------------------------------------------------------------- */

static double objective(model_case *c)
{
    ref_run_result r;
    require_ok(ref_run(&c->run, c->weights, &r), "objective");
    const double f = r.loss[0] + r.aux_loss[0] + r.z_loss[0];
    ref_run_result_free(&r);
    return f;
}

static void check_differences(model_case *c)
{
    ref_run_result r;
    c->run.want_states = false;
    require_ok(ref_run(&c->run, c->weights, &r), "gradient");
    cr_expect(r.aux_loss[0] > 0.0 && r.z_loss[0] > 0.0);
    c->run.want_grads = false;
    for (int64_t i = 0; i < c->spec->n_params; i++) {
        const ref_named_tensor *g = ref_result_find(&r, "grad", c->spec->params[i].name, 0);
        if (!c->spec->params[i].trained)
            continue;
        cr_assert_not_null(g);
        const int64_t n = named_count(g);
        for (uint64_t k = 0; k < 2; k++) {
            const int64_t at = (int64_t)assay_philox_below(11, (uint64_t)i, k, (uint64_t)n);
            const double w = c->weights[i][at], h = 1e-4;
            /* weights are masters, rounded to nothing in fp64 */
            c->weights[i][at] = w + h;
            const double up = objective(c);
            c->weights[i][at] = w - h;
            const double down = objective(c);
            c->weights[i][at] = w;
            const double numeric = (up - down) / (2.0 * h);
            cr_expect(fabs(numeric - g->data[at]) <= 1e-6 + 1e-4 * fabs(g->data[at]),
                      "%s[%ld]: gradient %.9g, central difference %.9g", g->name, (long)at, g->data[at],
                      numeric);
        }
    }
    ref_run_result_free(&r);
    close_case(c);
}

Test(ref_train, differences_softmax_normalised)
{
    model_case c;
    open_moe(&c, "softmax", "true", "true", 1, 2);
    check_differences(&c);
}
Test(ref_train, differences_softmax_post)
{
    model_case c;
    open_moe(&c, "softmax", "false", "false", 1, 2);
    check_differences(&c);
}
Test(ref_train, differences_sigmoid)
{
    model_case c;
    open_moe(&c, "sigmoid", "false", "true", 1, 2);
    check_differences(&c);
}

/* --- contracts ---------------------------------------------------------------------------------------------- */

/* Gradients and losses do not depend on how a step is cut into microbatches (no aux losses: they do). */
Test(ref_train, accumulation_is_one_big_batch)
{
    model_case c;
    ref_run_result a, b;
    open_moe(&c, "softmax", "true", "true", 1, 4);
    c.options.moe_aux_loss_coeff.of[0] = c.options.moe_z_loss_coeff = 0.0;
    require_ok(ref_run(&c.run, c.weights, &a), "4 x 2 rows");
    c.batches.microbatches = 1;
    c.batches.b = 8;
    require_ok(ref_run(&c.run, c.weights, &b), "1 x 8 rows");
    compare_results(&a, &b, 1e-12, "accumulation");
    ref_run_result_free(&a);
    ref_run_result_free(&b);
    close_case(&c);
}

Test(ref_train, threads_change_no_bit)
{
    model_case c;
    ref_run_result a, b;
    open_golden(&c, "qwen3_moe", "train_batch.safetensors");
    c.options.moe_aux_loss_coeff.of[0] = 0.01;
    omp_set_num_threads(1);
    require_ok(ref_run(&c.run, c.weights, &a), "one thread");
    omp_set_num_threads(2);
    require_ok(ref_run(&c.run, c.weights, &b), "two threads");
    for (int64_t i = 0; i < a.n_tensors; i++)
        cr_expect_eq(
            memcmp(a.tensors[i].data, b.tensors[i].data, (size_t)named_count(&a.tensors[i]) * sizeof(double)),
            0, "%s %s", a.tensors[i].kind, a.tensors[i].name);
    cr_expect_eq(memcmp(a.loss, b.loss, (size_t)a.steps * sizeof(double)), 0);
    cr_expect_eq(memcmp(a.grad_norm, b.grad_norm, (size_t)a.steps * sizeof(double)), 0);
    ref_run_result_free(&a);
    ref_run_result_free(&b);
    close_case(&c);
}

/* Expert bias moves by the rate, towards balance, once per step. */
Test(ref_train, expert_bias_moves_once_per_step)
{
    model_case c;
    ref_run_result r;
    char json[2048];
    snprintf(json, sizeof json, moe_model, "sigmoid", "false", "true");
    char *brace = strrchr(json, '}');
    strcpy(brace, ",\"moe_router_enable_expert_bias\":true}");
    open_drawn(&c, json, 3, 2, 2, 9);
    c.options.moe_router_bias_update_rate = 0.125;
    require_ok(ref_run(&c.run, c.weights, &r), "bias");
    const ref_named_tensor *bias =
        ref_result_find(&r, "expert_bias", "decoder.layers.0.mlp.router.expert_bias", 2);
    cr_assert_not_null(bias);
    int moved = 0;
    for (int64_t i = 0; i < 6; i++) {
        const double steps = bias->data[i] / 0.125;
        cr_expect(steps == floor(steps) && fabs(steps) <= 3.0, "bias[%ld] = %g", (long)i, bias->data[i]);
        moved += bias->data[i] != 0.0;
    }
    cr_expect(moved > 0);
    ref_run_result_free(&r);
    close_case(&c);
}

/* --- routing replay ----------------------------------------------------------------------------------------- */

typedef struct replay_plan {
    int64_t k, shift, calls, bad_expert;
} replay_plan;

/* Token t goes to experts t+shift, t+shift+1 modulo 6. */
static bool round_robin(void *user, int64_t step, int64_t microbatch, int64_t layer, ref_routing_map map,
                        int64_t *indices, int64_t t, int64_t k)
{
    replay_plan *p = user;
    (void)step;
    (void)microbatch;
    if (layer != 0 || map != REF_ROUTING_CHOICE)
        return false;
    p->calls++;
    for (int64_t i = 0; i < t; i++) {
        const int64_t first = (i + p->shift) % 6, second = (first + 1) % 6;
        indices[i * k] = first < second ? first : second;
        indices[i * k + 1] = first < second ? second : first;
    }
    if (p->bad_expert != 0)
        indices[1] = p->bad_expert;
    return true;
}

Test(ref_train, replayed_routing_is_followed_in_every_layout)
{
    static const char *const layouts[] = {"tp2,sp", "dp2,ep2", "tp2,ep2", "tp2,sp,ep2,dp2"};
    model_case c;
    ref_run_result own, whole;
    replay_plan plan = {.shift = 1};
    open_moe(&c, "softmax", "true", "true", 1, 1);
    require_ok(ref_run(&c.run, c.weights, &own), "own choice");
    c.run.routing = round_robin;
    c.run.routing_user = &plan;
    require_ok(ref_run(&c.run, c.weights, &whole), "replayed");
    cr_expect_eq(plan.calls, 1);
    cr_expect(fabs(own.loss[0] - whole.loss[0]) > 1e-6, "another routing, another loss");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        expect_layout(&c, &whole, layouts[i]);
    ref_run_result_free(&own);
    ref_run_result_free(&whole);
    close_case(&c);
}

Test(ref_train, replayed_routing_is_checked)
{
    static const int64_t bad[] = {6, -1, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        model_case c;
        ref_run_result r;
        replay_plan plan = {.bad_expert = bad[i]};
        open_moe(&c, "softmax", "true", "true", 1, 1);
        c.run.routing = round_robin;
        c.run.routing_user = &plan;
        cr_expect_eq(ref_run(&c.run, c.weights, &r), ASSAY_INVALID_ARGUMENT);
        cr_expect_not_null(strstr(assay_error_message(), "token 0"), "%s", assay_error_message());
        close_case(&c);
    }
}

/* --- bad input ---------------------------------------------------------------------------------------------- */

static void expect_step_fails(assay_train_options *o, assay_status want, const char *fragment)
{
    struct stat sb;
    unlink(o->out);
    const assay_status st = ref_step(o);
    cr_expect_eq(st, want, "%s: status %s", assay_error_message(), assay_status_name(st));
    cr_expect_not_null(strstr(assay_error_message(), fragment), "'%s' misses '%s'", assay_error_message(),
                       fragment);
    cr_expect(stat(o->out, &sb) != 0, "a failed step left %s", o->out);
}

static void step_options(assay_train_options *o, const char *model, const char *batch, const char *layout,
                         const char *out)
{
    assay_train_options_default(o);
    golden_path(o->model, model, "");
    golden_path(o->batch, model, batch);
    snprintf(o->layout, sizeof o->layout, "%s", layout);
    snprintf(o->out, sizeof o->out, "/tmp/assay-test-%ld-%s.safetensors", (long)getpid(), out);
    o->precision = ASSAY_PRECISION_FP64;
}

/* --- masters that somebody else knows ----------------------------------------------------------------------- */

/* Every master of row 2 and of no other is set; which one it is does not matter. */
static const double *master_given;

static bool give_a_master(void *user, int64_t step, int64_t param, double *master, int64_t n)
{
    int *asked = user;
    (*asked)++;
    if (step != 0 || param != 2)
        return false;
    memcpy(master, master_given, (size_t)n * sizeof *master);
    return true;
}

/* The next step begins with it; the result holds what the reference's own update made of the step before. */
Test(ref_train, replayed_masters_are_gone_on_from)
{
    model_case c;
    ref_run_result own, replayed, behind;
    int asked = 0;
    open_moe(&c, "softmax", "true", "true", 2, 1);
    require_ok(ref_run(&c.run, c.weights, &own), "own masters");
    const char *name = c.spec->params[2].name;
    const int64_t n = named_count(ref_result_find(&own, "weight", name, 1));
    double *given = malloc((size_t)n * sizeof *given);
    for (int64_t i = 0; i < n; i++)
        given[i] = c.weights[2][i] * 1.25;
    master_given = given;
    c.run.master = give_a_master;
    c.run.routing_user = &asked;
    require_ok(ref_run(&c.run, c.weights, &replayed), "replayed");
    cr_expect_eq(asked, c.spec->n_params, "behind the first of two steps");
    const ref_named_tensor *kept = ref_result_find(&replayed, "weight", name, 0);
    cr_assert_not_null(kept);
    cr_expect_gt(relative_error(kept->data, given, n), 0.1, "the result has its own");
    cr_expect_gt(fabs(own.loss[1] - replayed.loss[1]), 1e-6);
    cr_expect_eq(own.loss[0], replayed.loss[0]);

    /* The second step alone, from the weights that the first left, and from the given one. */
    double **weights = calloc((size_t)c.spec->n_params, sizeof *weights);
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const ref_named_tensor *w = ref_result_find(&replayed, "weight", c.spec->params[i].name, 0);
        weights[i] = i == 2 ? given : w ? w->data : c.weights[i];
    }
    model_case second = c;
    second.run.batches = &second.batches;
    second.run.options = &second.options;
    second.run.master = NULL;
    second.batches.steps = 1;
    const int64_t step = c.batches.microbatches * c.batches.b * c.batches.s;
    second.batches.input_ids += step;
    second.batches.labels += step;
    require_ok(ref_run(&second.run, weights, &behind), "the second step");
    cr_expect_float_eq(behind.loss[0], replayed.loss[1], 1e-12);
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const ref_named_tensor *a = ref_result_find(&behind, "grad", c.spec->params[i].name, 0),
                               *b = ref_result_find(&replayed, "grad", c.spec->params[i].name, 1);
        if (a && b)
            cr_expect_leq(relative_error(a->data, b->data, named_count(a)), 1e-12, "%s", a->name);
    }
    ref_run_result_free(&own);
    ref_run_result_free(&replayed);
    ref_run_result_free(&behind);
    free(weights);
    free(given);
    close_case(&c);
}

/* Replicas would differ. */
Test(ref_train, masters_are_replayed_on_one_rank)
{
    model_case c;
    ref_run_result r;
    open_moe(&c, "softmax", "true", "true", 2, 1);
    set_layout(&c, "tp2");
    c.run.master = give_a_master;
    cr_expect_eq(ref_run(&c.run, c.weights, &r), ASSAY_UNSUPPORTED);
    cr_expect(strstr(assay_error_message(), "found a layout of 2 ranks"), "%s", assay_error_message());
    assay_error_clear();
    close_case(&c);
}

Test(ref_train, impossible_layouts)
{
    assay_train_options o;
    step_options(&o, "llama", "batch.safetensors", "tp3", "layout");
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "tp3");
    step_options(&o, "llama", "batch.safetensors", "ep2", "layout");
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "ep2");
    step_options(&o, "llama", "batch.safetensors", "dp3", "layout");
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "data_parallel_size 3");
    step_options(&o, "llama", "batch.safetensors", "pp3", "layout");
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "pp3");
}

Test(ref_train, missing_and_misshapen_weights)
{
    assay_train_options o;
    char dir[64] = "/tmp/assay-test-XXXXXX", command[3 * ASSAY_PATH], path[128];
    cr_assert_not_null(mkdtemp(dir));
    step_options(&o, "llama", "batch.safetensors", "1", "weights");
    /* The configuration of llama with the weights of qwen3. */
    snprintf(command, sizeof command,
             "cp %s/golden/models/llama/config.json %s && cp %s/golden/models/qwen3/model.safetensors %s",
             ASSAY_SOURCE_DIR, dir, ASSAY_SOURCE_DIR, dir);
    cr_assert_eq(system(command), 0);
    snprintf(o.model, sizeof o.model, "%s", dir);
    expect_step_fails(&o, ASSAY_MISMATCH, "model.embed_tokens.weight");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    cr_assert_eq(truncate(path, 1000), 0);
    expect_step_fails(&o, ASSAY_FORMAT, "model.safetensors");
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
    step_options(&o, "llama", "batch.safetensors", "1", "weights");
    snprintf(o.model, sizeof o.model, "/nowhere");
    expect_step_fails(&o, ASSAY_NOT_FOUND, "/nowhere");
}

Test(ref_train, tokens_of_another_vocabulary)
{
    assay_train_options o;
    step_options(&o, "qwen3_moe", "batch.safetensors", "1", "vocab");
    golden_path(o.batch, "llama", "batch.safetensors"); /* 131 tokens, the model has 61 */
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "input_ids");
}

Test(ref_train, a_step_without_targets)
{
    model_case c;
    ref_run_result r;
    open_moe(&c, "softmax", "true", "true", 2, 2);
    const int64_t n = c.batches.microbatches * c.batches.b * c.batches.s;
    for (int64_t i = 0; i < n; i++) /* the label of the first position counts for nothing */
        c.batches.labels[n + i] = i % c.batches.s == 0 ? 1 : ASSAY_IGNORE_INDEX;
    cr_expect_eq(ref_run(&c.run, c.weights, &r), ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "step 1"), "%s", assay_error_message());
    cr_expect_null(r.loss);
    close_case(&c);
}

/* --- assay step --------------------------------------------------------------------------------------------- */

/* The file of a sharded step holds the tensors and numbers of the golden file, in Hugging Face names. */
Test(ref_train, step_writes_the_contract_in_every_layout)
{
    static const char *const layouts[] = {"1", "dp2", "tp2,sp", "tp2,sp,ep2,dp2", "pp2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        assay_train_options o;
        assay_tensorfile *f, *golden;
        char path[ASSAY_PATH];
        step_options(&o, "qwen3_moe", "batch.safetensors", layouts[i], "step");
        require_ok(ref_step(&o), layouts[i]);
        require_ok(assay_tensorfile_open(&f, o.out), "result");
        require_ok(assay_tensorfile_open(&golden, golden_path(path, "qwen3_moe", "golden.safetensors")),
                   "golden");
        cr_expect_eq(assay_tensorfile_count(f), assay_tensorfile_count(golden));
        for (int64_t t = 0; t < assay_tensorfile_count(golden); t++) {
            const assay_tensor_info *want = assay_tensorfile_at(golden, t), *got;
            require_ok(assay_tensorfile_get(f, want->name, ASSAY_F64, want->shape, want->ndim, &got),
                       want->name);
            double *a = malloc(want->bytes + 8), *b = malloc(want->bytes + 8);
            memcpy(a, got->data, want->bytes);
            memcpy(b, want->data, want->bytes);
            cr_expect(relative_error(a, b, want->count) <= 1e-10, "%s: %s", layouts[i], want->name);
            free(a);
            free(b);
        }
        assay_tensorfile_close(f);
        assay_tensorfile_close(golden);
        unlink(o.out);
    }
}

Test(ref_train, step_of_training_writes_weights)
{
    assay_train_options o;
    assay_tensorfile *f;
    const assay_tensor_info *info;
    const int64_t three = 3, two = 2;
    step_options(&o, "llama", "train_batch.safetensors", "tp2,dp2,zero1", "train");
    require_ok(ref_step(&o), "step");
    require_ok(assay_tensorfile_open(&f, o.out), "result");
    require_ok(assay_tensorfile_get(f, "loss", ASSAY_F64, &three, 1, &info), "loss");
    require_ok(assay_tensorfile_get(f, "grad_norm", ASSAY_F64, &three, 1, &info), "grad_norm");
    cr_expect_not_null(assay_tensorfile_find(f, "weight.model.embed_tokens.weight"));
    cr_expect_null(assay_tensorfile_find(f, "logits"));
    assay_tensorfile_close(f);
    o.train_iters = 2;
    require_ok(ref_step(&o), "two steps");
    require_ok(assay_tensorfile_open(&f, o.out), "result");
    require_ok(assay_tensorfile_get(f, "loss", ASSAY_F64, &two, 1, &info), "loss");
    assay_tensorfile_close(f);
    o.train_iters = 4;
    expect_step_fails(&o, ASSAY_INVALID_ARGUMENT, "train_iters");
    unlink(o.out);
}
