/* Attention over the keys of a context-parallel group: docs/OPS.md 9.5. */
#include "parity/checks/plan.h"

#include "ref/yarn.h"

static plan_tensor position_leaf(plan *p, const char *name, const assay_sequence *sequence)
{
    const int64_t n = sequence->length * p->B;
    int64_t *value = plan_integers(p, n);
    for (int64_t t = 0; value != NULL && t < n; t++)
        value[t] = assay_sequence_position(sequence, t / p->B);
    const plan_tensor out = {
        .name = name, .phase = ASSAY_PHASE_FORWARD, .microbatch = -1, .dtype = ASSAY_I64};
    return plan_with_integers(out, value, n);
}

/* Of a row, which attention compares. */
static plan_tensor query_positions(plan *p)
{
    return position_leaf(p, plan_is_packed(p) ? "query_position_ids" : "position_ids", &p->sequence.region);
}

plan_tensor plan_positions(plan *p)
{
    return plan_is_packed(p) ? plan_document_positions(p) : query_positions(p);
}

static plan_tensor key_positions(plan *p)
{
    return p->cp == 1 ? query_positions(p) : position_leaf(p, "key_position_ids", &p->gathered);
}

/* Sizes of one call: how many queries and keys, and over how many ranks the heads are dealt out. */
typedef struct sizes {
    int64_t seq_q, seq_k, parts;
} sizes;

static void attention_attrs(plan *p, const sizes *n)
{
    const assay_model_config *c = p->job->config;
    plan_int(p, "batch", p->B);
    plan_int(p, "seq_q", n->seq_q);
    plan_int(p, "seq_k", n->seq_k);
    plan_int(p, "heads", plan_local_heads(p) / n->parts);
    plan_int(p, "groups", plan_local_groups(p) / n->parts);
    plan_int(p, "head_dim", c->kv_channels);
    plan_int(p, "head_dim_v", assay_config_value_dim(c));
    plan_f32(p, "scale", ref_yarn_softmax_scale(c));
    plan_int(p, "window", c->window[p->layer]);
    plan_attention_dropout(p, n->parts);
}

/* Inputs of one call. */
typedef struct seen {
    plan_tensor q, k, v, q_position, k_position, first_key; /* no first_key: rows are one document */
} seen;

static void attention_inputs(plan *p, const seen *x)
{
    plan_in(p, "q", x->q);
    plan_in(p, "k", x->k);
    plan_in(p, "v", x->v);
    plan_in(p, "q_position", x->q_position);
    plan_in(p, "k_position", x->k_position);
    plan_in(p, "first_key", x->first_key);
}

static void attention_forward(plan *p, const char *at, const seen *x, const sizes *n, plan_tensor *o,
                              plan_tensor *lse)
{
    *o = plan_value(p, at, "o", p->act);
    *lse = plan_value(p, at, "lse", p->accumulated);
    plan_add(p, "attention_fwd", at);
    attention_inputs(p, x);
    plan_out(p, "o", *o);
    plan_out(p, "lse", *lse);
    attention_attrs(p, n);
}

static void attention_backward(plan *p, const char *at, const seen *x, const sizes *n, const plan_context *c,
                               plan_tensor d_o, const plan_qkv *out)
{
    plan_add(p, "attention_bwd", at);
    plan_in(p, "do", d_o);
    attention_inputs(p, x);
    plan_in(p, "o", c->attended);
    plan_in(p, "lse", c->lse);
    plan_out(p, "dq", out->q);
    plan_out(p, "dk", out->k);
    plan_out(p, "dv", out->v);
    attention_attrs(p, n);
}

static plan_qkv gradients_of(plan *p, plan_tensor q, plan_tensor k, plan_tensor v)
{
    return (plan_qkv){plan_grad(p, q, p->act), plan_grad(p, k, p->act), plan_grad(p, v, p->act)};
}

/* --- all_gather --------------------------------------------------------------------------------------------- */

/* Rows of s of every cp rank, where they are not equal. */
static void uneven_counts(plan *p)
{
    int64_t *counts = plan_integers(p, p->cp);
    bool even = true;
    for (int r = 0; counts != NULL && r < p->cp; r++) {
        counts[r] = assay_sequence_region_length(p->job->grid, p->S, r);
        even = even && counts[r] == counts[0];
    }
    if (!even)
        plan_list(p, "counts", counts, p->cp);
}

