/* Status codes and the error chain.
 *
 * Library code returns assay_status and never exits.  The first failure records a message (what was expected,
 * what was found, which tensor, key, file or rank); every ASSAY_TRY on the way up adds a hop, so that a
 * program can print the whole chain.  The chain is thread-local.  0 is success, everywhere. */
#ifndef ASSAY_CORE_STATUS_H
#define ASSAY_CORE_STATUS_H

#include <stdio.h>

#ifdef __cplusplus
#define ASSAY_BEGIN_DECLS extern "C" {
#define ASSAY_END_DECLS }
#else
#define ASSAY_BEGIN_DECLS
#define ASSAY_END_DECLS
#endif

ASSAY_BEGIN_DECLS

#define ASSAY_STATUS_MAP(X)                                                                                  \
    X(OK, "ok")                                                                                              \
    X(INVALID_ARGUMENT, "invalid argument")                                                                  \
    X(OUT_OF_MEMORY, "out of memory")                                                                        \
    X(IO, "input/output error")                                                                              \
    X(FORMAT, "malformed file")                                                                              \
    X(LIMIT, "limit exceeded")                                                                               \
    X(NOT_FOUND, "not found")                                                                                \
    X(MISMATCH, "mismatch")                                                                                  \
    X(UNSUPPORTED, "not supported")                                                                          \
    X(TIMEOUT, "time limit exceeded")                                                                        \
    X(CHILD, "a child process failed")                                                                       \
    X(CUDA, "CUDA error")                                                                                    \
    X(CUBLAS, "cuBLAS error")                                                                                \
    X(NCCL, "NCCL error")                                                                                    \
    X(INTERNAL, "internal error")                                                                            \
    X(STOPPED, "stopped by a signal")

typedef enum assay_status {
#define ASSAY_STATUS_ENUM(name, text) ASSAY_##name,
    ASSAY_STATUS_MAP(ASSAY_STATUS_ENUM)
#undef ASSAY_STATUS_ENUM
} assay_status;

/* "INVALID_ARGUMENT" and "invalid argument"; unknown codes give "UNKNOWN". */
const char *assay_status_name(assay_status st);
const char *assay_status_text(assay_status st);

/* Starts a new chain with a formatted message and returns `st`.  Use through ASSAY_FAIL / ASSAY_CHECK. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
assay_status
assay_fail(assay_status st, const char *file, int line, const char *func, const char *fmt, ...);
/* Adds a hop (file, line, function) to the current chain and returns `st`.  Use through ASSAY_TRY. */
assay_status assay_hop(assay_status st, const char *file, int line, const char *func);
/* Prefixes the current message with context ("model.safetensors: "), as in "CONTEXT: message". */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
assay_status
assay_context(assay_status st, const char *fmt, ...);

/* Message of the last failure on this thread ("" when none); valid until the next failure. */
const char *assay_error_message(void);
assay_status assay_error_status(void);
/* Prints "PROGRAM: error: MESSAGE (status)" and, when `with_hops` is not 0, one line for each hop. */
void assay_error_print(FILE *out, const char *program, int with_hops);
void assay_error_clear(void);

/* What is reported is no success, whatever the code: who reads the caller alone (a static analyzer) sees it here. */
static inline assay_status assay_not_ok(assay_status st)
{
    return st == ASSAY_OK ? ASSAY_INTERNAL : st;
}

#define ASSAY_ERROR(code, ...) assay_not_ok(assay_fail((code), __FILE__, __LINE__, __func__, __VA_ARGS__))
#define ASSAY_FAIL(code, ...) return ASSAY_ERROR(code, __VA_ARGS__)
#define ASSAY_CHECK(cond, code, ...)                                                                         \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ASSAY_FAIL(code, __VA_ARGS__);                                                                   \
    } while (0)
#define ASSAY_CHECK_GOTO(cond, code, st, label, ...)                                                         \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            (st) = ASSAY_ERROR(code, __VA_ARGS__);                                                           \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)
#define ASSAY_TRY(call)                                                                                      \
    do {                                                                                                     \
        const assay_status assay_try_st_ = (call);                                                           \
        if (assay_try_st_ != ASSAY_OK) {                                                                     \
            (void)assay_hop(assay_try_st_, __FILE__, __LINE__, __func__);                                    \
            return assay_try_st_;                                                                            \
        }                                                                                                    \
    } while (0)
#define ASSAY_TRY_GOTO(call, st, label)                                                                      \
    do {                                                                                                     \
        (st) = (call);                                                                                       \
        if ((st) != ASSAY_OK) {                                                                              \
            (void)assay_hop((st), __FILE__, __LINE__, __func__);                                             \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

ASSAY_END_DECLS

#endif
