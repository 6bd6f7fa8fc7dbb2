/* Malformed safetensors as weights and as batch: one message, exit code 2, no file changed. */
#include "tests/support/cli.h"
#include <jansson.h>

TestSuite(step_files, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

/* A safetensors file in memory: 8 bytes of header length, header, data. */
typedef struct image {
    char *bytes;
    size_t n, header; /* bytes of the file, of the header */
} image;

static image load(const char *path)
{
    image f;
    uint64_t n;
    cr_assert_eq(assay_read_file(path, 1 << 26, &f.bytes, &n), ASSAY_OK, "%s", assay_error_message());
    uint64_t header;
    memcpy(&header, f.bytes, 8);
    f.n = n;
    f.header = header;
    return f;
}

/* Replaces the header by `text`, padded as it must be. */
static void set_header(image *f, const char *text)
{
    const size_t old = 8 + f->header, length = (strlen(text) + 7) / 8 * 8;
    char *bytes = malloc(8 + length + f->n - old);
    const uint64_t n = length;
    memcpy(bytes, &n, 8);
    memset(bytes + 8, ' ', length);
    memcpy(bytes + 8, text, strlen(text));
    memcpy(bytes + 8 + length, f->bytes + old, f->n - old);
    f->n = 8 + length + f->n - old;
    f->header = length;
    free(f->bytes);
    f->bytes = bytes;
}

static json_t *header_of(const image *f)
{
    json_t *h = json_loadb(f->bytes + 8, f->header, 0, NULL);
    cr_assert_not_null(h);
    return h;
}

static void put_header(image *f, json_t *h)
{
    char *text = json_dumps(h, JSON_COMPACT | JSON_SORT_KEYS);
    set_header(f, text);
    free(text);
    json_decref(h);
}

/* The tensor that begins at `offset`. */
static json_t *tensor_at(json_t *h, json_int_t offset)
{
    const char *key;
    json_t *value;
    json_object_foreach(h, key, value)
    {
        json_t *at = json_array_get(json_object_get(value, "data_offsets"), 0);
        if (at != NULL && json_integer_value(at) == offset)
            return value;
    }
    return NULL;
}

static void truncated(image *f)
{
    f->n -= 10;
}
static void header_cut(image *f)
{
    f->n = 40;
}
static void five_bytes(image *f)
{
    f->n = 5;
}
static void empty(image *f)
{
    f->n = 0;
}
static void more_than_declared(image *f)
{
    f->bytes = realloc(f->bytes, f->n + 4);
    memset(f->bytes + f->n, 7, 4);
    f->n += 4;
}
static void oversized_header(image *f)
{
    const uint64_t n = 200000000;
    memcpy(f->bytes, &n, 8);
}
static void absurd_header(image *f)
{
    memset(f->bytes, 0xff, 8);
}
static void overlapping(image *f)
{
    json_t *h = header_of(f);
    json_t *first = json_object_get(tensor_at(h, 0), "data_offsets");
    const json_int_t end = json_integer_value(json_array_get(first, 1));
    json_t *second = json_object_get(tensor_at(h, end), "data_offsets");
    json_array_set_new(second, 0, json_integer(end - 8));
    json_array_set_new(second, 1, json_integer(json_integer_value(json_array_get(second, 1)) - 8));
    put_header(f, h);
}
static void duplicated_key(image *f)
{
    char *text = strndup(f->bytes + 8, f->header), *end = strrchr(text, '}');
    char *twice = malloc(2 * f->header + 64);
    char name[128];
    cr_assert_eq(sscanf(text, "{\"%120[^\"]\"", name), 1);
    sprintf(twice, "%.*s,\"%s\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", (int)(end - text),
            text, name);
    set_header(f, twice);
    free(text);
    free(twice);
}
static void not_json(image *f)
{
    f->bytes[8] = '[';
}
static void unknown_dtype(image *f)
{
    json_t *h = header_of(f);
    json_object_set_new(tensor_at(h, 0), "dtype", json_string("F31"));
    put_header(f, h);
}
static void huge_shape(image *f)
{
    json_t *h = header_of(f);
    json_object_set_new(tensor_at(h, 0), "shape",
                        json_pack("[I,I,I]", (json_int_t)1 << 40, (json_int_t)1 << 40, (json_int_t)3));
    put_header(f, h);
}

static const struct {
    const char *name;
    void (*damage)(image *f);
    const char *words[3]; /* in the message, beside the path */
} damages[] = {
    {"truncated", truncated, {"MetadataIncompleteBuffer", "the header describes"}},
    {"cut in the header", header_cut, {"InvalidHeaderLength", "the file has 32 behind"}},
    {"five bytes", five_bytes, {"HeaderTooSmall", "5 bytes, expected at least 8"}},
    {"empty", empty, {"HeaderTooSmall", "0 bytes, expected at least 8"}},
    {"more than declared", more_than_declared, {"MetadataIncompleteBuffer", "the file holds"}},
    {"oversized header", oversized_header, {"HeaderTooLarge", "200000000"}},
    {"absurd header", absurd_header, {"HeaderTooLarge", "at most"}},
    {"overlapping", overlapping, {"InvalidOffset", "no overlaps"}},
    {"duplicated key", duplicated_key, {"InvalidHeaderDeserialization", "duplicate"}},
    {"not JSON", not_json, {"InvalidHeader"}},
    {"unknown dtype", unknown_dtype, {"F31"}},
    {"huge shape", huge_shape, {"ValidationOverflow"}},
};
enum { N_DAMAGES = sizeof damages / sizeof *damages };

/* An older result must be as it was, and nothing else may lie beside it. */
static void refuse(const char *engine, const char *what, const char *model, const char *batch,
                   const char *const *words)
{
    cli_write_text(cli_file("out"), "an older result");
    cli_result r =
        cli_run("step --engine %s --model %s --batch %s --out out --layout tp2", engine, model, batch);
    cli_expect_refusal(&r, what, words);
    cr_expect_eq(cli_count(r.err, strstr(words[0], "/") ? strrchr(words[0], '/') : words[0]), 1,
                 "%s: one message\n%s", what, r.err);
    char *kept = cli_read(cli_file("out"));
    cr_expect_str_eq(kept, "an older result", "%s: the older result changed", what);
    free(kept);
    (void)unlink(cli_file("out"));
    cli_free(&r);
    r = cli_run("step --engine %s --model %s --batch %s --out out --layout tp2", engine, model, batch);
    cr_expect_eq(r.code, 2);
    cr_expect_not(cli_exists(cli_file("out")), "%s: a result was written", what);
    cli_free(&r);
}

static void damage_each(const char *engine, bool weights)
{
    const char *model = MODELS "llama", *batch = MODELS "llama/batch.safetensors", *path;
    if (weights) {
        cr_assert_eq(assay_mkdir_p(cli_file("model")), ASSAY_OK);
        cli_copy(MODELS "llama/config.json", cli_file("model/config.json"));
        model = "model";
        path = "model/model.safetensors";
    } else
        path = batch = "batch.safetensors";
    for (int i = 0; i < N_DAMAGES; i++) {
        image f = load(weights ? MODELS "llama/model.safetensors" : MODELS "llama/batch.safetensors");
        char what[100];
        damages[i].damage(&f);
        cli_write(cli_file(path), f.bytes, f.n);
        free(f.bytes);
        snprintf(what, sizeof what, "%s, %s, %s", engine, path, damages[i].name);
        refuse(engine, what, model, batch,
               (const char *const[]){path, damages[i].words[0], damages[i].words[1], NULL});
    }
}

Test(step_files, malformed_weights_reference)
{
    damage_each("ref", true);
}
Test(step_files, malformed_weights_engine)
{
    damage_each("sim", true);
}
Test(step_files, malformed_batch_reference)
{
    damage_each("ref", false);
}
Test(step_files, malformed_batch_engine)
{
    damage_each("sim", false);
}

/* --- well-formed files that do not fit the model -----------------------------------------------------------
 */
static void other_weights(void (*change)(json_t *h), const char *const *words)
{
    static const char *const engines[] = {"ref", "sim"};
    image f = load(MODELS "llama/model.safetensors");
    json_t *h = header_of(&f);
    cr_assert_eq(assay_mkdir_p(cli_file("model")), ASSAY_OK);
    cli_copy(MODELS "llama/config.json", cli_file("model/config.json"));
    change(h);
    put_header(&f, h);
    cli_write(cli_file("model/model.safetensors"), f.bytes, f.n);
    free(f.bytes);
    for (int e = 0; e < 2; e++)
        refuse(engines[e], engines[e], "model", MODELS "llama/batch.safetensors", words);
}

static void rename_tensor(json_t *h)
{
    json_object_set(h, "model.norm.surprise", json_object_get(h, "model.norm.weight"));
    json_object_del(h, "model.norm.weight");
}
Test(step_files, a_missing_tensor_is_named)
{
    other_weights(rename_tensor, (const char *const[]){"error: model", "model.norm.", NULL});
}

static void add_tensor(json_t *h)
{
    json_object_set_new(h, "model.surprise",
                        json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "F32", "shape", 0, "data_offsets", 0, 0));
}
Test(step_files, a_tensor_without_a_place_is_named)
{
    other_weights(add_tensor, (const char *const[]){"model.surprise", NULL});
}

