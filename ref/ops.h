/* The reference operations: double precision, plain loops, libm.  ref/fast.h has the costly ones for speed.
 *
 * Outputs first, then inputs, then scalars and sizes.  `=` overwrites, `+=` accumulates.  Row-major,
 * contiguous.  A violated precondition is a bug (assert stays on in every build).  Nothing is allocated
 * inside except where a comment says so. Formulas, edge cases and sources: docs/OPS.md, same names. */
#ifndef REF_OPS_H
#define REF_OPS_H

#include "core/base/dtype.h"
#include "core/model/config.h"
#include <stdbool.h>
#include <stdint.h>

/* --- linear.c ----------------------------------------------------------------------------------------------- */
/* y [T,N] = x [T,K] w [N,K]^T (+ bias [N], may be NULL) */
void ref_linear_fwd(double *y, const double *x, const double *w, const double *bias, int64_t t, int64_t n,
                    int64_t k);
/* dx [T,K] = dy [T,N] w [N,K] */
void ref_linear_bwd_input(double *dx, const double *dy, const double *w, int64_t t, int64_t n, int64_t k);
/* dweight [N,K] += dy [T,N]^T x [T,K] */
void ref_linear_bwd_weight(double *dweight, const double *dy, const double *x, int64_t t, int64_t n,
                           int64_t k);
/* dbias [N] += sum_t dy [T,N] */
void ref_linear_bwd_bias(double *dbias, const double *dy, int64_t t, int64_t n);
/* Experts: rows of x sorted by expert, tokens_per_expert [E] sums to R; w [E,N,K]. */
void ref_grouped_linear_fwd(double *y, const double *x, const double *w, const int64_t *tokens_per_expert,
                            int64_t e, int64_t n, int64_t k);
void ref_grouped_linear_bwd_input(double *dx, const double *dy, const double *w,
                                  const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k);
void ref_grouped_linear_bwd_weight(double *dweight, const double *dy, const double *x,
                                   const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k);

/* --- norm.c ------------------------------------------------------------------------------------------------- */
/* y [T,H] =   rstd [T] =   x [T,H]   gamma [H] */
void ref_rmsnorm_fwd(double *y, double *rstd, const double *x, const double *gamma, double eps, int64_t t,
                     int64_t h);
/* dx [T,H] =   dgamma [H] +=   dy [T,H]   x [T,H]   gamma [H]   rstd [T] */
void ref_rmsnorm_bwd(double *dx, double *dgamma, const double *dy, const double *x, const double *gamma,
                     const double *rstd, int64_t t, int64_t h);
/* The same for rows whose columns are cut over ranks: x holds H of `width` columns.  sumsq and dot are then those of the
 * whole row, added up by the caller.      sumsq [T] =   dot [T] = */
void ref_rmsnorm_sumsq(double *sumsq, const double *x, int64_t t, int64_t h);
void ref_rmsnorm_apply(double *y, double *rstd, const double *x, const double *gamma, const double *sumsq,
                       double eps, int64_t width, int64_t t, int64_t h);
void ref_rmsnorm_bwd_dot(double *dot, const double *dy, const double *x, const double *gamma,
                         const double *rstd, int64_t t, int64_t h);
void ref_rmsnorm_bwd_apply(double *dx, double *dgamma, const double *dy, const double *x, const double *gamma,
                           const double *rstd, const double *dot, int64_t width, int64_t t, int64_t h);

/* --- layernorm.c -------------------------------------------------------------------------------------------- */
/* y [T,H] =   mean, rstd [T] =   x [T,H]   gamma, beta [H], beta NULL: 0 */
void ref_layernorm_fwd(double *y, double *mean, double *rstd, const double *x, const double *gamma,
                       const double *beta, double eps, int64_t t, int64_t h);
/* dx [T,H] =   dgamma, dbeta [H] +=, dbeta may be NULL   dy, x [T,H]   gamma [H]   mean, rstd [T] */
void ref_layernorm_bwd(double *dx, double *dgamma, double *dbeta, const double *dy, const double *x,
                       const double *gamma, const double *mean, const double *rstd, int64_t t, int64_t h);

