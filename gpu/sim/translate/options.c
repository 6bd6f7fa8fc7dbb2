#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void words_add(words *w, const char *word)
{
    w->at = list_room(w->at, &w->room, w->count, sizeof *w->at);
    w->at[w->count++] = word;
}

void words_add_all(words *w, const words *more)
{
    for (size_t i = 0; i < more->count; ++i)
        words_add(w, more->at[i]);
}

typedef enum option_kind {
    UNUSED,       /* accepted, no effect */
    UNUSED_VALUE, /* the same, with a value behind '=' or in the next word */
    PREPROCESS,   /* to the host compiler's preprocessor: value glued or next */
    COMPILE,      /* to the host compiler as it is */
    LINK_VALUE,   /* to the linker, glued or next */
    TO_COMPILER,  /* -Xcompiler a,b */
    TO_LINKER,
    MODE,
    OUTPUT,
    STANDARD,
    OPTIMIZE,
    HOST,
    LANGUAGE,
    DEPENDENCY,
    DEPENDENCY_VALUE,
    RACES,
    WITH_SIMULATOR,
    VERBOSE,
    DRY,
    SHARED,
    REFUSED
} option_kind;

typedef struct option_row {
    const char *name, *longer;
    option_kind kind;
    int mode;
    const char *why;
} option_row;

