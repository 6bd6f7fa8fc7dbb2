"""golden/fp8: Hugging Face folders whose weights are float8_e4m3fn with scales, and what torch makes of them.

Small Llama models and a Qwen3-MoE quantized here as DeepSeek-V3's are (amax / 448 of each block of weight_block_size rows and columns, the last
ones smaller), with F32, BF16 and F8_E8M0 scales, with one scale of a tensor, and with AutoFP8's static activations.  expected.json: SHA-256 of
every weight as torch multiplies it, in float32 (torch's product, one rounding), float64 (exact) and bfloat16 (rounded once, by numpy from
float64).  plain: a folder in float32; written.json: SHA-256 of the codes and scales that quantizing it gives, by looking for the nearest of
torch's 256 numbers.  logits.safetensors: transformers' logits of each model in double with the float64 weights.  codes.safetensors: all codes.
Run: python golden/make_fp8.py
"""
import hashlib
import json
import pathlib
import shutil
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file

from double import FLOAT64, deterministic
from files import GOLDEN, save_json, save_safetensors, update_manifest
from make_checkpoint import logits_of

FOLDER = GOLDEN / "fp8"
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
CASES = {
    # uneven last blocks in both directions: 136 = 128 + 8, 200 = 128 + 72, 68 < 128
    "block128": dict(seed=1, hidden_size=136, intermediate_size=200, heads=4, kv=2, block=[128, 128], scale=torch.float32),
    "block_bf16": dict(seed=2, hidden_size=40, intermediate_size=51, heads=2, kv=1, block=[16, 24], scale=torch.bfloat16),
    "block_e8m0": dict(seed=3, hidden_size=32, intermediate_size=72, heads=4, kv=2, block=[32, 32], scale=E8M0, fmt="ue8m0"),
    "tensor": dict(seed=4, hidden_size=32, intermediate_size=41, heads=2, kv=2, block=None, scale=torch.float32),
    # experts one by one, routers and norms in bf16
    "moe": dict(seed=6, arch="Qwen3Moe", hidden_size=40, intermediate_size=24, heads=2, kv=1, block=[16, 32], scale=torch.float32),
    "static": dict(seed=5, hidden_size=24, intermediate_size=40, heads=2, kv=1, block=None, scale=torch.float32, static=True),
}


