/* Parameters are used while they are held, in pairs; each gradient is complete once in a step and drives its bucket. */
#include "gpu/optimizer.h"
#include "tests/support/engine.h"

TestSuite(engine_params, .init = engine_setup, .fini = engine_teardown, .timeout = 120);

/* Two trained parameters and a buffer, held together. */
typedef struct fixture {
    assay_param_spec specs[3];
    gpu_param params[3];
    gpu_model m;
    gpu_run run;
    gpu_param_unit unit;
} fixture;

static assay_status nothing_before(void *user, const gpu_param_unit *unit, const gpu_param_unit *next,
                                   bool reads, bool backward)
{
    (void)user, (void)unit, (void)next, (void)reads, (void)backward;
    return ASSAY_OK;
}

static assay_status nothing(void *user, const gpu_param_unit *unit)
{
    (void)user, (void)unit;
    return ASSAY_OK;
}

static assay_status nothing_ready(void *user, gpu_param *p)
{
    (void)user, (void)p;
    return ASSAY_OK;
}

static void make(fixture *f)
{
    static const gpu_param_hooks hooks = {nothing_before, nothing, nothing, nothing_ready};
    memset(f, 0, sizeof *f);
    f->m.hooks = &hooks;
    f->m.run = &f->run;
    f->m.params = f->params;
    f->m.n_params = 3;
    for (int i = 0; i < 3; i++) {
        snprintf(f->specs[i].name, sizeof f->specs[i].name, "p%d", i);
        f->specs[i].trained = i < 2;
        f->params[i].spec = &f->specs[i];
        cr_assert_eq(gpu_param_unit_add(&f->unit, &f->params[i]), ASSAY_OK);
    }
}

static void expect_message(assay_status st, const char *text)
{
    cr_expect_eq(st, ASSAY_INTERNAL);
    cr_expect(strstr(assay_error_message(), text), "expected '%s' in: %s", text, assay_error_message());
}

Test(engine_params, pairs_and_marks_make_a_step)
{
    fixture f;
    make(&f);
    gpu_params_begin_step(&f.m);
    cr_expect_eq(gpu_param_acquire(&f.m, &f.unit, NULL), ASSAY_OK);
    cr_expect_eq(gpu_param_acquire(&f.m, &f.unit, NULL), ASSAY_OK); /* a tied embedding is in two units */
    cr_expect_eq(gpu_param_use(&f.m, &f.params[0]), &f.params[0].weight);
    cr_expect_eq(gpu_param_grad(&f.m, &f.params[0]), &f.params[0].main_grad);
    cr_expect_eq(gpu_param_use(&f.m, NULL), NULL);
    cr_expect_eq(gpu_param_release(&f.m, &f.unit), ASSAY_OK);
    cr_expect_eq(gpu_param_release(&f.m, &f.unit), ASSAY_OK);
    cr_expect_eq(gpu_grads_ready(&f.m, &f.unit), ASSAY_OK);
    cr_expect_eq(gpu_params_check_step(&f.m), ASSAY_OK);
}

Test(engine_params, use_outside_is_named)
{
    fixture f;
    make(&f);
    (void)gpu_param_use(&f.m, &f.params[1]);
    cr_expect_eq(gpu_param_acquire(&f.m, &f.unit, NULL), ASSAY_OK);
    expect_message(gpu_param_release(&f.m, &f.unit), "p1: used while nobody holds it");
}

Test(engine_params, a_missing_release_is_named)
{
    fixture f;
    make(&f);
    gpu_params_begin_step(&f.m);
    cr_expect_eq(gpu_param_acquire(&f.m, &f.unit, NULL), ASSAY_OK);
    cr_expect_eq(gpu_grads_ready(&f.m, &f.unit), ASSAY_OK);
    expect_message(gpu_params_check_step(&f.m), "p0: acquired 1 times more than released");
}

