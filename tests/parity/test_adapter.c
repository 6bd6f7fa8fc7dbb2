/* `assay ckpt lora-merge` and `lora-save` against PEFT's merge_and_unload (golden/make_adapters.py), and what they refuse. */
#include "core/base/pattern.h"
#include "core/files/adapter.h"
#include "ref/adapter.h"
#include "ref/weights_read.h"
#include "tests/support/cli.h"

TestSuite(adapter, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

#define ADAPTERS ASSAY_SOURCE_DIR "/golden/adapters/"

#define GPT2 "../adapters/gpt2_model" /* weights [in, out] */

static const struct {
    const char *name, *model;
    int tensors; /* that the adapter changes */
    int added;   /* heads that are no longer tied */
} cases[] = {{"llama", "llama", 10, 0},
             {"llama_embedding", "llama", 8, 0},
             {"qwen3", "qwen3", 8, 0},
             {"qwen2_dora", "qwen2", 9, 0},
             {"qwen2_layers", "qwen2", 2, 0},
             {"qwen3_moe", "qwen3_moe", 16, 0},
             {"gpt2", GPT2, 6, 0},
             {"gpt2_dora", GPT2, 4, 0},
             {"qwen2_saved", "qwen2", 18, 0},
             {"qwen3_moe_saved", "qwen3_moe", 29, 0},
             {"llama_saved_embedding", "llama", 4, 1},
             {"llama_saved_head", "llama", 3, 1}};
enum { CASES = sizeof cases / sizeof *cases };
static const struct {
    const char *word;
    assay_dtype dtype;
} types[] = {{"fp64", ASSAY_F64}, {"fp32", ASSAY_F32}, {"bf16", ASSAY_BF16}};

static assay_tensorfile *open_file(const char *path)
{
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, path), ASSAY_OK, "%s", assay_error_message());
    return f;
}

static void run(const char *what, const char *a, const char *b, const char *c, const char *more)
{
    cli_result r = cli_run("ckpt %s %s %s %s %s", what, a, b, c, more);
    cli_expect_success(&r, what);
    cli_free(&r);
}

static double *absolute(const assay_tensor_info *t)
{
    double *x = malloc((size_t)t->count * sizeof *x);
    for (int64_t i = 0; i < t->count; i++)
        x[i] = fabs(ref_stored_element(t->data, t->dtype, i));
    return x;
}

/* How far PEFT, which multiplies in fp32 and rounds product, difference and sum to the type, may lie from the truth, element by element:
 * u = 2^-p of the type; s = scale * |B| |A|, above the difference; f, what DoRA multiplies a row by. */
static double allowance(assay_dtype dtype, const assay_lora_module *m, double s, double merged, double f,
                        int64_t columns)
{
    const double u = ldexp(1.0, -assay_dtype_precision(dtype));
    const double gemm = dtype == ASSAY_F64 ? 0x1p-53 : 0x1p-24;
    if (m == NULL || m->r == 0)
        return 0.0;
    const double sum = f * (u * 2.0 * s + gemm * (double)(m->r + 3) * s) + 2.0 * u * fabs(merged);
    /* the length of a row: a sum of squares, a root, a division, all in the type's or in single precision */
    return m->part[ASSAY_LORA_MAGNITUDE] == NULL ? sum
                                                 : sum + fabs(merged) * (8.0 * u + gemm * (double)columns);
}

/* What DoRA multiplies the row of an element by, of a transposed one (Conv1D) its column; 1 without it. */
static double factor(const assay_lora_module *m, double scale, const assay_tensor_info *before, int64_t row,
                     bool turned)
{
    if (m == NULL || m->part[ASSAY_LORA_MAGNITUDE] == NULL)
        return 1.0;
    const int64_t columns = before->shape[!turned], rows = before->shape[turned];
    double sum = 0.0;
    for (int64_t i = 0; i < columns; i++) {
        double x =
            ref_stored_element(before->data, before->dtype, turned ? i * rows + row : row * columns + i);
        for (int64_t k = 0; k < m->r; k++)
            x += scale *
                 ref_stored_element(m->part[ASSAY_LORA_B]->data, m->part[ASSAY_LORA_B]->dtype,
                                    row * m->r + k) *
                 ref_stored_element(m->part[ASSAY_LORA_A]->data, m->part[ASSAY_LORA_A]->dtype,
                                    k * columns + i);
        sum += x * x;
    }
    return fabs(ref_stored_element(m->part[ASSAY_LORA_MAGNITUDE]->data, m->part[ASSAY_LORA_MAGNITUDE]->dtype,
                                   row)) /
           sqrt(sum);
}

