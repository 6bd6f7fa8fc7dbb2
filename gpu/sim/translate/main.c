/* assay-cc: nvcc's place in a makefile.  Each .cu file is preprocessed by the host compiler, translated (translate.h) and
 * compiled against the simulator's headers; the program is linked with the simulator. */
#include "options.h"
#include "translate.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    char folder[4096]; /* for what lies between the steps */
    text include, library;
    const char *host;
    options o;
    words kept, objects; /* texts that words refer to until the end; what is linked */
} cc;

static const char *keep(const text *t)
{
    words_add(&cc.kept, t->at);
    return t->at;
}

static void clean(void)
{
    if (cc.folder[0] == 0)
        return;
    for (size_t i = 0; i <= 3 * cc.o.inputs.count + 1; ++i) {
        text path = {0};
        text_addf(&path, "%s/%zu", cc.folder, i);
        unlink(path.at);
        text_free(&path);
    }
    rmdir(cc.folder);
}

static void stop(int code)
{
    clean();
    exit(code);
}

static void scratch(text *path, size_t number, const char *suffix)
{
    text_addf(path, "%s/%zu%s", cc.folder, number, suffix);
}

static int run(words *command)
{
    if (cc.o.verbose) {
        for (size_t i = 0; i < command->count; ++i)
            fprintf(stderr, "%s%s", i ? " " : "", command->at[i]);
        fputs("\n", stderr);
    }
    words_add(command, NULL);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        execvp(command->at[0], (char *const *)(size_t)command->at);
        fprintf(stderr, "assay-cc: %s: %s\n", command->at[0], strerror(errno));
        _exit(127);
    }
    int status = 1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    free(command->at);
    *command = (words){0};
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void check(int code)
{
    if (code != 0)
        stop(code);
}

/* --- where the simulator lies -------------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    return access(path, R_OK) == 0;
}

/* Beside an installed program, else in the build tree. */
static void find_simulator(void)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *name = cc.o.races                           ? "libassay_cudasim_races.a"
                       : cc.o.shared && cc.o.with_simulator ? "libassay_cudasim_pic.a"
                                                            : "libassay_cudasim.a";
    if (n > 0) {
        self[n] = 0;
        *strrchr(self, '/') = 0;
        text_addf(&cc.include, "%s/%s", self, ASSAY_CC_INSTALLED_INCLUDE);
        text_addf(&cc.library, "%s/%s/%s", self, ASSAY_CC_INSTALLED_LIBRARY, name);
        if (exists(cc.include.at) && exists(cc.library.at))
            return;
    }
    text_free(&cc.include);
    text_free(&cc.library);
    text_add(&cc.include, ASSAY_CC_BUILD_INCLUDE);
    text_addf(&cc.library, "%s/%s", ASSAY_CC_BUILD_LIBRARY, name);
    if (exists(cc.include.at) && exists(cc.library.at))
        return;
    fprintf(stderr, "assay-cc: %s: not found, neither beside this program (%s) nor where it was built (%s)\n",
            name, ASSAY_CC_INSTALLED_LIBRARY, ASSAY_CC_BUILD_LIBRARY);
    exit(2);
}

/* --- libraries ----------------------------------------------------------------------------------------------------- */

