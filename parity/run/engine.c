/* Finding and running the engine program. */
#include "parity/run/engine.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/run/launch.h"
#include "core/run/metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 160 };

/* Seconds that an engine has to say what it is: ASSAY_DOCTOR_TIMEOUT, else 60. */
static assay_status doctor_limit(double *seconds)
{
    const char *text = getenv("ASSAY_DOCTOR_TIMEOUT");
    char *end = NULL;
    *seconds = 60;
    if (text == NULL || text[0] == '\0')
        return ASSAY_OK;
    *seconds = strtod(text, &end);
    ASSAY_CHECK(*end == '\0' && *seconds > 0 && *seconds <= 1e6, ASSAY_INVALID_ARGUMENT,
                "ASSAY_DOCTOR_TIMEOUT: expected seconds, found %s", text);
    return ASSAY_OK;
}

static bool ends_before(pid_t pid, double end, int *status)
{
    for (;;) {
        const pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid)
            return true;
        if (assay_monotonic_s() > end)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* What a program said on stderr, which lies in the file `fd`: the last line when it failed, else all of it is passed on. */
static void said(int fd, bool failed, char *line, size_t capacity)
{
    char text[4096];
    line[0] = '\0';
    const ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : 0;
    if (n <= 0)
        return;
    text[n] = '\0';
    if (!failed) {
        fputs(text, stderr);
        return;
    }
    for (char *end = text + n; end > text && end[-1] == '\n'; end--)
        end[-1] = '\0';
    const char *last = strrchr(text, '\n');
    last = last != NULL ? last + 1 : text;
    const char *reason = strstr(last, ": error: ");
    snprintf(line, capacity, ": %s", reason != NULL ? reason + strlen(": error: ") : last);
    assay_clean_text(line);
}

/* How `program doctor` ended; code: errno of exec, 0: it was started.  That there is no device is the program's own word. */
static assay_status ended_well(const char *program, int status, int code, int errors)
{
    const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    char why[400];
    ASSAY_CHECK(code == 0, ASSAY_CHILD, "engine %s: cannot be started: %s%s", program, strerror(code),
                code == ENOENT    ? " (it is there: its interpreter, or the loader that it names, is not)"
                : code == ENOEXEC ? " (a script needs a first line #!, a program must be of this machine)"
                                  : "");
    said(errors, !well, why, sizeof why);
    ASSAY_CHECK(!WIFSIGNALED(status), ASSAY_CHILD, "%s doctor: died of signal %d (%s)%s", program,
                WTERMSIG(status), strsignal(WTERMSIG(status)), why);
    ASSAY_CHECK(well, ASSAY_CHILD, "%s doctor: ended with exit code %d%s", program, WEXITSTATUS(status),
                why[0] != '\0' ? why : ", without a word on stderr");
    return ASSAY_OK;
}

/* Runs `program doctor` (with `flag` when that is not NULL) and reads the JSON object it prints. */
static assay_status ask(const char *program, const char *flag, json_t **out)
{
    int fd[2], failed[2]; /* what exec says that failed: closed by one that did not */
    char *text = NULL;
    size_t n = 0, capacity = 1 << 18;
    double limit_s;
    *out = NULL;
    ASSAY_TRY(doctor_limit(&limit_s));
    ASSAY_CHECK(pipe2(failed, O_CLOEXEC) == 0, ASSAY_IO, "pipe: %s", strerror(errno));
    if (pipe(fd) != 0) {
        close(failed[0]), close(failed[1]);
        ASSAY_FAIL(ASSAY_IO, "pipe: %s", strerror(errno));
    }
    /* Kept, not shown: that this machine has no device is a reason to take the simulator, no error of the run. */
    const int errors = memfd_create("doctor", MFD_CLOEXEC);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
        char *argv[] = {strdup(program), strdup("doctor"), flag ? strdup(flag) : NULL, NULL};
        close(fd[0]);
        dup2(fd[1], STDOUT_FILENO);
        if (errors >= 0)
            dup2(errors, STDERR_FILENO);
        execv(program, argv);
        const int code = errno;
        _exit(write(failed[1], &code, sizeof code) == sizeof code ? 127 : 126);
    }
    close(failed[1]);
    close(fd[1]);
    text = malloc(capacity);
    const double end = assay_monotonic_s() + limit_s;
    bool late = false;
    while (pid > 0 && text != NULL && n + 1 < capacity && !late) {
        struct pollfd wait = {.fd = fd[0], .events = POLLIN};
        const double left = end - assay_monotonic_s();
        late = left <= 0;
        if (late || poll(&wait, 1, (int)(left * 1e3) + 1) <= 0)
            continue;
        const ssize_t got = read(fd[0], text + n, capacity - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd[0]);
    int status = -1, code = 0;
    const bool started = pid <= 0 || late || read(failed[0], &code, sizeof code) != sizeof code;
    close(failed[0]);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(pid > 0 && text != NULL, ASSAY_IO, st, done, "%s doctor: %s", program, strerror(errno));
    if (late || !ends_before(pid, end, &status)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        st = ASSAY_ERROR(ASSAY_TIMEOUT, "%s doctor: no answer within %g s (ASSAY_DOCTOR_TIMEOUT)", program,
                         limit_s);
        goto done;
    }
    ASSAY_TRY_GOTO(ended_well(program, status, started ? 0 : code, errors), st, done);
    if ((st = assay_json_parse(out, text, n, "doctor")) != ASSAY_OK)
        assay_context(st, "%s doctor: expected a JSON object that describes the device", program);
done:
    if (errors >= 0)
        close(errors);
    free(text);
    return st;
}

static assay_status use(const char *program, parity_engine *out)
{
    bool simulated = false;
    int64_t devices = 1;
    char device[200] = "a device";
    ASSAY_CHECK(access(program, X_OK) == 0, ASSAY_NOT_FOUND, "engine %s: expected an executable program: %s",
                program, strerror(errno));
    ASSAY_TRY(ask(program, NULL, &out->doctor));
    ASSAY_TRY(assay_json_get_bool(out->doctor, "simulated", true, "doctor", &simulated));
    ASSAY_TRY(assay_json_get_i64(out->doctor, "devices", false, 0, 1024, "doctor", &devices));
    ASSAY_TRY(assay_json_get_string(out->doctor, "device", false, "doctor", device, sizeof device));
    snprintf(out->program, sizeof out->program, "%s", program);
    snprintf(out->name, sizeof out->name, "%s", simulated ? "sim" : "gpu");
    out->n_devices = simulated ? 0 : (int)devices;
    if (simulated)
        snprintf(out->reason, sizeof out->reason,
                 "the engine's CUDA sources run in the simulator on this CPU");
    else
        snprintf(out->reason, sizeof out->reason, "%lld x %s", (long long)devices, device);
    return ASSAY_OK;
}

assay_status parity_engine_find(const char *wish, const char *program, parity_engine *out)
{
    char path[ASSAY_PATH], why[PARITY_TEXT] = "";
    memset(out, 0, sizeof *out);
    ASSAY_CHECK(strcmp(wish, "auto") == 0 || strcmp(wish, "gpu") == 0 || strcmp(wish, "sim") == 0,
                ASSAY_INVALID_ARGUMENT, "engine: expected auto, gpu or sim, found %s", wish);
    if (program != NULL && program[0] != 0) {
        ASSAY_TRY(use(program, out));
        const bool meant = strcmp(wish, "auto") == 0 || strcmp(wish, out->name) == 0;
        if (!meant)
            parity_engine_free(out);
        ASSAY_CHECK(meant, ASSAY_MISMATCH, "engine %s: expected a program of it, but %s is engine %s", wish,
                    program, out->name);
        return ASSAY_OK;
    }
    if (strcmp(wish, "sim") != 0) {
        if (assay_sibling_program("assay-gpu", path, sizeof path) == ASSAY_OK && use(path, out) == ASSAY_OK)
            return ASSAY_OK;
        snprintf(why, sizeof why, "%.400s", assay_error_message());
        ASSAY_CHECK(strcmp(wish, "gpu") != 0, ASSAY_NOT_FOUND, "engine gpu: %s", why);
        assay_error_clear();
    }
    ASSAY_TRY(assay_sibling_program("assay-sim", path, sizeof path));
    ASSAY_TRY(use(path, out));
    if (why[0] != 0)
        snprintf(out->reason, sizeof out->reason, "the simulator, because assay-gpu cannot be used: %.400s",
                 why);
    return ASSAY_OK;
}

assay_status parity_engine_operations(const parity_engine *e, json_t **out)
{
    json_t *all = NULL;
    *out = NULL;
    ASSAY_TRY(ask(e->program, "--ops", &all));
    *out = json_incref(json_object_get(all, "operations"));
    json_decref(all);
    ASSAY_CHECK(json_is_array(*out), ASSAY_FORMAT, "%s doctor --ops: expected a list 'operations'",
                e->program);
    return ASSAY_OK;
}

void parity_engine_free(parity_engine *e)
{
    json_decref(e->doctor);
    json_decref(e->ladder.operations);
    e->doctor = NULL;
    e->ladder.operations = NULL;
}

int parity_engine_highest_variant(const parity_engine *e)
{
    const char *family;
    const json_t *number;
    json_int_t highest = 0;
    json_object_foreach(json_object_get(e->doctor, "variants"), family, number) highest =
        json_integer_value(number) > highest ? json_integer_value(number) : highest;
    return (int)(highest < 9 ? highest : 9);
}

/* "kN" alone means every family; "FAMILY=kN" one of them. */
static assay_status check_word(const parity_engine *e, const char *word)
{
    const json_t *known = json_object_get(e->doctor, "variants"), *highest;
    const char *equals = strchr(word, '='), *name;
    char family[ASSAY_SUGGEST_WORD], all[256] = "";
    size_t used = 0;
    assay_suggestion near;
    if (equals == NULL && word[0] == 'k' && word[1] >= '0' && word[1] <= '9' && word[2] == '\0')
        return ASSAY_OK;
    snprintf(family, sizeof family, "%.*s", equals != NULL ? (int)(equals - word) : (int)strlen(word), word);
    assay_suggest_begin(&near, family, strlen(family));
    json_object_foreach((json_t *)(uintptr_t)known, name, highest)
    {
        if (strcmp(name, family) == 0 && equals != NULL) {
            const json_int_t top = json_integer_value(highest);
            ASSAY_CHECK(equals[1] == 'k' && equals[2] >= '0' && equals[2] <= '9' && equals[2] - '0' <= top &&
                            equals[3] == '\0',
                        ASSAY_INVALID_ARGUMENT, "variant '%s': unknown variant '%s', expected k0..k%d", word,
                        equals + 1, (int)top);
            return ASSAY_OK;
        }
        assay_suggest_add(&near, name);
        if (used < sizeof all)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used > 0 ? ", " : "", name);
    }
    ASSAY_CHECK(equals != NULL, ASSAY_INVALID_ARGUMENT,
                "variant '%s': expected fastest, kN or FAMILY=kN with a family of %s%s", word, all,
                assay_suggest_end(&near, ""));
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "variant '%s': unknown family '%s', expected one of %s%s", word,
               family, all, assay_suggest_end(&near, ""));
}

