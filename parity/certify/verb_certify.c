/* The verb certify. */
#include "parity/certify/campaign.h"

#include "core/base/file.h"
#include "core/run/options.h"
#include "parity/run/run.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct verb_options {
    certify_options o;
    char child[16];
} verb_options;

static int fail(void)
{
    assay_error_print(stderr, "assay certify", 0);
    return 2;
}

/* Defaults of --seeds and --call-limit. */
enum { SEEDS = 2, CALL_LIMIT = 10, VALID_DAYS = 365 };

static assay_status seconds(const char *name, const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    ASSAY_CHECK(end != text && *end == '\0' && *out > 0.0 && *out <= 1e6, ASSAY_INVALID_ARGUMENT,
                "--%s: expected seconds, found %s", name, text);
    return ASSAY_OK;
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    verb_options *v = user;
    certify_options *o = &v->o;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "expected no arguments, found %s", text);
    if (strcmp(name, "suggest") == 0)
        o->suggest = true;
    else if (strcmp(name, "atomics") == 0)
        o->atomics = true;
    else if (strcmp(name, "fail_fast") == 0)
        o->fail_fast = true;
    else if (strcmp(name, "abi_header") == 0)
        o->abi_header = true;
    else if (strcmp(name, "seeds") == 0)
        return assay_option_count(name, text, 1, 1000, &o->seeds);
    else if (strcmp(name, "valid_days") == 0)
        return assay_option_count(name, text, 1, 3660, &o->valid_days);
    else if (strcmp(name, "call_limit") == 0)
        return seconds("call-limit", text, &o->call_limit);
    else if (strcmp(name, "limit") == 0)
        return seconds("limit", text, &o->limit);
    else if (strcmp(name, "so") == 0)
        return assay_option_text(name, text, o->so, sizeof o->so);
    else if (strcmp(name, "cu") == 0)
        return assay_option_text(name, text, o->cu, sizeof o->cu);
    else if (strcmp(name, "python") == 0)
        return assay_option_text(name, text, o->python, sizeof o->python);
    else if (strcmp(name, "python_program") == 0)
        return assay_option_text(name, text, o->python_program, sizeof o->python_program);
    else if (strcmp(name, "python_device") == 0) {
        ASSAY_CHECK(strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0, ASSAY_INVALID_ARGUMENT,
                    "--python-device: expected cpu or cuda, found %.40s", text);
        return assay_option_text(name, text, o->python_device, sizeof o->python_device);
    } else if (strcmp(name, "launch") == 0)
        return assay_option_text(name, text, o->launch, sizeof o->launch);
    else if (strcmp(name, "compiler") == 0)
        return assay_option_text(name, text, o->compiler, sizeof o->compiler);
    else if (strcmp(name, "arch") == 0)
        return assay_option_text(name, text, o->arch, sizeof o->arch);
    else if (strcmp(name, "cuda_runtime") == 0)
        return assay_option_text(name, text, o->cuda_runtime, sizeof o->cuda_runtime);
    else if (strcmp(name, "alignment") == 0)
        return assay_option_count(name, text, 1, 256, &o->alignment);
    else if (strcmp(name, "rounding") == 0)
        return assay_option_text(name, text, o->rounding, sizeof o->rounding);
    else if (strcmp(name, "shapes") == 0)
        return assay_option_text(name, text, o->shapes, sizeof o->shapes);
    else if (strcmp(name, "engine") == 0)
        return assay_option_text(name, text, o->engine, sizeof o->engine);
    else if (strcmp(name, "program") == 0)
        return assay_option_text(name, text, o->program, sizeof o->program);
    else if (strcmp(name, "variant") == 0)
        return assay_option_text(name, text, o->variant, sizeof o->variant);
    else if (strcmp(name, "operation") == 0)
        return assay_option_text(name, text, o->operation, sizeof o->operation);
    else if (strcmp(name, "campaign") == 0)
        return assay_option_text(name, text, o->campaign, sizeof o->campaign);
    else if (strcmp(name, "cells") == 0)
        return assay_option_text(name, text, o->cells, sizeof o->cells);
    else if (strcmp(name, "out") == 0)
        return assay_option_text(name, text, o->out, sizeof o->out);
    else if (strcmp(name, "key") == 0)
        return assay_option_text(name, text, o->key, sizeof o->key);
    else if (strcmp(name, "keep") == 0)
        return assay_option_text(name, text, o->keep, sizeof o->keep);
    else
        return assay_option_text(name, text, v->child, sizeof v->child);
    return ASSAY_OK;
}