static const option_row rows[] = {
    {"-o", "--output-file", OUTPUT, 0, NULL},
    {"-c", "--compile", MODE, MODE_COMPILE, NULL},
    {"-dc", "--device-c", MODE, MODE_COMPILE, NULL},
    {"-dw", "--device-w", MODE, MODE_COMPILE, NULL},
    {"-E", "--preprocess", MODE, MODE_PREPROCESS, NULL},
    {"-M", "--generate-dependencies", MODE, MODE_DEPENDENCIES, NULL},
    {"-MM", "--generate-nonsystem-dependencies", MODE, MODE_DEPENDENCIES, NULL},
    {"-h", "--help", MODE, MODE_HELP, NULL},
    {"-V", "--version", MODE, MODE_VERSION, NULL},
    {"-I", "--include-path", PREPROCESS, 0, NULL},
    {"-isystem", "--system-include", PREPROCESS, 0, NULL},
    {"-include", "--pre-include", PREPROCESS, 0, NULL},
    {"-D", "--define-macro", PREPROCESS, 0, NULL},
    {"-U", "--undefine-macro", PREPROCESS, 0, NULL},
    {"-L", "--library-path", LINK_VALUE, 0, NULL},
    {"-MD", "--generate-dependencies-with-compile", DEPENDENCY, 0, NULL},
    {"-MMD", "--generate-nonsystem-dependencies-with-compile", DEPENDENCY, 0, NULL},
    {"-MP", "--generate-dependency-targets", DEPENDENCY, 0, NULL},
    {"-MF", "--dependency-output", DEPENDENCY_VALUE, 0, NULL},
    {"-MT", "--dependency-target-name", DEPENDENCY_VALUE, 0, NULL},
    {"-Xcompiler", "--compiler-options", TO_COMPILER, 0, NULL},
    {"-Xlinker", "--linker-options", TO_LINKER, 0, NULL},
    {"-std", "--std", STANDARD, 0, NULL},
    {"-O", "--optimize", OPTIMIZE, 0, NULL},
    {"-ccbin", "--compiler-bindir", HOST, 0, NULL},
    {"-x", "--x", LANGUAGE, 0, NULL},
    {"-v", "--verbose", VERBOSE, 0, NULL},
    {"-dryrun", "--dryrun", DRY, 0, NULL},
    {"-shared", "--shared", SHARED, 0, NULL},
    {"--races", "-races", RACES, 0, NULL},
    {"--with-simulator", "-with-simulator", WITH_SIMULATOR, 0, NULL},
    {"-w", "--disable-warnings", COMPILE, 0, NULL},
    {"-pg", "--profile", COMPILE, 0, NULL},
    {"-m64", "-m", UNUSED, 0, NULL},
    {"-g", "--debug", UNUSED, 0, NULL}, /* always on: reports name lines */
    {"-lineinfo", "--generate-line-info", UNUSED, 0, NULL},
    {"-G", "--device-debug", UNUSED, 0, NULL},
    {"-arch", "--gpu-architecture", UNUSED_VALUE, 0, NULL},
    {"-code", "--gpu-code", UNUSED_VALUE, 0, NULL},
    {"-gencode", "--generate-code", UNUSED_VALUE, 0, NULL},
    {"-rdc", "--relocatable-device-code", UNUSED_VALUE, 0, NULL},
    {"-cudart", "--cudart", UNUSED_VALUE, 0, NULL},
    {"-maxrregcount", "--maxrregcount", UNUSED_VALUE, 0, NULL},
    {"-ftz", "--ftz", UNUSED_VALUE, 0, NULL},
    {"-fmad", "--fmad", UNUSED_VALUE, 0, NULL},
    {"-prec-div", "--prec-div", UNUSED_VALUE, 0, NULL},
    {"-prec-sqrt", "--prec-sqrt", UNUSED_VALUE, 0, NULL},
    {"-use_fast_math", "--use_fast_math", UNUSED, 0, NULL},
    {"-extra-device-vectorization", "--extra-device-vectorization", UNUSED, 0, NULL},
    {"-Xptxas", "--ptxas-options", UNUSED_VALUE, 0, NULL},
    {"-Xnvlink", "--nvlink-options", UNUSED_VALUE, 0, NULL},
    {"-Xcudafe", "--cudafe-options", UNUSED_VALUE, 0, NULL},
    {"-Xfatbin", "--fatbin-options", UNUSED_VALUE, 0, NULL},
    {"-t", "--threads", UNUSED_VALUE, 0, NULL},
    {"-split-compile", "--split-compile", UNUSED_VALUE, 0, NULL},
    {"-diag-suppress", "--diag-suppress", UNUSED_VALUE, 0, NULL},
    {"-diag-warn", "--diag-warn", UNUSED_VALUE, 0, NULL},
    {"-diag-error", "--diag-error", UNUSED_VALUE, 0, NULL},
    {"-Werror", "--Werror", UNUSED_VALUE, 0, NULL},
    {"-res-usage", "--resource-usage", UNUSED, 0, NULL},
    {"-expt-relaxed-constexpr", "--expt-relaxed-constexpr", UNUSED, 0, NULL},
    {"-expt-extended-lambda", "--expt-extended-lambda", UNUSED, 0, NULL},
    {"-extended-lambda", "--extended-lambda", UNUSED, 0, NULL},
    {"-Wno-deprecated-gpu-targets", "--Wno-deprecated-gpu-targets", UNUSED, 0, NULL},
    {"-allow-unsupported-compiler", "--allow-unsupported-compiler", UNUSED, 0, NULL},
    {"-forward-unknown-to-host-compiler", "--forward-unknown-to-host-compiler", UNUSED, 0, NULL},
    {"-keep", "--keep", UNUSED, 0, NULL},
    {"-keep-dir", "--keep-dir", UNUSED_VALUE, 0, NULL},
    {"-ptx", "--ptx", REFUSED, 0, "there is no PTX: kernels are compiled for the host"},
    {"-cubin", "--cubin", REFUSED, 0, "there is no device code: kernels are compiled for the host"},
    {"-fatbin", "--fatbin", REFUSED, 0, "there is no device code: kernels are compiled for the host"},
    {"-dlink", "--device-link", REFUSED, 0, "there is no device code to link: link the objects"},
    {"-lib", "--lib", REFUSED, 0, "put objects into a library with ar"},
    {"-run", "--run", REFUSED, 0, "run the program yourself"},
    {"-default-stream", "--default-stream", REFUSED, 0, "the legacy default stream alone is modelled"},
    {"-optix-ir", "--optix-ir", REFUSED, 0, "OptiX is not modelled"},
    {"-m32", "--m32", REFUSED, 0, "32-bit programs are not modelled"},
};

