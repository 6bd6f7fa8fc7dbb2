/* assay certify --cu: a plain CUDA file and its launch. */
#include "core/model/ops.h"
#include "parity/certify/launch.h"
#include "tests/support/certify.h"

#include <sys/stat.h>

TestSuite(certify_cu, .init = certify_setup, .fini = cli_teardown, .timeout = 600);

#define RMS ASSAY_SOURCE_DIR "/examples/certify/rms.cu"
#define LAUNCH "--launch rms<act><<<T,256>>>(y,rstd,x,gamma,eps,H)"
/* A wrong kernel is as wrong in blocks of two warps, in a fifth of the time. */
#define TWO_WARPS "--launch rms<act><<<T,64>>>(y,rstd,x,gamma,eps,H)"

Test(certify_cu, an_honest_kernel_is_certified)
{
    char path[CLI_LINE];
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --cu " RMS " --operation rmsnorm_fwd " LAUNCH);
    cli_expect_success(&r, "certify --cu");
    static const char *const trials[] = {"exact",     "local",  "guards",  "simulator",
                                         "arguments", "repeat", "special", "races"};
    const size_t n = sizeof trials / sizeof *trials - (ASSAY_RACES ? 0 : 1);
    for (size_t i = 0; i < n; i++)
        cr_expect(certify_passed(&r, trials[i]), "%s:\n%s", trials[i], r.out);
    snprintf(path, sizeof path, "%s", certify_written(&r));
    cli_free(&r);
    cr_assert(strncmp(path, "certs/rmsnorm_fwd-rms.cu-", 25) == 0, "%s", path);
    char *text = cli_read(cli_file(path));
    cr_expect_not_null(strstr(text, "\"kind\":\"source\""), "%s", text);
    cr_expect_not_null(strstr(text, "\"launch\":\"rms<act><<<T,256>>>(y,rstd,x,gamma,eps,H)\""), "%s", text);
    free(text);
    r = cli_run("verify %s", path);
    cli_expect_success(&r, "verify");
    cli_free(&r);
    /* an attribute's values: with the sizes that are taken without a word */
    r = cli_run(
        "certify --seeds 1 --cu " RMS
        " --operation rmsnorm_fwd --shapes eps>0 --launch rms<float><<<T,64>>>(y,rstd,x,gamma,eps,H)");
    cli_expect_success(&r, "--shapes eps>0");
    cr_expect_not_null(strstr(r.out, "tried for eps>0 H>=1 T>=1 alone"), "%s", r.out);
    cli_free(&r);
    /* `float` where `act` could be: that dtype alone */
    r = cli_run("certify --seeds 1 --cu " RMS " --operation rmsnorm_fwd --shapes H%%2=0 "
                "--launch rms<float><<<T<1?1:T,64>>>(y,rstd,x,gamma,eps,H)");
    cr_expect(r.code == 1 || r.code == 0);
    cr_expect_not_null(strstr(r.out, "F32"));
    cr_expect_null(strstr(r.out, "BF16"), "%s", r.out);
    cli_free(&r);
}

/* Another launch of the same file is another kernel. */
Test(certify_cu, a_failed_launch_leaves_the_certificate_of_another)
{
    char path[CLI_LINE];
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --cu " RMS
                " --operation rmsnorm_fwd --launch rms<float><<<T,64>>>(y,rstd,x,gamma,eps,H)");
    cli_expect_success(&r, "a good launch");
    snprintf(path, sizeof path, "%s", certify_written(&r));
    cli_free(&r);
    r = cli_run("certify --seeds 1 --fail-fast --out certs --cu " RMS
                " --operation rmsnorm_fwd --launch rms<float><<<T,64>>>(y,rstd,x,gamma,2*eps,H)");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cr_expect(cli_exists(cli_file(path)), "%s is removed", path);
    cli_free(&r);
}

