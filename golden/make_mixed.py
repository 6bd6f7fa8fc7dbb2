"""golden/models/llama_mixed: the weights of golden/models/llama, each tensor in the next of four types.

Checkpoints on the Hugging Face hub are stored in bf16, fp16 or fp32, and a folder may mix them. Values are rounded
once, by torch. Run: python golden/make_mixed.py
"""
import shutil

import torch
from safetensors.torch import load_file

import files
from files import GOLDEN, save_safetensors, update_manifest

TYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.float32: "F32"}


def main():
    source, folder = GOLDEN / "models" / "llama", GOLDEN / "models" / "llama_mixed"
    shutil.rmtree(folder, ignore_errors=True)
    weights = load_file(source / "model.safetensors")
    kinds = list(TYPES)
    tensors = {name: weights[name].to(kinds[i % len(kinds)]) for i, name in enumerate(sorted(weights))}
    files.DTYPE_NAMES.update(TYPES)
    save_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    shutil.copy(source / "config.json", folder / "config.json")
    update_manifest("mixed", "python golden/make_mixed.py", {}, "models/llama_mixed")


if __name__ == "__main__":
    main()