/* --- rope.c ------------------------------------------------------------------------------------------------- */
typedef struct ref_rope_desc {
    assay_rope_type type;
    int64_t rotary_dim; /* R, even */
    double base, factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
    double beta_fast, beta_slow, attention_factor; /* yarn */
    bool truncate;
} ref_rope_desc;
/* yarn: between which pairs frequencies pass from theirs to linear's. */
void ref_rope_yarn_range(const ref_rope_desc *d, double *low, double *high);
/* cos [P,R/2] =   sin [P,R/2] = */
void ref_rope_table(double *cos_table, double *sin_table, const ref_rope_desc *d, int64_t n_positions);
/* y [T,heads,D] =   x [T,heads,D]   cos, sin [P,R/2]   position [T] */
void ref_rope_fwd(double *y, const double *x, const double *cos_table, const double *sin_table,
                  const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t d);
/* dx = transposed rotation of dy */
void ref_rope_bwd(double *dx, const double *dy, const double *cos_table, const double *sin_table,
                  const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t d);

/* --- mla.c; t tokens, position [T], cos, sin [P,rotary/2], rotary even ----------------------------------------- */
/* kv_compressed [T,latent] =   k_pos_emb [T,pos] = pieces of kv_combined [T,latent+pos]; and back */
void ref_kv_down_split_fwd(double *kv_compressed, double *k_pos_emb, const double *kv_combined, int64_t t,
                           int64_t latent, int64_t pos);
void ref_kv_down_split_bwd(double *dkv_combined, const double *dkv_compressed, const double *dk_pos_emb,
                           int64_t t, int64_t latent, int64_t pos);
/* y [T,heads,dim] = q with the last `rotary` columns of a head turned: pairs (2j, 2j+1) go to columns j, rotary/2 + j */
void ref_mla_rope_q_fwd(double *y, const double *q, const double *cos_table, const double *sin_table,
                        const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim);
/* dx = transposed turn of dy */
void ref_mla_rope_q_bwd(double *dx, const double *dy, const double *cos_table, const double *sin_table,
                        const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim);
/* k [T,heads,nope+rotary] =   v [T,heads,value] =   kv [T,heads,nope+value]   k_pos_emb [T,rotary], one for all heads */
void ref_mla_rope_kv_fwd(double *k, double *v, const double *kv, const double *k_pos_emb,
                         const double *cos_table, const double *sin_table, const int64_t *position,
                         int64_t rotary, int64_t t, int64_t heads, int64_t nope, int64_t value);
/* dkv =   dk_pos_emb = transposed turn of the heads' sum   dk [T,heads,nope+rotary]   dv [T,heads,value] */
void ref_mla_rope_kv_bwd(double *dkv, double *dk_pos_emb, const double *dk, const double *dv,
                         const double *cos_table, const double *sin_table, const int64_t *position,
                         int64_t rotary, int64_t t, int64_t heads, int64_t nope, int64_t value);

/* --- dropout.c ---------------------------------------------------------------------------------------------- */
typedef struct ref_dropout {
    double p;                   /* 0 <= p < 1: the share that becomes 0 */
    int64_t seed, stream, draw; /* which mask: of what, and of which microbatch */
} ref_dropout;
/* 0 or 1/(1-p), by the element's number in the mask alone. */
double ref_dropout_factor(const ref_dropout *d, uint64_t element);
/* y [T,H] = x times the factor of (token, column); dx of dy by the same   token [T] */
void ref_dropout_fwd(double *y, const double *x, const int64_t *token, int64_t t, int64_t h,
                     const ref_dropout *d);
void ref_dropout_bwd(double *dx, const double *dy, const int64_t *token, int64_t t, int64_t h,
                     const ref_dropout *d);

