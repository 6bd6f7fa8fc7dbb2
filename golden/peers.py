"""The table of peers in docs/PADDLE.md: what other checkpoints load across layouts, and what they say when a file is damaged.

    python golden/peers.py ASSAY TORCH PADDLE AUTOMODEL      programs: assay; a python with torch and megatron-core; one with PaddleNLP
                                                             ("": not run); the unpacked wheel of nemo-automodel ("": not run)

Each cell is a fresh process (or two, gloo, on this CPU): a small state is saved on two ranks, one thing is done to the folder, and it
is loaded again.  What a cell says: `bitwise`, `N elements are wrong` (nothing was said), or the first words of the refusal.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def last_words(text):
    """The last line of a traceback, or of what was printed; of assay, what a rank said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "error: " in line and "exited with code" not in line:
            return line.split("error: ", 1)[1][:170]
    for line in reversed(lines):
        name = line.split(":")[0]
        if name and " " not in name and (name.endswith(("Error", "Exception")) or "Error" in name.split(".")[-1]):
            return line[:170]
    return lines[-1][:170] if lines else "no words"


def torch_run(peer, act, folder, layout, world):
    """Cells that rank 0 printed."""
    p = port()
    env = dict(os.environ, PYTHONPATH=AUTOMODEL, OMP_NUM_THREADS="1")
    children = [subprocess.Popen([TORCH, HERE / "peers_torch.py", peer, act, folder, layout, str(r), str(world), p], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, env=env) for r in range(world)]
    rows, errors = {}, ""
    for child in children:
        try:
            out, err = child.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            err += "\nTimeoutError: killed after 400 s"
        errors += err if child.returncode != 0 else ""
        for line in out.splitlines():
            if line.startswith("{"):
                rows.update(json.loads(line))
    if errors:
        rows["then"] = last_words(errors)
    return rows


