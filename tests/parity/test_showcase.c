/* Laws of docs/SHOWCASE.md on recorded traces of the real Megatron core (golden/showcase, golden/showcase.py): every defect of a
 * layout is named in the last line of `assay diff`, an honest layout raises no alarm, and what was altered is said. */
#include "core/base/json.h"
#include "parity/run/diff.h"
#include "tests/support/parity.h"

#define SHOWCASE ASSAY_SOURCE_DIR "/golden/showcase/"

/* The last line. */
static int diff_sentence_of(const char *a, const char *b, char sentence[4096])
{
    const parity_diff_options o = {.tolerance = -1.0, .noise = PARITY_NOISE_AUTO};
    char text[1 << 15];
    int code = -1;
    FILE *out = tmpfile();
    must(parity_diff_traces(a, b, &o, out, &code));
    rewind(out);
    size_t n = fread(text, 1, sizeof text - 1, out);
    fclose(out);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    const char *last = strrchr(text, '\n');
    snprintf(sentence, 4096, "%s", last != NULL ? last + 1 : text);
    return code;
}

Test(parity_showcase, every_defect_is_named_and_honest_layouts_raise_no_alarm)
{
    json_t *rows;
    size_t honest = 0;
    must(assay_json_load(&rows, SHOWCASE "rows.json"));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *words = json_object_get(row, "sentence");
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *layout = json_string_value(json_object_get(row, "layout"));
        const bool wrong = json_is_string(json_object_get(row, "defect"));
        char a[512], b[512], sentence[4096];
        snprintf(a, sizeof a, SHOWCASE "%s/1", json_string_value(json_object_get(row, "base")));
        snprintf(b, sizeof b, SHOWCASE "%s/%s", name, layout);
        cr_expect_eq(diff_sentence_of(a, b, sentence), wrong ? 1 : 0, "%s %s: %s", name, layout, sentence);
        cr_expect(strncmp(sentence, wrong ? "WRONG: " : "RIGHT: ", 7) == 0, "%s %s: %s", name, layout,
                  sentence);
        for (size_t k = 0; k < json_array_size(words); k++)
            cr_expect(strstr(sentence, json_string_value(json_array_get(words, k))), "%s %s: %s", name,
                      layout, sentence);
        cr_expect(!wrong || json_array_size(words) >= 2, "%s %s", name, layout);
        honest += !wrong;
    }
    cr_expect_geq(honest, 4);
    cr_expect_geq(json_array_size(rows) - honest, 7);
    json_decref(rows);
}

/* A copy of dense/tp2_sp where `from` of one file is `to`, padded with blanks. */
static void altered(char dir[256], const char *file, const char *from, const char *to)
{
    static const char *const files[] = {"index.json", "rank-00000.jsonl", "rank-00001.jsonl",
                                        "rank-00000-step-00000.safetensors",
                                        "rank-00001-step-00000.safetensors"};
    int changed = 0;
    must(assay_mkdir_p(fresh_path(dir, "t")));
    for (int i = 0; i < 5; i++) {
        char path[512], *text;
        uint64_t bytes;
        snprintf(path, sizeof path, SHOWCASE "dense/tp2_sp/%s", files[i]);
        must(assay_read_file(path, 1 << 24, &text, &bytes));
        for (char *at = text; strcmp(files[i], file) == 0 && (at = strstr(at, from)) != NULL; changed++) {
            memset(at, ' ', strlen(from));
            memcpy(at, to, strlen(to));
        }
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        must(assay_write_file(path, text, bytes));
        free(text);
    }
    cr_assert_gt(changed, 0, "%s", from);
}

Test(parity_showcase, what_is_altered_in_an_honest_layout_is_said)
{
    static const struct {
        const char *file, *from, *to, *word;
    } rows[] = {
        {"index.json", "\"gradient_scale\": 1.0", "\"gradient_scale\": 2.0", "2 times the expected one"},
        {"rank-00000.jsonl", "\"partial_group\": \"tp_dp_cp\"", "\"partial_group\": \"dp_cp\"",
         "before it is reduced over ranks"},
        {"rank-00001.jsonl", "\"segments\": [[[2, 2]], [[0, 2]], [[0, 8]]]",
         "\"segments\": [[[0, 2]], [[0, 2]], [[0, 8]]]", "rank 0 holds what belongs there, rank 1 does not"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char dir[256], sentence[4096];
        altered(dir, rows[i].file, rows[i].from, rows[i].to);
        cr_expect_eq(diff_sentence_of(SHOWCASE "dense/1", dir, sentence), 1, "%s: %s", rows[i].to, sentence);
        cr_expect(strstr(sentence, rows[i].word), "%s: %s", rows[i].to, sentence);
        remove_path(dir);
    }
}