/* --- attention.c -------------------------------------------------------------------------------------------- */
typedef struct ref_attention_desc {
    int64_t batch, seq_q, seq_k; /* Tq = seq_q*batch, row s*batch + b */
    int64_t heads, groups;
    int64_t head_dim, head_dim_v;
    double scale;
    int64_t window;            /* 0 = none */
    const int64_t *q_position; /* [Tq] */
    const int64_t *k_position; /* [Tk] */
    const int64_t *first_key;  /* [Tq] first visible position (document start), or NULL */
    /* of the probabilities, behind the softmax; p 0: none.  The mask is of all_rows batch rows, all_heads heads, all_keys
     * positions, of which this piece's rows and heads begin at first_row and first_head. */
    ref_dropout dropout;
    int64_t first_row, all_rows, first_head, all_heads, all_keys;
} ref_attention_desc;
/* 0 or 1/(1-p): what dropout makes of the probability of a query, head and key (dropout.c). */
double ref_attention_factor(const ref_attention_desc *d, int64_t query_row, int64_t head, int64_t key_row);
/* o [Tq,A,Dv] =   lse [Tq,A] =   q [Tq,A,D]   k [Tk,G,D]   v [Tk,G,Dv] */
void ref_attention_fwd(double *o, double *lse, const double *q, const double *k, const double *v,
                       const ref_attention_desc *d);
/* dq, dk, dv = */
void ref_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
                       const double *k, const double *v, const double *o, const double *lse,
                       const ref_attention_desc *d);
/* q [T,A,D] k [T,G,D] v [T,G,D] = pieces of qkv [T,(A+2G)D] */
void ref_qkv_split_fwd(double *q, double *k, double *v, const double *qkv, int64_t t, int64_t heads,
                       int64_t groups, int64_t d);
void ref_qkv_split_bwd(double *dqkv, const double *dq, const double *dk, const double *dv, int64_t t,
                       int64_t heads, int64_t groups, int64_t d);

/* Attention over two sets of keys as attention over both: lse = log(exp lse_a + exp lse_b), o = exp(lse_a - lse) o_a +
 * exp(lse_b - lse) o_b; neither sees a key: o = 0, lse = -inf.      o [rows,d] =   lse [rows] = */
void ref_attention_merge(double *o, double *lse, const double *o_a, const double *lse_a, const double *o_b,
                         const double *lse_b, int64_t rows, int64_t d);
/* y [P,T,A/P,D] = x [T,A,D], the heads of each part together; and back */
void ref_pack_heads(double *y, const double *x, int64_t t, int64_t heads, int64_t d, int64_t parts);
void ref_unpack_heads(double *y, const double *x, int64_t t, int64_t heads, int64_t d, int64_t parts);

/* --- activation.c ------------------------------------------------------------------------------------------- */
void ref_add(double *y, const double *a, const double *b, int64_t n);
/* y [n] = min(max(x, -limit), limit); a NaN stays */
void ref_clamp_fwd(double *y, const double *x, double limit, int64_t n);
/* dx [n] = dy where |x| < limit, else 0 */
void ref_clamp_bwd(double *dx, const double *dy, const double *x, double limit, int64_t n);
/* y [T,F] =   x [T,2F] = [gate | up]   probs [T] or NULL */
void ref_swiglu_fwd(double *y, const double *x, const double *probs, int64_t t, int64_t f);
/* dx [T,2F] =   dprobs [T] = (NULL when probs is NULL) */
void ref_swiglu_bwd(double *dx, double *dprobs, const double *dy, const double *x, const double *probs,
                    int64_t t, int64_t f);
/* y [T,H] = x [T,H] sigmoid(gate [T]) */
void ref_sigmoid_gate_fwd(double *y, const double *x, const double *gate, int64_t t, int64_t h);
/* stored: type of sigmoid(gate) as backward reads it, F64: it is computed again. */
void ref_sigmoid_gate_bwd(double *dx, double *dgate, const double *dy, const double *x, const double *gate,
                          int64_t t, int64_t h, assay_dtype stored);

/* --- embedding.c -------------------------------------------------------------------------------------------- */
/* y [T,H] =   ids [T]   w [V,H], the piece that starts at vocab_start */
void ref_embedding_fwd(double *y, const int64_t *ids, const double *w, int64_t vocab_start, int64_t t,
                       int64_t v, int64_t h);
/* dweight [V,H] += ; tokens of the global id padding_idx add nothing (-1: no such id) */
void ref_embedding_bwd(double *dweight, const double *dy, const int64_t *ids, int64_t vocab_start,
                       int64_t padding_idx, int64_t t, int64_t v, int64_t h);

