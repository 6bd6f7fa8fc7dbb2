/* The compiler of `assay certify --cu`: assay-cc for the simulator, or nvcc (--compiler) for a device. */
#include "core/base/file.h"
#include "core/run/launch.h"
#include "parity/certify/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS = 24, LOG_BYTES = 1 << 20 };

static bool for_device(const certify_options *o)
{
    return o->compiler[0] != '\0' && strcmp(o->compiler, "assay-cc") != 0;
}

/* "nvcc": in PATH, or a path.  What is said where it is missing names the way without it. */
static assay_status find_compiler(const certify_options *o, char out[ASSAY_PATH])
{
    if (!for_device(o))
        return assay_sibling_program("assay-cc", out, ASSAY_PATH);
    snprintf(out, ASSAY_PATH, "%s", o->compiler);
    const char *path = strchr(o->compiler, '/') == NULL ? getenv("PATH") : NULL;
    bool found = path == NULL && access(out, X_OK) == 0;
    for (const char *p = path; p != NULL && *p != '\0' && !found; p += strcspn(p, ":"), p += *p == ':') {
        snprintf(out, ASSAY_PATH, "%.*s/%.200s", (int)strcspn(p, ":"), p, o->compiler);
        found = access(out, X_OK) == 0;
    }
    ASSAY_CHECK(found, ASSAY_NOT_FOUND,
                "--compiler %s: %s; nvcc of the CUDA toolkit and a device are needed to try a file there, "
                "without --compiler assay-cc compiles it for the simulator",
                o->compiler, path != NULL ? "not found in PATH" : strerror(errno));
    return ASSAY_OK;
}

/* The folder of assay_kernel.h: beside the installed programs, or in the source tree of the build. */
static assay_status find_include(char out[ASSAY_PATH])
{
    char header[ASSAY_PATH + 32], self[ASSAY_PATH];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(self, '/');
    snprintf(out, ASSAY_PATH, "%.*s/../include/assay", slash != NULL ? (int)(slash - self) : 0, self);
    snprintf(header, sizeof header, "%.1000s/assay_kernel.h", out);
    if (access(header, R_OK) == 0)
        return ASSAY_OK;
    snprintf(out, ASSAY_PATH, "%s", ASSAY_SOURCE_INCLUDE);
    snprintf(header, sizeof header, "%.1000s/assay_kernel.h", out);
    ASSAY_CHECK(access(header, R_OK) == 0, ASSAY_NOT_FOUND,
                "--cu: assay_kernel.h: expected beside the programs (../include/assay) or in %s", out);
    return ASSAY_OK;
}

/* Runs a compiler to its end; its words, that are the caller's, and whether it succeeded. */
static assay_status run(const char *const *argv, const char *work, char **text, bool *good)
{
    char log[ASSAY_PATH];
    uint64_t bytes = 0;
    int status = 0;
    snprintf(log, sizeof log, "%.900s/compile.log", work);
    (void)fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_INTERNAL, "fork: %s", strerror(errno));
    if (pid == 0) {
        const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        (void)setenv("LC_ALL", "C", 1);
        (void)dup2(fd, STDOUT_FILENO);
        (void)dup2(fd, STDERR_FILENO);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    *good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return assay_read_file(log, LOG_BYTES, text, &bytes);
}

/* "nvcc 13.0, -O2 -arch=native": goes into the description, where a text has no quotes and is one line. */
assay_status certify_compiler(const certify_options *o, const char *work, char *built, size_t capacity)
{
    static const char release[] = "release ";
    char program[ASSAY_PATH], *text = NULL;
    bool good;
    if (!for_device(o)) {
        snprintf(built, capacity, "assay-cc -O2");
        return ASSAY_OK;
    }
    ASSAY_TRY(find_compiler(o, program));
    ASSAY_TRY(run((const char *const[]){program, "--version", NULL}, work, &text, &good));
    const char *version = good ? strstr(text, release) : NULL;
    const char *number = version != NULL ? version + strlen(release) : "";
    const size_t n = strspn(number, "0123456789.");
    const char *name = strrchr(o->compiler, '/') != NULL ? strrchr(o->compiler, '/') + 1 : o->compiler;
    snprintf(built, capacity, "%.40s %.*s, -O2 -arch=%.40s", name, n > 0 ? (int)n : 17,
             n > 0 ? number : "of unknown version", o->arch);
    free(text);
    ASSAY_CHECK(strpbrk(built, "\"\\\n\r") == NULL, ASSAY_INVALID_ARGUMENT,
                "--compiler, --arch: expected one line without quotes and backslashes");
    return ASSAY_OK;
}

