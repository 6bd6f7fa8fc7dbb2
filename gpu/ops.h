/* The engine's operations: one ladder of kernels each (gpu/rung.h), run through gpu_ladder_run and, in the engine, through the
 * one call (gpu/call.h).  Slots, dtypes, shapes and attributes are rows of core/model/ops.c; docs/OPS.md is the contract (rounding,
 * order, edge cases).  Here: what each computes, which buffers may be shared, what it refuses.
 *
 * All of them: asynchronous on the stream; allocate nothing; use ctx->workspace where the rung has a workspace; deterministic;
 * ASSAY_OK means enqueued.  act is F32 or BF16, computed in F32 and rounded once, when stored.  Tensors are contiguous and
 * aligned to their element; sizes may be 0.  An output overlaps no input unless its block says so.  `+=`: F32, added last.
 *
 * All of them, before the first CUDA call: ASSAY_INVALID_ARGUMENT for rank, shape, dtype, address ("rmsnorm_fwd: gamma: expected 64
 * elements, found 63"), ASSAY_LIMIT for a workspace that is too small, ASSAY_UNSUPPORTED for an act of another dtype;
 * ASSAY_CUDA, ASSAY_CUBLAS: the launch.  Blocks name what is refused beyond that (ASSAY_INVALID_ARGUMENT where nothing is said). */
#ifndef GPU_OPS_H
#define GPU_OPS_H

#include "gpu/rung.h"

ASSAY_BEGIN_DECLS

/* --- linear.cu ---------------------------------------------------------------------------------------------- */
/* y[t,n] = sum_k x[t,k] weight[n,k] (+ bias[n])      y [T,N]  x [T,K]  weight [N,K]  bias [N] or none
 * y is act, or F32 beside BF16 operands; the bias enters before the one rounding.  K = 0: y = bias or 0. */
extern GPU_LADDER(linear_fwd);
/* dx[t,k] = sum_n dy[t,n] weight[n,k]      dx [T,K]  dy [T,N]  weight [N,K] */
extern GPU_LADDER(linear_bwd_input);
/* dweight[n,k] += sum_t dy[t,n] x[t,k]      dweight F32 [N,K]  dy [T,N]  x [T,K] */
extern GPU_LADDER(linear_bwd_weight);
/* dbias[n] += sum_t dy[t,n]      dbias F32 [N]  dy [T,N] */
extern GPU_LADDER(linear_bwd_bias);

/* --- grouped.cu --------------------------------------------------------------------------------------------- */
/* The same for rows sorted by expert, e(r) the expert of row r: y[r,:] = weight[e(r)] x[r,:]      weight [El,N,K]
 * tokens_per_expert [El] is read on the device, k1: in host memory, during the call.  Refused where the host knows them: one that is
 * negative, a sum other than the rows.  Where it does not, a smaller sum leaves rows that are nobody's, whose y is NaN; a negative count,
 * which is 0, and a larger sum, which is cut off, are a violated precondition. */
extern GPU_LADDER(grouped_linear_fwd);
/* dx[r,:] = dy[r,:] weight[e(r)]; refuses as the forward. */
extern GPU_LADDER(grouped_linear_bwd_input);
/* dweight[e] += sum over the rows of e of dy[r,:]^T x[r,:]; an expert without rows keeps its gradient; refuses as the forward. */
extern GPU_LADDER(grouped_linear_bwd_weight);

/* --- norm.cu ------------------------------------------------------------------------------------------------ */
/* rstd[t] = 1/sqrt(mean_h x[t,h]^2 + eps), y = gamma x rstd      y, x [T,H]  gamma [H]  rstd F32 [T]
 * Rows are as wide as gamma, however the extents of x are recorded.  y may be x.  Refused: eps below 0. */
extern GPU_LADDER(rmsnorm_fwd);

