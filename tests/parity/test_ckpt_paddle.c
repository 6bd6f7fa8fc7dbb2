/* Folders that the real PaddleNLP wrote (golden/make_paddle.py): assay reads of each what PaddleNLP itself loaded, writes it back, and names
 * what is wrong with damaged ones. */
#include "core/base/json.h"
#include "core/files/paddle.h"
#include "core/files/tensorwriter.h"
#include "tests/support/cli.h"

TestSuite(ckpt_paddle, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

#define FOLDERS ASSAY_SOURCE_DIR "/golden/paddle/"
static const char *const folders[] = {
    "one",  "tp2",       "sharding2_split",    "tp2_unmerged", "tp2_skip_weights",
    "tied", "tp2_fused", "tp2_fused_unmerged", "tp2_qwen2_moe"};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static void run(int code, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void run(int code, const char *words, const char *format, ...)
{
    char line[CLI_LINE];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, code, "%s: exit code %d: %s%s", line, r.code, r.out, r.err);
    cr_expect_not_null(strstr(code == 2 ? r.err : r.out, words), "%s: expected '%s' in\n%s%s", line, words,
                       r.out, r.err);
    cli_free(&r);
}

/* The manifest's hashes are those of the tensors that PaddleNLP held behind its own load, and no other tensor is there. */
static void expect_hashes(const char *folder, const char *checkpoint)
{
    char path[CLI_PATH];
    json_t *expected, *manifest;
    const char *kind, *name;
    json_t *hashes, *hash;
    size_t n = 0;
    snprintf(path, sizeof path, FOLDERS "%s.json", folder);
    cr_assert_eq(assay_json_load(&expected, path), ASSAY_OK, "%s", assay_error_message());
    snprintf(path, sizeof path, "%s/manifest.json", checkpoint);
    cr_assert_eq(assay_json_load(&manifest, path), ASSAY_OK, "%s", assay_error_message());
    json_object_foreach(json_object_get(manifest, "tensors"), kind, hashes)
        json_object_foreach(hashes, name, hash)
    {
        snprintf(path, sizeof path, "%s/%s", kind, name);
        cr_expect(json_equal(hash, json_object_get(expected, path)), "%s: %s", folder, path);
        n++;
    }
    cr_expect_eq(n, json_object_size(expected), "%s: %zu tensors of %zu", folder, n,
                 json_object_size(expected));
    json_decref(expected);
    json_decref(manifest);
}

Test(ckpt_paddle, what_paddlenlp_loads_from_its_folders)
{
    for (int i = 0; i < N_FOLDERS; i++) {
        run(0, "PaddleNLP's, whole", "ckpt verify " FOLDERS "%s", folders[i]);
        run(0, "step           3, ", "ckpt inspect " FOLDERS "%s --tensors", folders[i]);
        run(0, "not carried: random streams", "ckpt convert " FOLDERS "%s %s/%s", folders[i], cli_folder,
            folders[i]);
        run(0, "whole", "ckpt verify %s/%s", cli_folder, folders[i]);
        char checkpoint[CLI_PATH];
        snprintf(checkpoint, sizeof checkpoint, "%s/%s", cli_folder, folders[i]);
        expect_hashes(folders[i], checkpoint);
    }
}

Test(ckpt_paddle, and_back)
{
    for (int i = 0; i < N_FOLDERS; i++) {
        run(0, "wrote", "ckpt convert " FOLDERS "%s a%d", folders[i], i);
        run(0, "not written: random streams", "ckpt convert a%d b%d --form paddle", i, i);
        run(0, "PaddleNLP's, whole", "ckpt verify b%d", i);
        run(0, "0 tensors differ", "ckpt diff " FOLDERS "%s b%d", folders[i], i);
        run(0, "0 tensors differ", "ckpt diff a%d b%d", i, i);
        run(0, "wrote", "ckpt convert b%d c%d", i, i);
        run(0, "0 tensors differ", "ckpt diff a%d c%d", i, i);
        run(2, "exists already", "ckpt convert a%d b%d --form paddle", i, i);
    }
    run(0, "wrote", "ckpt convert " FOLDERS "one w --weights model");
    run(0, "wrote", "ckpt convert w wp --form paddle");
    run(0, "PaddleNLP's, whole: 21 tensors", "ckpt verify wp");
}

/* A run goes on from it, in a layout of the engine's; what the folder does not say the run says. */
Test(ckpt_paddle, a_run_goes_on)
{
    enum { STEPS = 4, B = 2, S = 8, N = STEPS * B * S };
    int64_t ids[N];
    const int64_t shape[4] = {STEPS, 1, B, S};
    assay_tensorwriter *w;
    for (int i = 0; i < N; i++)
        ids[i] = (i * 7 + 3) % 34;
    cr_assert_eq(assay_tensorwriter_create(&w, cli_file("batch.safetensors")), ASSAY_OK, "%s",
                 assay_error_message());
    cr_assert_eq(assay_tensorwriter_add_ref(w, "input_ids", ASSAY_I64, shape, 4, ids), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_add_ref(w, "labels", ASSAY_I64, shape, 4, ids), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
    run(0, "wrote", "ckpt convert " FOLDERS "tp2 a");
    static const char go_on[] =
        "step --engine sim --layout dp2 --precision bf16 --model a --batch batch.safetensors "
        "--train-iters 4 --lr-decay-iters 9 --load a --out out";
    run(2, "--override-checkpoint-args", "%s", go_on);
    run(2, "--no-load-rng", "%s --save b --override-checkpoint-args", go_on);
    run(0, "", "%s --save b --override-checkpoint-args --no-load-rng", go_on);
    run(0, "step           4, ", "ckpt inspect b");
    run(0, "wrote", "ckpt convert b p --form paddle");
    run(0, "PaddleNLP's, whole", "ckpt verify p");
    run(1, "elements differ", "ckpt diff a p");
}

/* --- damages ------------------------------------------------------------------------------------------------ */
/* A tensor more in a file of the copy: what a later rank's save, or another save, leaves behind. */
static void add_tensor(const char *file, const char *like, const char *from_file, float change)
{
    assay_tensorfile *f, *g;
    assay_tensorwriter *w;
    char path[CLI_PATH];
    snprintf(path, sizeof path, "%s/d/%s", cli_folder, from_file);
    cr_assert_eq(assay_tensorfile_open(&g, path), ASSAY_OK, "%s", assay_error_message());
    snprintf(path, sizeof path, "%s/d/%s", cli_folder, file);
    cr_assert_eq(assay_tensorfile_open(&f, path), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        cr_assert_eq(assay_tensorwriter_add_copy(w, t->name, t->dtype, t->shape, t->ndim, t->data), ASSAY_OK);
    }
    const assay_tensor_info *t = assay_tensorfile_find(g, like);
    cr_assert_not_null(t);
    float *data = malloc(t->bytes);
    memcpy(data, t->data, t->bytes);
    data[0] += change;
    cr_assert_eq(assay_tensorwriter_add_copy(w, like, t->dtype, t->shape, t->ndim, data), ASSAY_OK);
    free(data);
    assay_tensorfile_close(f);
    assay_tensorfile_close(g);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
}

static void copy(const char *folder, const char *shell)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line,
             "rm -rf %s/d && cp -r " FOLDERS "%s %s/d && chmod -R u+w %s/d && cd %s/d && %s", cli_folder,
             folder, cli_folder, cli_folder, cli_folder, shell);
    cr_assert_eq(system(line), 0, "%s", line);
}

