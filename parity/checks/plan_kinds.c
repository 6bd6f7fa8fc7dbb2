/* Which records may be of kind local, pieces of no global tensor: nothing assembles them, no replica of them is compared.  Everything
 * else has a place in a tensor of the whole run. */
#include "parity/checks/plan.h"

#include <fnmatch.h>

static bool among(const char *const *patterns, const char *name)
{
    for (; *patterns != NULL; patterns++)
        if (fnmatch(*patterns, name, 0) == 0)
            return true;
    return false;
}

/* Numbers of one rank, and lists in an order of its own. */
static const char *const of_a_rank[] = {"loss.stats.stats",
                                        "loss.gather.recv",
                                        "loss.total.x",
                                        "grad_norm.total.x",
                                        "num_zeros_in_grad.total.x",
                                        "*.sumsq",
                                        "*.num_zeros",
                                        "*.mlp.router.drop.*",
                                        "*.mlp.router.drop_indices.recv",
                                        "*.mlp.router.drop_probs.recv",
                                        "*.mlp.router.input_jitter.token",
                                        "*.mlp.router.random_logits.token",
                                        "*.mlp.*_plan.*",
                                        "*.mlp.*.row_ids",
                                        "*.mlp.dispatch_counts.recv",
                                        "*.mlp.experts.tokens_per_expert",
                                        "*.mlp.sort.index",
                                        "*.mlp.unsort.index",
                                        NULL};
/* A gradient before its sum over ranks. */
static const char *const of_sums[] = {"*.main_grad", NULL};
/* The same before the sum over ranks that share key heads: no other has the rows in front of those. */
static const char *const of_shared_rows[] = {"*.main_grad.dp_sum", NULL};
/* Heads change places for whole sequences. */
static const char *const of_heads[] = {"*.self_attention.pack_[qkv].y", "*.self_attention.pack_[qkv].y.grad",
                                       "*.self_attention.a2a_o.recv", "*.self_attention.a2a_o.recv.grad",
                                       NULL};
/* Ranks that share key heads have parts of sums in one tensor with what is theirs alone. */
static const char *const of_shared_heads[] = {"*.self_attention.linear_qkv.y.grad", NULL};
/* Parts of sums over the ranks that an expert is cut over, or over those that all rows were gathered on. */
static const char *const of_cut_experts[] = {
    "*.mlp.dispatch*",  "*.mlp.permute*",  "*.mlp.sort*", "*.mlp.unsort*",
    "*.mlp.unpermute*", "*.mlp.experts.*", NULL};

bool plan_may_be_local(const plan *p, const char *name, assay_phase phase)
{
    const bool sums = phase == ASSAY_PHASE_BACKWARD || phase == ASSAY_PHASE_GRAD;
    const bool kv = p->job->grid->size[ASSAY_AXIS_KV] > 1;
    return among(of_a_rank, name) || (sums && among(of_sums, name)) || (kv && among(of_shared_rows, name)) ||
           (p->job->grid->p.context_parallel_size > 1 && among(of_heads, name)) ||
           (p->job->grid->p.tensor_model_parallel_size > 1 && among(of_shared_heads, name)) ||
           ((p->etp > 1 || plan_gathers_tokens(p)) && among(of_cut_experts, name));
}