/* --- norm_bwd.cu -------------------------------------------------------------------------------------------- */
/* g = dy gamma, xh = x rstd: dx = rstd (g - xh mean_h(g xh)), dgamma[h] += sum_t dy xh      dx, dy, x [T,H]  dgamma F32 [H]
 * dx may be dy or x: dgamma is made first, or a row is read before it is written.
 * Workspace of k2: F32 [32,H]; of k3: F32 [blocks,H], at most 256. */
extern GPU_LADDER(rmsnorm_bwd);

/* --- residual_norm.cu --------------------------------------------------------------------------------------- */
/* add and rmsnorm_fwd in one launch: residual = a + b, rounded once; rstd[t] = 1/sqrt(mean_h residual[t,h]^2 + eps) of the rounded
 * residual, y = gamma residual rstd      residual, y, a, b [T,H]  gamma [H]  rstd F32 [T]
 * Outputs are memory of their own.  Refused: an output that begins where an input does, eps below 0. */
extern GPU_LADDER(add_rmsnorm_fwd);

/* --- residual_norm_bwd.cu ----------------------------------------------------------------------------------- */
/* rmsnorm_bwd and add in one launch: dx [T,H] (or none) and dgamma F32 [H] (or none) of the norm, y = dresidual + dx, of dx as it is
 * rounded      y, dresidual, dy, x [T,H]  gamma [H]  rstd F32 [T]
 * Outputs are memory of their own.  Workspace of k1: that of rmsnorm_bwd's k3.  Refused: an output that begins where an input does. */
extern GPU_LADDER(rmsnorm_bwd_add);

/* --- norm_cut.cu -------------------------------------------------------------------------------------------- */
/* The norm of rows whose columns are cut over ranks, in halves around a sum over the ranks; width: columns of a whole row, refused
 * below those that are here.
 * y[t] = sum_h x[t,h]^2      y F32 [T]  x [T,H]; columns = H, at least 1 */
extern GPU_LADDER(rmsnorm_sumsq);
/* rstd[t] = 1/sqrt(sumsq[t]/width + eps);  y = gamma x rstd      y, x [T,H]  gamma [H]  sumsq, rstd F32 [T]; y may be x.
 * Refused: eps < 0. */
extern GPU_LADDER(rmsnorm_apply);
/* y[t] = sum_h g xh, g = dy gamma, xh = x rstd      y F32 [T]  dy, x [T,H]  gamma [H]  rstd F32 [T] */
extern GPU_LADDER(rmsnorm_bwd_dot);
/* dx = rstd (g - xh dot[t]/width);  dgamma += sum_t dy xh      dx, dy, x [T,H]  gamma [H]  rstd, dot F32 [T]  dgamma F32 [H];
 * dx may be dy or x. */
extern GPU_LADDER(rmsnorm_bwd_apply);

/* --- rope.cu ------------------------------------------------------------------------------------------------ */
/* cos[p,i] = cos(p f_i), sin likewise, f_i = base^(-2i/R), scaled by rope_type; F32 [P,R/2], made in double, rounded once.
 * Refused: an odd rotary_dim; base or factor not above 0; llama3 without 0 < low_freq_factor < high_freq_factor; yarn with a base of 1
 * or less, a beta, attention_factor or original length not above 0.  ASSAY_UNSUPPORTED: another rope_type. */
extern GPU_LADDER(rope_table);
/* a = x[0:R/2], b = x[R/2:R]: y = [a c - b s | b c + a s | rest]      y, x [T,A,D]  position I64 [T]
 * y may be x.  A position outside the table is a violated precondition (not checked).  Refused: R above D. */
extern GPU_LADDER(rope_fwd);
/* dx = [da c + db s | db c - da s | rest]; dx may be dy; as rope_fwd else. */
extern GPU_LADDER(rope_bwd);

