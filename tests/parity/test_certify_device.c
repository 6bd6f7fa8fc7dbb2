/* assay certify of a library in device memory, the simulator as its runtime: the example, and the example with one fault planted. */
#include "tests/support/certify.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

TestSuite(certify_device, .init = certify_setup, .fini = cli_teardown, .timeout = 600);

#define EXAMPLE ASSAY_SOURCE_DIR "/examples/certify/rmsnorm_device.cu"
#define STREAM_FORWARD "forward<A><<<blocks, THREADS, 0, stream>>>"
#define STREAM_MEAN "backward_mean<A><<<(unsigned)rows, THREADS, 0, stream>>>"
#define LAUNCHED "return cudaGetLastError() == cudaSuccess ? ASSAY_KERNEL_OK : ASSAY_KERNEL_DEVICE;"
#define KERNELS ASSAY_KERNELS
enum { CHANGES = 4 };

/* Under the address sanitizer a trial takes three times as long. */
#if defined(__SANITIZE_ADDRESS__)
enum { F32_ALONE = true };
#else
enum { F32_ALONE = false };
#endif

/* The example with pieces of its text replaced, as a library: with blocks of one warp, or a trial takes half a minute, and by choice for
 * F32 alone. */
static void build(const char *library, const certify_change *changes, bool f32_alone)
{
    static char line[CLI_LINE];
    char *text = certify_replaced(cli_read(EXAMPLE), "THREADS = 256", "THREADS = 32");
    if (f32_alone)
        text = certify_replaced(text, " | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16)", "");
    for (int i = 0; i < CHANGES && changes != NULL && changes[i].is != NULL; i++)
        text = certify_replaced(text, changes[i].is, changes[i].becomes);
    cli_write_text(cli_file("k.cu"), text);
    free(text);
    snprintf(line, sizeof line,
             ASSAY_BIN_DIR "/assay-cc " CERTIFY_LEVEL " -shared --with-simulator -I " ASSAY_SOURCE_DIR
                           "/parity"
                           " -I " ASSAY_SOURCE_DIR "/examples/certify -o %s %s",
             cli_file(library), cli_file("k.cu"));
    cli_result r = cli_wait(cli_start(line));
    cr_assert_eq(r.code, 0, "assay-cc: %s", r.err);
    cli_free(&r);
}

Test(certify_device, the_example_is_certified)
{
    static const char *const trials[] = {"guards", "simulator", "probe",   "device", "inputs",   "written",
                                         "exact",  "local",     "special", "repeat", "stream",   "threads",
                                         "batch",  "accepts",   "crash",   "time",   "arguments"};
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    build("k.so", NULL, F32_ALONE);
    r = cli_run("certify --seeds 1 --out certs --so ./k.so:example_rmsnorm_fwd");
    cli_expect_success(&r, "forward");
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        cr_expect(certify_passed(&r, trials[i]), "%s:\n%s", trials[i], r.out);
    cli_free(&r);
    char *text = cli_read(cli_file("certs/rmsnorm_fwd-k.so-example_rmsnorm_fwd-sim.json"));
    static const char *const words[] = {
        "\"tier\":\"sim\"",         "\"device\":\"assay simulated device (compute capability 9.0)\"",
        "\"driver\":\"CUDA 13.0\"", "\"toolkit\":\"CUDA 13.0\"",
        "\"capability\":\"9.0\"",   "\"probe\":{\"functions\"",
        "\"memory\":\"device\"",    "\"asynchronous\":true"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_expect_not_null(strstr(text, words[i]), "%s in\n%s", words[i], text);
    free(text);
    r = cli_run("verify --key certs.pub --so ./k.so certs/rmsnorm_fwd-k.so-example_rmsnorm_fwd-sim.json");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --so ./k.so:example_rmsnorm_bwd");
    cli_expect_success(&r, "backward");
    cr_expect(certify_passed(&r, "workspace") && certify_passed(&r, "stream"), "%s", r.out);
    cli_free(&r);
}

/* Streams of its own behind and before events; a call that waits by itself. */
Test(certify_device, honest_in_another_way)
{
    static const certify_change rows[][CHANGES] = {
        {{STREAM_MEAN, "static cudaStream_t mine;\n"
                       "        static cudaEvent_t before, behind;\n"
                       "        if (mine == NULL) {\n"
                       "            cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);\n"
                       "            cudaEventCreate(&before);\n"
                       "            cudaEventCreate(&behind);\n"
                       "        }\n"
                       "        cudaEventRecord(before, stream);\n"
                       "        cudaStreamWaitEvent(mine, before, 0);\n"
                       "        backward_mean<A><<<(unsigned)rows, THREADS, 0, mine>>>"},
         {"        backward_input<A>", "        cudaEventRecord(behind, mine);\n"
                                       "        cudaStreamWaitEvent(stream, behind, 0);\n"
                                       "        backward_input<A>"}},
        {{LAUNCHED,
          "return cudaGetLastError() == cudaSuccess && cudaStreamSynchronize(NULL) == cudaSuccess ? 0 : 4;"},
         {STREAM_FORWARD, "cudaStreamSynchronize(stream);\n    forward<A><<<blocks, THREADS>>>"},
         {"k.synchronize = synchronize;", "(void)synchronize;"}},
    };
    static const char *const symbols[] = {"example_rmsnorm_bwd", "example_rmsnorm_fwd"};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        build("k.so", rows[i], true);
        cli_result r = cli_run("certify --seeds 1 --so ./k.so:%s", symbols[i]);
        cli_expect_success(&r, rows[i][0].becomes);
        cr_expect(certify_passed(&r, "stream"), "%s", r.out);
        cli_free(&r);
    }
}

