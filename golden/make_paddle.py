"""golden/paddle: folders that the real PaddleNLP wrote, and proof that assay and PaddleNLP read each other's, bit for bit.

For every variant of its unified checkpoint: PaddleNLP trains and saves; PaddleNLP loads what it saved, and assay does (`assay ckpt
verify`, `convert`): the same global tensors.  Then assay writes the folder back (`convert --form paddle`): PaddleNLP loads it on one
rank, on two and in tensor parallelism 2, holds the same tensors, and its next step ends with the bits of the run that went on from
its own folder.  The small folders and the SHA-256 of what PaddleNLP held go to golden/paddle, for tests/parity/test_ckpt_paddle.c.

Run: VENV/bin/python golden/make_paddle.py build/release/bin/assay [VARIANT ...]      (names: these alone)
VENV: pip install paddlepaddle==3.2.2 paddlenlp==3.0.0b4 aistudio-sdk==0.2.6 pyarrow==17.0.0 datasets==2.21.0 protobuf==4.25.8 'setuptools<81'
"""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import numpy as np

GOLDEN = pathlib.Path(__file__).resolve().parent
STATES = {"moment1_0": "exp_avg", "moment2_0": "exp_avg_sq"}
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 34, "max_position_embeddings": 64, "seq_length": 8}


def model(name, **more):
    return {"classes": [name + "Config", name + "ForCausalLM"], "config": {**SIZES, **more}}


LLAMA = model("Llama")
TIED = model("Llama", tie_word_embeddings=True)
FUSED = model("Llama", fuse_attention_qkv=True, fuse_attention_ffn=True)
MOE = model("Qwen2Moe", moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=4, num_experts_per_tok=2)
MIXTRAL = model("Mixtral", num_local_experts=4, num_experts_per_tok=2)
TP = {"args": {"tensor_parallel_degree": 2}}
SHARDING = {"args": {"sharding": "stage1", "sharding_parallel_degree": 2}}
SPLIT = {"args": {**SHARDING["args"], "sharding_parallel_config": "split_param", "amp_master_grad": True}}
UNMERGED = {"uc": "ignore_merge_optimizer"}
# name: model, ranks, options, whether the folder is kept
VARIANTS = {
    "one": (LLAMA, 1, {}, True),
    "fp32": (LLAMA, 1, {"bf16": False}, False),
    "tp2": (LLAMA, 2, TP, True),
    "tp2_odd_vocabulary": (model("Llama", vocab_size=35), 2, TP, False),
    "sharding2": (LLAMA, 2, SHARDING, False),
    "sharding2_split": (LLAMA, 2, SPLIT, True),
    "tp2_unmerged": (LLAMA, 2, {**TP, **UNMERGED}, True),
    "sharding2_unmerged": (LLAMA, 2, {**SHARDING, **UNMERGED}, False),
    "sharding2_split_unmerged": (LLAMA, 2, {**SPLIT, **UNMERGED}, False),
    "tp2_skip_weights": (LLAMA, 2, {**TP, "uc": "skip_save_model_weight"}, True),
    "tp2_async": (LLAMA, 2, {**TP, "uc": "async_save"}, False),
    "tied": (TIED, 1, {}, True),
    "fused": (FUSED, 1, {}, False),
    "tp2_fused": (FUSED, 2, TP, True),
    "tp2_fused_unmerged": (FUSED, 2, {**TP, **UNMERGED}, True),
    "qwen2": (model("Qwen2"), 1, {}, False),
    "qwen2_tied": (model("Qwen2", tie_word_embeddings=True), 1, {}, False),
    "mistral": (model("Mistral"), 1, {}, False),
    "mixtral": (MIXTRAL, 1, {}, False),
    "tp2_qwen2_moe": (MOE, 2, TP, True),
}
# Folders that assay reads in part: what is refused, and the variant's weights alone.
REFUSED = {
    "tp2_quantized_O1": (LLAMA, 2, {**TP, "quant": "O1"}, "quantized"),
    "tp2_no_masters": (LLAMA, 2, {**TP, "uc": "remove_master_weight"}, "without their masters"),
    "frozen": (LLAMA, 1, {"freeze": ["layers.0.mlp.up_proj"]}, "have no states, frozen ones"),
}


