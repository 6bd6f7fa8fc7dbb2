/* `assay bisect`: the smallest set of operations whose replacement makes a mismatch vanish, as one sentence. */
#include "parity/run/bisect.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/outputs.h"
#include "parity/run/step.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Runs at the most; operations that are found one by one, before groups are tried; of a set of groups that many are tried singly. */
enum { BISECT_RUNS = 300, BISECT_SINGLY = 4, BISECT_THINNED = 32 };

typedef struct bisect_options {
    parity_step_options step;
    char target[ASSAY_NAME], keep[ASSAY_PATH], against[ASSAY_PATH], against_layout[ASSAY_LAYOUT_TEXT];
    int64_t runs;
    bool json;
} bisect_options;

/* --- searches ------------------------------------------------------------------------------------------------ */
static assay_status test(void *user, const bool *set, bool *healed)
{
    return bisect_run(user, "run", set, healed);
}

/* The operations that the local check names, if they alone heal; else those that feed the first wrong tensor, where they are fewer than
 * half; else all that can be replaced, if they do. */
static assay_status find_healing(bisect *b, bool *set, bool *healed)
{
    enum { SUSPECTS, FEEDS, ALL };
    int64_t all = 0;
    for (int64_t i = 0; i < b->n; i++)
        all += b->elements[i].replaceable[b->way];
    for (int whom = SUSPECTS; whom <= ALL && !*healed; whom++) {
        for (int64_t i = 0; i < b->n; i++) {
            const bisect_element *e = &b->elements[i];
            set[i] = e->replaceable[b->way] && (whom == ALL || (whom == FEEDS ? e->feeds : e->suspect));
        }
        const int64_t n = bisect_count(b, set);
        if (n > 0 && (whom != FEEDS || 2 * n < all))
            ASSAY_TRY(bisect_run(b, "run", set, healed));
    }
    return ASSAY_OK;
}

/* Operations that feed the first wrong tensor, are not as planned and have no value: no set heals but what overwrites what they did. */
static bool tell_unplanned(const bisect *b, const char *tensor, const char *mismatch, bisect_verdict *v)
{
    for (int64_t i = 0; i < b->n; i++)
        if (bisect_is_unplanned_feed(&b->elements[i])) {
            bisect_tell_unplanned(b, tensor, mismatch, v);
            return true;
        }
    return false;
}

/* The fewest kinds of operations and layers; of few operations those, too, that can be left out.  *groups: they were too many. */
static assay_status search_groups(bisect *b, bisect_search *s, bool *set, bool *groups)
{
    int64_t *group = calloc((size_t)b->n + 1, sizeof *group);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(group != NULL, ASSAY_OUT_OF_MEMORY, "%lld operations", (long long)b->n);
    for (int64_t i = 0; i < b->n; i++)
        group[i] = b->elements[i].group;
    st = bisect_fewest_groups(s, group, b->n_groups, set);
    free(group);
    *groups = bisect_count(b, set) > BISECT_THINNED;
    if (st == ASSAY_OK && !s->stopped && !*groups)
        st = bisect_thin_out(s, set);
    return st;
}

static assay_status search(bisect *b, bool *set, const char *mismatch, bisect_verdict *v)
{
    bisect_search s = {
        .test = test, .user = b, .n = b->n, .limit = b->limit - b->runs, .most = BISECT_SINGLY};
    bisect_found found = {.set = set, .mismatch = mismatch};
    assay_status st = bisect_smallest(&s, set);
    if (st == ASSAY_OK && s.many)
        st = search_groups(b, &s, set, &found.groups);
    bisect_search_forget(&s);
    found.stopped = s.stopped;
    return st == ASSAY_OK ? bisect_tell_set(b, &found, v) : st;
}

static assay_status try_variants(bisect *b, bool *set, const char *mismatch, bisect_verdict *v)
{
    bool healed = false;
    int64_t n = 0;
    b->way = BISECT_VARIANT;
    for (int64_t i = 0; i < b->n; i++)
        n += b->elements[i].replaceable[BISECT_VARIANT];
    if (n == 0) {
        bisect_note(v, "every kernel runs variant 0 already");
        return ASSAY_OK;
    }
    ASSAY_TRY(find_healing(b, set, &healed));
    if (healed)
        return search(b, set, mismatch, v);
    bisect_note(v, "variant 0 of all %lld operations that ran another fails, too (%.200s)", (long long)n,
                b->first);
    return ASSAY_OK;
}