static void expect_tensor(const char *what, assay_dtype dtype, const assay_lora_module *m, bool use_rslora,
                          bool turned, const assay_tensor_info *before, const assay_tensor_info *ours,
                          const assay_tensor_info *theirs)
{
    const double scale =
        m != NULL && m->r > 0 ? m->alpha / (use_rslora ? sqrt((double)m->r) : (double)m->r) : 0.0;
    double f = 1.0, *s = calloc((size_t)ours->count, sizeof *s);
    cr_assert(ours->dtype == theirs->dtype && ours->count == theirs->count, "%s", what);
    if (m != NULL && m->r > 0) {
        const bool embedding = m->part[ASSAY_LORA_A] == NULL;
        double *a = absolute(m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A]);
        double *b = absolute(m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B]);
        if (embedding || turned)
            ref_lora_delta_embedding(s, a, b, ours->shape[0], ours->shape[1], m->r, scale);
        else
            ref_lora_delta(s, a, b, ours->shape[0], ours->shape[1], m->r, scale);
        free(a);
        free(b);
    }
    for (int64_t i = 0; i < ours->count; i++) {
        const double x = ref_stored_element(ours->data, dtype, i),
                     y = ref_stored_element(theirs->data, dtype, i);
        const int64_t columns = ours->shape[ours->ndim - 1];
        if (turned || i % columns == 0)
            f = factor(m, scale, before, turned ? i % columns : i / columns, turned);
        const double bound = allowance(dtype, m, s[i], fmax(fabs(x), fabs(y)), f, columns);
        cr_assert(fabs(x - y) <= bound, "%s[%lld]: %.17g, PEFT has %.17g, allowed %g", what, (long long)i, x,
                  y, bound);
    }
    free(s);
}

static void expect_merged(const char *folder, const char *base, int c, int t)
{
    char path[CLI_PATH];
    int changed = 0;
    assay_adapter a;
    snprintf(path, sizeof path, ADAPTERS "%s", cases[c].name);
    cr_assert_eq(assay_adapter_open(&a, path), ASSAY_OK, "%s", assay_error_message());
    snprintf(path, sizeof path, ADAPTERS "%s/merged.safetensors", cases[c].name);
    assay_tensorfile *golden = open_file(path), *ours = open_file(folder), *before = open_file(base);
    cr_expect_eq(assay_tensorfile_count(ours), assay_tensorfile_count(before) + cases[c].added);
    for (int64_t i = 0; i < assay_tensorfile_count(ours); i++) {
        const assay_tensor_info *x = assay_tensorfile_at(ours, i);
        char key[256], module[256];
        snprintf(key, sizeof key, "%s/%s", types[t].word, x->name);
        snprintf(module, sizeof module, "%.*s", (int)(strlen(x->name) - strlen(".weight")), x->name);
        const assay_tensor_info *want = assay_tensorfile_find(golden, key),
                                *old = assay_tensorfile_find(before, x->name);
        cr_assert(old != NULL || (want != NULL && cases[c].added > 0), "%s: %s", folder, x->name);
        if (want == NULL) {
            cr_expect(x->bytes == old->bytes && memcmp(x->data, old->data, x->bytes) == 0, "%s: %s changed",
                      folder, x->name);
            continue;
        }
        changed++;
        expect_tensor(key, types[t].dtype, assay_adapter_find(&a, module), a.use_rslora,
                      strcmp(cases[c].model, GPT2) == 0, old, x, want);
    }
    cr_expect_eq(changed, cases[c].tensors, "%s: %d tensors", folder, changed);
    if (cases[c].added > 0) {
        json_t *config = NULL;
        snprintf(path, sizeof path, "%s/config.json", folder);
        cr_assert_eq(assay_json_load(&config, path), ASSAY_OK);
        cr_expect(json_is_false(json_object_get(config, "tie_word_embeddings")), "%s: is tied", folder);
        json_decref(config);
    }
    assay_tensorfile_close(golden);
    assay_tensorfile_close(ours);
    assay_tensorfile_close(before);
    assay_adapter_close(&a);
}