/* --- kv_down_split.cu, mla_rope.cu; N = qk_head_dim, V = v_head_dim, 2h = columns that turn ------------------- */
/* kv_combined [T,C+R] -> kv_compressed [T,C], k_pos_emb [T,R]; copies.  Refused: kv_lora_rank and qk_pos_emb_head_dim that are not C and R. */
extern GPU_LADDER(kv_down_split_fwd);
/* The inverse. */
extern GPU_LADDER(kv_down_split_bwd);
/* Of the last 2h columns x of a head, pairs (x[2j], x[2j+1]) become y[j] = x[2j] c_j - x[2j+1] s_j, y[h+j] = x[2j+1] c_j + x[2j] s_j; the rest
 * passes      y [T,A,D]  q [T,A D]  cos, sin F32 [P,h]  position I64 [T]
 * Outputs of these four are memory of their own.  A position outside the table is a violated precondition (not checked).  Refused: an
 * output that begins where an input or another output does; 2h above D. */
extern GPU_LADDER(mla_rope_q_fwd);
/* dx[2j] = dy[j] c_j + dy[h+j] s_j, dx[2j+1] = dy[h+j] c_j - dy[j] s_j; as mla_rope_q_fwd else. */
extern GPU_LADDER(mla_rope_q_bwd);
/* k = [first N columns of kv's head | k_pos_emb turned, the same for every head], v = the last V      kv [T,A (N+V)]  k_pos_emb [T,2h]
 * k [T,A,N+2h]  v [T,A,V] */
extern GPU_LADDER(mla_rope_kv_fwd);
/* dkv = [first N columns of dk's head | dv], dk_pos_emb = the transposed turn of the sum over the heads of dk's last 2h columns      dkv
 * [T,A (N+V)]  dk_pos_emb [T,2h]  dk [T,A,N+2h]  dv [T,A,V].  Heads are added in F32, in order; one rounding at the end. */
extern GPU_LADDER(mla_rope_kv_bwd);

/* --- attention.cu, attention_bwd.cu ------------------------------------------------------------------------- */
/* S_j = scale sum_d q k_j over the keys j that query t sees, lse = log sum_j exp S_j, o = sum_j exp(S_j - lse) v_j
 *   q [Tq,A,D]  k [Tk,G,D]  v [Tk,G,Dv]  o [Tq,A,Dv]  lse F32 [Tq,A]  positions I64
 * Visible: k_position <= q_position, >= first_key, > q_position - window where window > 0.  A row that sees nothing: o = 0,
 * lse = -inf.  Refused: heads no multiple of groups, a scale that is no finite number.  ASSAY_UNSUPPORTED: D or Dv above 256. */
extern GPU_LADDER(attention_fwd);
/* P = exp(S - lse), delta = sum_d do o: dv = P^T do, dS = P (do v^T - delta), dq = scale dS k, dk = scale dS^T q, the heads of a
 * group summed in dk and dv.  Shapes of the forward.  Workspace: F32 [Tq,A].  Refuses as the forward. */
extern GPU_LADDER(attention_bwd);

/* --- qkv.cu ------------------------------------------------------------------------------------------------- */
/* qkv [T,(A+2G) D], for each group its query heads, key, value -> q [T,A,D], k [T,G,D], v [T,G,D]; copies. */
extern GPU_LADDER(qkv_split_fwd);
/* The inverse: dq, dk, dv -> dqkv. */
extern GPU_LADDER(qkv_split_bwd);
/* y [P,T,A/P,D] = x [T,A,D], the heads of each of P parts together; copies.  Refused: parts that do not divide the heads. */
extern GPU_LADDER(pack_heads);
/* The inverse: y [T,A,D] = x [P,T,A/P,D]. */
extern GPU_LADDER(unpack_heads);

/* --- qkv_rope.cu -------------------------------------------------------------------------------------------- */
/* qkv_split_fwd, then rope_fwd of q and of k, in one launch: q = rope(q_raw), k = rope(k_raw)      qkv [T,(A+2G) D]  q, q_raw [T,A,D]
 * k, k_raw, v [T,G,D]  position I64 [T].  q_raw and k_raw may be absent: then they are not stored.
 * Outputs are memory of their own.  A position outside the table is a violated precondition (not checked).  Refused: an output that begins
 * where an input or another output does, groups that do not divide the heads, R above D. */
