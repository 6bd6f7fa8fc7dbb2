/* `assay ckpt merge` against mergekit and PEFT (golden/make_merge.py), and what it refuses. */
#include "core/base/json.h"
#include "ref/replay.h"
#include "ref/weights_read.h"
#include "tests/support/cli.h"

#include <dirent.h>

TestSuite(merge, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

#define GOLDEN ASSAY_SOURCE_DIR "/golden/merge/"

static cli_result merge(const char *arguments, const char *out, const char *more)
{
    char models[CLI_LINE] = "", copy[CLI_LINE], rest[CLI_LINE] = "";
    snprintf(copy, sizeof copy, "%s", arguments);
    /* Names of folders stand before the options, the base behind --base. */
    bool is_option = false, is_base = false;
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        is_option = is_option || word[0] == '-';
        char *to = is_option ? rest : models;
        const size_t used = strlen(to);
        snprintf(to + used, CLI_LINE - used, " %s%s", !is_option || is_base ? GOLDEN : "", word);
        is_base = strcmp(word, "--base") == 0;
    }
    return cli_run("ckpt merge%s %s%s %s", models, out, rest, more);
}

static const assay_tensor_info *find(const assay_tensorfile *f, const char *name)
{
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    cr_assert_not_null(t, "%s: no tensor %s", assay_tensorfile_path(f), name);
    return t;
}

static assay_tensorfile *open_file(const char *path)
{
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, path), ASSAY_OK, "%s", assay_error_message());
    return f;
}

/* Sums of at most 4 products, a division, sums of up to 104 squares: some dozen roundings of numbers not above the greatest of the models. */
static void expect_values(const char *name, const assay_tensorfile *expected, const assay_tensorfile *exact,
                          const assay_tensorfile *rounded)
{
    cr_assert_eq(assay_tensorfile_count(exact), 11);
    for (int64_t k = 0; k < 11; k++) {
        const assay_tensor_info *x = assay_tensorfile_at(exact, k), *b = find(rounded, x->name);
        char key[256];
        snprintf(key, sizeof key, "%s/%s", name, x->name);
        const assay_tensor_info *e = find(expected, key);
        double greatest = 1.0;
        cr_assert(e->count == x->count && x->dtype == ASSAY_F64 && b->dtype == ASSAY_BF16);
        for (int64_t i = 0; i < e->count; i++)
            greatest = fmax(greatest, fabs(ref_stored_element(e->data, ASSAY_F64, i)));
        for (int64_t i = 0; i < e->count; i++) {
            const double want = ref_stored_element(e->data, ASSAY_F64, i);
            const double found = ref_stored_element(x->data, ASSAY_F64, i);
            cr_assert(fabs(found - want) <= 0x1p-53 * 128.0 * greatest, "%s[%lld]: %.17g, expected %.17g",
                      key, (long long)i, found, want);
            /* One rounding: of the double that --dtype fp64 shows. */
            cr_assert_eq(ref_stored_element(b->data, ASSAY_BF16, i), ref_round(found, ASSAY_BF16), "%s[%lld]",
                         key, (long long)i);
        }
    }
}

Test(merge, as_mergekit_and_peft_do)
{
    json_t *cases = NULL;
    const char *name;
    json_t *arguments;
    assay_tensorfile *expected = open_file(GOLDEN "expected.safetensors");
    cr_assert_eq(assay_json_load(&cases, GOLDEN "cases.json"), ASSAY_OK);
    cr_assert_eq(json_object_size(cases), 12);
    json_object_foreach(cases, name, arguments)
    {
        char a[CLI_PATH], b[CLI_PATH];
        snprintf(a, sizeof a, "%s/%s_fp64", cli_folder, name);
        snprintf(b, sizeof b, "%s/%s_bf16", cli_folder, name);
        cli_result r = merge(json_string_value(arguments), a, "--dtype fp64");
        cli_expect_success(&r, name);
        cli_free(&r);
        r = merge(json_string_value(arguments), b, "--dtype bf16 --max-shard-size 300");
        cli_expect_success(&r, name);
        cli_free(&r);
        assay_tensorfile *exact = open_file(a), *rounded = open_file(b);
        expect_values(name, expected, exact, rounded);
        assay_tensorfile_close(exact);
        assay_tensorfile_close(rounded);
    }
    json_decref(cases);
    assay_tensorfile_close(expected);
}