/* Glued values: -Ifoo, -DX=1, -O3, -Lx, -t4. */
static bool glues(const option_row *r)
{
    return r->kind == PREPROCESS ? strlen(r->name) == 2
                                 : (r->kind == OPTIMIZE || r->kind == LINK_VALUE || r->kind == OUTPUT ||
                                    strcmp(r->name, "-t") == 0);
}

static bool takes_value(option_kind k)
{
    return k == UNUSED_VALUE || k == PREPROCESS || k == LINK_VALUE || k == TO_COMPILER || k == TO_LINKER ||
           k == OUTPUT || k == STANDARD || k == OPTIMIZE || k == HOST || k == LANGUAGE ||
           k == DEPENDENCY_VALUE;
}

/* The row of a word, and its value behind '=' or glued to it (NULL: none yet). */
static const option_row *find(const char *word, const char **value)
{
    const option_row *glued = NULL;
    *value = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        for (int k = 0; k < 2; ++k) {
            const char *name = k ? rows[i].longer : rows[i].name;
            const size_t n = strlen(name);
            if (strncmp(word, name, n) != 0)
                continue;
            if (word[n] == 0)
                return &rows[i];
            if (word[n] == '=') {
                *value = word + n + 1;
                return &rows[i];
            }
            if (k == 0 && glues(&rows[i]))
                glued = &rows[i];
        }
    }
    if (glued)
        *value = word + strlen(glued->name);
    return glued;
}

/* "a,b" are two words for the compiler behind it. */
static void split(words *out, const char *list)
{
    while (*list) {
        const size_t bytes = strcspn(list, ",");
        text word = {0};
        text_append(&word, list, bytes);
        if (bytes)
            words_add(out, word.at); /* lives as long as the program */
        list += bytes + (list[bytes] == ',');
    }
}

static bool standard(options *o, const char *value, text *why)
{
    static const char *const old[] = {"c++03", "c++98", "c++11", "c++14", "gnu++11", "gnu++14"};
    static const char *const known[] = {"c++17", "c++20", "gnu++17", "gnu++20", "c++23", "c++2a"};
    for (size_t i = 0; i < sizeof old / sizeof *old; ++i) {
        if (strcmp(value, old[i]) == 0) {
            text t = {0};
            text_addf(&t, "-std=%s (the simulator's headers need C++17)", value);
            words_add(&o->unused, t.at);
            return true;
        }
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
        if (strcmp(value, known[i]) == 0) {
            o->standard = value;
            return true;
        }
    }
    text_addf(why, "-std=%s: expected c++11, c++14, c++17, c++20 or c++23", value);
    return false;
}

/* A toolkit's headers do not mix with the simulator's. */
static bool is_toolkit(const char *folder)
{
    text path = {0};
    text_addf(&path, "%s/cuda_runtime.h", folder);
    const bool yes = access(path.at, R_OK) == 0;
    text_free(&path);
    return yes;
}

static void preprocess(options *o, const option_row *r, const char *value)
{
    text t = {0};
    if (strcmp(r->name, "-I") == 0 || strcmp(r->name, "-isystem") == 0) {
        if (is_toolkit(value)) {
            text_addf(&t, "%s %s (a CUDA toolkit)", r->name, value);
            words_add(&o->unused, t.at);
            return;
        }
    }
    words_add(&o->preprocess, r->name);
    words_add(&o->preprocess, value);
}