/* A certificate is of what the file includes, too. */
Test(certify_cu, an_included_file_that_changed)
{
    char path[CLI_LINE];
    cr_assert_eq(assay_mkdir_p(cli_file("k/d")), ASSAY_OK);
    cli_copy(RMS, cli_file("k/d/inc.cuh"));
    cli_write_text(cli_file("k/rms.cu"), "#include \"d/inc.cuh\"\n");
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --cu k/rms.cu --operation rmsnorm_fwd --launch "
                "rms<float><<<T,64>>>(y,rstd,x,gamma,eps,H)");
    cli_expect_success(&r, "a file that includes another");
    snprintf(path, sizeof path, "%s", certify_written(&r));
    cli_free(&r);
    r = cli_run("verify --so k/rms.cu %s", path);
    cli_expect_success(&r, "verify");
    cli_free(&r);
    FILE *f = fopen(cli_file("k/d/inc.cuh"), "a");
    cr_assert_not_null(f);
    fputs("/* another */\n", f);
    cr_assert_eq(fclose(f), 0);
    r = cli_run("verify --so k/rms.cu %s", path);
    cr_expect_eq(r.code, 1, "%s", r.out);
    cr_expect_not_null(strstr(r.out, "certifies a file that includes d/inc.cuh of SHA-256"), "%s", r.out);
    cli_free(&r);
}

/* The example with one piece of text replaced. */
static void plant(const char *is, const char *becomes)
{
    char *text = cli_read(RMS), *at = strstr(text, is);
    cr_assert_not_null(at, "%s", is);
    FILE *f = fopen(cli_file("planted.cu"), "w");
    cr_assert_not_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, becomes, at + strlen(is));
    cr_assert_eq(fclose(f), 0);
    free(text);
}

