/* Replay of multi-latent attention's split of compressed keys and values, and of its rotations. */
#include "ref/replay_context.h"

/* --- kv_down_split ------------------------------------------------------------------------------------------ */
static assay_status latent_sizes(const replay *r, int64_t *latent, int64_t *pos)
{
    ASSAY_TRY(replay_attr_i64(r, "kv_lora_rank", 0, ASSAY_CONFIG_MAX_DIM, latent));
    return replay_attr_i64(r, "qk_pos_emb_head_dim", 0, ASSAY_CONFIG_MAX_DIM, pos);
}

static assay_status kv_down_split_fwd(const replay *r)
{
    const ref_value *combined;
    int64_t latent, pos, t;
    double *compressed, *pos_emb;
    ASSAY_TRY(latent_sizes(r, &latent, &pos));
    ASSAY_TRY(replay_real(r, "kv_combined", -1, &combined));
    ASSAY_TRY(replay_divide(r, combined, latent + pos, &t));
    ASSAY_TRY(replay_out_exact(r, "kv_compressed", t * latent, combined->dtype, &compressed));
    ASSAY_TRY(replay_out_exact(r, "k_pos_emb", t * pos, combined->dtype, &pos_emb));
    ref_kv_down_split_fwd(compressed, pos_emb, combined->value, t, latent, pos);
    return ASSAY_OK;
}

static assay_status kv_down_split_bwd(const replay *r)
{
    const ref_value *compressed, *pos_emb;
    int64_t latent, pos, t, count;
    double *combined;
    ASSAY_TRY(latent_sizes(r, &latent, &pos));
    ASSAY_TRY(replay_real(r, "dkv_compressed", -1, &compressed));
    ASSAY_TRY(replay_divide(r, compressed, latent, &t));
    ASSAY_TRY(replay_product(r, t, pos, 1, &count));
    ASSAY_TRY(replay_real(r, "dk_pos_emb", count, &pos_emb));
    ASSAY_TRY(replay_product(r, t, latent + pos, 1, &count));
    ASSAY_TRY(replay_out_exact(r, "dkv_combined", count, compressed->dtype, &combined));
    ref_kv_down_split_bwd(combined, compressed->value, pos_emb->value, t, latent, pos);
    return ASSAY_OK;
}

/* --- rotation ----------------------------------------------------------------------------------------------- */
typedef struct rotation {
    const ref_value *cos, *sin, *position;
    int64_t t, half;
} rotation;

static assay_status rotation_of(const replay *r, rotation *m)
{
    int64_t table_rows;
    ASSAY_TRY(replay_real(r, "cos", -1, &m->cos));
    ASSAY_TRY(replay_real(r, "sin", m->cos->count, &m->sin));
    ASSAY_TRY(replay_integer(r, "position", -1, &m->position));
    m->t = m->position->count;
    m->half = replay_columns(m->cos);
    ASSAY_TRY(replay_divide(r, m->cos, m->half, &table_rows));
    ASSAY_CHECK(m->half <= ASSAY_CONFIG_MAX_DIM / 2, ASSAY_LIMIT, "%s: slot cos: %lld frequencies", r->op,
                (long long)m->half);
    return replay_range(r, m->position, 0, table_rows - 1);
}

static assay_status rope_q(const replay *r, const char *in, const char *out, bool back)
{
    const ref_value *x;
    rotation m;
    ref_pair y;
    int64_t heads, dim, count;
    ASSAY_TRY(rotation_of(r, &m));
    ASSAY_TRY(replay_attr_i64(r, "heads", 1, ASSAY_CONFIG_MAX_DIM, &heads));
    ASSAY_TRY(replay_attr_i64(r, "head_dim", 0, ASSAY_CONFIG_MAX_DIM, &dim));
    ASSAY_CHECK(m.half <= dim / 2, ASSAY_INVALID_ARGUMENT,
                "%s: slot cos: %lld frequencies do not fit heads of %lld", r->op, (long long)m.half,
                (long long)dim);
    ASSAY_TRY(replay_product(r, m.t, heads, dim, &count));
    ASSAY_TRY(replay_real(r, in, count, &x));
    ASSAY_TRY(replay_out_real(r, out, x->count, x->dtype, "rotation", &y));
    ref_bound_mla_rope_q(y, x->value, m.cos->value, m.sin->value, m.position->ivalue, 2 * m.half, m.t, heads,
                         dim, back, &r->d);
    return ASSAY_OK;
}

