/* The trial of a library: describe, ask, try, judge. */
#include "parity/certify/certify.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/certify/ranks.h"
#include "parity/certify/throughput.h"
#include "parity/checks/request.h"
#include "ref/fast/restart.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* --- the board and the child ---------------------------------------------------------------------------------- */
assay_status certify_make_board(const char *work, certify_board **out)
{
    char path[ASSAY_PATH];
    snprintf(path, sizeof path, "%s/board", work);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSAY_CHECK(fd >= 0 && ftruncate(fd, sizeof **out) == 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    void *map = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    ASSAY_CHECK(map != MAP_FAILED, ASSAY_OUT_OF_MEMORY, "%s", path);
    *out = map;
    return ASSAY_OK;
}

void certify_free_board(certify_board *board)
{
    if (board != NULL)
        (void)munmap(board, sizeof *board);
}

void certify_enter_child(const char *log)
{
    const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    if (fd >= 0) {
        (void)dup2(fd, STDOUT_FILENO);
        (void)dup2(fd, STDERR_FILENO);
    }
}

static void become_child(const certify_options *o, const char *work, const char *part)
{
    char log[ASSAY_PATH], limit[32];
    snprintf(log, sizeof log, "%s/%s.log", work, part);
    snprintf(limit, sizeof limit, "%.17g", o->call_limit);
    certify_enter_child(log);
    const char *threads = strcmp(part, "threads") == 0 ? "3" : "1";
    /* A library's own OpenBLAS has them, too: told nothing, the child would restart itself with one, for ours. */
    ref_restart_untell();
    setenv("OMP_NUM_THREADS", threads, 1);
    setenv("OPENBLAS_NUM_THREADS", threads, 0);
    setenv("ASSAY_SIM_DEVICE_PRIVATE", "0", 1); /* while run() runs: device.h */
    setenv("ASSAY_SIM_ORDER", strcmp(part, "threads") == 0 ? "reverse" : "forward", 1);
    setenv("ASSAY_SIM_STREAM_SEED", "0", 1); /* as late as the rules allow */
    setenv("ASSAY_SIM_EAGER", "0", 1);
    char *argv[16] = {strdup("assay"),        strdup("certify"), strdup("--child"), strdup(part),
                      strdup("--so"),         strdup(o->so),     strdup("--keep"),  strdup(work),
                      strdup("--call-limit"), strdup(limit)};
    int n = 10;
    if (o->fail_fast)
        argv[n++] = strdup("--fail-fast");
    if (o->cuda_runtime[0] != '\0') {
        argv[n++] = strdup("--cuda-runtime");
        argv[n] = strdup(o->cuda_runtime);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

assay_status certify_run_child(const certify_options *o, const char *work, const char *part,
                               certify_board *board)
{
    int status = 0;
    const int64_t before = certify_findings(board);
    board->done = 0;
    const double end = assay_monotonic_s() + o->limit;
    (void)fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_INTERNAL, "fork: %s", strerror(errno));
    if (pid == 0)
        become_child(o, work, part);
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (assay_monotonic_s() > end) {
            (void)kill(-pid, SIGKILL);
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            certify_bad(board, CERTIFY_TIME, "the trial did not end within %g s, in %s", o->limit,
                        board->now);
            return ASSAY_OK;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    ASSAY_CHECK(board->error[0] == '\0', ASSAY_INVALID_ARGUMENT, "%s", board->error);
    if (board->done || (WIFEXITED(status) && WEXITSTATUS(status) == 3 && certify_findings(board) > before))
        return ASSAY_OK; /* 3: the board has the finding; a library may end so, too, and has said nothing */
    if (WIFSIGNALED(status))
        certify_bad(board, CERTIFY_CRASH, "killed by signal %d (%s), in %s", WTERMSIG(status),
                    strsignal(WTERMSIG(status)), board->now);
    else
        certify_bad(board, CERTIFY_CRASH, "the library ended the process (exit code %d), in %s",
                    WEXITSTATUS(status), board->now);
    return ASSAY_OK;
}

/* --- facts ------------------------------------------------------------------------------------------------------ */
json_t *certify_machine(const char *tier)
{
    struct utsname u;
    char line[256], cpu[128] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            snprintf(cpu, sizeof cpu, "%.120s", strchr(line, ':') + 2);
            cpu[strcspn(cpu, "\n")] = '\0';
            break;
        }
    if (f != NULL)
        (void)fclose(f);
    (void)uname(&u);
    return json_pack("{s:s, s:s, s:s, s:n, s:n, s:n, s:n}", "tier", tier, "machine", u.machine, "processor",
                     cpu, "device", "driver", "toolkit", "probe");
}

assay_status certify_unchanged(const char *file, const char *sha256)
{
    char now[ASSAY_SHA256_HEX];
    ASSAY_TRY(assay_sha256_file(file, now));
    ASSAY_CHECK(
        strcmp(now, sha256) == 0, ASSAY_MISMATCH,
        "%s: had SHA-256 %.16s... before the trial and has %.16s... behind it: it was changed while it "
        "was tried, and nothing is said of either",
        file, sha256, now);
    return ASSAY_OK;
}

/* Of the library, before anything loads it; "": what loads it says what is wrong. */
static void hash_before(const certify_options *o, char sha256[ASSAY_SHA256_HEX])
{
    char library[ASSAY_PATH];
    const char *colon = strrchr(o->so, ':');
    snprintf(library, sizeof library, "%.*s", colon != NULL ? (int)(colon - o->so) : 0, o->so);
    if (colon == NULL || assay_sha256_file(library, sha256) != ASSAY_OK)
        sha256[0] = '\0';
    assay_error_clear();
}

/* --- the trial --------------------------------------------------------------------------------------------------- */
static assay_status read_description(const certify_options *o, const char *work, const char *sha,
                                     certify_result *out)
{
    char path[ASSAY_PATH], library[ASSAY_PATH];
    json_t *description = NULL;
    snprintf(path, sizeof path, "%s/description.json", work);
    ASSAY_TRY(assay_json_load(&description, path));
    const char *colon = strrchr(o->so, ':');
    snprintf(library, sizeof library, "%.*s", (int)(colon - o->so), o->so);
    const assay_status st = certify_unchanged(library, sha);
    const char *slash = strrchr(library, '/');
    out->op = assay_op_find(json_string_value(json_object_get(description, "operation")));
    out->subject =
        json_pack("{s:s, s:O, s:s, s:s, s:s, s:o}", "kind", "library", "name",
                  json_object_get(description, "name"), "file", slash != NULL ? slash + 1 : library, "symbol",
                  colon + 1, "sha256", sha, "description", description);
    ASSAY_TRY(st);
    ASSAY_CHECK(out->subject != NULL && out->op != NULL, ASSAY_INTERNAL, "description");
    if (o->cu[0] !=
        '\0') { /* the library is made anew each time: the file and its launch are what is certified */
        slash = strrchr(o->cu, '/');
        json_object_set_new(out->subject, "kind", json_string("source"));
        json_object_set_new(out->subject, "file", json_string(slash != NULL ? slash + 1 : o->cu));
        json_object_set_new(out->subject, "sha256", json_string(o->cu_sha256));
        json_object_set_new(out->subject, "symbol", json_string(slash != NULL ? slash + 1 : o->cu));
        json_object_set_new(out->subject, "launch", json_string(o->launch));
        json_t *includes = NULL;
        snprintf(path, sizeof path, "%.900s/includes.json", work);
        ASSAY_TRY(assay_json_load(&includes, path));
        json_object_set_new(out->subject, "includes", includes);
    }
    ASSAY_CHECK(o->operation[0] == '\0' || strcmp(o->operation, out->op->name) == 0, ASSAY_MISMATCH,
                "--operation: %s computes %s, expected %s", o->so, out->op->name, o->operation);
    return ASSAY_OK;
}

static bool takes_dtype(const certify_result *r, const char *act)
{
    const json_t *dtypes = json_object_get(json_object_get(r->subject, "description"), "dtypes");
    for (size_t i = 0; i < json_array_size(dtypes); i++)
        if (strcmp(json_string_value(json_array_get(dtypes, i)), act) == 0)
            return true;
    return false;
}

static void path_of(char out[ASSAY_PATH], const char *work, const char *what, const char *act)
{
    snprintf(out, ASSAY_PATH, "%.900s/%s.%s", work, what, act);
}

static assay_status judge_dtype(const char *work, const char *act, certify_result *r, const char *part)
{
    char request[ASSAY_PATH], answer[ASSAY_PATH], other[ASSAY_PATH];
    const char *shapes =
        json_string_value(json_object_get(json_object_get(r->subject, "description"), "shapes"));
    path_of(request, work, "request", act);
    if (strcmp(part, "plain") == 0) {
        path_of(answer, work, part, act);
        return certify_judge(request, answer, true, shapes, CERTIFY_TRIALS, r, 1);
    }
    path_of(answer, work, "answer", act);
    if (strcmp(part, "threads") == 0) {
        path_of(other, work, part, act);
        return certify_has_flag(r->subject, "deterministic")
                   ? certify_judge_bits(answer, other, CERTIFY_THREADS, r, 1)
                   : certify_judge(request, other, true, shapes, CERTIFY_THREADS, r, 1);
    }
    ASSAY_TRY(certify_judge(request, answer, true, shapes, CERTIFY_TRIALS, r, 1));
    path_of(other, work, "second", act);
    if (access(other, F_OK) == 0)
        ASSAY_TRY(certify_judge(request, other, true, shapes, CERTIFY_TRIALS, r, 1));
    path_of(other, work, "shadow", act);
    if (access(other, F_OK) == 0)
        ASSAY_TRY(certify_judge(request, other, true, shapes, CERTIFY_SHADOW, r, 1));
    path_of(other, work, "late", act);
    if (access(other, F_OK) == 0)
        ASSAY_TRY(certify_judge(request, other, true, shapes, CERTIFY_STREAM, r, 1));
    return ASSAY_OK;
}

/* Folders of requests: one, or one for each number of ranks of a collective. */
typedef struct folders {
    const int *ranks; /* NULL: no collective */
    char path[ASSAY_PATH];
} folders;

static bool next_folder(folders *f, const char *work, const assay_op *op)
{
    const bool first = f->path[0] == '\0';
    if (!op->collective) {
        snprintf(f->path, sizeof f->path, "%s", work);
        return first;
    }
    f->ranks = first ? certify_ranks : f->ranks + 1;
    if (*f->ranks == 1 && strcmp(op->name, "send") == 0)
        f->ranks++;
    if (*f->ranks > 0)
        certify_ranks_path(f->path, work, *f->ranks);
    return *f->ranks > 0;
}

static const char *const acts[] = {"F32", "BF16", "F64", "I64"};
enum { ACTS = sizeof acts / sizeof *acts };

static assay_status ask_library(const char *work, certify_result *out)
{
    char path[ASSAY_PATH];
    for (int d = 0; d < ACTS; d++) {
        assay_dtype act;
        if (!takes_dtype(out, acts[d]))
            continue;
        ASSAY_TRY(assay_dtype_from_name(acts[d], &act));
        for (folders f = {0}; next_folder(&f, work, out->op);) {
            path_of(path, f.path, "request", acts[d]);
            if (f.ranks != NULL)
                ASSAY_TRY(certify_ranks_request(work, act, *f.ranks, &out->plan, &out->calls));
            else
                ASSAY_TRY(certify_request(path, act, &out->plan, &out->calls));
        }
    }
    return ASSAY_OK;
}

static assay_status judge_all(const char *work, certify_result *out, const char *part)
{
    for (int d = 0; d < ACTS; d++)
        for (folders f = {0}; takes_dtype(out, acts[d]) && next_folder(&f, work, out->op);)
            ASSAY_TRY(judge_dtype(f.path, acts[d], out, part));
    return ASSAY_OK;
}

/* --fail-fast: every call once, and judged, before all the forms in which it runs again, which are most of a trial. */
static assay_status try_plain(const certify_options *o, const char *work, certify_board *board,
                              certify_result *out)
{
    ASSAY_TRY(certify_run_child(o, work, "plain", board));
    out->board = *board;
    if (certify_findings(board) == 0)
        ASSAY_TRY(judge_all(work, out, "plain"));
    out->stopped = certify_findings(&out->board) > 0;
    memset(board, 0, sizeof *board);
    return ASSAY_OK;
}

/* The trial found something: its answers end there.  What the plain calls gave was judged, and stands. */
static void stop(const certify_board *board, certify_result *out)
{
    static const certify_trial judged[] = {CERTIFY_EXACT, CERTIFY_LOCAL, CERTIFY_SPECIAL};
    certify_board both = *board;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        both.trial[judged[i]] = out->board.trial[judged[i]];
    both.runs += out->board.runs;
    out->board = both;
    out->stopped = true;
}

static assay_status try_library(const certify_options *o, const char *work, const char *sha256,
                                certify_board *board, certify_result *out)
{
    ASSAY_TRY(certify_run_child(o, work, "describe", board));
    ASSAY_CHECK(board->done, ASSAY_INVALID_ARGUMENT, "%s: %s", o->so,
                board->trial[CERTIFY_CRASH].bad > 0 ? board->trial[CERTIFY_CRASH].first
                                                    : board->trial[CERTIFY_TIME].first);
    ASSAY_TRY(read_description(o, work, sha256, out));
    out->plan = (certify_plan){.op = out->op->name, .seeds = o->seeds};
    ASSAY_TRY(ask_library(work, out));
    if (o->fail_fast)
        ASSAY_TRY(try_plain(o, work, board, out));
    if (out->stopped)
        return ASSAY_OK;
    ASSAY_TRY(certify_run_child(o, work, "trial", board));
    if (o->fail_fast && certify_findings(board) > 0) {
        stop(board, out);
        return ASSAY_OK;
    }
    memset(out->output, 0, sizeof out->output); /* the whole trial counts them again */
    out->n_outputs = 0;
    const bool done = board->done != 0;
    if (done)
        ASSAY_TRY(certify_run_child(o, work, "threads", board));
    if (done)
        ASSAY_TRY(certify_races(o, work, board, out));
    const json_t *description = json_object_get(out->subject, "description");
    if (done && json_object_get(description, "device") != NULL &&
        !json_is_true(json_object_get(description, "simulator"))) {
        const int threads_done = board->done;
        ASSAY_TRY(certify_sanitize(o, work, board));
        board->done = threads_done;
    }
    out->board = *board;
    if (done)
        ASSAY_TRY(judge_all(work, out, "trial"));
    if (done && board->done)
        ASSAY_TRY(judge_all(work, out, "threads"));
    if (done && out->board.trial[CERTIFY_EXACT].calls + out->board.trial[CERTIFY_LOCAL].calls == 0)
        certify_bad(
            &out->board, CERTIFY_ACCEPTS,
            "nothing was judged: the description's shapes take none of the sizes that are tried, or every "
            "call failed");
    return ASSAY_OK;
}

/* Where the library runs: the processor, and the device that its description names. */
static assay_status find_where(const certify_options *o, const char *work, certify_result *out)
{
    json_t *description = json_object_get(out->subject, "description");
    json_t *device = json_incref(json_object_get(description, "device"));
    const char *tier = json_is_true(json_object_get(description, "simulator")) ? "sim"
                       : device != NULL                                        ? "gpu"
                                                                               : "host";
    (void)json_object_del(description, "device");
    out->where = certify_machine(tier);
    assay_status st = ASSAY_OK;
    if (device != NULL) {
        json_object_update(out->where, device);
        if (out->board.done && !out->stopped)
            st = certify_probe_device(o, work, tier, json_string_value(json_object_get(device, "device")),
                                      out);
        snprintf(out->no_throughput, sizeof out->no_throughput, "a trial failed");
        if (st == ASSAY_OK && strcmp(tier, "gpu") == 0 && out->op->collective)
            snprintf(out->no_throughput, sizeof out->no_throughput, "ranks take turns on one device");
        else if (st == ASSAY_OK && strcmp(tier, "gpu") == 0 && certify_passes(out))
            st = certify_throughput(o, work, tier, out);
    }
    json_decref(device);
    return st;
}

assay_status certify_library(const certify_options *o, const char *work, certify_result *out)
{
    certify_board *board = NULL;
    char sha256[ASSAY_SHA256_HEX], library[ASSAY_PATH];
    const double start = assay_monotonic_s();
    memset(out, 0, sizeof *out);
    hash_before(o, sha256);
    ASSAY_TRY(certify_make_board(work, &board));
    const assay_status st = try_library(o, work, sha256, board, out);
    certify_free_board(board);
    ASSAY_TRY(st);
    ASSAY_TRY(find_where(o, work, out));
    snprintf(library, sizeof library, "%.*s", (int)(strrchr(o->so, ':') - o->so), o->so);
    ASSAY_TRY(certify_unchanged(library, sha256));
    if (o->cu[0] != '\0')
        ASSAY_TRY(certify_launch_unchanged(o, work));
    if (out->stopped)
        certify_list_stopped(out);
    else
        certify_list_untried(out, json_string_value(json_object_get(out->where, "tier")));
    out->seconds = assay_monotonic_s() - start;
    return ASSAY_OK;
}
