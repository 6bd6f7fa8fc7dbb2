/* Which case files are taken: all, or those with the names of a command line. */
#include "core/base/suggest.h"
#include "parity/run/cases.h"
#include <stdlib.h>
#include <string.h>

bool parity_case_chosen(const parity_case_choice *choice, const char *name)
{
    for (int i = 0; i < choice->n; i++)
        if (strcmp(choice->names[i], name) == 0)
            return true;
    return choice->n == 0;
}

/* A name that no case has is a mistake, also beside names that some have. */
static assay_status check_name(const char *name, const parity_case_choice *choice, const parity_case *cases,
                               int n_cases, assay_suggestion *near)
{
    bool known = false;
    for (int i = 0; i < 2 && choice->others[i] != NULL; i++) {
        known = known || strcmp(choice->others[i], name) == 0;
        assay_suggest_add(near, choice->others[i]);
    }
    for (int i = 0; i < n_cases && !known; i++)
        known = strcmp(cases[i].name, name) == 0;
    ASSAY_CHECK(known, ASSAY_NOT_FOUND, "--case %s: no case has this name%s", name,
                assay_suggest_end(near, ""));
    return ASSAY_OK;
}

assay_status parity_cases_select(char *const *paths, int n, const parity_case_choice *choice,
                                 parity_case *cases, int *n_cases)
{
    assay_suggestion near[PARITY_MAX_CASE_NAMES];
    for (int k = 0; k < choice->n; k++)
        assay_suggest_begin(&near[k], choice->names[k], strlen(choice->names[k]));
    for (int i = 0; i < n; i++) {
        parity_case *c = &cases[*n_cases];
        ASSAY_TRY(parity_case_load(paths[i], c));
        for (int k = 0; k < choice->n; k++)
            assay_suggest_add(&near[k], c->name);
        if (!parity_case_chosen(choice, c->name)) {
            parity_case_free(c);
            continue;
        }
        (*n_cases)++;                          /* from here on the caller's to free */
        for (int k = 0; k < *n_cases - 1; k++) /* their work would lie in one folder */
            ASSAY_CHECK(strcmp(cases[k].name, c->name) != 0, ASSAY_INVALID_ARGUMENT,
                        "%s: the case is named %s, and so is the one in %s", c->file, c->name, cases[k].file);
    }
    for (int k = 0; k < choice->n; k++)
        ASSAY_TRY(check_name(choice->names[k], choice, cases, *n_cases, &near[k]));
    return ASSAY_OK;
}

assay_status parity_case_named(const char *name, parity_case *out)
{
    char dir[ASSAY_PATH];
    char **paths = NULL;
    int n = 0, found = 0;
    const parity_case_choice choice = {{name}, 1, {NULL}};
    ASSAY_TRY(parity_cases_dir(dir, sizeof dir));
    ASSAY_TRY(parity_cases_list(dir, &paths, &n));
    /* Of two cases of one name the first is there while the second is read. */
    parity_case *cases = calloc((size_t)n + 1, sizeof *cases);
    assay_status st = cases != NULL ? parity_cases_select(paths, n, &choice, cases, &found)
                                    : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%d cases", n);
    if (st == ASSAY_OK)
        *out = cases[--found];
    while (found > 0)
        parity_case_free(&cases[--found]);
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    free(cases);
    return st;
}
