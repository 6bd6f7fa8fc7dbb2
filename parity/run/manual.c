/* The verbs `help` and `completion`, and what every verb parses. */
#include "parity/run/manual.h"
#include "core/base/suggest.h"
#include "parity/parity.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    const parity_verb *of;
    int n;
} known;

void parity_verbs_set(const parity_verb *verbs, int n)
{
    known.of = verbs;
    known.n = n;
}

const parity_verb *parity_verbs(int *n)
{
    *n = known.n;
    return known.of;
}

void parity_usage(FILE *out)
{
    fputs("Usage: assay VERB [OPTION...]\n\nTwo implementations of one training stack, and a judge.\n\n",
          out);
    for (int i = 0; i < known.n; i++)
        fprintf(out, "  %-10s %s\n", known.of[i].name, known.of[i].help);
    fputs("\n`assay VERB --help` lists the options.  Exit code: 0 all within bounds, 1 something is wrong, 2 "
          "could not be "
          "checked.\n",
          out);
}

assay_status parity_verb_describe(const parity_verb *verb, assay_describe describe)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    ASSAY_CHECK(child >= 0, ASSAY_CHILD, "assay %s: no process", verb->name);
    if (child == 0) {
        char program[32];
        char *argv[] = {program, NULL};
        snprintf(program, sizeof program, "assay %s", verb->name);
        assay_options_describe(describe, (void *)(uintptr_t)verb);
        (void)verb->main(1, argv);
        _exit(3); /* a verb that parsed no options */
    }
    ASSAY_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
                ASSAY_CHILD, "assay %s: its options cannot be listed", verb->name);
    return ASSAY_OK;
}

static const parity_verb *find(const char *name)
{
    for (int i = 0; i < known.n; i++)
        if (strcmp(known.of[i].name, name) == 0)
            return &known.of[i];
    return NULL;
}

typedef struct words {
    const char *word;
    bool man;
} words;

static assay_status on_word(void *user, const char *name, const char *text)
{
    words *w = user;
    if (name != NULL) {
        w->man = true;
        return ASSAY_OK;
    }
    ASSAY_CHECK(w->word == NULL, ASSAY_INVALID_ARGUMENT, "expected one word, found '%.64s' behind '%.64s'",
                text, w->word);
    w->word = text;
    return ASSAY_OK;
}

static int end(const char *program, assay_status st)
{
    if (st == ASSAY_OK)
        return 0;
    assay_error_print(stderr, program, 0);
    return 2;
}

static assay_status help_of(const char *name)
{
    const parity_verb *verb = find(name);
    assay_suggestion near;
    assay_suggest_begin(&near, name, strlen(name));
    for (int i = 0; i < known.n; i++)
        assay_suggest_add(&near, known.of[i].name);
    ASSAY_CHECK(verb != NULL, ASSAY_INVALID_ARGUMENT, "unknown verb \"%.64s\"%s", name,
                assay_suggest_end(&near, ""));
    char program[32], option[] = "--help";
    char *argv[] = {program, option, NULL};
    snprintf(program, sizeof program, "assay %s", verb->name);
    (void)verb->main(2, argv); /* ends the process */
    ASSAY_FAIL(ASSAY_INTERNAL, "assay %s --help came back", verb->name);
}

int parity_main_help(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"man", NULL, "print the manual page of all verbs: assay help --man | man -l -"}, {NULL, NULL, NULL}};
    words w = {NULL, false};
    assay_status st =
        assay_options_parse(argc, argv,
                            "Lists the verbs, or the options of one of them as assay VERB --help "
                            "does.",
                            "[VERB]", NULL, 0, extra, on_word, &w);
    if (st == ASSAY_OK && w.man && w.word != NULL)
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "--man: expected no verb beside it, found '%.64s'", w.word);
    else if (st == ASSAY_OK && w.man)
        st = parity_manual_page(stdout);
    else if (st == ASSAY_OK && w.word != NULL)
        st = help_of(w.word);
    else if (st == ASSAY_OK)
        parity_usage(stdout);
    return end("assay help", st);
}

int parity_main_completion(int argc, char **argv)
{
    words w = {NULL, false};
    assay_status st = assay_options_parse(argc, argv,
                                          "Prints what a shell completes after the word assay.\vExample:\n"
                                          "  source <(assay completion bash)\n",
                                          "bash", NULL, 0, NULL, on_word, &w);
    if (st == ASSAY_OK && (w.word == NULL || strcmp(w.word, "bash") != 0))
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "expected the shell bash, found %.64s",
                         w.word != NULL ? w.word : "none");
    if (st == ASSAY_OK)
        st = parity_completion_bash(stdout);
    return end("assay completion", st);
}
