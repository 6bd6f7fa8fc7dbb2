/* `assay run`: the matrix, from case files and filters to a list of tasks. */
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

static bool case_wanted(const parity_run_state *s, const char *name)
{
    for (int i = 0; i < s->o.n_cases; i++)
        if (strcmp(s->o.cases[i], name) == 0)
            return true;
    return s->o.n_cases == 0;
}

assay_status parity_run_load_cases(parity_run_state *s)
{
    char dir[ASSAY_PATH];
    char **paths = NULL;
    int n = 0;
    assay_status st = ASSAY_OK;
    if (s->o.n_files == 0) {
        ASSAY_TRY(parity_cases_dir(dir, sizeof dir));
        ASSAY_TRY(parity_cases_list(dir, &paths, &n));
    }
    const int total = s->o.n_files > 0 ? s->o.n_files : n;
    ASSAY_CHECK_GOTO(total >= 1 && total <= PARITY_MAX_CASES, ASSAY_NOT_FOUND, st, done,
                     "expected 1 to %d case files, found %d", PARITY_MAX_CASES, total);
    for (int i = 0; i < total; i++) {
        parity_case *c = &s->cases[s->n_cases];
        ASSAY_TRY_GOTO(parity_case_load(s->o.n_files > 0 ? s->o.files[i] : paths[i], c), st, done);
        if (!case_wanted(s, c->name)) {
            parity_case_free(c);
            continue;
        }
        s->n_cases++;
    }
done:
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    return st;
}

static assay_status add_task(parity_run_state *s, const parity_case *c, assay_precision precision,
                             const char *layout, const char *next)
{
    ASSAY_CHECK(s->n_tasks < PARITY_MAX_TASKS, ASSAY_LIMIT, "more than %d tasks: use --shard",
                PARITY_MAX_TASKS);
    parity_task *t = &s->tasks[s->n_tasks++];
    t->c = c;
    t->precision = precision;
    snprintf(t->layout, sizeof t->layout, "%s", layout);
    snprintf(t->next_layout, sizeof t->next_layout, "%s", next);
    const char *name = c != NULL ? c->name : "operations";
    const int a = snprintf(t->case_dir, ASSAY_PATH, "%s/work/%s", s->o.report_dir, name);
    const int b = snprintf(t->dir, ASSAY_PATH, "%s/work/%s/%s-%s", s->o.report_dir, name,
                           assay_precision_name(precision), layout);
    ASSAY_CHECK(a < ASSAY_PATH && b < ASSAY_PATH, ASSAY_LIMIT, "--report: path too long");
    return ASSAY_OK;
}

static bool precision_wanted(const parity_run_state *s, assay_precision p)
{
    return s->o.precision[0] == 0 || strcmp(s->o.precision, assay_precision_name(p)) == 0;
}

static assay_status case_tasks(parity_run_state *s, const parity_case *c)
{
    const int n = s->o.n_layouts > 0 ? s->o.n_layouts : c->n_layouts;
    for (int p = 0; p < c->n_precisions; p++) {
        if (!precision_wanted(s, c->precisions[p]))
            continue;
        for (int i = 0; i < n; i++) {
            const char *layout = s->o.n_layouts > 0 ? s->o.layouts[i] : c->layouts[i];
            /* The checkpoint moves to the next layout of the case's own list, round and round. */
            int k = 0;
            while (k < c->n_layouts && strcmp(c->layouts[k], layout) != 0)
                k++;
            ASSAY_TRY(add_task(s, c, c->precisions[p], layout, c->layouts[(k + 1) % c->n_layouts]));
        }
    }
    return ASSAY_OK;
}

assay_status parity_run_make_tasks(parity_run_state *s)
{
    static const char *const exact_layouts[] = {"1", "dp3"};
    static const assay_precision both[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    const bool exact =
        (s->o.check[0] == 0 || strcmp(s->o.check, "exact") == 0) && case_wanted(s, "operations");
    for (size_t p = 0; exact && s->o.n_files == 0 && p < 2; p++)
        for (size_t i = 0; i < 2 && precision_wanted(s, both[p]); i++)
            ASSAY_TRY(add_task(s, NULL, both[p], exact_layouts[i], "1"));
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY(case_tasks(s, &s->cases[i]));
    int kept = 0;
    for (int i = 0; s->o.shards > 0 && i < s->n_tasks; i++)
        if (i % s->o.shards == s->o.shard - 1)
            s->tasks[kept++] = s->tasks[i];
    if (s->o.shards > 0)
        s->n_tasks = kept;
    ASSAY_CHECK(s->n_tasks > 0, ASSAY_INVALID_ARGUMENT,
                "nothing to run: no case matches --case, --precision and --shard");
    return ASSAY_OK;
}

/* " --clip-grad=1" at the end of o->overrides. */
static void remember_override(parity_run_options *o, const char *key, const json_t *value)
{
    const size_t at = strlen(o->overrides);
    char argument[256];
    parity_option_argument(key, value, argument, sizeof argument);
    snprintf(o->overrides + at, sizeof o->overrides - at, " %s", argument);
}

assay_status parity_run_apply_overrides(parity_run_state *s, const assay_train_options *given)
{
    assay_train_options defaults;
    assay_status st = ASSAY_OK;
    assay_train_options_default(&defaults);
    json_t *have = assay_train_options_to_json(given), *base = assay_train_options_to_json(&defaults);
    json_t *changed = json_object();
    const char *key;
    json_t *value;
    ASSAY_CHECK_GOTO(have != NULL && base != NULL && changed != NULL, ASSAY_OUT_OF_MEMORY, st, done,
                     "options");
    json_object_foreach(have, key, value)
    {
        if (json_equal(value, json_object_get(base, key)))
            continue;
        json_object_set(changed, key, value);
        remember_override(&s->o, key, value);
    }
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY_GOTO(assay_train_options_from_json(&s->cases[i].options, changed, "command line"), st,
                       done);
done:
    json_decref(have);
    json_decref(base);
    json_decref(changed);
    return st;
}
