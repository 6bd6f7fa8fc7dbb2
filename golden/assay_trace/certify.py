"""Answers requests of `assay certify --python pkg:function` (docs/CERTIFY.md): reads the inputs that the judge made, calls the function, and
writes a trace of inputs as they are behind the call, and of outputs.

    python -m assay_trace.certify --function pkg:function --outputs y,rstd --request DIR --out DIR --about FILE --threads N
"""
import argparse
import importlib
import inspect
import json
import math
import pathlib
import platform
import struct
import traceback

import torch

from .writer import DTYPES, Writer, raw_bytes

TORCH = {word: dtype for dtype, word in DTYPES.items()}
# What a function is taken to do that says nothing of itself: F32 sums in any order, functions within 4 units.
DECLARED = {"accumulate": "F32", "order": "unknown", "fma": True, "math_ulp": 4}


class Request:
    """Operations of one rank's trace with their inputs."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        lines = (folder / "rank-00000.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        self.data = {}
        for path in sorted(folder.glob("rank-00000-step-*.safetensors")):
            data = path.read_bytes()
            (n,) = struct.unpack_from("<Q", data)
            for key, entry in json.loads(data[8:8 + n]).items():
                begin, end = entry["data_offsets"] if key != "__metadata__" else (0, 0)
                self.data[key] = data[8 + n + begin:8 + n + end]

    def tensor(self, record):
        shape = record.get("local_shape", record["global_shape"])
        dtype = TORCH[record["dtype"]]
        data = self.data.get(record.get("data", record["hash"]), b"")
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)

    def operations(self):
        tensors = {r["id"]: r for r in self.records if r["type"] == "tensor"}
        for r in self.records:
            if r["type"] == "op":
                yield r, {slot: self.tensor(tensors[i]) for slot, i in r["inputs"].items()}


def find(text):
    module, _, name = text.partition(":")
    function = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def call(function, inputs, attrs, names):
    """Outputs by name; `attrs` as the request has them, but for the dtype of activations."""
    known = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    given = {k: v for k, v in attrs.items() if k != "act" and (takes_all or k in known)}
    found = function(**inputs, **given)
    found = found if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(names):
        raise TypeError(f"expected {len(names)} outputs ({', '.join(names)}), found {len(found)}")
    return {name: t for name, t in zip(names, found) if t is not None}


def answer(function, names, request, out):
    """What the function declares, calls that raised, inputs that it changed."""
    writer = Writer(out, hash="blake2b-128", engine="python", precision="fp32")
    declared = {**DECLARED, **getattr(function, "arithmetic", {})}
    failures, changed = [], []
    for record, inputs in Request(request).operations():
        before = {slot: bytes(raw_bytes(t)) for slot, t in inputs.items()}
        try:
            outputs = call(function, inputs, record["attrs"], names)
        except Exception as e:  # what a function raises is a finding about it
            where = traceback.extract_tb(e.__traceback__)[-1]
            failures.append({"instance": record["instance"],
                             "error": f"{type(e).__name__}: {str(e)[:160]} ({pathlib.Path(where.filename).name}:{where.lineno})"})
            continue
        changed += [f"input {slot} of {record['instance']}" for slot, t in inputs.items() if bytes(raw_bytes(t)) != before[slot]]

        def put(slot, t):
            return writer.tensor(f"{record['instance'][:120]}.{slot}", t, record["phase"], 0, place={
                "global_shape": list(t.shape), "kind": "local"})
        ins = {slot: put(slot, t) for slot, t in inputs.items()}
        outs = {slot: put(slot, t) for slot, t in outputs.items()}
        writer.op(record["op"], record["instance"], record["phase"], 0, -1, ins, outs, record["attrs"], arith=declared)
    writer.flush(0)
    writer.close()
    return declared, failures, changed


def main():
    p = argparse.ArgumentParser(prog="assay_trace.certify")
    for name in ("function", "outputs", "request", "out", "about"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--threads", type=int, default=1)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    function = find(o.function)
    with torch.no_grad():
        declared, failures, changed = answer(function, o.outputs.split(","), o.request, o.out)
    about = {"file": inspect.getsourcefile(inspect.unwrap(function)), "arithmetic": declared, "failures": failures, "changed": changed,
             "built": f"Python {platform.python_version()}, torch {torch.__version__}"}
    pathlib.Path(o.about).write_text(json.dumps(about))


if __name__ == "__main__":
    main()