/* A family is named once, and "kN", which every other family gets, in front of them. */
static assay_status check_first(const char *text, const char *at, const char *word)
{
    const char *equals = strchr(word, '=');
    const size_t name = equals != NULL ? (size_t)(equals + 1 - word) : 0;
    ASSAY_CHECK(name > 0 || at == text, ASSAY_INVALID_ARGUMENT,
                "variant '%s': what all families get comes first, in front of %.*s", word,
                (int)(at - 1 - text), text);
    for (const char *before = text; before < at; before += strcspn(before, ",") + 1)
        ASSAY_CHECK(strncmp(before, word, name) != 0, ASSAY_INVALID_ARGUMENT,
                    "variant '%s': %.*s is named twice", word, (int)name - 1, word);
    return ASSAY_OK;
}

assay_status parity_engine_check_variant(const parity_engine *e, const char *text)
{
    char word[256];
    if (text[0] == '\0' || strcmp(text, "fastest") == 0 || json_object_get(e->doctor, "variants") == NULL)
        return ASSAY_OK; /* an engine of somebody else need not say what it has */
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        ASSAY_TRY(check_word(e, word));
        ASSAY_TRY(check_first(text, at, word));
        at += length;
        if (*at == '\0')
            return ASSAY_OK;
    }
}

assay_status parity_layout_world(const char *layout, int *world)
{
    assay_parallel_config p;
    assay_grid g;
    ASSAY_TRY(assay_layout_parse(layout, &p));
    ASSAY_TRY(assay_grid_make(&p, &g));
    *world = g.world;
    return ASSAY_OK;
}

/* The shortest text that is read as the same number. */
static void number_text(double value, char out[32])
{
    int digits = 1;
    do
        snprintf(out, 32, "%.*g", digits, value);
    while (digits++ < 17 && strtod(out, NULL) != value);
}

/* Appends one value. */
static void append_value(char *out, size_t capacity, const json_t *value)
{
    const size_t used = strlen(out);
    char number[32];
    if (json_is_string(value))
        snprintf(out + used, capacity - used, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out + used, capacity - used, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value)) {
        number_text(json_real_value(value), number);
        snprintf(out + used, capacity - used, "%s", number);
    } else
        snprintf(out + used, capacity - used, "%s", json_is_true(value) ? "true" : "false");
}

void parity_option_argument(const char *name, const json_t *value, char *out, size_t capacity)
{
    snprintf(out, capacity, "--%s=", name);
    if (!json_is_array(value))
        append_value(out, capacity, value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0)
            snprintf(out + strlen(out), capacity - strlen(out), ",");
        append_value(out, capacity, json_array_get(value, i));
    }
    for (char *c = out; *c != '\0' && *c != '='; c++)
        if (*c == '_')
            *c = '-';
}

/* Appends "--name=value" for every option of the verb that was given or is not at its default: a given default goes before what
 * the model's folder says. */
static assay_status append_options(const assay_train_options *o, unsigned where, char **argv, int *argc)
{
    assay_train_options defaults;
    assay_status st = ASSAY_OK;
    assay_train_options_default(&defaults);
    json_t *have = assay_train_options_to_json(o, where);
    json_t *base = assay_train_options_to_json(&defaults, where);
    ASSAY_CHECK_GOTO(have != NULL && base != NULL, ASSAY_OUT_OF_MEMORY, st, done, "engine options");
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        const json_t *value = json_object_get(have, row->name);
        char argument[ASSAY_PATH + 128];
        if (value == NULL ||
            (!assay_train_option_given(o, row->name) && json_equal(value, json_object_get(base, row->name))))
            continue;
        parity_option_argument(row->name, value, argument, sizeof argument);
        ASSAY_CHECK_GOTO(*argc < MAX_ARGS - 1, ASSAY_LIMIT, st, done, "engine: too many options");
        argv[*argc] = strdup(argument);
        ASSAY_CHECK_GOTO(argv[*argc] != NULL, ASSAY_OUT_OF_MEMORY, st, done, "engine options");
        (*argc)++;
    }
done:
    json_decref(have);
    json_decref(base);
    return st;
}

/* The last line of the log that says error, for the message of a failed run. */
static void last_error(const char *log_path, char *out, size_t capacity)
{
    char *text = NULL;
    uint64_t n = 0;
    out[0] = 0;
    if (log_path == NULL || assay_read_file(log_path, 64 << 20, &text, &n) != ASSAY_OK)
        return;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (out[0] == 0 && strstr(line, "error") != NULL)
            snprintf(out, capacity, "%s", line);
    free(text);
}

assay_status parity_engine_run(const parity_engine *e, const char *verb, const assay_train_options *o,
                               const char *const *extra, const char *log_path, bool quiet, double timeout_s,
                               double *wall_s)
{
    char *argv[MAX_ARGS] = {0};
    int argc = 0, world = 1;
    assay_status st = ASSAY_OK;
    assay_launch_result result = {0};
    ASSAY_TRY(parity_layout_world(o->layout[0] != 0 ? o->layout : "1", &world));
    argv[argc++] = strdup(e->program);
    argv[argc++] = strdup(verb);
    for (int i = 0; extra != NULL && extra[i] != NULL && argc < MAX_ARGS / 2; i++)
        argv[argc++] = strdup(extra[i]);
    const unsigned where = strcmp(verb, "ops") == 0 ? ASSAY_FOR_OPS : ASSAY_FOR_STEP;
    ASSAY_TRY_GOTO(append_options(o, where, argv, &argc), st, done);
    const assay_launch_options launch = {.world = world,
                                         .timeout_s = timeout_s,
                                         .prefix_output = world > 1,
                                         .log_path = log_path,
                                         .quiet = quiet,
                                         .graceful = assay_metrics_wanted(o),
                                         .distinct_nccl_hosts = e->n_devices > 0 && world > e->n_devices,
                                         .n_devices = e->n_devices};
    st = assay_launch((const char *const *)argv, &launch, &result);
    if (wall_s != NULL)
        *wall_s = result.wall_s;
    if (st != ASSAY_OK) {
        char found[400];
        last_error(log_path, found, sizeof found);
        assay_context(st, "%s %s, layout %s%s%s", e->program, verb, o->layout[0] != 0 ? o->layout : "1",
                      found[0] != 0 ? ": " : "", found);
    }
done:
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    return st;
}