static void expect_same(const char *a, const char *b, bool same)
{
    assay_tensorfile *x = open_file(a), *y = open_file(b);
    bool equal = assay_tensorfile_count(x) == assay_tensorfile_count(y);
    for (int64_t i = 0; i < assay_tensorfile_count(x) && equal; i++) {
        const assay_tensor_info *t = assay_tensorfile_at(x, i), *u = assay_tensorfile_find(y, t->name);
        equal = u != NULL && t->dtype == u->dtype && t->bytes == u->bytes &&
                memcmp(t->data, u->data, t->bytes) == 0;
    }
    cr_expect_eq(equal, same, "%s and %s", a, b);
    assay_tensorfile_close(x);
    assay_tensorfile_close(y);
}

static void expect_merged(const char *arguments, const char *out, const char *more)
{
    cli_result r = merge(arguments, out, more);
    cli_expect_success(&r, arguments);
    cli_free(&r);
}

Test(merge, laws)
{
    /* Equal models are what they were, in any shards; dare that keeps all is task arithmetic; no weight, the base. */
    expect_merged("b b b", cli_file("bbb"), "");
    expect_same(cli_file("bbb"), GOLDEN "b", true);
    expect_merged("a c --method task_arithmetic --base base --weight 0.3,0.5", cli_file("task"), "");
    expect_merged("a c --method dare_linear --base base --weight 0.3,0.5 --density 1 --merge-seed 4",
                  cli_file("dare"), "");
    expect_same(cli_file("task"), cli_file("dare"), true);
    expect_merged("a c --method ties --base base --density 0", cli_file("none"), "");
    expect_same(cli_file("none"), GOLDEN "base", true);
    expect_merged("a b --method slerp --t 0 --dtype fp64", cli_file("t0"), "");
    expect_merged("a --dtype fp64", cli_file("a64"), "");
    expect_same(cli_file("t0"), cli_file("a64"), true);
    /* A seed is a result, another one another; another cut of the files changes nothing. */
    expect_merged("a c --method dare_ties --base base --density 0.5 --merge-seed 4", cli_file("s4"), "");
    expect_merged("a c --method dare_ties --base base --density 0.5 --merge-seed 4", cli_file("s4s"),
                  "--max-shard-size 100");
    expect_merged("a c --method dare_ties --base base --density 0.5 --merge-seed 5", cli_file("s5"), "");
    expect_same(cli_file("s4"), cli_file("s4s"), true);
    expect_same(cli_file("s4"), cli_file("s5"), false);
}

Test(merge, keys_can_be_left_out)
{
    expect_merged("a --exclude *.mlp.* --exclude model.norm.weight", cli_file("x"), "");
    assay_tensorfile *f = open_file(cli_file("x"));
    cr_expect_eq(assay_tensorfile_count(f), 7);
    cr_expect_null(assay_tensorfile_find(f, "model.norm.weight"));
    assay_tensorfile_close(f);
    expect_merged("a c --include *norm* --exclude *post*", cli_file("y"), "");
    f = open_file(cli_file("y"));
    cr_expect_eq(assay_tensorfile_count(f), 2);
    assay_tensorfile_close(f);
    /* What only one of them has is no error once it is left out. */
    expect_merged("a c", cli_file("z"), "--exclude *o_proj*");
    cli_result r = cli_run("ckpt merge %s " GOLDEN "a %s", cli_file("z"), cli_file("no"));
    cr_expect(r.code == 2 && strstr(r.err, "o_proj.weight: is in") != NULL, "%s", r.err);
    cli_free(&r);
    r = cli_run("ckpt merge %s " GOLDEN "a %s --exclude *o_proj*", cli_file("z"), cli_file("yes"));
    cli_expect_success(&r, "left out");
    cli_free(&r);
}

static void refuse(const char *words, const char *arguments)
{
    cli_result r = cli_run("ckpt merge %s", arguments);
    cr_expect(r.code == 2 && strstr(r.err, words) != NULL, "expected '%s' in %s", words, r.err);
    cli_free(&r);
    cr_expect(access(cli_file("refused"), F_OK) != 0, "%s: something was written", words);
}