#define TURN(file, from_end)                                                                                 \
    "printf '\\377' | dd of=" file " bs=1 seek=$(($(stat -c %s " file ") - " #from_end                       \
    ")) conv=notrunc status=none"
static const struct damage {
    const char *folder, *shell;
    int code;
    const char *words;
} damages[] = {
    /* What PaddleNLP loads without a word (golden/peers.py, and its source where that says so). */
    {"tp2", TURN("model-00002-of-00002.safetensors", 301), 1, "weights are not their masters, rounded"},
    {"tp2", TURN("master_weights-00001-of-00002.safetensors", 301), 1,
     "weights are not their masters, rounded"},
    {"tp2", TURN("optimizer-00002-of-00002.safetensors", 301), 1, "NaN, infinite or negative"},
    {"tp2", "cp optimizer-00002-of-00002.safetensors optimizer-00003-of-00003.safetensors", 1,
     "optimizer-00003-of-00003.safetensors: stale"},
    {"tp2", "cp optimizer-00002-of-00002.safetensors optimizer-00003-of-00003.safetensors", 1,
     "of a save of 3 shards"},
    {"tp2", "rm master_weights*", 1, "the optimizer's index says that there are masters"},
    {"tp2", "sed -i 's/\"master_weights\": true/\"master_weights\": false/' optimizer.safetensors.index.json",
     1, "does not say master_weights"},
    {"tp2", "sed -i '/llama.norm.weight.moment1_0/d' optimizer.safetensors.index.json", 1,
     "llama.norm.weight/moment1_0: the index does not name it"},
    {"tp2", "sed -i '/llama.norm.weight.moment1_0/d' optimizer.safetensors.index.json", 1,
     "llama.norm.weight/moment1_0: missing: the parameter's other states are here"},
    {"tp2", "sed -i '/llama.norm.weight/d' master_weights.safetensors.index.json", 1,
     "llama.norm.weight: no master beside its states"},
    {"tp2", "sed -i 's/\"global_step\": 3/\"global_step\": 2/' trainer_state.json", 1,
     "scheduler.pdparams: stale"},
    {"tp2", "sed -i 's/\"global_step\": 3/\"global_step\": 2/' trainer_state.json", 1,
     "states are not of step 2"},
    {"tp2", "rm trainer_state.json", 1, "trainer_state.json: missing"},
    {"tp2_unmerged", "rm optimizer.tp01.safetensors", 1,
     "1 slices of 17 in all, expected 34: a rank's file is missing"},
    /* What stops PaddleNLP in some layouts. */
    {"tp2", "rm optimizer-00001-of-00002.safetensors", 1, "optimizer-00001-of-00002.safetensors: missing"},
    {"sharding2_split", "truncate -s 20000 master_weights-00002-of-00002.safetensors", 1,
     "MetadataIncompleteBuffer"},
    {"sharding2_split", "truncate -s 20000 optimizer-00001-of-00002.safetensors", 1,
     "MetadataIncompleteBuffer"},
    {"tp2", "sed -i '0,/U16/s//I16/' model-00001-of-00002.safetensors", 1, "dtype I16, expected U16 or BF16"},
    {"tp2", "sed -i 's/bfloat16/float32/' config.json", 1, "dtype U16, expected F32 or F16"},
    {"tp2", "sed -i 's/\\[16,24\\]/[24,16]/' model-00001-of-00002.safetensors", 1,
     "shape [24,16], expected [16,24]"},
    {"tp2",
     "sed -i 's/norm.weight\": \"model-00002/norm.weight\": \"model-00001/' model.safetensors.index.json", 1,
     "llama.norm.weight: is here, but the index says it is in model-00001-of-00002.safetensors"},
    {"tp2", "sed -i 's/llama.norm.weight/llama.mean.weight/' model.safetensors.index.json", 1,
     "llama.norm.weight: no weight in model-*"},
    {"tp2", "sed -i 's/\"total_size\": /\"total_size\": 1/' model.safetensors.index.json", 1,
     "total_size says"},
    {"tp2", "rm scheduler.pdparams", 1, "scheduler.pdparams: missing"},
    /* Hostile. */
    {"tp2", "sed -i 's/model-00001/..\\/model-00001/' model.safetensors.index.json", 1,
     "expected a plain file name in the same folder"},
    {"tp2", "mv model-00001-of-00002.safetensors ../m && ln -s ../m model-00001-of-00002.safetensors", 1,
     "expected a regular file"},
    {"tp2", "printf 'cos\\nsystem\\n(S\"touch owned\"\\ntR.' > scheduler.pdparams", 1,
     "a pickle with opcode 0x63"},
    {"tp2", "echo '{' > optimizer.safetensors.index.json", 1, "optimizer.safetensors.index.json"},
    {"tp2", "touch optimizer.pdopt", 2, "it is pickled"},
    {"tp2", "touch model_state.tp00.pdparams", 2, "it is pickled"},
    {"tp2", "echo '{}' > peft_model.safetensors.index.json", 2, "adapters of PaddleNLP's"},
    {"tp2", "touch optimizer.tp00_shard_0001.safetensors && echo '{}' > optimizer.safetensors.index.json", 2,
     "an unmerged file is named by"},
    {"tp2", "sed -i 's/\"alibi\": false/\"alibi\": true/' config.json", 2, "alibi"},
    /* Words that a class takes and computes without. */
    {"tp2_qwen2_moe",
     "sed -i -e 's/\"use_sliding_window\": false/\"use_sliding_window\": true/' -e 's/\"sliding_window\": "
     "false/"
     "\"sliding_window\": 8/' config.json",
     2, "a sliding window of 8 in layer 0"},
    {"tp2", "sed -i '1s/{/{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0},/' config.json", 2,
     "rope_scaling: PaddleNLP's class"},
    {"tp2_quantized_O1", "true", 0, "note: optimizer: states are quantized (ckpt_quant_stage O1)"},
};

