/* The sentence of `assay bisect`, and the command that repeats its set. */
#include "parity/run/bisect.h"

#include "parity/run/run.h"
#include <stdarg.h>
#include <string.h>

enum { SUSPECTS = 700, NAMED = 4, KINDS = 6, NAMES = 1600 };

void bisect_note(bisect_verdict *v, const char *fmt, ...)
{
    char text[BISECT_SENTENCE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(v->notes, json_string(text));
}

/* --- the command that repeats a set -------------------------------------------------------------------------- */
static void append(char *out, size_t capacity, const char *option, const char *word)
{
    char quoted[2 * ASSAY_PATH];
    const size_t used = strlen(out);
    parity_shell_word(word, quoted, sizeof quoted);
    snprintf(out + used, capacity - used, " %s%s%s", option, option[0] != '\0' ? " " : "", quoted);
}

static assay_status make_command(const bisect *b, bisect_verdict *v)
{
    char path[2 * ASSAY_PATH];
    assay_train_options defaults;
    assay_train_options_default(&defaults);
    json_t *have = assay_train_options_to_json(&b->options, ASSAY_FOR_STEP);
    json_t *base = assay_train_options_to_json(&defaults, ASSAY_FOR_STEP);
    snprintf(v->command, sizeof v->command, "assay step --engine %s", b->engine.name);
    if (b->engine_program[0] != '\0')
        append(v->command, sizeof v->command, "--engine-program", b->engine_program);
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        char argument[2 * ASSAY_PATH];
        const json_t *value = json_object_get(have, row->name);
        /* a default that was asked for may stand against the model's configuration */
        if (value == NULL || (!assay_train_option_given(&b->options, row->name) &&
                              json_equal(value, json_object_get(base, row->name))))
            continue;
        parity_option_argument(row->name, value, argument, sizeof argument);
        append(v->command, sizeof v->command, "", argument);
    }
    snprintf(path, sizeof path, "%s/set.txt", b->dir);
    append(v->command, sizeof v->command, "--substitute", path);
    if (b->way == BISECT_VALUES) {
        snprintf(path, sizeof path, "%s/%s", b->dir, b->other != NULL ? "other" : "reference");
        append(v->command, sizeof v->command, "--substitute-values", path);
    }
    snprintf(path, sizeof path, "%s/healed", b->dir);
    append(v->command, sizeof v->command, "--trace", path);
    snprintf(path, sizeof path, "%s/healed.safetensors", b->dir);
    append(v->command, sizeof v->command, "--out", path);
    json_decref(have);
    json_decref(base);
    return ASSAY_OK;
}

int64_t bisect_count(const bisect *b, const bool *set)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        n += set[i];
    return n;
}

static void name_element(const bisect *b, const bisect_element *e, char *out, size_t capacity)
{
    char kernel[32] = "";
    if (!e->collective)
        snprintf(kernel, sizeof kernel, b->way == BISECT_VARIANT ? " k%d (k0 agrees)" : " k%d", e->variant);
    snprintf(out, capacity, "%s%s of %s (%s)", e->op, kernel, e->instance, assay_phase_name(e->phase));
}

/* The operations that contradict what they read (local check); returns how many. */
static int64_t name_suspects(const bisect *b, char out[SUSPECTS])
{
    int64_t n = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < b->n; i++) {
        const bisect_element *e = &b->elements[i];
        const size_t used = strlen(out);
        if (!e->suspect)
            continue;
        if (used + 2 * ASSAY_NAME < SUSPECTS)
            snprintf(out + used, SUSPECTS - used, "%s%s k%d of %s (%s)", n > 0 ? "; " : "", e->op, e->variant,
                     e->instance, assay_phase_name(e->phase));
        n++;
    }
    return n;
}

/* Layers of the set's operations of that kind, as ranges. */
static void name_layers(const bisect *b, const bool *set, const char *op, char *out, size_t capacity)
{
    int64_t last = -1;
    bool outside = false, here[ASSAY_MAX_LAYERS + 1] = {false};
    for (int64_t i = 0; i < b->n; i++)
        if (set[i] && strcmp(b->elements[i].op, op) == 0) {
            const int64_t layer = bisect_layer_in(b->elements[i].instance);
            outside = outside || layer < 0 || layer >= ASSAY_MAX_LAYERS;
            if (layer >= 0 && layer < ASSAY_MAX_LAYERS)
                here[layer] = true;
        }
    out[0] = '\0';
    for (int64_t layer = 0; layer < ASSAY_MAX_LAYERS; layer = last + 1) {
        const size_t used = strlen(out);
        last = layer;
        while (here[layer] && here[last + 1])
            last++;
        if (here[layer] && last > layer)
            snprintf(out + used, capacity - used, "%s%lld-%lld", used > 0 ? ", " : " in layers ",
                     (long long)layer, (long long)last);
        else if (here[layer])
            snprintf(out + used, capacity - used, "%s%lld", used > 0 ? ", " : " in layers ",
                     (long long)layer);
    }
    if (outside)
        snprintf(out + strlen(out), capacity - strlen(out), "%s outside of the layers",
                 out[0] != '\0' ? " and" : "");
}

