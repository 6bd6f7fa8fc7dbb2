"""Answers requests of `assay certify --python pkg:function` (docs/CERTIFY.md): reads the inputs that the judge made, calls the function, and
writes a trace of inputs as they are behind the call, and of outputs.

    python -m assay_trace.certify --function pkg:function --outputs y,rstd --request DIR --out DIR --log FILE --now FILE --threads N [--again]

--now is a file of 512 bytes: when the call that runs began (a double, the monotonic clock; 0: none runs) and which call it is.  --log gets a
line of JSON for every finding as it is found, so that none is lost with the process: first what the function is, last that all was tried.
"""
import argparse
import faulthandler
import importlib
import inspect
import json
import math
import mmap
import os
import pathlib
import platform
import resource
import struct
import sys
import time
import traceback

import torch

from .certify_memory import Guarding, Memory
from .certify_state import State
from .writer import DTYPES, Writer, raw_bytes

TORCH = {word: dtype for dtype, word in DTYPES.items()}
# What a function is taken to do that says nothing of itself: F32 sums in any order, functions within 4 units.
DECLARED = {"accumulate": "F32", "order": "unknown", "fma": True, "math_ulp": 4}
NOW_BYTES = 512
HEADROOM = 2 << 30  # bytes that calls may have beside what the imports took


class Refused(Exception):
    """Why nothing can be tried; no finding about the function."""


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
        """[(record, inputs by slot)]"""
        tensors = {r["id"]: r for r in self.records if r["type"] == "tensor"}
        return [(r, {slot: self.tensor(tensors[i]) for slot, i in r["inputs"].items()}) for r in self.records if r["type"] == "op"]


class Board:
    """What the parent reads: the call that runs, and the findings."""

    def __init__(self, now, log):
        with open(now, "r+b") as f:
            self.now = mmap.mmap(f.fileno(), NOW_BYTES)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.counts, self.text = {}, ""

    def line(self, **members):
        os.write(self.log, json.dumps(members).encode() + b"\n")

    def begins(self, text, clock=True):
        self.text = text
        struct.pack_into("<d", self.now, 0, 0.0)
        self.now[8:] = text.encode()[:NOW_BYTES - 9].ljust(NOW_BYTES - 8, b"\0")
        if clock:
            struct.pack_into("<d", self.now, 0, time.monotonic())

    def ends(self):
        struct.pack_into("<d", self.now, 0, 0.0)

    def tried(self, trial, n=1):
        self.counts[trial] = self.counts.get(trial, 0) + n

    def bad(self, trial, text):
        self.line(trial=trial, text=f"{text}, in {self.text}")


def find(text):
    module, _, name = text.partition(":")
    try:
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except BaseException as e:
        raise Refused(f"{type(e).__name__}: {str(e)[:300]}") from e
    try:
        inspect.signature(function)
        source(function)
    except (TypeError, ValueError) as e:
        raise Refused(f"expected a function of Python, found {type(function).__name__}: {e}") from e
    return function


def source(function):
    """The file of a function, or of the class of an object that is called."""
    function = inspect.unwrap(function)
    return inspect.getsourcefile(function if inspect.isroutine(function) or inspect.isclass(function) else type(function))


def named(outputs, names):
    """Outputs by name: strided tensors of a dtype that a trace has, None where an optional one is absent."""
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    if len(outputs) != len(names):
        raise TypeError(f"expected {len(names)} outputs ({', '.join(names)}), found {len(outputs)}")
    for name, t in zip(names, outputs):
        if t is None:
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"output {name}: expected a tensor, found {type(t).__name__}")
        if t.layout is not torch.strided or t.is_quantized or type(t) not in (torch.Tensor, torch.nn.Parameter) or t.dtype not in DTYPES:
            raise TypeError(f"output {name}: expected a plain tensor, found a {type(t).__name__} of {t.dtype}, {t.layout}")
    return {name: t.detach().resolve_neg() for name, t in zip(names, outputs) if t is not None}


