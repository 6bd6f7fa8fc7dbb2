"""One rank's files of a trace: records as lines, tensors of a step in one safetensors file.

A step's data file is complete before its lines are written, and the lines of a step end with the end marker, over which the
next step writes: whatever ends the run, the folder holds the steps that were finished and can be read.
"""
import ctypes
import hashlib
import json
import math
import os
import struct
import warnings

import torch

try:
    import xxhash
except ImportError:  # BLAKE2b then, which is many times as slow
    xxhash = None

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
          torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
          torch.bool: "BOOL"}
for _name, _word in (("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2")):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _word

MOST_NOTES = 64
WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}  # wide elements first: all are aligned


def raw_bytes(t):
    """Little-endian bytes in C order, a view where that is possible, and not NumPy's, after which FSDP could not free the storage."""
    t = t.detach().cpu().contiguous()
    if t.numel() == 0:
        return b""
    view = (ctypes.c_char * (t.numel() * t.element_size())).from_address(t.data_ptr())
    view.owner = t
    return view


HASHES = {"blake2b-128": lambda: hashlib.blake2b(digest_size=16)}
if xxhash is not None:
    HASHES["xxh3-128"] = xxhash.xxh3_128


def content_hash(dtype, shape, data, kind="blake2b-128"):
    """docs/TRACE.md, content hash: dtype name, NUL, number of dimensions and extents as 64-bit integers, bytes."""
    h = HASHES[kind]()
    h.update(dtype.encode() + b"\0" + struct.pack(f"<{len(shape) + 1}q", len(shape), *shape))
    h.update(data)
    return h.hexdigest()


def statistics(t):
    """What a hash does not tell; not-a-number and infinities are counted, the rest is over finite elements."""
    x = t.detach()
    if not x.is_floating_point() or x.numel() == 0:
        return {}
    least, largest = (x.item() for x in torch.aminmax(x))
    mean, rms = x.mean(dtype=torch.float64).item(), (torch.linalg.vector_norm(x, dtype=torch.float64) / x.numel() ** 0.5).item()
    if all(math.isfinite(v) for v in (least, largest, mean, rms)):
        return {"nan": 0, "inf": 0, "min": least, "max": largest, "mean": mean, "rms": rms}
    x = x.double()
    finite = x[torch.isfinite(x)]
    out = {"nan": int(torch.isnan(x).sum()), "inf": int(torch.isinf(x).sum())}
    if finite.numel():
        out.update(min=finite.min().item(), max=finite.max().item(), mean=finite.mean().item(),
                   rms=finite.square().mean().sqrt().item())
    return out