Test(engine_params, a_release_too_many_is_named)
{
    fixture f;
    make(&f);
    expect_message(gpu_param_release(&f.m, &f.unit), "p0: released more often than acquired");
}

Test(engine_params, a_gradient_ready_twice_is_named)
{
    fixture f;
    make(&f);
    gpu_params_begin_step(&f.m);
    cr_expect_eq(gpu_grads_ready(&f.m, &f.unit), ASSAY_OK);
    expect_message(gpu_grads_ready(&f.m, &f.unit), "p0: its gradient is marked ready twice");
}

Test(engine_params, a_gradient_never_ready_is_named)
{
    fixture f;
    make(&f);
    gpu_params_begin_step(&f.m);
    f.unit.n_ready = 1;
    cr_expect_eq(gpu_grads_ready(&f.m, &f.unit), ASSAY_OK);
    expect_message(gpu_params_check_step(&f.m), "p1: its gradient was not marked ready");
}

Test(engine_params, a_gradient_written_after_it_was_ready_is_named)
{
    fixture f;
    make(&f);
    gpu_params_begin_step(&f.m);
    cr_expect_eq(gpu_grads_ready(&f.m, &f.unit), ASSAY_OK);
    (void)gpu_param_grad(&f.m, &f.params[0]);
    expect_message(gpu_params_check_step(&f.m), "p0: its gradient is written after it was marked ready");
}

/* Buckets {p0, p1} and {p2}: complete in the order of their last parameter. */
Test(engine_params, buckets_count_down)
{
    gpu_bucket buckets[2] = {{.n_params = 2, .n_pending = 2}, {.n_params = 1, .n_pending = 1}};
    int ready[2] = {-1, -1};
    gpu_grad_buffer b = {.n_buckets = 2, .buckets = buckets, .ready = ready};
    fixture f;
    make(&f);
    f.params[2].bucket = 1;
    cr_expect_eq(gpu_grad_buffer_ready(&b, &f.params[1]), ASSAY_OK);
    cr_expect_eq(b.n_ready, 0);
    cr_expect_eq(gpu_grad_buffer_ready(&b, &f.params[2]), ASSAY_OK);
    cr_expect_eq(gpu_grad_buffer_ready(&b, &f.params[0]), ASSAY_OK);
    cr_expect(b.n_ready == 2 && ready[0] == 1 && ready[1] == 0);
    expect_message(gpu_grad_buffer_ready(&b, &f.params[0]), "p0: more gradients of its bucket are ready");
}

/* --- in the engine ------------------------------------------------------------------------------------------ */
#define LLAMA "step --model " GOLDEN "llama --batch " GOLDEN "llama/train_batch.safetensors --out "

static void refused(const char *fault, const char *text)
{
    char line[1024];
    snprintf(line, sizeof line, LLAMA "%s --fault %s", engine_file("out"), fault);
    engine_must_fail(1, text, line);
}

Test(engine_params, the_engine_refuses_parameters_that_it_keeps)
{
    refused("kept_parameters",
            "decoder.layers.0.input_layernorm.weight: acquired 2 times more than released");
}
Test(engine_params, the_engine_refuses_gradients_that_are_never_ready)
{
    refused("unready_gradients",
            "decoder.layers.0.input_layernorm.weight: its gradient was not marked ready");
}

/* Sums of one bucket or of many are the same sums. */
Test(engine_params, bucket_sizes_change_no_bit)
{
    static const char *const layouts[] = {"dp2", "dp2,zero1"};
    for (int i = 0; i < 2; i++) {
        ENGINE_RUN(2, LLAMA "%s --layout %s --clip-grad 0", engine_file("one"), layouts[i]);
        ENGINE_RUN(2, LLAMA "%s --layout %s --clip-grad 0 --ddp-bucket-size 1000", engine_file("out"),
                   layouts[i]);
        engine_compare(engine_file("out"), engine_file("one"), 0.0, "weight.");
        remove(engine_file("out"));
        remove(engine_file("one"));
    }
}
