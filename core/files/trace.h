/* Trace: what a run did, as files.  docs/TRACE.md is the format; anyone can write it.
 *
 *   DIR/index.json                          header: format, version, world_size, engine, tier, precision, ...
 *   DIR/rank-00000.jsonl                    one JSON object per line: "tensor" and "op" records, and a last
 *                                           {"type":"end"}
 *   DIR/rank-00000-step-00000.safetensors   data; the key of a tensor's data is its content hash (equal
 *                                           content stored once)
 *
 * A tensor record is one observation: these bytes were produced, or were about to be read, under this name.
 * An op record lists its input and output observations by slot.  The judge assembles global tensors from
 * segments alone. */
#ifndef ASSAY_CORE_TRACE_H
#define ASSAY_CORE_TRACE_H

#include "core/base/arith.h"
#include "core/base/hash.h"
#include "core/files/tensorfile.h"
#include "core/model/shard.h"

ASSAY_BEGIN_DECLS

#define ASSAY_PHASE_MAP(X)                                                                                   \
    X(FORWARD, "forward")                                                                                    \
    X(BACKWARD, "backward")                                                                                  \
    X(GRAD, "grad")                 /* local gradient of a parameter after all microbatches */               \
    X(REDUCED_GRAD, "reduced_grad") /* after tp / dp / embedding reductions, before clipping */              \
    X(OPTIMIZER, "optimizer")       /* norm, clip, states, updated parameters */                             \
    X(CHECKPOINT, "checkpoint")
typedef enum {
#define ASSAY_PHASE_ENUM(name, text) ASSAY_PHASE_##name,
    ASSAY_PHASE_MAP(ASSAY_PHASE_ENUM)
#undef ASSAY_PHASE_ENUM
        ASSAY_PHASE_COUNT
} assay_phase;

/* How the pieces of a tensor on different ranks combine. */
typedef enum {
    ASSAY_PIECE_SHARD, /* pieces tile the global tensor; ranks whose segments are equal are replicas and must
                          be equal */
    ASSAY_PIECE_PARTIAL, /* the global tensor is the sum over the group `partial_group` */
    ASSAY_PIECE_ROWS, /* rows of dimension 0 are named by the I64 tensor of record `rows_id` (permuted token
                         rows) */
    ASSAY_PIECE_LOCAL /* meaningful on this rank only (counts, workspaces): never assembled */
} assay_piece_kind;

enum { ASSAY_MAX_SLOTS = 24, ASSAY_SLOT_NAME = 24 };

typedef struct assay_trace_tensor {
    int64_t id;            /* unique in the rank, ascending */
    char name[ASSAY_NAME]; /* canonical; docs/OPS.md lists them */
    assay_phase phase;
    int64_t step;
    int64_t microbatch; /* global number; -1 outside microbatches */
    assay_dtype dtype;
    assay_piece_kind kind;
    assay_shard shard; /* local and global shape, segments.  kind ROWS/LOCAL: global_shape = local_shape */
    char partial_group[16]; /* kind PARTIAL: "tp", "ep", ... */
    int64_t rows_id;        /* kind ROWS, else -1 */
    bool has_scale;         /* an element's value is what is stored times an element of record scale_id */
    int64_t scale_id;       /* with has_scale: an earlier record of this rank */
    char hash[ASSAY_HASH_HEX];
    assay_hash_kind hash_kind; /* reader: that of the trace; the writer writes XXH3 */
    const void *data;          /* reader: mapped bytes, NULL in hash-only traces; any alignment */
    size_t bytes;
    int rank; /* reader */
} assay_trace_tensor;

/* dtype, local shape and bytes are equal, by the hashes; of two kinds of hashes one is made anew where there are bytes. */
bool assay_trace_same_content(const assay_trace_tensor *a, const assay_trace_tensor *b);
/* That can be said: hashes of one kind, or bytes on one side.  Elsewhere assay_trace_same_content is false. */
bool assay_trace_content_comparable(const assay_trace_tensor *a, const assay_trace_tensor *b);

typedef struct assay_trace_slot {
    char slot[ASSAY_SLOT_NAME];
    int64_t tensor; /* record id on the same rank */
} assay_trace_slot;