def place_of(error, folder):
    """Where it was raised: the last line of the function's own folder, of its first cause that has one."""
    causes = [error]
    while causes[-1].__cause__ is not None and len(causes) < 8:
        causes.append(causes[-1].__cause__)
    for e in reversed(causes):
        frames = traceback.extract_tb(e.__traceback__)
        own = [f for f in frames if f.filename.startswith(folder)]
        if own:
            return f" ({pathlib.Path(own[-1].filename).name}:{own[-1].lineno})"
    return ""


class Trial:
    """Calls of one function over one request."""

    def __init__(self, function, options, board):
        self.function, self.board, self.device = function, board, options.device
        self.names, self.rows, self.compared = (text.split(",") if text else [] for text in (options.outputs, options.rows, options.compared))
        self.in_place = dict(pair.split("=") for pair in getattr(function, "in_place", "").split())
        known = inspect.signature(function).parameters
        self.takes = None if any(p.kind is p.VAR_KEYWORD for p in known.values()) else set(known)
        self.folder = str(pathlib.Path(source(function)).parent) + os.sep
        self.state = State()
        self.before = {}  # the last call of every shape: its text, outputs, and their bytes

    def declares(self, flag):
        return bool(getattr(self.function, flag, False))

    def inputs(self, memory, inputs, gap=0):
        """Copies between guards; gap: elements between rows, once more for each input: one stride is not another's."""
        out = {}
        for number, (slot, t) in enumerate(inputs.items(), 1):
            stride = list(t.stride())
            if gap and t.dim() > 1:
                stride = [s + s // t.shape[-1] * gap * number if d < t.dim() - 1 and t.shape[-1] > 0 else s for d, s in enumerate(stride)]
            out[slot] = memory.place(t, f"input {slot}", stride=stride)
            out[slot].copy_(t)
        return out

    def call(self, record, asked, memory, what="", gap=0):
        """Outputs by name, or None: the call raised.  What it did to its surroundings is said."""
        board, shapes = self.board, " ".join(f"{k}{list(t.shape)}".replace(" ", "") for k, t in asked.items())
        dtypes = {DTYPES[t.dtype] for t in asked.values() if t.is_floating_point()}
        attrs = {k: v for k, v in record["attrs"].items() if k != "act" and (self.takes is None or k in self.takes)}
        inputs = self.inputs(memory, asked, gap)
        board.begins(f"{what}{record['instance'][:100]} ({'/'.join(sorted(dtypes))} {shapes})")
        pid, outputs = os.getpid(), None
        try:
            with Guarding(memory):
                found = self.function(**inputs, **attrs)
                if self.device != "cpu":
                    torch.cuda.synchronize()
            board.ends()
            if os.getpid() != pid:
                os._exit(0)  # a copy that a fork made: the parent says so
            outputs = named(found, self.names)
            for name, t in outputs.items():
                if t.device.type != self.device:
                    raise TypeError(f"output {name}: expected a tensor of {self.device}, found {t.device}")
        except BaseException as e:  # whatever a function raises is a finding about it
            board.ends()
            if os.getpid() != pid:
                os._exit(0)
            board.bad("accepts", f"raises {type(e).__name__}: {str(e)[:200]}{place_of(e, self.folder)}")
        board.tried("accepts")
        self.look(memory, asked, inputs, outputs)
        return outputs

    def look(self, memory, asked, inputs, outputs):
        board = self.board
        for trial in ("guards", "inputs", "state"):
            board.tried(trial)
        of = {memory.region_of(t): f"output {name}" for name, t in (outputs or {}).items()}
        for text in memory.touched({i: name for i, name in of.items() if i is not None and i >= len(inputs)}):
            board.bad("guards", text)
        for slot, t in inputs.items():
            if slot not in self.in_place.values() and bytes(raw_bytes(t)) != bytes(raw_bytes(asked[slot])):
                board.bad("inputs", f"changed input {slot}")
        for text in self.state.changed():
            board.bad("state", text)
        if outputs is not None:
            self.look_at_places(inputs, outputs)

    def look_at_places(self, inputs, outputs):
        """An output in the memory of an input that nobody declared, and one whose memory a later call of its shapes uses again."""
        def storage(t):
            return t.untyped_storage().data_ptr() if t.numel() > 0 else None
        at = {storage(t): slot for slot, t in inputs.items() if storage(t) is not None}
        self.board.tried("in_place")
        for name, t in outputs.items():
            slot = at.get(storage(t))
            if slot is not None and self.in_place.get(name) != slot:
                self.board.bad("in_place", f"output {name} lies in the memory of input {slot}: expected memory of its own, or "
                                           f"FUNCTION.in_place = \"{name}={slot}\"")
        of_shapes = tuple((slot, tuple(t.shape)) for slot, t in inputs.items())
        text, kept, contents = self.before.get(of_shapes, ("", {}, {}))
        for name, t in kept.items():
            if bytes(raw_bytes(t)) != contents[name]:
                self.board.bad("repeat", f"output {name} of an earlier call, {text}, changes")
        self.before[of_shapes] = self.board.text, outputs, {name: bytes(raw_bytes(t)) for name, t in outputs.items()}

    def compare(self, trial, wanted, outputs, what, names=None):
        self.board.tried(trial)
        for name in names or self.names:
            a, b = wanted.get(name), (outputs or {}).get(name)
            if (a is None) != (b is None) or (a is not None and a != (b.dtype, tuple(b.shape), bytes(raw_bytes(b)))):
                self.board.bad(trial, f"output {name} {what}")
                return

    def once(self, operations, writer):
        """Every call once, in order, its last byte at the end of what may be touched; what is to be compared with later calls."""
        first = []
        for record, asked in operations:
            memory = Memory(True, 0xFF, self.device)
            outputs = self.call(record, asked, memory)
            first.append(None)
            if outputs is None:
                continue
            keep = {name: (t.dtype, tuple(t.shape), bytes(raw_bytes(t))) for name, t in outputs.items()}
            first[-1] = keep, {name: memory.unwritten(t) for name, t in outputs.items()}

            def put(slot, t, record=record):
                return writer.tensor(f"{record['instance'][:120]}.{slot}", t, record["phase"], 0, place={
                    "global_shape": list(t.shape), "kind": "local"})
            ins = {slot: put(slot, t) for slot, t in asked.items()}
            outs = {slot: put(slot, t) for slot, t in outputs.items()}
            writer.op(record["op"], record["instance"], record["phase"], 0, -1, ins, outs, record["attrs"], arith=self.arith)
            if self.rows and self.declares("batch_invariant"):
                self.batch(record, asked, keep)
            if self.declares("row_strides") and any(t.dim() > 1 and t.numel() > 0 for t in asked.values()):
                again = self.call(record, asked, Memory(True, 0xFF, self.device), "rows with gaps in ", gap=3)
                self.compare("strides", keep, again, "has other bits for rows with gaps")
        return first

    def batch(self, record, asked, keep):
        n = next((asked[slot].shape[0] for slot in self.rows if slot in asked), 0)
        if n < 2:
            return
        for begin, end, what in ((0, n // 2, "the first half of the rows of "), (n // 2, n, "the second half of the rows of ")):
            part = {slot: t[begin:end] if slot in self.rows else t for slot, t in asked.items()}
            outputs = self.call(record, part, Memory(True, 0xFF, self.device), what)
            wanted = {}
            for name in self.compared:
                if name in keep:
                    dtype, shape, data = keep[name]
                    row = len(data) // shape[0]
                    wanted[name] = (dtype, (end - begin, *shape[1:]), data[begin * row:end * row])
            self.compare("batch", wanted, outputs, "has other bits without the other rows", [n for n in self.compared if n in wanted])

    def again(self, operations, first):
        """Every call again, from the last to the first, at other addresses and on other garbage."""
        self.before = {}
        for (record, asked), kept in zip(reversed(operations), reversed(first)):
            if kept is None:
                continue
            memory = Memory(False, 0x5A, self.device)
            outputs = self.call(record, asked, memory, "the second run, in reverse order, of ")
            self.compare("repeat", kept[0], outputs, "has other bits in another run of this process, in reverse order")
            self.board.tried("written")
            for name, t in (outputs or {}).items():
                missing, now = kept[1].get(name), memory.unwritten(t)
                if missing is not None and now is not None and missing.shape == now.shape and bool((missing & now).any()):
                    never = (missing & now).nonzero().reshape(-1)
                    self.board.bad("written", f"{never.numel()} of {now.numel()} elements of {name} are never written, the first is "
                                              f"element {int(never[0])}")


def limit_memory():
    """Allocations beyond the headroom fail with an error of Python's or torch's, which names the call; else the machine runs out."""
    data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data + HEADROOM if most == resource.RLIM_INFINITY else min(most, data + HEADROOM)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def triton_facts():
    if "triton" not in sys.modules:
        return None, None
    from . import certify_triton
    try:
        return certify_triton, certify_triton.prepare()
    except Exception as e:
        raise Refused(f"Triton: {type(e).__name__}: {str(e)[:300]}") from e


def facts(function, o, arith, triton):
    out = {"file": source(function), "arithmetic": arith, "device": None, "driver": None, "toolkit": triton,
           "flags": [flag for flag in ("batch_invariant", "row_strides") if getattr(function, flag, False)],
           "in_place": getattr(function, "in_place", ""), "built": f"Python {platform.python_version()}, torch {torch.__version__}"}
    if o.device != "cpu":
        out["device"] = torch.cuda.get_device_name()
        path = pathlib.Path("/proc/driver/nvidia/version")
        out["driver"] = path.read_text().splitlines()[0][:120] if path.exists() else "unknown"
        out["toolkit"] = f"CUDA {torch.version.cuda}" + (f", Triton {sys.modules['triton'].__version__}" if "triton" in sys.modules else "")
    return out


def run(o, board):
    if o.device == "cuda" and not torch.cuda.is_available():
        raise Refused("--python-device cuda: torch finds no device")
    board.begins(f"the import of {o.function}", clock=False)
    function = find(o.function)
    triton, toolkit = triton_facts()
    torch.set_num_threads(o.threads)
    arith = {**DECLARED, **getattr(function, "arithmetic", {})}
    board.line(facts=facts(function, o, arith, toolkit))
    if o.device == "cpu":
        limit_memory()
    with torch.no_grad():
        trial = Trial(function, o, board)
        trial.arith = arith
        operations = Request(o.request).operations()
        writer = Writer(o.out, hash="blake2b-128", engine="python", precision="fp32")
        first = trial.once(operations, writer)
        writer.flush(0)
        writer.close()
        if o.again:
            trial.again(operations, first)
    board.line(end=board.counts, launches=triton.launches if triton else 0)


def main():
    p = argparse.ArgumentParser(prog="assay_trace.certify")
    for name in ("function", "outputs", "request", "out", "log", "now"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--rows", default="", help="inputs whose first dimension is rows that do not depend on each other")
    p.add_argument("--compared", default="", help="outputs that have such rows")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--again", action="store_true", help="every call a second time, in reverse order")
    o = p.parse_args()
    faulthandler.enable()
    board = Board(o.now, o.log)
    try:
        run(o, board)
    except Refused as e:
        board.line(error=str(e))
        sys.exit(4)
    except Exception as e:  # not of the function: what it raises is caught where it is called
        board.line(error=f"assay_trace: {type(e).__name__}: {str(e)[:200]}, in {board.text}")
        raise


if __name__ == "__main__":
    main()