Test(ckpt_paddle, everything_that_is_wrong_is_named)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        copy(damages[i].folder, damages[i].shell);
        run(damages[i].code, damages[i].words, "ckpt verify d");
        if (damages[i].code == 1)
            run(2, "d", "ckpt convert d o%zu", i); /* and nothing comes of it */
        cr_expect_not(cli_exists(cli_file("d/owned")));
    }
    run(2, "its optimizer states are quantized", "ckpt convert " FOLDERS "tp2_quantized_O1 q");
    run(0, "wrote", "ckpt convert " FOLDERS "tp2_quantized_O1 q --weights masters");
}

static void count_missing(void *user, bool wrong, const char *text)
{
    *(int *)user += wrong && strstr(text, ": missing: model.safetensors.index.json names it") != NULL;
}

/* An index may name as many files as it has room for: each is looked up once, not beside each (2 10^10 names). */
Test(ckpt_paddle, many_missing_files_are_no_trap, .timeout = 200)
{
    enum { MANY = 200000 };
    char key[32], file[96];
    json_t *index, *map = json_object();
    assay_paddle *p = NULL;
    int missing = 0;
    copy("tp2", "true");
    cr_assert_eq(assay_json_load(&index, cli_file("d/model.safetensors.index.json")), ASSAY_OK);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "t%d", i);
        snprintf(file, sizeof file, "model-of-which-there-are-many-%06d.safetensors", i / 2 * 2);
        json_object_set_new(map, key, json_string(file));
        snprintf(file, sizeof file, "model-of-which-there-are-more-%06d.safetensors", i);
        snprintf(key, sizeof key, "u%d", i);
        json_object_set_new(map, key, json_string(file));
    }
    json_object_set_new(index, "weight_map", map);
    cr_assert_eq(json_dump_file(index, cli_file("d/model.safetensors.index.json"), 0), 0);
    json_decref(index);
    if (assay_paddle_open(&p, cli_file("d"), count_missing, &missing) == ASSAY_OK)
        assay_paddle_close(p);
    cr_expect_eq(missing, MANY + MANY / 2);
}

