"""golden/merge: small models and what mergekit and PEFT make of them, in double.

base and three models that were "trained" from it, of one tiny Llama, each stored in another type (F32, BF16, F16, F64; one in
two shards).  linear, task_arithmetic and ties are mergekit's own methods, slerp its own function, on float64 tensors; ties once more and
both kinds of dare are PEFT's own functions, whose torch.bernoulli gives the mask of docs/CHECKPOINT.md, from the Philox of
make_dropout.py.  expected.safetensors holds CASE/TENSOR in F64; cases.json the arguments of `assay ckpt merge`.
Run: python golden/make_merge.py        (peft 0.21, mergekit 0.1.5)
"""
import json
import shutil
from unittest import mock

import mergekit.merge_methods.registry as registry
import mergekit.merge_methods.slerp
import numpy
import peft.utils.merge_utils as pm
import torch
from mergekit.merge_methods.base import TensorBatch, TensorGroup

from double import FLOAT64, deterministic
from files import GOLDEN, save_json, save_safetensors, update_manifest
from make_dropout import philox

FOLDER = GOLDEN / "merge"
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=8, intermediate_size=11, num_hidden_layers=1,
              num_attention_heads=2, num_key_value_heads=1, vocab_size=13, tie_word_embeddings=True, rms_norm_eps=1e-6,
              max_position_embeddings=64, hidden_act="silu", rope_theta=10000.0)
SHAPES = {"model.embed_tokens.weight": (13, 8), "model.norm.weight": (8,), "model.layers.0.input_layernorm.weight": (8,),
          "model.layers.0.post_attention_layernorm.weight": (8,), "model.layers.0.self_attn.q_proj.weight": (8, 8),
          "model.layers.0.self_attn.k_proj.weight": (4, 8), "model.layers.0.self_attn.v_proj.weight": (4, 8),
          "model.layers.0.self_attn.o_proj.weight": (8, 8), "model.layers.0.mlp.gate_proj.weight": (11, 8),
          "model.layers.0.mlp.up_proj.weight": (11, 8), "model.layers.0.mlp.down_proj.weight": (8, 11)}
TYPES = {"base": torch.float32, "a": torch.bfloat16, "b": torch.float16, "c": FLOAT64}
NORM, K, V, O = ("model.norm.weight", *(f"model.layers.0.self_attn.{x}_proj.weight" for x in "kvo"))


def models():
    g = torch.Generator().manual_seed(5120)
    draw = {name: {k: torch.randn(shape, generator=g, dtype=FLOAT64) for k, shape in SHAPES.items()} for name in TYPES}
    out = {}
    for name, dtype in TYPES.items():
        mine = {k: (draw["base"][k] if name == "base" else draw["base"][k] + 0.25 * v) for k, v in draw[name].items()}
        if name in "abc":
            # equal to the base, a zero, multiples of one another, the opposite
            mine[NORM] = draw["base"][NORM].float().double()
            mine[K] = torch.zeros_like(mine[K]) if name == "a" else mine[K]
            mine[V] = {"a": 1.0, "b": 2.0, "c": -3.0}[name] * torch.arange(1.0, 33.0, dtype=FLOAT64).reshape(4, 8)
        if name == "a":
            mine[O] = -draw["base"][O]
        out[name] = {k: v.to(dtype) for k, v in mine.items()}
    return out


