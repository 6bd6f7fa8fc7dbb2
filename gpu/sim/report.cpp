/* Settings, reports, and the thread's last error. */
#include "sim.hpp"

#include <atomic>
#include <fcntl.h>
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace sim
{

/* --- settings ----------------------------------------------------------------------------------------------- */

static uint64_t env_number(const char *name, uint64_t otherwise, uint64_t lowest, uint64_t highest)
{
    const char *text = getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char *end = nullptr;
    const unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0' || *text == '-' || v < lowest || v > highest) {
        fprintf(stderr, "assay-sim: fatal: %s=%s: expected a whole number from %llu to %llu\n", name, text,
                static_cast<unsigned long long>(lowest), static_cast<unsigned long long>(highest));
        exit(2);
    }
    return v;
}

/* The best that the CPU can do, or what ASSAY_SIM_TARGET says of it. */
static void choose_target(settings &s)
{
    const char *text = getenv("ASSAY_SIM_TARGET");
    const bool asked = text != nullptr && *text != '\0', least = asked && strcmp(text, "baseline") == 0;
    bool can = false;
#if defined(__x86_64__)
    can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    if (asked && !least && (strcmp(text, "avx2") != 0 || !can || ASSAY_SIM_TARGETS < 2)) {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_TARGET=%s: expected %s\n", text,
                ASSAY_SIM_TARGETS < 2 ? "baseline: this program was built for it alone"
                : !can                ? "baseline: the CPU has no AVX2 and FMA"
                                      : "baseline or avx2");
        exit(2);
    }
    s.fma = can && !least;
    s.target = s.fma && ASSAY_SIM_TARGETS > 1 ? 1 : 0;
}

/* To the file that ASSAY_SIM_FINDINGS names, one line each, of all processes. */
static void append_finding(char *text)
{
    static const char *const path = getenv("ASSAY_SIM_FINDINGS");
    const size_t n = strlen(text);
    const int file =
        path == nullptr || *path == '\0' ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        return;
    }
    text[n] = '\n';
    const ssize_t ignored = write(file, text, n + 1);
    (void)ignored;
    text[n] = '\0';
    close(file);
}

static settings from_environment()
{
    settings s = {};
    const char *order = getenv("ASSAY_SIM_ORDER");
    if (order == nullptr || *order == '\0' || strcmp(order, "forward") == 0) {
        s.order = ASSAY_SIM_ORDER_FORWARD;
    } else if (strcmp(order, "reverse") == 0) {
        s.order = ASSAY_SIM_ORDER_REVERSE;
    } else if (strncmp(order, "random:", 7) == 0 && order[7] >= '0' && order[7] <= '9') {
        s.order = ASSAY_SIM_ORDER_RANDOM;
        s.order_seed = strtoull(order + 7, nullptr, 10);
    } else {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_ORDER=%s: expected forward, reverse or random:<seed>\n",
                order);
        exit(2);
    }
    const uint64_t stack_kb = SIM_ASAN || SIM_TSAN || ASSAY_SIM_RACES ? 256 : 64;
    s.threads = static_cast<int>(env_number("ASSAY_SIM_THREADS", 1, 1, 256));
    s.stream_seed = env_number("ASSAY_SIM_STREAM_SEED", 0, 0, UINT64_MAX);
    s.eager = env_number("ASSAY_SIM_EAGER", 0, 0, 1) != 0;
    s.strict = env_number("ASSAY_SIM_STRICT", 0, 0, 1) != 0;
    s.callers = env_number("ASSAY_SIM_CALLERS", 1, 0, 1) != 0;
    s.device_private = env_number("ASSAY_SIM_DEVICE_PRIVATE", 0, 0, 1) != 0;
    s.leaks = env_number("ASSAY_SIM_LEAKS", 0, 0, 1) != 0;
    s.spin_s = static_cast<double>(env_number("ASSAY_SIM_SPIN_S", 60, 0, 1u << 20));
    s.devices = static_cast<int>(env_number("ASSAY_SIM_DEVICES", 8, 1, 64));
    s.memory_bytes = static_cast<size_t>(env_number("ASSAY_SIM_MEMORY_MB", 81920, 1, 1u << 24)) << 20;
    s.stack_bytes = static_cast<size_t>(env_number("ASSAY_SIM_STACK_KB", stack_kb, 16, 1u << 16)) << 10;
    s.nccl_timeout_s = static_cast<double>(env_number("ASSAY_SIM_NCCL_TIMEOUT_S", 60, 1, 1u << 20));
    const char *sums = getenv("ASSAY_SIM_NCCL_ORDER");
    s.nccl_rings = sums != nullptr && strcmp(sums, "rings") == 0;
    if (sums != nullptr && *sums != '\0' && !s.nccl_rings && strcmp(sums, "ranks") != 0) {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_NCCL_ORDER=%s: expected ranks or rings\n", sums);
        exit(2);
    }
    s.tf32 = env_number("ASSAY_SIM_TF32", 0, 0, 1) != 0;
    s.matrix_truncates = env_number("ASSAY_SIM_MATRIX_TRUNCATES", 0, 0, 1) != 0;
    s.matrix_terms = static_cast<int>(env_number("ASSAY_SIM_MATRIX_TERMS", 16, 1, 16));
    s.matrix_guard_bits = static_cast<int>(env_number("ASSAY_SIM_MATRIX_GUARD_BITS", 2, 0, 24));
    const char *by = getenv("ASSAY_SIM_MATRIX_BY");
    s.matrix_by_factors = by != nullptr && strcmp(by, "factors") == 0;
    if (by != nullptr && *by != '\0' && !s.matrix_by_factors && strcmp(by, "value") != 0) {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_MATRIX_BY=%s: expected value or factors\n", by);
        exit(2);
    }
    if (16 % s.matrix_terms != 0) {
        fprintf(stderr, "assay-sim: fatal: ASSAY_SIM_MATRIX_TERMS=%d: expected 1, 2, 4, 8 or 16\n",
                s.matrix_terms);
        exit(2);
    }
    choose_target(s);
    char begin[128];
    snprintf(begin, sizeof begin, "assay-sim: begin: process %d, races %s", static_cast<int>(getpid()),
             ASSAY_SIM_RACES ? "checked" : "not checked");
    append_finding(begin);
    return s;
}