static void reshape_tensor(json_t *h)
{
    json_object_set_new(json_object_get(h, "model.norm.weight"), "shape", json_pack("[i,i]", 8, 8));
}
Test(step_files, a_misshaped_tensor_is_named)
{
    other_weights(reshape_tensor, (const char *const[]){"model.norm.weight", "[64]", "[8,8]", NULL});
}

static void integers(json_t *h)
{
    json_object_set_new(json_object_get(h, "model.norm.weight"), "dtype", json_string("I32"));
}
Test(step_files, a_tensor_of_integers_is_named)
{
    other_weights(integers, (const char *const[]){"model.norm.weight", "I32", NULL});
}

Test(step_files, an_out_file_in_no_folder_is_refused_before_the_work)
{
    static const char *const engines[] = {"ref", "sim"};
    for (int e = 0; e < 2; e++) {
        cli_result r = cli_run("step --engine %s --model " MODELS "llama --batch " MODELS
                               "llama/batch.safetensors --out nowhere/out",
                               engines[e]);
        cli_expect_refusal(&r, engines[e], (const char *const[]){"nowhere/out", NULL});
        cr_expect_not(cli_exists(cli_file("nowhere")));
        cli_free(&r);
    }
}

/* --- what a run may write ------------------------------------------------------------------------------------ */
Test(step_files, an_output_that_is_an_input_is_refused_before_the_work)
{
    static const struct {
        const char *options, *word;
    } rows[] = {
        {"--out batch.safetensors", "is the batch file"},
        {"--out link.safetensors", "is the batch file"},
        {"--out hard.safetensors", "is the batch file"},
        {"--out m/model.safetensors", "among the model's own files"},
        {"--out m/../m/new.safetensors", "among the model's own files"},
        {"--out n/new.safetensors", "among the model's own files"},
        {"--out m", "expected a file"},
        {"--out ok --trace m", "among the model's own files"},
        {"--out ok --trace m/", "among the model's own files"},
    };
    static const char *const engines[] = {"ref", "sim"};
    cr_assert_eq(assay_mkdir_p(cli_file("m")), ASSAY_OK);
    cli_copy(MODELS "llama/config.json", cli_file("m/config.json"));
    cli_copy(MODELS "llama/model.safetensors", cli_file("m/model.safetensors"));
    cli_copy(MODELS "llama/batch.safetensors", cli_file("batch.safetensors"));
    cr_assert_eq(symlink("batch.safetensors", cli_file("link.safetensors")), 0);
    cr_assert_eq(link(cli_file("batch.safetensors"), cli_file("hard.safetensors")), 0);
    cr_assert_eq(symlink("m", cli_file("n")), 0);
    char *batch = cli_read(cli_file("batch.safetensors"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int e = 0; e < 2; e++) {
            cli_result r = cli_run("step --engine %s --model m --batch batch.safetensors %s", engines[e],
                                   rows[i].options);
            cli_expect_refusal(&r, rows[i].options, (const char *const[]){rows[i].word, NULL});
            cli_free(&r);
        }
    char *after = cli_read(cli_file("batch.safetensors"));
    cr_expect_str_eq(batch, after);
    cr_expect_not(cli_exists(cli_file("m/new.safetensors")) || cli_exists(cli_file("m/index.json")));
    free(batch);
    free(after);
}

Test(step_files, nothing_is_written_into_a_checkpoint_that_is_read)
{
    static const char *const options[] = {"--out c/out", "--out ok --trace c", "--out ok --save c/next"};
    cli_result r = cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                           "llama/train_batch.safetensors --out first --save c --save-after 1");
    cli_expect_success(&r, "save");
    cli_free(&r);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        r = cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                    "llama/train_batch.safetensors --load c %s",
                    options[i]);
        cli_expect_refusal(&r, options[i],
                           (const char *const[]){"among the files of the checkpoint c", NULL});
        cli_free(&r);
    }
}

