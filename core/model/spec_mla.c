/* Parameters of the MLA mixer (multi-latent attention): q and kv are compressed, normalised and expanded per head; one
 * key part with positions is shared by all heads.  Rows of a head: [without position, with] of q, [key without position, value]
 * of kv; those with positions in pairs, as files hold them.  Source: Megatron-LM multi_latent_attention.py, DeepSeek-V3. */
#include "core/model/spec_internal.h"

/* A compressing linear: as its norm whole on every tp rank; with sequence parallelism each rank sees its own rows. */
static void add_down(assay_spec_builder *b, assay_param_kind kind, const char *weight, int64_t rows)
{
    assay_spec_set_partial(assay_spec_add(b, kind, weight, rows, b->c->hidden_size, 0), true);
}

static void add_heads(assay_spec_builder *b, assay_param_kind kind, const char *weight, int64_t width_of_head,
                      int64_t columns)
{
    assay_param_spec *p =
        assay_spec_add(b, kind, weight, b->c->num_attention_heads * width_of_head, columns, 0);
    p->axis[0] = ASSAY_AXIS_TP;
}

void assay_spec_add_mla(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t qk = c->qk_head_dim + c->qk_pos_emb_head_dim;
    if (c->q_lora_rank > 0) {
        add_down(b, ASSAY_KIND_MLA_Q_DOWN, "self_attention.linear_q_down_proj.weight", c->q_lora_rank);
        assay_spec_add_norm(b, ASSAY_KIND_MLA_Q_NORM, "self_attention.q_layernorm.weight", c->q_lora_rank,
                            false);
        add_heads(b, ASSAY_KIND_MLA_Q_UP, "self_attention.linear_q_up_proj.weight", qk, c->q_lora_rank);
    } else {
        add_heads(b, ASSAY_KIND_MLA_Q, "self_attention.linear_q_proj.weight", qk, c->hidden_size);
    }
    add_down(b, ASSAY_KIND_MLA_KV_DOWN, "self_attention.linear_kv_down_proj.weight",
             c->kv_lora_rank + c->qk_pos_emb_head_dim);
    assay_spec_add_norm(b, ASSAY_KIND_MLA_KV_NORM, "self_attention.kv_layernorm.weight", c->kv_lora_rank,
                        false);
    add_heads(b, ASSAY_KIND_MLA_KV_UP, "self_attention.linear_kv_up_proj.weight",
              c->qk_head_dim + c->v_head_dim, c->kv_lora_rank);
    assay_param_spec *p = assay_spec_add(b, ASSAY_KIND_PROJ_WEIGHT, "self_attention.linear_proj.weight",
                                         c->hidden_size, c->num_attention_heads * c->v_head_dim, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
}
