/* Laws: the checkpoint and the result file of a run are what its trace says; families that changed places, a
 * changed header, a doubled loss, another weight and a tensor too much are named. */
#include "core/files/checkpoint.h"
#include "tests/support/plan.h"

static parity_report *judge(const plan_cell *c, const char *checkpoint, const char *out)
{
    parity_report *r = new_report();
    must(parity_check_saved(c->trace, checkpoint, out, c->spec, &c->options, &c->batches, r));
    return r;
}

Test(parity_saved, an_honest_run_left_what_its_trace_says)
{
    static const char *const layouts[] = {"1", "tp2,sp,ep2", "pp2,dp2,zero1"};
    for (int i = 0; i < 3; i++) {
        plan_cell c;
        plan_cell_make(&c, layouts[i], i == 1 ? ASSAY_PRECISION_BF16 : ASSAY_PRECISION_FP32);
        parity_report *r = judge(&c, c.save, c.out);
        print_failures(r);
        cr_expect_eq(n_failed(r), 0, "%s", layouts[i]);
        cr_expect_gt(n_passed(r), 100);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

/* --- checkpoint --------------------------------------------------------------------------------------------- */

typedef struct change {
    const char *from, *to; /* what family `to` gets; NULL: itself */
    const char *precision; /* of the header, NULL: as it was */
    bool other_lr;         /* of the recipe in the header */
    int64_t later;         /* steps that its header has too many */
    const char *layout;    /* of the header, NULL: as it was */
    bool restarted;        /* schedule and data count from a load */
    bool dropped;          /* the second moments are left out */
} change;

static void copy_state(const assay_checkpoint *c, int64_t i, const change *k, assay_checkpoint_writer *w)
{
    const char *family, *name, *read;
    assay_dtype dtype;
    assay_shard whole;
    assay_checkpoint_at(c, i, &family, &name, &dtype, &whole);
    if (k->dropped && strcmp(family, "exp_avg_sq") == 0)
        return;
    read = family;
    if (k->from && strcmp(family, k->to) == 0)
        read = k->from;
    else if (k->from && strcmp(family, k->from) == 0)
        read = k->to;
    void *data = calloc((size_t)assay_shard_count(&whole) + 1, 4);
    must(assay_checkpoint_read(c, read, name, dtype, &whole, data));
    must(assay_checkpoint_add(w, family, name, dtype, &whole, data, true));
    free(data);
}

static void copy_checkpoint(const char *from, const char *to, const change *k)
{
    assay_checkpoint *c;
    assay_checkpoint_writer *w;
    must(assay_checkpoint_open(&c, from));
    const int64_t step = json_integer_value(json_object_get(assay_checkpoint_header(c), "step")) + k->later;
    assay_checkpoint_content content = *assay_checkpoint_content_of(c);
    content.n_states = k->dropped ? 1 : content.n_states;
    must(assay_checkpoint_writer_open(&w, to, assay_checkpoint_job(), step, 0, 1, &content));
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++)
        copy_state(c, i, k, w);
    json_t *header = json_deep_copy(assay_checkpoint_header(c));
    if (k->precision)
        json_object_set_new(header, "precision", json_string(k->precision));
    if (k->restarted) {
        json_object_set_new(json_object_get(header, "scheduler"), "num_steps", json_integer(1));
        json_object_set_new(json_object_get(header, "data"), "consumed_samples", json_integer(1));
    }
    if (k->layout)
        json_object_set_new(header, "layout", json_string(k->layout));
    if (k->other_lr)
        json_object_set_new(json_object_get(header, "training"), "lr", json_real(0.5));
    must(assay_checkpoint_write_alone(w, header));
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
    assay_checkpoint_close(c);
}

static void expect_checkpoint(const plan_cell *c, const change *k, const char *instance, const char *text,
                              int64_t failures)
{
    char dir[256];
    copy_checkpoint(c->save, fresh_path(dir, "copy"), k);
    parity_report *r = judge(c, dir, NULL);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_str_eq(f->instance, instance, "%s", f->message);
    cr_assert(strstr(f->message, text), "%s", f->message);
    cr_assert_eq(n_failed(r), failures, "%lld failures", (long long)n_failed(r));
    parity_report_destroy(r);
    remove_path(dir);
}

Test(parity_saved, families_that_changed_places_are_named)
{
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_BF16);
    int64_t trained = 0;
    for (int64_t i = 0; i < c.spec->n_params; i++)
        trained += c.spec->params[i].trained;
    expect_checkpoint(&c, &(change){.from = "exp_avg", .to = "exp_avg_sq"}, "exp_avg",
                      "outside their allowance", 2 * trained);
    expect_checkpoint(&c, &(change){.later = -1}, "header", "step: expected 2, found 1", 1);
    expect_checkpoint(&c, &(change){.layout = "dp2"}, "header", "layout: expected 1, found dp2", 1);
    expect_checkpoint(&c, &(change){.precision = "fp32"}, "header", "expected bf16, found fp32", 1);
    expect_checkpoint(&c, &(change){.other_lr = true}, "header", "lr: 0.5 there", 1);
    expect_checkpoint(&c, &(change){.dropped = true}, "header", "states: expected", trained + 2);
    plan_cell_free(&c);
}

/* The header of a checkpoint that no trace was recorded of: that of a run that was loaded, or moved. */
Test(parity_saved, a_header_alone_is_held_to_the_run_that_wrote_it)
{
    static const change changes[] = {{.later = 0},       {.later = -1},         {.layout = "dp2"},
                                     {.other_lr = true}, {.precision = "fp32"}, {.restarted = true}};
    static const char *const items[] = {NULL,       "step",      "layout",
                                        "training", "precision", "scheduler.num_steps"};
    static const int failures[] = {0, 1, 1, 1, 1, 2};
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_BF16);
    for (int i = 0; i < 6; i++) {
        char dir[256];
        const parity_header wanted = {
            .options = &c.options, .batches = &c.batches, .spec = c.spec, .layout = "tp1", .step = 2};
        copy_checkpoint(c.save, fresh_path(dir, "copy"), &changes[i]);
        parity_report *r = new_report();
        must(parity_check_header(dir, "1 -> tp1", &wanted, r));
        const parity_claim *f = first_failure(r);
        cr_assert_eq(parity_report_count(r), 12);
        cr_assert_eq(n_failed(r), failures[i]);
        if (i > 0)
            cr_assert(strcmp(f->tensor, items[i]) == 0 && strcmp(f->op, "1 -> tp1") == 0, "%s", f->message);
        parity_report_destroy(r);
        remove_path(dir);
    }
    plan_cell_free(&c);
}

/* The claims of a header, one of its members changed; text: what the one failure says, NULL: there is none. */
static void expect_header(const plan_cell *c, const json_t *header, const char *dir, const char *item,
                          const char *text)
{
    parity_result base;
    parity_report *r = new_report();
    parity_result_init(&base);
    base.check = PARITY_CHECK_CHECKPOINT;
    const parity_header wanted = {.options = &c->options,
                                  .batches = &c->batches,
                                  .spec = c->spec,
                                  .layout = "1",
                                  .dir = dir,
                                  .step = 2};
    must(parity_header_judge(header, &wanted, &base, r));
    print_failures(r);
    cr_assert_eq(n_failed(r), text != NULL);
    const parity_claim *f = first_failure(r);
    if (text != NULL)
        cr_expect(strcmp(f->tensor, item) == 0 && strstr(f->message, text) != NULL, "%s: %s", item,
                  f->message);
    parity_report_destroy(r);
}

Test(parity_saved, every_member_of_a_header_is_held)
{
    static const struct {
        const char *object, *member, *value, *item, *text;
    } rows[] = {
        {"scheduler", "learning_rate", "0.5", "scheduler.learning_rate", "of step 2, found 0.5"},
        {"scheduler", "learning_rate", "null", "scheduler.learning_rate", "found 0"},
        {"loss_scaler", "loss_scale", "2.0", "loss_scaler", "not dynamic, found 2"},
        {"loss_scaler", "dynamic", "true", "loss_scaler", ", dynamic"},
        {"random", "dropout_seed", "77", "random", "dropout_seed: expected"},
        {"random", "more", "1", "random", "more members"},
        {"content", "weights_only", "true", "content", "weights_only: expected false, found true"},
        {"content", "max_shard_size", "17", "content", "max_shard_size: expected 5000000000"},
        {"content", "weight", "\"F64\"", "content", "weight: expected"},
        {"content", "states", "[]", "content", "states: expected"},
        {"model", "hidden_size", "17", "model", "hidden_size: expected 16, found 17"},
        {"model", "clip_qkv", "null", "model", "clip_qkv: expected 0.5, found null"},
    };
    for (int k = 0; k < 2; k++) {
        plan_cell c;
        assay_checkpoint *file;
        plan_cell_make(&c, "1", k == 0 ? ASSAY_PRECISION_FP32 : ASSAY_PRECISION_BF16);
        must(assay_checkpoint_open(&file, c.save));
        expect_header(&c, assay_checkpoint_header(file), c.save, "", NULL);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            json_t *header = json_deep_copy(assay_checkpoint_header(file));
            json_object_set_new(json_object_get(header, rows[i].object), rows[i].member,
                                json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
            expect_header(&c, header, c.save, rows[i].item, rows[i].text);
            json_decref(header);
        }
        assay_checkpoint_close(file);
        plan_cell_free(&c);
    }
}

/* What transformers makes of the folder: its config.json, which no tensor depends on. */
Test(parity_saved, config_json_is_the_model_of_the_run)
{
    static const struct {
        const char *member, *value, *text;
    } rows[] = {{"layernorm_epsilon", "0.5", "layernorm_epsilon differs"},
                {"moe_router_topk", "1", "differs"},
                {"model_type", "\"llama\"", "config.json"},
                {NULL, "{}", "model_type: missing"}};
    plan_cell c;
    assay_checkpoint *file;
    char dir[256], path[300];
    plan_cell_make(&c, "1", ASSAY_PRECISION_FP32);
    must(assay_checkpoint_open(&file, c.save));
    must(assay_mkdir_p(fresh_path(dir, "config")));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *config = NULL;
        snprintf(path, sizeof path, "%s/config.json", c.save);
        must(assay_json_load(&config, path));
        if (rows[i].member != NULL)
            json_object_set_new(config, rows[i].member, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_clear(config);
        snprintf(path, sizeof path, "%s/config.json", dir);
        must(assay_json_save(config, path));
        json_decref(config);
        expect_header(&c, assay_checkpoint_header(file), dir, "config", rows[i].text);
    }
    remove_path(dir);
    assay_checkpoint_close(file);
    plan_cell_free(&c);
}

/* Half-way: the families of the first step, not of the second. */
Test(parity_saved, a_checkpoint_in_the_middle_is_held_to_its_own_step)
{
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_FP32);
    for (int64_t steps = 1; steps <= 2; steps++) {
        parity_report *r = new_report();
        must(parity_check_saved_after(c.trace, c.save, "half", steps, c.spec, &c.options, r));
        cr_expect(steps == 2 ? n_failed(r) == 0 && n_passed(r) > 50 : n_failed(r) > 50, "%lld: %lld",
                  (long long)steps, (long long)n_failed(r));
        if (steps == 1)
            cr_expect_eq(first_failure(r)->step, 0);
        parity_report_destroy(r);
    }
    plan_cell_free(&c);
}

/* --- result file -------------------------------------------------------------------------------------------- */

/* A copy in which every number of `name` is multiplied; "extra": a tensor that nobody asked for. */
static void copy_out(const char *from, const char *to, const char *name, float factor)
{
    assay_tensorfile *f;
    assay_tensorwriter *w;
    must(assay_tensorfile_open(&f, from));
    must(assay_tensorwriter_create(&w, to));
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        float *data = malloc(t->bytes + 4);
        memcpy(data, t->data, t->bytes);
        for (int64_t k = 0; k < t->count && strcmp(t->name, name) == 0; k++)
            if (t->dtype == ASSAY_I64)
                ((int64_t *)(void *)data)[k] += 1;
            else
                data[k] *= factor;
        must(assay_tensorwriter_add_copy(w, t->name, t->dtype, t->shape, t->ndim, data));
        free(data);
    }
    const int64_t one = 1;
    if (strcmp(name, "extra") == 0)
        must(assay_tensorwriter_add_copy(w, name, ASSAY_F32, &one, 1, &factor));
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    assay_tensorfile_close(f);
}

static void expect_out(const plan_cell *c, const char *name, const char *tensor, const char *text)
{
    char path[256];
    copy_out(c->out, fresh_path(path, "out.safetensors"), name, 2.0f);
    parity_report *r = judge(c, NULL, path);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f, "%s", name);
    cr_assert_str_eq(f->tensor, tensor);
    cr_assert_str_eq(f->op, "out");
    cr_assert(strstr(f->message, text), "%s", f->message);
    cr_assert_eq(n_failed(r), 1);
    parity_report_destroy(r);
    remove_path(path);
}

/* A run that goes on keeps the gradients of its own first step; this file, of a run from the beginning, those of step 0. */
Test(parity_saved, gradients_of_a_resumed_run_are_of_its_first_step)
{
    plan_cell c;
    plan_cell_make(&c, "pp2,dp2,zero1", ASSAY_PRECISION_FP32);
    for (int64_t step = 0; step < 2; step++) {
        parity_report *r = new_report();
        must(parity_check_resumed_gradients(c.trace, c.out, step, c.spec, &c.options, r));
        cr_expect(step == 0 ? n_failed(r) == 0 && n_passed(r) > 20 : n_passed(r) == 0 && n_failed(r) > 20,
                  "%lld: %lld, %lld", (long long)step, (long long)n_passed(r), (long long)n_failed(r));
        cr_expect_str_eq(parity_report_at(r, 0)->op, "restart");
        parity_report_destroy(r);
    }
    plan_cell_free(&c);
}

Test(parity_saved, a_doubled_loss_and_another_weight_are_named)
{
    for (int i = 0; i < 2; i++) {
        plan_cell c;
        plan_cell_make(&c, "1", i == 0 ? ASSAY_PRECISION_FP32 : ASSAY_PRECISION_BF16);
        assay_tensorfile *f;
        char weight[ASSAY_NAME] = "";
        must(assay_tensorfile_open(&f, c.out));
        for (int64_t k = 0; k < assay_tensorfile_count(f); k++)
            if (strncmp(assay_tensorfile_at(f, k)->name, "weight.", 7) == 0)
                snprintf(weight, sizeof weight, "%s", assay_tensorfile_at(f, k)->name);
        assay_tensorfile_close(f);
        expect_out(&c, "loss", "loss", "2 of 2 elements");
        expect_out(&c, "grad_norm", "grad_norm", "2 of 2 elements");
        expect_out(&c, weight, weight, "elements outside");
        expect_out(&c, "learning_rate", "learning_rate", "2 of 2 elements");
        static const char *const families[] = {"grad.", "exp_avg.", "exp_avg_sq."};
        expect_out(&c, "aux_loss", "aux_loss", "elements");
        expect_out(&c, "z_loss", "z_loss", "elements");
        for (int k = 0; k < 3; k++) {
            char name[ASSAY_NAME];
            snprintf(name, sizeof name, "%s%s", families[k], weight + strlen("weight."));
            expect_out(&c, name, name, "elements outside");
        }
        expect_out(&c, "extra", "", "tensors, found");
        plan_cell_free(&c);
    }
}

/* What only some options have: the other balancing losses, the zeros in gradients. */
Test(parity_saved, other_losses_and_counts_are_named)
{
    static const char *const names[] = {"seq_aux_loss", "global_aux_loss", "aux_loss"};
    plan_cell c;
    plan_cell_make(&c, "tp2,sp,dp2 balancing zeros", ASSAY_PRECISION_FP32);
    parity_report *r = judge(&c, NULL, c.out);
    cr_expect_eq(n_failed(r), 0);
    parity_report_destroy(r);
    for (int i = 0; i < 3; i++)
        expect_out(&c, names[i], names[i], "elements");
    expect_out(&c, "num_zeros_in_grad", "num_zeros_in_grad", "2 of 2 elements");
    plan_cell_free(&c);
}
