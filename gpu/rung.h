/* A rung: one variant of an operation, as a row at the end of the .cu file of its kernels: what runs, what it needs, which calls it
 * takes, and the arithmetic of each output as data.  k0 is plain and readable, the others say what they buy. */
#ifndef GPU_RUNG_H
#define GPU_RUNG_H

#include "gpu/operands.h"

ASSAY_BEGIN_DECLS

/* One launch: n calls of one operation (n > 1: adamw, sumsq, as one list). */
typedef struct gpu_work {
    gpu_ctx *ctx;
    const gpu_operands *o; /* n of them */
    int64_t n;
    int variant; /* index of the rung */
    cudaStream_t stream;
} gpu_work;

/* The arithmetic of some outputs: constant, but for what `adapt` sets from device, shapes and attributes. */
typedef struct gpu_rung_arith {
    const char *outputs; /* slots: "dq dk dv" */
    assay_arith arith;
    void (*adapt)(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o); /* NULL: nothing */
    const char *how;                                                          /* what adapt does; "" */
} gpu_rung_arith;

/* Least capability of any rung: the engine is compiled for it and for later ones (gpu/device.cuh reduces integers over a warp in one
 * instruction of sm_80, and BF16 is a type of the machine there).  gpu_ctx_init refuses a lesser device. */
enum { GPU_SM_80 = 80 };
/* Of rungs whose code is compiled for 90a (*_sm90.cu); they run on 9.0 alone, as `accepts` says. */
enum { GPU_SM_90 = 90 };

enum { GPU_RUNG_ARITHS = 5, GPU_MOST_RUNGS = 10 };
typedef struct gpu_rung {
    const char *buys; /* one line */
    /* Checks every operand, then enqueues on w->stream. */
    assay_status (*run)(const gpu_work *w);
    /* Bytes of the call arena from shapes alone (data may be NULL).  NULL: none. */
    size_t (*workspace)(const gpu_ctx *ctx, const gpu_operands *o);
    /* Whether it can do this call; else the rung below does.  NULL: every call (k0 has to).  A call that `run` would refuse is
     * taken, so that `run` says why. */
    bool (*accepts)(const gpu_ctx *ctx, const gpu_operands *o);
    /* Whether it is chosen when no variant was asked for.  NULL: yes. */
    bool (*pays)(const gpu_operands *o);
    int least_capability;                  /* 10 * major + minor */
    gpu_rung_arith arith[GPU_RUNG_ARITHS]; /* every output stands in one; ended by outputs NULL */
    /* Attention: the dtype that probabilities (and gradients of scores) are rounded to before a product.  NULL: not at all. */
    const char *p_dtype;
    /* A library chooses the algorithm by shapes and alignment: bits of a row may change with how many others there are, and with the
     * alignment of its address.  Else they do not: a row has the same bits alone and among others (batch invariance, `assay certify`), as far as its operands are finite: attention k3
     * adds tiles that hold an infinity or a NaN pair by pair where the block does not see all of them. */
    bool by_library;
    /* A slot whose integers it reads in host memory; without them there the rung below runs, and who calls through gpu/call.h waits
     * for them.  NULL: none. */
    const char *reads_host;
    /* The dtype of activations that it takes, "BF16"; NULL: each.  What `accepts` says, in a word for who demands that it ran. */
    const char *act;
    int most_capability; /* likewise, of the device; 0: every later one */
} gpu_rung;

/* The ladder of an operation: its rungs from k0 on, ended by GPU_LADDER_END.  The simulator's program holds device code for two
 * CPUs (cmake/AssayTargets.cmake); GPU_TARGET_AVX2 is set where the second is compiled. */
#if defined(GPU_TARGET_AVX2)
#define GPU_LADDER(op) const gpu_rung gpu_##op##_ladder_avx2[]
#else
#define GPU_LADDER(op) const gpu_rung gpu_##op##_ladder[]
#endif
#define GPU_LADDER_END                                                                                       \
    {                                                                                                        \
        NULL, NULL, NULL, NULL, NULL, 0, {}, NULL, false, NULL, NULL, 0                                      \
    }

/* assay_arith as data.  fma: products enter a sum unrounded.  ulp: of exp, log, rsqrt, sigmoid. */
#define GPU_ARITH(accumulate, order, lanes, fma, ulp, tile)                                                  \
    {                                                                                                        \
        ASSAY_##accumulate, ASSAY_ORDER_##order, lanes, 1, 0, 0, fma, false, ulp, tile, 0                    \
    }
#define GPU_ELEMENTWISE(ulp) GPU_ARITH(F32, NONE, 1, false, ulp, 0)
#define GPU_SEQUENTIAL(ulp) GPU_ARITH(F32, SEQUENTIAL, 1, true, ulp, 0)
/* mma.sync of bf16: gpu/mma.cuh. */
#define GPU_TENSOR_CORE(ulp, tile)                                                                           \
    {                                                                                                        \
        ASSAY_F32, ASSAY_ORDER_TENSOR_CORE, 1, 1, 16, 2, true, false, ulp, tile, 0                           \
    }
/* `split` contiguous chains at most, added in order. */
#define GPU_CHAINS(split, ulp)                                                                               \
    {                                                                                                        \
        ASSAY_F32, ASSAY_ORDER_SEQUENTIAL, 1, split, 0, 0, true, false, ulp, 0, 0                            \
    }
#define GPU_TREE(lanes, ulp) GPU_ARITH(F32, TREE, lanes, true, ulp, 0)
/* The arithmetic of outputs that no shape changes, and of others. */
#define GPU_DECLARES(outputs, arith)                                                                         \
    {                                                                                                        \
        outputs, arith, NULL, ""                                                                             \
    }
#define GPU_ADAPTS(outputs, arith, adapt, how)                                                               \
    {                                                                                                        \
        outputs, arith, adapt, how                                                                           \
    }
/* A rung that takes every call and needs nothing; any rung.  ...: what it declares. */
#define GPU_RUNG(buys, run, ...) GPU_RUNG_IF(buys, run, NULL, NULL, NULL, GPU_SM_80, __VA_ARGS__)
#define GPU_RUNG_IF(buys, run, workspace, accepts, pays, least, ...)                                         \
    {                                                                                                        \
        buys, run, workspace, accepts, pays, least, {__VA_ARGS__}, NULL, false, NULL, NULL, 0                \
    }
/* Of BF16 alone, on devices up to `most`. */
#define GPU_RUNG_BF16(p_dtype, most, buys, run, workspace, accepts, pays, least, ...)                        \
    {                                                                                                        \
        buys, run, workspace, accepts, pays, least, {__VA_ARGS__}, p_dtype, false, NULL, "BF16", most        \
    }
#define GPU_RUNG_BY_LIBRARY(buys, run, workspace, accepts, pays, least, ...)                                 \
    GPU_RUNG_READING_HOST(NULL, buys, run, workspace, accepts, pays, least, __VA_ARGS__)
#define GPU_RUNG_READING_HOST(slot, buys, run, workspace, accepts, pays, least, ...)                         \
    {                                                                                                        \
        buys, run, workspace, accepts, pays, least, {__VA_ARGS__}, NULL, true, slot, NULL, 0                 \
    }

ASSAY_END_DECLS

#endif