/* A large set by kinds of operations and layers. */
static void name_kinds(const bisect *b, const bool *set, char *out, size_t capacity)
{
    char layers[200];
    int64_t kinds = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < b->n; i++) {
        const char *op = b->elements[i].op;
        int64_t calls = 0;
        bool named = false;
        for (int64_t k = 0; k < b->n && set[i]; k++) {
            const bool same = set[k] && strcmp(b->elements[k].op, op) == 0;
            named = named || (same && k < i);
            calls += same;
        }
        if (!set[i] || named)
            continue;
        name_layers(b, set, op, layers, sizeof layers);
        if (kinds++ < KINDS)
            snprintf(out + strlen(out), capacity - strlen(out), "%s%s%s (%lld)", kinds > 1 ? "; " : "", op,
                     layers, (long long)calls);
    }
    if (kinds > KINDS)
        snprintf(out + strlen(out), capacity - strlen(out), "; and %lld more kinds in set.txt",
                 (long long)(kinds - KINDS));
}

/* The set as JSON, and a small one by name; returns how many of it contradict what they read. */
static int64_t name_set(const bisect *b, const bool *set, json_t *list, char *out, size_t capacity)
{
    int64_t named = 0, suspects = 0;
    char one[2 * ASSAY_NAME];
    for (int64_t i = 0; i < b->n; i++) {
        const bisect_element *e = &b->elements[i];
        if (!set[i])
            continue;
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:i,s:b}", "op", e->op, "instance", e->instance,
                                              "phase", assay_phase_name(e->phase), "variant", e->variant,
                                              "local_check_fails", e->suspect));
        name_element(b, e, one, sizeof one);
        suspects += e->suspect;
        if (named++ < NAMED)
            snprintf(out + strlen(out), capacity - strlen(out), "%s%s", named > 1 ? "; " : "", one);
    }
    if (named > NAMED)
        name_kinds(b, set, out, capacity);
    return suspects;
}

/* WRONG: the smallest set, by kernel and instance. */
assay_status bisect_tell_set(bisect *b, const bisect_found *found, bisect_verdict *v)
{
    char path[2 * ASSAY_PATH], names[NAMES] = "", others[SUSPECTS], but[SUSPECTS + 128] = "", how[96];
    const bool *set = found->set;
    const int64_t size = bisect_count(b, set), accused = name_suspects(b, others);
    const int64_t suspects = name_set(b, set, v->set, names, sizeof names);
    if (accused > 0 && suspects == 0)
        snprintf(but, sizeof but, "; this may overwrite what others left that contradict what they read: %s",
                 others);
    else if (size > NAMED && suspects == 0)
        bisect_note(
            v,
            "each of these operations is within rounding of what it read (local check), and only all of "
            "them together heal: look at what they share: weights, batch, positions, options, the precision "
            "itself");
    if (b->way == BISECT_VARIANT)
        snprintf(how, sizeof how,
                 size == 1 ? "one operation runs variant 0" : "these operations run variant 0");
    else
        snprintf(how, sizeof how,
                 size == 1 ? "one operation's results are %s's" : "these operations' results are %s's",
                 b->whose);
    snprintf(v->sentence, sizeof v->sentence, "WRONG: %.400s; the mismatch vanishes when %s: %s%s%s.",
             found->mismatch, how, names,
             found->stopped  ? " (stopped at --runs: a smaller set may do)"
             : found->groups ? " (no kind of a layer can be left out)"
             : size > 1      ? " (none of them can be left out)"
                             : "",
             but);
    snprintf(path, sizeof path, "%s/set.txt", b->dir);
    ASSAY_TRY(bisect_write_rules(b, set, path));
    v->keep = true;
    v->code = 1;
    return make_command(b, v);
}

/* --- what nothing can replace ----------------------------------------------------------------------------------- */
void bisect_tell_unplanned(const bisect *b, const char *tensor, const char *mismatch, bisect_verdict *v)
{
    char names[NAMES] = "";
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++) {
        const bisect_element *e = &b->elements[i];
        if (!bisect_is_unplanned_feed(e) || n++ >= NAMED)
            continue;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s of %.120s (%s): %s",
                 n > 1 ? "; " : "", e->op, e->instance, assay_phase_name(e->phase), e->unplanned);
    }
    if (n > NAMED)
        snprintf(names + strlen(names), sizeof names - strlen(names), "; and %lld more",
                 (long long)(n - NAMED));
    v->code = 1;
    snprintf(v->sentence, sizeof v->sentence,
             "WRONG: %.400s; %.150s comes from what is not as planned, and %s has no value for it: %s.",
             mismatch, tensor, b->whose, names);
}

/* --- what nothing heals ---------------------------------------------------------------------------------------- */
void bisect_tell_nothing(const bisect *b, int64_t replaced, const char *mismatch, const char *left,
                         bisect_verdict *v)
{
    char suspects[SUSPECTS];
    const int64_t accused = name_suspects(b, suspects);
    v->code = 1;
    if (accused > 0)
        snprintf(
            v->sentence, sizeof v->sentence,
            "WRONG: %.400s; it stays with %s's values in place of the results of %lld of %lld "
            "operations, which are no choices and no counts (then %.200s); these contradict what they read: "
            "%s.",
            mismatch, b->whose, (long long)replaced, (long long)b->n, left, suspects);
    else
        snprintf(
            v->sentence, sizeof v->sentence,
            "WRONG: %.400s; it stays with %s's values in place of the results of %lld of %lld "
            "operations (then %.200s): look at what no operation makes: weights, batch, options, what is "
            "kept "
            "between steps, or the %lld operations without a value.",
            mismatch, b->whose, (long long)replaced, (long long)b->n, left, (long long)(b->n - replaced));
}
