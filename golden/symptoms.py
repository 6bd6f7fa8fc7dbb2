"""What a mistake looks like before anybody looks for it: losses of a small Hugging Face model trained with and without one of the
faults of make_planted.py, on the frozen text by bytes (docs/DEBUG.md, "Five bugs").  Run: python golden/symptoms.py
"""
import sys

import torch

import make_planted
from files import GOLDEN

STEPS, ROWS, SEQUENCE = 300, 8, 64
SIZES = dict(vocab_size=257, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=SEQUENCE)
FAULTS = [("theta", "llama", make_planted.theta), ("gqa", "llama", make_planted.gqa), ("labels", "llama", make_planted.no_label_shift),
          ("tied", "tied", make_planted.not_shared), ("norm_topk_prob", "moe", make_planted.norm_topk_prob)]


def batches(text, generator):
    for _ in range(STEPS):
        at = torch.randint(0, len(text) - SEQUENCE, (ROWS,), generator=generator)
        yield torch.stack([text[i:i + SEQUENCE] for i in at])


def train(kind, fault, text, held):
    make_planted.SEED = 11
    model = make_planted.model(kind, **SIZES, **({"moe_intermediate_size": 64} if kind == "moe" else {}))
    # The small spread of an initialization, not the unit gain of the golden weights.
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.2 if p.dim() > 1 else 0.0).add_(0.0 if p.dim() > 1 else 1.0)
    undo = fault(model) if fault else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for ids in batches(text, torch.Generator().manual_seed(5)):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # What a user would evaluate: the next byte of text that was not trained on, by the model as it is.
    with torch.no_grad():
        logits = model(input_ids=held).logits[:, :-1]
        right = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), held[:, 1:].reshape(-1)).item()
    if undo:
        undo()
    return losses[0], sum(losses[-20:]) / 20, right


def main():
    torch.set_num_threads(1)
    text = torch.tensor(list((GOLDEN / "text" / "travels.txt").read_bytes()))
    held = torch.stack([text[-SEQUENCE * (i + 1):][:SEQUENCE] for i in range(1, 9)])
    honest = {}
    print("fault: loss at the first step, mean of the last 20, of the next byte of other text; in brackets without the fault")
    for name, kind, fault in FAULTS:
        if kind not in honest:
            honest[kind] = train(kind, None, text[:-10 * SEQUENCE], held)
        found = train(kind, fault, text[:-10 * SEQUENCE], held)
        print(f"{name}: " + ", ".join(f"{a:.3f} ({b:.3f})" for a, b in zip(found, honest[kind])))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
