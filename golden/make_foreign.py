"""Traces of small Hugging Face models under golden/foreign/, recorded by assay_trace, for `assay replay` and `assay diff`.

llama: two microbatches and an AdamW step in float32; llama_bf16: the same in bfloat16, eager attention, without an optimizer.
gqa, eps, mask, labels: llama_bf16 with one fault each, which must be named: groups dealt to heads the other way round, another epsilon in
one norm, a mask that lets the last key out, labels that are not moved by one. moe: one layer of a Qwen3-MoE in bfloat16; expert: the same
with another expert's weights in one product. layernorm: torch's LayerNorm with and without a bias and Cohere's, float32 and bfloat16;
layernorm_eps: another epsilon in one of them than it says. Run: python golden/make_foreign.py
"""
import shutil
import sys

import torch
import transformers
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.llama import modeling_llama

from files import GOLDEN, save_json, update_manifest

import assay_trace
import foreign_models

FOREIGN = GOLDEN / "foreign"
SEED = 91
CONFIG = dict(vocab_size=29, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
              attention_dropout=0.0, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
MOE = {**CONFIG, "num_hidden_layers": 1, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
       "norm_topk_prob": True}
FAULTS = {"gqa": ("model.layers.0.self_attn.core_attention", "attention_fwd"),
          "eps": ("model.layers.1.post_attention_layernorm", "rmsnorm_fwd"),
          "mask": ("model.layers.0.self_attn.core_attention", "attention_fwd"),
          "labels": ("loss_function", "cross_entropy_fwd"),
          "expert": ("model.layers.0.mlp.experts.down_proj", "grouped_linear_fwd")}
NORM_FAULTS = {"layernorm_eps": ("narrow.1", "layernorm_fwd")}


def plant(model, fault):
    """Changes the model, or the functions of its modeling file; gives what undoes the latter."""
    if fault == "eps":
        model.get_submodule(FAULTS["eps"][0]).variance_epsilon = 1e-2
    if fault == "labels":
        foreign_models.label_shift(model, [])
    if fault == "expert":
        foreign_models.expert(model, [], layer=0)
    plain = modeling_llama.eager_attention_forward, modeling_llama.repeat_kv
    if fault == "gqa":
        modeling_llama.repeat_kv = lambda x, n: x.repeat(1, n, 1, 1)  # heads 0 1 0 1 in place of 0 0 1 1
    if fault == "mask":
        def shifted(module, query, key, value, attention_mask, **kwargs):
            mask = torch.full((query.shape[2], key.shape[2]), torch.finfo(query.dtype).min, dtype=query.dtype).triu(0)
            mask[0, 0] = 0
            return plain[0](module, query, key, value, mask[None, None], **kwargs)

        modeling_llama.eager_attention_forward = shifted
    return lambda: (setattr(modeling_llama, "eager_attention_forward", plain[0]), setattr(modeling_llama, "repeat_kv", plain[1]))


def run(name, dtype, fault=None, train=False, moe=False):
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    config = transformers.Qwen3MoeConfig(**MOE) if moe else transformers.LlamaConfig(**CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    if moe:
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * draw if p.dim() == 1 else draw / p.shape[-1] ** 0.5)
    undo = plant(model, fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1) if train else None
    trace = assay_trace.attach(model, str(FOREIGN / name), optimizer=optimizer)
    with trace.step():
        for _ in range(2 if train else 1):
            ids = torch.randint(0, CONFIG["vocab_size"], (2, 7), generator=generator)
            (model(input_ids=ids, labels=ids).loss / 2).backward()
        if train:
            optimizer.step()
    trace.close()
    undo()


class Norms(torch.nn.Module):
    """Three LayerNorms behind one another in float32 beside three in bfloat16."""

    def __init__(self, width=12):
        super().__init__()
        norms = lambda: torch.nn.ModuleList([torch.nn.LayerNorm(width, eps=1e-2), torch.nn.LayerNorm(width, eps=1e-2, bias=False),  # noqa: E731
                                             CohereLayerNorm(width, eps=1e-2)])
        self.wide, self.narrow = norms(), norms().to(torch.bfloat16)

    def forward(self, x):
        total = 0.0
        for norms, dtype in ((self.wide, torch.float32), (self.narrow, torch.bfloat16)):
            y = x.to(dtype).requires_grad_()
            for norm in norms:
                y = norm(y * 0.5 + 1)
            total = total + y.float().square().sum()
        return total


class OtherEpsilon(torch.nn.LayerNorm):
    def forward(self, x):
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, 1e-5)


def run_norms(name, fault=False):
    torch.manual_seed(SEED)
    model = Norms()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(1 + 0.3 * torch.randn(p.shape))
    if fault:
        model.narrow[1].__class__ = OtherEpsilon
    trace = assay_trace.attach(model, str(FOREIGN / name))
    with trace.step():
        for _ in range(2):
            model(torch.randn(2, 5, 12) + 0.5).backward()
    trace.close()


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(FOREIGN, ignore_errors=True)
    run("llama", torch.float32, train=True)
    run("llama_bf16", torch.bfloat16)
    run("moe", torch.bfloat16, moe=True)
    for fault in FAULTS:
        run(fault, torch.bfloat16, fault, moe=fault == "expert")
    run_norms("layernorm")
    run_norms("layernorm_eps", fault=True)
    save_json(FOREIGN / "faults.json", {name: {"instance": i, "op": op} for name, (i, op) in {**FAULTS, **NORM_FAULTS}.items()})
    files = update_manifest("foreign", "python golden/make_foreign.py", SEED, "foreign")
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    sys.exit(main())