Test(certify_cu, wrong_kernels_fail_and_say_how)
{
    static const struct {
        const char *is, *becomes, *trial;
    } rows[] = {
        {"+ eps)", "+ 2.0f * eps)", "exact"},
        {"    part[threadIdx.x] = sum;\n    __syncthreads();", "    part[threadIdx.x] = sum;", "exact"},
        {"rstd[blockIdx.x] = r;", "rstd[blockIdx.x + 1] = r;", "simulator"},
        {"float sum = 0.0f;", "float sum = threadIdx.x > 40 ? 1.0f : 0.0f;", "local"},
        {"if (threadIdx.x < n)\n", "if (threadIdx.x >= n)\n            return;\n", "written"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plant(rows[i].is, rows[i].becomes);
        cli_result r =
            cli_run("certify --seeds 1 --cu %s --operation rmsnorm_fwd " TWO_WARPS, cli_file("planted.cu"));
        cr_expect_eq(r.code, 1, "%s: exit code %d:\n%s%s", rows[i].becomes, r.code, r.out, r.err);
        cr_expect(!certify_passed(&r, rows[i].trial), "%s: %s passes\n%s", rows[i].becomes, rows[i].trial,
                  r.out);
        cli_free(&r);
    }
}

#if ASSAY_RACES /* builds under a sanitizer have no race checker */
/* A sum whose last block adds up what the others left.  Blocks of the simulator run one after the other: without the fence, or without the
 * barrier, every bit is right here. */
#define LAST_BLOCK                                                                                           \
    "__device__ double parts[8];\n__device__ unsigned ticket;\n"                                             \
    "__global__ void add(double *y, const float *x, long n)\n{\n"                                            \
    "    __shared__ bool last;\n    double s = 0;\n"                                                         \
    "    for (long i = blockIdx.x; i < n; i += gridDim.x)\n        s += x[i];\n"                             \
    "    if (threadIdx.x == 0) {\n        parts[blockIdx.x] = s;\n%s"                                        \
    "        last = atomicAdd(&ticket, 1u) == gridDim.x - 1;\n    }\n%s"                                     \
    "    if (last && threadIdx.x == 1) {\n        __threadfence();\n        double all = 0;\n"               \
    "        for (unsigned i = 0; i < gridDim.x; i++)\n            all += parts[i];\n"                       \
    "        y[0] = all;\n        ticket = 0;\n    }\n}\n"

Test(certify_cu, races_that_change_no_bit)
{
    static const struct {
        const char *fence, *barrier, *says;
    } rows[] = {
        {"        __threadfence();\n", "    __syncthreads();\n", NULL},
        {"\n", "    __syncthreads();\n", "accesses of two blocks of a grid that nothing orders"},
        {"        __threadfence();\n", "    __syncwarp();\n    __syncwarp();\n", NULL},
        {"        __threadfence();\n", "\n", "accesses of two lanes of a warp that nothing orders"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[4 * CLI_LINE];
        snprintf(text, sizeof text, LAST_BLOCK, rows[i].fence, rows[i].barrier);
        cli_write_text(cli_file("add.cu"), text);
        cli_result r = cli_run("certify --seeds 1 --cu %s --operation sum --launch add<<<4,32>>>(y,x,n)",
                               cli_file("add.cu"));
        cr_expect_eq(r.code, rows[i].says != NULL, "%zu: exit code %d:\n%s%s", i, r.code, r.out, r.err);
        cr_expect(certify_passed(&r, "races") == (rows[i].says == NULL), "%zu:\n%s", i, r.out);
        if (rows[i].says != NULL)
            cr_expect(certify_passed(&r, "repeat") && strstr(r.out, rows[i].says) != NULL, "%zu:\n%s", i,
                      r.out);
        cli_free(&r);
    }
}

/* A device takes no vector at an address that is not aligned to it.  The host's processor takes pairs of bf16 anywhere. */
static const char pairs[] =
    "#include <cuda_bf16.h>\n"
    "template <class V, class T> __global__ void add(T *y, const T *a, const T *b, long n)\n{\n"
    "    const long whole = n / (long)(sizeof(V) / sizeof(T)) * (long)(sizeof(V) / sizeof(T));\n"
    "    for (long i = 0; i < whole; i += sizeof(V) / sizeof(T)) {\n"
    "        const V p = *(const V *)(a + i), q = *(const V *)(b + i);\n        V r;\n"
    "        for (unsigned k = 0; k < sizeof(V) / sizeof(T); k++)\n"
    "            ((T *)&r)[k] = (T)((float)((T *)&p)[k] + (float)((T *)&q)[k]);\n"
    "        *(V *)(y + i) = r;\n    }\n"
    "    for (long i = whole; i < n; i++)\n        y[i] = (T)((float)a[i] + (float)b[i]);\n}\n";

Test(certify_cu, vectors_at_addresses_that_are_not_aligned)
{
    static const struct {
        const char *options, *trial, *says; /* trial NULL: certified */
    } rows[] = {
        {"--launch add<__nv_bfloat162,__nv_bfloat16><<<1,1>>>(y,a,b,n)", "races",
         "misaligned: kernel add<__nv_bfloat162,__nv_bfloat16>"},
        {"--launch add<__nv_bfloat162,__nv_bfloat16><<<1,1>>>(y,a,b,n) --alignment 2", "races",
         "no multiple of 4"},
        {"--launch add<__nv_bfloat162,__nv_bfloat16><<<1,1>>>(y,a,b,n) --alignment 4", NULL, NULL},
        {"--launch add<float4,float><<<1,1>>>(y,a,b,n)", "simulator", "not aligned to the vector's size"},
        {"--launch add<float4,float><<<1,1>>>(y,a,b,n) --alignment 8", "simulator", "again with:"},
        {"--launch add<float4,float><<<1,1>>>(y,a,b,n) --alignment 16", NULL, NULL},
    };
    cli_write_text(cli_file("pairs.cu"), pairs);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r =
            cli_run("certify --seeds 1 --cu %s --operation add %s", cli_file("pairs.cu"), rows[i].options);
        cr_expect_eq(r.code, rows[i].trial != NULL, "%s: exit code %d:\n%s%s", rows[i].options, r.code, r.out,
                     r.err);
        if (rows[i].trial != NULL)
            cr_expect(!certify_passed(&r, rows[i].trial) && strstr(r.out, rows[i].says) != NULL, "%s:\n%s",
                      rows[i].options, r.out);
        cli_free(&r);
    }
}
#endif

/* The norm of a residual, as it is stored or as it is added: what is declared is what it is held to. */
Test(certify_cu, a_rounding_that_is_declared)
{
    static const char source[] =
        "#include <cuda_bf16.h>\n"
        "template <bool STORED, class T> __global__ void norm(T *residual, T *y, float *rstd, const T *a,\n"
        "    const T *b, const T *gamma, float eps, long rows)\n{\n"
        "    if (blockIdx.x >= rows)\n        return;\n"
        "    float row[8], sum = 0;\n    const long at = blockIdx.x * 8;\n"
        "    for (int i = 0; i < 8; i++) {\n        row[i] = (float)a[at + i] + (float)b[at + i];\n"
        "        residual[at + i] = (T)row[i];\n        row[i] = STORED ? (float)(T)row[i] : row[i];\n"
        "        sum += row[i] * row[i];\n    }\n"
        "    const float r = rsqrtf(sum / 8 + eps);\n    rstd[blockIdx.x] = r;\n"
        "    for (int i = 0; i < 8; i++)\n        y[at + i] = (T)(row[i] * r * (float)gamma[i]);\n}\n";
    cli_write_text(cli_file("norm.cu"), source);
    for (int stored = 0; stored < 2; stored++)
        for (int declared = 0; declared < 2; declared++) {
            cli_result r = cli_run("certify --seeds 1 --cu %s --operation add_rmsnorm_fwd --shapes H=8%s "
                                   "--launch norm<%d,act><<<T<1?1:T,1>>>(residual,y,rstd,a,b,gamma,eps,T)",
                                   cli_file("norm.cu"), declared ? " --rounding residual" : "", stored);
            cr_expect_eq(r.code, stored != declared, "%d %d: exit code %d:\n%s%s", stored, declared, r.code,
                         r.out, r.err);
            cr_expect(certify_passed(&r, "local") == (stored == declared), "%s", r.out);
            cli_free(&r);
        }
}

/* A row that there is not has no part in the sum: a NaN of the row that was read in its place times 0 is a NaN. */
Test(certify_cu, absent_rows_beside_a_nan)
{
    static const char source[] =
        "#include <cuda_bf16.h>\n"
        "template <bool SKIPS, class T> __global__ void rows(T *y, const T *x, const int64_t *of, long k,\n"
        "    long columns)\n{\n"
        "    for (long h = threadIdx.x; h < columns; h += 32) {\n        float sum = 0;\n"
        "        for (long i = 0; i < k; i++) {\n            const long r = of[blockIdx.x * k + i];\n"
        "            if (SKIPS && r < 0)\n                continue;\n"
        "            sum += (float)x[(r < 0 ? 0 : r) * columns + h] * (r < 0 ? 0.0f : 1.0f);\n        }\n"
        "        y[blockIdx.x * columns + h] = (T)sum;\n    }\n}\n";
    cli_write_text(cli_file("rows.cu"), source);
    for (int skips = 0; skips < 2; skips++) {
        cli_result r = cli_run("certify --seeds 1 --cu %s --operation combine_rows "
                               "--launch rows<%d,act><<<T,32>>>(y,x,token_row,K,H)",
                               cli_file("rows.cu"), skips);
        cr_expect_eq(r.code, !skips, "%d: exit code %d:\n%s%s", skips, r.code, r.out, r.err);
        cr_expect(certify_passed(&r, "special") == (skips != 0), "%s", r.out);
        cr_expect(certify_passed(&r, "local"), "%s", r.out);
        cli_free(&r);
    }
}

/* The written file holds a dimension of a slot, or an attribute, to what the row says. */
static void expect_held(const char *text, const char *op, const char *what, int index, int d)
{
    char line[96];
    if (d < 0)
        snprintf(line, sizeof line, "if (c->attr[%d]->integer != (int64_t)(%s))", index, what);
    else
        snprintf(line, sizeof line, "if (c->slot[%d]->shape[%d] != (int64_t)(%s))", index, d, what);
    cr_expect_not_null(strstr(text, line), "%s: no line '%s'", op, line);
}

static void expect_all_held(const assay_op *op)
{
    char path[96];
    snprintf(path, sizeof path, "kept.%s/launch.cu", op->name);
    char *text = cli_read(cli_file(path));
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        char shape[64], *rest = NULL;
        int d = 0;
        snprintf(shape, sizeof shape, "%s", op->slots[i].shape);
        for (char *dim = strtok_r(shape, ",", &rest); dim != NULL; dim = strtok_r(NULL, ",", &rest))
            expect_held(text, op->name, dim, i, d++);
    }
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL)
            expect_held(text, op->name, op->attrs[i].symbol, i, -1);
    free(text);
}