enum { ASSAY_TRACE_INTERNAL = 4, ASSAY_TRACE_PARTS = 6 };
typedef struct assay_trace_op {
    int64_t sequence;          /* order of execution on this rank */
    char op[48];               /* rmsnorm_fwd ... docs/OPS.md */
    char instance[ASSAY_NAME]; /* decoder.layers.0.input_layernorm */
    assay_phase phase;
    int64_t step, microbatch;
    int variant;
    char variant_name[24];
    assay_declaration arith; /* of each output */
    json_t
        *attrs; /* numbers and strings the op was called with; owned by the reader; borrowed by the writer */
    char group[16];    /* collectives: group name, else "" */
    int n_group_ranks; /* collectives: global ranks in rank order of the communicator */
    const int *group_ranks;
    bool
        recompute; /* run again from what was kept, for the backward pass; its first run has a record of its own */
    bool substituted
        [ASSAY_MAX_SLOTS]; /* outputs[i] is not the operation's own result: something put another in its place */
    char fused
        [48]; /* it ran as part `fused_part` of this operation, in one launch with the other parts; "": alone */
    int fused_part;
    int n_internal; /* outputs that the operation keeps to itself and nobody recorded */
    char internal[ASSAY_TRACE_INTERNAL][ASSAY_SLOT_NAME];
    int n_inputs, n_outputs;
    assay_trace_slot inputs[ASSAY_MAX_SLOTS], outputs[ASSAY_MAX_SLOTS];
    int rank; /* reader */
} assay_trace_op;

/* --- writer: one per rank ----------------------------------------------------------------------------------- */
typedef struct assay_trace_writer assay_trace_writer;

/* Creates DIR if needed (it must not already hold a trace), opens this rank's files.  `header` is written to
 * index.json by rank 0 (members added: format, version, world_size).  hash_only: no data files. */
assay_status assay_trace_writer_open(assay_trace_writer **out, const char *dir, int rank, int world,
                                     json_t *header, bool hash_only);
/* Records an observation; fills id, hash, bytes and rank of *t from data (host memory, local_shape x dtype
 * bytes, C order).  Steps ascend: a step begins with its first tensor and ends with assay_trace_end_step.
 * ASSAY_INVALID_ARGUMENT names what is wrong with the record; nothing of it is written then. */
assay_status assay_trace_write_tensor(assay_trace_writer *w, assay_trace_tensor *t, const void *data);
/* Records an op whose slots name records written before; sequence and rank are filled. */
assay_status assay_trace_write_op(assay_trace_writer *w, assay_trace_op *op);
/* Data of a step goes to its own file; call at the end of every step (frees the step's buffers). */
assay_status assay_trace_end_step(assay_trace_writer *w);
/* Ends an open step and writes the end marker.  A trace without it on every rank is refused by the reader. */
assay_status assay_trace_writer_close(assay_trace_writer *w);
void assay_trace_writer_destroy(assay_trace_writer *w);

/* --- reader ------------------------------------------------------------------------------------------------- */
typedef struct assay_trace assay_trace;

/* Reads the whole index of all ranks; verifies end markers, shapes, and (verify_hashes) content hashes.
 * Foreign traces may lack ops and hashes (computed here then).  Messages name file, line and record. */
assay_status assay_trace_open(assay_trace **out, const char *dir, bool verify_hashes);
void assay_trace_close(assay_trace *t);
const json_t *assay_trace_header(const assay_trace *t);
/* A text of the header; "-" when it has none of this name. */
const char *assay_trace_header_text(const assay_trace *t, const char *key);
int assay_trace_world(const assay_trace *t);
/* Written by neither of our engines ("ref", "gpu", "sim"): another framework's recipe, which no plan knows. */
bool assay_trace_is_foreign(const assay_trace *t);
/* Why this rank's run ended before it was done; its finished steps are there.  NULL: it was done. */
const char *assay_trace_aborted(const assay_trace *t, int rank);
/* What the recorder of a rank says of its own trace: an array of {"kind", "text"}, or NULL. */
const json_t *assay_trace_notes(const assay_trace *t, int rank);
/* Ops of a rank in order of execution. */
int64_t assay_trace_n_ops(const assay_trace *t, int rank);
const assay_trace_op *assay_trace_op_at(const assay_trace *t, int rank, int64_t index);
int64_t assay_trace_n_tensors(const assay_trace *t, int rank);
const assay_trace_tensor *assay_trace_tensor_at(const assay_trace *t, int rank, int64_t index);
const assay_trace_tensor *assay_trace_tensor_by_id(const assay_trace *t, int rank, int64_t id);
/* Input or output record of an op by slot; NULL when the op has no such slot. */
const assay_trace_tensor *assay_trace_op_tensor(const assay_trace *t, const assay_trace_op *op,
                                                const char *slot);

const char *assay_phase_name(assay_phase phase);
/* "shard", "partial", "rows", "local". */
const char *assay_piece_kind_name(assay_piece_kind kind);
assay_status assay_phase_from_name(const char *name, assay_phase *out);

ASSAY_END_DECLS

#endif
