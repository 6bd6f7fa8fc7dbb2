/* Lattice inputs of multi-latent attention's copies and rotations: whole numbers that turn by whole quarters, so that a sum over heads
 * has no rounding but its last one. */
#include "parity/checks/request.h"

/* Tables of 0 and 1. */
static double quarter_cos(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 3 == 0 ? 1.0 : 0.0;
}

static double quarter_sin(const parity_ask *q, int64_t i)
{
    return 1.0 - quarter_cos(q, i);
}

static void add_tables(parity_ask *q, int64_t t, int64_t rotary)
{
    const int64_t positions = 11;
    int64_t position[32];
    for (int64_t i = 0; i < t; i++)
        position[i] = (i * 7 + 3) % positions;
    parity_ask_2d(q, "cos", ASSAY_F32, positions, rotary / 2, quarter_cos);
    parity_ask_2d(q, "sin", ASSAY_F32, positions, rotary / 2, quarter_sin);
    parity_ask_i64(q, "position", t, position);
}

static void add_split(parity_ask *q, int64_t t, int64_t latent, int64_t pos)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "kv_down_split_bwd" : "kv_down_split_fwd");
        if (back) {
            parity_ask_2d(q, "dkv_compressed", q->act, t, latent, parity_unique);
            parity_ask_2d(q, "dk_pos_emb", q->act, t, pos, parity_unique);
        } else {
            parity_ask_2d(q, "kv_combined", q->act, t, latent + pos, parity_unique);
        }
        parity_ask_int(q, "kv_lora_rank", latent);
        parity_ask_int(q, "qk_pos_emb_head_dim", pos);
        parity_ask_finish(q);
    }
}

static void add_q(parity_ask *q, int64_t t, int64_t heads, int64_t d, int64_t rotary)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "mla_rope_q_bwd" : "mla_rope_q_fwd");
        if (back)
            parity_ask_real(q, "dy", q->act, 3, (int64_t[]){t, heads, d}, parity_unique);
        else
            parity_ask_2d(q, "q", q->act, t, heads * d, parity_unique);
        add_tables(q, t, rotary);
        parity_ask_int(q, "heads", heads);
        parity_ask_int(q, "head_dim", d);
        parity_ask_finish(q);
    }
}

static void add_kv(parity_ask *q, int64_t t, int64_t heads, int64_t nope, int64_t value, int64_t rotary)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "mla_rope_kv_bwd" : "mla_rope_kv_fwd");
        add_tables(q, t, rotary);
        if (back) {
            parity_ask_real(q, "dk", q->act, 3, (int64_t[]){t, heads, nope + rotary}, parity_unique);
            parity_ask_real(q, "dv", q->act, 3, (int64_t[]){t, heads, value}, parity_unique);
        } else {
            parity_ask_2d(q, "kv", q->act, t, heads * (nope + value), parity_unique);
            parity_ask_2d(q, "k_pos_emb", q->act, t, rotary, parity_unique);
        }
        parity_ask_int(q, "heads", heads);
        parity_ask_int(q, "qk_head_dim", nope);
        parity_ask_int(q, "v_head_dim", value);
        parity_ask_finish(q);
    }
}

void parity_ask_lattice_mla(parity_ask *q)
{
    q->tier = "exact";
    add_split(q, 5, 7, 3);
    add_split(q, 1, 40, 8);
    add_split(q, 0, 4, 2);
    add_split(q, 3, 0, 8);
    add_q(q, 5, 3, 11, 8);
    add_q(q, 7, 1, 40, 16); /* eights */
    add_q(q, 0, 2, 5, 4);
    add_q(q, 9, 3, 2, 2);
    add_q(q, 3, 2, 72, 64);
    add_kv(q, 5, 3, 3, 5, 8);
    add_kv(q, 7, 1, 8, 16, 16);
    add_kv(q, 0, 2, 4, 2, 4);
    add_kv(q, 9, 3, 0, 1, 2);
    add_kv(q, 3, 5, 16, 8, 64);
    add_kv(q, 2, 131, 8, 8, 16);
}