# --- damages: each returns what it did ------------------------------------------------------------------------
def flip(path):
    """A byte in the last quarter of the file, or at 60 % of a file of tensors: inside a tensor."""
    data = bytearray(path.read_bytes())
    at = len(data) * 6 // 10
    data[at] ^= 0x10
    path.write_bytes(data)


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[:len(data) // 2])


def delete(path):
    path.unlink()


def stale(path):
    """A shard of a larger, older save that nobody removed."""
    name = path.name.replace("00002-of-00002", "00003-of-00003")
    for word in ("__1_", "shard-00002", "shard-00001"):
        name = path.name.replace(word, word[:-1].replace("1", "2") + "_" if word == "__1_" else "shard-00009") if name == path.name else name
    assert name != path.name, path
    shutil.copyfile(path, path.with_name(name))


DAMAGES = {"a byte of a tensor flipped": flip, "a file cut in half": truncate, "a shard deleted": delete, "a stale shard beside": stale}


def torch_rows(peer, work):
    whole = work / peer
    rows = torch_run(peer, "all", whole, "rows", 2)
    rows.update(torch_run(peer, "load", whole, "rows", 3))
    rows.update(torch_run(peer, "load", whole, "whole", 1))
    return rows


# --- PaddleNLP ------------------------------------------------------------------------------------------------
def paddle_rows(work):
    sys.path.insert(0, str(HERE))
    script = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import make_paddle as m
work = {str(work)!r}
act, name, ranks, folder = sys.argv[1:5]
args = {{"one": {{}}, "two": {{}}, "tp2": m.TP, "sharding2": m.SHARDING}}[name]
run = {{**m.LLAMA, **args, "steps": 3 if act == "save" else 4, "out": work + "/" + act + name, "dump": work + "/" + act + name}}
if act == "load":
    run["load"] = folder
try:
    m.launch(work, run, int(ranks))
except AssertionError as e:
    print(m.__name__ and str(e.args[0][2]) if e.args else "failed")
    sys.exit(1)
"""
    path = work / "paddle.py"
    path.write_text(script)

    def run(act, name, ranks, folder):
        for old in work.glob(act + name + "*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        r = subprocess.run([PADDLE, path, act, name, str(ranks), str(folder)], capture_output=True, text=True)
        return r.returncode, r.stdout + r.stderr

    compare = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np, make_paddle as m
held, truth, ranks = sys.argv[1:4]
whole = {{("model:" + k): v for k, v in m.tensors_of(truth, "model").items()}}
whole.update({{("master:" + k): v for k, v in m.tensors_of(truth, "master_weights").items()}})
whole.update({{("state:" + k): v for k, v in m.tensors_of(truth, "optimizer").items()}})
found = m.dumped(held, "begin", int(ranks))
wrong = sum(int(v.size) for k, v in whole.items() if k not in found)
found = m.whole({{k: v for k, v in found.items() if k in whole}}, whole, False)
for k, v in found.items():
    x, y = np.ascontiguousarray(v), np.ascontiguousarray(whole[k])
    t = np.uint16 if x.dtype.itemsize == 2 else np.uint32
    wrong += int((x.view(t) != y.view(t)).sum())
print("bitwise" if wrong == 0 else f"{{wrong}} elements are wrong")
"""
    code, text = run("save", "tp2", 2, "")
    assert code == 0, text[-2000:]
    whole = work / "savetp2" / "checkpoint-3"
    keep = work / "paddle"
    shutil.copytree(whole, keep)

    def load(folder, name="tp2", ranks=2):
        code, text = run("load", name, ranks, folder)
        if code != 0:
            return "refused: " + last_words(text)
        r = subprocess.run([PADDLE, "-c", compare, work / ("load" + name), keep, str(ranks)], capture_output=True, text=True)
        return r.stdout.strip() or last_words(r.stderr)

    rows = {"load: same": load(keep), "load: other cut": load(keep, "sharding2", 2), "load: other ranks": "not run", "load: 1 rank": load(keep, "one", 1)}
    for word, act in DAMAGES.items():
        folder = work / "paddle.damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(keep, folder)
        act(folder / "optimizer-00002-of-00002.safetensors")
        rows[word] = load(folder)
        rows[word + " (assay ckpt verify of it)"] = verify(folder)
    return rows


# --- assay ----------------------------------------------------------------------------------------------------
def verify(folder):
    r = subprocess.run([ASSAY, "ckpt", "verify", folder], capture_output=True, text=True)
    lines = [line for line in (r.stdout + r.stderr).splitlines() if line.startswith(("wrong", "assay"))]
    return (f"exit code {r.returncode}: " + (lines[0] if lines else r.stdout.strip().splitlines()[-1])).replace(str(folder), "DIR")[:170]


def assay_rows(work):
    models = HERE / "models" / "llama"

    def step(*words):
        r = subprocess.run([ASSAY, "step", "--engine", "sim", "--precision", "bf16", "--model", models, "--batch", models / "train_batch.safetensors",
                            "--lr-decay-iters", "3", "--out", work / "out", *map(str, words)], capture_output=True, text=True)
        return r

    whole = work / "assay"
    r = step("--layout", "tp2", "--train-iters", "2", "--save", whole, "--max-shard-size", "20000")
    assert r.returncode == 0, r.stderr
    rows = {}
    for word, layout in (("same", "tp2"), ("other cut", "dp2,zero3"), ("other ranks", "pp2,dp2"), ("1 rank", "")):
        again = work / "assay.again"
        shutil.rmtree(again, ignore_errors=True)
        # no step is left to do: what was loaded is saved
        r = step(*(("--layout", layout) if layout else ()), "--train-iters", "2", "--load", whole, "--save", again, "--max-shard-size", "20000")
        if r.returncode != 0:
            rows["load: " + word] = "refused: " + last_words(r.stderr)
            continue
        d = subprocess.run([ASSAY, "ckpt", "diff", whole, again], capture_output=True, text=True)
        rows["load: " + word] = "bitwise" if d.returncode == 0 else d.stdout.strip().splitlines()[-1]
    for word, act in DAMAGES.items():
        folder = work / "assay.damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        act(sorted(folder.glob("optimizer-00002-of-*"))[0]) if word != "a stale shard beside" else shutil.copyfile(
            sorted(folder.glob("optimizer-00002-of-*"))[0], folder / "optimizer-00099-of-00099.safetensors")
        r = step("--layout", "tp2", "--train-iters", "3", "--load", folder)
        rows[word] = ("refused: " + last_words(r.stderr) if r.returncode != 0 else "loaded").replace(str(folder), "DIR")
    return rows


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        table = {"assay": assay_rows(work)}
        print(json.dumps(table["assay"], indent=1), flush=True)
        for name, here, rows in (("torch", TORCH, lambda: torch_rows("torch", work)), ("megatron", TORCH, lambda: torch_rows("megatron", work)),
                                 ("automodel", TORCH and AUTOMODEL, lambda: torch_rows("automodel", work)),
                                 ("paddle", PADDLE, lambda: paddle_rows(work))):
            if here:
                table[name] = rows()
                print(name, json.dumps(table[name], indent=1).replace(folder, "..."), flush=True)


if __name__ == "__main__":
    ASSAY, TORCH, PADDLE, AUTOMODEL = sys.argv[1:5]
    ASSAY = pathlib.Path(ASSAY).resolve()
    main()