static bool apply(options *o, const option_row *r, const char *word, const char *value, text *why)
{
    switch (r->kind) {
    case UNUSED_VALUE:
        if (strncmp(word, "-X", 2) != 0 && strchr(word, '=') == NULL) {
            text t = {0};
            text_addf(&t, "%s %s", word, value);
            word = t.at;
        }
        words_add(&o->unused, word);
        return true;
    case UNUSED:
        if (strcmp(r->name, "-g") != 0 && strcmp(r->name, "-lineinfo") != 0 && strcmp(r->name, "-m64") != 0)
            words_add(&o->unused, word);
        return true;
    case PREPROCESS:
        preprocess(o, r, value);
        return true;
    case COMPILE:
        words_add(&o->compile, r->name);
        return true;
    case LINK_VALUE:
        words_add(&o->link, r->name);
        words_add(&o->link, value);
        return true;
    case TO_COMPILER:
        split(&o->compile, value);
        if (strstr(value, "-fopenmp"))
            words_add(&o->link, "-fopenmp");
        return true;
    case TO_LINKER:
        words_add(&o->link, "-Xlinker");
        words_add(&o->link, value);
        return true;
    case MODE:
        o->mode = (option_mode)r->mode;
        return true;
    case OUTPUT:
        o->output = value;
        return true;
    case STANDARD:
        return standard(o, value, why);
    case OPTIMIZE:
        o->optimize = value;
        return true;
    case HOST:
        o->host = value;
        return true;
    case LANGUAGE:
        if (strcmp(value, "cu") != 0 && strcmp(value, "c++") != 0 && strcmp(value, "c") != 0) {
            text_addf(why, "-x %s: expected cu, c++ or c", value);
            return false;
        }
        o->language = value;
        return true;
    case DEPENDENCY:
        words_add(&o->dependencies, r->name);
        return true;
    case DEPENDENCY_VALUE:
        o->dependency_file = o->dependency_file || strcmp(r->name, "-MF") == 0;
        words_add(&o->dependencies, r->name);
        words_add(&o->dependencies, value);
        return true;
    case WITH_SIMULATOR:
    case RACES:
        *(r->kind == RACES ? &o->races : &o->with_simulator) = true;
        return true;
    case VERBOSE:
    case DRY:
        o->verbose = true;
        o->dry = o->dry || r->kind == DRY;
        return true;
    case SHARED:
        o->shared = true;
        return true;
    case REFUSED:
        text_addf(why, "%s: not supported: %s", word, r->why);
        return false;
    }
    return false;
}

bool options_read(options *o, int argc, char **argv, text *why)
{
    *o = (options){.mode = MODE_LINK};
    for (int i = 1; i < argc; ++i) {
        const char *word = argv[i], *value;
        if (word[0] != '-' || word[1] == 0 || strncmp(word, "-l", 2) == 0) {
            if (strcmp(word, "-lineinfo") != 0 && strcmp(word, "-lib") != 0) {
                words_add(&o->inputs, word);
                continue;
            }
        }
        const option_row *r = find(word, &value);
        if (r == NULL) {
            text_addf(why,
                      "unknown option %s (an option for the host compiler is written -Xcompiler %s; assay-cc "
                      "--help lists what is known)",
                      word, word);
            return false;
        }
        if (takes_value(r->kind) && value == NULL) {
            if (i + 1 >= argc) {
                text_addf(why, "%s: a value is missing", word);
                return false;
            }
            value = argv[++i];
        }
        if (!apply(o, r, word, value, why))
            return false;
    }
    return true;
}

void options_help(void)
{
    puts(
        "assay-cc: compiles and links CUDA C++ for the simulator (docs/SIMULATOR.md), in the place of nvcc\n"
        "\n"
        "  assay-cc -o prog a.cu b.cpp -lcublas\n"
        "\n"
        "  --races   a program that looks for races between threads (assay sanitize)\n"
        "  --with-simulator   with -shared: a library that holds the simulator, for programs that have none\n"
        "\n"
        "nvcc's options, by what becomes of them:");
    static const char *const titles[] = {"used:", "accepted, without effect, and said:", "refused:"};
    for (int group = 0; group < 3; ++group) {
        printf("%s\n ", titles[group]);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
            const option_kind k = rows[i].kind;
            const int of = k == UNUSED || k == UNUSED_VALUE ? 1 : k == REFUSED ? 2 : 0;
            if (of == group)
                printf(" %s", rows[i].name);
        }
        puts("");
    }
}
