/* Layout: sizes of the parallel axes, in Megatron-LM's words, and their short form.
 *
 * Short form: comma separated `tpN ppN cpN epN etpN dpN vppN sp zeroN hsdpN`, what cuts the layers in stages `firstN
 * lastN embed loss stages=TEXT`, or `1`; unknown or repeated words are errors.  `dp` absent: the smallest dp for which
 * ep*etp divides tp*cp*dp.  etp defaults to 1 (an MoE layer always works on token shards, so experts are not cut by tp
 * unless etp says so).  One of `all_gather` (the default), `a2a`, `p2p` says how attention talks over cp. */
#ifndef ASSAY_CORE_LAYOUT_H
#define ASSAY_CORE_LAYOUT_H

#include "core/base/status.h"
#include "core/model/pipeline_layout.h"
#include <stdbool.h>

ASSAY_BEGIN_DECLS

/* No array of ASSAY_MAX_WORLD entries lives on a stack: groups are shapes, not lists. */
enum { ASSAY_MAX_WORLD = 16384, ASSAY_LAYOUT_TEXT = 256 };

/* How attention reaches the keys of the other context-parallel ranks; Megatron-LM's cp_comm_type. */
typedef enum {
    ASSAY_CP_ALL_GATHER, /* every rank gathers all keys and values */
    ASSAY_CP_A2A,        /* heads are dealt out, the sequence is gathered (Ulysses) */
    ASSAY_CP_P2P,        /* keys and values travel around the ring of ranks */
    ASSAY_CP_COMM_COUNT
} assay_cp_comm_type;

typedef struct assay_parallel_config {
    int tensor_model_parallel_size;
    int pipeline_model_parallel_size;
    int virtual_pipeline_model_parallel_size; /* chunks per stage; 1 = not interleaved */
    int context_parallel_size;
    assay_cp_comm_type cp_comm_type; /* with a context_parallel_size of 1: ASSAY_CP_ALL_GATHER */
    int expert_model_parallel_size;
    int expert_tensor_parallel_size;
    int data_parallel_size;
    bool sequence_parallel;
    int zero_stage; /* cut over data-parallel ranks: 1 optimizer, 2 and gradients, 3 and parameters */
    int num_distributed_optimizer_instances; /* replicas of the cut (HSDP); 1 = cut over all ranks */
    /* Which layers a pipeline stage holds; 0, false and "": balanced. */
    int num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage;
    bool account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split;
    char pipeline_model_parallel_layout[ASSAY_PIPELINE_LAYOUT]; /* canonical */
} assay_parallel_config;

/* Parses and normalises; messages name the wrong word. */
assay_status assay_layout_parse(const char *text, assay_parallel_config *out);
/* "all_gather", "a2a", "p2p" */
const char *assay_cp_comm_name(assay_cp_comm_type type);
/* Canonical text of a layout ("1", "tp2,sp,ep2,dp2,zero1"). */
void assay_layout_format(const assay_parallel_config *p, char out[ASSAY_LAYOUT_TEXT]);

ASSAY_END_DECLS

#endif
