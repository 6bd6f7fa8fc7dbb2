/* `assay certify --python pkg:function --operation OP`: a torch callable.  The package assay_trace (golden/assay_trace) reads the requests, calls
 * the function in a process of its own, and writes the answers. */
#include "parity/certify/certify.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/checks/request.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const acts[] = {"F32", "BF16"};

/* Names of the outputs in the order in which the function returns them. */
static void output_names(const assay_op *op, char *out, size_t capacity)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < assay_op_n_slots(op) && n < capacity; i++)
        if (op->slots[i].role != ASSAY_SLOT_IN)
            n += (size_t)snprintf(out + n, capacity - n, "%s%s", n > 0 ? "," : "", op->slots[i].name);
}

/* The last line of a log that says something. */
static void last_line(const char *path, char *out, size_t capacity)
{
    char line[512];
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (line[strspn(line, " \n")] != '\0')
            snprintf(out, capacity, "%.*s", (int)strcspn(line, "\n"), line);
    if (f != NULL)
        (void)fclose(f);
}

static void become_python(const char *const *argv, const char *log)
{
    certify_enter_child(log);
    char *copy[24] = {NULL};
    for (int i = 0; argv[i] != NULL && i < 23; i++)
        copy[i] = strdup(argv[i]);
    execvp(copy[0], copy);
    fprintf(stderr, "%s: %s\n", copy[0], strerror(errno));
    _exit(127);
}

/* Runs it to its end; *died says how it ended otherwise. */
static assay_status run_python(const certify_options *o, const char *const *argv, const char *log, char *died,
                               size_t capacity)
{
    const double end = assay_monotonic_s() + o->limit;
    int status = 0;
    pid_t got;
    died[0] = '\0';
    (void)fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_INTERNAL, "fork: %s", strerror(errno));
    if (pid == 0)
        become_python(argv, log);
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (assay_monotonic_s() > end) {
            (void)kill(-pid, SIGKILL);
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            snprintf(died, capacity, "did not end within %g s", o->limit);
            return ASSAY_OK;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    char line[400];
    last_line(log, line, sizeof line);
    if (WIFSIGNALED(status))
        snprintf(died, capacity, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0)
        snprintf(died, capacity, "exit code %d: %.300s", WEXITSTATUS(status), line);
    return ASSAY_OK;
}

/* What the package says about the function and about calls that raised. */
static assay_status take_about(const certify_options *o, const char *path, certify_result *out,
                               json_t **arithmetic)
{
    json_t *about = NULL;
    char sha[ASSAY_SHA256_HEX], file[ASSAY_PATH];
    ASSAY_TRY(assay_json_load(&about, path));
    assay_status st = assay_json_get_string(about, "file", true, path, file, sizeof file);
    if (st == ASSAY_OK)
        st = assay_sha256_file(file, sha);
    const json_t *failures = json_object_get(about, "failures");
    for (size_t i = 0; i < json_array_size(failures); i++) {
        const json_t *f = json_array_get(failures, i);
        certify_bad(&out->board, CERTIFY_ACCEPTS, "%.200s raises %.250s",
                    json_string_value(json_object_get(f, "instance")),
                    json_string_value(json_object_get(f, "error")));
    }
    const json_t *changed = json_object_get(about, "changed");
    for (size_t i = 0; i < json_array_size(changed); i++)
        certify_bad(&out->board, CERTIFY_INPUTS, "changed %.300s",
                    json_string_value(json_array_get(changed, i)));
    *arithmetic = json_incref(json_object_get(about, "arithmetic"));
    if (st == ASSAY_OK && out->subject == NULL) {
        json_t *each = json_object();
        const char *slash = strrchr(file, '/');
        for (int i = 0; i < assay_op_n_slots(out->op); i++)
            if (out->op->slots[i].role != ASSAY_SLOT_IN)
                json_object_set(each, out->op->slots[i].name, *arithmetic);
        out->subject = json_pack("{s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:o, s:s, s:s}}", "kind", "python",
                                 "name", o->python, "file", slash != NULL ? slash + 1 : file, "symbol",
                                 o->python, "sha256", sha, "description", "operation", out->op->name, "built",
                                 json_string_value(json_object_get(about, "built")), "arithmetic", each,
                                 "version", "-", "shapes", "");
        st = out->subject != NULL ? ASSAY_OK
                                  : ASSAY_ERROR(ASSAY_FORMAT, "%s: what it says of the function", path);
    }
    json_decref(about);
    return st;
}