/* What a pipeline writes into config.json is the model's class, and what comes of the folder names the model. */
Test(ckpt_paddle, the_class_of_a_pipeline_is_the_model_s)
{
    copy("tp2", "sed -i s/LlamaForCausalLM/LlamaForCausalLMPipe/ config.json && grep -q Pipe config.json");
    run(0, "PaddleNLP's, whole", "ckpt verify d");
    run(0, "wrote", "ckpt convert d pipe");
    char *config = cli_read(cli_file("pipe/config.json"));
    cr_expect_null(strstr(config, "Pipe"), "%s", config);
    cr_expect_not_null(strstr(config, "\"LlamaForCausalLM\""), "%s", config);
    free(config);
    expect_hashes("tp2", cli_file("pipe"));
    copy("tp2", "sed -i s/LlamaForCausalLM/GPTForCausalLMPipe/ config.json");
    run(2, "GPTForCausalLM", "ckpt convert d other");
}

Test(ckpt_paddle, shadowed_tensors)
{
    static const char key[] = "llama.norm.weight/moment2_0";
    copy("tp2", "true");
    add_tensor("optimizer-00001-of-00002.safetensors", key, "optimizer-00002-of-00002.safetensors", 1.0f);
    run(1, "shadowed: the index reads the one in optimizer-00002-of-00002.safetensors, which differs",
        "ckpt verify d");
    copy("tp2", "true");
    add_tensor("optimizer-00001-of-00002.safetensors", key, "optimizer-00002-of-00002.safetensors", 0.0f);
    run(1, "which is equal", "ckpt verify d");
    /* Split parameters have their powers in two files; what differs there is no habit. */
    copy("tp2", "true");
    add_tensor("optimizer-00001-of-00002.safetensors", "llama.norm.weight/beta1_pow_acc_0",
               "optimizer-00002-of-00002.safetensors", 0.0f);
    run(0, "whole", "ckpt verify d");
    copy("tp2", "true");
    add_tensor("optimizer-00001-of-00002.safetensors", "llama.norm.weight/beta1_pow_acc_0",
               "optimizer-00002-of-00002.safetensors", 1.0f);
    run(1, "shadowed", "ckpt verify d");
}