#define REFUSE(words, ...)                                                                                   \
    do {                                                                                                     \
        char line[CLI_LINE];                                                                                 \
        snprintf(line, sizeof line, __VA_ARGS__);                                                            \
        refuse(words, line);                                                                                 \
    } while (0)

static void write_text(const char *path, const char *from, const char *to)
{
    char command[CLI_LINE];
    snprintf(command, sizeof command, "sed -i 's|%s|%s|' %s", from, to, path);
    cr_assert_eq(system(command), 0);
}

Test(merge, what_is_not_one_family_is_refused)
{
    char command[CLI_LINE];
    char other[CLI_PATH];
    snprintf(other, sizeof other, "%s/other", cli_folder);
    snprintf(command, sizeof command, "cp -r " GOLDEN "c %s", other);
    cr_assert_eq(system(command), 0);
    write_text(cli_file("other/config.json"), "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05");
    REFUSE("rms_norm_eps differs in", GOLDEN "a %s %s", other, cli_file("refused"));
    write_text(cli_file("other/config.json"), "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06");
    write_text(cli_file("other/config.json"), "\"rms_norm_eps\"", "\"pad_token_id\": -1, \"rms_norm_eps\"");
    REFUSE("pad_token_id differs in", GOLDEN "a %s %s", other, cli_file("refused"));
    write_text(cli_file("other/config.json"), "\"pad_token_id\": -1, ", "");
    write_text(cli_file("other/model.safetensors"), "\\[13,8\\]", "[8,13]");
    REFUSE("embed_tokens.weight: has 104 elements", GOLDEN "a %s %s", other, cli_file("refused"));
    write_text(cli_file("other/model.safetensors"), "model.norm.weight", "model.Norm.weight");
    REFUSE("model.norm.weight: is in", GOLDEN "a %s %s --exclude *embed*", other, cli_file("refused"));
    write_text(cli_file("other/model.safetensors"), "model.Norm.weight", "model.norm.weight");
    write_text(cli_file("other/model.safetensors"), "\\[8,13\\]", "[13,8]");
    write_text(cli_file("other/model.safetensors"), "F64", "I64");
    REFUSE("expected F64, F32, BF16, F16 or F8_E4M3, found I64", "%s %s --dtype fp32", other,
           cli_file("refused"));
    REFUSE("--base: ties needs", GOLDEN "a " GOLDEN "%s %s --method ties", "b", cli_file("refused"));
    REFUSE("--base: linear has no", GOLDEN "a %s %s --base " GOLDEN "base", GOLDEN "b", cli_file("refused"));
    REFUSE("slerp: expected two models, found 1", "%s %s --method slerp", GOLDEN "b", cli_file("refused"));
    REFUSE("--weight: expected one number or 2", GOLDEN "a %s %s --weight 1,2,3", GOLDEN "b",
           cli_file("refused"));
    REFUSE("add up to 0", GOLDEN "a %s %s --weight 1,-1", GOLDEN "b", cli_file("refused"));
    REFUSE("--density: linear keeps all", GOLDEN "a %s %s --density 0.5", GOLDEN "b", cli_file("refused"));
    REFUSE("--t: linear has no way", GOLDEN "a %s %s --t 0.3", GOLDEN "b", cli_file("refused"));
    REFUSE("--lambda: slerp merges models", GOLDEN "a %s %s --method slerp --lambda 1", GOLDEN "b",
           cli_file("refused"));
    REFUSE("--majority-sign-method: dare_linear elects no",
           "%s %s --method dare_linear --base " GOLDEN "base --majority-sign-method total", GOLDEN "b",
           cli_file("refused"));
    REFUSE("--merge-seed: ties draws nothing", "%s %s --method ties --base " GOLDEN "base --merge-seed 0",
           GOLDEN "b", cli_file("refused"));
    REFUSE("divides by it", "%s %s --method dare_linear --density 0 --base " GOLDEN "base", GOLDEN "b",
           cli_file("refused"));
    REFUSE("--density: expected a number from 0 to 1, found nan", "%s %s --density nan", GOLDEN "b",
           cli_file("refused"));
    REFUSE("--method: expected one of linear", "%s %s --method mean", GOLDEN "b", cli_file("refused"));
    REFUSE("--exclude no*: no tensor", "%s %s --exclude no*", GOLDEN "b", cli_file("refused"));
    REFUSE("no tensor is left", "%s %s --exclude *", GOLDEN "b", cli_file("refused"));
    REFUSE("more than F16 holds", "%s %s --dtype fp16 --weight 1e6 --normalize false", GOLDEN "a",
           cli_file("refused"));
    /* Nothing is written over, and nothing that was begun stays. */
    expect_merged("a", cli_file("there"), "");
    cli_result r = merge("a", cli_file("there"), "");
    cr_expect(r.code == 2 && strstr(r.err, "exists already") != NULL, "%s", r.err);
    cli_free(&r);
    DIR *d = opendir(cli_folder);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        cr_expect_null(strstr(e->d_name, ".tmp-"), "%s was left behind", e->d_name);
    closedir(d);
}