class Writer:
    """mode: "full" (values), "statistics" (hash, least, largest, mean, rms) or "hash".  short: values without hashes, small files.
    hash: "blake2b-128" or "xxh3-128" (needs the package xxhash); None: the fast one where it is installed."""

    def __init__(self, folder, rank=0, world_size=1, mode="full", limit_bytes=None, short=False, hash=None, **index):
        if mode not in ("full", "statistics", "hash"):
            raise ValueError(f"mode: expected full, statistics or hash, found {mode!r}")
        self.hash = hash or ("xxh3-128" if "xxh3-128" in HASHES else "blake2b-128")
        if self.hash not in HASHES:
            raise ValueError(f"hash: expected one of {', '.join(HASHES)}, found {self.hash!r}"
                             + (": the package xxhash is not installed" if self.hash == "xxh3-128" else ""))
        self.rank, self.world_size, self.mode, self.limit = rank, world_size, mode, limit_bytes
        self.stem = os.path.join(folder, f"rank-{rank:05d}")
        self.ids = self.sequence = self.written = self.n_tensors = self.n_ops = 0
        self.lines, self.data, self.pending, self.omitted = [], {}, 0, 0
        self.notes, self.more_notes, self.unsaid = {}, 0, False
        self.short = {} if short else None
        os.makedirs(folder, exist_ok=True)
        if rank == 0:
            members = {"format": "assay-trace", "version": 1, "world_size": world_size, **index}
            if mode != "full":
                members["hash_only"] = True
            if self.hash != "blake2b-128" and not short:
                members["hash"] = self.hash
            with open(os.path.join(folder, "index.json"), "x") as f:
                json.dump(members, f, indent=1)
        self.index = os.path.join(folder, "index.json") if rank == 0 else None
        self.file = open(self.stem + ".jsonl", "xb")
        self.end = 0  # where the end marker begins
        self.flush(None)

    def tensor(self, name, t, phase, step, microbatch=-1, place=None, extra=None):
        """One record; its id. place: members of docs/TRACE.md (global_shape, local_shape, segments, kind, partial_group)."""
        t = t.detach()
        if place is None:
            t = t.flatten(0, t.dim() - 4) if t.dim() > 4 else t
        record = {"type": "tensor", "id": self.ids, "name": name[:159], "phase": phase, "step": step,
                  "microbatch": microbatch, "dtype": DTYPES[t.dtype], "global_shape": list(t.shape)}
        if place:
            record.update(place)
        data = raw_bytes(t)
        record["hash"] = content_hash(record["dtype"], t.shape, data, self.hash)
        if self.short is not None:  # the hash is left to the reader
            record["hash"] = self.short.setdefault((step, record["hash"]), str(len(self.short)))
        if self.mode == "full":
            self.keep(record, list(t.shape), data)
        elif self.mode == "statistics":
            extra = {**(extra or {}), "statistics": statistics(t)}
        if self.short is not None:
            record = {k: v for k, v in record.items() if k != "hash" and (k, v) != ("microbatch", -1)}
        if extra:
            record["extra"] = extra
        self.lines.append(json.dumps(record, allow_nan=False))
        self.ids += 1
        self.n_tensors += 1
        return record["id"]

    def keep(self, record, shape, data):
        """Equal contents are stored once in a step; beyond the limit a record has its hash alone."""
        if record["hash"] in self.data:
            record["data"] = record["hash"]
        elif self.limit is not None and self.written + self.pending + len(data) > self.limit:
            if self.omitted == 0:
                text = f"limit of {self.limit} bytes reached at {record['name']}: hashes alone from here"
                self.note("not_judged", text)
                warnings.warn(f"assay_trace: {text}")
            self.omitted += 1
        else:
            record["data"] = record["hash"]
            self.data[record["hash"]] = (record["dtype"], shape, bytes(data))
            self.pending += len(data)

    def op(self, op, instance, phase, step, microbatch, inputs, outputs, attrs, **members):
        self.lines.append(json.dumps({
            "type": "op", "sequence": self.sequence, "op": op, "instance": instance[:159], "phase": phase, "step": step,
            "microbatch": microbatch, "attrs": attrs, "inputs": inputs, "outputs": outputs, **members}, allow_nan=False))
        self.sequence += 1
        self.n_ops += 1

    def note(self, kind, text, subject=""):
        """What the end marker says of the run (docs/TRACE.md): "not_judged", "incomplete" or "note"; of many modules with one text
        the first is named."""
        self.unsaid = True
        key = (kind, text)
        if key in self.notes:
            self.notes[key][1] += 1
        elif len(self.notes) < MOST_NOTES or kind == "incomplete":  # what decides is not left out
            self.notes[key] = [subject, 1]
        else:
            self.more_notes += 1

    def said(self):
        out = []
        for (kind, text), (subject, n) in self.notes.items():
            text = f"{subject}{f' and {n - 1} more' if n > 1 else ''}: {text}" if subject else text
            out.append({"kind": kind, "text": text.encode()[:399].decode(errors="ignore")})
        if self.more_notes:
            out.append({"kind": "not_judged", "text": f"and {self.more_notes} more notes of the recorder"})
        return out

    def renumber(self, numbers):
        """The records of the step that is not yet written get other numbers of microbatches; what is of none gets another name, too."""
        for i, line in enumerate(self.lines):
            record = json.loads(line)
            m = record.get("microbatch", -1)
            if numbers.get(m, m) != m:
                record["microbatch"] = numbers[m]
                if numbers[m] < 0 and "name" in record:
                    record["name"] = f"evaluation.{record['name']}"[:159]
                self.lines[i] = json.dumps(record, allow_nan=False)

    def change_index(self, **members):
        if self.index is None:
            return
        with open(self.index) as f:
            index = json.load(f)
        with open(self.index + ".tmp", "w") as f:
            json.dump({**index, **members}, f, indent=1)
        os.replace(self.index + ".tmp", self.index)

    def flush(self, step, aborted=None):
        """Data first, then the lines over the last end marker, which is written anew behind them."""
        if self.data:
            self.write_data(step)
        end = {"type": "end", "rank": self.rank, "world_size": self.world_size, "tensors": self.n_tensors, "ops": self.n_ops}
        if aborted:
            end["aborted"] = aborted[:200]
        if self.notes:
            end["notes"] = self.said()
        self.unsaid = False
        lines = "".join(line + "\n" for line in self.lines).encode()
        text = lines + json.dumps(end).encode() + b"\n"
        os.pwrite(self.file.fileno(), text, self.end)
        os.ftruncate(self.file.fileno(), self.end + len(text))
        self.end += len(lines)
        self.written += self.pending
        self.lines, self.data, self.pending = [], {}, 0

    def write_data(self, step):
        header, offset = {}, 0
        tensors = dict(sorted(self.data.items(), key=lambda item: (-WIDTHS.get(item[1][0], 1), item[0])))
        for key, (dtype, shape, data) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path = f"{self.stem}-step-{step:05d}.safetensors"
        with open(path + ".tmp", "xb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in tensors.values():
                f.write(data)
        os.rename(path + ".tmp", path)

    def close(self):
        if self.unsaid and not self.file.closed:
            self.flush(None)
        self.file.close()
