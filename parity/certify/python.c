/* `assay certify --python pkg:function --operation OP`: a torch or Triton callable.  The package assay_trace (golden/assay_trace) reads the
 * requests, calls the function in a process of its own, and writes the answers.  It says which call runs in a small file, and everything that it
 * finds in another as it finds it: neither is lost with the process. */
#include "parity/certify/certify.h"
#include "parity/certify/symbols.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/checks/request.h"
#include "ref/fast/restart.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const acts[] = {"F32", "BF16"};
enum { NOW_BYTES = 512, NOW_TEXT = NOW_BYTES - (int)sizeof(double), WORDS = 32 };

/* One process of the package: what it is given, and how it ended. */
typedef struct python_child {
    const certify_options *o;
    char request[ASSAY_PATH], answer[ASSAY_PATH], findings[ASSAY_PATH], now[ASSAY_PATH], log[ASSAY_PATH];
    char outputs[256], rows[256], compared[256]; /* names of slots, with commas */
    const char *threads;
    bool again;
    int status;               /* of waitpid */
    bool late;                /* one call took longer than its limit */
    bool over;                /* all of them did */
    char file[ASSAY_PATH];    /* of the function; "": it was not found */
    char where[NOW_TEXT + 1]; /* the call that ran last */
    bool complete;            /* it came to its end */
    bool checked;             /* what it says of its arithmetic was read */
} python_child;