/* One dtype: two processes of one and three threads, whose answers are judged and compared. */
static assay_status try_dtype(const certify_options *o, const char *work, const char *act,
                              certify_result *out)
{
    static const char *const words[] = {"answer", "repeat"};
    char request[ASSAY_PATH], answer[2][ASSAY_PATH], about[ASSAY_PATH], log[ASSAY_PATH], names[256],
        died[512];
    assay_dtype dtype;
    int64_t calls = 0;
    json_t *arithmetic = NULL;
    output_names(out->op, names, sizeof names);
    snprintf(request, sizeof request, "%.900s/request.%s", work, act);
    ASSAY_TRY(assay_dtype_from_name(act, &dtype));
    ASSAY_TRY(certify_request(request, dtype, &out->plan, &calls));
    out->calls += calls;
    for (int k = 0; k < 2; k++) {
        snprintf(answer[k], sizeof answer[k], "%.900s/%s.%s", work, words[k], act);
        snprintf(about, sizeof about, "%.900s/%s.%s.about", work, words[k], act);
        snprintf(log, sizeof log, "%.900s/%s.%s.log", work, words[k], act);
        const char *const argv[] = {o->python_program,
                                    "-m",
                                    "assay_trace.certify",
                                    "--function",
                                    o->python,
                                    "--outputs",
                                    names,
                                    "--request",
                                    request,
                                    "--out",
                                    answer[k],
                                    "--about",
                                    about,
                                    "--threads",
                                    k == 0 ? "1" : "3",
                                    NULL};
        ASSAY_TRY(run_python(o, argv, log, died, sizeof died));
        if (died[0] !=
            '\0') { /* the package or the module are not there, or the function ended the process */
            ASSAY_CHECK(access(answer[k], F_OK) == 0, ASSAY_INVALID_ARGUMENT, "--python %s: %s: %s",
                        o->python, o->python_program, died);
            certify_bad(&out->board, CERTIFY_CRASH, "%s", died);
            return ASSAY_OK;
        }
        ASSAY_TRY(take_about(o, about, out, &arithmetic));
        json_decref(arithmetic);
        out->board.runs += calls;
        out->board.trial[CERTIFY_CRASH].calls += calls;
        out->board.trial[CERTIFY_TIME].calls += calls;
        out->board.trial[CERTIFY_ACCEPTS].calls += calls;
        out->board.trial[CERTIFY_INPUTS].calls += calls;
    }
    if (out->board.trial[CERTIFY_ACCEPTS].bad > 0)
        return ASSAY_OK;
    ASSAY_TRY(certify_judge(request, answer[0], NULL, CERTIFY_TRIALS, out, 1));
    return certify_judge_bits(answer[0], answer[1], CERTIFY_REPEAT, out, 1);
}

assay_status certify_python(const certify_options *o, const char *work, certify_result *out)
{
    const double start = assay_monotonic_s();
    memset(out, 0, sizeof *out);
    out->op = assay_op_find(o->operation);
    ASSAY_CHECK(out->op != NULL && !out->op->collective, ASSAY_INVALID_ARGUMENT,
                "--python: expected --operation OP, a row of docs/OPS.md that is no collective, found '%s'",
                o->operation);
    ASSAY_CHECK(strchr(o->python, ':') != NULL, ASSAY_INVALID_ARGUMENT,
                "--python: expected PACKAGE:FUNCTION, found %s", o->python);
    out->plan = (certify_plan){.op = out->op->name, .seeds = o->seeds};
    for (size_t d = 0; d < 2; d++)
        ASSAY_TRY(try_dtype(o, work, acts[d], out));
    out->where =
        json_pack("{s:s, s:n, s:n, s:n, s:n}", "tier", "host", "device", "driver", "toolkit", "probe");
    out->not_tried = json_array();
    static const char *const never[] = {"reads and writes beyond a tensor, other addresses, workspace, rows "
                                        "with gaps, outputs in an input's memory, illegal "
                                        "calls, the batch: not of a Python function",
                                        "a device: tensors are on the CPU"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        json_array_append_new(out->not_tried, json_string(never[i]));
    for (int m = 0; m < PARITY_MODE_COUNT; m++) {
        char text[256];
        const char *why = parity_data_mode_refusal(out->op->name, (parity_data_mode)m);
        if (why == NULL)
            continue;
        snprintf(text, sizeof text, "%s data: %s", parity_data_mode_name((parity_data_mode)m), why);
        json_array_append_new(out->not_tried, json_string(text));
    }
    out->seconds = assay_monotonic_s() - start;
    return ASSAY_OK;
}
