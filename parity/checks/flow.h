/* What the files of the flow check share: flow.c (edges), flow_pieces.c (who wrote which elements), flow_tell.c (a wrong edge
 * in words). */
#ifndef PARITY_CHECKS_FLOW_H
#define PARITY_CHECKS_FLOW_H

#include "parity/judge/judge.h"

/* Records are known by number.  Those of one tensor, or of one place of it, are a chain: its head is in a map, and `before` of each
 * is the one before it. */
typedef struct flow {
    const assay_trace *trace;
    const assay_model_spec *spec;
    int rank;
    parity_map *last;    /* name -> last write of a state or a gradient on its way */
    parity_map *exact;   /* name, step, microbatch -> last write of anything else */
    parity_map *content; /* hash -> the first record with that content that was written */
    parity_map *seen;    /* name -> last observation of elements of a state that nobody had written */
    parity_map *taken;   /* name -> last time that a step's gradient was taken on */
    int64_t n, capacity;
    const assay_trace_tensor **records; /* what the numbers mean */
    const assay_trace_op **ops; /* that wrote it; of an observation NULL, of a gradient taken on its reader */
    int64_t *before;            /* -1: none */
    parity_scales scales;
    parity_result base;
    parity_table *table;
} flow;

bool flow_ends_with(const char *text, const char *end);
/* Whether the tensor lives longer than a microbatch. */
bool flow_is_state(const flow *f, const char *name);

/* --- flow_pieces.c ------------------------------------------------------------------------------------------- */
assay_status flow_register_output(flow *f, const assay_trace_op *op, const assay_trace_tensor *record);
/* Head of the chain of what was written of the tensor of that name; -1: nothing. */
int64_t flow_head(const flow *f, const assay_trace_tensor *read);
/* A new head of the chain that `heads` has for the tensor's name. */
assay_status flow_chain(flow *f, parity_map *heads, const assay_trace_tensor *record,
                        const assay_trace_op *op);
/* Newest of the chain with an element of the piece; -1: none has. */
int64_t flow_newest(const flow *f, int64_t head, const assay_trace_tensor *read);
/* Whether the piece that was written holds every element of the read one. */
bool flow_covers(const assay_trace_tensor *written, const assay_trace_tensor *read);
bool flow_meets(const assay_trace_tensor *written, const assay_trace_tensor *read);
/* Whether two records can be pieces of one tensor, or of this rank's part of one sum. */
bool flow_same_tensor(const assay_trace_tensor *a, const assay_trace_tensor *b);
bool flow_same_local_shape(const assay_trace_tensor *a, const assay_trace_tensor *b);

/* What records wrote of a piece, laid over one another. */
typedef struct flow_laid {
    const assay_trace_tensor *read;
    int64_t count, n;       /* elements of the piece; of them laid */
    unsigned char *covered; /* [count] */
    char *data;
    int64_t wrong; /* number of the record whose element was read with other bits, -1: none */
    int64_t update,
        outdated; /* newest that is no collective's; a collective's that shows under it; -1: none */
} flow_laid;
assay_status flow_lay_begin(flow_laid *l, const assay_trace_tensor *read);
/* A chain under what is laid, its newest first, until all elements are there or one is wrong. */
void flow_lay(const flow *f, int64_t head, flow_laid *l);
void flow_lay_end(flow_laid *l);

/* --- flow_tell.c --------------------------------------------------------------------------------------------- */
/* Says what the wrong content is, and draws the edge. */
assay_status flow_tell(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                       int64_t number, parity_result *r);

#endif