typedef struct planted {
    const char *name, *trial, *word;
    bool backward;
    certify_change changes[CHANGES];
} planted;

static void expect_found(const planted *p)
{
    build("k.so", p->changes, true);
    cli_result r =
        certify_caught(p->trial, p->word,
                       p->backward ? "--so ./k.so:example_rmsnorm_bwd" : "--so ./k.so:example_rmsnorm_fwd");
    cr_expect_eq(r.code, 1, "%s: exit code %d:\n%s%s", p->name, r.code, r.out, r.err);
    if (!certify_stopped(&r)) {
        cr_expect(certify_failed(&r, p->trial), "%s: %s does not fail\n%s", p->name, p->trial, r.out);
        cr_expect_not_null(strstr(r.out, p->word), "%s: no '%s' in\n%s", p->name, p->word, r.out);
    }
    cli_free(&r);
}

Test(certify_device, faults_of_streams)
{
    static const planted rows[] = {
        {"the default stream",
         "stream",
         "changes after the call's stream was waited for",
         false,
         {{STREAM_FORWARD, "forward<A><<<blocks, THREADS>>>"}}},
        {"a stream of its own without an event",
         "stream",
         "changes after the call's stream was waited for",
         true,
         {{STREAM_MEAN, "static cudaStream_t mine;\n"
                        "        if (mine == NULL)\n"
                        "            cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);\n"
                        "        backward_mean<A><<<(unsigned)rows, THREADS, 0, mine>>>"}}},
        {"before the stream's inputs",
         "stream",
         "has other bits than in the first run, in inputs that arrive late",
         false,
         {{STREAM_FORWARD, "forward<A><<<blocks, THREADS>>>"},
          {LAUNCHED, "return cudaStreamSynchronize(NULL) == cudaSuccess ? 0 : 4;"}}},
        {"a synchronization of the device",
         "stream",
         "run() waits for the whole device",
         false,
         {{LAUNCHED, "return cudaDeviceSynchronize() == cudaSuccess ? 0 : 4;"}}},
        {"memory that is freed",
         "stream",
         "run() waits for the whole device",
         false,
         {{LAUNCHED, "void *p;\n    cudaMalloc(&p, 64);\n    cudaFree(p);\n    return cudaGetLastError() == "
                     "cudaSuccess ? 0 : 4;"}}},
        {"a synchronization of the stream",
         "stream",
         "run() waits for its stream",
         false,
         {{"    return launched();", "    cudaStreamSynchronize(stream);\n    return launched();"}}},
        {"the order of two kernels",
         "local",
         "dx",
         true,
         {{"        backward_mean<A><<<(unsigned)rows, THREADS, 0, stream>>>(mean, gamma, dy, x, rstd, "
           "columns);\n",
           ""},
          {"    if (c->slot[B_DGAMMA] != NULL && blocks",
           "    if (rows > 0)\n        backward_mean<A><<<(unsigned)rows, THREADS, 0, stream>>>(mean, gamma, "
           "dy, x, "
           "rstd, columns);\n    if (c->slot[B_DGAMMA] != NULL && blocks"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_found(&rows[i]);
}

Test(certify_device, faults_of_memory)
{
    static const planted rows[] = {
        {"a write behind an output",
         "guards",
         "(rstd is bytes",
         false,
         {{"        rstd[blockIdx.x] = r;", "        rstd[blockIdx.x + 1] = r;"}}},
        {"a write before an output",
         "guards",
         "before the start of rstd",
         false,
         {{"        rstd[blockIdx.x] = r;", "        rstd[blockIdx.x] = rstd[-1] = r;"}}},
        {"a read before an input",
         "repeat",
         "on other garbage",
         false,
         {{"    float sum = 0.0f;\n    for (int64_t h = threadIdx.x; h < columns; h += THREADS)\n        sum "
           "= "
           "fmaf(to_float(row[h])",
           "    float sum = 0.0f * to_float(x[-1]);\n    for (int64_t h = threadIdx.x; h < columns; h += "
           "THREADS)\n        sum = fmaf(to_float(row[h])"}}},
        {"a read far behind an input",
         "simulator",
         "illegal address",
         false,
         {{"to_float(row[h]) * r *", "to_float(row[h + 8192]) * r *"}}},
        {"a workspace that is too small",
         "guards",
         "workspace",
         true,
         {{"        mean[blockIdx.x] = columns", "        mean[blockIdx.x + 1] = columns"}}},
        {"an element that is never written",
         "written",
         "elements of y are never written",
         false,
         {{"        put(y + ", "        if (h < 7)\n            put(y + "}}},
        {"an input that is changed",
         "inputs",
         "changed input x",
         false,
         {{"        put(y + ", "        ((A *)x)[blockIdx.x * columns + h] = 0.0f, put(y + "}}},
        {"vectors at an address that is not aligned",
         "simulator",
         "illegal address",
         false,
         {{"    const float r = rsqrtf(", "    const float4 wide = *(const float4 *)row;\n    if (wide.x + "
                                          "wide.y + wide.z + wide.w == 0.5f)\n"
                                          "        sum += 1e-30f;\n    const float r = rsqrtf("}}},
        {"the host in device memory",
         "simulator",
         "device memory read by the host",
         false,
         {{"    forward<A><<<",
           "    if (*(const volatile char *)x == 77 && *(const volatile char *)x == 78)\n        return 4;\n"
           "    forward<A><<<"}}},
        {"memory that is kept",
         "device",
         "bytes of device memory and did not give them back",
         false,
         {{LAUNCHED, "static void *kept;\n    if (kept == NULL)\n        cudaMalloc(&kept, 64);\n    return "
                     "cudaGetLastError() == "
                     "cudaSuccess ? 0 : 4;"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_found(&rows[i]);
}

Test(certify_device, faults_of_kernels)
{
    static const planted rows[] = {
        {"another eps", "exact", "rstd", false, {{"0.0f) + eps);", "0.0f) + 2.0f * eps);"}}},
        {"a launch that fails and nobody looks",
         "device",
         "cudaErrorInvalidConfiguration",
         false,
         {{STREAM_FORWARD, "forward<A><<<blocks, columns > 64 ? 2048 : THREADS, 0, stream>>>"},
          {LAUNCHED, "return ASSAY_KERNEL_OK;"}}},
        {"no barrier",
         "threads",
         "other bits",
         false,
         {{"    part[threadIdx.x] = x;\n    __syncthreads();\n", "    part[threadIdx.x] = x;\n"}}},
        {"a device that is not checked for",
         "accepts",
         "error code 4",
         false,
         {{"    return launched();", "    return columns > 64 ? ASSAY_KERNEL_DEVICE : launched();"}}},
        {"a loop without end",
         "time",
         "within the time limit",
         false,
         {{"    sum = block_sum(sum);\n    const",
           "    for (volatile int64_t n = 0; columns == 13; n = n + 1)\n        ;\n"
           "    sum = block_sum(sum);\n    const"}}},
        {"units that the device has not",
         "probe",
         "declared are k_step 8",
         false,
         {{"    a.order = order;", "    a.order = ASSAY_KERNEL_ORDER_TENSOR_CORE;\n    a.k_step = 8;\n"
                                   "    a.guard_bits = 2;"},
          {"    a.lanes = lanes;", ""}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_found(&rows[i]);
}

/* Without an engine of the tier nobody knows what the device's units and functions do. */
Test(certify_device, a_device_that_nobody_probed)
{
    build("k.so", NULL, true);
    cli_result r = cli_run("certify --seeds 1 --so ./k.so:example_rmsnorm_fwd --program /nowhere");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cr_expect(certify_failed(&r, "probe"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "the device was not probed: no engine of tier sim answers"), "%s",
                       r.out);
    cli_free(&r);
}

/* A runtime that is not the simulator's, with threads for streams: zones on both sides, held streams, the tier of a device.  No engine
 * answers from it, so nothing is certified. */
Test(certify_device, another_runtime)
{
    static const struct {
        const char *symbol, *trial, *word;
    } rows[] = {
        {"on_the_stream", "probe", "the device was not probed: no engine of tier gpu answers"},
        {"on_the_default_stream", "stream", "in inputs that arrive late on the stream"},
        {"waits_for_the_device", "stream", "run() waits for the whole device"},
        {"waits_for_the_stream", "stream", "run() waits for its stream"},
        {"writes_behind", "guards", "past the end of y"},
        {"leaves_an_error", "device", "the runtime's last error is cudaErrorInvalidValue"},
        {"fails", "device", "the device failed with cudaErrorLaunchFailure"},
    };
    setenv("PATH", "/usr/bin:/bin", 1); /* without compute-sanitizer */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS
                               "/other_runtime.so:%s --program " ASSAY_BIN_DIR "/assay-sim",
                               rows[i].symbol);
        cr_expect_eq(r.code, 1, "%s: exit code %d:\n%s%s", rows[i].symbol, r.code, r.out, r.err);
        cr_expect(certify_failed(&r, rows[i].trial), "%s: %s does not fail\n%s", rows[i].symbol,
                  rows[i].trial, r.out);
        cr_expect_not_null(strstr(r.out, rows[i].word), "%s: no '%s' in\n%s", rows[i].symbol, rows[i].word,
                           r.out);
        cr_expect_not_null(strstr(r.out, "tier gpu"), "%s", r.out);
        cr_expect_not_null(strstr(r.out, "compute-sanitizer (not found in PATH)"), "%s", r.out);
        cr_expect(i > 0 || (certify_passed(&r, "stream") && certify_passed(&r, "guards") &&
                            certify_passed(&r, "device") && certify_passed(&r, "local")),
                  "%s", r.out);
        cli_free(&r);
    }
    /* Something of compute-sanitizer's name that runs the program and, as one of the tools, has a finding. */
    static const char tool[] =
        "#!/bin/sh\n[ \"$1 $3 $4 $5\" = \"--tool --error-exitcode 9 --log-file\" ] || exit "
        "3\ntool=$2\nreport=$6\n"
        "shift 6\n\"$@\" || exit 4\n[ $tool != racecheck ] || { echo '========= COMPUTE-SANITIZER' >$report; "
        "echo '========= Error: Race reported' >>$report; exit 9; }\n";
    char path[CLI_LINE];
    cr_assert_eq(mkdir(cli_file("tools"), 0700), 0);
    cli_write_text(cli_file("tools/compute-sanitizer"), tool);
    cr_assert_eq(chmod(cli_file("tools/compute-sanitizer"), 0700), 0);
    snprintf(path, sizeof path, "%s:%s", cli_file("tools"), getenv("PATH"));
    setenv("PATH", path, 1);
    cli_result watched = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/other_runtime.so:on_the_stream");
    cr_expect(certify_failed(&watched, "sanitizer") && certify_passed(&watched, "threads"), "%s%s",
              watched.out, watched.err);
    cr_expect_not_null(strstr(watched.out, "1 time; first: racecheck: Error: Race reported"), "%s",
                       watched.out);
    cr_expect_null(strstr(watched.out, "not found in PATH"), "%s", watched.out);
    cli_free(&watched);
    /* One that runs nothing has found nothing. */
    cli_write_text(cli_file("tools/compute-sanitizer"), "#!/bin/sh\nexit 0\n");
    cr_assert_eq(chmod(cli_file("tools/compute-sanitizer"), 0700), 0);
    cli_result idle = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/other_runtime.so:on_the_stream");
    cr_expect(certify_failed(&idle, "sanitizer") &&
                  strstr(idle.out, "memcheck did not come to its end (status 0)") != NULL,
              "%s%s", idle.out, idle.err);
    cli_free(&idle);
    /* A library that holds its own runtime. */
    cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS
                           "/refused.so:device_memory --cuda-runtime " ASSAY_KERNELS "/other_runtime.so");
    cr_expect(r.code == 1 && strstr(r.out, "tier gpu") != NULL && certify_failed(&r, "accepts"), "%s%s",
              r.out, r.err);
    cli_free(&r);
}

/* --- throughput ------------------------------------------------------------------------------------------------ */

/* An engine of a device, as the judge sees one: assay-sim for the probe, `times` for what `ops --time` answers. */
static const char *device_engine(const char *times)
{
    static char path[CLI_LINE];
    char text[4 * CLI_LINE];
    snprintf(text, sizeof text,
             "#!/bin/sh\ncase $1 in\n"
             "doctor) " ASSAY_BIN_DIR
             "/assay-sim \"$@\" | sed 's/\"device\": .*/\"device\": \"a device of the "
             "tests\",/; s/\"simulated\": true/\"simulated\": false/' ;;\n"
             "ops) for word in \"$@\"; do case $word in --out=*) out=${word#--out=} ;; --time=20) timed=1 ;; "
             "esac; "
             "done\n[ \"$timed\" ] || exit 3\ncat >$out <<'END'\n%s\nEND\n;;\n"
             "*) exec " ASSAY_BIN_DIR "/assay-sim \"$@\" ;;\nesac\n",
             times);
    snprintf(path, sizeof path, "%s", cli_file("engine"));
    cli_write_text(path, text);
    cr_assert_eq(chmod(path, 0700), 0);
    return path;
}

#define PEAK                                                                                                 \
    "\"peak\":{\"dtype\":\"F32\",\"product\":8192,\"copy_bytes\":1,\"flops_per_s\":1e9,\"copy_bytes_per_"    \
    "s\":2e10}"
#define TIMES(simulated, seconds)                                                                            \
    "{\"format\":\"assay-ops-times-1\",\"device\":\"x\",\"simulated\":" simulated "," PEAK                   \
    ",\"operations\":[{\"op\":\"add\",\"instance\":\"time.add.1\",\"variant\":2,\"seconds\":" seconds "}]}"

static double member(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static void expect_near(double found, double expected, const char *what)
{
    cr_expect(fabs(found - expected) <= 1e-12 * fabs(expected), "%s: expected %.17g, found %.17g", what,
              expected, found);
}

/* A kernel of known length on a runtime with a clock, beside an engine of known speed: the certificate's numbers follow from each other. */
Test(certify_device, throughput)
{
    setenv("PATH", "/usr/bin:/bin", 1);
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --so " ASSAY_KERNELS
                "/other_runtime.so:takes_3_ms --program %s",
                device_engine(TIMES("false", "[0.004,0.001,0.002]")));
    cli_expect_success(&r, "takes_3_ms");
    cr_expect_not_null(strstr(r.out, "information, no verdict"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "  n=1048576\n"), "%s", r.out);
    cr_expect_null(strstr(r.out, "- throughput"), "%s", r.out);
    cli_free(&r);
    json_t *whole = json_load_file(cli_file("certs/add-other_runtime.so-takes_3_ms-gpu.json"), 0, NULL);
    const json_t *t = json_object_get(json_object_get(whole, "certificate"), "throughput"),
                 *rows = json_object_get(t, "rows");
    cr_assert_eq(json_array_size(rows), 2); /* F32, BF16 */
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(rows, i), *s = json_object_get(row, "seconds"),
                     *engine = json_object_get(row, "engine");
        const double n = 1048576.0, median = member(s, "median");
        cr_expect_str_eq(json_string_value(json_object_get(row, "activations")), i == 0 ? "F32" : "BF16");
        cr_expect(member(s, "min") >= 0.003 && median >= member(s, "min") && member(s, "runs") == 20.0);
        expect_near(member(row, "bytes"), 3.0 * n * (i == 0 ? 4.0 : 2.0), "bytes");
        expect_near(member(row, "flops"), n, "flops");
        expect_near(member(row, "bytes_per_s"), member(row, "bytes") / median, "bytes_per_s");
        expect_near(member(row, "share_of_copy"), member(row, "bytes") / median / 2e10, "share_of_copy");
        expect_near(member(row, "share_of_product"), n / median / 1e9, "share_of_product");
        /* 1 ms of additions at 1e9 a second is longer than the copies */
        expect_near(member(row, "share_of_roofline"), n / 1e9 / median, "share_of_roofline");
        expect_near(member(engine, "median"), 0.002, "median of the engine");
        expect_near(member(engine, "min"), 0.001, "min of the engine");
        expect_near(member(engine, "ratio"), median / 0.002, "ratio");
        cr_expect_eq(json_integer_value(json_object_get(engine, "variant")), 2);
    }
    json_decref(whole);
    r = cli_run("verify certs/add-other_runtime.so-takes_3_ms-gpu.json");
    cli_expect_success(&r, "verify");
    cli_free(&r);
}

/* What is missing is said, and is no verdict; a process that dies is one. */
Test(certify_device, throughput_that_is_not_measured)
{
    static const struct {
        const char *symbol, *times, *said;
        int code;
    } rows[] = {
        {"takes_3_ms", TIMES("true", "[0.004]"), "found assay-ops-times-1 of the simulator", 0},
        {"takes_3_ms", "no JSON", "the engine was not timed: ", 0},
        {"takes_no_large_size", TIMES("false", "[0.004]"),
         "- throughput: the description takes none of the large sizes", 0},
        {"crashes_at_large_sizes", TIMES("false", "[0.004]"), "a timed run of time.add.1", 1},
    };
    setenv("PATH", "/usr/bin:/bin", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/other_runtime.so:%s --program %s",
                               rows[i].symbol, device_engine(rows[i].times));
        cr_expect_eq(r.code, rows[i].code, "%s: exit code %d:\n%s%s", rows[i].symbol, r.code, r.out, r.err);
        cr_expect_not_null(strstr(r.out, rows[i].said), "%s: no '%s' in\n%s", rows[i].symbol, rows[i].said,
                           r.out);
        cr_expect(rows[i].code == 0 || certify_failed(&r, "crash"), "%s", r.out);
        cli_free(&r);
    }
    /* in the simulator nothing is timed */
    build("k.so", NULL, true);
    cli_result r = cli_run("certify --seeds 1 --so ./k.so:example_rmsnorm_fwd");
    cli_expect_success(&r, "simulator");
    cr_expect_not_null(strstr(r.out, "- throughput: the simulator's times say nothing about a device"), "%s",
                       r.out);
    cr_expect_null(strstr(r.out, "information, no verdict"), "%s", r.out);
    cli_free(&r);
}

Test(certify_device, refused_by_name)
{
    static const certify_change memory[CHANGES] = {
        {"k.memory = ASSAY_KERNEL_MEMORY_DEVICE;", "k.memory = 3;"}};
    cli_result r;
    build("k.so", NULL, true);
    r = cli_run("certify --so ./k.so:example_rmsnorm_fwd --cuda-runtime ./nowhere.so");
    cli_expect_refusal(&r, "runtime", (const char *const[]){"--cuda-runtime", "nowhere.so", NULL});
    cli_free(&r);
    build("k.so", memory, true);
    r = cli_run("certify --so ./k.so:example_rmsnorm_fwd");
    cli_expect_refusal(&r, "memory",
                       (const char *const[]){"expected host (1) or device (2) memory, found 3", NULL});
    cli_free(&r);
}
