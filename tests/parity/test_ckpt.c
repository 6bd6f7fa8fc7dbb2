/* `assay ckpt`: what it says of whole and of damaged checkpoints, and that what it writes is the same state. */
#include "core/base/hash.h"
#include "core/files/checkpoint_internal.h"
#include "tests/support/cli.h"
#include "tests/support/rename_flags.h"

#include <dirent.h>

TestSuite(ckpt, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

static void save(const char *name, const char *more)
{
    cli_result r =
        cli_run("step --engine sim --layout tp2,dp2 --precision bf16 --model " MODELS
                "qwen3_moe --batch " MODELS "qwen3_moe/train_batch.safetensors --out %s --save %s %s",
                cli_file("out"), cli_file(name), more);
    cli_expect_success(&r, name);
    cli_free(&r);
}

/* Exit code and a text of standard output or, for 2, standard error. */
static void expect(const char *arguments, int code, const char *words)
{
    cli_result r = cli_run("ckpt %s", arguments);
    cr_expect_eq(r.code, code, "%s: exit code %d: %s", arguments, r.code, r.err);
    cr_expect_not_null(strstr(code == 2 ? r.err : r.out, words), "%s: expected '%s' in\n%s%s", arguments,
                       words, r.out, r.err);
    cli_free(&r);
}

#define EXPECT(code, words, ...)                                                                             \
    do {                                                                                                     \
        char line[CLI_LINE];                                                                                 \
        snprintf(line, sizeof line, __VA_ARGS__);                                                            \
        expect(line, code, words);                                                                           \
    } while (0)

Test(ckpt, what_it_writes_is_the_same_state)
{
    save("a", "--train-iters 2 --lr-decay-iters 9");
    EXPECT(0, "step           2, 8 samples read", "inspect %s", cli_file("a"));
    EXPECT(0, "engine sim, layout tp2,dp2, 4 ranks, precision bf16", "inspect %s", cli_file("a"));
    EXPECT(0, "model.layers.3.mlp.experts.7.down_proj.weight/exp_avg_sq (optimizer-00001-of-00001",
           "inspect %s --tensors", cli_file("a"));
    EXPECT(0, "whole: 452 tensors of 985152 bytes", "verify %s", cli_file("a"));
    EXPECT(0, "wrote", "reshard %s %s --max-shard-size 30000", cli_file("a"), cli_file("b"));
    EXPECT(0, "whole: 452 tensors", "verify %s", cli_file("b"));
    EXPECT(0, "0 tensors differ of 452 and 452", "diff %s %s", cli_file("a"), cli_file("b"));
    EXPECT(0, "layout tp2,dp2, 4 ranks", "inspect %s", cli_file("b"));
    EXPECT(0, "wrote", "convert %s %s", cli_file("a"), cli_file("c"));
    EXPECT(0, "whole: 113 tensors of 140736 bytes", "verify %s", cli_file("c"));
    EXPECT(1, "not in", "diff %s %s", cli_file("a"), cli_file("c"));
    EXPECT(0, "wrote", "convert %s %s --weights masters", cli_file("a"), cli_file("d"));
    EXPECT(0, "whole: 113 tensors of 281472 bytes", "verify %s", cli_file("d"));
    EXPECT(1, "model lm_head.weight: another type or shape", "diff %s %s", cli_file("c"), cli_file("d"));
    /* Weights alone are a model, and no run goes on from them. */
    cli_result r =
        cli_run("step --engine sim --layout tp2,dp2 --precision bf16 --lr-decay-iters 9 --model " MODELS
                "qwen3_moe --batch " MODELS "qwen3_moe/train_batch.safetensors --out %s --load %s",
                cli_file("out"), cli_file("c"));
    cr_expect_eq(r.code, 2);
    cr_expect_not_null(strstr(r.err, "holds weights alone, no optimizer states: no run goes on from it"),
                       "%s", r.err);
    cli_free(&r);
    r = cli_run("step --engine sim --model %s --batch " MODELS "qwen3_moe/batch.safetensors --out %s",
                cli_file("d"), cli_file("out"));
    cli_expect_success(&r, "a model");
    cli_free(&r);
    /* What is there is not written over. */
    EXPECT(2, "exists already", "reshard %s %s", cli_file("a"), cli_file("b"));
}

/* As on NFS: all that makes a folder makes it, whole, and nothing is written over. */
Test(ckpt, folders_are_published_where_rename_knows_no_flags)
{
    if (!refuse_rename_flags(EINVAL))
        cr_skip_test("no filters of system calls here");
    save("a", "--train-iters 1");
    EXPECT(0, "whole: ", "verify %s", cli_file("a"));
    EXPECT(0, "wrote", "reshard a b");
    EXPECT(0, "0 tensors differ", "diff a b");
    EXPECT(0, "wrote", "convert " ASSAY_SOURCE_DIR "/golden/paddle/one states");
    EXPECT(0, "wrote", "convert states paddle --form paddle");
    EXPECT(0, "wrote", "convert " MODELS "llama hf");
    EXPECT(0, "wrote", "convert hf again");
    EXPECT(2, "exists already", "convert hf again");
    cli_result r = cli_run("train --engine ref --model " MODELS "qwen3_moe --data " MODELS
                           "qwen3_moe/train_batch.safetensors --train-iters 1 --export trained");
    cli_expect_success(&r, "train");
    cli_free(&r);
    EXPECT(0, "wrote", "convert trained more");
}

Test(ckpt, everything_that_is_wrong_is_named)
{
    char damage[CLI_LINE];
    save("a", "--train-iters 1 --max-shard-size 100000");
    save("b", "--train-iters 1 --lr 0.002");
    EXPECT(1, "master_weights lm_head.weight: ", "diff %s %s", cli_file("a"), cli_file("b"));
    snprintf(damage, sizeof damage,
             "cd %s && rm config.json && touch extra.bin notes && truncate -s 100 "
             "optimizer-00003-of-*.safetensors && "
             "printf x | dd of=$(ls model-00002-of-*) bs=1 seek=40000 conv=notrunc status=none",
             cli_file("a"));
    cr_assert_eq(system(damage), 0);
    EXPECT(1, "config.json: listed in the manifest", "verify %s", cli_file("a"));
    EXPECT(1, "extra.bin: the manifest does not name this file", "verify %s", cli_file("a"));
    EXPECT(1, "bytes, found 100", "verify %s", cli_file("a"));
    EXPECT(1, "safetensors: expected SHA-256", "verify %s", cli_file("a"));
    EXPECT(1, ": 4 findings", "verify %s", cli_file("a"));
    EXPECT(2, "safetensors: expected SHA-256", "inspect %s", cli_file("a"));
}

/* A converted checkpoint is a model folder, to which its user adds what transformers wants. */
Test(ckpt, files_that_are_no_weights_are_noted)
{
    save("a", "--train-iters 1");
    EXPECT(0, "wrote", "convert a model");
    cli_write_text(cli_file("model/tokenizer_config.json"), "{}");
    EXPECT(0, "note: model/tokenizer_config.json: the manifest does not name this file", "verify model");
    EXPECT(0, "whole: ", "verify model");
    EXPECT(0, "wrote", "convert model again");
    EXPECT(0, "wrote", "merge model model merged");
    cr_expect(cli_exists(cli_file("merged/tokenizer_config.json")));
    cli_write_text(cli_file("model/consolidated.safetensors"), "");
    EXPECT(1, "wrong: model/consolidated.safetensors: the manifest does not name this file", "verify model");
    EXPECT(2, "model/consolidated.safetensors: the manifest does not name this file",
           "merge model model other");
}

Test(ckpt, hostile_arguments_are_refused)
{
    expect("", 2,
           "expected inspect, verify, diff, reshard, convert, merge, lora-merge or lora-save, found nothing");
    expect("repair x", 2, "found repair");
    expect("verify", 2, "verify: expected 1 folders, found 0");
    expect("diff a", 2, "diff: expected 2 folders, found 1");
    expect("diff a b c", 2, "diff: expected 2 folders, found 3");
    expect("merge 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18", 2, "18: one argument too many");
    expect("convert a b --weights masters", 2, "is no checkpoint and has no masters");
    expect("convert a b --weights both", 2, "expected model or masters");
    expect("reshard a b --max-shard-size 0", 2, "--max-shard-size: expected an integer");
    expect("inspect /nonexistent", 2, "manifest.json");
}

/* Exit code 1 is of a checkpoint with something wrong. */
Test(ckpt, what_is_no_checkpoint_could_not_be_verified)
{
    expect("verify /nonexistent", 2, "manifest.json: cannot open");
    expect("verify " MODELS "llama", 2, "llama: no checkpoint: it has no manifest.json");
    expect("inspect " MODELS "llama", 2, "llama: no checkpoint: it has no manifest.json");
    cr_assert_eq(assay_mkdir_p(cli_file("iter_0000010/mp_rank_00")), ASSAY_OK);
    expect("verify iter_0000010", 2, "iter_0000010: no checkpoint");
    cli_write_text(cli_file("manifest.json"), "{}");
    EXPECT(1, "wrong: ", "verify %s", cli_folder);
}

/* By its name, wherever one is given: the folder of a step, and that of all steps. */
Test(ckpt, torch_dist_is_refused_by_name)
{
    static const char words[] = "iter_0000010: of torch.distributed.checkpoint: its .metadata is pickled";
    static const char *const paths[] = {"m/iter_0000010", "m"};
    cr_assert_eq(assay_mkdir_p(cli_file("m/iter_0000010")), ASSAY_OK);
    cli_write_text(cli_file("m/iter_0000010/.metadata"), "");
    cli_write_text(cli_file("m/latest_checkpointed_iteration.txt"), "10");
    for (int i = 0; i < 2; i++) {
        cli_result r = cli_run("train --engine ref --model " MODELS "qwen3_moe --data " MODELS
                               "qwen3_moe/train_batch.safetensors --train-iters 1 --load %s",
                               paths[i]);
        cli_expect_refusal(&r, paths[i], (const char *const[]){words, NULL});
        cli_free(&r);
        EXPECT(2, words, "verify %s", paths[i]);
        EXPECT(2, words, "merge " MODELS "llama %s new", paths[i]);
    }
    cli_result r = cli_run("step --engine ref --model " MODELS "qwen3_moe --batch " MODELS
                           "qwen3_moe/train_batch.safetensors --out out --load m/iter_0000010");
    cli_expect_refusal(&r, "step", (const char *const[]){words, NULL});
    cli_free(&r);
}

/* An option that a verb would not look at is refused by its name, and the verbs that use it are said: nothing is taken in silence. */
Test(ckpt, options_of_other_verbs_are_refused)
{
    static const char *const options[] = {"--tensors",
                                          "--ignore-missing-keys x",
                                          "--ignore-unexpected-keys x",
                                          "--max-shard-size 9",
                                          "--weights model",
                                          "--ignore-mismatched-keys x",
                                          "--form assay",
                                          "--method ties",
                                          "--base x",
                                          "--weight 1",
                                          "--density 1",
                                          "--t 0.5",
                                          "--lambda 1",
                                          "--normalize true",
                                          "--majority-sign-method total",
                                          "--merge-seed 1",
                                          "--include x",
                                          "--exclude x",
                                          "--dtype fp8",
                                          "--scale-fmt float",
                                          "--weight-block-size 8,8"};
    /* which of them a verb uses: one letter an option; of convert on a folder that is no checkpoint */
    static const struct {
        const char *verb, *name, *uses;
    } rows[] = {{"inspect a", "inspect", "y...................."},
                {"verify a", "verify", ".yy..y..............."},
                {"diff a b", "diff", "....................."},
                {"reshard a b", "reshard", "...y................."},
                {"convert a b", "convert of a model folder", "...yy.y.........yyyyy"},
                {"merge a b", "merge", "...y...yyyyyyyyyyyyyy"},
                {"lora-merge a b c", "lora-merge", "...y..............yyy"},
                {"lora-save a b", "lora-save", "..................y.."}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            char words[256];
            snprintf(words, sizeof words, "%.*s: %s does not use it (it is of ",
                     (int)strcspn(options[i], " "), options[i], rows[r].name);
            cli_result run = cli_run("ckpt %s %s", rows[r].verb, options[i]);
            const bool refused = run.code == 2 && strstr(run.err, words) != NULL;
            cr_expect_eq(refused, rows[r].uses[i] == '.', "%s %s: %s", rows[r].verb, options[i], run.err);
            cli_free(&run);
        }
    save("s", "--train-iters 1");
    expect("convert s t --dtype fp32", 2,
           "--dtype: convert of a checkpoint does not use it (it is of convert of a model folder, merge, "
           "lora-merge, lora-save)");
    expect("convert s t --form paddle --weights model", 2,
           "--weights: convert --form paddle does not use it");
    cr_expect_not(cli_exists(cli_file("t")));
}

/* What was frozen has no master: it is widened, as --skip-save-model-weight does.  Without masters there is nothing to convert to. */
Test(ckpt, masters_of_frozen_weights_are_these_weights)
{
    static const char freeze[] = "--train-iters 1 --freeze=decoder.layers.1.*,embedding.*";
    char more[256];
    save("a", freeze);
    snprintf(more, sizeof more, "%s --skip-save-model-weight", freeze);
    save("b", more);
    snprintf(more, sizeof more, "%s --no-save-optim", freeze);
    save("c", more);
    EXPECT(0, "wrote", "convert %s %s --weights masters", cli_file("a"), cli_file("am"));
    EXPECT(0, "wrote", "convert %s %s --weights masters", cli_file("b"), cli_file("bm"));
    EXPECT(0, "whole: 113 tensors of 281472 bytes", "verify %s", cli_file("am"));
    EXPECT(0, "0 tensors differ of 113 and 113", "diff %s %s", cli_file("am"), cli_file("bm"));
    EXPECT(0, "wrote", "convert %s %s --weights model", cli_file("a"), cli_file("ao"));
    EXPECT(0, "0 tensors differ of 113 and 113", "diff %s %s", cli_file("ao"), cli_file("c"));
    EXPECT(2, "has no masters: it holds weights alone, in BF16", "convert %s %s --weights masters",
           cli_file("c"), cli_file("cm"));
    EXPECT(2, "has no masters", "convert %s %s --weights masters", cli_file("ao"), cli_file("cm"));
    DIR *d = opendir(cli_folder);
    cr_assert_not_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        cr_expect(strstr(e->d_name, ".tmp-") == NULL && strcmp(e->d_name, "cm") != 0, "%s was left behind",
                  e->d_name);
    closedir(d);
}

/* Replicas of a weight differed when it was saved: it is not copied, and what was begun is not left behind. */
Test(ckpt, a_copy_that_fails_leaves_nothing)
{
    char hash[ASSAY_SHA256_HEX];
    json_t *manifest = NULL;
    save("a", "--train-iters 1");
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    cr_assert_eq(assay_json_load(&manifest, cli_file("a/manifest.json")), ASSAY_OK);
    json_object_set_new(manifest, "differing_replicas",
                        json_pack("[[s,s,i]]", "weight", "output_layer.weight", 1));
    cr_assert_eq(assay_checkpoint_manifest_hash(manifest, hash), ASSAY_OK);
    json_object_set_new(manifest, "sha256", json_string(hash));
    cr_assert_eq(assay_json_save(manifest, cli_file("a/manifest.json")), ASSAY_OK);
    json_decref(manifest);
    EXPECT(2, "replicas differ", "reshard %s %s//", cli_file("a"), cli_file("b"));
    EXPECT(2, "replicas differ", "convert %s %s", cli_file("a"), cli_file("b"));
    DIR *d = opendir(cli_folder);
    cr_assert_not_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        cr_expect(e->d_name[0] != 'b', "%s was left behind", e->d_name);
    closedir(d);
}
