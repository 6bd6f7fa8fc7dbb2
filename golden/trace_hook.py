"""Dumps a PyTorch model's activations and gradients in the trace format of docs/TRACE.md.

    trace = Trace("DIR", engine="my run")
    trace.attach(model)                      # every named module's output, and the gradient of it
    model(...).loss.backward()
    trace.end_step(model)                    # adds the parameters' gradients and writes the step's file
    trace.close()                            # without it the trace counts as that of a run that died
"""
import json
import os

import torch
from safetensors.torch import save_file

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
          torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
          torch.bool: "BOOL"}


class Trace:
    def __init__(self, path, rank=0, world_size=1, **index):
        os.makedirs(path, exist_ok=True)
        self.stem, self.ids, self.step, self.microbatch, self.data = f"{path}/rank-{rank:05d}", 0, 0, 0, {}
        self.lines = open(self.stem + ".jsonl", "x")
        if rank == 0:
            with open(f"{path}/index.json", "x") as f:
                json.dump({"format": "assay-trace", "version": 1, "world_size": world_size, "engine": "pytorch",
                           **index}, f, indent=1)

    def tensor(self, name, t, phase, **members):
        """One record. A sharded run passes local_shape, segments and global_shape, or kind."""
        t = t.detach().cpu().contiguous().clone()  # clone: one storage must not be written twice
        t = t.flatten(0, t.dim() - 4) if t.dim() > 4 else t
        record = {"type": "tensor", "id": self.ids, "name": name, "phase": phase, "step": self.step,
                  "microbatch": self.microbatch if phase in ("forward", "backward") else -1,
                  "dtype": DTYPES[t.dtype], "global_shape": list(t.shape), "data": f"t{self.ids}", **members}
        self.data[record["data"]] = t
        self.lines.write(json.dumps(record) + "\n")
        self.ids += 1

    def attach(self, model):
        """Hooks every named module. An output that is a tuple gives NAME.0, NAME.1, ... for its tensors."""
        def output(name, out):
            if isinstance(out, torch.Tensor):
                self.tensor(name, out, "forward")
                if out.requires_grad:
                    out.register_hook(lambda g: self.tensor(name + ".grad", g, "backward"))
            elif isinstance(out, (tuple, list)):
                for i, part in enumerate(out):
                    output(f"{name}.{i}", part)

        return [m.register_forward_hook(lambda _m, _in, out, name=name: output(name, out))
                for name, m in model.named_modules() if name]

    def end_step(self, model=None):
        for name, p in model.named_parameters() if model is not None else ():
            if p.grad is not None:
                self.tensor(name, p.grad, "grad")
        if self.data:
            save_file(self.data, f"{self.stem}-step-{self.step:05d}.safetensors")
        self.data, self.step, self.microbatch = {}, self.step + 1, 0

    def close(self):
        self.lines.write('{"type":"end"}\n')
        self.lines.close()
