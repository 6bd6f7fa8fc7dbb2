"""golden/checkpoint: what transformers computes from checkpoints that assay wrote, as they are.

Four of golden/models are trained for three steps by the reference of the given program, in fp32 and in bf16; transformers loads
the checkpoint's folder (no key missing, none unexpected) and gives the logits of the model's batch in double.  The tests make
the same checkpoints again (tests/parity/test_checkpoint_golden.c) and hold assay's own logits of them to these.
Run: python golden/make_checkpoint.py build/release/bin/assay
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

from double import FLOAT64, deterministic, doubles
from files import GOLDEN, save_safetensors, update_manifest

MODELS = ("llama", "olmoe", "qwen2_moe", "qwen3_moe")
PRECISIONS = ("fp32", "bf16")


def logits_of(folder, batch):
    """Loaded by transformers in the types of the folder; computed in double, tables of rope, too."""
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    wrong = {key: list(value) for key, value in info.items() if value}
    assert not wrong, wrong
    state = {name: tensor.to(FLOAT64) for name, tensor in loaded.state_dict().items()}
    with doubles():
        model = transformers.AutoModelForCausalLM.from_config(loaded.config, dtype=FLOAT64, attn_implementation="eager",
                                                              experts_implementation="eager")
        model.load_state_dict(state)
        with torch.no_grad():
            return model.eval()(input_ids=batch["input_ids"]).logits


def main():
    deterministic()
    for name in MODELS:
        model = GOLDEN / "models" / name
        batch = load_file(model / "batch.safetensors")
        for precision in PRECISIONS:
            with tempfile.TemporaryDirectory() as work:
                folder = pathlib.Path(work) / "checkpoint"
                subprocess.run([sys.argv[1], "step", "--engine", "ref", "--precision", precision, "--model", model, "--batch",
                                model / "train_batch.safetensors", "--out", pathlib.Path(work) / "out", "--save", folder],
                               check=True, stdout=subprocess.DEVNULL)
                logits = logits_of(folder, batch)
            save_safetensors(GOLDEN / "checkpoint" / f"{name}_{precision}.safetensors", {"logits": logits})
            print(name, precision, tuple(logits.shape), logits.dtype)
    update_manifest("checkpoint", "python golden/make_checkpoint.py build/release/bin/assay", {}, "checkpoint")


if __name__ == "__main__":
    main()