/* A kernel that does nothing: what refuses the illegal calls of every operation is the written file. */
Test(certify_cu, every_extent_of_every_operation_is_held)
{
    int taken = 0;
    cli_write_text(cli_file("nothing.cu"), "__global__ void nothing() {}\n");
    for (int i = 0; assay_op_at(i) != NULL; i++) {
        const assay_op *op = assay_op_at(i);
        cli_result r = cli_run(
            "certify --seeds 1 --keep kept.%s --cu nothing.cu --operation %s --launch nothing<<<1,1>>>()",
            op->name, op->name);
        if (r.code == 2) {
            cr_expect(strstr(r.err, "is not written for a launch") != NULL ||
                          strstr(r.err, "that is no collective") != NULL,
                      "%s: %s", op->name, r.err);
        } else {
            cr_expect_eq(r.code, 1, "%s: exit code %d\n%s%s", op->name, r.code, r.out, r.err);
            cr_expect(certify_passed(&r, "arguments") && certify_passed(&r, "accepts"), "%s:\n%s", op->name,
                      r.out);
            expect_all_held(op);
            taken++;
        }
        cli_free(&r);
    }
    cr_expect_geq(taken, 40, "%d operations", taken);
}

/* The interface's own folder is left out, and no other whose name or path begins as its does. */
Test(certify_cu, headers_of_a_folder_beside_the_interface)
{
    static const struct {
        const char *path;
        bool listed;
    } rows[] = {{"parity/assay_kernel.h", false},
                {"parity_mine/tile.h", true},
                {"parity.h", true},
                {"parity/../other/tile.h", true}};
    char rule[CLI_LINE] = "launch.o: ", include[CLI_PATH], file[CLI_PATH], source[CLI_PATH];
    json_t *out = NULL;
    snprintf(include, sizeof include, "%s", cli_file("parity"));
    snprintf(file, sizeof file, "%s", cli_file("mine.cu"));
    snprintf(source, sizeof source, "%s", cli_file("launch.cu"));
    for (size_t i = 0; i < 3; i++)
        cr_assert_eq(assay_mkdir_p(cli_file((const char *const[]){"parity", "parity_mine", "other"}[i])),
                     ASSAY_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rule);
        cli_write_text(cli_file(rows[i].path), "\n");
        snprintf(rule + n, sizeof rule - n, " %s", cli_file(rows[i].path));
    }
    cr_assert_eq(launch_read_includes(rule, source, file, include, "", &out), ASSAY_OK, "%s",
                 assay_error_message());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *name = strncmp(rows[i].path, "parity/../", 10) == 0 ? rows[i].path + 10 : rows[i].path;
        cr_expect_eq(json_object_get(out, name) != NULL, rows[i].listed, "%s", rows[i].path);
    }
    json_decref(out);
}

