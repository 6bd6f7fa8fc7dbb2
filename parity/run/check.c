/* `assay check`: a recorded run of another framework against a model folder, and one sentence. */
#include "parity/run/check.h"
#include "core/base/text.h"
#include "core/run/options.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_options {
    char model[ASSAY_PATH], trace[ASSAY_PATH], map[ASSAY_PATH];
    bool json;
} check_options;

static const char *const part_names[CHECK_PARTS] = {"configuration", "weights",    "attributes",
                                                    "continuity",    "operations", "whole run"};
static const char *const part_units[CHECK_PARTS] = {"members",
                                                    "parameters",
                                                    "attributes of operations",
                                                    "states from one step to the next",
                                                    "outputs computed again",
                                                    "tensors beside the reference's"};

void check_fail(check_state *c, check_part part, const char *fmt, ...)
{
    const bool first = c->failed[part]++ == 0;
    char text[CHECK_TEXT];
    va_list args;
    if (!first && json_array_size(c->others) >= CHECK_OTHERS)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    assay_clean_text(text);
    if (first)
        snprintf(c->first[part], CHECK_TEXT, "%s", text);
    else
        json_array_append_new(c->others, json_sprintf("%s: %s", part_names[part], text));
}

void check_note(check_state *c, const char *fmt, ...)
{
    char text[PARITY_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    assay_clean_text(text);
    if (json_array_size(c->notes) < CHECK_NOTES)
        json_array_append_new(c->notes, json_string(text));
    else
        c->more_notes++;
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    check_options *o = user;
    if (name != NULL && strcmp(name, "json") == 0) {
        o->json = true;
        return ASSAY_OK;
    }
    char *out = name == NULL || strcmp(name, "trace") == 0 ? o->trace
                : strcmp(name, "model") == 0               ? o->model
                                                           : o->map;
    ASSAY_CHECK(out[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "expected one trace, one model, one map; found \"%s\", too", text);
    ASSAY_CHECK(strlen(text) < ASSAY_PATH, ASSAY_LIMIT, "%s: too long", text);
    snprintf(out, ASSAY_PATH, "%s", text);
    return ASSAY_OK;
}

/* Mistakes first in the order of the parts; a configuration that is another explains what follows from it. */
static int verdict(check_state *c, char sentence[CHECK_TEXT + 128])
{
    int64_t failed = 0, checked = 0;
    const char *first = NULL, *unchecked = NULL;
    for (int p = 0; p < CHECK_PARTS; p++) {
        failed += c->failed[p];
        checked += p >= CHECK_OPERATIONS ? c->passed[p] : 0;
        assay_clean_text(c->unchecked[p]); /* may hold words of a trace, cut anywhere */
        first = first == NULL && c->first[p][0] != '\0' ? c->first[p] : first;
        unchecked = unchecked == NULL && c->unchecked[p][0] != '\0' ? c->unchecked[p] : unchecked;
    }
    if (first != NULL)
        snprintf(sentence, CHECK_TEXT + 128, "WRONG: %s.%s", first,
                 failed > 1 ? "  (What else differs is listed above; it may follow from this.)" : "");
    else if (checked == 0 || unchecked != NULL)
        snprintf(sentence, CHECK_TEXT + 128, "NOT CHECKED: nothing wrong was found, but %s: %.500s.",
                 checked == 0 ? "nothing could be compared" : "not everything could be compared",
                 unchecked != NULL ? unchecked
                                   : "the trace holds no operation and no tensor that the reference has");
    else
        snprintf(sentence, CHECK_TEXT + 128,
                 "RIGHT: %lld outputs of operations and %lld tensors of the run are within what their "
                 "arithmetic allows.%s",
                 (long long)c->passed[CHECK_OPERATIONS], (long long)c->passed[CHECK_WHOLE],
                 json_array_size(c->not_judged) > 0 ? "  (What was not judged is listed above.)" : "");
    assay_clean_text(sentence);
    return first != NULL ? 1 : checked == 0 || unchecked != NULL ? 2 : 0;
}

static void print_text(const check_state *c, const char *sentence, FILE *out)
{
    size_t i;
    json_t *note;
    for (int p = 0; p < CHECK_PARTS; p++) {
        fprintf(out, "%-14s %lld %s%s", part_names[p], (long long)(c->passed[p] + c->failed[p]),
                part_units[p],
                c->failed[p] > 0   ? ""
                : c->passed[p] > 0 ? ": right"
                                   : "");
        if (c->failed[p] > 0)
            fprintf(out, ": %lld wrong, the first: %s", (long long)c->failed[p], c->first[p]);
        if (c->unchecked[p][0] != '\0')
            fprintf(out, "; not checked: %s", c->unchecked[p]);
        fputc('\n', out);
    }
    int64_t others = 0;
    for (int p = 0; p < CHECK_PARTS; p++)
        others += c->failed[p] > 1 ? c->failed[p] - 1 : 0;
    json_array_foreach(c->others, i, note) fprintf(out, "also wrong: %s\n", json_string_value(note));
    if (others > (int64_t)json_array_size(c->others))
        fprintf(out, "also wrong: %lld more\n", (long long)others - (long long)json_array_size(c->others));
    json_array_foreach(c->notes, i, note) fprintf(out, "note: %s\n", json_string_value(note));
    if (c->more_notes > 0)
        fprintf(out, "note: and %lld more notes\n", (long long)c->more_notes);
    fprintf(out, "%s\n", sentence);
}

static assay_status print_json(const check_state *c, const char *sentence, int code, FILE *out)
{
    json_t *root = json_pack("{s:s,s:i,s:s,s:i}", "format", "assay-check", "version", 1, "sentence", sentence,
                             "exit_code", code);
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "JSON");
    for (int p = 0; p < CHECK_PARTS; p++)
        json_object_set_new(root, part_names[p],
                            json_pack("{s:I,s:I,s:I,s:s,s:s}", "passed", (json_int_t)c->passed[p], "failed",
                                      (json_int_t)c->failed[p], "skipped", (json_int_t)c->skipped[p], "first",
                                      c->first[p], "not_checked", c->unchecked[p]));
    json_object_set(root, "not_judged", c->not_judged);
    json_object_set(root, "also_wrong", c->others);
    json_object_set(root, "notes", c->notes);
    json_object_set_new(root, "more_notes", json_integer((json_int_t)c->more_notes));
    json_dumpf(root, out, JSON_INDENT(1));
    fputc('\n', out);
    json_decref(root);
    return ASSAY_OK;
}

static bool is_listed(const json_t *texts, const char *text)
{
    for (size_t i = 0; i < json_array_size(texts); i++)
        if (strcmp(json_string_value(json_array_get(texts, i)), text) == 0)
            return true;
    return false;
}

/* What the recorder says of its trace; ranks mostly say the same. */
static void take_trace_notes(check_state *c)
{
    for (int rank = 0; rank < assay_trace_world(c->trace); rank++) {
        const json_t *notes = assay_trace_notes(c->trace, rank);
        for (size_t i = 0; i < json_array_size(notes); i++) {
            char text[512], said[PARITY_TEXT];
            const char *kind = json_string_value(json_object_get(json_array_get(notes, i), "kind"));
            snprintf(text, sizeof text, "%s",
                     json_string_value(json_object_get(json_array_get(notes, i), "text")));
            assay_clean_text(text);
            const bool not_judged = strcmp(kind, "not_judged") == 0;
            snprintf(said, sizeof said, "%s%s", not_judged ? "not judged: " : "the recorder: ", text);
            if (is_listed(c->notes, said) || is_listed(c->not_judged, text))
                continue;
            check_note(c, "%s", said);
            if (not_judged)
                json_array_append_new(c->not_judged, json_string(text));
            if (strcmp(kind, "incomplete") == 0 && c->unchecked[CHECK_WHOLE][0] == '\0')
                snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT, "%s", text);
        }
    }
}

