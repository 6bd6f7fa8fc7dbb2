/* A head in the folder of a tied model: the embedding once more is left out, another one is refused by every reader. */
#include "core/base/json.h"
#include "core/files/tensorwriter.h"
#include "tests/support/cli.h"

TestSuite(tied_head, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

#define LLAMA MODELS "llama"
#define STEP "step --engine %s --model %s --batch " LLAMA "/batch.safetensors --out %s"
static const char *const engines[] = {"ref", "sim"};
enum { SAME, OTHER, OTHER_TYPE };

static void add(assay_tensorwriter *w, const char *name, const assay_tensor_info *t)
{
    cr_assert_eq(assay_tensorwriter_add_copy(w, name, t->dtype, t->shape, t->ndim, t->data), ASSAY_OK);
}

/* The last element of an F32 head is another one, or its numbers are F64. */
static void add_head(assay_tensorwriter *w, const assay_tensor_info *embedding, int kind)
{
    assay_tensor_info head = *embedding;
    cr_assert_eq(embedding->dtype, ASSAY_F32);
    float *single = malloc(embedding->bytes);
    double *wide = malloc(2 * embedding->bytes);
    memcpy(single, embedding->data, embedding->bytes);
    for (int64_t i = 0; i < embedding->count; i++)
        wide[i] = (double)single[i];
    if (kind == OTHER)
        single[embedding->count - 1] += 0x1p-10F;
    head.dtype = kind == OTHER_TYPE ? ASSAY_F64 : ASSAY_F32;
    head.data = kind == OTHER_TYPE ? (const void *)wide : (const void *)single;
    add(w, "lm_head.weight", &head);
    free(single);
    free(wide);
}

/* llama with a head: in one file, or in a second shard. */
static void make(const char *name, int kind, bool shards)
{
    char path[CLI_PATH], index[CLI_PATH];
    assay_tensorfile *f;
    assay_tensorwriter *w = NULL, *second = NULL;
    json_t *map = json_object();
    snprintf(path, sizeof path, "%s/%s", cli_folder, name);
    cr_assert_eq(assay_mkdir_p(path), ASSAY_OK);
    snprintf(path, sizeof path, "%s/%s/config.json", cli_folder, name);
    cli_copy(LLAMA "/config.json", path);
    cr_assert_eq(assay_tensorfile_open(&f, LLAMA), ASSAY_OK);
    snprintf(path, sizeof path, "%s/%s/%s", cli_folder, name,
             shards ? "model-00001-of-00002.safetensors" : "model.safetensors");
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        add(w, assay_tensorfile_at(f, i)->name, assay_tensorfile_at(f, i));
        json_object_set_new(map, assay_tensorfile_at(f, i)->name,
                            json_string("model-00001-of-00002.safetensors"));
    }
    if (shards) {
        snprintf(path, sizeof path, "%s/%s/model-00002-of-00002.safetensors", cli_folder, name);
        cr_assert_eq(assay_tensorwriter_create(&second, path), ASSAY_OK);
        json_object_set_new(map, "lm_head.weight", json_string("model-00002-of-00002.safetensors"));
        snprintf(index, sizeof index, "%s/%s/model.safetensors.index.json", cli_folder, name);
        json_t *root = json_pack("{s:{s:i},s:O}", "metadata", "total_size", 0, "weight_map", map);
        cr_assert_eq(assay_json_save(root, index), ASSAY_OK);
        json_decref(root);
    }
    add_head(shards ? second : w, assay_tensorfile_find(f, "model.embed_tokens.weight"), kind);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK);
    if (shards)
        cr_assert_eq(assay_tensorwriter_finish(second), ASSAY_OK);
    assay_tensorwriter_destroy(w);
    assay_tensorwriter_destroy(second);
    assay_tensorfile_close(f);
    json_decref(map);
}

