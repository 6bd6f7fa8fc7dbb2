/* Laws of `assay check` on Hugging Face runs (golden/planted, golden/make_planted.py): an honest run is right, a planted fault is
 * named in the sentence, and nothing that could not be compared passes. */
#include "core/base/json.h"
#include "parity/checks/reference.h"
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
        copy_altered(dir, PLANTED, "honest_llama", NULL, rows[i].from, rows[i].to);
        cr_expect_eq(check(dir, "llama", NULL, text, sizeof text), rows[i].code, "%s: %s", rows[i].from,
                     text);
        cr_expect(strstr(sentence_of(text), rows[i].word), "%s: %s", rows[i].from, text);
        remove_path(dir);
    }
}

/* honest_llama in `dir` with n tensors more at its end. */
static void append_tensors(char dir[256], int n, const char *name, const char *shape, const char *hash,
                           int microbatch)
{
    static const char end[] = "{\"type\": \"end\"";
    char path[512], count[64], *records;
    uint64_t bytes;
    snprintf(count, sizeof count, "\"tensors\": %d", 240 + n);
    copy_altered(dir, PLANTED, "honest_llama", NULL, "\"tensors\": 240", count);
    snprintf(path, sizeof path, "%s/rank-00000.jsonl", dir);
    must(assay_read_file(path, 1 << 24, &records, &bytes));
    char *last = strstr(records, end), *tail = strdup(last);
    *last = '\0';
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(records, f);
    for (int i = 0; i < n; i++) {
        char number[16] = "";
        if (n > 1)
            snprintf(number, sizeof number, ".%d.weight", i);
        fprintf(f,
                "{\"type\": \"tensor\", \"id\": %d, \"name\": \"%s%s\", \"phase\": \"forward\", "
                "\"step\": 0, \"microbatch\": %d, \"dtype\": \"BF16\", \"global_shape\": %s, \"hash\": "
                "\"%s\", \"data\": \"%s\"}\n",
                240 + i, name, number, microbatch, shape, hash, hash);
    }
    fputs(tail, f);
    cr_assert_eq(fclose(f), 0);
    free(tail);
    free(records);
}

/* A wrapped module: the embedding's product is right, the next norm reads something else under its name. */
Test(parity_planted, what_stands_behind_an_output_is_compared_too)
{
    static const struct {
        const char *hash;
        int code;
    } rows[] = {{"99fcfc813b9ba58fb9e383a33a46722e", 1} /* the norm's output */,
                {"f90f94c70927c1fe56d360224795b104", 0} /* the embedding once more */};
    for (int i = 0; i < 2; i++) {
        char dir[256], text[16384];
        append_tensors(dir, 1, "model.embed_tokens", "[2, 7, 16]", rows[i].hash, 0);
        cr_expect_eq(check(dir, "llama", NULL, text, sizeof text), rows[i].code, "%s", text);
        if (rows[i].code != 0) {
            const char *sentence = sentence_of(text);
            cr_expect(strstr(sentence,
                             "differs from the reference is model.embed_tokens = embedding.y (phase forward"),
                      "%s", sentence);
            cr_expect(strstr(sentence, "it is changed before it is read"), "%s", sentence);
        }
        remove_path(dir);
    }
}

/* Forty parameters that the model does not have: 32 are named, and that there are eight more is said. */
Test(parity_planted, notes_that_are_not_shown_are_counted)
{
    char dir[256], text[16384];
    int code = -1;
    append_tensors(dir, 40, "extra", "[16]", "90dbc874d8f622fb41db92325549c42b", -1);
    cr_expect_eq(check(dir, "llama", NULL, text, sizeof text), 0, "%s", text);
    cr_expect(strstr(text, "extra.0.weight: a parameter that"), "%s", text);
    const char *more = strstr(text, "more notes");
    int shown = 0, hidden = 0;
    for (const char *at = text; (at = strstr(at, "note: ")) != NULL; at++)
        shown++;
    cr_assert_not_null(more, "%s", text);
    cr_expect_eq(
        sscanf(strstr(text, "note: and ") ? strstr(text, "note: and ") : "", "note: and %d more", &hidden),
        1);
    cr_expect(shown == 33 && hidden >= 8, "%d shown, %d not", shown, hidden);
    FILE *out = tmpfile();
    char folder[512];
    snprintf(folder, sizeof folder, PLANTED "models/llama");
    must(parity_check_run(dir, folder, NULL, true, out, &code));
    rewind(out);
    json_t *root = json_loadf(out, 0, NULL);
    cr_expect_eq(json_integer_value(json_object_get(root, "more_notes")), hidden);
    json_decref(root);
    fclose(out);
    remove_path(dir);
}

