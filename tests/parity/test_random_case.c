/* Cases drawn from numbers: the same number draws the same case, what is drawn can be run, and everything that can be drawn comes up. */
#include "core/base/json.h"
#include "parity/run/run.h"
#include "tests/support/cli.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static json_t *drawn(uint64_t number)
{
    json_t *c = NULL;
    cr_assert_eq(parity_case_random(number, &c), ASSAY_OK, "case %llu: %s", (unsigned long long)number,
                 assay_error_message());
    return c;
}

Test(random_case, the_same_number_draws_the_same_case)
{
    static const uint64_t numbers[] = {0, 1, 12345, UINT64_MAX >> 1};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_t *a = drawn(numbers[i]), *b = drawn(numbers[i]), *other = drawn(numbers[i] + 1);
        cr_expect(json_equal(a, b), "case %llu", (unsigned long long)numbers[i]);
        cr_expect(!json_equal(json_object_get(a, "model"), json_object_get(other, "model")),
                  "case %llu and the next", (unsigned long long)numbers[i]);
        json_decref(a);
        json_decref(b);
        json_decref(other);
    }
}

Test(random_case, what_is_drawn_can_be_read_and_cut)
{
    parity_case *c = malloc(sizeof *c);
    for (uint64_t number = 0; number < 150; number++) {
        json_t *root = drawn(number);
        cr_assert_eq(parity_case_read(root, "drawn", c), ASSAY_OK, "%s", assay_error_message());
        cr_expect(c->n_layouts >= 1 && c->n_layouts <= 4);
        for (int i = 0; i < c->n_layouts; i++)
            cr_expect_eq(parity_case_layout(c, c->layouts[i]), ASSAY_OK, "%s", assay_error_message());
        parity_case_free(c);
        json_decref(root);
    }
    free(c);
}

/* What nobody draws any more would be missed by nobody. */
Test(random_case, everything_comes_up)
{
    static const char *const words[] = {"\"qk_layernorm_full_width\": true",
                                        "\"clip_qkv\"",
                                        "\"llama3\"",
                                        "\"linear\"",
                                        "\"yarn\"",
                                        "\"rope_mscale_all_dim\"",
                                        "\"rope_attention_factor\"",
                                        "\"window\"",
                                        "\"add_mlp_bias\": true",
                                        "\"add_proj_bias\": true",
                                        "\"tie_word_embeddings\": true",
                                        "\"moe_router_pre_softmax\"",
                                        "\"norm_topk_prob\": true",
                                        "\"moe_router_enable_expert_bias\"",
                                        "\"moe_router_group_topk\"",
                                        "\"moe_shared_expert_gate\": true",
                                        "\"seq_aux_loss\"",
                                        "\"global_aux_loss\"",
                                        "\"moe_pad_expert_input_to_capacity\": true",
                                        "\"position\"",
                                        "\"allgather\"",
                                        "\"moe_router_dtype\"",
                                        "\"mxfp8\"",
                                        "\"moe_alltoall_halves\": true",
                                        "\"moe_router_force_load_balancing\": true",
                                        "\"moe_input_jitter_eps\"",
                                        "\"block\"",
                                        "\"selective\"",
                                        "\"loss_subbatch_sequence_length\"",
                                        "\"gradient_accumulation_fusion\": false",
                                        "\"megatron\"",
                                        "\"hidden_dropout\"",
                                        "\"attention_dropout\"",
                                        "\"freeze\"",
                                        "\"ddp_bucket_size\"",
                                        "\"packing\": true",
                                        "\"pad_seq_to_mult\"",
                                        "\"masked_microbatch\"",
                                        "\"fp32\"",
                                        "\"k0\"",
                                        "tp3",
                                        "cp3",
                                        "a2a",
                                        "p2p",
                                        "pp3",
                                        "vpp2",
                                        "embed",
                                        "loss\"",
                                        "ep4",
                                        "etp2",
                                        "dp3",
                                        "zero3",
                                        "hsdp2",
                                        "\"1\""};
    enum { N = sizeof words / sizeof *words };
    int seen[N] = {0};
    for (uint64_t number = 0; number < 400; number++) {
        json_t *root = drawn(number);
        char *text = json_dumps(root, 0);
        for (int i = 0; i < N; i++)
            seen[i] += strstr(text, words[i]) != NULL;
        free(text);
        json_decref(root);
    }
    for (int i = 0; i < N; i++)
        cr_expect_gt(seen[i], 0, "%s", words[i]);
}

Test(random_case, the_verb, .init = cli_setup, .fini = cli_teardown)
{
    static const struct {
        const char *arguments, *says;
    } rows[] = {{"", "expected a number: assay draw-case 7"},
                {"x", "expected a number from 0 to 9223372036854775807, found x"},
                {"9223372036854775808", "found 9223372036854775808"},
                {"1 2", "expected one number, found 2, too"},
                {"1 --out nowhere/case.json", "nowhere/case.json"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("draw-case %s", rows[i].arguments);
        cr_expect(r.code == 2 && strstr(r.err, rows[i].says) != NULL, "draw-case %s: exit code %d\n%s",
                  rows[i].arguments, r.code, r.err);
        cli_free(&r);
    }
    cli_result r = cli_run("draw-case 3 --out case.json");
    cli_expect_success(&r, "draw-case");
    cli_free(&r);
    json_t *file = NULL, *root = drawn(3);
    cr_assert_eq(assay_json_load(&file, cli_file("case.json")), ASSAY_OK);
    cr_expect(json_equal(file, root));
    json_decref(file);
    json_decref(root);
}
