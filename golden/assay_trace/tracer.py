"""Hooks on a model: what every module made, the gradients of it, and operation records of what is known."""
import atexit
import contextlib
import json
import warnings
import weakref

import torch

from . import attention, balancing, experts, norms, optimizer as optimizers
from .functions import Functions
from .gradients import Gradients
from .microbatches import Microbatches
from .names import Filter, clean
from .placement import TensorParallel, is_cut, local_of
from .precision import Autocast, of_parameters
from .ranks import data_parallel, ranks
from .scaler import Scaler
from .writer import DTYPES, Writer

RULES = (norms.RMSNorm, norms.LayerNorm, norms.SwiGLU, attention.RotaryEmbedding, attention.Attention, attention.LatentAttention, experts.Router, experts.Experts,
         norms.DecoderLayer)


def in_backward():
    """Whether autograd is running: a forward in it is a recomputation (activation checkpointing)."""
    return torch._C._current_graph_task_id() != -1


def attach(model, folder, **options):
    """A Tracer on `model` that writes into `folder`, which it makes; its options: Tracer."""
    return Tracer(model, folder, **options)


class Tracer:
    """optimizer: its steps are recorded, too (AdamW as an operation).
    mode: "full", "statistics" or "hash".  every: steps 0, every, 2*every, ...  include, exclude: shell patterns over names.
    gradients: of activations.  operations: records that `assay replay` can judge; None: where values are kept.
    microbatches: how many this rank runs in a step, where data-parallel ranks (DDP, FSDP2) have batches of their own: they are then
    numbered one rank behind the other.  limit_bytes: of values, per rank.  hash: Writer's.  index: more members of index.json, as
    precision ("fp32", "bf16"; without it that of the parameters, or of autocast where most products run under it)."""

    whole = True  # gradients of parameters and the numbers of microbatches are seen to here

    def __init__(self, model, folder, optimizer=None, mode="full", every=1, include=(), exclude=(), gradients=True,
                 operations=None, limit_bytes=None, hash=None, microbatches=None, **index):
        rank, world = ranks()
        self.dp_rank, self.dp = data_parallel(model)
        if microbatches is not None and self.dp > 1:  # each averages over its own batches, and the reduction over ranks
            index.setdefault("gradient_scale", 1.0 / self.dp)
        self.autocast = Autocast(self, model, "precision" in index)
        index.setdefault("precision", of_parameters(model))
        self.bare = next((m for m in model.modules() if hasattr(getattr(m, "config", None), "to_json_string")), model)
        config = self.model_config()
        if config is not None and hasattr(config, "to_json_string"):
            index.setdefault("model", json.loads(config.to_json_string(use_diff=False)))
        index.setdefault("names", "huggingface")
        self.writer = Writer(folder, rank, world, mode, limit_bytes, hash=hash, engine="pytorch",
                             torch=torch.__version__, **index)
        self.filter, self.every, self.gradients = Filter(include, exclude), every, gradients
        self.step_number = self.forwards = -1
        self.first_microbatch = self.dp_rank * (microbatches or 0)  # of this rank's in the step
        self.recording = False
        self.known = {}    # id of a tensor object -> (weak reference, version, id of its record)
        self.pending = {}  # (id of an output, name) -> gradient that its consumers' operations read
        self.names = {}    # parameter object id -> clean name
        self.watched = {}  # parameter object id -> (parameter, functions that wait for its gradient)
        self.stack, self.experts, self.products = [], None, {}
        self.padding = self.positions = self.labels = self.shifted = self.rules_optimizer = None
        self.model, self.handles, self.undo, self.rules = model, [], [], []
        self.compiled, self.silent = set(), set()
        self.parameters, self.microbatches = Gradients(self), Microbatches(self)
        for name, p in model.named_parameters():
            self.names[id(p)] = clean(name)
        if microbatches is not None and self.dp == 1 and world > 1 and "gradient_scale" not in index:
            self.not_judged("microbatches", "neither DDP nor FSDP2 over one dimension: ranks are taken to share their batches")
        self.hook_modules(model)
        self.scaler, self.tensor_parallel = Scaler(self), TensorParallel(self, model)
        if operations or (operations is None and mode == "full"):
            self.follow_operations(model)
            self.rules_optimizer = optimizers.follow(self, optimizer)
        atexit.register(self.close)

    def follow_operations(self, model):
        """Every rule on every module it matches, inside out, so that a layer's record stands behind its parts'."""
        Functions(self)
        files, unknown = set(), {}
        for name, module in self.visible:
            if type(module).__name__ == "OptimizedModule":
                continue
            matched = [rule for rule in RULES if name and rule.matches(module)]
            self.rules += [rule(self, name, module) for rule in matched]
            if attention.Attention in matched or attention.LatentAttention in matched:
                files.add(type(module).__module__)
            if not matched and module._parameters and not isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                unknown.setdefault(type(module).__name__, name)
        for file in sorted(files):
            attention.Rope.patch(self, file)
        for kind, name in unknown.items():
            self.not_judged(name, f"{kind} and others of its kind have parameters and no operation")
        balancing.follow(self)
        if self.compiled:
            self.note(f"{len(self.compiled)} compiled regions are seen from outside only: "
                      + ", ".join(sorted(c or "(the model)" for c in self.compiled)[:8]), "not_judged")

    # --- records ------------------------------------------------------------------------------------------------

    def place(self, name, t):
        """(what this rank holds of t, where that lies: members of the record)."""
        return local_of(t, name)

    def tensor(self, name, t, phase="forward", microbatch=None, **extra):
        """The id of a record of t: the one it has already (same object, same version), else a new one."""
        if microbatch is None:
            microbatch = self.microbatch if phase in ("forward", "backward") else -1
        key, version = id(t), t._version
        entry = self.known.get(key)
        if entry and entry[0]() is t and entry[1] == version and entry[3:] == (phase, microbatch):
            return entry[2]
        part, place = self.place(name, t)
        if place is None and phase in ("forward", "backward") and microbatch >= 0:
            place = self.tensor_parallel.place(name, t)
        number = self.writer.tensor(name, part, phase, self.step_number, microbatch, place, extra or None)
        self.known[key] = (weakref.ref(t), version, number, phase, microbatch)
        return number

    def copy(self, name, t, phase="forward"):
        """A record of something made for the trace alone (another order of axes): never looked up again."""
        part, place = self.place(name, t)
        if place is None:
            place = self.tensor_parallel.place(name, t)
        return self.writer.tensor(name, part, phase, self.step_number, self.microbatch, place)

    def zeros(self, name, t):
        """What a gradient was before this contribution to it."""
        return self.copy(f"{name}.zero", torch.zeros_like(t), "backward")

    def not_judged(self, name, reason):
        """An operation that is known but not recorded: said once for each module, so that nobody takes silence for a pass."""
        self.note(f"no operation record: {reason}", "not_judged", name)

    def incomplete(self, text):
        """What a reader cannot find right without."""
        self.note(text, "incomplete")

    def note(self, text, kind="note", name=""):
        """Once, as a warning and in the trace."""
        if (name, text) not in self.silent:
            self.silent.add((name, text))
            self.writer.note(kind, text, name)
            warnings.warn(f"assay_trace: {name + ': ' if name else ''}{text}")

    def state(self, name, t):
        part, place = local_of(t, name)
        return self.writer.tensor(name, part, "optimizer", self.step_number, -1, place)

    def parameter(self, p, name="parameter"):
        return self.tensor(self.names.get(id(p), name), p, "forward", -1)

    def op(self, op, instance, inputs, outputs, attrs=None, phase="forward", microbatch=None, **members):
        if in_backward() and phase == "forward":
            members["recompute"] = True
        microbatch = self.microbatch if microbatch is None else microbatch
        self.writer.op(op, instance, phase, self.step_number, microbatch if phase in ("forward", "backward") else -1,
                       inputs, outputs, attrs or {}, **members)

    # --- gradients ----------------------------------------------------------------------------------------------

    def when_gradient(self, t, name, function):
        """function(gradient) when t's gradient of one backward is there; a leaf's hook stays and serves the microbatch that waits
        longest (pipelines run several forwards before the first backward)."""
        step, microbatch = self.step_number, self.microbatch

        def hook(g):
            if g is not None and self.active(name) and self.step_number == step:
                self.backward_reaches(microbatch)
                function(g.detach())

        if not t.is_leaf:
            t.register_hook(hook)
            return
        entry = self.watched.get(id(t))
        if entry is None or entry[0] is not t:
            entry = self.watched[id(t)] = (t, [])

            def serve(g):
                numbers = {m for m, _ in entry[1]}
                running = self.microbatches.running
                oldest = running if running in numbers else min(numbers, default=None)
                waiting, entry[1][:] = [f for m, f in entry[1] if m == oldest], [x for x in entry[1] if x[0] != oldest]
                for f in waiting:
                    f(g)

            self.handles.append(t.register_hook(serve))
        entry[1].append((microbatch, hook))

    def keep_gradient(self, y, name):
        """Keeps the gradient of an output for the operations that read it as dy."""
        key, microbatch = (id(y), name), self.microbatch
        self.when_gradient(y, name, lambda g: self.pending.__setitem__(key, (g, y._version, microbatch)))

    def backward_of(self, y, name):
        entry = self.pending.get((id(y), name[:-3]))
        return None if entry is None else self.tensor(name, entry[0], "backward", entry[2])

    def collect(self, words, function):
        """take(word, gradient); function({word: gradient, "microbatch": number}) when all words have come."""
        got = {"microbatch": self.microbatch}

        def take(word, g):
            got[word] = g
            if len(got) == len(words) + 1:
                function(dict(got))
                got.clear()
                got["microbatch"] = -1

        return take

    def gather(self, name, parts, function):
        """Calls function({word: gradient, "microbatch": number}) when the gradients of all tensors in `parts` have come."""
        if not self.gradients:
            return
        take = self.collect(parts, function)
        for word, t in parts.items():
            self.when_gradient(t, name, lambda g, word=word: take(word, g))

    # --- what the model says of itself --------------------------------------------------------------------------

    @property
    def microbatch(self):
        """Of the forward that runs or ran last; while a backward runs, of the one that it came from."""
        running = self.microbatches.running
        return self.forwards if running is None or not in_backward() else running

    def model_config(self):
        return getattr(self.bare, "config", None)

    def here(self):
        return self.stack[-1][0] if self.stack else ""

    def inside(self):
        return self.recording

    def owner(self, weight):
        """(name of the running module, the word under which it has this parameter, or None)."""
        if not self.stack:
            return "(outside of the model)", None
        name, module = self.stack[-1]
        for word, p in module._parameters.items():
            if p is weight:
                return name, word
        return name, None

    def declared_weight(self, name, weight):
        """A tied output layer multiplies with the embedding, whatever it happens to hold."""
        if not getattr(self.model_config(), "tie_word_embeddings", False) or not hasattr(self.bare, "get_output_embeddings"):
            return weight
        out = self.bare.get_output_embeddings()
        if out is None or not self.stack or self.stack[-1][1] is not out:
            return weight
        tied = self.bare.get_input_embeddings().weight
        return weight if is_cut(tied) != is_cut(weight) else tied

    def declared_targets(self, target):
        """Labels of a causal model's call, moved by one: position s is asked for token s+1."""
        labels = self.shifted if self.shifted is not None else self.labels
        if (labels is None or labels.numel() != target.numel() or labels.dim() != 2
                or not type(self.bare).__name__.endswith("ForCausalLM")):
            return target
        if self.shifted is None:
            labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return labels.reshape(-1).to(target.device)

    # --- hooks --------------------------------------------------------------------------------------------------

    def active(self, name=None):
        return self.recording and (name is None or self.filter.takes(name)) and not torch.compiler.is_compiling()

    def outside(self, model):
        """(clean name, module) of all that is not inside a compiled region, where nothing can be seen; a module that torch.compile
        wrapped is hooked from outside, one that was compiled in place is not hooked: its hooks would be compiled, too."""
        inside = []
        for name, module in model.named_modules():
            if any(name == c or name.startswith(c + ".") or not c for c in inside):
                continue
            if type(module).__name__ == "OptimizedModule":
                inside.append(f"{name}._orig_mod" if name else "_orig_mod")
                self.compiled.add(clean(name))
            elif getattr(module, "_compiled_call_impl", None) is not None:
                inside.append(name)
                self.compiled.add(clean(name))
                continue
            yield clean(name), module

    def hook_modules(self, model):
        self.handles.append(model.register_forward_pre_hook(self.begin_forward, with_kwargs=True))
        self.visible = list(self.outside(model))
        for name, module in self.visible:
            self.handles.append(module.register_forward_pre_hook(lambda m, a, name=name: self.enter(name, m)))
            if name:
                self.handles.append(module.register_forward_hook(
                    lambda m, a, out, name=name: self.output(name, out)))
        self.handles.append(model.register_forward_hook(lambda m, a, out: self.root_output(out)))
        for _, module in self.visible:
            self.handles.append(module.register_forward_hook(self.leave, always_call=True))

    def enter(self, name, module):
        if not torch.compiler.is_compiling():
            self.stack.append((name, module))
            if self.recording:
                self.autocast.see(name, module)

    def leave(self, module, args, out):
        if torch.compiler.is_compiling():
            return
        while self.stack and self.stack.pop()[1] is not module:
            pass  # a recomputation stops in the middle when it has what it wanted
        if not self.stack:
            self.labels = self.shifted = None

    def begin_forward(self, module, args, kwargs):
        if not self.recording or in_backward():
            return
        self.stack.clear()
        self.forwards += 1
        mask = kwargs.get("attention_mask")
        self.padding = mask if isinstance(mask, torch.Tensor) else None
        self.positions = kwargs.get("position_ids")
        self.labels, self.shifted = kwargs.get("labels"), kwargs.get("shift_labels")
        for key, value in kwargs.items():
            if isinstance(value, torch.Tensor) and self.holds(key, value):
                self.tensor(key, value)
        if args and isinstance(args[0], torch.Tensor) and self.holds("the first argument", args[0]):
            self.tensor("input_ids" if not args[0].is_floating_point() else "inputs_embeds", args[0])

    def root_output(self, out):
        self.output("", out)
        if self.recording and not in_backward() and not torch.compiler.is_compiling():
            self.microbatches.watch(out, self.microbatch)

    def backward_reaches(self, microbatch):
        """A backward runs, and has come to an output of this forward."""
        if self.recording and self.whole:
            self.microbatches.backward(microbatch)
            self.parameters.in_backward()

    def output(self, name, out):
        if isinstance(out, torch.Tensor):
            name = name or "output"  # of a model that returns a tensor alone
            if self.active(name):
                self.one_output(name, out)
        elif isinstance(out, dict):
            for key, part in out.items():
                self.output(f"{name}.{key}" if name else str(key), part)
        elif isinstance(out, (tuple, list)):
            for i, part in enumerate(out):
                # one tensor among things that are none: its module's output
                self.output(f"{name}.{i}" if name and i else name or str(i), part)

    def holds(self, name, t):
        """Whether a trace has t's dtype; said once where it has not."""
        if t.dtype in DTYPES:
            return True
        self.not_judged(name, f"values of {str(t.dtype)[6:]} are not recorded")
        return False

    def one_output(self, name, out):
        if out.is_complex():
            out = torch.view_as_real(out)  # [.., 2]
        if not self.holds(name, out):
            return
        self.tensor(name, out)
        if self.gradients and out.requires_grad and not in_backward():
            microbatch = self.microbatch

            def gradient(g):
                self.backward_reaches(microbatch)
                if g is not None and self.active(name):  # a compiled graph gives none to outputs that nobody reads
                    self.tensor(name + ".grad", g, "backward", microbatch)

            out.register_hook(gradient)

    # --- steps --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self):
        """One training step: any number of forwards and backwards of the model, each forward a microbatch."""
        self.step_number += 1
        self.forwards, self.recording = self.first_microbatch - 1, self.step_number % self.every == 0
        if self.recording and self.whole:
            self.parameters.begin()
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
        if self.whole and self.forwards < self.first_microbatch:
            self.note("the module that is recorded was not called in this step: what it wraps, or a part of it, was called past it, so that "
                      "no batch is recorded")
        self.parameters.record()

    def finish(self, aborted=None):
        if self.recording and self.whole:
            self.microbatches.settle(self.forwards)
            self.autocast.settle()
        self.recording = False
        self.parameters.clear()
        self.microbatches.clear()
        self.known.clear()
        self.pending.clear()
        self.tensor_parallel.clear()
        self.stack.clear()
        self.experts = None
        for entry in self.watched.values():
            entry[1].clear()
        for rule in self.rules:
            rule.clear()
        if self.writer.lines:
            self.writer.flush(self.step_number, aborted)

    def detach(self):
        """Takes the hooks off again; what was written stays, and a new tracer may be attached."""
        self.close()

    def close(self):
        """Takes the hooks off again."""
        atexit.unregister(self.close)
        for handle in self.handles:
            handle.remove()
        for undo in reversed(self.undo):
            undo()
        self.handles, self.undo, self.watched = [], [], {}
        self.writer.close()