static assay_status try_values(bisect *b, bool *set, const char *tensor, const char *mismatch,
                               bisect_verdict *v)
{
    bool healed = false;
    int64_t n = 0;
    char left[PARITY_TEXT];
    b->way = BISECT_VALUES;
    if (b->other == NULL)
        ASSAY_TRY(bisect_reference(b));
    ASSAY_TRY(bisect_run_everything(b, "run", &healed));
    ASSAY_TRY(bisect_read_replaced(b, "run"));
    snprintf(left, sizeof left, "%s", b->first);
    for (int64_t i = 0; i < b->n; i++)
        n += b->elements[i].replaceable[BISECT_VALUES];
    bisect_note(v, "%s has values for the results of %lld of %lld operations", b->whose, (long long)n,
                (long long)b->n);
    if (tell_unplanned(b, tensor, mismatch, v))
        return ASSAY_OK;
    if (!healed) {
        bisect_tell_nothing(b, n, mismatch, left, v);
        return ASSAY_OK;
    }
    healed = false;
    ASSAY_TRY(find_healing(b, set, &healed));
    ASSAY_CHECK(healed, ASSAY_INTERNAL, "all values heal in one rule, and do not in one for each operation");
    return search(b, set, mismatch, v);
}

/* The run that the engine is held to, where it is not the reference. */
static assay_status take_other(bisect *b, bisect_verdict *v)
{
    char path[ASSAY_PATH];
    if (b->against[0] != '\0')
        return bisect_take_other(b, b->against, v);
    if (b->against_layout[0] == '\0')
        return ASSAY_OK;
    ASSAY_TRY(bisect_run_other(b, "against"));
    ASSAY_TRY(bisect_path(b, "against", path));
    return bisect_take_other(b, path, v);
}

static assay_status bisect_all(bisect *b, bisect_verdict *v)
{
    bool agrees;
    bool *set = NULL;
    char mismatch[PARITY_TEXT], tensor[ASSAY_NAME];
    assay_status st = ASSAY_OK;
    ASSAY_TRY(take_other(b, v));
    ASSAY_TRY(bisect_run(b, "failing", NULL, &agrees));
    if (agrees) {
        snprintf(v->sentence, sizeof v->sentence,
                 "RIGHT: no mismatch: %lld tensors of the run agree with %s within what "
                 "rounding explains; there is nothing to bisect.",
                 (long long)b->n_compared, b->than);
        return ASSAY_OK;
    }
    snprintf(mismatch, sizeof mismatch, "%lld of %lld tensors differ%s%s, first %s", (long long)b->n_failed,
             (long long)b->n_compared, b->other != NULL ? " from " : "", b->other != NULL ? b->than : "",
             b->first);
    snprintf(tensor, sizeof tensor, "%s", b->first_tensor);
    ASSAY_TRY(bisect_read_elements(b, "failing"));
    set = calloc((size_t)b->n + 1, sizeof *set);
    ASSAY_CHECK(set != NULL, ASSAY_OUT_OF_MEMORY, "%lld operations", (long long)b->n);
    for (int64_t i = 0; i < b->n; i++)
        if (b->elements[i].suspect)
            bisect_note(v, "the local check fails %s k%d of %s (%s)", b->elements[i].op,
                        b->elements[i].variant, b->elements[i].instance,
                        assay_phase_name(b->elements[i].phase));
    for (int64_t i = 0; i < b->n; i++)
        if (b->elements[i].unplanned[0] != '\0')
            bisect_note(v, "not as planned: %s of %s (%s): %s", b->elements[i].op, b->elements[i].instance,
                        assay_phase_name(b->elements[i].phase), b->elements[i].unplanned);
    ASSAY_TRY_GOTO(try_variants(b, set, mismatch, v), st, done);
    if (v->sentence[0] == '\0')
        st = try_values(b, set, tensor, mismatch, v);
done:
    free(set);
    return st;
}