/* nvcc links its runtime dynamically, so that the judge finds the same copy of it; where that lies is known from nvcc's own place. */
static int nvcc_arguments(const certify_options *o, const char *program, const char **argv, char *arch,
                          char *rpath)
{
    char *real = realpath(program, NULL), *slash = real != NULL ? strrchr(real, '/') : NULL;
    int n = 0;
    snprintf(arch, ASSAY_PATH, "-arch=%.100s", o->arch);
    snprintf(rpath, ASSAY_PATH, "-rpath,%.*s/../lib64", slash != NULL ? (int)(slash - real) : 0,
             real != NULL ? real : "");
    free(real);
    static const char *const plain[] = {"-O2",   "-std=c++17", "-shared", "-Xcompiler",
                                        "-fPIC", "-cudart",    "shared"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        argv[n++] = plain[i];
    argv[n++] = arch;
    argv[n++] = "-Xlinker";
    argv[n++] = rpath;
    return n;
}

assay_status certify_compile(const certify_options *o, const char *work, const char *source,
                             const char *library)
{
    char program[ASSAY_PATH], include[ASSAY_PATH], arch[ASSAY_PATH], rpath[ASSAY_PATH], *text = NULL;
    const char *argv[ARGUMENTS] = {program};
    int n = 1;
    bool good = false;
    ASSAY_TRY(find_compiler(o, program));
    ASSAY_TRY(find_include(include));
    if (for_device(o)) {
        n += nvcc_arguments(o, program, argv + n, arch, rpath);
    } else {
        argv[n++] = "-O2";
        argv[n++] = "-shared";
        argv[n++] = "--with-simulator";
    }
    const char *const rest[] = {"-I", include, "-o", library, source, NULL};
    memcpy(argv + n, rest, sizeof rest);
    ASSAY_TRY(run(argv, work, &text, &good));
    if (!good)
        fputs(text, stderr);
    free(text);
    ASSAY_CHECK(good, ASSAY_INVALID_ARGUMENT, "--cu: %s does not compile it",
                for_device(o) ? o->compiler : "assay-cc");
    return ASSAY_OK;
}

assay_status certify_compile_races(const char *work, const char *source, const char *library, bool *good,
                                   char *why, size_t capacity)
{
    char program[ASSAY_PATH], include[ASSAY_PATH], *text = NULL;
    ASSAY_TRY(assay_sibling_program("assay-cc", program, ASSAY_PATH));
    ASSAY_TRY(find_include(include));
    ASSAY_TRY(run((const char *const[]){program, "-O2", "-shared", "--with-simulator", "--races", "-I",
                                        include, "-o", library, source, NULL},
                  work, &text, good));
    snprintf(why, capacity, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    return ASSAY_OK;
}

assay_status certify_compile_includes(const certify_options *o, const char *work, const char *source,
                                      const char *file, json_t **out)
{
    char program[ASSAY_PATH], include[ASSAY_PATH], toolkit[ASSAY_PATH] = "", *text = NULL;
    bool good = false;
    ASSAY_TRY(find_compiler(o, program));
    ASSAY_TRY(find_include(include));
    *out = NULL;
    ASSAY_TRY(run((const char *const[]){program, "-MM", "-I", include, source, NULL}, work, &text, &good));
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(good, ASSAY_INVALID_ARGUMENT, st, done, "--cu: %s -MM does not say what is included",
                     for_device(o) ? o->compiler : "assay-cc");
    char *real = for_device(o) ? realpath(program, NULL) : NULL; /* TOOLKIT/bin/nvcc */
    for (int i = 0; i < 2 && real != NULL && strrchr(real, '/') != NULL; i++)
        *strrchr(real, '/') = '\0';
    snprintf(toolkit, sizeof toolkit, "%s", real != NULL ? real : "");
    free(real);
    st = launch_read_includes(text, source, file, include, toolkit, out);
done:
    free(text);
    return st;
}