/* --- loss.c ------------------------------------------------------------------------------------------------- */
/* stats [3,T] = max, sum exp, target logit (0 elsewhere)   logits [T,V]   targets [T] global ids, -100
 * ignored */
void ref_cross_entropy_stats(double *stats, const double *logits, const int64_t *targets, int64_t vocab_start,
                             int64_t t, int64_t v);
/* lse [T] =   loss [T] =   stats [n_pieces,3,T] */
void ref_cross_entropy_loss(double *lse, double *loss, const double *stats, const int64_t *targets,
                            int n_pieces, int64_t t);
/* dlogits [T,V] = */
void ref_cross_entropy_bwd(double *dlogits, const double *logits, const double *lse, const int64_t *targets,
                           int64_t vocab_start, double scale, int64_t t, int64_t v);
/* Sum in index order, compensated. */
double ref_sum(const double *x, int64_t n);

/* --- router.c ----------------------------------------------------------------------------------------------- */
typedef enum {
    REF_ROUTER_SOFTMAX_TOPK, /* softmax over all experts, then the best K of it */
    REF_ROUTER_TOPK_SOFTMAX, /* the best K logits, then softmax over these */
    REF_ROUTER_SIGMOID       /* sigmoid of each logit, then the best K */
} ref_router_mode;
/* From the two options of a model's configuration; pre_softmax has no meaning beside sigmoid. */
static inline ref_router_mode ref_router_mode_of(assay_score_function score, bool pre_softmax)
{
    if (score == ASSAY_SCORE_SIGMOID)
        return REF_ROUTER_SIGMOID;
    return pre_softmax ? REF_ROUTER_SOFTMAX_TOPK : REF_ROUTER_TOPK_SOFTMAX;
}
typedef struct ref_router_desc {
    int64_t tokens, experts, topk;
    ref_router_mode mode;
    bool norm_topk_prob; /* divide the chosen scores by their sum; TOPK_SOFTMAX sums to 1 anyway */
    double scaling_factor;
    int64_t num_groups, group_topk; /* 0 = none */
    /* The backwards give in place of each element the sum of its terms' absolute values, by which rounding errs where they cancel. */
    bool magnitudes;
} ref_router_desc;
/* scores [T,E] =   keys [T,E] = selection keys (scores or logits, + bias)   logits [T,E]   expert_bias [E] or
 * NULL */
void ref_router_scores(double *scores, double *keys, const double *logits, const double *expert_bias,
                       const ref_router_desc *d);
/* indices [T,K] = ascending expert number; ties: lower index wins */
void ref_router_topk(int64_t *indices, const double *keys, const ref_router_desc *d);
/* probs [T,K] = combine weights of the given choice (routing replay: indices may come from elsewhere) */
void ref_router_probs(double *probs, const double *scores, const double *logits, const int64_t *indices,
                      const ref_router_desc *d);
/* dlogits [T,E] =   dprobs [T,K] */
void ref_router_bwd(double *dlogits, const double *dprobs, const int64_t *indices, const double *scores,
                    const double *logits, const ref_router_desc *d);
/* aux_scores [T,E] =   indices [T,K] = plain top-k of them */
void ref_router_aux_scores(double *aux_scores, const double *logits, const ref_router_desc *d);
void ref_router_aux_topk(int64_t *indices, const double *aux_scores, const ref_router_desc *d);
/* score_sums [E] =   counts [E] =   z_sum [1] =   from aux_scores, indices, logits */
void ref_router_aux_sums(double *score_sums, int64_t *counts, double *z_sum, const double *aux_scores,
                         const int64_t *indices, const double *logits, const ref_router_desc *d);
/* score_sums, counts [rows,E] =   the same of each of `rows` sequences; token t is of sequence t mod rows */
void ref_router_seq_aux_sums(double *score_sums, int64_t *counts, const double *aux_scores,
                             const int64_t *indices, int64_t rows, const ref_router_desc *d);
/* A balancing loss and the z-loss: aux_coeff E / (K tokens^2 divisor) sum_b sum_i score_sums_bi counts_bi, and
 * z_coeff / tokens z_sum.  counts [rows,E] are those of all ranks that share the tokens. */