/* What cannot run again is said and leaves the other parts. */
static assay_status make_reference(check_state *c)
{
    if (c->names->config->training.attention_dropout > 0.0) {
        snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT,
                 "attention_dropout is %g: the run draws masks that no trace holds",
                 c->names->config->training.attention_dropout);
        return ASSAY_OK;
    }
    const char *precision = assay_trace_header_text(c->trace, "precision");
    const bool bf16 = strcmp(precision, "bf16") == 0;
    if (strstr(precision, "16") != NULL && !bf16) {
        snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT,
                 "the run computed in %.40s, the reference knows how fp32 and bf16 round", precision);
        return ASSAY_OK;
    }
    const assay_status st = parity_reference_create(&c->reference, c->names, c->folder, c->index,
                                                    bf16 ? ASSAY_PRECISION_BF16 : ASSAY_PRECISION_FP32);
    if (st != ASSAY_UNSUPPORTED)
        return st;
    snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT, "%.500s", assay_error_message());
    assay_error_clear();
    return ASSAY_OK;
}

assay_status parity_check_run(const char *trace, const char *model, const char *map, bool json, FILE *out,
                              int *exit_code)
{
    check_state c = {
        .folder = model, .notes = json_array(), .others = json_array(), .not_judged = json_array()};
    assay_trace *t = NULL;
    char sentence[CHECK_TEXT + 128];
    assay_status st = ASSAY_OK;
    *exit_code = 2;
    ASSAY_TRY_GOTO(assay_trace_open(&t, trace, true), st, done);
    c.trace = t;
    ASSAY_CHECK_GOTO(
        parity_names_are_foreign(t) || (map != NULL && map[0] != '\0'), ASSAY_UNSUPPORTED, st, done,
        "%s: expected a trace with Hugging Face's names (index.json: names), or --map; assay run judges our "
        "own engines",
        trace);
    ASSAY_TRY_GOTO(parity_aligner_create(&c.names, model, NULL, map), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&c.index, t), st, done);
    if (!json)
        parity_say_aborted(t, out);
    take_trace_notes(&c);
    ASSAY_TRY_GOTO(make_reference(&c), st, done);
    ASSAY_TRY_GOTO(check_configuration(&c), st, done);
    ASSAY_TRY_GOTO(check_weights(&c), st, done);
    ASSAY_TRY_GOTO(check_attributes(&c), st, done);
    ASSAY_TRY_GOTO(check_continuity(&c), st, done);
    ASSAY_TRY_GOTO(check_replicas(&c), st, done);
    ASSAY_TRY_GOTO(check_missing(&c), st, done);
    ASSAY_TRY_GOTO(check_operations(&c), st, done);
    ASSAY_TRY_GOTO(check_gradients(&c), st, done);
    ASSAY_TRY_GOTO(check_whole(&c), st, done);
    if (c.passed[CHECK_WHOLE] + c.failed[CHECK_WHOLE] == 0 && c.unchecked[CHECK_WHOLE][0] == '\0')
        snprintf(c.unchecked[CHECK_WHOLE], PARITY_TEXT, "no recorded tensor is one of the reference's");
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        if (assay_trace_aborted(t, rank) != NULL && c.unchecked[CHECK_WHOLE][0] == '\0')
            snprintf(c.unchecked[CHECK_WHOLE], PARITY_TEXT, "rank %d ended early: %.300s", rank,
                     assay_trace_aborted(t, rank));
    *exit_code = verdict(&c, sentence);
    if (json)
        st = print_json(&c, sentence, *exit_code, out);
    else
        print_text(&c, sentence, out);
