/* The exact calls of a library on a device once more, under NVIDIA's compute-sanitizer, where it is installed. */
#include "parity/certify/certify.h"

#include "core/base/log.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FOUND = 9 /* what it exits with when it reports something */, SLOWER = 50 /* than without */ };

bool certify_sanitizer_installed(void)
{
    char path[ASSAY_PATH];
    const char *p = getenv("PATH");
    while (p != NULL && *p != '\0') {
        const size_t n = strcspn(p, ":");
        snprintf(path, sizeof path, "%.*s/compute-sanitizer", (int)n, p);
        if (n > 0 && access(path, X_OK) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

static void become(const certify_options *o, const char *work, const char *tool, const char *report)
{
    char log[ASSAY_PATH], limit[32], self[ASSAY_PATH];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        _exit(127);
    self[n] = '\0';
    snprintf(log, sizeof log, "%.900s/exact.log", work);
    snprintf(limit, sizeof limit, "%.17g", SLOWER * o->call_limit);
    certify_enter_child(log);
    execlp("compute-sanitizer", "compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--log-file",
           report, self, "certify", "--child", "exact", "--so", o->so, "--keep", work, "--call-limit", limit,
           o->cuda_runtime[0] != '\0' ? "--cuda-runtime" : (char *)NULL, o->cuda_runtime, (char *)NULL);
    _exit(127);
}

/* The first line of the report that says something: "========= Invalid __global__ write of size 4 bytes". */
static void first_finding(const char *report, char *out, size_t capacity)
{
    char line[256];
    FILE *f = fopen(report, "re");
    snprintf(out, capacity, "see its report with --keep");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *text = line + strspn(line, "= ");
        line[strcspn(line, "\n")] = '\0';
        if (*text == '\0' || strncmp(text, "COMPUTE-SANITIZER", 17) == 0)
            continue;
        snprintf(out, capacity, "%.200s", text);
        break;
    }
    if (f != NULL)
        (void)fclose(f);
}

static assay_status run_tool(const certify_options *o, const char *work, const char *tool,
                             certify_board *board)
{
    char report[ASSAY_PATH], first[256];
    int status = 0;
    pid_t got;
    snprintf(report, sizeof report, "%.900s/%s.report", work, tool);
    (void)unlink(report);
    const double end = assay_monotonic_s() + o->limit;
    const int64_t runs_before = board->runs;
    board->done = 0;
    (void)fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_INTERNAL, "fork: %s", strerror(errno));
    if (pid == 0)
        become(o, work, tool, report);
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (assay_monotonic_s() > end) {
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && board->done != 0) { /* it ran the program, too */
        board->trial[CERTIFY_SANITIZER].calls += board->runs > runs_before;
        return ASSAY_OK;
    }
    board->trial[CERTIFY_SANITIZER].calls++;
    first_finding(report, first, sizeof first);
    if (WIFEXITED(status) && WEXITSTATUS(status) == FOUND)
        certify_bad(board, CERTIFY_SANITIZER, "%s: %s", tool, first);
    else
        certify_bad(board, CERTIFY_SANITIZER, "%s did not come to its end (status %d): %s", tool, status,
                    first);
    return ASSAY_OK;
}

assay_status certify_sanitize(const certify_options *o, const char *work, certify_board *board)
{
    static const char *const tools[] = {"memcheck", "racecheck", "initcheck", "synccheck"};
    for (size_t i = 0; i < sizeof tools / sizeof *tools && certify_sanitizer_installed(); i++)
        ASSAY_TRY(run_tool(o, work, tools[i], board));
    return ASSAY_OK;
}