/* Is it part of the simulator?  One that it does not model ends the program. */
static bool provided(const char *library)
{
    static const char *const ours[] = {"cudart",  "cudart_static", "cudadevrt",     "cuda",
                                       "cublas",  "cublasLt",      "nvToolsExt",    "nccl",
                                       "culibos", "nccl_static",   "cublas_static", "cublasLt_static"};
    static const char *const theirs[] = {"curand",     "cufft",    "cusparse", "cusolver",       "cudnn",
                                         "nvrtc",      "npp",      "nvjpeg",   "cupti",          "nvidia-ml",
                                         "nvJitLink",  "cutensor", "nvblas",   "cufile",         "nvgraph",
                                         "cusolverMg", "nvshmem",  "cudla",    "nvrtc-builtins", "cufftw"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i) {
        if (strcmp(library, ours[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; ++i) {
        const size_t n = strlen(theirs[i]);
        if (strcmp(library, theirs[i]) == 0 || (strncmp(library, theirs[i], n) == 0 && library[n] == '_') ||
            (strcmp(theirs[i], "npp") == 0 && strncmp(library, "npp", 3) == 0)) {
            fprintf(stderr, "assay-cc: -l%s: not modelled by the simulator (docs/SIMULATOR.md)\n", library);
            stop(2);
        }
    }
    return false;
}

/* --- one file ------------------------------------------------------------------------------------------------------ */

static const char *suffix_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? dot : "";
}

static const char *language_of(const char *path)
{
    const char *suffix = suffix_of(path);
    if (path[0] == '-')
        return NULL;
    const bool cpp = strcmp(suffix, ".cpp") == 0 || strcmp(suffix, ".cc") == 0 || strcmp(suffix, ".cxx") == 0;
    if (strcmp(suffix, ".cu") == 0)
        return "cu";
    if (cpp || strcmp(suffix, ".c") == 0)
        return cc.o.language ? cc.o.language : cpp ? "c++" : "c";
    return NULL;
}

static void flags(words *command, const char *language)
{
    static text level;
    if (level.at == NULL)
        text_addf(&level, "-O%s", cc.o.optimize ? cc.o.optimize : "2");
    words_add(command, level.at);
    words_add(command, "-g");
    if (strcmp(language, "cu") == 0) {
        words_add(command, "-fno-strict-aliasing"); /* kernels read float4 from float */
        words_add(command, "-ffp-contract=off");
    }
    if (cc.o.shared)
        words_add(command, "-fPIC");
    static char build_flags[] = ASSAY_CC_FLAGS;
    static words extra;
    if (extra.count == 0) {
        for (char *word = strtok(build_flags, " "); word; word = strtok(NULL, " "))
            words_add(&extra, word);
    }
    words_add_all(command, &extra);
    if (cc.o.races && strcmp(language, "link") !=
                          0) { /* instrumented here, linked without the sanitizer: docs/SIMULATOR.md */
        static const char *const given[] = {
            "-fsanitize=thread",   "--param",      "tsan-distinguish-volatile=1",
            "-fno-tree-vectorize", "-fno-ipa-icf", "-fsanitize=alignment"};
        for (size_t i = 0; i < sizeof given / sizeof *given; ++i)
            words_add(command, given[i]);
    }
    words_add_all(command, &cc.o.compile);
}

static void preprocess(words *command, const char *language)
{
    static text standard;
    if (standard.at == NULL)
        text_addf(&standard, "-std=%s", cc.o.standard ? cc.o.standard : "gnu++17");
    words_add(command, "-x");
    words_add(command, strcmp(language, "c") == 0 ? "c" : "c++");
    if (strcmp(language, "c") != 0)
        words_add(command, standard.at);
    words_add_all(command, &cc.o.preprocess);
    words_add(command, "-isystem");
    words_add(command, cc.include.at);
    if (strcmp(language, "cu") == 0) {
        static const char *const macros[] = {"-DASSAY_CC=1",
                                             "-DASSAY_SIM=1",
                                             "-D__CUDACC__=1",
                                             "-D__NVCC__=1",
                                             "-D__CUDACC_VER_MAJOR__=13",
                                             "-D__CUDACC_VER_MINOR__=0",
                                             "-D__CUDACC_VER_BUILD__=0",
                                             "-D__CUDA_ARCH_LIST__=900"};
        for (size_t i = 0; i < sizeof macros / sizeof *macros; ++i)
            words_add(command, macros[i]);
        static text cc_headers;
        if (cc_headers.at == NULL)
            text_addf(&cc_headers, "%s/cc", cc.include.at);
        words_add(command, "-isystem");
        words_add(command, cc_headers.at);
        words_add(command, "-include");
        words_add(command, "assay_sim_cc.h");
    }
}

static void dependencies(words *command, const char *output)
{
    if (cc.o.dependencies.count == 0)
        return;
    words_add_all(command, &cc.o.dependencies);
    if (!cc.o.dependency_file) {
        text file = {0};
        const size_t stem = strlen(output) - strlen(suffix_of(output));
        text_append(&file, output, stem);
        text_add(&file, ".d");
        words_add(command, "-MF");
        words_add(command, keep(&file));
    }
    bool named = false;
    for (size_t i = 0; i < cc.o.dependencies.count; ++i)
        named = named || strcmp(cc.o.dependencies.at[i], "-MT") == 0;
    if (!named) {
        words_add(command, "-MT");
        words_add(command, output);
    }
}

/* a.cu -> translated, preprocessed C++ in `path`. */
static void translated(const char *input, const char *object, const char *raw_path, const char *path)
{
    words command = {0};
    words_add(&command, cc.host);
    words_add(&command, "-E");
    flags(&command, "cu"); /* optimization and -fopenmp define macros */
    preprocess(&command, "cu");
    dependencies(&command, object);
    words_add(&command, "-o");
    words_add(&command, raw_path);
    words_add(&command, input);
    check(run(&command));
    if (cc.o.dry)
        return;
    text raw = {0}, out = {0};
    translate_counts counts;
    complaint why;
    if (!text_read_file(&raw, raw_path)) {
        fprintf(stderr, "assay-cc: %s: %s\n", raw_path, strerror(errno));
        stop(2);
    }
    if (!translate(&out, raw.at, raw.bytes, input, &counts, &why)) {
        fprintf(stderr, "%s:%d: assay-cc: error: %s\n", why.file, why.line, why.text);
        stop(1);
    }
    if (cc.o.verbose)
        fprintf(stderr,
                "assay-cc: %s: %d kernels, %d launches, %d shared and %d dynamic shared arrays, %d pieces of "
                "assembly\n",
                input, counts.kernels, counts.launches, counts.shared, counts.dynamic_shared,
                counts.assembly);
    if (path == NULL) {
        fwrite(out.at, 1, out.bytes, stdout);
    } else if (!text_write_file(&out, path)) {
        fprintf(stderr, "assay-cc: %s: %s\n", path, strerror(errno));
        stop(2);
    }
    text_free(&raw);
    text_free(&out);
}

static void compile(size_t number, const char *input, const char *language, const char *object)
{
    words command = {0};
    text raw = {0}, source = {0};
    scratch(&raw, 3 * number, "");
    scratch(&source, 3 * number + 1, "");
    keep(&raw);
    keep(&source);
    if (cc.o.mode == MODE_DEPENDENCIES) {
        words_add(&command, cc.host);
        words_add(&command, "-MM");
        preprocess(&command, language);
        words_add(&command, input);
    } else if (strcmp(language, "cu") == 0) {
        translated(input, object, raw.at, cc.o.mode == MODE_PREPROCESS ? NULL : source.at);
        if (cc.o.mode == MODE_PREPROCESS)
            return;
        words_add(&command, cc.host);
        words_add(&command, "-c");
        flags(&command, language);
        words_add(&command, cc.o.standard ? "" : "-std=gnu++17");
        if (cc.o.standard) {
            text t = {0};
            text_addf(&t, "-std=%s", cc.o.standard);
            command.at[command.count - 1] = keep(&t);
        }
        words_add(&command, "-x");
        words_add(&command, "c++-cpp-output");
        words_add(&command, source.at);
        words_add(&command, "-o");
        words_add(&command, object);
    } else {
        words_add(&command, cc.host);
        words_add(&command, cc.o.mode == MODE_PREPROCESS ? "-E" : "-c");
        flags(&command, language);
        preprocess(&command, language);
        words_add(&command, input);
        if (cc.o.mode != MODE_PREPROCESS) {
            dependencies(&command, object);
            words_add(&command, "-o");
            words_add(&command, object);
        }
    }
    check(run(&command));
}

static void link_program(const words *objects)
{
    words command = {0};
    words_add(&command, cc.host);
    flags(&command, "link");
    if (cc.o.shared)
        words_add(&command, "-shared");
    words_add(&command, "-o");
    words_add(&command, cc.o.output ? cc.o.output : "a.out");
    words_add_all(&command, objects);
    words_add_all(&command, &cc.o.link);
    /* a program that loads a library of kernels has the simulator itself, else --with-simulator: all of it, because who loads the
     * library looks functions of the runtime up that the kernels' file does not call */
    if (cc.o.shared && cc.o.with_simulator)
        words_add(&command, "-Wl,--whole-archive");
    if (!cc.o.shared || cc.o.with_simulator)
        words_add(&command, cc.library.at);
    if (cc.o.shared && cc.o.with_simulator)
        words_add(&command, "-Wl,--no-whole-archive");
    for (size_t i = 0; i < cc.o.inputs.count; ++i) {
        const char *in = cc.o.inputs.at[i];
        if (strncmp(in, "-l", 2) == 0 && !provided(in + 2))
            words_add(&command, in);
    }
    static const char *const always[] = {"-lpthread", "-lm", "-ldl", "-lrt"};
    for (size_t i = 0; i < sizeof always / sizeof *always; ++i)
        words_add(&command, always[i]);
    check(run(&command));
}

static const char *object_name(size_t number, const char *input)
{
    text t = {0};
    if (cc.o.mode == MODE_COMPILE) {
        if (cc.o.output)
            return cc.o.output;
        const char *slash = strrchr(input, '/'), *base = slash ? slash + 1 : input;
        text_append(&t, base, strlen(base) - strlen(suffix_of(base)));
        text_add(&t, ".o");
    } else {
        scratch(&t, 3 * number + 2, "");
    }
    return keep(&t);
}

static void say_unused(void)
{
    if (cc.o.unused.count == 0)
        return;
    fputs("assay-cc: accepted, without effect:", stderr);
    for (size_t i = 0; i < cc.o.unused.count; ++i)
        fprintf(stderr, " %s", cc.o.unused.at[i]);
    fputs("\n", stderr);
}

int main(int argc, char **argv)
{
    static text why;
    if (!options_read(&cc.o, argc, argv, &why)) {
        fprintf(stderr, "assay-cc: %s\n", why.at);
        return 2;
    }
    if (cc.o.mode == MODE_HELP) {
        options_help();
        return 0;
    }
    if (cc.o.mode == MODE_VERSION) {
        printf("assay-cc %s: a translator for the simulator of CUDA (compute capability 9.0)\n"
               "Cuda compilation tools, release 13.0, V13.0.0 (what __CUDACC_VER_*__ say; there is no nvcc "
               "here)\n",
               ASSAY_CC_VERSION);
        return 0;
    }
    const char *from_environment = getenv("NVCC_CCBIN");
    cc.host = cc.o.host ? cc.o.host : from_environment && *from_environment ? from_environment : ASSAY_CC_CXX;
    if (cc.o.races && strstr(cc.host, "clang")) {
        fprintf(
            stderr,
            "assay-cc: --races: %s: not with clang, which copies structures by memcpy, unseen by the race "
            "checker: -ccbin g++\n",
            cc.host);
        return 2;
    }
    size_t sources = 0;
    for (size_t i = 0; i < cc.o.inputs.count; ++i)
        sources += language_of(cc.o.inputs.at[i]) != NULL;
    if (cc.o.inputs.count == 0 || (cc.o.mode != MODE_LINK && sources == 0)) {
        fputs("assay-cc: no input files (assay-cc --help)\n", stderr);
        return 2;
    }
    if (cc.o.mode == MODE_COMPILE && cc.o.output && sources > 1) {
        fprintf(stderr, "assay-cc: -o %s with -c and %zu sources: expected one\n", cc.o.output, sources);
        return 2;
    }
    find_simulator();
    say_unused();
    const char *tmp = getenv("TMPDIR");
    const int length =
        snprintf(cc.folder, sizeof cc.folder, "%s/assay-cc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (length < 0 || (size_t)length >= sizeof cc.folder) {
        fprintf(stderr, "assay-cc: TMPDIR: the path is too long: %.60s...\n", tmp);
        cc.folder[0] = 0;
        return 2;
    }
    if (mkdtemp(cc.folder) == NULL) {
        fprintf(stderr, "assay-cc: %s: %s\n", cc.folder, strerror(errno));
        cc.folder[0] = 0;
        return 2;
    }
    for (size_t i = 0; i < cc.o.inputs.count; ++i) {
        const char *in = cc.o.inputs.at[i], *language = language_of(in);
        if (language) {
            const char *object = object_name(i, in);
            compile(i, in, language, object);
            words_add(&cc.objects, object);
        } else if (strncmp(in, "-l", 2) != 0) {
            words_add(&cc.objects, in);
        }
    }
    if (cc.o.mode == MODE_LINK)
        link_program(&cc.objects);
    clean();
    return 0;
}