done:
    parity_reference_destroy(c.reference);
    parity_index_destroy(c.index);
    parity_aligner_destroy(c.names);
    assay_trace_close(t);
    json_decref(c.not_judged);
    json_decref(c.others);
    json_decref(c.notes);
    return st;
}

int parity_main_check(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"trace", "DIR", "the recorded run (or the only argument)"},
        {"model", "DIR", "the Hugging Face folder that it trains: configuration and weights"},
        {"map", "FILE", "more rows of names (assay map)"},
        {"json", NULL, "print the verdict as JSON"},
        {NULL, NULL, NULL}};
    check_options o = {.json = false};
    int code = 2;
    assay_status st = assay_options_parse(argc, argv,
                                          "Judges a recorded run of another framework (three lines of "
                                          "golden/assay_trace record one; pip install ./golden) against the "
                                          "model it says it trains: its configuration, its weights, what its "
                                          "operations were called with, each of them "
                                          "computed again, and all tensors beside the reference's on the "
                                          "same batch.  The last line is one sentence: "
                                          "which operation, which tensor, which rank, by how much of what "
                                          "arithmetic allows, and what mistake it looks "
                                          "like.\vExample:\n"
                                          "  assay check --trace DIR --model FOLDER\n",
                                          "[TRACE]", NULL, 0, extra, on_option, &o);
    if (st == ASSAY_OK && (o.trace[0] == '\0' || o.model[0] == '\0'))
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "expected --trace DIR and --model FOLDER");
    if (st == ASSAY_OK)
        st = parity_check_run(o.trace, o.model, o.map, o.json, stdout, &code);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay check", 0);
        return 2;
    }
    return code;
}