/* Checkpoints are models, whole ones: of two steps, as base and as what was trained from it; a damaged one is refused. */
Test(merge, checkpoints_are_models)
{
    char command[CLI_LINE], run[CLI_PATH];
    snprintf(run, sizeof run, "%s/run", cli_folder);
    cli_result r = cli_run("step --engine ref --precision fp32 --model " MODELS "llama --batch " MODELS
                           "llama/train_batch.safetensors --out %s --save %s --save-interval 1 --train-iters "
                           "2 --lr-decay-iters 9",
                           cli_file("out"), run);
    cli_expect_success(&r, "train");
    cli_free(&r);
    r = cli_run("ckpt merge %s %s --method task_arithmetic --base %s/iter_0000001", run, cli_file("last"),
                run);
    cli_expect_success(&r, "the folder's last");
    cli_free(&r);
    r = cli_run("ckpt convert %s/latest %s", run, cli_file("plain"));
    cli_expect_success(&r, "convert");
    cli_free(&r);
    /* base + (last - base) in double, rounded to F32: the last itself. */
    expect_same(cli_file("last"), cli_file("plain"), true);
    r = cli_run("ckpt merge %s/iter_0000001 %s --method linear", run, cli_file("first"));
    cli_expect_success(&r, "the first");
    cli_free(&r);
    expect_same(cli_file("first"), cli_file("last"), false);
    snprintf(command, sizeof command,
             "printf x | dd of=$(ls %s/iter_0000001/model-0*) bs=1 seek=9000 conv=notrunc status=none", run);
    cr_assert_eq(system(command), 0);
    REFUSE("expected SHA-256", "%s %s --method task_arithmetic --base %s/iter_0000001", run,
           cli_file("refused"), run);
}

/* A target with slashes behind it is the same folder; nothing else is left beside it. */
Test(merge, a_target_may_end_in_slashes)
{
    static const char *const targets[] = {"one/", "deep/two//"};
    for (int i = 0; i < 2; i++) {
        cli_result r = cli_run("ckpt convert " MODELS "llama %s", targets[i]);
        cli_expect_success(&r, targets[i]);
        cli_free(&r);
        r = cli_run("ckpt convert " MODELS "llama %s", targets[i]);
        cli_expect_refusal(&r, targets[i], (const char *const[]){"exists already", NULL});
        cli_free(&r);
    }
    expect_same(cli_file("one"), MODELS "llama", true);
    expect_same(cli_file("deep/two"), MODELS "llama", true);
    int entries = 0;
    DIR *dir = opendir(cli_folder);
    cr_assert_not_null(dir);
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        entries += strstr(e->d_name, "tmp") != NULL;
    closedir(dir);
    cr_expect_eq(entries, 0);
    dir = opendir(cli_file("one"));
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        entries += strstr(e->d_name, "tmp") != NULL;
    closedir(dir);
    cr_expect_eq(entries, 0);
}

