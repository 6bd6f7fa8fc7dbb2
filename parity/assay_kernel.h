/* The C interface of a kernel that `assay certify` tries: one operation in one shared library.
 *
 * The table of operations is the interface.  docs/OPS.md says what each operation computes, with its slots (tensors) and attributes;
 * assay_kernel_ops.h has their indices.  Forward and backward are operations of their own (rmsnorm_fwd, rmsnorm_bwd).
 *
 * A library exports a function that returns a description, and the description points to what runs:
 *
 *     const assay_kernel *my_rmsnorm(uint32_t abi) { return abi == ASSAY_KERNEL_ABI ? &description : NULL; }
 *     assay certify --so libmine.so:my_rmsnorm
 *
 * Versions.  Every struct begins with its size in bytes as the writer's compiler saw it.  A later version only adds members at the
 * end; who reads looks at the size first, and members beyond it are absent (0).  ASSAY_KERNEL_ABI changes only when that is
 * not enough.  This header needs nothing but a C11 or C++11 compiler.
 *
 * What run() may rely on: the call fits the operation's row (ranks of shapes, dtypes, attributes in range), or is one of the
 * illegal calls named below; indices lie in the range that the row says; tensors do not overlap but for what `in_place` names and
 * updated slots, which are one tensor that is read and written.
 *
 * What run() has to do: write every element of every output that is there and nothing else; leave inputs as they are; write not
 * outside workspace_bytes of workspace; not allocate device memory; on device memory, enqueue on `stream` and not wait, where
 * `synchronize` is there (without it run() waits itself, and is done when it returns).  It returns
 * ASSAY_KERNEL_OK, or an error code and has then written nothing:
 *   ASSAY_KERNEL_INVALID      an absent slot or NULL data of a slot that is not empty, shapes that contradict each other, a struct
 *                             that is too small
 *   ASSAY_KERNEL_UNSUPPORTED  a dtype, shape, stride or alignment that the description leaves out
 *   ASSAY_KERNEL_WORKSPACE    fewer bytes of workspace than workspace() asks for
 * Extents of 0 are legal: sums over nothing are 0, outputs without elements need no data.
 *
 * Collectives (all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send).  run() is called once for every rank, each time in a thread
 * of its own, with that rank's tensors and with `comm`, through which the ranks of a call reach each other: by messages, or by
 * memory, because every rank may read and write the workspace of every other.  Tensors have one dimension; `counts` is in elements.
 * A library of send has recv, too: run() is called with operation "send" on one rank and with "recv" on its peer, and the two are all
 * that take part.  The same memory for both tensors (`in_place` "recv=send") is what NCCL calls so: send's place in
 * all_gather is the rank's own piece of recv, recv's place in reduce_scatter the rank's own piece of send.
 * On device memory the ranks share one device and each has a stream of its own, `stream` (in some calls all have the default stream).  `comm`
 * takes device addresses and works in the order of that stream, as NCCL does: send() enqueues the copy of `data`, which may change behind it in the
 * stream's order; recv() enqueues the copy into `data`; what any rank has enqueued on its stream before a barrier is done before what the
 * others enqueue on theirs behind it.  None of them waits for the device.
 * A rank waits for others in the functions of `comm` alone: one that looks at memory in a loop until it changes never ends. */
#ifndef ASSAY_KERNEL_H
#define ASSAY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_KERNEL_ABI 1u
#define ASSAY_KERNEL_MAX_DIMS 8

/* Element types (safetensors names); a set of them is an or of ASSAY_KERNEL_SET(t). */
enum { ASSAY_KERNEL_F32 = 1, ASSAY_KERNEL_BF16 = 2, ASSAY_KERNEL_F64 = 3, ASSAY_KERNEL_I64 = 4 };
#define ASSAY_KERNEL_SET(dtype) (1u << (dtype))

/* What run() returns. */
enum {
    ASSAY_KERNEL_OK = 0,
    ASSAY_KERNEL_INVALID = 1,
    ASSAY_KERNEL_UNSUPPORTED = 2,
    ASSAY_KERNEL_WORKSPACE = 3,
    ASSAY_KERNEL_DEVICE = 4,  /* a launch or the device failed */
    ASSAY_KERNEL_INTERNAL = 5 /* anything else */
};

