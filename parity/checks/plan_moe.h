/* What the files of the MoE kind share: plan_moe.c, plan_balancing.c and plan_dispatch.c. */
#ifndef PARITY_PLAN_MOE_H
#define PARITY_PLAN_MOE_H

#include "parity/checks/plan.h"

typedef struct plan_moe_saved {
    bool cut; /* tp without sp: the layer takes and gives back whole sequences */
    plan_tensor norm, tokens, jittered, gating, logits, indices, routed, probs, scores;
    plan_tensor aux_counts, seq_counts, global_counts;
    plan_rows rows;
    plan_tensor row_token, token_row, sort, unsort, local_counts;
    plan_tensor permuted, permuted_probs, dispatched, dispatched_probs, gathered, gathered_probs;
    plan_tensor expert_in, expert_probs, fc1, act, fc2, unsorted, reduced, returned;
    plan_shared_saved shared;
} plan_moe_saved;

/* topk and score_function: what the choice of a map depends on. */
void plan_choice_attrs(plan *p);
/* Balancing losses and the z-loss: plan_balancing.c. */
bool plan_has_balancing(const plan *p);
/* The ranks that share the tokens of a microbatch. */
assay_group plan_sharing_group(const plan *p);
void plan_balancing_forward(plan *p, plan_moe_saved *s);
/* dlogits, as router_bwd wrote it -> total, the gradient of the logits. */
void plan_balancing_backward(plan *p, const plan_moe_saved *s, plan_tensor dlogits, plan_tensor total);

/* The plan of the rows, then the rows to the ranks of their experts: from tokens, routed and probs to expert_in, expert_probs
 * and local_counts. */
void plan_permute(plan *p, plan_moe_saved *s);
void plan_dispatch(plan *p, plan_moe_saved *s);
/* t with row ids, unless an etp rank has columns or a part of it. */
plan_tensor plan_whole_rows(const plan *p, plan_tensor t, plan_row_ids *ids);
/* fc2 -> the tokens' sums; dy -> gradient of fc2. */
plan_tensor plan_combine(plan *p, plan_moe_saved *s);
plan_tensor plan_combine_backward(plan *p, plan_moe_saved *s, plan_tensor dy);
/* Gradients of the rows and of their probs -> those of the tokens and of the router's probs. */
plan_tensor plan_dispatch_backward(plan *p, plan_moe_saved *s, plan_tensor drows, plan_tensor dprobs_rows,
                                   plan_tensor *dprobs);

#endif
