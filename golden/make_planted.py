"""Traces of small Hugging Face runs with one fault each, and the model folders that they say they train, for `assay check`.

golden/planted/llama has the weights of golden/foreign's models (make_foreign.py), tied: the same with tie_word_embeddings,
moe: a Qwen3-MoE. honest_*: no fault. Every trace is one forward and backward pass. Run: python golden/make_planted.py
"""
import shutil
import sys

import torch
import transformers
from transformers.models.llama import modeling_llama

from files import GOLDEN, save_json, update_manifest
from make_foreign import CONFIG, SEED

import assay_trace

PLANTED = GOLDEN / "planted"
MOE = dict(vocab_size=29, hidden_size=16, intermediate_size=20, moe_intermediate_size=16, num_hidden_layers=1,
           num_attention_heads=4, num_key_value_heads=2, head_dim=4, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
           max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_dropout=0.0, use_cache=False,
           decoder_sparse_step=1, mlp_only_layers=[], output_router_logits=False, pad_token_id=None, bos_token_id=None,
           eos_token_id=None)


def model(kind, dtype=torch.float32, **config):
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    if kind == "moe":
        c, cls = transformers.Qwen3MoeConfig(**{**MOE, **config}), transformers.Qwen3MoeForCausalLM
    else:
        c, cls = transformers.LlamaConfig(**{**CONFIG, "tie_word_embeddings": kind == "tied", **config}), transformers.LlamaForCausalLM
    made = cls._from_config(c, attn_implementation="eager", dtype=dtype)
    with torch.no_grad():
        for _, p in sorted(made.named_parameters()):
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * draw if p.dim() == 1 else draw / p.shape[-1] ** 0.5)
    return made


# --- faults: each changes the model and gives what to say of it -------------------------------------------------

def theta(m):
    dim = m.config.head_dim
    m.model.rotary_emb.inv_freq.copy_(1.0 / 500000.0 ** (torch.arange(0, dim, 2).float() / dim))


def table_factor(m):
    m.model.rotary_emb.attention_scaling = 0.9643


def eps(m):
    m.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def residual(m):
    layer = m.model.layers[1]

    def forward(hidden_states, **kwargs):
        x = hidden_states + layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)[0]
        return layer.mlp(layer.post_attention_layernorm(x))

    layer.forward = forward


def eager(change):
    def plant(m):
        plain = modeling_llama.eager_attention_forward
        modeling_llama.eager_attention_forward = change(plain)
        return lambda: setattr(modeling_llama, "eager_attention_forward", plain)

    return plant


def gqa(m):
    plain = modeling_llama.repeat_kv
    modeling_llama.repeat_kv = lambda x, n: x.repeat(1, n, 1, 1)
    return lambda: setattr(modeling_llama, "repeat_kv", plain)


def mask_off_by_one(plain):
    def attention(module, query, key, value, attention_mask, **kwargs):
        mask = torch.full((query.shape[2], key.shape[2]), torch.finfo(query.dtype).min, dtype=query.dtype).triu(0)
        mask[0, 0] = 0
        return plain(module, query, key, value, mask[None, None], **kwargs)

    return attention


def softmax_in_bf16(plain):
    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        k, v = (modeling_llama.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
        scores = query @ k.transpose(2, 3) * scaling + attention_mask
        shifted = (scores - scores.amax(-1, keepdim=True)).bfloat16()
        e = shifted.exp()
        p = (e / e.sum(-1, keepdim=True)).to(query.dtype)
        return (p @ v).transpose(1, 2).contiguous(), p

    return attention


def scaled_twice(plain):
    def attention(module, query, key, value, attention_mask, scaling, **kwargs):
        return plain(module, query * scaling, key, value, attention_mask, scaling=scaling, **kwargs)

    return attention


def no_label_shift(m):
    def loss(logits, labels, vocab_size, **kwargs):
        return torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))

    m.loss_function = loss


def not_shared(m):
    m.lm_head.weight = torch.nn.Parameter(m.lm_head.weight.detach().clone())


def norm_topk_prob(m):
    m.model.layers[0].mlp.gate.norm_topk_prob = False


def wrong_expert(m):
    experts = m.model.layers[0].mlp.experts
    with torch.no_grad():
        experts.down_proj[2] = experts.down_proj[1]


BF16, F32 = torch.bfloat16, torch.float32
ROWS = {  # name: folder, dtype, configuration of the run, fault, what the sentence must hold
    "honest_llama": ("llama", BF16, {}, None, "RIGHT"),
    "honest_moe": ("moe", F32, {}, None, "RIGHT"),
    "theta": ("llama", F32, {}, theta, "rope_table of model.rotary_emb|theta is 500000"),
    "table_factor": ("llama", BF16, {}, table_factor, "rope_table of model.rotary_emb|times the expected one"),
    "theta_config": ("llama", BF16, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, None,
                     "configuration has rope_theta 500000.0"),
    "eps": ("llama", BF16, {}, eps, "rmsnorm_fwd of model.layers.1.post_attention_layernorm|eps 0.01"),
    "residual": ("llama", BF16, {}, residual, "add of model.layers.1.mlp.residual|residual is not added"),
    "gqa": ("llama", BF16, {}, gqa, "attention_fwd of model.layers.0.self_attn|repeat_interleave"),
    "mask": ("llama", BF16, {}, eager(mask_off_by_one), "attention_fwd of model.layers.0.self_attn|off by one"),
    "softmax": ("llama", F32, {}, eager(softmax_in_bf16), "attention_fwd of model.layers.0.self_attn|kept in BF16"),
    "scaled_twice": ("llama", F32, {}, eager(scaled_twice), "attention_fwd of model.layers.0.self_attn|scaled twice"),
    "labels": ("llama", F32, {}, no_label_shift, "cross_entropy_fwd of loss_function|labels are not shifted"),
    "tied": ("tied", F32, {}, not_shared, "lm_head.weight is a parameter of its own"),
    "dropout": ("llama", F32, {"attention_dropout": 0.1}, None, "the run's configuration has attention_dropout 0.1"),
    "norm_topk_prob": ("moe", F32, {}, norm_topk_prob, "router_fwd of model.layers.0.mlp.gate|norm_topk_prob is false where true is expected"),
    "wrong_expert": ("moe", F32, {}, wrong_expert,
                     "model.layers.0.mlp.experts.down_proj is not the folder's|row 2 holds row 1"),
}


def run(name, kind, dtype, config, fault):
    m = model(kind, dtype, **config)
    undo = fault(m) if fault else None
    if name == "tied":
        m.config.tie_word_embeddings = True
    trace = assay_trace.attach(m, str(PLANTED / name))
    ids = torch.randint(0, m.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(SEED))
    with trace.step():
        m(input_ids=ids, labels=ids).loss.backward()
    trace.close()
    if undo:
        undo()


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(PLANTED, ignore_errors=True)
    for kind in ("llama", "tied", "moe"):
        model(kind).save_pretrained(PLANTED / "models" / kind)
    for extra in PLANTED.glob("models/*/generation_config.json"):
        extra.unlink()
    for name, (kind, dtype, config, fault, _) in ROWS.items():
        run(name, kind, dtype, config, fault)
    save_json(PLANTED / "rows.json", [{"trace": n, "model": r[0], "sentence": r[4].split("|")} for n, r in ROWS.items()])
    files = update_manifest("planted", "python golden/make_planted.py", SEED, "planted")
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    sys.exit(main())