/* --- a call --------------------------------------------------------------------------------------------------- */
typedef struct assay_kernel_tensor {
    uint32_t size;
    int32_t dtype;
    int32_t ndim;
    int32_t reserved;
    void *data;                            /* element 0; may be NULL when there is no element */
    int64_t shape[ASSAY_KERNEL_MAX_DIMS];  /* as the operation's row writes it: "T,H" has two extents */
    int64_t stride[ASSAY_KERNEL_MAX_DIMS]; /* in elements */
    const int64_t *host;                   /* I64 on a device: the same integers in host memory, or NULL */
} assay_kernel_tensor;

/* An attribute; absent ones have the value that the row says. */
typedef struct assay_kernel_attr {
    uint32_t size;
    int32_t integer_type; /* 1: `integer` counts (integers, booleans, index of a word, dtype), 0: `number` */
    int64_t integer;
    double number;
    const char *word;    /* words alone: "softmax" */
    const int64_t *list; /* lists alone: one number for each rank; NULL: absent, all equal */
    int64_t n_list;
} assay_kernel_attr;

/* The ranks of a collective call as one of them sees them.  What returns a number returns 0, or another where the call cannot
 * go on (a message of another size, ranks that wait for each other in a circle): run() then returns ASSAY_KERNEL_INTERNAL. */
typedef struct assay_kernel_comm {
    uint32_t size;
    int32_t rank, n_ranks;
    int32_t reserved;
    void *context; /* not the kernel's */
    /* Messages between two ranks arrive in their order.  send() has copied `data` when it returns and does not wait for the receiver. */
    int32_t (*send)(const struct assay_kernel_comm *comm, int32_t to, const void *data, size_t bytes);
    int32_t (*recv)(const struct assay_kernel_comm *comm, int32_t from, void *data, size_t bytes);
    /* Waits until every rank that takes part is here; what was written before is seen behind it. */
    int32_t (*barrier)(const struct assay_kernel_comm *comm);
    /* By rank: everybody's workspace, of as many bytes as its rank asked for; NULL: takes no part. */
    void *const *workspace;
} assay_kernel_comm;

typedef struct assay_kernel_call {
    uint32_t size;
    int32_t act; /* dtype of activations and parameters */
    const char *operation;
    int32_t n_slots, n_attrs;
    const assay_kernel_tensor *const
        *slot; /* by index (assay_kernel_ops.h); NULL: an optional slot that is absent */
    const assay_kernel_attr *const *attr; /* by index; never NULL */
    void *workspace;
    size_t workspace_bytes;
    void *stream; /* cudaStream_t; NULL: the default stream, or host memory */
    /* By index as `slot`; NULL as a whole unless the description has ASSAY_KERNEL_SHADOW.  For each output of a floating-point dtype an
     * F32 tensor that takes the value before it is rounded to the output's dtype. */
    const assay_kernel_tensor *const *shadow;
    const assay_kernel_comm *comm; /* collectives; else NULL */
} assay_kernel_call;

/* --- a description ------------------------------------------------------------------------------------------- */
/* Order of a sum, as docs/TOLERANCES.md bounds it. */
enum {
    ASSAY_KERNEL_ORDER_NONE = 0, /* no sum */
    ASSAY_KERNEL_ORDER_SEQUENTIAL =
        1,                       /* index 0, 1, 2, ... in one chain (`split`: in so many, added at the end) */
    ASSAY_KERNEL_ORDER_TREE = 2, /* `lanes` chains, joined by a binary tree */
    ASSAY_KERNEL_ORDER_TENSOR_CORE = 3, /* steps of `k_step` products, aligned to the largest, truncated */
    ASSAY_KERNEL_ORDER_UNKNOWN = 4      /* any order */
};
/* Places where an intermediate result is stored in the dtype of the operation's first output (docs/TRACE.md, `rounding`). */
enum {
    ASSAY_KERNEL_ROUND_BEFORE_GAMMA = 1,
    ASSAY_KERNEL_ROUND_BEFORE_UP = 2,
    ASSAY_KERNEL_ROUND_PRODUCTS = 4,
    ASSAY_KERNEL_ROUND_SCORES = 8,
    ASSAY_KERNEL_ROUND_ANGLES = 16,
    ASSAY_KERNEL_ROUND_HEADS = 32,
    ASSAY_KERNEL_ROUND_PARTIAL_SUMS = 64,
    ASSAY_KERNEL_ROUND_TIES = 128,
    ASSAY_KERNEL_ROUND_EVERY = 256,
    ASSAY_KERNEL_ROUND_STATISTICS = 512,
    ASSAY_KERNEL_ROUND_RESIDUAL =
        1024, /* add_rmsnorm_fwd: the norm reads the residual as it is stored; rmsnorm_bwd_add: dx is added so */
    ASSAY_KERNEL_ROUND_NORM =
        2048, /* qkv_norm_rope_fwd: rope reads the norm as it is stored; _bwd: the norm reads the gradient so */
    ASSAY_KERNEL_ROUND_PROBS =
        4096 /* attention_fwd, _bwd: P, and dS, enter their products in the dtype of activations (FlashAttention) */
};