static assay_status mla_rope_q_fwd(const replay *r)
{
    return rope_q(r, "q", "y", false);
}

static assay_status mla_rope_q_bwd(const replay *r)
{
    return rope_q(r, "dy", "dx", true);
}

/* Elements of what is cut into heads, and of the position part. */
typedef struct kv_sizes {
    int64_t heads, nope, value, packed, k, v, pos;
} kv_sizes;

static assay_status kv_sizes_of(const replay *r, const rotation *m, kv_sizes *s)
{
    ASSAY_TRY(replay_attr_i64(r, "heads", 1, ASSAY_CONFIG_MAX_DIM, &s->heads));
    ASSAY_TRY(replay_attr_i64(r, "qk_head_dim", 0, ASSAY_CONFIG_MAX_DIM, &s->nope));
    ASSAY_TRY(replay_attr_i64(r, "v_head_dim", 0, ASSAY_CONFIG_MAX_DIM, &s->value));
    ASSAY_TRY(replay_product(r, m->t, s->heads, s->nope + s->value, &s->packed));
    ASSAY_TRY(replay_product(r, m->t, s->heads, s->nope + 2 * m->half, &s->k));
    ASSAY_TRY(replay_product(r, m->t, s->heads, s->value, &s->v));
    return replay_product(r, m->t, 2, m->half, &s->pos);
}

static assay_status mla_rope_kv_fwd(const replay *r)
{
    const ref_value *kv, *pos;
    rotation m;
    kv_sizes s;
    ref_pair k;
    double *v;
    ASSAY_TRY(rotation_of(r, &m));
    ASSAY_TRY(kv_sizes_of(r, &m, &s));
    ASSAY_TRY(replay_real(r, "kv", s.packed, &kv));
    ASSAY_TRY(replay_real(r, "k_pos_emb", s.pos, &pos));
    ASSAY_TRY(replay_out_real(r, "k", s.k, kv->dtype, "rotation", &k));
    ASSAY_TRY(replay_out_exact(r, "v", s.v, kv->dtype, &v));
    /* k's values are made twice, and those with bounds are the ones that stay */
    ref_mla_rope_kv_fwd(k.y, v, kv->value, pos->value, m.cos->value, m.sin->value, m.position->ivalue,
                        2 * m.half, m.t, s.heads, s.nope, s.value);
    ref_bound_mla_rope_k(k, kv->value, pos->value, m.cos->value, m.sin->value, m.position->ivalue, 2 * m.half,
                         m.t, s.heads, s.nope, s.value, &r->d);
    return ASSAY_OK;
}

static assay_status mla_rope_kv_bwd(const replay *r)
{
    const ref_value *dk, *dv;
    rotation m;
    kv_sizes s;
    ref_pair dpos;
    double *dkv;
    ASSAY_TRY(rotation_of(r, &m));
    ASSAY_TRY(kv_sizes_of(r, &m, &s));
    ASSAY_TRY(replay_real(r, "dk", s.k, &dk));
    ASSAY_TRY(replay_real(r, "dv", s.v, &dv));
    ASSAY_TRY(replay_out_exact(r, "dkv", s.packed, dk->dtype, &dkv));
    ASSAY_TRY(replay_out_real(r, "dk_pos_emb", s.pos, dk->dtype, "sum over heads", &dpos));
    ref_mla_rope_kv_bwd(dkv, dpos.y, dk->value, dv->value, m.cos->value, m.sin->value, m.position->ivalue,
                        2 * m.half, m.t, s.heads, s.nope, s.value);
    return ref_bound_mla_rope_dk(dpos, dk->value, m.cos->value, m.sin->value, m.position->ivalue, 2 * m.half,
                                 m.t, s.heads, s.nope, &r->d);
}

const replay_row replay_mla_table[] = {
    {"kv_down_split_fwd", kv_down_split_fwd},
    {"kv_down_split_bwd", kv_down_split_bwd},
    {"mla_rope_q_fwd", mla_rope_q_fwd},
    {"mla_rope_q_bwd", mla_rope_q_bwd},
    {"mla_rope_kv_fwd", mla_rope_kv_fwd},
    {"mla_rope_kv_bwd", mla_rope_kv_bwd},
    {NULL, NULL},
};
