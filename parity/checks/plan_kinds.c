/* Which records may be of kind local, pieces of no global tensor: nothing assembles them, no replica of them is compared.  Everything
 * else has a place in a tensor of the whole run. */
#include "parity/checks/plan.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

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
/* What the products of a backward add to. */
static const char *const of_sums[] = {"*.main_grad", NULL};
/* The same before the sum over ranks that share key heads: no other has the rows in front of those. */
static const char *const of_shared_rows[] = {"*.main_grad.dp_sum", NULL};
/* Heads change places for whole sequences. */
static const char *const of_heads[] = {"*.self_attention.pack_[qkv].y", "*.self_attention.pack_[qkv].y.grad",
                                       "*.self_attention.a2a_o.recv", "*.self_attention.a2a_o.recv.grad",
                                       NULL};
/* Ranks that share key heads have parts of sums in one tensor with what is theirs alone. */
static const char *const of_shared_heads[] = {"*.self_attention.linear_qkv.y.grad", NULL};
/* All tokens of the ranks that share a copy of the experts, and parts of sums over those ranks. */
static const char *const of_gathered_tokens[] = {
    "*.mlp.dispatch.recv",       "*.mlp.dispatch_indices.recv",
    "*.mlp.dispatch_probs.recv", "*.mlp.dispatch_probs.recv.grad",
    "*.mlp.permute.dx",          "*.mlp.unpermute.y",
    "*.mlp.unpermute.y.grad",    NULL};
/* Columns of a cut expert's rows, and parts of sums over the ranks that have the others. */
static const char *const of_cut_experts[] = {"*.mlp.experts.linear_fc[12].y",
                                             "*.mlp.experts.linear_fc[12].y.grad",
                                             "*.mlp.experts.activation.y",
                                             "*.mlp.experts.activation.y.grad",
                                             "*.mlp.experts.gather.recv.grad",
                                             "*.mlp.experts.gather_probs.recv.grad",
                                             "*.mlp.sort.y.grad",
                                             "*.mlp.sort_probs.y.grad",
                                             "*.mlp.unsort.y",
                                             "*.mlp.unsort.y.grad",
                                             "*.mlp.permute.y.grad",
                                             "*.mlp.permute_probs.y.grad",
                                             NULL};

/* Whether a gradient before its sum over ranks is a part of a sum over no one group: where ranks share key heads or the embedding, the sum
 * over those comes last and no group has all of both. */
static bool is_of_no_group(const plan *p, const char *name)
{
    char base[ASSAY_NAME];
    const char *suffix = strstr(name, ".main_grad");
    if (suffix == NULL || (size_t)(suffix - name) >= sizeof base)
        return false;
    snprintf(base, sizeof base, "%.*s", (int)(suffix - name), name);
    const assay_param_spec *s = assay_spec_find(p->job->spec, base);
    const bool shares_heads = s != NULL && p->job->grid->size[ASSAY_AXIS_KV] > 1 &&
                              (s->query_groups > 0 || s->axis[0] == ASSAY_AXIS_KV_HEAD);
    return shares_heads || (s != NULL && plan_lacks_embedding(p, s));
}

bool plan_may_be_local(const plan *p, const char *name, assay_phase phase)
{
    const bool sums = phase == ASSAY_PHASE_BACKWARD || (phase == ASSAY_PHASE_GRAD && is_of_no_group(p, name));
    const bool kv = p->job->grid->size[ASSAY_AXIS_KV] > 1;
    return among(of_a_rank, name) || (sums && among(of_sums, name)) || (kv && among(of_shared_rows, name)) ||
           (p->job->grid->p.context_parallel_size > 1 && among(of_heads, name)) ||
           (kv && among(of_shared_heads, name)) || (p->etp > 1 && among(of_cut_experts, name)) ||
           (plan_gathers_tokens(p) && among(of_gathered_tokens, name));
}
