"""golden/dropout: training with dropout, for three of golden/models, with Hugging Face transformers in double.

torch.nn.functional.dropout is replaced while a model runs: its masks are those of docs/OPS.md 9.12, from the Philox
below, written here from the paper and the page.  Where Hugging Face has no dropout, but Megatron-LM's hidden_dropout
has (embedding, outputs of attention and MLP), hooks put it.  Without a mask the same code gives the model's own loss.
Run: python golden/make_dropout.py
"""
import shutil

import numpy
import torch

from double import deterministic, doubles
from files import GOLDEN, save_json, save_safetensors, update_manifest
from make_models import CASES, TRAIN_OPTIONS, TRAIN_SHAPE, build_model, make_train_batch, on_disk, train

FOLDER = GOLDEN / "dropout"
# "hidden": embedding and both branches (Megatron-LM); "residual": branches alone, the model's own.
MODELS = {
    "llama": dict(seed=4111, attention=0.1, hidden=0.2, residual=0.0),
    "seed_oss": dict(seed=4112, attention=0.25, hidden=0.0, residual=0.15),
    "qwen3_moe": dict(seed=4113, attention=0.3, hidden=0.0, residual=0.0),
}
WEIGHTS = "seed_oss"  # of this one alone the weights after the last step are kept
PROBS, MIXER, MLP, EMBEDDING = range(4)


def philox(seed, stream, block):
    """Philox4x32-10: four words [4,n] for every block number."""
    low = numpy.uint64(0xFFFFFFFF)
    c = [block & low, block >> numpy.uint64(32), numpy.full_like(block, stream & 0xFFFFFFFF),
         numpy.full_like(block, stream >> 32)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [(b >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(k[0]), b & low,
             (a >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return numpy.stack(c)


# Salmon, Moraes, Dror, Shaw 2011, the known answer of all bits set.
assert philox(0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, numpy.array([0xFFFFFFFFFFFFFFFF], dtype=numpy.uint64)) \
    .ravel().tolist() == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


class Masks:
    """While open, dropout multiplies by the masks; counts the forwards of the model as microbatches."""

    def __init__(self, model, case):
        self.model, self.case, self.draw, self.layer, self.dropped, self.total = model, case, -1, -1, 0, 0
        self.hooks, self.expected = [], None

    def factor(self, p, site, shape, element):
        layer = 0 if site == EMBEDDING else self.layer
        stream = self.draw << 32 | 1 << 31 | 4 * layer + site
        words = philox(self.case["seed"], stream, element // numpy.uint64(4))
        word = numpy.take_along_axis(words, (element % numpy.uint64(4)).astype(numpy.int64)[None], 0)[0]
        keep = word >= numpy.uint64(int(p * 2.0 ** 32))
        self.dropped += int((~keep).sum())
        self.total += keep.size
        return torch.from_numpy(keep.reshape(shape)).double() / (1.0 - p)

    def hidden(self, x, p, site):
        """x [B,S,H]: token s * B + b."""
        b, s, h = x.shape
        i = [numpy.arange(n, dtype=numpy.uint64) for n in (b, s, h)]
        token = i[1][None, :, None] * numpy.uint64(b) + i[0][:, None, None]
        element = token * numpy.uint64(h) + i[2][None, None, :]
        return x * self.factor(p, site, x.shape, element.ravel())

    def probs(self, x, p):
        """x [B,A,S,S]"""
        b, a, s, _ = x.shape
        i = [numpy.arange(n, dtype=numpy.uint64) for n in (b, a, s, s)]
        row = i[2][None, None, :, None] * numpy.uint64(b) + i[0][:, None, None, None]
        element = (row * numpy.uint64(a) + i[1][None, :, None, None]) * numpy.uint64(s) + i[3][None, None, None, :]
        return x * self.factor(p, PROBS, x.shape, element.ravel())

    def dropout(self, x, p=0.5, training=True, inplace=False):
        """torch.nn.functional.dropout as the models call it: probabilities, then the two outputs of the layer."""
        assert training and not inplace
        if x.dim() == 4:
            self.layer += 1
            assert p == self.case["attention"]
            self.expected = MIXER
            return self.probs(x, p)
        assert p == self.case["residual"] and self.expected in (MIXER, MLP)
        site, self.expected = self.expected, MLP if self.expected == MIXER else None
        return self.hidden(x, p, site) if p > 0.0 else x

    def begin(self, *_args):
        self.draw, self.layer = self.draw + 1, -1

    def __enter__(self):
        self.kept = torch.nn.functional.dropout
        torch.nn.functional.dropout = self.dropout
        self.hooks.append(self.model.register_forward_pre_hook(self.begin))
        p = self.case["hidden"]
        if p > 0.0:
            inner = self.model.model
            self.hooks.append(inner.embed_tokens.register_forward_hook(
                lambda _m, _a, out: self.hidden(out, p, EMBEDDING)))
            for layer in inner.layers:
                self.hooks.append(layer.self_attn.register_forward_hook(
                    lambda _m, _a, out: (self.hidden(out[0], p, MIXER),) + tuple(out[1:])))
                self.hooks.append(layer.mlp.register_forward_hook(lambda _m, _a, out: self.hidden(out, p, MLP)))
        return self

    def __exit__(self, *_error):
        torch.nn.functional.dropout = self.kept
        for h in self.hooks:
            h.remove()


def make(name, dropout):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case = dict(CASES[name])
    generator = torch.Generator().manual_seed(dropout["seed"])
    batch = make_train_batch(case, generator)
    options = {**TRAIN_OPTIONS, "attention_dropout": dropout["attention"], "hidden_dropout": dropout["hidden"],
               "residual_dropout": dropout["residual"], "dropout_seed": dropout["seed"]}
    with doubles():
        model = build_model(case)
        plain = train(build_model(case), batch, options)
        model.config.attention_dropout = dropout["attention"]
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = dropout["attention"]
            if hasattr(module, "residual_dropout"):
                module.residual_dropout = dropout["residual"]
        with Masks(model, dropout) as masks:
            golden = train(model, batch, options)
    assert masks.draw + 1 == TRAIN_SHAPE[0] * TRAIN_SHAPE[1], masks.draw
    assert not torch.equal(plain["loss"], golden["loss"])
    if name != WEIGHTS:
        golden = {k: golden[k] for k in ("loss", "grad_norm")}
    save_safetensors(folder / "train_batch.safetensors", batch)
    save_safetensors(folder / "train_golden.safetensors", golden)
    save_json(folder / "train_options.json", options)
    print(f"{name}: {masks.dropped} of {masks.total} elements dropped, loss {golden['loss'].tolist()} (without "
          f"{plain['loss'].tolist()})")


def main():
    deterministic()
    for name, dropout in MODELS.items():
        make(name, dropout)
    update_manifest("dropout", "python golden/make_dropout.py", {n: d["seed"] for n, d in MODELS.items()}, "dropout")


if __name__ == "__main__":
    main()
