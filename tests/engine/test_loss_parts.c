/* The loss of one part of the positions after the other: one part that holds all has the bits of the whole, several stay beside
 * them by rounding alone; a length that is none is refused. */
#include "tests/support/engine.h"

TestSuite(engine_loss_parts, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

#define MODEL(tied)                                                                                          \
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":24,\"ffn_hidden_size\":20,"               \
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,"                  \
    "\"tie_word_embeddings\":" tied ",\"init_method_std\":0.2}"
#define OPTIONS DRAWN "--adam-eps 1e-2 --clip-grad 0.5"
enum { LENGTH = 8 }; /* the last part of three has targets, too */

static const struct {
    int world;
    const char *layout, *options, *model;
} rows[] = {
    {1, "1", "", MODEL("true")},
    {1, "1", "--precision bf16 --variant k0", MODEL("false")},
    {1, "1", "--recompute-granularity full", MODEL("true")},
    {1, "1", "--freeze output_layer.*", MODEL("false")},
    {2, "tp2,sp", "--precision bf16", MODEL("true")},
    {2, "cp2", "", MODEL("false")},
    {2, "pp2", "", MODEL("true")},
    {2, "dp2,zero3", "--overlap-grad-reduce --overlap-param-gather", MODEL("false")},
};

/* Every row, its loss in parts of `length`, against the same without parts. */
static void compare(int length, double allowed_fp32, double allowed_bf16)
{
    const int64_t train[4] = {2, 2, 2, LENGTH};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_batch(engine_file("train"), train, 4, 37, 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double allowed = strstr(rows[i].options, "bf16") ? allowed_bf16 : allowed_fp32;
        engine_write_config(model, rows[i].model);
        ENGINE_RUN(rows[i].world, "step --model %s --batch %s --layout %s --out %s %s " OPTIONS, model,
                   engine_file("train"), rows[i].layout, engine_file("whole"), rows[i].options);
        ENGINE_RUN(rows[i].world,
                   "step --model %s --batch %s --layout %s --out %s --loss-subbatch-sequence-length %d "
                   "%s " OPTIONS,
                   model, engine_file("train"), rows[i].layout, engine_file("parts"), length,
                   rows[i].options);
        engine_compare(engine_file("parts"), engine_file("whole"), allowed, "");
    }
}

Test(engine_loss_parts, one_part_has_the_bits_of_the_whole)
{
    compare(LENGTH, 0.0, 0.0);
    compare(1000000, 0.0, 0.0);
}

Test(engine_loss_parts, several_differ_by_rounding)
{
    compare(1, 2e-6, 2e-2);
    compare(3, 2e-6, 2e-2);
}

/* What is wrong in one part alone shows in the results. */
Test(engine_loss_parts, a_part_that_goes_wrong_shows)
{
    static const char *const faults[] = {"loss_part_scale", "loss_part_overwrites", "loss_part_omitted",
                                         "loss_part_skipped"};
    const int64_t train[4] = {2, 2, 2, LENGTH};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_batch(engine_file("train"), train, 4, 37, 3);
    engine_write_config(model, MODEL("true"));
    ENGINE_RUN(1, "step --model %s --batch %s --out %s --loss-subbatch-sequence-length 3 " OPTIONS, model,
               engine_file("train"), engine_file("honest"));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ENGINE_RUN(
            1, "step --model %s --batch %s --out %s --loss-subbatch-sequence-length 3 --fault %s " OPTIONS,
            model, engine_file("train"), engine_file("wrong"), faults[i]);
        cr_expect_gt(engine_worst(engine_file("wrong"), engine_file("honest")), 1e-5, "%s", faults[i]);
    }
}

Test(engine_loss_parts, a_negative_length_is_refused)
{
    engine_must_fail(1, "loss",
                     "step --model none --batch none --out none --loss-subbatch-sequence-length -1");
}