def quantize(w, block, dtype):
    rows, columns = block or w.shape
    grid = (-(-w.shape[0] // rows), -(-w.shape[1] // columns))
    scale = torch.empty(grid)
    index = (torch.arange(w.shape[0])[:, None] // rows, torch.arange(w.shape[1])[None, :] // columns)
    for i in range(grid[0]):
        for j in range(grid[1]):
            amax = w[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns].abs().max() / 448.0
            scale[i, j] = 2.0 ** torch.ceil(torch.log2(amax)) if dtype == E8M0 else amax * 1.01
    scale = scale.to(dtype)
    return (w / scale.float()[index]).to(E4M3), scale, index


def bf16(x):
    """float64 -> bfloat16, one rounding to nearest even (torch goes by way of float32)."""
    x = x.numpy()
    fraction, exponent = numpy.frexp(x)
    ulp = numpy.ldexp(1.0, numpy.maximum(exponent - 8, -126 - 7))
    return torch.from_numpy(numpy.rint(x / ulp) * ulp).to(torch.bfloat16)


def digest(t):
    return hashlib.sha256(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def build(case, work):
    """The model's tensors under the names of a folder, and its configuration."""
    sizes = dict(vocab_size=67, hidden_size=case["hidden_size"], intermediate_size=case["intermediate_size"], num_hidden_layers=1,
                 num_attention_heads=case["heads"], num_key_value_heads=case["kv"], tie_word_embeddings=False,
                 max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=10000.0), use_cache=False)
    arch = case.get("arch", "Llama")
    if arch == "Qwen3Moe":
        sizes |= dict(moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, head_dim=20,
                      decoder_sparse_step=1, mlp_only_layers=[])
    torch.manual_seed(case["seed"])
    config = getattr(transformers, arch + "Config")(**sizes)
    getattr(transformers, arch + "ForCausalLM")(config).save_pretrained(work)
    return load_file(work / "model.safetensors"), json.loads((work / "config.json").read_text())


def make(name, case):
    with tempfile.TemporaryDirectory() as work:
        weights, config = build(case, pathlib.Path(work))
    stored, doubled, expected = {}, {}, {}
    for key, w in sorted(weights.items()):
        w = w + 0.05 * torch.randn_like(w)
        if not key.endswith("_proj.weight"):
            stored[key] = w.to(torch.bfloat16)
            doubled[key] = stored[key].double()
        else:
            # three numbers that are small beside their block: subnormal codes, and one that becomes 0
            w[0, :3] = torch.tensor([1e-4, -3e-4, 1e-7])
            codes, scale, index = quantize(w, case["block"], case["scale"])
            if case["block"]:
                stored[key], stored[key + "_scale_inv"] = codes, scale
            else:
                stored[key], stored[key + "_scale"] = codes, scale.reshape(() if case.get("static") else (1,))
            if case.get("static"):
                stored[key.replace(".weight", ".input_scale")] = torch.tensor(0.02)
            single = codes.float() * scale.float()[index]
            doubled[key] = codes.double() * scale.double()[index]
            assert torch.equal(single, doubled[key].float())
        expected[key] = {"fp64": digest(doubled[key]), "fp32": digest(doubled[key].float()), "bf16": digest(bf16(doubled[key]))}
    quantization = dict(quant_method="fp8", activation_scheme="static" if case.get("static") else "dynamic")
    if not case.get("static"):
        quantization |= dict(fmt="e4m3", weight_block_size=case["block"], modules_to_not_convert=["lm_head"])
    else:
        quantization |= dict(ignored_layers=["lm_head"])
    if "fmt" in case:
        quantization["scale_fmt"] = case["fmt"]
    save_json(FOLDER / name / "config.json", config | dict(dtype="bfloat16", quantization_config=quantization))
    save_safetensors(FOLDER / name / "model.safetensors", stored, {"format": "pt"})
    ids = torch.arange(2 * 9).reshape(2, 9) * 5 % 67
    with tempfile.TemporaryDirectory() as work:
        save_json(pathlib.Path(work) / "config.json", config | dict(dtype="float64"))
        save_safetensors(pathlib.Path(work) / "model.safetensors", doubled, {"format": "pt"})
        logits = logits_of(work, {"input_ids": ids})
    return expected, logits, ids


WRITTEN = {  # options of `assay ckpt convert plain OUT --dtype fp8`
    "": ((128, 128), False),
    "--weight-block-size 16,24": ((16, 24), False),
    "--weight-block-size 16,24 --scale-fmt ue8m0": ((16, 24), True),
    "--weight-block-size 1,1 --scale-fmt ue8m0": ((1, 1), True),
    "--weight-block-size 7,1000": ((7, 1000), False),
}


def nearest(x):
    """The code of E4M3 next to each x (float64): of two the even one, and the greatest beyond it."""
    values = torch.arange(127, dtype=torch.uint8).view(E4M3).double().numpy()
    low = numpy.clip(numpy.searchsorted(values, numpy.abs(x), side="right") - 1, 0, 125)
    below, above = numpy.abs(x) - values[low], values[low + 1] - numpy.abs(x)
    code = numpy.where((above < below) | ((above == below) & (low % 2 == 1)), low + 1, low)
    return (code + 128 * numpy.signbit(x)).astype(numpy.uint8)


def write(w, block, power_of_two):
    rows, columns = block
    codes = numpy.empty(w.shape, numpy.uint8)
    scales = numpy.empty((-(-w.shape[0] // rows), -(-w.shape[1] // columns)), numpy.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            amax = numpy.abs(w[at]).max()
            if power_of_two:
                scale = 2.0 ** min(k for k in range(-126, 128) if 448.0 * 2.0 ** k >= amax)
            else:
                scale = max(float(numpy.float32(amax / 448.0)), 2.0 ** -126)
            scales[i, j] = scale if amax > 0 else 1.0
            codes[at] = nearest(w[at] / float(scales[i, j]))
    if power_of_two:
        scales = (scales.view(numpy.uint32) >> 23).astype(numpy.uint8)
    return codes, scales


def make_written():
    """A folder in float32 whose blocks hold zeros, powers of two times 448, ties, tiny and huge numbers; what is written of it."""
    with tempfile.TemporaryDirectory() as work:
        weights, config = build(dict(seed=7, arch="Qwen3Moe", hidden_size=40, intermediate_size=51, heads=2, kv=1), pathlib.Path(work))
    expected = {options: {} for options in WRITTEN}
    for n, (key, w) in enumerate(sorted(weights.items())):
        if not key.endswith("_proj.weight"):
            continue
        w[:16, :24] = 0.0 if n % 3 == 0 else w[:16, :24] * 2.0 ** (-140 if n % 3 == 1 else 100)
        w[16, :4] = torch.tensor([448.0, 17.0, -19.0, 2.0 ** -10])  # a scale of 1: ties, half of the least code
        w[17:, :24] = w[17:, :24].clamp(-1, 1)
        w[-1, -3:] = torch.tensor([-0.0, 448.0 * 2.0 ** -20, -(2.0 ** -8)])
        for options, (block, power_of_two) in WRITTEN.items():
            codes, scales = write(w.double().numpy(), block, power_of_two)
            expected[options][key] = {"codes": hashlib.sha256(codes.tobytes()).hexdigest(),
                                      "scales": hashlib.sha256(scales.tobytes()).hexdigest()}
    save_json(FOLDER / "plain" / "config.json", config | dict(dtype="float32"))
    save_safetensors(FOLDER / "plain" / "model.safetensors", weights, {"format": "pt"})
    save_json(FOLDER / "written.json", expected)


def main():
    deterministic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    expected, logits = {}, {}
    for name, case in CASES.items():
        (FOLDER / name).mkdir(parents=True)
        expected[name], logits[name], ids = make(name, case)
    save_json(FOLDER / "expected.json", expected)
    (FOLDER / "plain").mkdir()
    make_written()
    save_safetensors(FOLDER / "logits.safetensors", logits)
    save_safetensors(FOLDER / "batch.safetensors", {"input_ids": ids, "labels": torch.full_like(ids, -100).fill_(3)})
    codes = torch.arange(256, dtype=torch.uint8)
    save_safetensors(FOLDER / "codes.safetensors", {
        "e4m3": codes.view(E4M3), "e4m3_value": codes.view(E4M3).double(),
        "e8m0": codes.view(E8M0), "e8m0_value": codes.view(E8M0).double()})
    update_manifest("fp8", "python golden/make_fp8.py", {name: case["seed"] for name, case in CASES.items()}, "fp8")


if __name__ == "__main__":
    main()