extern GPU_LADDER(qkv_rope_fwd);
/* The same with rmsnorm_fwd of every head of q and of k before it turns: q_rstd = 1/sqrt(mean_d q_raw^2 + eps), q_norm = q_gamma q_raw q_rstd,
 * rounded, q = rope(q_norm); k likewise      gammas [D]  q_rstd F32 [T,A]  k_rstd F32 [T,G].  q_norm and k_norm may be absent.
 * Refused: also eps below 0. */
extern GPU_LADDER(qkv_norm_rope_fwd);

/* --- qkv_rope_bwd.cu ---------------------------------------------------------------------------------------- */
/* rope_bwd of dq and of dk, then qkv_split_bwd, in one launch: dq_raw = rope^T(dq), dk_raw likewise      dqkv [T,(A+2G) D]
 * dq, dq_raw [T,A,D]  dk, dk_raw, dv [T,G,D]  position I64 [T].  dq_raw and dk_raw may be absent: then they stand in dqkv alone.
 * Outputs are memory of their own.  A position outside the table is a violated precondition (not checked).  Refused: as qkv_rope_fwd. */
extern GPU_LADDER(qkv_rope_bwd);
/* The same with rmsnorm_bwd of every head of q and of k behind the rotation: dq_norm = rope^T(dq), rounded, dq_raw and q_dgamma (F32 [D],
 * or none) from it, q_raw [T,A,D], q_gamma [D] and q_rstd F32 [T,A]; k likewise.  dq_norm, dk_norm, dq_raw, dk_raw may be absent.
 * Workspace of k1: F32 [blocks,D] for each gamma that is trained, as rmsnorm_bwd's k3. */
extern GPU_LADDER(qkv_norm_rope_bwd);

/* --- attention_context.cu ------------------------------------------------------------------------------------ */
/* Attention over two sets of keys as attention over both: m = max(lse_a, lse_b), w = exp(lse - m): lse = m + log(w_a + w_b),
 * o = (w_a o_a + w_b o_b) / (w_a + w_b); neither sees a key: o = 0, lse = -inf
 *   o_a F32 or act, o_b act, o F32 or act [T,A,D]  lse F32 [T,A]; o may be o_a or o_b where the dtypes are one. */
extern GPU_LADDER(attention_merge);

/* --- elementwise.cu ----------------------------------------------------------------------------------------- */
/* y = a + b, all act of one shape; y may be a or b. */
extern GPU_LADDER(add);
/* y = x in the dtype of y, F32 or BF16; y may be x where they have one dtype. */
extern GPU_LADDER(cast);
/* y = x[start : start + length], in rows of S; y may be that view of x, and nothing is enqueued then.  Refused: rows outside x. */
extern GPU_LADDER(slice_rows);
/* y = min(max(x, -limit), limit), a NaN stays; y may be x. */
extern GPU_LADDER(clamp_fwd);
/* dx = dy where |x| < limit, else 0; dx may be dy or x. */
extern GPU_LADDER(clamp_bwd);

/* --- swiglu.cu ---------------------------------------------------------------------------------------------- */
/* x = [gate | up] [T,2F]: y[t,f] = gate sigmoid(gate) up (probs[t])      y [T,F]  probs F32 [T] or none.  Refused: odd columns. */
extern GPU_LADDER(swiglu_fwd);
/* s = sigmoid(gate), p = probs[t] or 1: dgate = dy p up s (1 + gate (1 - s)), dup = dy p gate s, dprobs[t] = sum_f dy gate s up
 *   dx [T,2F] may be x      dprobs F32 [T], there when probs is: else refused */
extern GPU_LADDER(swiglu_bwd);

/* --- sigmoid_gate.cu ---------------------------------------------------------------------------------------- */
/* y[t,h] = x[t,h] sigmoid(gate[t])      y, x [T,H]  gate [T]; y may be x. */
extern GPU_LADDER(sigmoid_gate_fwd);
/* dx = dy sigmoid(gate[t]), dgate[t] = s (1 - s) sum_h dy x; dx may be dy or x. */
extern GPU_LADDER(sigmoid_gate_bwd);