/* Files are written under fixed names: over those of nobody else. */
static assay_status new_folder(const char *path)
{
    int n = 0;
    ASSAY_TRY(assay_mkdir_p(path));
    DIR *d = opendir(path);
    ASSAY_CHECK(d != NULL, ASSAY_IO, "--keep: %s: %s", path, strerror(errno));
    for (const struct dirent *entry = readdir(d); entry != NULL && n == 0; entry = readdir(d))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    (void)closedir(d);
    ASSAY_CHECK(n == 0, ASSAY_INVALID_ARGUMENT,
                "--keep: %s: expected a new or an empty folder, found one that holds files", path);
    return ASSAY_OK;
}

static assay_status make_work(const certify_options *o, char work[ASSAY_PATH])
{
    const char *tmp = getenv("TMPDIR");
    if (o->keep[0] != '\0') {
        ASSAY_TRY(new_folder(o->keep));
        snprintf(work, ASSAY_PATH, "%s", o->keep);
        char *whole = realpath(work, NULL);
        ASSAY_CHECK(whole != NULL, ASSAY_IO, "--keep: %s", work);
        snprintf(work, ASSAY_PATH, "%s", whole);
        free(whole);
        return ASSAY_OK;
    }
    snprintf(work, ASSAY_PATH, "%.900s/assay-certify-XXXXXX", tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
    ASSAY_CHECK(mkdtemp(work) != NULL, ASSAY_IO, "%s: cannot be made", work);
    return ASSAY_OK;
}

/* Report, page and, where everything passed, a certificate. */
static assay_status write_files(const certify_options *o, const certify_result *r, const certify_key *key)
{
    char path[ASSAY_PATH + 128], stem[CERTIFY_STEM];
    if (o->out[0] == '\0')
        return ASSAY_OK;
    certify_file_stem(r, stem);
    if (!certify_passes(r))
        certify_remove_older(r, o->out);
    snprintf(path, sizeof path, "%.760s/%s.html", o->out, stem);
    ASSAY_TRY(certify_html(r, path));
    if (!certify_passes(r)) {
        printf("no certificate: a trial failed\n");
        return ASSAY_OK;
    }
    snprintf(path, sizeof path, "%.760s/%s.json", o->out, stem);
    ASSAY_TRY(certify_certificate_write(r, key, o->valid_days, path));
    printf("certificate: %s\n", path);
    return ASSAY_OK;
}

static assay_status suggest(const certify_options *o, const char *work)
{
    static const char *const acts[] = {"F32", "BF16"};
    char path[ASSAY_PATH];
    for (size_t d = 0; d < 2 && o->suggest; d++) {
        int code;
        snprintf(path, sizeof path, "%.900s/answer.%s", work, acts[d]);
        if (access(path, F_OK) != 0)
            continue;
        printf("\nthe tightest declaration under which every element passes, activations %s:\n", acts[d]);
        ASSAY_TRY(parity_suggest(path, stdout, &code));
    }
    return ASSAY_OK;
}

static void print_word(const char *option, const char *value)
{
    char word[4 * ASSAY_PATH];
    parity_shell_word(value, word, sizeof word);
    if (value[0] != '\0')
        printf(" --%s %s", option, word);
}

/* The command that asks the calls of one operation again and keeps them. */
static void print_again(const certify_options *o, const certify_result *r)
{
    fputs("again with: assay certify", stdout);
    if (o->cu[0] == '\0')
        print_word("so", o->so);
    print_word("cu", o->cu);
    print_word("python", o->python);
    print_word("engine", o->engine);
    print_word("operation", r->op->name);
    print_word("launch", o->launch);
    print_word("shapes", o->shapes);
    print_word("rounding", o->rounding);
    if (o->alignment > 0)
        printf(" --alignment %lld", (long long)o->alignment);
    print_word("compiler", o->compiler);
    print_word("arch", strcmp(o->arch, "native") != 0 ? o->arch : "");
    print_word("cuda-runtime", o->cuda_runtime);
    print_word("python-program", o->python_program);
    print_word("python-device", o->python_device);
    print_word("program", o->program);
    print_word("variant", o->variant);
    printf("%s --seeds %lld --keep DIR\n", o->atomics ? " --atomics" : "", (long long)o->seeds);
}

/* Of all outputs and dtypes. */
static double worst_share(const certify_result *r)
{
    double worst = 0.0;
    for (int i = 0; i < r->n_outputs; i++)
        if (isnan(r->output[i].share) || r->output[i].share > worst) /* NaN is the worst, and stays */
            worst = r->output[i].share;
    return worst;
}

static assay_status finish(const certify_options *o, const certify_result *results, int n,
                           const certify_key *key, int *code)
{
    int passed = 0, skipped = 0;
    for (int i = 0; i < n; i++) {
        const certify_result *r = &results[i];
        const bool passes = certify_passes(r), skip = r->stopped && certify_findings(&r->board) == 0;
        passed += passes;
        skipped += skip;
        if (skip) {
            printf("skip %-26s not tried to its end: --fail-fast, and another operation failed\n",
                   r->op->name);
            continue;
        }
        if (n == 1 || !passes)
            certify_report(r, stdout);
        if (!passes)
            print_again(o, r);
        else
            printf("pass %-26s %6lld calls  exact %3lld  local %3lld  special %3lld  repeat %5lld  worst "
                   "beyond rounding "
                   "%.3f\n",
                   r->op->name, (long long)r->calls, (long long)r->board.trial[CERTIFY_EXACT].calls,
                   (long long)r->board.trial[CERTIFY_LOCAL].calls,
                   (long long)r->board.trial[CERTIFY_SPECIAL].calls,
                   (long long)r->board.trial[CERTIFY_REPEAT].calls, worst_share(r));
        ASSAY_TRY(write_files(o, r, key));
    }
    if (n > 1)
        printf("%d passed, %d failed, %d skipped\n", passed, n - passed - skipped, skipped);
    *code = passed == n ? 0 : 1;
    return ASSAY_OK;
}

static assay_status certify(certify_options *o, const char *work, int *code)
{
    certify_result one = {0}, *many = NULL;
    certify_key key = {0};
    int n = 0;
    char path[ASSAY_PATH];
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_hash_init());
    if (o->campaign[0] != '\0')
        return certify_campaign(o, work, code);
    if (o->out[0] != '\0') {
        /* before the work */
        ASSAY_TRY(certify_key_path(o->key, "", path));
        ASSAY_TRY(certify_key_read(path, &key));
        ASSAY_TRY(assay_mkdir_p(o->out));
    }
    if (o->cu[0] != '\0')
        ASSAY_TRY(certify_launch(o, work));
    if (o->engine[0] != '\0') {
        st = certify_engine(o, work, &many, &n);
    } else {
        st = o->python[0] != '\0' ? certify_python(o, work, &one) : certify_library(o, work, &one);
        n = 1;
        if (st != ASSAY_OK && o->compiler[0] != '\0')
            st = assay_context(st, "--compiler %s, which is for a device", o->compiler);
    }
    if (st == ASSAY_OK)
        st = finish(o, many != NULL ? many : &one, n, &key, code);
    if (st == ASSAY_OK)
        st = suggest(o, work);
    for (int i = 0; i < n && many != NULL; i++)
        certify_result_free(&many[i]);
    free(many);
    certify_result_free(&one);
    return st;
}