/* --- the process ------------------------------------------------------------------------------------------------ */
static void become_python(const python_child *c)
{
    const certify_options *o = c->o;
    const char *program = o->python_program[0] != '\0' ? o->python_program : "python3";
    const bool device = strcmp(o->python_device, "cuda") == 0;
    const char *const words[WORDS] = {program,
                                      "-m",
                                      "assay_trace.certify",
                                      "--function",
                                      o->python,
                                      "--outputs",
                                      c->outputs,
                                      "--rows",
                                      c->rows,
                                      "--compared",
                                      c->compared,
                                      "--request",
                                      c->request,
                                      "--out",
                                      c->answer,
                                      "--log",
                                      c->findings,
                                      "--now",
                                      c->now,
                                      "--threads",
                                      c->threads,
                                      "--device",
                                      device ? "cuda" : "cpu",
                                      c->again ? "--again" : NULL};
    char *argv[WORDS] = {NULL};
    certify_enter_child(c->log);
    ref_restart_untell();
    setenv("OMP_NUM_THREADS", c->threads, 1);
    if (device)
        unsetenv("TRITON_INTERPRET");
    else
        setenv("TRITON_INTERPRET", "1", 1);
    for (int i = 0; words[i] != NULL; i++)
        argv[i] = strdup(words[i]);
    execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* When the call that runs began (0: none runs), and its text.  The function can write the file: nothing of it is believed. */
static double call_now(python_child *c)
{
    char bytes[NOW_BYTES] = "";
    double begin = 0.0;
    const int fd = open(c->now, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0.0;
    const ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    close(fd);
    if (n != (ssize_t)sizeof bytes)
        return 0.0;
    memcpy(&begin, bytes, sizeof begin);
    for (int i = 0; i < NOW_TEXT; i++) {
        const char x = bytes[(int)sizeof begin + i];
        c->where[i] = (char)(x == '\0' || isprint((unsigned char)x) ? x : '?');
    }
    c->where[NOW_TEXT] = '\0';
    return begin;
}

/* What the function says of its arithmetic, once the process has written it: a mistake there is said before any call is judged. */
static assay_status check_arithmetic(python_child *c)
{
    char line[8192], what[sizeof c->o->python + 32];
    assay_arith ignored;
    FILE *f = c->checked ? NULL : fopen(c->findings, "re");
    const bool whole = f != NULL && fgets(line, sizeof line, f) != NULL && strchr(line, '\n') != NULL;
    if (f != NULL)
        (void)fclose(f);
    if (!whole)
        return ASSAY_OK;
    c->checked = true;
    json_t *said = json_loads(line, 0, NULL);
    const json_t *arith = json_object_get(json_object_get(said, "facts"), "arithmetic");
    snprintf(what, sizeof what, "--python %s: arithmetic", c->o->python);
    const assay_status st = arith != NULL ? assay_arith_from_json(arith, what, &ignored) : ASSAY_OK;
    json_decref(said);
    return st;
}

static assay_status run_python(python_child *c)
{
    assay_status said = ASSAY_OK;
    static const char zeros[NOW_BYTES];
    const double end = assay_monotonic_s() + c->o->limit;
    pid_t got;
    ASSAY_TRY(assay_write_file(c->now, zeros, sizeof zeros));
    (void)unlink(c->findings);
    (void)fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_INTERNAL, "fork: %s", strerror(errno));
    if (pid == 0)
        become_python(c);
    while ((got = waitpid(pid, &c->status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        const double now = assay_monotonic_s(), begin = call_now(c);
        c->late = begin > 0.0 && now - begin > c->o->call_limit;
        c->over = now > end;
        said = check_arithmetic(c);
        if (c->late || c->over || said != ASSAY_OK) {
            (void)kill(-pid, SIGKILL);
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &c->status, 0);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    (void)kill(-pid, SIGKILL); /* what it left behind */
    (void)call_now(c);
    return said != ASSAY_OK ? said : check_arithmetic(c);
}

/* --- what it says -------------------------------------------------------------------------------------------------- */

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

/* Where the process stood when a signal ended it, as Python's faulthandler wrote it: the innermost line of the function's own folder,
 * "  File "/x/rms.py", line 12 in kernel".  "": nothing is known. */
static void place_of_fault(const python_child *c, char *out, size_t capacity)
{
    char line[ASSAY_PATH + 256], folder[ASSAY_PATH + 16];
    const char *slash = strrchr(c->file, '/');
    FILE *f = fopen(c->log, "re");
    out[0] = '\0';
    snprintf(folder, sizeof folder, "  File \"%.*s/", slash != NULL ? (int)(slash - c->file) : 0, c->file);
    while (f != NULL && out[0] == '\0' && fgets(line, sizeof line, f) != NULL) {
        static const char between[] = "\", line ";
        const char *name = line + strlen(folder), *number = strstr(line, between);
        if (slash != NULL && strncmp(line, folder, strlen(folder)) == 0 && number != NULL && number >= name)
            snprintf(out, capacity, " at %.*s:%.*s", (int)(number - name), name,
                     (int)strcspn(number + sizeof between - 1, "\n"), number + sizeof between - 1);
    }
    if (f != NULL)
        (void)fclose(f);
}

static assay_status take_facts(python_child *c, const json_t *facts, certify_result *out)
{
    char sha[ASSAY_SHA256_HEX];
    const char *const text[] = {json_string_value(json_object_get(facts, "built")),
                                json_string_value(json_object_get(facts, "in_place"))};
    ASSAY_TRY(
        assay_json_get_string(facts, "file", true, "what it says of the function", c->file, sizeof c->file));
    ASSAY_TRY(assay_sha256_file(c->file, sha));
    json_t *each = json_object(), *flags = json_deep_copy(json_object_get(facts, "flags"));
    for (int i = 0; i < assay_op_n_slots(out->op); i++)
        if (out->op->slots[i].role != ASSAY_SLOT_IN)
            json_object_set(each, out->op->slots[i].name, json_object_get(facts, "arithmetic"));
    json_array_append_new(flags, json_string("deterministic"));
    const char *slash = strrchr(c->file, '/');
    json_decref(out->subject);
    out->subject = json_pack("{s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:o, s:o, s:s, s:s, s:s}}", "kind",
                             "python", "name", c->o->python, "file", slash != NULL ? slash + 1 : c->file,
                             "symbol", c->o->python, "sha256", sha, "description", "operation", out->op->name,
                             "built", text[0] != NULL ? text[0] : "", "arithmetic", each, "flags", flags,
                             "in_place", text[1] != NULL ? text[1] : "", "version", "-", "shapes", "");
    ASSAY_CHECK(out->subject != NULL, ASSAY_FORMAT, "%s: what it says of the function", c->findings);
    const bool device = strcmp(c->o->python_device, "cuda") == 0;
    json_decref(out->where);
    out->where = certify_machine(device ? "gpu" : "host");
    static const char *const members[] = {"device", "driver", "toolkit"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (json_is_string(json_object_get(facts, members[i])))
            json_object_set(out->where, members[i], json_object_get(facts, members[i]));
    return ASSAY_OK;
}

static int trial_named(const char *name)
{
    for (int t = 0; t < CERTIFY_TRIALS && name != NULL; t++)
        if (strcmp(name, certify_trial_name((certify_trial)t)) == 0)
            return t;
    return -1;
}

static assay_status take_end(python_child *c, const json_t *line, certify_result *out)
{
    const char *name;
    json_t *n;
    certify_board *b = &out->board;
    json_object_foreach(json_object_get(line, "end"), name, n)
    {
        const int t = trial_named(name);
        ASSAY_CHECK(t >= 0, ASSAY_FORMAT, "%s: unknown trial %.40s", c->findings, name);
        b->trial[t].calls += json_integer_value(n);
        if (t == CERTIFY_ACCEPTS) {
            b->runs += json_integer_value(n);
            b->trial[CERTIFY_CRASH].calls += json_integer_value(n);
            b->trial[CERTIFY_TIME].calls += json_integer_value(n);
        }
    }
    c->complete = true;
    /* The interpreter was loaded; without a launch nothing of the function ran in it. */
    if (json_integer_value(json_object_get(line, "launches")) == 0 &&
        strcmp(c->o->python_device, "cuda") != 0)
        json_object_set_new(out->where, "toolkit", json_null());
    return ASSAY_OK;
}

static assay_status take_line(python_child *c, const char *text, certify_result *out)
{
    json_error_t why;
    json_t *line = json_loads(text, 0, &why);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(line != NULL, ASSAY_FORMAT, "%s: %.200s", c->findings, why.text);
    const char *error = json_string_value(json_object_get(line, "error"));
    const int t = trial_named(json_string_value(json_object_get(line, "trial")));
    if (error != NULL)
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "--python %s: %.400s", c->o->python, error);
    else if (json_object_get(line, "facts") != NULL)
        st = take_facts(c, json_object_get(line, "facts"), out);
    else if (json_object_get(line, "end") != NULL)
        st = take_end(c, line, out);
    else if (t >= 0)
        certify_bad(&out->board, (certify_trial)t, "%.480s",
                    json_string_value(json_object_get(line, "text")));
    else
        st = ASSAY_ERROR(ASSAY_FORMAT, "%s: %.100s", c->findings, text);
    json_decref(line);
    return st;
}

static assay_status take_findings(python_child *c, certify_result *out)
{
    char *line = NULL;
    size_t capacity = 0;
    assay_status st = ASSAY_OK;
    FILE *f = fopen(c->findings, "re");
    while (f != NULL && st == ASSAY_OK && getline(&line, &capacity, f) > 0)
        st = strchr(line, '\n') != NULL ? take_line(c, line, out) : ASSAY_OK; /* cut off when it died */
    free(line);
    if (f != NULL)
        (void)fclose(f);
    return st;
}

/* How the process ended, where that was not by itself. */
static assay_status take_death(const python_child *c, certify_result *out)
{
    char line[400], place[300];
    certify_board *b = &out->board;
    last_line(c->log, line, sizeof line);
    place_of_fault(c, place, sizeof place);
    if (c->late)
        certify_bad(b, CERTIFY_TIME, "did not end within %g s, in %s", c->o->call_limit, c->where);
    else if (c->over)
        certify_bad(b, CERTIFY_TIME, "the trial did not end within %g s, in %s", c->o->limit, c->where);
    else if (c->complete && WIFEXITED(c->status))
        return ASSAY_OK;
    else if (c->file[0] == '\0') /* the package or the module are not there */
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--python %s: the process ends (status %d)%s%s: %s%s",
                   c->o->python, WIFEXITED(c->status) ? WEXITSTATUS(c->status) : -WTERMSIG(c->status),
                   c->where[0] != '\0' ? " in " : "", c->where, line[0] != '\0' ? line : "it says nothing",
                   strstr(line, "No module named 'assay_trace") != NULL
                       ? ": set PYTHONPATH to the folder that has assay_trace in it (golden/ of the sources, "
                         "or pip install it), and to your own module's"
                       : "");
    else if (WIFSIGNALED(c->status) && (WTERMSIG(c->status) == SIGSEGV || WTERMSIG(c->status) == SIGBUS))
        certify_bad(b, CERTIFY_GUARDS, "memory is touched that is no tensor's (signal %d)%s, in %s",
                    WTERMSIG(c->status), place, c->where);
    else if (WIFSIGNALED(c->status))
        certify_bad(b, CERTIFY_CRASH, "killed by signal %d (%s)%s, in %s", WTERMSIG(c->status),
                    strsignal(WTERMSIG(c->status)), place, c->where);
    else
        certify_bad(b, CERTIFY_CRASH, "the function ends the process (exit code %d), in %s",
                    WEXITSTATUS(c->status), c->where);
    return ASSAY_OK;
}

/* --- the trial ------------------------------------------------------------------------------------------------------ */
static bool is_output(const assay_op *op, int i)
{
    return op->slots[i].role != ASSAY_SLOT_IN;
}

/* Outputs in the order in which the function returns them; inputs of rows that can be cut, and outputs that have the same rows then. */
static void name_slots(const assay_op *op, python_child *c)
{
    const bool cuts = certify_has_own_rows(op) && !certify_rows_are_interleaved(op);
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        const char *name = op->slots[i].name;
        const bool rows = cuts && certify_slot_has_rows(&op->slots[i]), out = is_output(op, i);
        char *const into[] = {out ? c->outputs : NULL, rows && !out ? c->rows : NULL,
                              rows && out && !certify_sums_rows(op, name) ? c->compared : NULL};
        for (size_t k = 0; k < sizeof into / sizeof *into; k++)
            if (into[k] != NULL)
                snprintf(into[k] + strlen(into[k]), sizeof c->rows - strlen(into[k]), "%s%s",
                         into[k][0] != '\0' ? "," : "", name);
    }
}

static int operands_of(const assay_trace *t, const assay_trace_op *op, const assay_trace_slot *slots, int n,
                       assay_op_operand operands[ASSAY_MAX_SLOTS])
{
    int k = 0;
    for (int i = 0; i < n && k < ASSAY_MAX_SLOTS; i++) {
        const assay_trace_tensor *x = assay_trace_tensor_by_id(t, op->rank, slots[i].tensor);
        if (x != NULL)
            operands[k++] = (assay_op_operand){slots[i].slot, x->dtype, x->shard.ndim, x->shard.local_shape};
    }
    return k;
}

/* Extents that a row writes as one symbol ("n") may be several: then an output has those of an input whose row is the same. */
static assay_status same_extents(const assay_op *op, const assay_op_operand *in, int n_in,
                                 const assay_op_operand *made)
{
    const assay_op_slot *row = assay_op_slot_find(op, made->slot, true);
    for (int i = 0; i < n_in && row != NULL; i++) {
        const assay_op_slot *like = assay_op_slot_find(op, in[i].slot, false);
        if (like == NULL || strcmp(like->shape, row->shape) != 0)
            continue;
        bool same = in[i].ndim == made->ndim;
        for (int d = 0; d < made->ndim && same; d++)
            same = in[i].shape[d] == made->shape[d];
        ASSAY_CHECK(same, ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s: expected the %d dimensions of %s, found %d or other extents", op->name,
                    made->slot, in[i].ndim, in[i].slot, made->ndim);
    }
    return ASSAY_OK;
}

/* Dtypes and shapes of outputs are those of the table: the judge of values takes an output of a wider type for a closer one. */
static assay_status check_outputs(const char *answer, assay_dtype act, certify_result *out)
{
    assay_trace *t = NULL;
    ASSAY_TRY(assay_trace_open(&t, answer, false));
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        assay_op_operand in[ASSAY_MAX_SLOTS], made[ASSAY_MAX_SLOTS];
        const int n_in = operands_of(t, op, op->inputs, op->n_inputs, in),
                  n_made = operands_of(t, op, op->outputs, op->n_outputs, made);
        assay_status st = assay_op_check(out->op, op->attrs, act, act, in, n_in, made, n_made, NULL);
        for (int k = 0; k < n_made && st == ASSAY_OK; k++)
            st = same_extents(out->op, in, n_in, &made[k]);
        if (st == ASSAY_OK)
            continue;
        certify_bad(&out->board, CERTIFY_ACCEPTS, "%.300s, in %.150s (%s)", assay_error_message(),
                    op->instance, assay_dtype_name(act));
        assay_error_clear();
    }
    assay_trace_close(t);
    return ASSAY_OK;
}

/* One dtype: a process of one thread, which makes every call twice, and one of three threads. */
static assay_status try_dtype(const certify_options *o, const char *work, const char *act,
                              certify_result *out)
{
    static const char *const words[] = {"answer", "threads"};
    python_child child[2];
    assay_dtype dtype;
    memset(child, 0, sizeof child);
    for (int k = 0; k < 2; k++) {
        python_child *c = &child[k];
        *c = (python_child){.o = o, .threads = k == 0 ? "1" : "3", .again = k == 0};
        name_slots(out->op, c);
        snprintf(c->request, ASSAY_PATH, "%.900s/request.%s", work, act);
        snprintf(c->answer, ASSAY_PATH, "%.900s/%s.%s", work, words[k], act);
        snprintf(c->findings, ASSAY_PATH, "%.900s/%s.%s.findings", work, words[k], act);
        snprintf(c->now, ASSAY_PATH, "%.900s/%s.%s.now", work, words[k], act);
        snprintf(c->log, ASSAY_PATH, "%.900s/%s.%s.log", work, words[k], act);
    }
    ASSAY_TRY(assay_dtype_from_name(act, &dtype));
    ASSAY_TRY(certify_request(child[0].request, dtype, &out->plan, &out->calls));
    for (int k = 0; k < 2; k++) {
        ASSAY_TRY(run_python(&child[k]));
        ASSAY_TRY(take_findings(&child[k], out));
        ASSAY_TRY(take_death(&child[k], out));
        if (!child[k].complete || (o->fail_fast && certify_findings(&out->board) > 0))
            return ASSAY_OK;
    }
    if (out->board.trial[CERTIFY_ACCEPTS].bad == 0)
        ASSAY_TRY(check_outputs(child[0].answer, dtype, out));
    if (out->board.trial[CERTIFY_ACCEPTS].bad > 0)
        return ASSAY_OK;
    ASSAY_TRY(certify_judge(child[0].request, child[0].answer, true, NULL, CERTIFY_TRIALS, out, 1));
    return certify_judge_bits(child[0].answer, child[1].answer, CERTIFY_THREADS, out, 1);
}

static void list_untried(certify_result *out)
{
    static const struct {
        certify_trial trial;
        const char *text;
    } rows[] = {
        {CERTIFY_BATCH, "batch invariance: FUNCTION.batch_invariant is not declared, or no output has rows"},
        {CERTIFY_STRIDES, "rows with gaps: FUNCTION.row_strides is not declared"},
        {CERTIFY_SPECIAL, "NaN and infinities"},
    };
    static const char *const never[] = {
        "workspace, illegal calls, shadows, other orders of the dimensions of an input: not of a Python "
        "function",
        "memory that the function makes otherwise than with torch.empty, torch.zeros, torch.ones, torch.full "
        "and their kin: what is written beside it",
        "throughput: of libraries in device memory alone"};
    out->not_tried = json_array();
    certify_add_extents(out->not_tried, out);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (out->board.trial[rows[i].trial].calls == 0)
            json_array_append_new(out->not_tried, json_string(rows[i].text));
    static const certify_trial always[] = {CERTIFY_CRASH,   CERTIFY_TIME,  CERTIFY_ACCEPTS, CERTIFY_INPUTS,
                                           CERTIFY_WRITTEN, CERTIFY_EXACT, CERTIFY_LOCAL,   CERTIFY_REPEAT,
                                           CERTIFY_THREADS, CERTIFY_STATE};
    certify_add_uncalled(out->not_tried, out, always, sizeof always / sizeof *always);
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        json_array_append_new(out->not_tried, json_string(never[i]));
    const char *tier = json_string_value(json_object_get(out->where, "tier"));
    if (tier != NULL && strcmp(tier, "gpu") != 0)
        json_array_append_new(out->not_tried, json_string("a device: tensors are on the CPU"));
    if (tier != NULL && strcmp(tier, "gpu") != 0 && json_is_string(json_object_get(out->where, "toolkit")))
        json_array_append_new(
            out->not_tried,
            json_string("Triton's compiler: its interpreter runs one program after the other in NumPy's "
                        "arithmetic, "
                        "without races, barriers and the order in which a device adds"));
    for (int m = 0; m < PARITY_MODE_COUNT; m++) {
        char text[256];
        const char *why = parity_data_mode_refusal(out->op->name, (parity_data_mode)m);
        if (why == NULL)
            continue;
        snprintf(text, sizeof text, "%s data: %s", parity_data_mode_name((parity_data_mode)m), why);
        json_array_append_new(out->not_tried, json_string(text));
    }
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
    for (size_t d = 0; d < sizeof acts / sizeof *acts && !out->stopped; d++) {
        ASSAY_TRY(try_dtype(o, work, acts[d], out));
        out->stopped = o->fail_fast && certify_findings(&out->board) > 0;
    }
    if (out->stopped)
        certify_list_stopped(out);
    else
        list_untried(out);
    out->seconds = assay_monotonic_s() - start;
    return ASSAY_OK;
}