/* --- dropout.cu --------------------------------------------------------------------------------------------- */
/* y = x times 0 or 1/(1-p), by (seed, stream, draw, token I64 [T], column) alone      y, x [T,H]; y may be x.
 * Refused: p outside [0,1), rows that are not one for each token. */
extern GPU_LADDER(dropout_fwd);
/* dx of dy by the same factors. */
extern GPU_LADDER(dropout_bwd);

/* --- embedding.cu ------------------------------------------------------------------------------------------- */
/* y[t,:] = weight[ids[t] - vocab_start] where this piece has that row, else 0      y [T,H]  weight [V,H]  ids I64 [T]
 * Refused: vocab_start below 0. */
extern GPU_LADDER(embedding_fwd);
/* dweight[ids[t] - vocab_start] += dy[t], t ascending, each onto the sum so far; tokens of id padding_idx add nothing (-1: no such
 * id)      dweight F32 [V,H]  dy [T,H]      Refused: vocab_start below 0, padding_idx below -1. */
extern GPU_LADDER(embedding_bwd);

/* --- sum.cu ------------------------------------------------------------------------------------------------- */
/* y = sum x, in double      y F64 [1]  x F32 [n]. */
extern GPU_LADDER(sum);
/* y = sum x^2, in double, where squares are exact; a list of n calls in one launch sequence. */
extern GPU_LADDER(sumsq);
/* y = how many of x are zero, of either sign      y I64 [1]  x F32 [n]; a list of n calls in one launch sequence. */
extern GPU_LADDER(count_zeros);

/* --- clip.cu ------------------------------------------------------------------------------------------------ */
/* y = x[0] + x[1] + ..., in this order      y [1]  x [n], both F64 or both I64 (ASSAY_UNSUPPORTED: another). */
extern GPU_LADDER(total);
/* norm = sqrt(sumsq), scale = c = clip_grad/(norm + 1e-6) where c < 1, else 1 (a NaN is not below 1), 1 where clip_grad is 0, in
 * double      sumsq, norm, scale F64 [1].  Refused: a clip_grad that is negative or no finite number. */
extern GPU_LADDER(clip_coefficient);

/* --- router.cu ---------------------------------------------------------------------------------------------- */
/* scores, choice of K of E experts, weights of the chosen (docs/OPS.md 7); ties and -0 go to the lower expert, a NaN ranks last.
 *   indices I64 [T,K] ascending  probs F32 [T,K]  scores F32 [T,E]  logits F32 [T,E]  expert_bias F32 [E] or none
 * Refused: topk outside 1..E, groups that do not divide E, group_topk outside 1..groups, a bias beside softmax.
 * ASSAY_UNSUPPORTED: more than 512 experts or topk 32, another score_function. */
extern GPU_LADDER(router_fwd);
/* dlogits = d probs / d logits, times dprobs; none through keys, bias or the choice      dlogits F32 [T,E]; refuses as the forward. */
extern GPU_LADDER(router_bwd);

/* --- router_aux.cu ------------------------------------------------------------------------------------------ */
/* aux_scores = softmax(logits) or sigmoid / row sum; aux_indices their plain top-K; tokens_per_expert their counts;
 * score_sums[e] = sum_t aux_scores; z_sum = sum_t lse_t^2.  Workspace: F32 [T], k2 sums of each block too.  Refuses as router_fwd. */
extern GPU_LADDER(router_aux_fwd);
/* losses = { aux_coeff E / (K tokens^2 divisor) sum_b sum_e score_sums_be n_be, z_coeff / tokens z_sum }, F32 [2], in double; 0
 * without tokens; z 0 without z_sum.  Refused: tokens below 0, topk or divisor below 1, a coefficient that is no finite number. */