Test(adapter, merged_as_peft_does)
{
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < 3; t++) {
            char base[CLI_PATH], saved[CLI_PATH], merged[CLI_PATH], more[64];
            snprintf(base, sizeof base, "%s/%s_%s_base", cli_folder, cases[c].name, types[t].word);
            snprintf(saved, sizeof saved, "%s/%s_%s_adapter", cli_folder, cases[c].name, types[t].word);
            snprintf(merged, sizeof merged, "%s/%s_%s", cli_folder, cases[c].name, types[t].word);
            snprintf(more, sizeof more, "--dtype %s", types[t].word);
            char model[CLI_PATH], adapter[CLI_PATH];
            snprintf(model, sizeof model, MODELS "%s", cases[c].model);
            snprintf(adapter, sizeof adapter, ADAPTERS "%s", cases[c].name);
            run("convert", model, base, "", more);
            run("lora-save", adapter, saved, "", more);
            run("lora-merge", base, saved, merged, t == 1 ? "--max-shard-size 20000" : "");
            expect_merged(merged, base, c, t);
        }
}

/* A merged model is one for both engines; B of zeros changes nothing. */
Test(adapter, a_merged_model_runs)
{
    cli_result r;
    run("lora-merge", MODELS "qwen3_moe", ADAPTERS "qwen3_moe", cli_file("m"), "--dtype bf16");
    for (int e = 0; e < 2; e++) {
        r = cli_run("step --engine %s --model %s --batch " MODELS "qwen3_moe/batch.safetensors --out %s",
                    e == 0 ? "ref" : "sim --layout tp2,ep2", cli_file("m"), cli_file("out"));
        cli_expect_success(&r, "step");
        cli_free(&r);
    }
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */
static const char *copy_of(const char *adapter, const char *edit)
{
    static char dir[CLI_PATH];
    char command[CLI_LINE];
    snprintf(dir, sizeof dir, "%s/copy", cli_folder);
    snprintf(command, sizeof command, "rm -rf %s && cp -r " ADAPTERS "%s %s && cd %s && %s", dir, adapter,
             dir, dir, edit);
    cr_assert_eq(system(command), 0, "%s", edit);
    return dir;
}

#define CONFIG(from, to) "sed -i 's/" from "/" to "/' adapter_config.json"
#define TENSORS(from, to) "sed -i 's/" from "/" to "/' adapter_model.safetensors"

Test(adapter, what_is_not_merged_is_refused_by_name)
{
    static const struct {
        const char *adapter, *model, *edit, *words;
    } rows[] = {
        {"llama", "llama", CONFIG("\"bias\": \"none\"", "\"bias\": \"all\""),
         "bias: expected none, found all"},
        {"llama", "llama", CONFIG("\"LORA\"", "\"IA3\""), "peft_type: expected LORA, found IA3"},
        {"llama", "llama", CONFIG("\"r\": 4", "\"r\": 5"), "expected [5,...], the rank of"},
        {"llama", "llama", CONFIG("\"r\": 4", "\"r\": 0"), "r: "},
        {"llama", "llama", CONFIG("\"use_dora\": false", "\"use_dora\": true"), "there is no tensor"},
        {"qwen2_dora", "qwen2", CONFIG("\"use_dora\": true", "\"use_dora\": false"), "but use_dora is false"},
        {"llama", "llama", CONFIG("\"lora_bias\": false", "\"lora_bias\": true"),
         "lora_bias is not supported"},
        {"llama", "llama", CONFIG("\"layer_replication\": null", "\"layer_replication\": [[0,2]]"),
         "layer_replication is not supported"},
        {"llama", "llama", CONFIG("\"target_parameters\": null", "\"target_parameters\": [\"x\"]"),
         "target_parameters is not supported"},
        {"llama", "llama", CONFIG("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\""),
         "init_lora_weights: pissa may change"},
        {"llama", "llama", CONFIG("\"revision\": null", "\"mora\": true"), "mora is not supported"},
        {"llama", "llama", CONFIG("\"q_proj\"", "\"gate_proj\""), "target_modules does not choose it"},
        {"llama", "llama", CONFIG("\"q_proj\"", "\"q_proj\", \"gate_proj\""),
         "target_modules chooses model.layers.0.mlp.gate_proj, but there is no lora_A"},
        {"qwen3", "qwen3", CONFIG("layers\\\\\\\\\\.", "(?!x)layers\\\\\\\\."), "is not read from '(?!x)"},
        {"llama_embedding", "llama", CONFIG("    \"norm\"", "    \"other\""),
         "nor of a module in modules_to_save"},
        {"llama", "llama",
         TENSORS("layers.1.self_attn.q_proj.lora_B.w", "layers.1.self_attn.q_proj.lora_C.w"),
         "lora_C.weight' is neither"},
        {"llama", "llama",
         TENSORS("base_model.model.model.layers.0.self_attn.q",
                 "case_model.model.model.layers.0.self_attn.q"),
         "expected a name that begins with base_model.model."},
        {"qwen3_moe_saved", "qwen3_moe", CONFIG("\"layers.3.mlp\"", "\"layers.3.mlp.experts\""),
         "layers.3.mlp.gate.weight' is neither"},
        {"qwen3_moe_saved", "qwen3_moe", TENSORS("experts.down_proj", "experts.down_prox"),
         "of modules_to_save has no place"},
        {"llama", "qwen3", "true", "an adapter of"},
        {"qwen2_dora", "llama", "true", "a tied head is stored once"},
        {"llama", "llama", "mv adapter_model.safetensors adapter_model.bin", "adapter_model.safetensors"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = copy_of(rows[i].adapter, rows[i].edit);
        cli_result r = cli_run("ckpt lora-merge " MODELS "%s %s %s", rows[i].model, dir, cli_file("no"));
        cr_expect(r.code == 2 && strstr(r.err, rows[i].words) != NULL, "row %zu: expected '%s' in %d: %s", i,
                  rows[i].words, r.code, r.err);
        cr_expect(!cli_exists(cli_file("no")));
        cli_free(&r);
    }
}

/* PEFT turns fan_in_fan_out off for Linear and on for Conv1D, with a warning. */
Test(adapter, the_model_says_whether_weights_are_transposed)
{
    static const struct {
        const char *adapter, *model, *edit;
    } rows[] = {{"llama", "llama", CONFIG("fan_in_fan_out\": false", "fan_in_fan_out\": true")},
                {"gpt2", GPT2, CONFIG("fan_in_fan_out\": true", "fan_in_fan_out\": false")}};
    for (int i = 0; i < 2; i++) {
        char adapter[CLI_PATH];
        cli_result r =
            cli_run("ckpt lora-merge " MODELS "%s " ADAPTERS "%s m%d", rows[i].model, rows[i].adapter, i);
        cli_expect_success(&r, rows[i].adapter);
        cli_free(&r);
        snprintf(adapter, sizeof adapter, "%s", copy_of(rows[i].adapter, rows[i].edit));
        r = cli_run("ckpt lora-merge " MODELS "%s %s n%d", rows[i].model, adapter, i);
        cli_expect_success(&r, rows[i].adapter);
        cli_free(&r);
        char command[CLI_LINE];
        snprintf(command, sizeof command, "cd %s && cmp m%d/model.safetensors n%d/model.safetensors",
                 cli_folder, i, i);
        cr_expect_eq(system(command), 0, "%s", rows[i].adapter);
    }
}

/* Of a class that is not known, a head that is in no file may be the embedding. */
Test(adapter, an_embedding_that_may_be_tied_is_refused)
{
    char command[CLI_LINE];
    snprintf(command, sizeof command,
             "cp -r " MODELS "llama %s/other && sed -i '/tie_word_embeddings/d; s/\"llama\"/\"other\"/' "
             "%s/other/config.json",
             cli_folder, cli_folder);
    cr_assert_eq(system(command), 0);
    cli_result r = cli_run("ckpt lora-merge other " ADAPTERS "llama_saved_embedding no");
    cli_expect_refusal(&r, "tied without a word",
                       (const char *const[]){"model.embed_tokens: is in modules_to_save",
                                             "may tie head and embedding", NULL});
    cli_free(&r);
    cr_expect(!cli_exists(cli_file("no")));
}

Test(adapter, patterns_are_python_s)
{
    static const struct {
        const char *pattern, *text;
        int matches; /* -1: refused */
    } rows[] = {
        {"(.*\\.)?(q_proj)", "model.layers.0.self_attn.q_proj", 1},
        {"(.*\\.)?(q_proj)", "model.layers.0.self_attn.xq_proj", 0},
        {"q_proj", "a.q_proj", 0}, /* the whole text */
        {".*\\.layers\\.\\d+\\.(?:a|b)", "m.layers.12.b", 1},
        {".*\\.layers\\.\\d+\\.(?:a|b)", "m.layers.x.b", 0},
        {".*?\\.b", "a.b", 1},
        {"[^.]+\\.[a-c]", "xy.c", 1},
        {"\\w+", "a_1", 1},
        {".*\\.(q|k|v)_proj", "m.k_proj", 1},
        {"^(model\\.)?layers\\.\\d+\\.(mlp|self_attn)\\..*", "layers.12.mlp.up_proj", 1},
        {"(a|(b.*c))?", "bxc", 1},
        {"(.*\\.)?((model\\.)?(h(\\.\\d+)?)?)", "x.h.3", 1},
        {"a\\", "a", -1},
        {"(?=a)a", "a", -1},
        {"(a)\\1", "aa", -1},
        {"a{2}", "aa", -1},
        {"a++", "a", -1},
        {"[\\d]", "1", -1},
        {"(a", "a", -1},
        {"", "", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool matches = false;
        const assay_status st =
            assay_pattern_match(rows[i].pattern, rows[i].text, "target_modules", &matches);
        cr_expect_eq(st == ASSAY_OK, rows[i].matches >= 0, "%s", rows[i].pattern);
        cr_expect(st != ASSAY_OK || matches == (rows[i].matches == 1), "%s of %s", rows[i].pattern,
                  rows[i].text);
    }
}

/* Each of them took glibc gigabytes or minutes, of a file of a hundred bytes. */
Test(adapter, patterns_without_bound_are_refused, .timeout = 60)
{
    static const struct {
        const char *before, *many, *after;
        int n;
        const char *words;
    } rows[] = {
        {"((((((((((((((((((((a", ")+", "", 20, "nested deeper than 3"},
        {"(a+", ")+", "", 1, NULL},
        {"a+?+", "", "", 0, "from '+' on: there is nothing that it could repeat"},
        {"((a?", ")+", "", 2, "from '+)+' on: it repeats what may be empty"},
        {"", "(a|)*", "", 1, "what may be empty"},
        {"", "(^)*", "", 1, "what may be empty"},
        {"(((a+b)+c)+d", ")+", "", 1, "nested deeper than 3"},
        {"((a+b)+c", ")+", "", 1, NULL},
        {"", "a?", "", 128, NULL},
        {"", "a?", "", 129, "more than 128 repetitions"},
        {"", "(a|)", "", 129, "more than 128 repetitions"},
        {"(b", "a?", ")+", 64, "more than 128 repetitions"},
        {"", "(", "a", 64, "nested deeper than 63"},
        {"*a", "", "", 0, "nothing that it could repeat"},
        {"a)(b", "", "", 0, "no group is open"},
        {"((a)", "", "", 0, "a group is open"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char pattern[1024];
        bool matches;
        int n = snprintf(pattern, sizeof pattern, "%s", rows[i].before);
        for (int k = 0; k < rows[i].n; k++)
            n += snprintf(pattern + n, sizeof pattern - (size_t)n, "%s", rows[i].many);
        snprintf(pattern + n, sizeof pattern - (size_t)n, "%s", rows[i].after);
        const assay_status st = assay_pattern_match(pattern, "aaaaaaaaaaaaaaaa", "target_modules", &matches);
        cr_expect_eq(st == ASSAY_OK, rows[i].words == NULL, "%s", pattern);
        cr_expect(st == ASSAY_OK || (strstr(assay_error_message(), "target_modules: the pattern ") != NULL &&
                                     strstr(assay_error_message(), rows[i].words) != NULL),
                  "%s: %s", pattern, assay_error_message());
    }
}