/* Declared arithmetic of an output: it selects the bound by which the output is judged. */
typedef struct assay_kernel_arith {
    uint32_t size;
    int32_t accumulate; /* ASSAY_KERNEL_F32 or ASSAY_KERNEL_F64 */
    int32_t order;
    int32_t lanes;      /* TREE; else 0 or 1 */
    int32_t split;      /* 0 or 1: none */
    int32_t k_step;     /* TENSOR_CORE */
    int32_t guard_bits; /* TENSOR_CORE */
    int32_t fma;        /* products enter a sum unrounded */
    int32_t atomics;    /* the order may change from run to run */
    int32_t
        math_ulp; /* largest error of exp, log, rsqrt, sin, cos, sigmoid, in units of the accumulate type's last place */
    int32_t tile;      /* online softmax: keys between two rescalings; 0: two passes */
    uint32_t rounding; /* ASSAY_KERNEL_ROUND_*, or-ed */
} assay_kernel_arith;

typedef struct assay_kernel_output {
    uint32_t size;
    int32_t slot; /* index */
    assay_kernel_arith arith;
} assay_kernel_output;

enum { ASSAY_KERNEL_MEMORY_HOST = 1, ASSAY_KERNEL_MEMORY_DEVICE = 2 };
enum {
    ASSAY_KERNEL_DETERMINISTIC = 1,   /* equal calls give equal bits, however many threads there are */
    ASSAY_KERNEL_BATCH_INVARIANT = 2, /* a row's bits do not depend on how many rows a call has */
    ASSAY_KERNEL_ROW_STRIDES =
        4, /* the first dimension of a tensor of two or more may have any stride, each tensor its own; else they are dense, as those of one are */
    ASSAY_KERNEL_SHADOW = 8,    /* writes `shadow` */
    ASSAY_KERNEL_ATOMICS = 16,  /* adds to memory with atomics in an order that nobody fixed */
    ASSAY_KERNEL_FAST_MATH = 32 /* compiled with a fast-math mode or calls approximate functions */
};

typedef struct assay_kernel {
    uint32_t size;
    uint32_t abi;     /* ASSAY_KERNEL_ABI */
    const char *name; /* of the kernel, for people and certificates */
    const char *version;
    const char *operation; /* a row of docs/OPS.md but recv, which is in the library of send */
    const char *built;     /* compiler and flags */
    int32_t memory;        /* where tensors and workspace lie */
    uint32_t dtypes;       /* set of the dtypes of activations that it takes; collectives: of what travels */
    uint32_t flags;
    int32_t
        alignment; /* bytes to which data and workspace must be aligned, a power of two up to 256; 0: the element's size */
    const char *
        shapes; /* what it takes beyond the operation's row, in the row's symbols: "H>=1 H<=4096 H%8=0"; NULL: all */
    const char *in_place; /* outputs that may be the memory of an input: "y=x dx=dy"; NULL: none */
    int32_t n_outputs;
    const assay_kernel_output *outputs; /* every output of the operation that is no integer, once */
    /* Bytes of workspace, from shapes and attributes alone (data may be NULL).  NULL: none. */
    size_t (*workspace)(const assay_kernel_call *call);
    int32_t (*run)(const assay_kernel_call *call);
    /* Where lanes or the order of a sum follow from shapes: changes what `outputs` says of an output for this call (order, lanes, split and
     * tile; the other members stay as declared, or the kernel is refused).  NULL: nothing. */
    void (*adapt)(const assay_kernel_call *call, int32_t slot, assay_kernel_arith *arith);
    /* Waits for all work on the stream; 0 when it succeeded.  NULL: run() is done when it returns. */
    int32_t (*synchronize)(void *stream);
} assay_kernel;

/* The type of the exported function; NULL: the library does not know this version of the interface. */
typedef const assay_kernel *assay_kernel_entry(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif
