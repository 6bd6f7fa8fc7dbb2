/* Attention over cp. */
#include "gpu/parallel/context.h"

#include "gpu/documents.h"
#include "gpu/dropout.h"

#include <math.h>
#include <stdio.h>

/* One call of attention: what it reads, and how much of the model's heads and positions that is. */
typedef struct attention {
    const char *at;
    gpu_value *q, *k, *v, *q_position, *k_position, *first_key; /* first_key NULL: rows are one document */
    int64_t seq_q, seq_k, parts; /* parts: ranks over which the heads are dealt out */
} attention;

#define ATTENTION_SLOTS(x)                                                                                   \
    GPU_T("q", (x)->q), GPU_T("k", (x)->k), GPU_T("v", (x)->v), GPU_T("q_position", (x)->q_position),        \
        GPU_T("k_position", (x)->k_position), GPU_T("first_key", (x)->first_key)
#define ATTENTION_ATTRS(m, l, x)                                                                             \
    GPU_I("batch", (m)->B), GPU_I("seq_q", (x)->seq_q), GPU_I("seq_k", (x)->seq_k),                          \
        GPU_I("heads", (m)->heads / (x)->parts), GPU_I("groups", (m)->groups / (x)->parts),                  \
        GPU_I("head_dim", (m)->config->kv_channels), GPU_I("head_dim_v", (m)->config->kv_channels),          \
        GPU_F("scale", (double)(float)(1.0 / sqrt((double)(m)->config->kv_channels))),                       \
        GPU_I("window", (l)->window)

/* This rank's piece of n things that tp cuts, and cp, too, where the heads are dealt out. */
static gpu_dim dealt(const gpu_model *m, int64_t n, int64_t parts)
{
    const gpu_dim whole = gpu_dim_tp(m, n, 1);
    const int64_t each = whole.length / parts;
    return gpu_dim_piece(n, whole.start + (parts > 1 ? m->at.cp * each : 0), each);
}

/* o (or lse: d = 1) of `x`. */
static gpu_value result_of(const gpu_model *m, gpu_arena *arena, const attention *x, int64_t d)
{
    const gpu_dim dim[3] = {x->parts > 1 ? gpu_dim_gathered(m) : gpu_dim_sequence(m, false), gpu_dim_batch(m),
                            dealt(m, m->config->num_attention_heads * d, x->parts)};
    return gpu_value_describe(arena, 3, dim, 0);
}

/* Where probabilities are dropped: which mask, and which part of it.  Without dropout the call has no such attribute. */
static void add_dropout(gpu_model *m, const gpu_layer *l, const attention *x, gpu_call_args *args)
{
    const double p = m->options->attention_dropout;
    const gpu_mask_attrs mask = gpu_dropout_mask(m, GPU_DROP_PROBS, l->number);
    const gpu_arg attrs[] = {GPU_F("dropout_p", p),
                             GPU_I("seed", mask.seed),
                             GPU_I("stream", mask.stream),
                             GPU_I("draw", mask.draw),
                             GPU_I("first_row", m->row0),
                             GPU_I("all_rows", m->B_global),
                             GPU_I("first_head", dealt(m, m->config->num_attention_heads, x->parts).start),
                             GPU_I("all_heads", m->config->num_attention_heads),
                             GPU_I("all_keys", m->S)};
    int n = 0;
    while (n < GPU_CALL_ARGS && args->arg[n].name)
        n++;
    for (size_t i = 0; p > 0.0 && i < sizeof attrs / sizeof attrs[0]; i++)
        args->arg[n++] = attrs[i];
}

/* o and lse are described. */
static assay_status attention_fwd(gpu_model *m, const gpu_layer *l, const attention *x, gpu_value *o,
                                  gpu_value *lse)
{
    gpu_call_args args = {
        .op = "attention_fwd",
        .at = x->at,
        .arg = {ATTENTION_SLOTS(x), ATTENTION_ATTRS(m, l, x), GPU_T("o", o), GPU_T("lse", lse)}};
    add_dropout(m, l, x, &args);
    return gpu_call(m->run, &args);
}

/* dq, dk, dv are described. */
static assay_status attention_bwd(gpu_model *m, const gpu_layer *l, const attention *x, gpu_value *d_o,
                                  gpu_value *o, gpu_value *lse, gpu_value *dq, gpu_value *dk, gpu_value *dv)
{
    gpu_call_args args = {.op = "attention_bwd",
                          .at = x->at,
                          .arg = {GPU_T("do", d_o), ATTENTION_SLOTS(x), GPU_T("o", o), GPU_T("lse", lse),
                                  ATTENTION_ATTRS(m, l, x), GPU_T("dq", dq), GPU_T("dk", dk),
                                  GPU_T("dv", dv)}};
    add_dropout(m, l, x, &args);
    return gpu_call(m->run, &args);
}

/* --- all_gather --------------------------------------------------------------------------------------------- */
/* *whole = the pieces of the cp ranks, one after the other. */
static assay_status gather(gpu_model *m, gpu_arena *arena, const char *at, gpu_value *whole, gpu_value *piece)
{
    *whole = gpu_value_describe(arena, piece->ndim, piece->dim, piece->merge);
    whole->dim[0] = gpu_dim_gathered(m);
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = m->region_rows,
                                             .arg = {GPU_T("send", piece), GPU_T("recv", whole)}});
}

/* *dpiece = this rank's positions of the sum over cp of dwhole: the gradient of `piece`. */
static assay_status gather_bwd(gpu_model *m, const char *at, gpu_value *dpiece, gpu_value *dwhole,
                               const gpu_value *piece)
{
    *dpiece = gpu_partial_kv(m, gpu_grad_of(m, piece));
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = m->region_rows,
                                             .arg = {GPU_T("send", dwhole), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", dpiece)}});
}

static attention over_gathered(gpu_model *m, gpu_attention_acts *a)
{
    return (attention){.at = "self_attention.core_attention",
                       .q = &a->queries,
                       .k = &a->keys,
                       .v = &a->values,
                       .q_position = &m->position,
                       .k_position = m->cp > 1 ? &m->key_position : &m->position,
                       .first_key = gpu_documents_start(a->documents, false),
                       .seq_q = m->sequence.region.length,
                       .seq_k = m->S,
                       .parts = 1};
}

static assay_status all_gather_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const attention x = over_gathered(m, a);
    a->queries = a->q;
    a->keys = a->k;
    a->values = a->v;
    if (m->cp > 1) {
        ASSAY_TRY(gather(m, keep, "self_attention.gather_k", &a->keys, &a->k));
        ASSAY_TRY(gather(m, keep, "self_attention.gather_v", &a->values, &a->v));
    }
    a->o = result_of(m, keep, &x, m->config->kv_channels);
    a->lse = result_of(m, keep, &x, 1);
    ASSAY_TRY(attention_fwd(m, l, &x, &a->o, &a->lse));
    a->attended = a->o;
    return ASSAY_OK;
}

static assay_status all_gather_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                   gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    const attention x = over_gathered(m, a);
    gpu_value dkeys = gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->keys), ASSAY_GROUP_CP));
    gpu_value dvalues = gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->values), ASSAY_GROUP_CP));
    *dq = gpu_grad_of(m, &a->q);
    ASSAY_TRY(attention_bwd(m, l, &x, d_o, &a->attended, &a->lse, dq, &dkeys, &dvalues));
    *dk = dkeys;
    *dv = dvalues;
    if (m->cp == 1)
        return ASSAY_OK;
    ASSAY_TRY(gather_bwd(m, "self_attention.gather_k", dk, &dkeys, &a->k));
    return gather_bwd(m, "self_attention.gather_v", dv, &dvalues, &a->v);
}

/* --- a2a ---------------------------------------------------------------------------------------------------- */
/* [P,T,width/P], meaningful here alone: the heads of every cp rank together. */
static gpu_value packed_of(gpu_model *m, int64_t width)
{
    const gpu_dim dim[4] = {gpu_dim_whole(m->cp), gpu_dim_whole(m->sequence.region.length),
                            gpu_dim_whole(m->B), gpu_dim_whole(width / m->cp)};
    gpu_value v = gpu_value_describe(&m->scratch, 4, dim, 1);
    v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

/* x and y: [T,heads,D] and [P,T,heads/P,D] of this rank, or the other way round. */
static assay_status repack(gpu_model *m, const char *op, const char *at, gpu_value *y, gpu_value *x,
                           int64_t heads)
{
    return GPU_CALL(m->run, op, at, GPU_T("x", x), GPU_I("heads", heads),
                    GPU_I("head_dim", m->config->kv_channels), GPU_I("parts", m->cp), GPU_T("y", y));
}

/* outward: packed heads of the own positions -> own heads of all positions; else the way back. */
static assay_status exchange(gpu_model *m, const char *at, gpu_value *recv, gpu_value *send, bool outward)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_to_all",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = outward ? m->one_each : m->region_rows,
                                             .recv_counts = outward ? m->region_rows : m->one_each,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

/* *all = x [S,B,heads,D] with the heads dealt out and the sequence gathered. */
static assay_status heads_to_sequence(gpu_model *m, gpu_arena *keep, const char *pack, const char *a2a,
                                      gpu_value *all, gpu_value *x, int64_t heads)
{
    gpu_value packed = packed_of(m, heads * m->config->kv_channels);
    ASSAY_TRY(repack(m, "pack_heads", pack, &packed, x, heads));
    *all = gpu_value_describe(keep, x->ndim, x->dim, x->merge);
    all->dim[0] = gpu_dim_gathered(m);
    all->dim[2] = dealt(m, x->dim[2].global, m->cp);
    return exchange(m, a2a, all, &packed, true);
}

static assay_status heads_to_sequence_bwd(gpu_model *m, const char *pack, const char *a2a, gpu_value *dx,
                                          gpu_value *dall, const gpu_value *x, int64_t heads)
{
    gpu_value packed = gpu_named(m, packed_of(m, heads * m->config->kv_channels), pack, "y.grad");
    ASSAY_TRY(exchange(m, a2a, &packed, dall, false));
    *dx = gpu_grad_of(m, x);
    return repack(m, "unpack_heads", pack, dx, &packed, heads);
}

static attention over_heads(gpu_model *m, gpu_attention_acts *a)
{
    return (attention){.at = "self_attention.core_attention",
                       .q = &a->queries,
                       .k = &a->keys,
                       .v = &a->values,
                       .q_position = &m->key_position,
                       .k_position = &m->key_position,
                       .first_key = gpu_documents_start(a->documents, true),
                       .seq_q = m->S,
                       .seq_k = m->S,
                       .parts = m->cp};
}

static assay_status a2a_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const attention x = over_heads(m, a);
    const int64_t width = m->config->num_attention_heads * m->config->kv_channels;
    gpu_value packed = packed_of(m, m->heads * m->config->kv_channels);
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_q", "self_attention.a2a_q", &a->queries, &a->q,
                                m->heads));
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_k", "self_attention.a2a_k", &a->keys, &a->k,
                                m->groups));
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_v", "self_attention.a2a_v", &a->values, &a->v,
                                m->groups));
    a->attended = result_of(m, keep, &x, m->config->kv_channels);
    a->lse = result_of(m, keep, &x, 1);
    ASSAY_TRY(attention_fwd(m, l, &x, &a->attended, &a->lse));
    ASSAY_TRY(exchange(m, "self_attention.a2a_o", &packed, &a->attended, false));
    a->o = gpu_tokens(m, keep, false, gpu_dim_tp(m, width, 1));
    return repack(m, "unpack_heads", "self_attention.unpack_o", &a->o, &packed, m->heads);
}

static assay_status a2a_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                            gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    const attention x = over_heads(m, a);
    gpu_value packed =
        gpu_named(m, packed_of(m, m->heads * m->config->kv_channels), "self_attention.a2a_o", "recv.grad");
    gpu_value dattended = gpu_grad_of(m, &a->attended), dqueries = gpu_grad_of(m, &a->queries),
              dkeys = gpu_grad_of(m, &a->keys), dvalues = gpu_grad_of(m, &a->values);
    ASSAY_TRY(repack(m, "pack_heads", "self_attention.unpack_o", &packed, d_o, m->heads));
    ASSAY_TRY(exchange(m, "self_attention.a2a_o", &dattended, &packed, true));
    ASSAY_TRY(attention_bwd(m, l, &x, &dattended, &a->attended, &a->lse, &dqueries, &dkeys, &dvalues));
    ASSAY_TRY(heads_to_sequence_bwd(m, "self_attention.pack_q", "self_attention.a2a_q", dq, &dqueries, &a->q,
                                    m->heads));
    ASSAY_TRY(heads_to_sequence_bwd(m, "self_attention.pack_k", "self_attention.a2a_k", dk, &dkeys, &a->k,
                                    m->groups));
    return heads_to_sequence_bwd(m, "self_attention.pack_v", "self_attention.a2a_v", dv, &dvalues, &a->v,
                                 m->groups);
}

/* --- p2p ---------------------------------------------------------------------------------------------------- */
/* "self_attention." + what + "." + step */
static const char *step_of(const char *what, int step, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "self_attention.%s.%d", what, step);
    return out;
}

/* Memory of two blocks that take turns: what a step reads stays while the next is made, however long the ring is. */
typedef struct turns {
    void *data[2];
    assay_dtype dtype;
} turns;

/* width: elements of a token; longest: positions of the longest block. */
static assay_status take_turns(gpu_model *m, turns *t, assay_dtype dtype, int64_t width)
{
    int64_t longest = 0;
    for (int r = 0; r < m->cp; r++)
        longest = m->region_rows[r] > longest ? m->region_rows[r] : longest;
    t->dtype = dtype;
    for (int i = 0; i < 2; i++)
        ASSAY_TRY(gpu_arena_take(
            &m->scratch, (size_t)(longest * m->B * width) * (size_t)assay_dtype_bytes(dtype), &t->data[i]));
    return ASSAY_OK;
}

/* A described and named value in the memory of the step. */
static gpu_value in_turn(gpu_value v, const turns *t, int step)
{
    gpu_value_place(&v, t->dtype, t->data[step % 2]);
    return v;
}

/* Two values on their way around the ring: to the cp rank behind, from the one before. */
typedef struct journey {
    gpu_value *sent[2], *arrived[2];
} journey;

/* The arrived ones are described, under their names. */
static assay_status travel(gpu_model *m, int step, const char *const slots[2], const journey *j)
{
    const int before = (m->at.cp + m->cp - 1) % m->cp, behind = (m->at.cp + 1) % m->cp;
    gpu_transfer list[4];
    char at[4][ASSAY_NAME];
    for (int i = 0; i < 4; i++) {
        const bool send = i < 2;
        const char *slot = slots[i % 2];
        gpu_value *v = send ? j->sent[i % 2] : j->arrived[i % 2];
        snprintf(at[i], sizeof at[i], "self_attention.ring.%d.%s_%s", step, send ? "send" : "recv", slot);
        if (!send && v->arena)
            ASSAY_TRY(gpu_value_make(v, m->act));
        list[i] = (gpu_transfer){
            .args = {.op = send ? "send" : "recv",
                     .at = at[i],
                     .group = ASSAY_GROUP_CP,
                     .arg = {GPU_T(send ? "send" : "recv", v), GPU_I("peer", send ? behind : before)}},
            .phase = m->run->phase,
            .microbatch = m->run->microbatch};
    }
    return gpu_call_exchange(m->run, list, 4);
}

/* Keys or values, or gradients of theirs, of the block that the rank has after `step` journeys. */
static gpu_value block_of(gpu_model *m, const gpu_value *own, int step, const char *at, const char *slot)
{
    gpu_value v = gpu_value_describe(&m->scratch, own->ndim, own->dim, own->merge);
    v.dim[0] = gpu_dim_positions(m->S, &m->ring[step]);
    return gpu_named(m, v, at, slot);
}

static const char *const keys_and_values[2] = {"k", "v"}, *const their_gradients[2] = {"dk", "dv"};

/* The block of the step: this rank's own, then what arrives. */
static assay_status next_block(gpu_model *m, const gpu_attention_acts *a, int step, gpu_value block[2],
                               const turns memory[2])
{
    const gpu_value *own[2] = {&a->k, &a->v};
    gpu_value last[2] = {block[0], block[1]};
    char at[ASSAY_NAME];
    for (int i = 0; i < 2; i++)
        block[i] = step == 0
                       ? *own[i]
                       : in_turn(block_of(m, own[i], step, step_of("ring", step, at), keys_and_values[i]),
                                 &memory[i], step);
    return step == 0 ? ASSAY_OK
                     : travel(m, step, keys_and_values,
                              &(journey){.sent = {&last[0], &last[1]}, .arrived = {&block[0], &block[1]}});
}

static attention over_block(gpu_model *m, gpu_attention_acts *a, gpu_value block[2], int step, const char *at)
{
    return (attention){.at = at,
                       .q = &a->q,
                       .k = &block[0],
                       .v = &block[1],
                       .q_position = &m->position,
                       .k_position = &m->ring_position[step],
                       .first_key = gpu_documents_start(a->documents, false),
                       .seq_q = m->sequence.region.length,
                       .seq_k = m->ring[step].length,
                       .parts = 1};
}

/* o, lse (described) = what was seen so far (a->o, a->lse) and what one more block shows. */
static assay_status merge(gpu_model *m, const char *at, gpu_attention_acts *a, gpu_value *o, gpu_value *lse,
                          assay_dtype dtype, gpu_value *o_b, gpu_value *lse_b)
{
    ASSAY_TRY(GPU_CALL(m->run, "attention_merge", at, GPU_T("o_a", &a->o), GPU_T("lse_a", &a->lse),
                       GPU_T("o_b", o_b), GPU_T("lse_b", lse_b), GPU_I("heads", m->heads),
                       GPU_I("head_dim", m->config->kv_channels), GPU_W("dtype", assay_dtype_name(dtype)),
                       GPU_T("o", o), GPU_T("lse", lse)));
    a->o = *o;
    a->lse = *lse;
    return ASSAY_OK;
}

/* The running result takes turns in F32; the last merge makes what attention alone would. */
static assay_status p2p_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const int64_t d = m->config->kv_channels;
    const assay_op_recipe *recipe = &m->run->recipe->op[ASSAY_OPS_ATTENTION];
    turns blocks[2], running[2];
    gpu_value block[2] = {a->k, a->v};
    ASSAY_TRY(take_turns(m, &blocks[0], m->act, m->groups * d));
    ASSAY_TRY(take_turns(m, &blocks[1], m->act, m->groups * d));
    ASSAY_TRY(take_turns(m, &running[0], recipe->accumulate, m->heads * d));
    ASSAY_TRY(take_turns(m, &running[1], recipe->accumulate, m->heads));
    for (int step = 0; step < m->cp; step++) {
        const size_t mark = m->scratch.used;
        const bool last = step == m->cp - 1;
        char at[ASSAY_NAME], at_merge[ASSAY_NAME];
        ASSAY_TRY(next_block(m, a, step, block, blocks));
        const attention x = over_block(m, a, block, step, step_of("core_attention", step, at));
        gpu_value part = result_of(m, &m->scratch, &x, d), part_lse = result_of(m, &m->scratch, &x, 1);
        if (step == 0) { /* the first running result is of act */
            a->o = gpu_named(m, part, at, "o");
            gpu_value_place(&a->o, recipe->act, running[0].data[0]);
            a->lse = in_turn(gpu_named(m, part_lse, at, "lse"), &running[1], 0);
            ASSAY_TRY(attention_fwd(m, l, &x, &a->o, &a->lse));
            continue;
        }
        ASSAY_TRY(attention_fwd(m, l, &x, &part, &part_lse));
        step_of("merge", step, at_merge);
        gpu_value o = result_of(m, keep, &x, d), lse = result_of(m, keep, &x, 1);
        if (!last) {
            o = in_turn(gpu_named(m, o, at_merge, "o"), &running[0], step);
            lse = in_turn(gpu_named(m, lse, at_merge, "lse"), &running[1], step);
        }
        ASSAY_TRY(merge(m, last ? "self_attention.core_attention" : at_merge, a, &o, &lse,
                        last ? recipe->act : recipe->accumulate, &part, &part_lse));
        gpu_arena_reset(&m->scratch, mark);
    }
    a->attended = a->o;
    return ASSAY_OK;
}

/* What a step's backward adds to: the gradient of q, and those of the block that is here. */
typedef struct sums {
    gpu_value dq, block[2];
    turns dq_memory, block_memory[2];
} sums;

/* The block's sums = what arrived of them and this rank's part. */
static assay_status add_parts(gpu_model *m, const gpu_attention_acts *a, int step, sums *s, gpu_value part[2])
{
    const gpu_value *own[2] = {&a->k, &a->v};
    gpu_value arrived[2];
    char at[ASSAY_NAME];
    for (int i = 0; i < 2; i++)
        arrived[i] =
            gpu_partial_kv(m, block_of(m, own[i], step, step_of("ring", step, at), their_gradients[i]));
    ASSAY_TRY(
        travel(m, step, their_gradients,
               &(journey){.sent = {&s->block[0], &s->block[1]}, .arrived = {&arrived[0], &arrived[1]}}));
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof at, "self_attention.ring.%d.add_%s", step, their_gradients[i]);
        s->block[i] =
            in_turn(gpu_partial_kv(m, block_of(m, own[i], step, at, "y")), &s->block_memory[i], step);
        ASSAY_TRY(GPU_CALL(m->run, "add", at, GPU_T("a", &arrived[i]), GPU_T("b", &part[i]),
                           GPU_T("y", &s->block[i])));
    }
    return ASSAY_OK;
}