extern GPU_LADDER(router_aux_loss);
/* dlogits += loss_scale (J^T[aux_coeff E / (K tokens^2 divisor) n_b] + z_coeff 2/tokens lse softmax(logits)), J the derivative of
 * aux_scores, b = t mod B; refuses as router_aux_fwd and router_aux_loss, and tokens that are no whole rows of B. */
extern GPU_LADDER(router_aux_bwd);
/* --- router_balanced.cu ------------------------------------------------------------------------------------- */
/* router_fwd, then router_aux_fwd, in one launch (k0: a pass over the tokens and one over the sums); operands of both, logits and topk
 * once.  Workspace: F32 [T] and sums of each block.  Refuses as they do; k1 takes up to 256 experts and 32 groups. */
extern GPU_LADDER(router_balanced_fwd);
/* The same and router_seq_aux_fwd: seq_tokens_per_expert I64 [B,E], seq_score_sums F32 [B,E]; k1 takes up to GPU_ROUTER_SEQ_SUMS = B E. */
enum { GPU_ROUTER_SEQ_SUMS = 1024 };
extern GPU_LADDER(router_balanced_seq_fwd);
/* --- router_balanced_bwd.cu --------------------------------------------------------------------------------- */
/* router_bwd, then router_aux_bwd of one loss, of two, of three on what is there: counts [B,E] and attributes of the second end in _2, of the
 * third in _3.  dlogits_i F32 [T,E], where it is there: dlogits before loss i, counted from 0.  Refuses as they do. */
extern GPU_LADDER(router_balanced_bwd);
extern GPU_LADDER(router_balanced_bwd_two);
extern GPU_LADDER(router_balanced_bwd_three);
/* --- router_counts.cu --------------------------------------------------------------------------------------- */
/* Of aux_scores [T,E] and aux_indices [T,K]: tokens_per_expert I64 [B,E] and score_sums F32 [B,E] of the tokens t = b mod B.
 * Workspace: k2 sums of each block.  Refused: tokens that are no whole rows of B. */
extern GPU_LADDER(router_seq_aux_fwd);
/* total I64 [E] = tokens_per_expert + previous (absent: 0). */
extern GPU_LADDER(running_counts);
/* bias[e] += rate sign(mean(n) - n_e), compared in integers      bias F32 [E]  tokens_per_expert I64 [E] */
extern GPU_LADDER(expert_bias_update);

/* --- random.cu ---------------------------------------------------------------------------------------------- */
/* y F32 [T,E] of mean 0 and variance 1 by (layer, draw, token I64 [T], expert) alone; of `tokens` tokens a draw. */
extern GPU_LADDER(random_logits);
/* y[t,h] = x[t,h] u, u in [1-eps, 1+eps] drawn by layer, draw, token and column      x, y act [T,H]  token I64 [T] */
extern GPU_LADDER(input_jitter);

/* --- experts.cu --------------------------------------------------------------------------------------------- */
/* What the capacities of the experts leave: routed I64 [T,K] = the expert of an assignment of tokens start .. start+length-1,
 * or -1 where `capacity` others of all_indices I64 [N,K] come before it (larger all_probs F32 [N,K], where given; then smaller
 * token I64 [N]); tokens_per_expert I64 [E] of what is left. */
extern GPU_LADDER(router_drop);
/* Rows in order of expert, then token: row_token, row_entry I64 [rows], token_row I64 [T,K] (inverse), tokens_per_expert I64 [E]
 * from indices I64 [T,K], of which those of experts first_expert .. first_expert+local_experts-1 have rows; the others' token_row is -1.
 * Rows beyond those that they have are -1.  An index beyond -1 outside [0,E) is a violated precondition: its row is skipped. */
extern GPU_LADDER(permute_plan);

/* --- rows.cu ------------------------------------------------------------------------------------------------ */
/* y[i,:] = x[index[i],:], zeros where the index is -1; bits of F32, BF16 or I64 (ASSAY_UNSUPPORTED: another); an index outside gives NaN, I64: -1. */
extern GPU_LADDER(gather_rows);
/* y[t,:] = sum_k x[token_row[t,k],:], k ascending, without rows of -1      y [T,H]  x [R,H]; another row outside gives NaN. */
extern GPU_LADDER(combine_rows);