/* Another model than the run's: weights of another shape or configuration are a finding, no crash. */
Test(parity_planted, another_folder_is_a_finding)
{
    char text[16384];
    cr_expect_eq(check("honest_llama", "moe", NULL, text, sizeof text), 1, "%s", text);
    cr_expect(strstr(sentence_of(text), "the run's configuration"), "%s", text);
}

static int suggest(const char *trace, char *text, size_t capacity)
{
    char dir[512];
    int code = -1;
    snprintf(dir, sizeof dir, "%s%s", trace[0] == '/' ? "" : PLANTED, trace);
    FILE *out = tmpfile();
    must(parity_suggest(dir, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    return code;
}

/* A declaration is suggested from the values alone: what the record says of itself does not enter. */
Test(parity_planted, the_tightest_declaration_holds_the_rounding_points)
{
    char dir[256], text[16384], again[16384];
    cr_expect_eq(suggest("honest_llama", text, sizeof text), 0, "%s", text);
    static const char *const words[] = {"before_gamma", "before_up", "products"};
    for (int i = 0; i < 3; i++)
        cr_expect(strstr(text, words[i]), "%s: %s", words[i], text);
    copy_altered(dir, PLANTED, "honest_llama", NULL, "\"rounding\": [\"before_gamma\"]", "\"rounding\": []");
    cr_expect_eq(suggest(dir, again, sizeof again), 0, "%s", again);
    cr_expect(strstr(again, "before_gamma"), "%s", again);
    remove_path(dir);
    cr_expect_eq(suggest("eps", text, sizeof text), 1, "%s", text);
    cr_expect(strstr(text, "rmsnorm_fwd          5 records  no declaration"), "%s", text);
}

/* A trace of the reference on the batch of an honest run; the caller's to destroy. */
typedef struct beside {
    assay_trace *trace;
    parity_index *index;
    parity_aligner *names;
    parity_reference *reference;
    char ours[ASSAY_PATH + 8];
} beside;

static beside run_reference(const char *trace, const char *model)
{
    beside b;
    char dir[512], folder[512];
    snprintf(dir, sizeof dir, PLANTED "%s", trace);
    snprintf(folder, sizeof folder, PLANTED "models/%s", model);
    b.trace = open_trace(dir);
    must(parity_aligner_create(&b.names, folder, NULL, NULL));
    must(parity_index_create(&b.index, b.trace));
    must(parity_reference_create(&b.reference, b.names, folder, b.index, ASSAY_PRECISION_FP32));
    must(parity_reference_run(b.reference, 0));
    snprintf(b.ours, sizeof b.ours, "%s/0", b.reference->folder);
    return b;
}

static void end_reference(beside *b)
{
    parity_reference_destroy(b->reference);
    parity_index_destroy(b->index);
    parity_aligner_destroy(b->names);
    assay_trace_close(b->trace);
}

static int diff_with(const char *a, const char *b, parity_diff_options o, char *text, size_t capacity)
{
    int code = -1;
    FILE *out = tmpfile();
    must(parity_diff_traces(a, b, &o, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    return code;
}

/* The aligned trace goes first or second; a tolerance, the noise of the dtype and that of runs all hold. */
Test(parity_planted, diff_lays_hugging_face_beside_our_names)
{
    static const struct {
        const char *trace, *model, *common;
    } rows[] = {{"labels", "llama", "first difference: loss_function = loss.loss"},
                {"honest_moe", "moe", "no difference in "}};
    for (size_t i = 0; i < 2; i++) {
        char theirs[512], folder[512], text[16384];
        const bool honest = i == 1;
        beside b = run_reference(rows[i].trace, rows[i].model);
        snprintf(theirs, sizeof theirs, PLANTED "%s", rows[i].trace);
        snprintf(folder, sizeof folder, PLANTED "models/%s", rows[i].model);
        const parity_diff_options ways[] = {{.tolerance = 1e-4, .model = folder},
                                            {.tolerance = -1, .noise = PARITY_NOISE_AUTO, .model = folder},
                                            {.tolerance = -1, .noise = PARITY_NOISE_FP32, .model = folder}};
        for (int k = 0; k < 3; k++) {
            cr_expect_eq(diff_with(b.ours, theirs, ways[k], text, sizeof text), honest ? 0 : 1, "%s", text);
            cr_expect(strstr(text, rows[i].common), "%s", text);
            cr_expect_eq(diff_with(theirs, b.ours, ways[k], text, sizeof text), honest ? 0 : 1, "%s", text);
        }
        end_reference(&b);
    }
}

/* A difference in one head of a fused tensor is named by the part that holds it, with its numbers in JSON. */
Test(parity_planted, diff_prints_numbers_as_json)
{
    static char text[1 << 20];
    char theirs[512], folder[512];
    json_t *root;
    beside b = run_reference("scaled_twice", "llama");
    snprintf(theirs, sizeof theirs, PLANTED "scaled_twice");
    snprintf(folder, sizeof folder, PLANTED "models/llama");
    const parity_diff_options o = {.tolerance = 1e-4, .model = folder, .json = true};
    cr_assert_eq(diff_with(b.ours, theirs, o, text, sizeof text), 1);
    must(assay_json_parse(&root, text, strlen(text), "diff"));
    const json_t *tensors = json_object_get(root, "tensors"), *first = NULL;
    for (size_t i = 0; i < json_array_size(tensors) && first == NULL; i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(tensors, i), "verdict")), "FAIL") == 0)
            first = json_array_get(tensors, i);
    cr_assert_not_null(first);
    cr_expect_str_eq(json_string_value(json_object_get(first, "name")),
                     "model.layers.0.self_attn.core_attention.o");
    cr_expect_str_eq(json_string_value(json_object_get(first, "other_name")),
                     "decoder.layers.0.self_attention.core_attention.o");
    cr_expect_gt(json_number_value(json_object_get(first, "relative")), 1e-3);
    cr_expect_lt(json_number_value(json_object_get(first, "cosine")), 1.0);
    json_decref(root);
    end_reference(&b);
}

/* docs/DEBUG.md walks through five of them: what it quotes is what is said. */
Test(parity_planted, the_document_quotes_the_sentences)
{
    static const char command[] =
        "$ assay check --trace golden/planted/%63s --model golden/planted/models/%63s";
    char *document;
    uint64_t bytes;
    int quoted = 0;
    must(assay_read_file(ASSAY_SOURCE_DIR "/docs/DEBUG.md", 1 << 20, &document, &bytes));
    for (char *line = strstr(document, "$ assay check"); line != NULL; line = strstr(line, "$ assay check")) {
        char trace[64], model[64], text[16384];
        cr_assert_eq(sscanf(line, command, trace, model), 2, "%.100s", line);
        line = strchr(line, '\n') + 1;
        char *end = strstr(line, "```");
        cr_assert_not_null(end);
        *end = '\0';
        const int code = check(trace, model, NULL, text, sizeof text);
        cr_expect_eq(code, strncmp(line, "RIGHT", 5) == 0 ? 0 : 1, "%s", trace);
        for (char *row = strtok(line, "\n"); row != NULL; row = strtok(NULL, "\n"), quoted++)
            cr_expect(strstr(text, row), "%s: the document says\n%s\nand the program\n%s", trace, row, text);
        line = end + 1;
    }
    cr_expect_geq(quoted, 5 + 5, "%d lines are quoted", quoted);
    free(document);
}
