"""Honest runs of Hugging Face models with the folders that they train, under golden/checked/: `assay check --trace golden/checked/NAME
--model golden/checked/models/NAME` finds each of them right.

olmoe, olmoe_noclip: one layer of an OLMoE in float32: norms over whole rows of q and k, then a clip of q, k and v, or none.
qwen2_moe: one layer of a Qwen2-MoE in bfloat16 whose shared expert's gate is often open: torch makes s(1-s) of a rounded s.
qwen2_moe_gate: the same with a gradient of that gate 1.2 times as large: wrong.
Run: python golden/make_checked.py
"""
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

from files import GOLDEN, save_json, save_safetensors, update_manifest

import assay_trace

CHECKED = GOLDEN / "checked"
SEED = 92
CONFIG = dict(vocab_size=29, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=64, rms_norm_eps=1e-5,
              tie_word_embeddings=False, attention_dropout=0.0, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
OLMOE = {**CONFIG, "model_type": "olmoe", "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12,
         "norm_topk_prob": False, "clip_qkv": 0.75}  # some of q, k and v are beyond the limit
QWEN2_MOE = {**CONFIG, "model_type": "qwen2_moe", "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
             "intermediate_size": 12, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 8, "norm_topk_prob": False}
RUNS = {"olmoe": (OLMOE, torch.float32, SEED), "olmoe_noclip": ({**OLMOE, "clip_qkv": None}, torch.float32, SEED),
        "qwen2_moe": (QWEN2_MOE, torch.bfloat16, SEED + 19), "qwen2_moe_gate": (QWEN2_MOE, torch.bfloat16, SEED + 19)}
OPEN = 4.0  # times the gate's weight


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 1.2


def run(name, fields, dtype, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    config = transformers.AutoConfig.for_model(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * draw if p.dim() == 1 else draw / p.shape[-1] ** 0.5)
        for n, p in model.named_parameters():
            if "shared_expert_gate" in n:
                p.mul_(OPEN)
    folder = CHECKED / "models" / name.removesuffix("_gate")
    folder.mkdir(parents=True, exist_ok=True)
    save_json(folder / "config.json", {**fields, "architectures": [type(model).__name__]})
    with tempfile.TemporaryDirectory() as scratch:  # experts one by one
        model.save_pretrained(scratch)
        save_safetensors(folder / "model.safetensors", load_file(scratch + "/model.safetensors"))
    if name == "qwen2_moe_gate":
        gate = model.model.layers[0].mlp.shared_expert_gate
        plain = gate.forward
        gate.forward = lambda x: Scaled.apply(plain(x))
    trace = assay_trace.attach(model, str(CHECKED / name))
    with trace.step():
        ids = torch.randint(0, CONFIG["vocab_size"], (2, 7), generator=generator)
        model(input_ids=ids, labels=ids).loss.backward()
    trace.close()


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(CHECKED, ignore_errors=True)
    for name, (fields, dtype, seed) in RUNS.items():
        run(name, fields, dtype, seed)
    files = update_manifest("checked", "python golden/make_checked.py", SEED, "checked")
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    sys.exit(main())
