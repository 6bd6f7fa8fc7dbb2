/* Laws of `assay check` on Hugging Face runs (golden/planted, golden/make_planted.py): an honest run is right, a planted fault is
 * named in the sentence, and nothing that could not be compared passes. */
#include "core/base/json.h"
#include "tests/support/parity.h"

#define PLANTED ASSAY_SOURCE_DIR "/golden/planted/"

static int check(const char *trace, const char *model, const char *map, char *text, size_t capacity)
{
    char dir[512], folder[512];
    int code = -1;
    snprintf(dir, sizeof dir, "%s%s", trace[0] == '/' ? "" : PLANTED, trace);
    snprintf(folder, sizeof folder, PLANTED "models/%s", model);
    FILE *out = tmpfile();
    must(parity_check_run(dir, folder, map, false, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    return code;
}

/* The last line. */
static const char *sentence_of(char *text)
{
    for (size_t n = strlen(text); n > 0 && text[n - 1] == '\n'; n--)
        text[n - 1] = '\0';
    const char *last = strrchr(text, '\n');
    return last != NULL ? last + 1 : text;
}

Test(parity_planted, every_fault_is_named_in_the_sentence)
{
    json_t *rows;
    must(assay_json_load(&rows, PLANTED "rows.json"));
    cr_assert_geq(json_array_size(rows), 15);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *words = json_object_get(row, "sentence");
        const char *trace = json_string_value(json_object_get(row, "trace"));
        char text[16384];
        const int code =
            check(trace, json_string_value(json_object_get(row, "model")), NULL, text, sizeof text);
        const char *sentence = sentence_of(text);
        cr_expect_eq(code, strncmp(trace, "honest", 6) == 0 ? 0 : 1, "%s: %d %s", trace, code, sentence);
        for (size_t k = 0; k < json_array_size(words); k++)
            cr_expect(strstr(sentence, json_string_value(json_array_get(words, k))), "%s: %s", trace,
                      sentence);
    }
    json_decref(rows);
}

/* A copy of an honest trace where each `from` of its records is `to`, padded with blanks; its other files are the same. */
static void altered(char dir[256], const char *name, const char *from, const char *to)
{
    static const char *const files[] = {"index.json", "rank-00000.jsonl",
                                        "rank-00000-step-00000.safetensors"};
    int changed = 0;
    must(assay_mkdir_p(fresh_path(dir, "t")));
    for (int i = 0; i < 3; i++) {
        char path[512], *text;
        uint64_t bytes;
        snprintf(path, sizeof path, PLANTED "%s/%s", name, files[i]);
        must(assay_read_file(path, 1 << 24, &text, &bytes));
        for (char *at = text; i < 2 && (at = strstr(at, from)) != NULL; changed++) {
            memset(at, ' ', strlen(from));
            memcpy(at, to, strlen(to));
        }
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        must(assay_write_file(path, text, bytes));
        free(text);
    }
    cr_assert_gt(changed, 0, "%s", from);
}

Test(parity_planted, what_is_changed_in_an_honest_run_is_said)
{
    static const struct {
        const char *from, *to, *word;
        int code;
    } rows[] = {
        {"\"eps\": 1e-05", "\"eps\": 1e-6",
         "rmsnorm_fwd of model.layers.0.input_layernorm (rank 0, step 0) was called with eps", 1},
        {"\"rounding\": [\"before_gamma\"]", "\"rounding\": []",
         "declared as \"rounding\": [\"before_gamma\"]", 1},
        {"\"window\": 0", "\"window\": 3", "was called with window 3, the model's is 0", 1},
        {"\"input_ids\"", "\"inputids\"", "NOT CHECKED", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], text[16384];
        altered(dir, "honest_llama", rows[i].from, rows[i].to);
        cr_expect_eq(check(dir, "llama", NULL, text, sizeof text), rows[i].code, "%s: %s", rows[i].from,
                     text);
        cr_expect(strstr(sentence_of(text), rows[i].word), "%s: %s", rows[i].from, text);
        remove_path(dir);
    }
}

/* Another model than the run's: weights of another shape or configuration are a finding, no crash. */
Test(parity_planted, another_folder_is_a_finding)
{
    char text[16384];
    cr_expect_eq(check("honest_llama", "moe", NULL, text, sizeof text), 1, "%s", text);
    cr_expect(strstr(sentence_of(text), "the run's configuration"), "%s", text);
}