def launch(work, run, ranks):
    sockets = [socket.socket() for _ in range(ranks)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ends = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    children = []
    for rank in range(ranks):
        env = dict(os.environ, OMP_NUM_THREADS="1", PADDLE_DISTRI_BACKEND="gloo")
        if ranks > 1:
            env.update(PADDLE_TRAINER_ID=str(rank), PADDLE_CURRENT_ENDPOINT=ends[rank], PADDLE_TRAINERS_NUM=str(ranks),
                       PADDLE_TRAINER_ENDPOINTS=",".join(ends), PADDLE_RANK_IN_NODE=str(rank), PADDLE_LOCAL_SIZE=str(ranks))
        log = open(f"{run['dump']}.log.{rank}", "w")
        children.append(subprocess.Popen([sys.executable, GOLDEN / "paddle_cpu.py", json.dumps(run)], env=env, stdout=log,
                                         stderr=subprocess.STDOUT, cwd=work))
    codes = [child.wait(timeout=200) for child in children]
    assert codes == [0] * ranks, (run["dump"], codes, open(f"{run['dump']}.log.0").read()[-3000:])


def assay(*words, code=0):
    result = subprocess.run([PROGRAM, "ckpt", *map(str, words)], capture_output=True, text=True)
    assert result.returncode == code, (words, result.returncode, result.stdout, result.stderr)
    return result.stdout + result.stderr


def tensors_of(folder, kind):
    """All tensors of a kind: {name: array}, BF16 as its bits."""
    types = {"F32": np.float32, "BF16": np.uint16, "U16": np.uint16}
    out = {}
    for path in sorted(pathlib.Path(folder).glob(kind + "-*.safetensors")):
        raw = path.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                out[name] = np.frombuffer(raw[8 + n + begin:8 + n + end], types[entry["dtype"]]).reshape(entry["shape"])
    return out


def dumped(path, when, ranks):
    """What the ranks held, slices joined along the dimension in which they are cut (None: a rank holds all)."""
    parts = [dict(np.load(f"{path}.{when}.{rank}.npz")) for rank in range(ranks)]
    return {key: [p[key] for p in parts if key in p] for key in sorted(set().union(*parts))}


def split_fused(key, array, config):
    """[in, out] of a fused tensor -> what it is made of."""
    if "qkv_proj" in key:
        groups, heads = config["num_key_value_heads"], config["num_attention_heads"]
        size = config["hidden_size"] // heads
        x = array.reshape(array.shape[0], groups, heads // groups + 2, size)
        return {key.replace("qkv_proj", w + "_proj"): np.ascontiguousarray(p).reshape(array.shape[0], -1) for w, p in
                (("q", x[:, :, :-2]), ("k", x[:, :, -2:-1]), ("v", x[:, :, -1:]))}
    if "gate_up_fused_proj" in key:
        return dict(zip((key.replace("gate_up_fused_proj", w + "_proj") for w in ("gate", "up")), np.split(array, 2, axis=1)))
    return {key: array}


def canonical(held, config, tied):
    """PaddleNLP's names and orientation -> {(kind, assay's name): array}."""
    out = {}
    for key, array in held.items():
        kind, name = key.split(":")
        name, _, state = name.partition("/")
        if state and state not in STATES:
            continue
        for part, value in split_fused(name, array, config).items():
            part = part if part.startswith("lm_head") else "model." + part.partition(".")[2]
            if value.ndim == 2 and "embed_tokens" not in part and not (tied and part == "lm_head.weight"):
                value = np.ascontiguousarray(value.T)
            if tied and part == "lm_head.weight":
                part = "model.embed_tokens.weight"
            kind_there = {"model": "model", "master": "master_weights", "state": "optimizer"}[kind]
            out[kind_there, part + ("/" + STATES[state] if state else "")] = value
    return out


def whole(held, like, fused_ffn):
    """Slices of ranks -> tensors of the shapes in `like` (another run's, unsliced)."""
    out = {}
    for key, pieces in held.items():
        shape = like[key].shape
        dims = [d for d in range(len(shape)) if pieces[0].ndim == len(shape) and pieces[0].shape[d] != shape[d]]
        if pieces[0].ndim == 1 and pieces[0].shape != shape:  # flat slices; split parameters end in padding
            out[key] = np.concatenate(pieces)[:int(np.prod(shape))].reshape(shape)
        elif not dims:
            assert all(np.array_equal(p, pieces[0]) for p in pieces), key
            out[key] = pieces[0].reshape(shape)
        elif "gate_up_fused" in key and fused_ffn:
            out[key] = np.concatenate([np.split(p, 2, axis=1)[half] for half in range(2) for p in pieces], axis=1)
        else:
            out[key] = np.concatenate(pieces, axis=dims[0])
    return out


def compare(what, found, expected):
    assert found.keys() == expected.keys(), (what, sorted(set(found) ^ set(expected))[:6])
    for key in expected:
        assert found[key].dtype == expected[key].dtype and found[key].shape == expected[key].shape, (what, key)
        assert found[key].tobytes() == expected[key].tobytes(), (what, key)


def assay_tensors(folder):
    kinds = ("model", "master_weights", "optimizer")
    return {(kind, name): value for kind in kinds for name, value in tensors_of(folder, kind).items()}


def prove(work, name):
    base, ranks, options, keep = VARIANTS[name]
    run = {**base, **options, "steps": 3, "out": f"{work}/{name}", "dump": f"{work}/{name}.saved"}
    config, tied = base["config"], base["config"].get("tie_word_embeddings", False)
    launch(work, run, ranks)
    theirs = pathlib.Path(run["out"]) / "checkpoint-3"
    # PaddleNLP loads its own: unmerged folders in the layout that saved, others on as many ranks, each with all of it.
    unmerged = options.get("uc") == "ignore_merge_optimizer"
    skips = options.get("uc") == "skip_save_model_weight"  # its loader must be told, too
    experts = config.get("num_experts", config.get("num_local_experts", 0))  # PaddleNLP spreads them over data-parallel ranks
    more = options if unmerged or experts else {key: value for key, value in options.items() if key == "bf16" or (key == "uc" and skips)}
    again = {**base, **more, "steps": 4, "out": f"{work}/{name}.own", "load": str(theirs), "dump": f"{work}/{name}.own"}
    launch(work, again, ranks)
    fused = config.get("fuse_attention_ffn", False)
    ours = pathlib.Path(work) / f"{name}.assay"
    assay("verify", theirs)
    assay("convert", theirs, ours)
    back = pathlib.Path(work) / f"{name}.back"
    assay("convert", ours, back, "--form", "paddle")
    assay("verify", back)
    assert " 0 tensors differ" in " " + assay("diff", theirs, back) and "0 tensors differ" in assay("diff", theirs, ours)
    plain = {key: value for key, value in config.items() if not key.startswith("fuse_")}
    one = {**base, "config": plain, **{k: v for k, v in options.items() if k == "bf16"}, "steps": 4, "load": str(back)}
    words = [w for w in ("two", "tp2") if not (experts and w == "two")]
    for word, n, args in (("one", 1, {}), ("two", 2, {}), ("tp2", 2, TP)):
        if word != "one" and word not in words:
            continue
        launch(work, {**one, **args, "out": f"{work}/{name}.{word}", "dump": f"{work}/{name}.{word}"}, n)
    found = assay_tensors(ours)
    single = {when: {k: v[0] for k, v in dumped(f"{work}/{name}.one", when, 1).items()} for when in ("begin", "end")}
    compare(f"{name}: PaddleNLP holds what assay wrote", canonical(single["begin"], plain, tied), found)
    for word in words:
        for when in ("begin", "end"):
            joined = whole(dumped(f"{work}/{name}.{word}", when, 2), single[when], False)
            compare(f"{name}: {word}, {when}", joined, single[when])
    own = {}
    for when in ("begin", "end"):
        held = dumped(again["dump"], when, ranks)
        shapes = {k: v for k, v in single[when].items()}
        if fused:
            saved = {"model:" + k: v for k, v in tensors_of(theirs, "model").items()}
            shapes = {k: saved["model:" + k.partition(":")[2].partition("/")[0]] if not k.endswith("pow_acc_0") else np.zeros(1)
                      for k in held}
        own[when] = canonical(whole(held, shapes, fused), config, tied)
    compare(f"{name}: PaddleNLP's own load and assay's", own["begin"], found)
    compare(f"{name}: the next step", canonical(single["end"], plain, tied), own["end"])
    hashes = {"/".join(k): hashlib.sha256(v.tobytes()).hexdigest() for k, v in own["begin"].items()}
    print(f"{name}: {len(found)} tensors: PaddleNLP's load = assay's; assay's folder on one, {' and '.join(words)}, and its next step",
          flush=True)
    return theirs, hashes, keep


def refuse(work, name):
    base, ranks, options, words = REFUSED[name]
    run = {**base, **options, "steps": 3, "out": f"{work}/{name}", "dump": f"{work}/{name}.saved"}
    launch(work, run, ranks)
    theirs = pathlib.Path(run["out"]) / "checkpoint-3"
    assay("verify", theirs)
    text = assay("convert", theirs, f"{work}/{name}.assay", code=2)
    assert words in text, text
    assay("convert", theirs, f"{work}/{name}.weights", "--weights", "model")
    held = dumped(run["dump"], "end", ranks)
    stored = {"model:" + k: v for k, v in tensors_of(theirs, "model").items()}
    joined = whole({k: v for k, v in held.items() if k.startswith("model:")}, stored, False)
    compare(name, canonical(joined, base["config"], False), assay_tensors(f"{work}/{name}.weights"))
    print(f"{name}: states refused by name; weights = what PaddleNLP held", flush=True)
    return theirs


def keep_folder(name, theirs, hashes):
    """Without what is pickled and as large as the tensors: random streams and arguments."""
    to = GOLDEN / "paddle" / name
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for path in sorted(theirs.iterdir()):
        if not path.name.startswith(("rng_state", "training_args", "generation_config")):
            shutil.copyfile(path, to / path.name)
    if hashes is not None:
        (GOLDEN / "paddle" / f"{name}.json").write_text(json.dumps(hashes, indent=0, sort_keys=True) + "\n")


def update_manifest():
    """Versions, command and the sha256 of every file under golden/paddle."""
    from importlib.metadata import version

    path = GOLDEN / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    files = sorted(p for p in (GOLDEN / "paddle").rglob("*") if p.is_file())
    manifest["paddle"] = {"command": "python golden/make_paddle.py build/release/bin/assay",
                          "python": sys.version.split()[0], "paddlepaddle": version("paddlepaddle"), "paddlenlp": version("paddlenlp"),
                          "seeds": {"paddle": 1, "tokens": 7},
                          "sha256": {str(p.relative_to(GOLDEN)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}}
    path.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def main():
    names = sys.argv[2:]
    with tempfile.TemporaryDirectory() as work:
        for name in names or VARIANTS:
            if name in VARIANTS:
                theirs, hashes, keep = prove(work, name)
                if keep:
                    keep_folder(name, theirs, hashes)
        for name in REFUSED:
            if not names or name in names:
                theirs = refuse(work, name)
                if name == "tp2_quantized_O1":
                    keep_folder(name, theirs, None)
    update_manifest()


if __name__ == "__main__":
    PROGRAM = pathlib.Path(sys.argv[1]).resolve()
    main()