settings &config()
{
    static settings s = from_environment();
    return s;
}

uint64_t mix(uint64_t a, uint64_t b)
{
    random_stream r = {a ^ (b * 0xd6e8feb86659fd93ull + 0x9e3779b97f4a7c15ull)};
    return r.next();
}

double now_seconds()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/* --- reports and errors ------------------------------------------------------------------------------------- */

static std::mutex report_lock;
static char last_report[1024];
static std::atomic<int64_t> report_count{0};
static std::atomic<bool> report_print{true};

static void report_line(const char *kind, const char *format, va_list args)
{
    char text[1024];
    const int head = snprintf(text, sizeof text, "assay-sim: %s: ", kind);
    vsnprintf(text + head, sizeof text - static_cast<size_t>(head) - 1, format, args);
    std::lock_guard<std::mutex> hold(report_lock);
    memcpy(last_report, text, sizeof text);
    ++report_count;
    if (report_print) {
        const size_t n = strlen(text);
        text[n] = '\n';
        const ssize_t ignored =
            write(STDERR_FILENO, text, n + 1); /* one write: lines of several ranks do not mix */
        (void)ignored;
        text[n] = '\0';
    }
    append_finding(text);
}

void report_clear()
{
    std::lock_guard<std::mutex> hold(report_lock);
    last_report[0] = '\0';
}

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int thread_device = 0;

cudaError_t record_error(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last_error = error;
    }
    return error;
}

cudaError_t refuse(cudaError_t error, const char *kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report_line(kind, format, args);
    va_end(args);
    return record_error(error);
}

int current_device()
{
    return thread_device;
}

cudaError_t set_current_device(int device)
{
    if (device < 0 || device >= config().devices) {
        return cudaErrorInvalidDevice;
    }
    thread_device = device;
    return cudaSuccess;
}

} /* namespace sim */

using namespace sim;

extern "C" {

/* --- the simulator's own interface -------------------------------------------------------------------------- */

void assay_sim_report(const char *kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report_line(kind, format, args);
    va_end(args);
}

void assay_sim_last_report(char *text, size_t bytes)
{
    std::lock_guard<std::mutex> hold(report_lock);
    snprintf(text, bytes, "%s", last_report);
}

int64_t assay_sim_reports(void)
{
    return report_count;
}

void assay_sim_print_reports(int on)
{
    report_print = on != 0;
}

void assay_sim_set_order(assay_sim_order order, uint64_t seed)
{
    config().order = order;
    config().order_seed = seed;
}

void assay_sim_set_threads(int threads)
{
    config().threads = threads < 1 ? 1 : threads;
}

void assay_sim_set_strict(int on)
{
    config().strict = on != 0;
}

int assay_sim_target(void)
{
    return config().target;
}

void assay_sim_set_spin_limit(double seconds)
{
    config().spin_s = seconds;
}

void assay_sim_set_stream_seed(uint64_t seed)
{
    config().stream_seed = seed;
}

int assay_sim_compare_orders(void (*body)(void *arg), void *arg, const void *out, size_t bytes,
                             int random_orders)
{
    const assay_sim_order order = config().order;
    const uint64_t seed = config().order_seed;
    unsigned char *first = static_cast<unsigned char *>(malloc(2 * bytes + 1));
    unsigned char *now = first + bytes;
    int differ = 0;
    if (first == nullptr) {
        return -1;
    }
    for (int run = 0; run < 2 + random_orders && differ >= 0; ++run) {
        assay_sim_set_order(run == 0   ? ASSAY_SIM_ORDER_FORWARD
                            : run == 1 ? ASSAY_SIM_ORDER_REVERSE
                                       : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<uint64_t>(run));
        if (cudaDeviceSynchronize() != cudaSuccess ||
            cudaMemset(const_cast<void *>(out), 0xff, bytes) != cudaSuccess) {
            differ = -1;
            break;
        }
        body(arg);
        if (cudaDeviceSynchronize() != cudaSuccess ||
            cudaMemcpy(run == 0 ? first : now, out, bytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
            differ = -1;
        } else if (run > 0 && memcmp(first, now, bytes) != 0) {
            ++differ;
        }
    }
    free(first);
    assay_sim_set_order(order, seed);
    return differ;
}

/* --- errors ------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky_error() != cudaSuccess ? sticky_error() : last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (static_cast<int>(error)) {
#define NAME_OF(name, value, text)                                                                           \
    case value:                                                                                              \
        return #name;
        ASSAY_SIM_CUDA_ERRORS(NAME_OF)
#undef NAME_OF
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (static_cast<int>(error)) {
#define TEXT_OF(name, value, text)                                                                           \
    case value:                                                                                              \
        return text;
        ASSAY_SIM_CUDA_ERRORS(TEXT_OF)
#undef TEXT_OF
    default:
        return "unrecognized error code";
    }
}

} /* extern "C" */