static void over_cp(plan *p, const char *op, const char *at, plan_tensor send, plan_tensor recv)
{
    plan_add_collective(p, op, at, ASSAY_GROUP_CP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    uneven_counts(p);
}

static plan_tensor gather(plan *p, const char *at, plan_tensor piece)
{
    const plan_tensor whole = plan_value(p, at, "recv", piece.dtype);
    over_cp(p, "all_gather", at, piece, whole);
    return whole;
}

static seen gathered_inputs(plan *p, const plan_context *c)
{
    return (seen){c->q, c->k, c->v, query_positions(p), key_positions(p), plan_document_start(p, false)};
}

static const char core[] = "self_attention.core_attention";

static void all_gather_forward(plan *p, plan_context *c)
{
    const sizes n = {p->sequence.region.length, p->S, 1};
    c->q = c->own.q;
    c->k = c->own.k;
    c->v = c->own.v;
    if (p->cp > 1) {
        c->k = gather(p, "self_attention.gather_k", c->own.k);
        c->v = gather(p, "self_attention.gather_v", c->own.v);
    }
    const seen x = gathered_inputs(p, c);
    attention_forward(p, core, &x, &n, &c->attended, &c->lse);
    c->o = c->attended;
}

static plan_qkv all_gather_backward(plan *p, const plan_context *c, plan_tensor d_o)
{
    const sizes n = {p->sequence.region.length, p->S, 1};
    const plan_qkv own = gradients_of(p, c->own.q, c->own.k, c->own.v),
                   all = gradients_of(p, c->q, c->k, c->v);
    const seen x = gathered_inputs(p, c);
    attention_backward(p, core, &x, &n, c, d_o, &all);
    if (p->cp > 1) {
        over_cp(p, "reduce_scatter", "self_attention.gather_k", all.k, own.k);
        over_cp(p, "reduce_scatter", "self_attention.gather_v", all.v, own.v);
    }
    return own;
}

/* --- a2a ---------------------------------------------------------------------------------------------------- */

/* Heads of this tp rank and the width of each. */
typedef struct widths {
    int64_t heads, dim;
} widths;

static widths of_output(plan *p)
{
    return (widths){plan_local_heads(p), assay_config_value_dim(p->job->config)};
}

/* letter: q, k, v */
static widths of(plan *p, char letter)
{
    const assay_model_config *c = p->job->config;
    return (widths){letter == 'q' ? plan_local_heads(p) : plan_local_groups(p),
                    letter == 'v' ? assay_config_value_dim(c) : c->kv_channels};
}

static void repack(plan *p, const char *op, const char *at, plan_tensor x, plan_tensor y, widths w)
{
    plan_add(p, op, at);
    plan_in(p, "x", x);
    plan_out(p, "y", y);
    plan_int(p, "heads", w.heads);
    plan_int(p, "head_dim", w.dim);
    plan_int(p, "parts", p->cp);
}

/* outward: one packed part for each rank, the positions of each rank arrive. */
static void exchange(plan *p, const char *at, plan_tensor send, plan_tensor recv, bool outward)
{
    int64_t *parts = plan_integers(p, p->cp), *positions = plan_integers(p, p->cp);
    for (int r = 0; parts != NULL && positions != NULL && r < p->cp; r++) {
        parts[r] = 1;
        positions[r] = assay_sequence_region_length(p->job->grid, p->S, r);
    }
    plan_add_collective(p, "all_to_all", at, ASSAY_GROUP_CP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    plan_list(p, "counts", outward ? parts : positions, p->cp);
    plan_list(p, "recv_counts", outward ? positions : parts, p->cp);
}

static plan_tensor deal_out(plan *p, char letter, plan_tensor x)
{
    const char *pack = plan_text(p, "self_attention.pack_%c", letter);
    const char *a2a = plan_text(p, "self_attention.a2a_%c", letter);
    const plan_tensor packed = plan_value(p, pack, "y", x.dtype), all = plan_value(p, a2a, "recv", x.dtype);
    repack(p, "pack_heads", pack, x, packed, of(p, letter));
    exchange(p, a2a, packed, all, true);
    return all;
}

static void deal_back(plan *p, char letter, const plan_tensor *forward, plan_tensor dall, plan_tensor dx)
{
    const char *pack = plan_text(p, "self_attention.pack_%c", letter);
    const plan_tensor packed = {.name = plan_text(p, "%s.y.grad", plan_at(p, pack)),
                                .phase = p->phase,
                                .microbatch = p->microbatch,
                                .dtype = forward->dtype};
    exchange(p, plan_text(p, "self_attention.a2a_%c", letter), dall, packed, false);
    repack(p, "unpack_heads", pack, packed, dx, of(p, letter));
}

static void a2a_forward(plan *p, plan_context *c)
{
    const sizes n = {p->S, p->S, p->cp};
    c->q = deal_out(p, 'q', c->own.q);
    c->k = deal_out(p, 'k', c->own.k);
    c->v = deal_out(p, 'v', c->own.v);
    const seen x = {c->q, c->k, c->v, key_positions(p), key_positions(p), plan_document_start(p, true)};
    attention_forward(p, core, &x, &n, &c->attended, &c->lse);
    c->packed_o = plan_value(p, "self_attention.a2a_o", "recv", p->act);
    c->o = plan_value(p, "self_attention.unpack_o", "y", p->act);
    exchange(p, "self_attention.a2a_o", c->attended, c->packed_o, false);
    repack(p, "unpack_heads", "self_attention.unpack_o", c->packed_o, c->o, of_output(p));
}

static plan_qkv a2a_backward(plan *p, const plan_context *c, plan_tensor d_o)
{
    const sizes n = {p->S, p->S, p->cp};
    const plan_qkv own = gradients_of(p, c->own.q, c->own.k, c->own.v),
                   all = gradients_of(p, c->q, c->k, c->v);
    const plan_tensor packed = plan_grad(p, c->packed_o, p->act),
                      dattended = plan_grad(p, c->attended, p->act);
    const seen x = {c->q, c->k, c->v, key_positions(p), key_positions(p), plan_document_start(p, true)};
    repack(p, "pack_heads", "self_attention.unpack_o", d_o, packed, of_output(p));
    exchange(p, "self_attention.a2a_o", packed, dattended, true);
    attention_backward(p, core, &x, &n, c, dattended, &all);
    deal_back(p, 'q', &c->q, all.q, own.q);
    deal_back(p, 'k', &c->k, all.k, own.k);
    deal_back(p, 'v', &c->v, all.v, own.v);
    return own;
}

/* --- p2p ---------------------------------------------------------------------------------------------------- */

static const char *step_of(plan *p, const char *what, int step)
{
    return plan_text(p, "self_attention.%s.%d", what, step);
}

/* Two values leave for the rank behind, two arrive from the one before. */
static void travel(plan *p, int step, const char *const slots[2], const plan_tensor sent[2],
                   const plan_tensor arrived[2])
{
    for (int i = 0; i < 4; i++) {
        const bool send = i < 2;
        const plan_tensor t = send ? sent[i] : arrived[i - 2];
        plan_add_collective(
            p, send ? "send" : "recv",
            plan_text(p, "self_attention.ring.%d.%s_%s", step, send ? "send" : "recv", slots[i % 2]),
            ASSAY_GROUP_CP, t.dtype);
        (send ? plan_in : plan_out)(p, send ? "send" : "recv", t);
        plan_int(p, "peer", (p->at.cp + (send ? 1 : p->cp - 1)) % p->cp);
    }
}

/* The block of the step: the rank's own, or what arrives. */
static void next_block(plan *p, const plan_context *c, int step, plan_tensor block[2])
{
    static const char *const slots[2] = {"k", "v"};
    const plan_tensor last[2] = {block[0], block[1]};
    block[0] = c->own.k;
    block[1] = c->own.v;
    if (step == 0)
        return;
    for (int i = 0; i < 2; i++)
        block[i] = plan_value(p, step_of(p, "ring", step), slots[i], p->act);
    travel(p, step, slots, last, block);
}

static seen block_inputs(plan *p, const plan_context *c, int step, const plan_tensor block[2], sizes *n)
{
    assay_sequence_map map;
    const int rank =
        assay_grid_rank(p->job->grid, p->at.tp, (p->at.cp + p->cp - step) % p->cp, p->at.dp, p->at.pp);
    const assay_status st = assay_sequence_map_make(p->job->grid, rank, p->S, &map);
    p->st = p->st == ASSAY_OK ? st : p->st;
    *n = (sizes){p->sequence.region.length, map.region.length, 1};
    return (seen){c->own.q,
                  block[0],
                  block[1],
                  query_positions(p),
                  step == 0 ? query_positions(p)
                            : position_leaf(p, plan_text(p, "key_position_ids.%d", step), &map.region),
                  plan_document_start(p, false)};
}

static void merge(plan *p, plan_context *c, int step, plan_tensor o_b, plan_tensor lse_b)
{
    const bool last = step == p->cp - 1;
    const char *at = last ? core : step_of(p, "merge", step);
    const plan_tensor o = plan_value(p, at, "o", last ? p->act : p->accumulated);
    const plan_tensor lse = plan_value(p, at, "lse", p->accumulated);
    plan_add(p, "attention_merge", at);
    plan_in(p, "o_a", c->o);
    plan_in(p, "lse_a", c->lse);
    plan_in(p, "o_b", o_b);
    plan_in(p, "lse_b", lse_b);
    plan_out(p, "o", o);
    plan_out(p, "lse", lse);
    plan_int(p, "heads", plan_local_heads(p));
    plan_int(p, "head_dim", assay_config_value_dim(p->job->config));
    plan_word(p, "dtype", assay_dtype_name(o.dtype));
    c->o = o;
    c->lse = lse;
}

static void p2p_forward(plan *p, plan_context *c)
{
    plan_tensor block[2] = {{0}}, o, lse;
    for (int step = 0; step < p->cp && p->st == ASSAY_OK; step++) {
        sizes n;
        next_block(p, c, step, block);
        const seen x = block_inputs(p, c, step, block, &n);
        attention_forward(p, step_of(p, "core_attention", step), &x, &n, &o, &lse);
        if (step > 0) {
            merge(p, c, step, o, lse);
            continue;
        }
        c->o = o;
        c->lse = lse;
    }
    c->attended = c->o;
}

static void add_parts(plan *p, int step, plan_tensor sums[2], const plan_tensor parts[2])
{
    static const char *const slots[2] = {"dk", "dv"};
    plan_tensor arrived[2];
    for (int i = 0; i < 2; i++)
        arrived[i] = plan_value(p, step_of(p, "ring", step), slots[i], p->act);
    travel(p, step, slots, sums, arrived);
    for (int i = 0; i < 2; i++) {
        const char *at = plan_text(p, "self_attention.ring.%d.add_%s", step, slots[i]);
        sums[i] = plan_add_op(p, at, arrived[i], parts[i], plan_value(p, at, "y", p->act));
    }
}

static plan_qkv p2p_backward(plan *p, const plan_context *c, plan_tensor d_o)
{
    static const char *const slots[2] = {"dk", "dv"};
    const plan_qkv own = gradients_of(p, c->own.q, c->own.k, c->own.v);
    plan_tensor block[2] = {{0}}, sums[2] = {{0}}, dq = {0};
    for (int step = 0; step < p->cp && p->st == ASSAY_OK; step++) {
        const char *at = step_of(p, "core_attention", step);
        sizes n;
        next_block(p, c, step, block);
        const seen x = block_inputs(p, c, step, block, &n);
        const plan_qkv part = {plan_value(p, at, "dq", p->act), plan_value(p, at, "dk", p->act),
                               plan_value(p, at, "dv", p->act)};
        const plan_tensor parts[2] = {part.k, part.v};
        attention_backward(p, at, &x, &n, c, d_o, &part);
        if (step == 0) {
            dq = part.q;
            sums[0] = part.k;
            sums[1] = part.v;
            continue;
        }
        const char *add = plan_text(p, "self_attention.ring.%d.add_dq", step);
        dq = plan_add_op(p, add, dq, part.q, step == p->cp - 1 ? own.q : plan_value(p, add, "y", p->act));
        add_parts(p, step, sums, parts);
    }
    const plan_tensor home[2] = {own.k, own.v};
    travel(p, p->cp, slots, sums, home);
    return own;
}

/* --- the ways to reach the keys of the other ranks; with cp = 1 the first ------------------------------------ */

static const struct {
    void (*forward)(plan *p, plan_context *c);
    plan_qkv (*backward)(plan *p, const plan_context *c, plan_tensor d_o);
} comm[ASSAY_CP_COMM_COUNT] = {
    [ASSAY_CP_ALL_GATHER] = {all_gather_forward, all_gather_backward},
    [ASSAY_CP_A2A] = {a2a_forward, a2a_backward},
    [ASSAY_CP_P2P] = {p2p_forward, p2p_backward},
};

plan_context plan_context_forward(plan *p, plan_tensor q, plan_tensor k, plan_tensor v)
{
    plan_context c = {.own = {q, k, v}};
    comm[p->job->grid->p.cp_comm_type].forward(p, &c);
    return c;
}

plan_qkv plan_context_backward(plan *p, const plan_context *c, plan_tensor d_o)
{
    return comm[p->job->grid->p.cp_comm_type].backward(p, c, d_o);
}