Test(ckpt_paddle, what_is_not_written_is_refused_by_name)
{
    cli_result r = cli_run("step --engine ref --precision fp32 --model " MODELS "olmoe --batch " MODELS
                           "olmoe/train_batch.safetensors --train-iters 1 --out out --save s");
    cli_expect_success(&r, "save");
    cli_free(&r);
    run(2, "olmoe: PaddleNLP 3.0 has no such model", "ckpt convert s p --form paddle");
    cr_expect_not(cli_exists(cli_file("p")));
    r = cli_run("step --engine ref --precision fp32 --model " MODELS "qwen2 --batch " MODELS
                "olmoe/train_batch.safetensors --train-iters 1 --out out2 --save w");
    cli_expect_success(&r, "save");
    cli_free(&r);
    run(2, "PaddleNLP's class of this model computes without", "ckpt convert w p --form paddle");
    cr_expect_not(cli_exists(cli_file("p")));
    run(2, "--form: expected assay or paddle", "ckpt convert s p --form torch");
    run(2, "--form: verify does not use it (it is of convert of a checkpoint, ",
        "ckpt verify s --form paddle");
    run(2, "--ignore-missing-keys: verify of a folder of PaddleNLP's does not use it",
        "ckpt verify " FOLDERS "one --ignore-missing-keys x");
    run(2, "--dtype: convert of a folder of PaddleNLP's does not use it",
        "ckpt convert " FOLDERS "one p --dtype fp32");
    run(2, "assay ckpt convert it first", "ckpt reshard " FOLDERS "one p");
    cr_assert_eq(assay_mkdir_p(cli_file("torch")), ASSAY_OK);
    cli_write_text(cli_file("torch/.metadata"), "");
    run(2, "of torch.distributed.checkpoint: its .metadata is pickled", "ckpt verify torch");
}

/* --- the pickled dict ---------------------------------------------------------------------------------------- */
Test(ckpt_paddle, the_scheduler_s_pickle)
{
    unsigned char bytes[64];
    int64_t epoch = 0;
    double rate = 0.0;
    const size_t n = assay_paddle_scheduler_format(bytes, 123456, 0x1.8p-9);
    cr_assert_eq(assay_paddle_scheduler_parse(bytes, n, "x", &epoch, &rate), ASSAY_OK, "%s",
                 assay_error_message());
    cr_expect(epoch == 123456 && rate == 0x1.8p-9);
    for (size_t k = 0; k < n; k++)
        cr_expect_neq(assay_paddle_scheduler_parse(bytes, k, "x", &epoch, &rate), ASSAY_OK, "%zu bytes", k);
    bytes[n] = '.';
    cr_expect_eq(assay_paddle_scheduler_parse(bytes, n + 1, "x", &epoch, &rate), ASSAY_FORMAT);
    static const char call[] = "cposix\nsystem\n(S'true'\ntR.";
    cr_expect_eq(
        assay_paddle_scheduler_parse((const unsigned char *)call, sizeof call - 1, "x", &epoch, &rate),
        ASSAY_UNSUPPORTED);
}