def save(name, tensors):
    folder = FOLDER / name
    folder.mkdir(parents=True)
    word = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", FLOAT64: "float64"}[TYPES[name]]
    save_json(folder / "config.json", CONFIG | dict(dtype=word))
    if name != "b":
        return save_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    names, where = sorted(tensors), {}
    for i, part in enumerate((names[:4], names[4:])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_safetensors(folder / file, {k: tensors[k] for k in part}, {"format": "pt"})
        where |= {k: file for k in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    save_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def fnv(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def mergekit_group(method, x, base, **parameters):
    ids = range(len(x))
    group = TensorGroup.from_tensors([base, *x], ids=["base", *ids], base_index=0)
    spread = {k: dict(zip(ids, v)) for k, v in parameters.items() if isinstance(v, list)}
    flat = {k: v for k, v in parameters.items() if not isinstance(v, list)}
    return registry.get(method).merge_group(group, **({"int8_mask": False, "rescale": False, "lambda": 1.0} | flat | spread))


def mergekit_linear(x, weights, normalize):
    batch = TensorBatch(tuple(t[None] for t in x))
    return registry.get("linear").merge_batch(batch, weight=torch.tensor([weights], dtype=FLOAT64), normalize=normalize)[0]


def peft_function(method, x, base, weights, density, seed, name, **more):
    """Differences against the base through PEFT, whose draws are ours."""
    model = iter(range(len(x)))

    def bernoulli(full):
        k = next(model)
        count = full.numel()
        words = philox(seed, fnv(f"{name}/dare/{k}"), numpy.arange((count + 3) // 4, dtype=numpy.uint64)).T.ravel()[:count]
        keep = words.astype(numpy.float64) * 2.0 ** -32 < density
        return torch.from_numpy(keep.astype(numpy.float64)).reshape(full.shape)

    with mock.patch.object(torch, "bernoulli", bernoulli):
        task = getattr(pm, method)([t - base for t in x], torch.tensor(weights, dtype=FLOAT64), density, **more)
    return base + task


CASES = {
    "linear": ("a b c --method linear", lambda n, x, b: mergekit_linear(x, [1.0, 1.0, 1.0], True)),
    "linear_weighted": ("a b c --weight 0.2,1.5,-0.3", lambda n, x, b: mergekit_linear(x, [0.2, 1.5, -0.3], True)),
    "linear_sum": ("a b c --weight 2,-1,0.25 --normalize false", lambda n, x, b: mergekit_linear(x, [2.0, -1.0, 0.25], False)),
    "slerp": ("a b --method slerp --t 0.3",
              lambda n, x, b: mergekit.merge_methods.slerp.slerp(torch.tensor([0.3], dtype=FLOAT64), x[0][None], x[1][None])[0]),
    "slerp_opposite": ("a c --method slerp",
                       lambda n, x, b: mergekit.merge_methods.slerp.slerp(torch.tensor([0.5], dtype=FLOAT64), x[0][None], x[1][None])[0]),
    "task": ("a b c --method task_arithmetic --base base --weight 0.5,0.3,-0.2 --lambda 1.5",
             lambda n, x, b: mergekit_group("task_arithmetic", x, b, weight=[0.5, 0.3, -0.2], density=[1.0] * 3, normalize=False,
                                            **{"lambda": 1.5})),
    "ties": ("a b c --method ties --base base --density 0.4 --weight 1,0.5,2",
             lambda n, x, b: mergekit_group("ties", x, b, weight=[1.0, 0.5, 2.0], density=[0.4] * 3, normalize=True)),
    "ties_sum": ("a b c --method ties --base base --density 0.2,0.9,1 --normalize false",
                 lambda n, x, b: mergekit_group("ties", x, b, weight=[1.0] * 3, density=[0.2, 0.9, 1.0], normalize=False)),
    "ties_peft": ("a b c --method ties --base base --density 0.5",
                  lambda n, x, b: b + pm.ties([t - b for t in x], torch.ones(3, dtype=FLOAT64), 0.5)),
    "ties_frequency": ("a b c --method ties --base base --density 0.5 --majority-sign-method frequency",
                       lambda n, x, b: b + pm.ties([t - b for t in x], torch.ones(3, dtype=FLOAT64), 0.5, "frequency")),
    "dare_linear": ("a b c --method dare_linear --base base --density 0.6 --weight 0.4,0.4,0.2 --merge-seed 77",
                    lambda n, x, b: peft_function("dare_linear", x, b, [0.4, 0.4, 0.2], 0.6, 77, n)),
    "dare_ties": ("a b c --method dare_ties --base base --density 0.3 --normalize true --merge-seed 9",
                  lambda n, x, b: peft_function("dare_ties", x, b, [1.0] * 3, 0.3, 9, n)),
}


def main():
    deterministic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = models()
    for name, tensors in made.items():
        save(name, tensors)
    expected = {}
    for case, (arguments, function) in CASES.items():
        which = [m for m in arguments.split(" --")[0].split()]
        for name in SHAPES:
            result = function(name, [made[m][name].double() for m in which], made["base"][name].double())
            assert result.dtype == FLOAT64 and result.shape == SHAPES[name], (case, name)
            expected[f"{case}/{name}"] = result
    save_safetensors(FOLDER / "expected.safetensors", expected)
    (FOLDER / "cases.json").write_text(json.dumps({k: v[0] for k, v in CASES.items()}, indent=1) + "\n")
    update_manifest("merge", "python golden/make_merge.py", {"models": 5120}, "merge")


if __name__ == "__main__":
    main()