/* DeepSeek-V3's multi-token prediction: refused with the command that leaves it out. */
Test(tied_head, a_layer_behind_the_last_names_the_way_out)
{
    assay_tensorfile *f;
    assay_tensorwriter *w;
    cr_assert_eq(assay_mkdir_p(cli_file("mtp")), ASSAY_OK);
    cli_copy(LLAMA "/config.json", cli_file("mtp/config.json"));
    cr_assert_eq(assay_tensorfile_open(&f, LLAMA), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_create(&w, cli_file("mtp/model.safetensors")), ASSAY_OK);
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++)
        add(w, assay_tensorfile_at(f, i)->name, assay_tensorfile_at(f, i));
    add(w, "model.layers.61.enorm.weight", assay_tensorfile_find(f, "model.norm.weight"));
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK);
    assay_tensorwriter_destroy(w);
    assay_tensorfile_close(f);
    for (int e = 0; e < 2; e++) {
        cli_result r = cli_run(STEP, engines[e], "mtp", "out");
        cli_expect_refusal(&r, engines[e],
                           (const char *const[]){"'model.layers.61.enorm.weight' has no place",
                                                 "assay ckpt convert A B --exclude 'model.layers.61.*'",
                                                 NULL});
        cli_free(&r);
    }
    cli_result r = cli_run("ckpt convert mtp without --exclude model.layers.61.*");
    cli_expect_success(&r, "convert");
    cli_free(&r);
    r = cli_run(STEP, "ref", "without", "out");
    cli_expect_success(&r, "without");
    cli_free(&r);
}

static void expect_refused(cli_result r, const char *what, const char *const *words)
{
    cli_expect_refusal(&r, what, words);
    cli_free(&r);
}

Test(tied_head, the_same_one_is_the_embedding)
{
    make("same", SAME, false);
    make("shards", SAME, true);
    for (int e = 0; e < 2; e++) {
        cli_result r = cli_run(STEP, engines[e], LLAMA, cli_file("want"));
        cli_expect_success(&r, engines[e]);
        cli_free(&r);
        for (int s = 0; s < 2; s++) {
            r = cli_run(STEP, engines[e], s ? "shards" : "same", cli_file("out"));
            cli_expect_success(&r, engines[e]);
            cli_free(&r);
            (void)cli_compare(cli_file("out"), cli_file("want"), ASSAY_DTYPE_COUNT, 0.0, engines[e]);
        }
    }
    cli_result r = cli_run("ckpt convert shards copy");
    cli_expect_success(&r, "convert");
    cli_free(&r);
    r = cli_run(STEP, "ref", "copy", cli_file("out"));
    cli_expect_success(&r, "of the copy");
    cli_free(&r);
}

Test(tied_head, another_one_is_refused_by_every_reader)
{
    static const char *const one[] = {"other/model.safetensors: lm_head.weight: differs, first in element",
                                      "from model.embed_tokens.weight in", "tie_word_embeddings", NULL};
    static const char *const two[] = {"model-00002-of-00002.safetensors: lm_head.weight: differs",
                                      "from model.embed_tokens.weight in", "model-00001-of-00002.safetensors",
                                      "tie_word_embeddings", NULL};
    static const char *const type[] = {"lm_head.weight: is F32 there and F64 here", NULL};
    make("other", OTHER, false);
    make("shards", OTHER, true);
    make("type", OTHER_TYPE, false);
    for (int e = 0; e < 2; e++) {
        expect_refused(cli_run(STEP, engines[e], "other", "out"), "one file", one);
        expect_refused(cli_run(STEP, engines[e], "shards", "out"), "shards", two);
        expect_refused(cli_run(STEP, engines[e], "type", "out"), "another type", type);
    }
    expect_refused(cli_wait(cli_start(ASSAY_BIN_DIR "/assay-sim step --model other --batch " LLAMA
                                                    "/batch.safetensors --out out")),
                   "the engine alone", one);
    expect_refused(cli_run("run --engine sim --quiet --layout 1 --precision fp32 --model other"), "run", one);
    expect_refused(cli_run("check --trace " ASSAY_SOURCE_DIR "/golden/foreign/llama --model other"), "check",
                   one);
    expect_refused(cli_run("ckpt convert other copy"), "convert", one);
    expect_refused(cli_run("ckpt merge " LLAMA " other copy --exclude model.layers.*"), "merge", one);
    cr_expect_not(cli_exists(cli_file("copy")));
}

/* What the message says works: another head leaves, or the model is not tied. */
Test(tied_head, ways_out)
{
    char *config, *at;
    make("other", OTHER, false);
    cli_result r = cli_run("ckpt convert other copy --exclude lm_head.weight");
    cli_expect_success(&r, "convert");
    cli_free(&r);
    r = cli_run(STEP, "ref", "copy", "out");
    cli_expect_success(&r, "without it");
    cli_free(&r);
    config = cli_read(cli_file("other/config.json"));
    at = strstr(config, "\"tie_word_embeddings\": true");
    cr_assert_not_null(at);
    memcpy(at, "\"tie_word_embeddings\":false", strlen("\"tie_word_embeddings\":false"));
    cli_write_text(cli_file("other/config.json"), config);
    free(config);
    r = cli_run(STEP, "ref", "other", "out");
    cli_expect_success(&r, "untied");
    cli_free(&r);
}