/* The written file has a fixed name: not over the user's own of that name. */
Test(certify_cu, a_folder_to_keep_that_holds_files_is_left_alone)
{
    cli_write_text(cli_file("launch.cu"), "__global__ void nothing() {}\n");
    cli_result r =
        cli_run("certify --cu launch.cu --operation rmsnorm_fwd --launch nothing<<<1,1>>>() --keep .");
    cli_expect_refusal(&r, "--keep .", (const char *const[]){"--keep: .: expected a new or an empty", NULL});
    cli_free(&r);
    char *text = cli_read(cli_file("launch.cu"));
    cr_expect_str_eq(text, "__global__ void nothing() {}\n");
    free(text);
    cr_expect_neq(access(cli_file("board"), F_OK), 0, "something was written");
}

Test(certify_cu, refused_by_name)
{
    static const char *const rows[][2] = {
        {"certify --cu " RMS " --operation rmsnorm_fwd", "expected --launch"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms(y)", "expected --launch"},
        {"certify --cu " RMS " --operation nothing " LAUNCH, "a row of docs/OPS.md"},
        {"certify --cu " RMS " --operation all_reduce " LAUNCH, "a row of docs/OPS.md"},
        {"certify --cu " RMS " --operation linear_fwd " LAUNCH, "slot bias of linear_fwd"},
        {"certify --cu nowhere.cu --operation rmsnorm_fwd " LAUNCH, "nowhere.cu: No such file"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms<act><<<T,256>>>(y,\"x\")",
         "without quotes"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --shapes H>=system(1) " LAUNCH,
         "--shapes: expected conditions"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --shapes Z>=1 " LAUNCH,
         "symbols of rmsnorm_fwd: H, T; attributes: eps; found Z>=1"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms<act><<<T,256>>>(y,nothing)",
         "error: 'nothing' was not declared in this scope"},
        {"certify --launch x --so a.so:b", "they are of --cu"},
        {"certify --alignment 4 --so a.so:b", "they are of --cu"},
        {"certify --rounding residual --so a.so:b", "they are of --cu"},
        {"certify --cu " RMS " --operation rmsnorm_fwd " LAUNCH " --alignment 24",
         "expected a power of two up to 256, found 24"},
        {"certify --cu " RMS " --operation rmsnorm_fwd " LAUNCH " --rounding residual,nothing",
         "--rounding: rounding: expected before_gamma"},
        {"certify --compiler nvcc --so a.so:b", "they are of --cu"},
        {"certify --variant k0 --so a.so:b", "--variant: it is of --engine"},
        {"certify --program x --python a:b --operation add", "--program: it is of --engine, or of a library"},
        {"certify --cuda-runtime x --engine sim", "--cuda-runtime: it is of --so"},
        {"certify --key x --so a.so:b", "--key, --valid-days: they are of --out"},
        {"certify --valid-days 9 --engine sim", "--key, --valid-days: they are of --out"},
        {"certify --arch sm_90 --cu " RMS " --operation rmsnorm_fwd " LAUNCH, "--arch: it is of --compiler"},
        {"certify --cu " RMS " --operation rmsnorm_fwd " LAUNCH " --compiler ./nowhere",
         "nvcc of the CUDA toolkit and a device are needed"},
        {"certify --cu " RMS " --so a.so:b", "expected --so LIBRARY:SYMBOL, --cu FILE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("%s", rows[i][0]);
        cli_expect_refusal(&r, rows[i][0], (const char *const[]){rows[i][1], NULL});
        cli_free(&r);
    }
}

/* --- for a device ------------------------------------------------------------------------------------------- */

/* A compiler of the tests: takes nvcc's arguments and no others, and `makes` what -o names of the last one, the source. */
static const char *stand_in(const char *makes)
{
    static char path[CLI_LINE];
    char text[4 * CLI_LINE];
    snprintf(text, sizeof text,
             "#!/bin/sh\n[ \"$1\" != --version ] || { echo 'Cuda compilation tools, release 12.8, V12.8.1'; "
             "exit 0; }\n"
             "[ \"$1\" != -MM ] || { echo \"launch.o : $4 $(ls inc.cuh 2>/dev/null)\"; exit 0; }\n"
             "[ \"$1 $2 $3 $4 $5 $6 $7 $8 $9\" = '-O2 -std=c++17 -shared -Xcompiler -fPIC -cudart shared "
             "-arch=sm_90 -Xlinker' ] || { echo \"not nvcc's arguments: $*\"; exit 1; }\n"
             "shift 10\n[ \"$1 $3\" = '-I -o' ] || exit 1\ninclude=$2 out=$4 source=$5\n%s\n",
             makes);
    snprintf(path, sizeof path, "%s", cli_file("compiler"));
    cli_write_text(path, text);
    cr_assert_eq(chmod(path, 0700), 0);
    return path;
}

/* The same file through the path of a device: a runtime of threads stands for it (tests/certify/other_runtime.c), and its library for what a
 * compiler would make. */
Test(certify_cu, a_compiler_for_a_device)
{
    static const char *const passed[] = {"stream", "guards", "device", "local", "exact", "threads"};
    char add[CLI_LINE];
    snprintf(add, sizeof add,
             "certify --seeds 1 --cu %s --operation add --arch sm_90 --compiler %s --program " ASSAY_BIN_DIR
             "/assay-sim --launch add<act><<<n,64,0,stream>>>(y,a,b,n)",
             cli_file("add.cu"),
             stand_in("grep -q 'add<act><<<n,64,0,stream>>>' $source && cp " ASSAY_KERNELS
                      "/other_runtime.so $out"));
    cli_write_text(cli_file("add.cu"), "/* compiled by nobody */\n");
    setenv("PATH", "/usr/bin:/bin", 1); /* without compute-sanitizer */
    cli_result r = cli_run("%s", add);
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cr_expect_not_null(strstr(r.out, "add.cu, SHA-256"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "tier gpu"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "no engine of tier gpu answers"), "%s", r.out);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        cr_expect(certify_passed(&r, passed[i]), "%s:\n%s", passed[i], r.out);
    cli_free(&r);
    /* what a compiler makes for the simulator stays of the simulator, and says who compiled it */
    r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --cu " RMS
                " --operation rmsnorm_fwd --arch sm_90 --compiler %s "
                "--launch rms<float><<<T,64,0,stream>>>(y,rstd,x,gamma,eps,H)",
                stand_in(ASSAY_BIN_DIR "/assay-cc -O2 -shared --with-simulator -I $include -o $out $source"));
    cli_expect_success(&r, "a compiler of the simulator");
    cr_expect(certify_passed(&r, "simulator") && certify_passed(&r, "stream"), "%s", r.out);
    char *text = cli_read(cli_file(certify_written(&r)));
    cli_free(&r);
    cr_expect_not_null(strstr(text, "\"built\":\"compiler 12.8, -O2 -arch=sm_90\""), "%s", text);
    free(text);
    r = cli_run("certify --cu " RMS " --operation rmsnorm_fwd --arch sm_80 --compiler %s " LAUNCH,
                stand_in("true"));
    cli_expect_refusal(
        &r, "another architecture",
        (const char *const[]){"not nvcc's arguments", "-arch=sm_80", "does not compile it", NULL});
    cli_free(&r);
}

/* Compiled is one text, and hashed another: whichever it is, the file or what it includes, before the compiler read it or behind. */
Test(certify_cu, a_file_that_is_changed_while_it_is_compiled)
{
    static const char *const names[][2] = {{"add.cu", "add.cu: had SHA-256"},
                                           {"inc.cuh", "includes inc.cuh, which was changed while"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char makes[CLI_LINE];
        cli_write_text(cli_file("add.cu"), "#include \"inc.cuh\"\n");
        cli_write_text(cli_file("inc.cuh"), "/* one */\n");
        snprintf(makes, sizeof makes,
                 "echo '/* another */' >>%s && cp " ASSAY_KERNELS "/other_runtime.so $out",
                 cli_file(names[i][0]));
        const char *compiler = stand_in(makes);
        setenv("PATH", "/usr/bin:/bin", 1); /* without compute-sanitizer */
        cli_result r = cli_run("certify --seeds 1 --cu add.cu --operation add --arch sm_90 --compiler %s "
                               "--launch add<act><<<n,64,0,stream>>>(y,a,b,n)",
                               compiler);
        cli_expect_refusal(&r, names[i][0], (const char *const[]){names[i][1], NULL});
        cli_free(&r);
    }
}

/* nvcc itself, which no test needs: without it, what is refused says so. */
Test(certify_cu, nvcc)
{
    char path[CLI_LINE];
    const char *was = getenv("PATH");
    snprintf(path, sizeof path, "%s:/usr/local/cuda/bin", was);
    setenv("PATH", path, 1);
    const bool found = system("command -v nvcc >/dev/null") == 0;
    cli_result r = cli_run("certify --cu " RMS " --operation rmsnorm_fwd --arch sm_90 --compiler nvcc " LAUNCH
                           " --cuda-runtime ./nowhere.so --keep work");
    /* compiled for a device, and the library reaches its trial, which asks for the runtime */
    cli_expect_refusal(
        &r, "a clean file",
        (const char *const[]){found ? "nowhere.so" : "--compiler nvcc: not found in PATH", NULL});
    cli_free(&r);
    cr_expect_eq(access(cli_file("work/launch.so"), R_OK) == 0, found, "a library: %d, nvcc: %d", !found,
                 found);
    plant("rstd[blockIdx.x] = r;", "rstd[blockIdx.x] = rr;");
    r = cli_run("certify --cu %s --operation rmsnorm_fwd --arch sm_90 --compiler nvcc " LAUNCH,
                cli_file("planted.cu"));
    cli_expect_refusal(&r, "a file with a mistake",
                       (const char *const[]){found ? "planted.cu(21): error: identifier \"rr\" is undefined"
                                                   : "without --compiler assay-cc compiles it",
                                             found ? "nvcc does not compile it" : NULL, NULL});
    cli_free(&r);
}