typedef struct ref_balance {
    double aux_coeff, z_coeff;
    int64_t tokens, rows, divisor;
} ref_balance;
/* losses [2] = {aux, z}; z_sum NULL: z is 0 */
void ref_router_aux_loss(double losses[2], const double *score_sums, const int64_t *counts,
                         const double *z_sum, const ref_balance *b, const ref_router_desc *d);
/* dlogits [T,E] += loss_scale * d(losses)/d(logits) */
void ref_router_aux_bwd(double *dlogits, const double *logits, const int64_t *counts, const ref_balance *b,
                        double loss_scale, const ref_router_desc *d);
/* total [E] = counts + previous (NULL: 0) */
void ref_running_counts(int64_t *total, const int64_t *counts, const int64_t *previous, int64_t e);
void ref_expert_bias_update(double *bias, const int64_t *counts, double rate, int64_t e);

/* --- experts.c ---------------------------------------------------------------------------------------------- */
/* What the experts' capacities leave of the choices of tokens start .. start+t-1 (all integers): routed [T,K] = the
 * expert, or -1 where `capacity` assignments of all tokens [N,K] come before this one: by larger prob [N,K] (NULL: by
 * smaller token alone), then by smaller token [N].  tokens_per_expert [E] of what is left. */
void ref_router_drop(int64_t *routed, int64_t *tokens_per_expert, const int64_t *all_indices,
                     const double *all_probs, const int64_t *token, int64_t n, int64_t k, int64_t e,
                     int64_t capacity, int64_t start, int64_t t);
/* y [T,E]: F32 values of mean 0 and variance 1 that depend on (draw, token, expert) and the layer alone; of `tokens` tokens a
 * draw.  The seed is Megatron-LM's default. */
#define REF_RANDOM_LOGITS_SEED 1234
/* Factor in [1 - eps, 1 + eps], a number of F32, by global indices. */
typedef struct ref_jitter {
    double eps; /* a number of F32 */
    int64_t layer, draw, tokens;
} ref_jitter;
double ref_jitter_factor(const ref_jitter *j, int64_t token, int64_t h, int64_t column);
/* y [T,H] = x times the factor of (token, column); the gradient of x is that of y times the same   token [T] */
void ref_input_jitter(double *y, const double *x, const int64_t *token, int64_t t, int64_t h,
                      const ref_jitter *j);
void ref_random_logits(double *y, const int64_t *token, int64_t t, int64_t e, int64_t layer, int64_t draw,
                       int64_t tokens);
/* ceil(tokens k / e * factor): how many assignments an expert takes */
int64_t ref_expert_capacity(int64_t tokens, int64_t k, int64_t e, double factor);
/* All integers: row_token [R], row_entry [R], tokens_per_expert [E], token_row [T,K]; R = the indices of experts
 * first .. first+local-1; the others' token_row is -1 */
void ref_permute_plan(int64_t *row_token, int64_t *row_entry, int64_t *tokens_per_expert, int64_t *token_row,
                      const int64_t *indices, int64_t t, int64_t k, int64_t e, int64_t first, int64_t local);
/* y [R,H] = x[index]; zeros where the index is -1 */
void ref_gather_rows(double *y, const double *x, const int64_t *index, int64_t rows, int64_t h);
/* y [T,H] = sum_k x[token_row[t,k]] of those that are not -1 */
void ref_combine_rows(double *y, const double *x, const int64_t *token_row, int64_t t, int64_t k, int64_t h);

/* --- optimizer.c -------------------------------------------------------------------------------------------- */
typedef struct ref_adamw_desc {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; /* from 1 */
} ref_adamw_desc;
/* param, exp_avg, exp_avg_sq [n] updated in place   grad [n] */
void ref_adamw(double *param, double *exp_avg, double *exp_avg_sq, const double *grad,
               const ref_adamw_desc *d, int64_t n);
double ref_sumsq(const double *x, int64_t n);
/* Zeros of either sign. */
int64_t ref_count_zeros(const double *x, int64_t n);
/* Clip factor: clip/(norm + 1e-6) when < 1, else 1; clip 0: 1. */
double ref_clip_scale(double norm, double clip_grad);

#endif
