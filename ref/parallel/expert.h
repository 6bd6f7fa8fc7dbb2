/* Expert parallelism: token rows travel to the rank that holds their expert and back.
 *
 * Every rank permutes its token shard to rows in expert order (permute), sends each row to the rank of its
 * expert (dispatch, all_to_all over ep), sorts what arrived from [source, local expert] to [local expert,
 * source] order (sort), and the way back is the inverse.  With ep = 1 only the permutation remains.
 *
 * With etp > 1 the ranks of an etp group hold slices of the same experts: what arrived at each of them is gathered
 * before the sort (experts.gather), and their parts of the result are added up after it (experts.reduce), as in
 * Megatron-LM's all-to-all dispatcher.
 *
 * With moe_token_dispatcher_type allgather nothing is sent row by row: every rank of a group etp_ep gathers the tokens, the
 * choices and the probs of all, takes the rows of its own experts (row_token and token_row are then of all tokens), adds up
 * what they give each token, and these parts are reduce-scattered to the tokens' ranks. */
#ifndef REF_PARALLEL_EXPERT_H
#define REF_PARALLEL_EXPERT_H

#include "ref/engine.h"

typedef struct ref_dispatch {
    ref_ints row_token;         /* [R_sent] token of each permuted row */
    ref_ints token_row;         /* [T,K] permuted row of each (token, slot) */
    ref_ints tokens_per_expert; /* [E] of this rank's tokens */
    ref_ints tokens;            /* [1] of this rank */
    ref_ints received;          /* [1] rows that arrive over ep */
    bool sorts;                 /* rows arrive from several ranks, or experts are padded */
    ref_ints sort, unsort;      /* [rows of the experts]: the row that arrived, -1 zeros; the inverse */
    ref_ints rows_per_expert;   /* [El] of them, of each local expert */
    ref_tensor permuted, permuted_probs; /* [R_sent, H], [R_sent, 1] */
} ref_dispatch;

/* rows [R,H], row_probs [R,1] sorted by local expert, from tokens [T,H], indices [T,K], probs [T,K] */
assay_status ref_token_dispatch_fwd(ref_pass *p, ref_dispatch *d, ref_tensor *rows, ref_tensor *row_probs,
                                    const ref_tensor *tokens, const ref_tensor *probs,
                                    const ref_ints *indices);
/* y [T,H] = sum of every token's rows */
assay_status ref_token_combine_fwd(ref_pass *p, const ref_dispatch *d, ref_tensor *y, const ref_tensor *rows);
/* drows [R,H] from dy [T,H] */
assay_status ref_token_combine_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *drows,
                                   const ref_tensor *dy);
/* dtokens [T,H], dprobs [T,K] from drows, drow_probs */
assay_status ref_token_dispatch_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *dtokens,
                                    ref_tensor *dprobs, const ref_tensor *drows,
                                    const ref_tensor *drow_probs);

#endif
