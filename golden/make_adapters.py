"""golden/adapters: LoRA adapters in PEFT's form, and what PEFT's merge_and_unload makes of them.

On models of golden/models, with adapters that PEFT saved (weights drawn here, B not 0): merged.safetensors holds every tensor that differs from the
base, or that the base has not (a head that is no longer tied), as fp32/NAME of a model in float32, bf16/NAME of one in bfloat16 (adapter in bfloat16, too) and fp64/NAME of one in float64.
saved: whether assay's lora-save of it, loaded by PeftModel.from_pretrained, has the same bits (asserted here).
Run: python golden/make_adapters.py build/dev/bin/assay        (peft 0.21)
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file

from double import FLOAT64, deterministic
from files import GOLDEN, save_json, save_safetensors, update_manifest

FOLDER = GOLDEN / "adapters"
GPT2 = "../adapters/gpt2_model"  # weights [in, out], attn.c_proj square: made here
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CASES = {
    "llama": ("llama", dict(r=4, lora_alpha=16, target_modules=[*ATTENTION, "down_proj"])),
    "llama_embedding": ("llama", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["embed_tokens", "up_proj"],
                                      modules_to_save=["norm"])),
    "qwen3": ("qwen3", dict(r=8, lora_alpha=4, target_modules=r".*layers\.\d+\.(self_attn\.(q|v)_proj|mlp\.gate_proj)",
                            rank_pattern={"q_proj": 2, r"layers\.1\.mlp\.gate_proj": 5}, alpha_pattern={"gate_proj": 10},
                            exclude_modules=["model.layers.2.self_attn.v_proj"])),
    "qwen2_dora": ("qwen2", dict(r=2, lora_alpha=3, use_dora=True, target_modules=["q_proj", "gate_proj", "lm_head"],
                                 layers_to_transform=None)),
    "qwen2_layers": ("qwen2", dict(r=1, lora_alpha=1, target_modules=["o_proj"], layers_to_transform=[1, 3],
                                   fan_in_fan_out=True)),
    "qwen3_moe": ("qwen3_moe", dict(r=4, lora_alpha=8, target_modules=ATTENTION)),
    "gpt2": (GPT2, dict(r=3, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "gpt2_dora": (GPT2, dict(r=2, lora_alpha=3, use_dora=True, target_modules=["c_proj"], fan_in_fan_out=False)),
    "qwen2_saved": ("qwen2", dict(r=2, lora_alpha=2, target_modules=["v_proj", "down_proj"], modules_to_save=["q_proj", "layers.0.mlp"])),
    "qwen3_moe_saved": ("qwen3_moe", dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["layers.3.mlp"])),
    "llama_saved_embedding": ("llama", dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "llama_saved_head": ("llama", dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["lm_head"])),
}
TYPES = {"fp64": FLOAT64, "fp32": torch.float32, "bf16": torch.bfloat16}


def base(model, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / "models" / model, dtype=dtype)


def make_gpt2():
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=29, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(GOLDEN / "models" / GPT2)
    file = GOLDEN / "models" / GPT2 / "model.safetensors"
    save_safetensors(file, load_file(file), {"format": "pt"})
    (GOLDEN / "models" / GPT2 / "generation_config.json").unlink()


def on_disk(model, folder):
    """Names and tensors as save_pretrained writes them (experts one by one, a tied head once)."""
    model.save_pretrained(folder)
    return load_file(pathlib.Path(folder) / "model.safetensors")


def untied(config, model):
    """Of a tied model, when PEFT trains a copy of embedding or head beside the other one."""
    tied = json.loads((GOLDEN / "models" / model / "config.json").read_text()).get("tie_word_embeddings", False)
    return tied and bool({"embed_tokens", "lm_head"} & set(config.get("modules_to_save", ())))


def make(name, model, config, assay):
    torch.manual_seed(sum(map(ord, name)))
    adapted = peft.get_peft_model(base(model, torch.float32), peft.LoraConfig(**config))
    for key, p in adapted.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            with torch.no_grad():
                p.copy_((p if "magnitude" in key or "modules_to_save" in key else 0) + 0.1 * torch.randn_like(p))
    folder = FOLDER / name
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    written = json.loads((folder / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = os.path.normpath(f"golden/models/{model}")
    for key in ("target_modules", "modules_to_save"):
        if isinstance(written[key], list):
            written[key] = sorted(written[key])
    written["rank_pattern"] = config.get("rank_pattern", {})
    save_json(folder / "adapter_config.json", written)
    save_safetensors(folder / "adapter_model.safetensors", load_file(folder / "adapter_model.safetensors"), {"format": "pt"})
    merged = {}
    for word, dtype in TYPES.items():
        with tempfile.TemporaryDirectory() as work:
            before = on_disk(base(model, dtype), pathlib.Path(work) / "a")
            loaded = peft.PeftModel.from_pretrained(base(model, dtype), folder, autocast_adapter_dtype=False)
            loaded = loaded.to(dtype) if word != "fp32" else loaded
            after = on_disk(loaded.merge_and_unload(safe_merge=True), pathlib.Path(work) / "b")
        assert after.keys() - before.keys() == ({"lm_head.weight"} if untied(config, model) else set()) and not before.keys() - after.keys()
        for key in after:
            if key not in before or not torch.equal(before[key], after[key]):
                merged[f"{word}/{key}"] = after[key]
    save_safetensors(folder / "merged.safetensors", merged)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([assay, "ckpt", "lora-save", folder, f"{work}/saved"], check=True, stdout=subprocess.DEVNULL)
        ours = peft.PeftModel.from_pretrained(base(model, torch.float32), f"{work}/saved").state_dict()
        theirs = peft.PeftModel.from_pretrained(base(model, torch.float32), folder).state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    print(name, len(merged) // 3, "tensors")


def main():
    deterministic()
    warnings.simplefilter("ignore")
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_gpt2()
    assay = str(pathlib.Path(sys.argv[1]).resolve())
    for name, (model, config) in CASES.items():
        make(name, model, config, assay)
    update_manifest("adapters", "python golden/make_adapters.py build/dev/bin/assay", {}, "adapters")


if __name__ == "__main__":
    main()
