"""Hooks on a model: what every module made, the gradients of it, and operation records of the modules that are known."""
import atexit
import contextlib
import warnings
import weakref

import torch

from . import rules
from .names import Filter, clean
from .placement import local_of
from .writer import Writer


def ranks():
    """(rank, world size) of torch.distributed, or of a run of one process."""
    d = torch.distributed
    return (d.get_rank(), d.get_world_size()) if d.is_available() and d.is_initialized() else (0, 1)


def in_backward():
    """Whether autograd is running: a forward in it is a recomputation (activation checkpointing)."""
    return torch._C._current_graph_task_id() != -1


def attach(model, folder, **options):
    """A Tracer on `model` that writes into `folder`, which it makes; its options: Tracer."""
    return Tracer(model, folder, **options)


class Tracer:
    """optimizer: its steps are recorded, too (AdamW as an operation).
    mode: "full", "statistics" or "hash".  every: steps 0, every, 2*every, ...  include, exclude: shell patterns over names.
    gradients: of activations.  operations: records that `assay replay` can judge.  limit_bytes: of values, per rank.
    index: more members of index.json."""

    def __init__(self, model, folder, optimizer=None, mode="full", every=1, include=(), exclude=(), gradients=True,
                 operations=True, limit_bytes=None, **index):
        rank, world = ranks()
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        index.setdefault("precision", {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype)))
        config = getattr(model, "config", None)
        if config is not None and hasattr(config, "to_json_string"):
            import json
            index.setdefault("model", json.loads(config.to_json_string(use_diff=False)))
        self.writer = Writer(folder, rank, world, mode, limit_bytes, engine="pytorch", names="huggingface",
                             torch=torch.__version__, **index)
        self.filter, self.every, self.gradients = Filter(include, exclude), every, gradients
        self.step_number = self.microbatch = -1
        self.recording = False
        self.known = {}    # id of a tensor object -> (weak reference, version, id of its record)
        self.names = {}    # parameter object id -> clean name
        self.model, self.handles, self.undo = model, [], []
        self.compiled, self.silent = set(), set()
        for name, p in model.named_parameters():
            self.names[id(p)] = clean(name)
        self.hook_modules(model)
        self.rules = rules.apply(self, model) if operations else []
        self.optimizer = rules.follow_optimizer(self, optimizer) if optimizer is not None else None
        atexit.register(self.close)

    # --- records ------------------------------------------------------------------------------------------------

    def tensor(self, name, t, phase="forward", microbatch=None, **extra):
        """The id of a record of t: the one it has already (same object, same version), else a new one."""
        if microbatch is None:
            microbatch = self.microbatch if phase in ("forward", "backward") else -1
        key, version = id(t), t._version
        entry = self.known.get(key)
        if entry and entry[0]() is t and entry[1] == version and entry[3] == phase:
            return entry[2]
        local, place = local_of(t, name)
        number = self.writer.tensor(name, local, phase, self.step_number, microbatch, place, extra or None)
        self.known[key] = (weakref.ref(t), version, number, phase)
        return number

    def copy(self, name, t, phase="forward"):
        """A record of something made for the trace alone (another order of axes): never looked up again."""
        local, place = local_of(t, name)
        return self.writer.tensor(name, local, phase, self.step_number, self.microbatch, place)

    def not_judged(self, name, reason):
        """An operation that is known but not recorded: said once for each module, so that nobody takes silence for a pass."""
        if (name, reason) not in self.silent:
            self.silent.add((name, reason))
            warnings.warn(f"assay_trace: {name}: no operation record: {reason}")

    def state(self, name, t):
        local, place = local_of(t, name)
        return self.writer.tensor(name, local, "optimizer", self.step_number, -1, place)

    def parameter(self, p):
        return self.tensor(self.names.get(id(p), "parameter"), p, "forward", -1)

    def op(self, op, instance, inputs, outputs, attrs=None, phase="forward", **members):
        if in_backward() and phase == "forward":
            members["recompute"] = True
        self.writer.op(op, instance, phase, self.step_number, self.microbatch if phase in ("forward", "backward") else -1,
                       inputs, outputs, attrs or {}, **members)

    # --- hooks --------------------------------------------------------------------------------------------------

    def active(self, name=None):
        return self.recording and (name is None or self.filter.takes(name)) and not torch.compiler.is_compiling()

    def hook_modules(self, model):
        self.handles.append(model.register_forward_pre_hook(self.begin_forward, with_kwargs=True))
        for name, module in model.named_modules():
            name = clean(name)
            if type(module).__name__ == "OptimizedModule":
                self.compiled.add(name)
            if name and any(name == c or name.startswith(c + ".") for c in self.compiled if c):
                continue  # inside a compiled region nothing can be seen; its module is hooked from outside
            if name:
                self.handles.append(module.register_forward_hook(
                    lambda m, a, out, name=name: self.output(name, out)))
        self.handles.append(model.register_forward_hook(lambda m, a, out: self.output("", out)))

    def begin_forward(self, module, args, kwargs):
        if not self.recording or in_backward():
            return
        self.microbatch += 1
        for key, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                self.tensor(key, value)
        if args and isinstance(args[0], torch.Tensor):
            self.tensor("input_ids" if not args[0].is_floating_point() else "inputs_embeds", args[0])

    def output(self, name, out):
        if isinstance(out, torch.Tensor):
            if self.active(name):
                self.one_output(name, out)
        elif isinstance(out, dict):
            for key, part in out.items():
                self.output(f"{name}.{key}" if name else str(key), part)
        elif isinstance(out, (tuple, list)):
            for i, part in enumerate(out):
                # one tensor among things that are none: its module's output
                self.output(f"{name}.{i}" if name and i else name or str(i), part)

    def one_output(self, name, out):
        self.tensor(name, out)
        if self.gradients and out.requires_grad and not in_backward():
            microbatch = self.microbatch

            def gradient(g):
                if self.active(name):
                    self.tensor(name + ".grad", g, "backward", microbatch)

            out.register_hook(gradient)

    # --- steps --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self):
        """One training step: any number of forwards and backwards of the model, each forward a microbatch."""
        self.step_number += 1
        self.microbatch, self.recording = -1, self.step_number % self.every == 0
        try:
            yield self
            if self.recording:
                self.end_step()
        except BaseException as e:
            if self.recording:
                self.finish(f"step {self.step_number}: {type(e).__name__}: {e}")
            raise
        self.finish()

    def end_step(self):
        for name, p in self.model.named_parameters():
            if p.grad is not None and self.filter.takes(clean(name)):
                self.tensor(clean(name) + ".grad", p.grad, "grad", -1)

    def finish(self, aborted=None):
        self.recording = False
        self.known.clear()
        for rule in self.rules:
            rule.clear()
        if self.writer.lines:
            self.writer.flush(self.step_number, aborted)

    def close(self):
        """Takes the hooks off again."""
        atexit.unregister(self.close)
        for handle in self.handles:
            handle.remove()
        for undo in self.undo:
            undo()
        self.handles, self.undo = [], []
        self.writer.close()