/* --- the verb -------------------------------------------------------------------------------------------------- */
static assay_status on_option(void *user, const char *name, const char *text)
{
    bisect_options *o = user;
    if (name != NULL && strcmp(name, "json") == 0) {
        o->json = true;
        return ASSAY_OK;
    }
    if (name != NULL && strcmp(name, "target") == 0)
        return assay_option_text(name, text, o->target, sizeof o->target);
    if (name != NULL && strcmp(name, "against") == 0)
        return assay_option_text(name, text, o->against, sizeof o->against);
    if (name != NULL && strcmp(name, "against_layout") == 0)
        return assay_option_text(name, text, o->against_layout, sizeof o->against_layout);
    if (name != NULL && strcmp(name, "keep") == 0)
        return assay_option_text(name, text, o->keep, sizeof o->keep);
    if (name != NULL && strcmp(name, "runs") == 0)
        return assay_option_count(name, text, 4, 1000000, &o->runs);
    return parity_step_option(&o->step, name, text);
}

/* What the verb decides itself, and what the reference cannot repeat. */
static assay_status check_options(const bisect_options *s, const assay_train_options *o)
{
    ASSAY_CHECK(!o->tp_comm_overlap && !o->async_tensor_model_parallel_allreduce &&
                    !o->moe_shared_expert_overlap && !o->moe_alltoall_halves,
                ASSAY_INVALID_ARGUMENT,
                "--tp-comm-overlap, --async-tensor-model-parallel-allreduce, --moe-shared-expert-overlap, "
                "--moe-alltoall-halves: have no meaning here: the runs of a bisection have traces, and a run "
                "with a trace "
                "makes one operation after the other (assay run --check bitwise compares both)");
    ASSAY_CHECK(s->against[0] == '\0' || s->against_layout[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "--against and --against-layout: expected one of them");
    ASSAY_CHECK(o->model[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--model: expected a Hugging Face folder, found nothing");
    ASSAY_CHECK(o->batch[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--batch: expected a safetensors file, found nothing");
    ASSAY_CHECK(strcmp(s->step.engine, "ref") != 0, ASSAY_INVALID_ARGUMENT,
                "--engine: expected gpu, sim or auto: the reference is what the engine is held to");
    return assay_train_options_check(o);
}

static assay_status make_folder(const char *keep, char out[ASSAY_PATH])
{
    struct stat sb;
    if (keep[0] != '\0') {
        ASSAY_CHECK(stat(keep, &sb) != 0, ASSAY_INVALID_ARGUMENT,
                    "--keep %s: expected a new folder, found one", keep);
        snprintf(out, ASSAY_PATH, "%s", keep);
        return assay_mkdir_p(out);
    }
    return assay_scratch_make("bisect", out, ASSAY_PATH);
}

static void print_text(const bisect *b, const bisect_verdict *v, FILE *out)
{
    size_t i;
    json_t *text;
    json_array_foreach(v->notes, i, text) fprintf(out, "note: %s\n", json_string_value(text));
    if (v->keep)
        fprintf(out, "again with: %s\n", v->command);
    fprintf(out, "%s\n%lld runs of the engine, %.1f s\n", v->sentence, (long long)b->runs,
            assay_monotonic_s() - b->started);
}

static assay_status print_json(const bisect *b, const bisect_verdict *v, FILE *out)
{
    json_t *root = json_pack("{s:s,s:i,s:s,s:i,s:s,s:O,s:O,s:I,s:f,s:s}", "format", "assay-bisect", "version",
                             1, "sentence", v->sentence, "exit_code", v->code, "replaced_by",
                             !v->keep                   ? "nothing"
                             : b->way == BISECT_VARIANT ? "variant 0"
                             : b->other != NULL         ? "the other run's values"
                                                        : "the reference's values",
                             "set", v->set, "notes", v->notes, "runs", (json_int_t)b->runs, "seconds",
                             assay_monotonic_s() - b->started, "command", v->command);
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "JSON");
    json_dumpf(root, out, JSON_INDENT(1));
    fputc('\n', out);
    json_decref(root);
    return ASSAY_OK;
}

static assay_status run(const bisect_options *s, assay_train_options *o, int *code)
{
    assay_status st = ASSAY_OK;
    bisect_verdict v = {.set = json_array(), .notes = json_array()};
    bisect *b = calloc(1, sizeof *b);
    ASSAY_CHECK_GOTO(b != NULL && v.set != NULL && v.notes != NULL, ASSAY_OUT_OF_MEMORY, st, done, "bisect");
    b->options = *o;
    b->timeout_s = s->step.timeout_s;
    b->limit = s->runs;
    b->quiet = s->json;
    snprintf(b->engine_program, sizeof b->engine_program, "%s", s->step.engine_program);
    snprintf(b->target, sizeof b->target, "%s", s->target);
    snprintf(b->against, sizeof b->against, "%s", s->against);
    snprintf(b->against_layout, sizeof b->against_layout, "%s", s->against_layout);
    ASSAY_TRY_GOTO(parity_engine_find(s->step.engine, s->step.engine_program, &b->engine), st, done);
    ASSAY_TRY_GOTO(parity_engine_check_inputs(&b->engine, o), st, done);
    ASSAY_TRY_GOTO(make_folder(s->keep, b->dir), st, done);
    ASSAY_TRY_GOTO(bisect_open(b), st, done);
    ASSAY_TRY_GOTO(bisect_all(b, &v), st, done);
    *code = v.code;
    if (s->json)
        st = print_json(b, &v, stdout);
    else
        print_text(b, &v, stdout);
done:
    if (b != NULL && b->dir[0] != '\0' && s->keep[0] == '\0' && !v.keep)
        assay_scratch_remove(b->dir);
    if (b != NULL)
        bisect_close(b);
    free(b);
    json_decref(v.notes);
    json_decref(v.set);
    return st;
}

int parity_main_bisect(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"engine", "gpu|sim|auto",
         "whom to look at (default auto: the GPU where one answers, else the simulator)"},
        {"engine_program", "PATH", "use this engine program"},
        {"precision", "fp32|bf16", "of the engine (default fp32)"},
        {"timeout", "SECONDS", "time limit of one run (default none)"},
        {"target", "NAME",
         "the tensor that has to agree, may hold wildcards (default: all that the whole check compares)"},
        {"against", "DIR",
         "a trace that it has to agree with in place of the reference: of either engine in any layout, or of "
         "golden/assay_trace; its values replace results"},
        {"against_layout", "LAYOUT", "the same with a run of the engine in that layout, without --fault"},
        {"runs", "N", "runs of the engine at the most (default 300)"},
        {"keep", "DIR",
         "new folder for the last traces (default: a temporary one, kept when a set was found)"},
        {"json", NULL, "print the verdict as JSON"},
        {NULL, NULL, NULL}};
    bisect_options s = {.step = {.engine = "auto"}, .runs = BISECT_RUNS};
    assay_train_options o;
    int code = 2;
    assay_train_options_default(&o);
    assay_status st = assay_options_parse(
        argc, argv,
        "Runs the engine on a batch, and where it differs from the unsharded reference (or another run) by "
        "more "
        "than rounding explains, "
        "replaces operations, first by their variant 0, then by the reference's values, until the difference "
        "vanishes: the last "
        "line but one is the smallest such set.  Exit code: 0 no mismatch, 1 a mismatch, 2 it could not be "
        "judged.\vExamples:\n"
        "  assay bisect --model DIR --batch FILE --layout tp2,sp --precision bf16\n"
        "  assay bisect --model DIR --batch FILE \\\n"
        "               --target 'decoder.layers.0.*.main_grad'\n"
        "  assay bisect --model DIR --batch FILE --layout tp2,sp --against-layout dp2\n"
        "  assay bisect --model DIR --batch FILE --against TRACE\n",
        "", &o, ASSAY_FOR_BISECT, extra, on_option, &s);
    if (st == ASSAY_OK)
        st = parity_step_precision(&s.step, &o);
    if (st == ASSAY_OK)
        st = check_options(&s, &o);
    if (st == ASSAY_OK)
        st = run(&s, &o, &code);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay bisect", 0);
        return 2;
    }
    return code;
}