/* What the reader understands is compared: a length that nothing reads is a warning, the same length behind yarn is a model. */
Test(merge, members_that_change_no_number_are_warned_about)
{
    char command[CLI_LINE];
    snprintf(command, sizeof command, "cp -r " GOLDEN "c %s/other", cli_folder);
    cr_assert_eq(system(command), 0);
    write_text(cli_file("other/config.json"), "\"max_position_embeddings\": 64",
               "\"max_position_embeddings\": 128, \"pretraining_tp\": 2, \"initializer_range\": 0.5");
    cli_result r = cli_run("ckpt merge " GOLDEN "a other merged");
    cli_expect_success(&r, "warned");
    cr_expect_eq(cli_count(r.err, "WARNING: config.json: "), 3, "%s", r.err);
    cr_expect(strstr(r.err, "max_position_embeddings differs in") &&
                  strstr(r.err, "pretraining_tp differs in") && strstr(r.err, "which changes no number"),
              "%s", r.err);
    cli_free(&r);
    r = cli_run("ckpt merge " GOLDEN "a " GOLDEN "b plain");
    cr_expect(r.code == 0 && strstr(r.err, "WARNING") == NULL, "%s", r.err);
    cli_free(&r);
    /* yarn: absent, the original length is this one */
    snprintf(command, sizeof command, "cp -r %s/other %s/base", cli_folder, cli_folder);
    cr_assert_eq(system(command), 0);
    for (int i = 0; i < 2; i++)
        write_text(cli_file(i == 0 ? "other/config.json" : "base/config.json"), "\"rope_theta\": 10000.0",
                   "\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}");
    write_text(cli_file("base/config.json"), "\"max_position_embeddings\": 128",
               "\"max_position_embeddings\": 64");
    r = cli_run("ckpt merge other base merged2");
    cli_expect_refusal(&r, "yarn",
                       (const char *const[]){"original_max_position_embeddings differs in", NULL});
    cli_free(&r);
    /* of a class that is not read every member counts */
    for (int i = 0; i < 2; i++)
        write_text(cli_file(i == 0 ? "other/config.json" : "base/config.json"), "\"llama\"", "\"unheard\"");
    r = cli_run("ckpt merge other base merged2");
    cli_expect_refusal(&r, "unheard", (const char *const[]){"max_position_embeddings differs in", NULL});
    cli_free(&r);
}

/* Tokenizer, templates, processors and code come along; what does not is named. */
Test(merge, nothing_beside_the_weights_is_lost_without_a_word)
{
    static const char *const come[] = {"vocab.txt",
                                       "tiktoken.model",
                                       "spiece.model",
                                       "sentencepiece.bpe.model",
                                       "qwen.tiktoken",
                                       "tekken.json",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "preprocessor_config.json",
                                       "video_preprocessor_config.json",
                                       "processor_config.json",
                                       "modeling_kimi.py",
                                       "additional_chat_templates/rag.jinja",
                                       NULL};
    static const char *const stay[] = {"LICENSE", "extra.json", "original", NULL};
    char command[CLI_LINE];
    snprintf(command, sizeof command,
             "cp -r " GOLDEN "a %s/from && mkdir %s/from/original %s/from/additional_chat_templates && touch "
             "%s/from/pytorch_model.bin",
             cli_folder, cli_folder, cli_folder, cli_folder);
    cr_assert_eq(system(command), 0);
    for (int k = 0; k < 2; k++)
        for (const char *const *name = k == 0 ? come : stay; *name != NULL; name++) {
            snprintf(command, sizeof command, "%s/from/%s", cli_folder, *name);
            if (strcmp(*name, "original") != 0)
                cli_write_text(command, *name);
        }
    cli_result r = cli_run("ckpt convert from to");
    cli_expect_success(&r, "convert");
    cr_expect_not_null(strstr(r.err, "WARNING: from: not copied: LICENSE, extra.json, original/\n"), "%s",
                       r.err);
    cli_free(&r);
    for (const char *const *name = come; *name != NULL; name++) {
        snprintf(command, sizeof command, "cmp %s/from/%s %s/to/%s", cli_folder, *name, cli_folder, *name);
        cr_expect_eq(system(command), 0, "%s", *name);
    }
    for (const char *const *name = stay; *name != NULL; name++) {
        snprintf(command, sizeof command, "%s/to/%s", cli_folder, *name);
        cr_expect(!cli_exists(command), "%s", *name);
    }
}
