"""golden/packed: documents packed in rows, for three of golden/models, with Hugging Face transformers in double.

Rows hold several documents: position_ids start again with each, the label of a document's first token is -100 (what
DataCollatorWithFlattening writes), and a token of padding is a document of its own. transformers makes the mask from the
positions (eager attention); the same is computed from every document alone, and compared here.
Run: python golden/make_packed.py
"""
import shutil

import torch

from double import Float32Counter, deterministic, doubles
from files import GOLDEN, save_safetensors, update_manifest
from make_models import BATCH, CASES, IGNORE, SEQ, build_model, draw_tokens, grads_on_disk, on_disk, shifted_nll_sum
from safetensors.torch import load_file

FOLDER = GOLDEN / "packed"
MODELS = {"llama": 311, "qwen2": 313, "qwen2_moe": 397}
# Lengths of the documents of each row, one after the other; 0 is a token of padding.
ROWS = [[1, 16, 1, 9, 0, 0, 0, 10, 1], [23, 2, 15, 0]]


def documents(row):
    """(start, length) of every document, padding included."""
    at, out = 0, []
    for length in ROWS[row]:
        out.append((at, max(length, 1)))
        at += max(length, 1)
    assert at == SEQ
    return out


def make_batch(case, generator):
    ids, labels = draw_tokens((BATCH, SEQ), case["config"]["vocab_size"], generator)
    positions = torch.zeros_like(ids)
    labels[0, 4:6] = IGNORE
    labels[1, 20] = IGNORE
    for row in range(BATCH):
        for (start, length) in documents(row):
            positions[row, start:start + length] = torch.arange(length)
            labels[row, start] = IGNORE
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def run_packed(model, batch):
    """Forward and backward of the packed rows: logits, loss and gradients."""
    model.zero_grad(set_to_none=True)
    with Float32Counter() as counter:
        out = model(input_ids=batch["input_ids"], labels=batch["labels"], position_ids=batch["position_ids"])
        out.loss.backward()
    assert counter.count == 0 and counter.doubles > 100, (counter.count, counter.doubles)
    golden = {"logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
    golden.update({"grad." + n: g for n, g in grads_on_disk(model).items()})
    return golden


def check_apart(model, batch, golden):
    """Every document in a row of its own, without positions: the same logits, loss and gradients."""
    model.zero_grad(set_to_none=True)
    total = int((batch["labels"][:, 1:] != IGNORE).sum())
    loss = torch.zeros((), dtype=golden["loss"].dtype)
    for row in range(BATCH):
        for (start, length) in documents(row):
            piece = slice(start, start + length)
            logits = model(input_ids=batch["input_ids"][row:row + 1, piece]).logits
            assert torch.allclose(logits[0], golden["logits"][row, piece], rtol=0, atol=1e-11)
            nll, n = shifted_nll_sum(logits, batch["labels"][row:row + 1, piece])
            if n > 0:
                (nll / total).backward()
                loss = loss + nll.detach() / total
    assert torch.allclose(loss, golden["loss"][0], rtol=1e-12, atol=0)
    for name, grad in grads_on_disk(model).items():
        want = golden["grad." + name]
        assert (grad - want).abs().max() <= 1e-11 * want.abs().max(), name


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    deterministic()
    for name, seed in MODELS.items():
        generator = torch.Generator().manual_seed(seed)
        batch = make_batch(CASES[name], generator)
        stored = load_file(GOLDEN / "models" / name / "model.safetensors")
        with doubles():
            model = build_model(CASES[name])
            assert all(torch.equal(w, stored[n].double()) for n, w in on_disk(model).items())
            golden = run_packed(model, batch)
            check_apart(model, batch, golden)
        save_safetensors(FOLDER / name / "batch.safetensors", batch)
        save_safetensors(FOLDER / name / "golden.safetensors", golden)
        print(f"{name}: loss {golden['loss'].item():.6f}")
    update_manifest("packed", "python golden/make_packed.py", MODELS, "packed")


if __name__ == "__main__":
    main()
