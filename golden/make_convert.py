"""golden/convert: every architecture of golden/models, written by `assay ckpt convert` in fp32, bf16 and fp16, single and in shards, and read by transformers.

Asserted here: no key missing, none unexpected, every tensor in the type in which transformers' from_pretrained(dtype=...) and save_pretrained store it (routers
of DeepSeek's in float32), bit for bit torch's own conversion of the model's float32 weights (so subnormal halves and ties, too).  Kept: hashes.json, SHA-256 of each tensor in each type by torch, and logits.safetensors, NAME/TYPE: the last position's logits of the model's batch
that transformers computes in double from each of the folders in bf16 and fp16.
Run: python golden/make_convert.py build/dev/bin/assay
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

from double import FLOAT64, deterministic, doubles
from files import GOLDEN, save_json, save_safetensors, update_manifest
from make_checkpoint import logits_of

FOLDER = GOLDEN / "convert"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def digest(t):
    return hashlib.sha256(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def read(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def types_of(model, dtype):
    """Of each tensor, in what transformers stores it when it is asked for dtype."""
    with tempfile.TemporaryDirectory() as work:
        transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).save_pretrained(work)
        return {key: t.dtype for key, t in read(pathlib.Path(work)).items()}


def main():
    deterministic()
    FOLDER.mkdir(exist_ok=True)
    hashes, logits = {}, {}
    for model in sorted(p.parent for p in (GOLDEN / "models").glob("*/model.safetensors")):
        source, name = load_file(model / "model.safetensors"), model.name
        stored = {word: types_of(model, dtype) for word, dtype in TYPES.items()}
        hashes[name] = {key: {word: digest(t.to(stored[word][key])) for word in TYPES} for key, t in sorted(source.items())}
        for word, dtype in TYPES.items():
            for shard in (1 << 40, 30000):
                with tempfile.TemporaryDirectory() as work:
                    folder = pathlib.Path(work) / "out"
                    subprocess.run([sys.argv[1], "ckpt", "convert", model, folder, "--dtype", word, "--max-shard-size", str(shard)],
                                   check=True, stdout=subprocess.DEVNULL)
                    written = read(folder)
                    assert written.keys() == source.keys()
                    assert all(digest(t) == hashes[name][key][word] and t.dtype == stored[word][key] for key, t in written.items()), (name, word)
                    size = sum(t.numel() * stored[word][key].itemsize for key, t in source.items())
                    assert (folder / "model.safetensors.index.json").exists() == (size > shard)
                    if not (model / "batch.safetensors").exists():
                        continue
                    found = logits_of(folder, load_file(model / "batch.safetensors"))[:, -1].contiguous()
                key = f"{name}/{word}"
                assert key not in logits or torch.equal(logits[key], found)
                logits[key] = found
        print(name, len(source), "tensors")
    save_json(FOLDER / "hashes.json", hashes)
    save_safetensors(FOLDER / "logits.safetensors", {k: v for k, v in logits.items() if not k.endswith("fp32")})
    update_manifest("convert", "python golden/make_convert.py build/dev/bin/assay", {}, "convert")


if __name__ == "__main__":
    main()