/* Weights that are there but not read are no reason to draw others. */
Test(step_files, weights_of_another_form_are_refused)
{
    static const struct {
        const char *name, *link, *word; /* link: what it points to; NULL: a file */
    } rows[] = {
        {"model.safetensors", "moved-away.safetensors", "expected model.safetensors"},
        {"model.safetensors.index.json", "nowhere.json", "expected model.safetensors"},
        {"pytorch_model.bin", NULL, "w: holds pytorch_model.bin, which is not read"},
        {"pytorch_model-00001-of-00002.bin", NULL,
         "w: holds pytorch_model-00001-of-00002.bin, which is not read"},
        {"pytorch_model.bin.index.json", NULL, "w: holds pytorch_model.bin.index.json, which is not read"},
        {"model-00001-of-00002.safetensors", NULL,
         "w: holds model-00001-of-00002.safetensors, which is not read"},
        {"llama.gguf", NULL, "w: holds llama.gguf, which is not read"},
        {"consolidated.00.pth", NULL, "w: holds consolidated.00.pth, which is not read"},
        {"adapter_model.safetensors", NULL, "w: holds adapter_model.safetensors, which is not read"},
    };
    static const char *const engines[] = {"ref", "sim"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[CLI_PATH];
        cr_assert_eq(assay_mkdir_p(cli_file("w")), ASSAY_OK);
        cli_copy(MODELS "llama/config.json", cli_file("w/config.json"));
        snprintf(path, sizeof path, "w/%s", rows[i].name);
        if (rows[i].link)
            cr_assert_eq(symlink(rows[i].link, cli_file(path)), 0);
        else
            cli_write_text(cli_file(path), "weights");
        for (int e = 0; e < 2; e++) {
            cli_result r = cli_run(
                "step --engine %s --model w --batch " MODELS "llama/batch.safetensors --out out", engines[e]);
            cli_expect_refusal(&r, rows[i].name, (const char *const[]){rows[i].word, NULL});
            cr_expect_not(cli_exists(cli_file("out")));
            cli_free(&r);
        }
        cr_assert_eq(assay_remove_tree(cli_file("w"), cli_folder), ASSAY_OK);
    }
}
