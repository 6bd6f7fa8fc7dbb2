/* Laws of the checkpoint check: equal states of two layouts pass, one different bit, a missing tensor and a
 * folder that is no checkpoint do not. */
#include "tests/support/checkpoint.h"
#include "tests/support/parity.h"

/* By one rank, with element (10, 5) of the head's first moment in its lowest bit another. */
static void write_other_bit(const char *dir, const assay_checkpoint_content *content)
{
    assay_checkpoint_writer *w;
    json_t *state = json_object();
    char data[4096];
    must(assay_checkpoint_writer_open(&w, dir, 7, 3, 0, 1, content));
    for (int64_t i = 0; i < content->spec->n_params; i++)
        for (int f = 0; f < CHECKPOINT_FAMILIES; f++) {
            const assay_param_spec *p = &content->spec->params[i];
            assay_shard whole;
            assay_shard_whole(&whole, p->shape, p->ndim);
            checkpoint_fill(content, f, i, &whole, data);
            if (f == 2 && strcmp(p->name, "output_layer.weight") == 0)
                data[4 * (10 * 6 + 5)] ^= 1;
            must(assay_checkpoint_add(w, checkpoint_family(f, p), p->name, checkpoint_dtype(content, f, p),
                                      &whole, data, true));
        }
    must(assay_checkpoint_write_alone(w, state));
    json_decref(state);
    assay_checkpoint_writer_destroy(w);
}

/* A checkpoint of one rank against one of `parts` ranks (0: with another bit), and with or without states. */
static parity_report *compare(int parts, bool states)
{
    char a[256], b[256];
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    if (parts > 0)
        checkpoint_write(fresh_path(b, "b"), &content, parts);
    else
        write_other_bit(fresh_path(b, "b"), &content);
    content.n_states = states ? 2 : 1;
    checkpoint_write(fresh_path(a, "a"), &content, 1);
    parity_report *r = new_report();
    must(parity_check_checkpoints(a, b, "1 -> dp2", r));
    remove_path(b);
    remove_path(a);
    assay_spec_destroy(spec);
    return r;
}

Test(parity_checkpoint, equal_states_of_different_layouts_pass)
{
    parity_report *r = compare(3, true);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(parity_report_at(r, 0)->count, 6); /* the first by name: the final norm */
    cr_assert_str_eq(parity_report_at(r, 0)->op, "1 -> dp2");
    parity_report_destroy(r);
}

Test(parity_checkpoint, one_bit_is_found_and_named)
{
    parity_report *r = compare(0, true);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_eq(n_failed(r), 1);
    cr_assert_str_eq(f->instance, "exp_avg");
    cr_assert_str_eq(f->tensor, "output_layer.weight");
    cr_assert_eq(f->n_bad, 1);
    cr_assert_eq(f->index[0], 10);
    cr_assert_eq(f->index[1], 5);
    parity_report_destroy(r);
}

Test(parity_checkpoint, tensors_of_one_side_only_fail)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    parity_report *r = compare(1, false);
    cr_assert_eq(n_failed(r), spec->n_params);
    cr_assert(strstr(first_failure(r)->message, "missing from the first"));
    parity_report_destroy(r);
    assay_spec_destroy(spec);
}

Test(parity_checkpoint, a_folder_without_manifest_is_an_error)
{
    char a[256];
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    checkpoint_write(fresh_path(a, "a"), &content, 1);
    parity_report *r = new_report();
    cr_assert_neq(parity_check_checkpoints(a, "/nonexistent", "x", r), ASSAY_OK);
    cr_assert_eq(parity_report_count(r), 0);
    parity_report_destroy(r);
    remove_path(a);
    assay_spec_destroy(spec);
}