/* --- loss.cu ------------------------------------------------------------------------------------------------ */
/* stats = { max_v, sum_v exp(l - max), logit of the target or 0 when another piece has it }, F32 [3,T]      logits F32 [T,V]
 * An empty piece: { -inf, 0, 0 }. */
extern GPU_LADDER(cross_entropy_stats);
/* m = max_r m_r: lse = m + log sum_r sum_r exp(m_r - m), loss = lse - sum_r target_r, 0 where the target is -100
 *   lse, loss F32 [T]  stats F32 [tp,3,T].  Refused: stats that are no whole number of pieces. */
extern GPU_LADDER(cross_entropy_loss);
/* dlogits = (exp(l - lse) - [v = target]) scale, 0 where ignored      dlogits act [T,V], may be logits where that is F32. */
extern GPU_LADDER(cross_entropy_bwd);

/* --- optimizer.cu ------------------------------------------------------------------------------------------- */
/* g = grad_scale grad (grad_scale F64 [1] on the device, absent: 1): m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p -= lr ((m/c1) / (sqrt(v/c2) + eps) + weight_decay p),
 * c = 1 - b^step; m = exp_avg, v = exp_avg_sq, p = main_param, F32 [n] in place; param (act or none) = p rounded.
 * A list of n calls: attributes differ in weight_decay alone and grad_scale is one tensor, else refused; as are step below 1, a beta outside [0,1), eps below 0,
 * lr or weight_decay that are no finite numbers.  param may not be main_param. */
extern GPU_LADDER(adamw);

/* All of them, in the order of docs/OPS.md. */
/* clang-format off */
#define GPU_OPERATIONS(X) \
    X(linear_fwd) X(linear_bwd_input) X(linear_bwd_weight) X(linear_bwd_bias) \
    X(grouped_linear_fwd) X(grouped_linear_bwd_input) X(grouped_linear_bwd_weight) \
    X(rmsnorm_fwd) X(add_rmsnorm_fwd) X(rmsnorm_bwd) X(rmsnorm_bwd_add) X(rmsnorm_sumsq) X(rmsnorm_apply) X(rmsnorm_bwd_dot) X(rmsnorm_bwd_apply) X(rope_table) X(rope_fwd) X(rope_bwd) X(kv_down_split_fwd) X(kv_down_split_bwd) X(mla_rope_q_fwd) X(mla_rope_q_bwd) X(mla_rope_kv_fwd) X(mla_rope_kv_bwd) X(attention_fwd) \
    X(attention_bwd) X(qkv_split_fwd) X(qkv_split_bwd) X(qkv_rope_fwd) X(qkv_norm_rope_fwd) X(qkv_rope_bwd) X(qkv_norm_rope_bwd) X(attention_merge) X(pack_heads) X(unpack_heads) X(add) X(clamp_fwd) X(clamp_bwd) X(dropout_fwd) X(dropout_bwd) \
    X(swiglu_fwd) X(swiglu_bwd) X(sigmoid_gate_fwd) X(sigmoid_gate_bwd) X(cast) X(slice_rows) \
    X(embedding_fwd) X(embedding_bwd) X(sum) X(router_fwd) X(router_bwd) X(router_aux_fwd) X(router_balanced_fwd) X(router_balanced_seq_fwd) \
    X(router_aux_loss) X(router_aux_bwd) X(router_balanced_bwd) X(router_balanced_bwd_two) X(router_balanced_bwd_three) X(router_seq_aux_fwd) X(running_counts) X(random_logits) X(input_jitter) X(router_drop) X(permute_plan) X(gather_rows) X(combine_rows) \
    X(expert_bias_update) X(cross_entropy_stats) X(cross_entropy_loss) X(cross_entropy_bwd) \
    X(sumsq) X(count_zeros) X(total) X(clip_coefficient) X(adamw)
/* clang-format on */

ASSAY_END_DECLS

#endif
