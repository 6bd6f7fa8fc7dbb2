/* Values and runs: what an operation call of the engine works on, and the trace that it may write.
 *
 * A gpu_value is a device tensor together with its name and its place in the global tensor.  gpu_run holds
 * what every call needs: context, communicators, position (phase, step, microbatch, layer), the trace writer
 * (NULL: off) and the dry mode, in which the same code only adds up sizes.  With the trace off no name is
 * formatted, no byte is copied and no stream is synchronized.  docs/TRACE.md, docs/OPS.md section 0 and 9. */
#ifndef GPU_TRACE_H
#define GPU_TRACE_H

#include "core/files/trace.h"
#include "gpu/comm.h"

ASSAY_BEGIN_DECLS

/* One dimension of a piece: the global extent is `blocks` equal blocks, and the piece holds [start,
 * start+length) of each.  length counts one block. */
typedef struct gpu_dim {
    int64_t global, start, length;
    int blocks;
} gpu_dim;
gpu_dim gpu_dim_whole(int64_t n);
gpu_dim gpu_dim_piece(int64_t global, int64_t start, int64_t length);
/* Piece `rank` of `parts` of each of `blocks` equal blocks. */
gpu_dim gpu_dim_split(int64_t global, int blocks, int parts, int rank);

/* Names of permuted rows: ids[i] = token_global * E + expert, -1 for a row of another microbatch.  Host
 * memory, filled only when tracing. */
typedef struct gpu_rows {
    int64_t n;
    int64_t *ids;
    int64_t record; /* id of the record that holds them, -1 before it was written */
} gpu_rows;

typedef struct gpu_value {
    gpu_tensor t; /* as the operations see it */
    char name[ASSAY_NAME];
    assay_phase phase; /* of the producer */
    int64_t microbatch;
    assay_piece_kind kind;
    assay_group partial; /* kind PARTIAL: the group to sum over */
    int ndim;
    gpu_dim dim[ASSAY_MAX_DIMS];
    const assay_shard *shard; /* parameters: replaces dim when not NULL */
    const gpu_rows *rows;     /* kind ROWS */
} gpu_value;

typedef struct gpu_run {
    gpu_ctx ctx;
    gpu_comm comm;
    cudaStream_t comm_stream; /* collectives that may overlap with compute */
    cudaEvent_t compute_done, comm_done;
    assay_trace_writer *trace; /* NULL: off */
    assay_phase phase;
    int64_t step, microbatch;
    int64_t layer;           /* global number; -1 outside the decoder */
    bool dry;                /* count sizes, run nothing */
    size_t workspace_needed; /* largest call workspace seen in dry mode */
    char *host;              /* staging of the trace */
    size_t host_bytes;
} gpu_run;

/* Names `v` after its producer, instance `at` (without the layer's prefix) and slot; phase and microbatch are
 * those of the run. */
void gpu_value_name(const gpu_run *run, gpu_value *v, const char *at, const char *slot);
/* Names it with the text itself. */
void gpu_value_rename(const gpu_run *run, gpu_value *v, const char *name);
/* "<forward name>.grad" with the dimensions of the forward value, in the present phase. */
void gpu_value_grad(const gpu_run *run, gpu_value *v, const gpu_value *forward);
/* Number of elements of the piece that dim (or shard) describes. */
int64_t gpu_value_count(const gpu_value *v);
/* "decoder.layers.3.<at>" inside a layer, "<at>" outside. */
void gpu_instance(const gpu_run *run, const char *at, char out[ASSAY_NAME]);

/* One record of an operation call.  A NULL value in an operand is an absent optional tensor. */
typedef struct gpu_operand {
    const char *slot;
    gpu_value *value;
} gpu_operand;
typedef struct gpu_record {
    bool on;
    assay_trace_op op;
} gpu_record;

/* Before the call: writes the inputs as they are now. */
assay_status gpu_trace_begin(gpu_run *run, gpu_record *r, const char *op, const char *at,
                             const gpu_operand *inputs, int n_inputs);
/* After the call: writes the outputs and the operation with the declared arithmetic.  Takes `attrs` (may be
 * NULL), also on failure. */
assay_status gpu_trace_end(gpu_run *run, gpu_record *r, const gpu_operand *outputs, int n_outputs,
                           json_t *attrs);
/* The same for a collective over `group`. */
assay_status gpu_trace_end_collective(gpu_run *run, gpu_record *r, assay_group group,
                                      const gpu_operand *outputs, int n_outputs, json_t *attrs);
/* A tensor record of its own. */
assay_status gpu_trace_value(gpu_run *run, const gpu_value *v);
/* A tensor record of host data. */
assay_status gpu_trace_host(gpu_run *run, const char *name, assay_phase phase, assay_dtype dtype,
                            const assay_shard *shard, const void *data);
/* Row ids as an I64 record (kind LOCAL); later values of kind ROWS refer to it. */
assay_status gpu_trace_rows(gpu_run *run, gpu_rows *rows, const char *at);
/* Attributes only when somebody reads them: GPU_ATTRS(run, "{s:f}", "eps", eps). */
#define GPU_ATTRS(run, ...) ((run)->trace ? json_pack(__VA_ARGS__) : NULL)

/* Device to host and back, waiting for the stream first (or after). */
assay_status gpu_run_download(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where);
assay_status gpu_run_upload(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where);

ASSAY_END_DECLS

#endif
