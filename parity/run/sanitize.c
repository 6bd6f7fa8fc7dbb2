/* `assay sanitize PROG [ARGUMENTS]`: runs a program that was built for the simulator (assay-cc) with all of its checks, and sums up
 * what they reported.  The simulator writes each report as a line into the file that ASSAY_SIM_FINDINGS names. */
#include "core/base/file.h"
#include "core/run/options.h"
#include "parity/parity.h"
#include "ref/fast/restart.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KINDS = 64 };

typedef struct sanitize {
    bool no_leaks;
    int64_t seed;
    int n_kinds, processes, with_races;
    int64_t total;
    struct {
        char name[48];
        int64_t count;
    } kinds[KINDS];
} sanitize;

static assay_status on_option(void *user, const char *name, const char *text)
{
    sanitize *s = user;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "unexpected argument \"%s\"", text);
    if (strcmp(name, "stream_seed") == 0)
        return assay_option_count(name, text, 0, INT64_MAX, &s->seed);
    s->no_leaks = true;
    return ASSAY_OK;
}

/* "assay-sim: race: ..." counts as "race"; what a process says at its start counts the process. */
static void count_line(sanitize *s, const char *line)
{
    static const char head[] = "assay-sim: ";
    if (strncmp(line, head, sizeof head - 1) != 0)
        return; /* a report's further line */
    const char *kind = line + sizeof head - 1, *end = strchr(kind, ':');
    const size_t n = end ? (size_t)(end - kind) : 0;
    if (n == 0 || n >= sizeof s->kinds[0].name)
        return;
    if (n == 5 && strncmp(kind, "begin", n) == 0) {
        s->processes++;
        s->with_races += strstr(line, "races checked") != NULL;
        return;
    }
    int k = 0;
    while (k < s->n_kinds && (strncmp(s->kinds[k].name, kind, n) != 0 || s->kinds[k].name[n] != '\0'))
        k++;
    if (k == KINDS)
        return;
    if (k == s->n_kinds)
        memcpy(s->kinds[s->n_kinds++].name, kind, n);
    s->kinds[k].count++;
    s->total++;
}

static assay_status count_findings(sanitize *s, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    if (f == NULL && errno == ENOENT)
        return ASSAY_OK;
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: %s", path, strerror(errno));
    while (getline(&line, &room, f) >= 0)
        count_line(s, line);
    const bool bad = ferror(f) != 0;
    free(line);
    fclose(f);
    return bad ? ASSAY_ERROR(ASSAY_IO, "%s: cannot be read", path) : ASSAY_OK;
}

static void set_environment(const sanitize *s, const char *findings)
{
    char seed[32];
    snprintf(seed, sizeof seed, "%lld", (long long)s->seed);
    setenv("ASSAY_SIM_FINDINGS", findings, 1);
    setenv("ASSAY_SIM_DEVICE_PRIVATE", "1", 1);
    setenv("ASSAY_SIM_LEAKS", s->no_leaks ? "0" : "1", 1);
    if (s->seed > 0)
        setenv("ASSAY_SIM_STREAM_SEED", seed, 1);
}

/* Its wait status. */
static assay_status run_program(const sanitize *s, char **argv, const char *findings, int *status)
{
    fflush(NULL);
    const pid_t child = fork();
    ASSAY_CHECK(child >= 0, ASSAY_IO, "fork: %s", strerror(errno));
    if (child == 0) {
        set_environment(s, findings);
        ref_restart_untell();
        execvp(argv[0], argv);
        fprintf(stderr, "assay sanitize: %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    while (waitpid(child, status, 0) < 0)
        ASSAY_CHECK(errno == EINTR, ASSAY_IO, "waitpid: %s", strerror(errno));
    return ASSAY_OK;
}

/* 0: nothing found and the program succeeded.  1: findings.  2: nothing could be checked.  Else the program's own failure. */
static int verdict(const sanitize *s, const char *program, int status)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char ended[64] = "";
    if (WIFSIGNALED(status))
        snprintf(ended, sizeof ended, "ended by signal %d", WTERMSIG(status));
    else
        snprintf(ended, sizeof ended, "exit code %d", code);
    if (s->processes == 0) {
        fprintf(
            stderr,
            "assay sanitize: %s: %s; it made no call of the simulator, nothing was checked: build it with "
            "`assay-cc --races`\n",
            program, ended);
        return code == 0 ? 2 : code;
    }
    printf("assay sanitize: %s: %s, %d process%s; checked: memory, barriers, collectives%s%s\n", program,
           ended, s->processes, s->processes == 1 ? "" : "es", s->no_leaks ? "" : ", leaks",
           s->with_races == s->processes
               ? ", uninitialized reads, races"
               : "; races and uninitialized reads not: build it with `assay-cc --races`");
    for (int k = 0; k < s->n_kinds; k++)
        printf("%8lld  %s\n", (long long)s->kinds[k].count, s->kinds[k].name);
    printf("%8lld  finding%s\n", (long long)s->total, s->total == 1 ? "" : "s");
    return s->total > 0 ? 1 : code;
}

int parity_main_sanitize(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"no_leaks", NULL, "device memory that is never freed is no finding"},
        {"stream_seed", "N", "order among streams, drawn from N (ASSAY_SIM_STREAM_SEED)"},
        {NULL, NULL, NULL}};
    sanitize s = {0};
    char folder[ASSAY_PATH], findings[ASSAY_PATH + 16];
    int own = 1, status = 0;
    while (own < argc && argv[own][0] == '-') /* what follows the program's name is the program's */
        own += strcmp(argv[own], "--stream-seed") == 0 && own + 1 < argc ? 2 : 1;
    assay_status st = assay_options_parse(
        own, argv, "Runs a program that assay-cc built, under every check of the simulator.",
        "PROG [ARGUMENTS]", NULL, 0, extra, on_option, &s);
    if (st == ASSAY_OK && own == argc)
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "expected a program to run");
    if (st == ASSAY_OK)
        st = assay_scratch_make("sanitize", folder, sizeof folder);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay sanitize", 0);
        return 2;
    }
    snprintf(findings, sizeof findings, "%s/findings", folder);
    st = run_program(&s, argv + own, findings, &status);
    if (st == ASSAY_OK)
        st = count_findings(&s, findings);
    if (st != ASSAY_OK)
        assay_error_print(stderr, "assay sanitize", 0);
    assay_scratch_remove(folder);
    return st == ASSAY_OK ? verdict(&s, argv[own], status) : 2;
}