static assay_status print_header(void)
{
    char *text;
    ASSAY_TRY(certify_abi_header(&text));
    fputs(text, stdout);
    free(text);
    return ASSAY_OK;
}

/* One way in, and the options of that one. */
static assay_status check_combination(const certify_options *o)
{
    ASSAY_CHECK(
        (o->so[0] != '\0') + (o->engine[0] != '\0') + (o->cu[0] != '\0') + (o->python[0] != '\0') == 1,
        ASSAY_INVALID_ARGUMENT,
        "expected --so LIBRARY:SYMBOL, --cu FILE --launch TEXT --operation OP, --python PACKAGE:FUNCTION "
        "--operation OP, or --engine sim");
    ASSAY_CHECK(o->cu[0] != '\0' || (o->launch[0] == '\0' && o->shapes[0] == '\0' && o->compiler[0] == '\0' &&
                                     !o->atomics && o->rounding[0] == '\0' && o->alignment == 0),
                ASSAY_INVALID_ARGUMENT,
                "--launch, --shapes, --alignment, --rounding, --compiler, --atomics: they are of --cu");
    ASSAY_CHECK((o->alignment & (o->alignment - 1)) == 0, ASSAY_INVALID_ARGUMENT,
                "--alignment: expected a power of two up to 256, found %lld", (long long)o->alignment);
    ASSAY_CHECK(o->compiler[0] != '\0' || strcmp(o->arch, "native") == 0, ASSAY_INVALID_ARGUMENT,
                "--arch: it is of --compiler");
    ASSAY_CHECK(
        o->campaign[0] == '\0' ||
            (o->engine[0] != '\0' && o->out[0] == '\0' && o->variant[0] == '\0' && !o->suggest),
        ASSAY_INVALID_ARGUMENT,
        "--campaign: it is of --engine, and without --out, --variant and --suggest: it runs every rung");
    ASSAY_CHECK(o->campaign[0] == '\0' || (o->seeds == SEEDS && o->call_limit == CALL_LIMIT),
                ASSAY_INVALID_ARGUMENT,
                "--seeds, --call-limit: they are not of --campaign, whose seeds are its own");
    ASSAY_CHECK(!o->suggest || !o->fail_fast, ASSAY_INVALID_ARGUMENT,
                "--suggest: not with --fail-fast, which may stop before there is an answer to every call");
    ASSAY_CHECK(o->cells[0] == '\0' || o->campaign[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--cells: it is of --campaign");
    ASSAY_CHECK(o->python[0] != '\0' || (o->python_program[0] == '\0' && o->python_device[0] == '\0'),
                ASSAY_INVALID_ARGUMENT, "--python-program, --python-device: they are of --python");
    ASSAY_CHECK(o->variant[0] == '\0' || o->engine[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--variant: it is of --engine");
    ASSAY_CHECK(o->program[0] == '\0' || o->python[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "--program: it is of --engine, or of a library in device memory");
    ASSAY_CHECK(o->cuda_runtime[0] == '\0' || o->so[0] != '\0' || o->compiler[0] != '\0',
                ASSAY_INVALID_ARGUMENT, "--cuda-runtime: it is of --so, or of --cu with --compiler");
    ASSAY_CHECK(o->out[0] != '\0' || (o->key[0] == '\0' && o->valid_days == VALID_DAYS),
                ASSAY_INVALID_ARGUMENT, "--key, --valid-days: they are of --out");
    return ASSAY_OK;
}

static const assay_extra_option extra[] = {
    {"so", "LIBRARY:SYMBOL", "the kernel: a function that returns its description (assay_kernel.h)"},
    {"cuda_runtime", "FILE",
     "with --so: the libcudart of a library on a device that holds its own (default: what it is linked "
     "with)"},
    {"cu", "FILE",
     "a plain CUDA file instead, compiled with assay-cc for the simulator; needs --launch and "
     "--operation"},
    {"compiler", "nvcc|FILE", "with --cu: this nvcc instead, for the device of this machine (tier gpu)"},
    {"arch", "ARCH", "with --compiler: its -arch, as in sm_90 (default native)"},
    {"launch", "TEXT",
     "with --cu: the launch, in the names of the operation's slots, attributes and symbols; act: float "
     "or "
     "__nv_bfloat16"},
    {"shapes", "CONDITIONS", "with --cu: the sizes that it takes, as in 'H>=1 H<=4096' (default: none of 0)"},
    {"alignment", "BYTES",
     "with --cu: the first addresses that it takes, as in 16 for float4 (default: an element's)"},
    {"rounding", "WORDS",
     "with --cu: intermediate results that it stores in the dtype of activations, as in residual,probs"},
    {"atomics", NULL, "with --cu: it adds with atomics, bits may change from run to run"},
    {"python", "PACKAGE:FUNCTION",
     "a torch or Triton callable instead, through the package assay_trace; needs --operation"},
    {"python_program", "FILE", "with --python: the interpreter (default python3)"},
    {"python_device", "cpu|cuda",
     "with --python: where its tensors are (default cpu: Triton kernels run in Triton's interpreter)"},
    {"engine", "sim|gpu", "the engine's own kernels instead"},
    {"program", "FILE", "with --engine, or a library in device memory: this engine program"},
    {"variant", "k0|FAMILY=kN|...", "with --engine: kernel variants (default: the fastest)"},
    {"operation", "OP|all",
     "required with --cu and --python; with --engine: which (default all); with --so: refuse a kernel of "
     "another"},
    {"out", "DIR", "write the certificate and a page there; needs a key"},
    {"key", "FILE", "secret key (default ~/.config/assay/certify.key; assay keygen)"},
    {"valid_days", "N", "days for which the certificate is valid (default 365)"},
    {"campaign", "N|FIRST-LAST",
     "with --engine: that many seeds instead, each of which asks every shape in one data mode, one rung "
     "and one order, so that all meet"},
    {"cells", "FILE", "with --campaign: write how often each rung ran on which data at which shape"},
    {"seeds", "N", "draw the data N times (default 2)"},
    {"fail_fast", NULL,
     "stop at the first call (--engine, --python: run of all calls; --campaign: seed) in which something "
     "does not hold; every call is made once before it is made again"},
    {"call_limit", "S", "seconds of one call of the kernel (default 10)"},
    {"limit", "S", "seconds of the trial (default 600)"},
    {"suggest", NULL, "also print the tightest declared arithmetic under which every element passes"},
    {"keep", "DIR",
     "keep requests and answers there, in a new or an empty folder (traces: assay replay reads them)"},
    {"abi_header", NULL, "print assay_kernel_ops.h, the indices of slots and attributes"},
    {"child", "PART", NULL}, /* the process that loads the library */
    {NULL, NULL, NULL}};

int parity_main_certify(int argc, char **argv)
{
    verb_options v = {.o = {.arch = "native",
                            .seeds = SEEDS,
                            .valid_days = VALID_DAYS,
                            .call_limit = CALL_LIMIT,
                            .limit = 600.0}};
    char work[ASSAY_PATH] = "";
    int code = 2;
    if (assay_options_parse(
            argc, argv,
            "Tries a kernel: every data mode, boundary sizes and dtypes, in a process of its own with "
            "guarded "
            "memory; says what was tried, how close it came and what was not tried.\vExamples:\n"
            "  assay certify --so ./libmine.so:my_rmsnorm\n"
            "  assay certify --so ./libmine.so:my_rmsnorm --out certificates\n"
            "  assay certify --cu rms.cu --operation rmsnorm_fwd \\\n"
            "                --launch 'rms<act><<<T, 256>>>(y, rstd, x, gamma, eps, H)'\n"
            "  assay certify --engine sim --operation all\n",
            "", NULL, 0, extra, on_option, &v) != ASSAY_OK)
        return fail();
    if (v.o.abi_header)
        return print_header() == ASSAY_OK ? 0 : fail();
    if (v.child[0] != '\0')
        return certify_child(&v.o, v.o.keep, v.child);
    assay_status st = check_combination(&v.o);
    if (st == ASSAY_OK)
        st = make_work(&v.o, work);
    if (st == ASSAY_OK)
        st = certify(&v.o, work, &code);
    if (v.o.keep[0] == '\0' && work[0] != '\0') {
        char parent[ASSAY_PATH];
        snprintf(parent, sizeof parent, "%s", work);
        *strrchr(parent, '/') = '\0';
        (void)assay_remove_tree(work, parent);
    }
    return st == ASSAY_OK ? code : fail();
}