/* The last sum is the gradient of q. */
static assay_status add_queries(gpu_model *m, const gpu_attention_acts *a, int step, sums *s, gpu_value *part)
{
    gpu_value before = s->dq, sum = gpu_grad_of(m, &a->q);
    char at[ASSAY_NAME];
    snprintf(at, sizeof at, "self_attention.ring.%d.add_dq", step);
    if (step < m->cp - 1)
        gpu_value_name(m->run, &sum, at, "y");
    s->dq = in_turn(sum, &s->dq_memory, step);
    return GPU_CALL(m->run, "add", at, GPU_T("a", &before), GPU_T("b", part), GPU_T("y", &s->dq));
}

static assay_status sums_take(gpu_model *m, sums *s, turns blocks[2])
{
    const int64_t d = m->config->kv_channels;
    ASSAY_TRY(take_turns(m, &s->dq_memory, m->act, m->heads * d));
    for (int i = 0; i < 2; i++) {
        ASSAY_TRY(take_turns(m, &s->block_memory[i], m->act, m->groups * d));
        ASSAY_TRY(take_turns(m, &blocks[i], m->act, m->groups * d));
    }
    return ASSAY_OK;
}

static assay_status p2p_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                            gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    gpu_value block[2] = {a->k, a->v};
    turns blocks[2];
    sums s;
    ASSAY_TRY(sums_take(m, &s, blocks));
    for (int step = 0; step < m->cp; step++) {
        const size_t mark = m->scratch.used;
        char at[ASSAY_NAME];
        ASSAY_TRY(next_block(m, a, step, block, blocks));
        const attention x = over_block(m, a, block, step, step_of("core_attention", step, at));
        gpu_value queries = gpu_named(m, gpu_grad_of(m, &a->q), at, "dq");
        gpu_value part[2] = {gpu_partial_kv(m, block_of(m, &a->k, step, at, "dk")),
                             gpu_partial_kv(m, block_of(m, &a->v, step, at, "dv"))};
        if (step == 0) {
            s.dq = in_turn(queries, &s.dq_memory, 0);
            for (int i = 0; i < 2; i++)
                s.block[i] = in_turn(part[i], &s.block_memory[i], 0);
            ASSAY_TRY(attention_bwd(m, l, &x, d_o, &a->attended, &a->lse, &s.dq, &s.block[0], &s.block[1]));
            continue;
        }
        ASSAY_TRY(attention_bwd(m, l, &x, d_o, &a->attended, &a->lse, &queries, &part[0], &part[1]));
        ASSAY_TRY(add_queries(m, a, step, &s, &queries));
        ASSAY_TRY(add_parts(m, a, step, &s, part));
        gpu_arena_reset(&m->scratch, mark);
    }
    *dq = s.dq;
    *dk = gpu_partial_kv(m, gpu_grad_of(m, &a->k)); /* home: one journey more */
    *dv = gpu_partial_kv(m, gpu_grad_of(m, &a->v));
    return travel(m, m->cp, their_gradients,
                  &(journey){.sent = {&s.block[0], &s.block[1]}, .arrived = {dk, dv}});
}

/* --- the ways to reach the keys of the other ranks; with cp = 1 the first ------------------------------------ */
static const struct {
    assay_status (*fwd)(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a);
    assay_status (*bwd)(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq, gpu_value *dk,
                        gpu_value *dv, gpu_value *d_o);
} comm[ASSAY_CP_COMM_COUNT] = {
    [ASSAY_CP_ALL_GATHER] = {all_gather_fwd, all_gather_bwd},
    [ASSAY_CP_A2A] = {a2a_fwd, a2a_bwd},
    [ASSAY_CP_P2P] = {p2p_fwd, p2p_bwd},
};

gpu_arena *gpu_context_own_arena(gpu_model *m, gpu_arena *keep)
{
    const bool again = (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN) != 0;
    return m->cp > 1 && m->grid->p.cp_comm_type != ASSAY_CP_P2P && !again ? &m->scratch : keep;
}

gpu_arena *gpu_context_query_arena(gpu_model *m, gpu_arena *keep)
{
    const bool again = (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN) != 0;
    return m->grid->p.cp_comm_type == ASSAY_CP_A2A && !again ? &m->scratch : keep;
}

assay_status gpu_context_attention_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l,
                                       gpu_attention_acts *a)
{
    return comm[m->grid->p.cp_comm_type].fwd(m, keep, l, a);
}

assay_status gpu_context_attention_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                       gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    return comm[m->grid->p.cp_comm_type].bwd(m, l, a, dq, dk, dv, d_o);
}
