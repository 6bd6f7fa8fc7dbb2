"""The modules whose operations are known: each rule hooks one kind of module and writes operation records (docs/OPS.md).

Operations carry the arithmetic that PyTorch's CPU and CUDA kernels keep to: sums in float32 (float64 for double tensors) in an
order that nobody promises, elementary functions within 4 units in the last place.
"""
import sys
import warnings

import torch

from .names import clean
from .placement import is_cut

SUM = {"accumulate": "F32", "order": "unknown", "fma": True, "math_ulp": 4}


def arithmetic(t, **more):
    return {**SUM, "accumulate": "F64" if t.dtype == torch.float64 else "F32", **more}


def children(module, *names):
    return all(isinstance(getattr(module, n, None), torch.nn.Module) for n in names)


class Rule:
    """Hooks of one module; `seen` holds what one forward needs from child to child."""

    def __init__(self, tracer, name, module):
        self.t, self.name, self.module, self.seen = tracer, name, module, {}
        self.hook()

    def clear(self):
        self.seen = {}

    def after(self, module, function):
        self.t.handles.append(module.register_forward_hook(
            lambda m, args, kwargs, out: function(args, kwargs, out) if self.t.active(self.name) else None, with_kwargs=True))

    def before(self, module, function):
        self.t.handles.append(module.register_forward_pre_hook(
            lambda m, args, kwargs: function(args, kwargs) if self.t.active(self.name) else None, with_kwargs=True))

    def backward(self, function):
        self.t.handles.append(self.module.register_full_backward_hook(
            lambda m, grad_in, grad_out: function(grad_in, grad_out) if self.t.active(self.name) else None))

    def input(self, x):
        return self.t.tensor(f"{self.name}.input", x)

    def output(self, y, suffix=""):
        return self.t.tensor(self.name + suffix, y)


class Linear(Rule):
    @staticmethod
    def matches(m):
        return isinstance(m, torch.nn.Linear)

    def hook(self):
        self.after(self.module, self.forward)
        if self.t.gradients:
            self.backward(self.gradients)

    def forward(self, args, kwargs, y):
        x, w = args[0] if args else kwargs["input"], self.module.weight
        if is_cut(w) and any(not p.is_shard(0) and not p.is_replicate() for p in w.placements):
            return self.t.not_judged(self.name, "row-parallel: the product is summed over ranks before anything sees it")
        inputs = {"x": self.input(x), "weight": self.t.parameter(self.module.weight)}
        if self.module.bias is not None:
            inputs["bias"] = self.t.parameter(self.module.bias)
        self.t.op("linear_fwd", self.name, inputs, {"y": self.output(y)}, {}, arith=arithmetic(y))

    def gradients(self, grad_in, grad_out):
        if grad_out[0] is None or grad_in[0] is None or is_cut(self.module.weight):
            return
        self.t.op("linear_bwd_input", self.name,
                  {"dy": self.t.copy(self.name + ".dy", grad_out[0], "backward"), "weight": self.t.parameter(self.module.weight)},
                  {"dx": self.t.copy(self.name + ".dx", grad_in[0], "backward")}, {}, "backward", arith=arithmetic(grad_in[0]))


class Embedding(Rule):
    @staticmethod
    def matches(m):
        return isinstance(m, torch.nn.Embedding) and m.max_norm is None

    def hook(self):
        self.after(self.module, self.forward)

    def forward(self, args, kwargs, y):
        ids = args[0] if args else kwargs["input"]
        self.t.op("embedding_fwd", self.name, {"ids": self.input(ids.long()), "weight": self.t.parameter(self.module.weight)},
                  {"y": self.output(y)}, {"vocab_start": 0})


class RMSNorm(Rule):
    """Hugging Face's RMSNorms round x·rstd to the input's dtype and multiply by the weight then; torch.nn.RMSNorm does not."""

    @staticmethod
    def matches(m):
        return type(m).__name__.endswith("RMSNorm") and getattr(m, "weight", None) is not None

    def hook(self):
        self.after(self.module, self.forward)

    def eps(self, x):
        config = getattr(self.t.model, "config", None)  # what the model says of itself, not what this module happens to hold
        if getattr(config, "rms_norm_eps", None) is not None:
            return float(config.rms_norm_eps)
        for word in ("variance_epsilon", "eps", "epsilon"):
            if getattr(self.module, word, None) is not None:
                return float(getattr(self.module, word))
        return float(torch.finfo(x.dtype).eps)

    def forward(self, args, kwargs, y):
        x = args[0] if args else next(iter(kwargs.values()))
        arith = dict(SUM)  # in float32, whatever x is
        if isinstance(self.module, getattr(torch.nn, "RMSNorm", ())):
            arith = arithmetic(x)
        else:
            arith["rounding"] = ["before_gamma"]
        self.t.op("rmsnorm_fwd", self.name, {"x": self.input(x), "gamma": self.t.parameter(self.module.weight)},
                  {"y": self.output(y)}, {"eps": self.eps(x)}, arith=arith, internal=["rstd"])


class SwiGLU(Rule):
    """gate_proj, up_proj, act_fn, down_proj: silu(gate)·up; silu's result is stored in the input's dtype."""

    @staticmethod
    def matches(m):
        act = getattr(m, "act_fn", None)
        return (children(m, "gate_proj", "up_proj", "down_proj")
                and (isinstance(act, torch.nn.SiLU) or type(act).__name__ in ("SiLUActivation", "SiLU") or act is torch.nn.functional.silu))

    def hook(self):
        self.after(self.module.gate_proj, lambda a, k, y: self.seen.__setitem__("gate", y))
        self.after(self.module.up_proj, lambda a, k, y: self.seen.__setitem__("up", y))
        self.before(self.module.down_proj, self.forward)

    def forward(self, args, kwargs):
        gate, up = self.seen.pop("gate", None), self.seen.pop("up", None)
        if gate is None or up is None or type(gate) is not torch.Tensor:
            return
        y = args[0]
        x = self.t.copy(self.name + ".activation.x", torch.cat([gate.detach(), up.detach()], -1))
        self.t.op("swiglu_fwd", self.name + ".activation", {"x": x}, {"y": self.t.tensor(self.name + ".activation", y)}, {},
                  arith=arithmetic(y, order="none", rounding=["before_up"]))


class RotaryEmbedding(Rule):
    """cos and sin of a Hugging Face model: of every position of the first row, the two equal halves once."""

    TYPES = ("default", "linear", "llama3")

    @staticmethod
    def matches(m):
        return type(m).__name__.endswith("RotaryEmbedding") and getattr(m, "config", None) is not None

    def hook(self):
        self.after(self.module, self.forward)

    def attributes(self, dim):
        config = self.module.config
        p = getattr(config, "rope_parameters", None) or {"rope_theta": getattr(config, "rope_theta", None),
                                                         **(getattr(config, "rope_scaling", None) or {})}
        kind = p.get("rope_type", p.get("type", "default"))
        if kind not in self.TYPES or p.get("rope_theta") is None:
            return None
        attrs = {"rope_type": kind, "rotary_dim": dim, "rotary_base": float(p["rope_theta"])}
        for ours in ("factor", "low_freq_factor", "high_freq_factor"):
            if p.get(ours) is not None and kind != "default":
                attrs[ours] = float(p[ours])
        if kind == "llama3":
            attrs["original_max_position_embeddings"] = int(p["original_max_position_embeddings"])
        return attrs

    def forward(self, args, kwargs, out):
        position = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if position is None or not isinstance(out, tuple) or position.dim() != 2:
            return
        first, dim = position[0].tolist(), out[0].shape[-1]
        attrs = self.attributes(dim)
        if attrs is None or first != list(range(len(first))):
            return self.t.not_judged(self.name, "a kind of rope that is not known, or positions that are not 0, 1, 2, ...")
        cos, sin = (self.t.copy(f"{self.name}.{w}", t[0, :, :dim // 2]) for w, t in zip(("cos", "sin"), out))
        self.t.op("rope_table", self.name, {}, {"cos": cos, "sin": sin}, {**attrs, "positions": len(first)},
                  arith={**SUM, "order": "none", "rounding": ["angles"]})


class Attention(Rule):
    """q_proj, k_proj, v_proj, o_proj: rope through the model's own apply_rotary_pos_emb, then causal attention, whoever computes it.
    Tensors go in Megatron-LM's order of axes [s,b,heads,d]."""

    @staticmethod
    def matches(m):
        return (children(m, "q_proj", "k_proj", "v_proj", "o_proj") and getattr(m, "config", None) is not None
                and getattr(m, "is_causal", False))

    def hook(self):
        c, m = self.module.config, self.module
        self.dim = getattr(m, "head_dim", None) or getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.before(m, self.enter)
        self.after(m.v_proj, lambda a, k, y: self.seen.__setitem__("v", y))
        self.before(m.o_proj, self.forward)
        self.after(m, lambda a, k, y: self.seen.clear())

    def enter(self, args, kwargs):
        self.seen = {"mask": kwargs.get("attention_mask")}
        Rope.current = self

    @staticmethod
    def ours(t):
        """[b,heads,s,d] -> [s,b,heads,d]"""
        return t.detach().permute(2, 0, 1, 3).contiguous()

    def rotated(self, q, k, cos, sin, q_out, k_out):
        b, _, s, d = q.shape
        half = cos.shape[-1] // 2
        table = [self.t.copy(f"{self.name}.rope.{w}", t[0, :, :half]) for w, t in (("cos", cos), ("sin", sin))]
        same = cos.shape[0] == 1 or bool((cos == cos[:1]).all())
        position = torch.arange(s).repeat_interleave(b)
        self.seen["q"], self.seen["k"] = self.ours(q_out), self.ours(k_out)
        for letter, x, y in (("q", q, self.seen["q"]), ("k", k, self.seen["k"])):
            if same and cos.shape[1] == s:
                self.t.op("rope_fwd", f"{self.name}.rope_{letter}",
                          {"x": self.t.copy(f"{self.name}.rope_{letter}.x", self.ours(x)), "cos": table[0], "sin": table[1],
                           "position": self.t.copy(f"{self.name}.rope.position", position)},
                          {"y": self.t.copy(f"{self.name}.rope_{letter}.y", y)}, {},
                          arith=arithmetic(y, order="none", rounding=["products"]))

    def visible_from(self, b, s):
        """The first key of every query [s·b] that a padding mask leaves, or None; False: not of that form."""
        mask = self.t.padding
        if mask is None or mask.dim() != 2 or bool((mask != 0).all()):
            return None
        first = (mask != 0).long().argmax(-1)
        if not bool(((mask != 0) == (torch.arange(mask.shape[1], device=mask.device)[None] >= first[:, None])).all()):
            return False
        return first.cpu().repeat(s)

    def forward(self, args, kwargs):
        q, k, v = (self.seen.get(letter) for letter in "qkv")
        if q is None or k is None or v is None or q.shape[0] != k.shape[0]:
            return
        s, b, heads, d = q.shape
        groups, window = k.shape[2], getattr(self.module, "sliding_window", None) or 0
        o = args[0].detach().reshape(b, s, heads, -1).transpose(0, 1).contiguous()
        v = v.detach().reshape(b, s, groups, -1).transpose(0, 1).contiguous()
        first, position = self.visible_from(b, s), torch.arange(s).repeat_interleave(b)
        if first is False:
            return self.t.not_judged(self.name, "the padding mask hides more than the beginning of a row")
        if self.module.training and getattr(self.module, "attention_dropout", 0.0) > 0:
            return self.t.not_judged(self.name, "attention dropout is on")
        at = self.name + ".core_attention"
        where = self.t.copy(at + ".position", position)
        inputs = {"q": self.t.copy(at + ".q", q), "k": self.t.copy(at + ".k", k), "v": self.t.copy(at + ".v", v),
                  "q_position": where, "k_position": where}
        if first is not None:
            inputs["first_key"] = self.t.copy(at + ".first_key", first)
        eager = getattr(self.module.config, "_attn_implementation", "eager") == "eager"
        words = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
        self.t.op("attention_fwd", at, inputs, {"o": self.t.copy(at + ".o", o)},
                  {"batch": b, "seq_q": s, "seq_k": s, "heads": heads, "groups": groups, "head_dim": d,
                   "head_dim_v": v.shape[-1], "scale": float(self.module.scaling), "window": int(window),
                   "p_dtype": words.get(o.dtype, "F32")},
                  arith={**SUM, "rounding": ["scores"]} if eager else arithmetic(o, tile=16), internal=["lse"])


class Rope:
    """A modeling file's apply_rotary_pos_emb, seen from the attention module that is running."""

    current = None

    @classmethod
    def patch(cls, tracer, module_name):
        module = sys.modules.get(module_name)
        plain = getattr(module, "apply_rotary_pos_emb", None)
        if plain is None:
            return

        def apply_rotary_pos_emb(q, k, cos, sin, *args, **kwargs):
            out = plain(q, k, cos, sin, *args, **kwargs)
            rule = cls.current
            if rule is not None and tracer.active(rule.name) and isinstance(out, tuple) and q.dim() == 4 and cos.dim() == 3:
                rule.rotated(q, k, cos, sin, *out)
            return out

        module.apply_rotary_pos_emb = apply_rotary_pos_emb
        tracer.undo.append(lambda: setattr(module, "apply_rotary_pos_emb", plain))


class DecoderLayer(Rule):
    """The two residual additions of a pre-norm layer."""

    @staticmethod
    def matches(m):
        return children(m, "input_layernorm", "self_attn", "post_attention_layernorm", "mlp")

    def hook(self):
        self.before(self.module.input_layernorm, lambda a, k: self.seen.__setitem__("x", a[0]))
        self.after(self.module.self_attn, lambda a, k, y: self.seen.__setitem__("attention", y[0] if isinstance(y, tuple) else y))
        self.before(self.module.post_attention_layernorm, self.middle)
        self.after(self.module.mlp, lambda a, k, y: self.seen.__setitem__("mlp", y[0] if isinstance(y, tuple) else y))
        self.after(self.module, self.end)

    def add(self, instance, a, b, y, name):
        if a is not None and b is not None and a.shape == b.shape == y.shape:
            self.t.op("add", instance, {"a": self.input(a), "b": self.t.tensor(instance + ".b", b)},
                      {"y": self.t.tensor(name, y)}, {}, arith=arithmetic(y, order="none"))

    def middle(self, args, kwargs):
        self.seen["middle"] = args[0]
        self.add(self.name + ".self_attn.residual", self.seen.get("x"), self.seen.get("attention"), args[0],
                 self.name + ".self_attn.residual")

    def end(self, args, kwargs, out):
        self.add(self.name + ".mlp.residual", self.seen.get("middle"), self.seen.get("mlp"), out[0] if isinstance(out, tuple) else out,
                 self.name)
        self.seen = {}


RULES = (Linear, Embedding, RMSNorm, SwiGLU, RotaryEmbedding, Attention, DecoderLayer)


def apply(tracer, model):
    """Every rule on every module it matches, inside out, so that a layer's record stands behind its parts'."""
    made, files = [], set()
    tracer.padding = None

    def padding(m, args, kwargs):
        mask = kwargs.get("attention_mask")
        tracer.padding = mask if isinstance(mask, torch.Tensor) else None

    tracer.handles.append(model.register_forward_pre_hook(padding, with_kwargs=True))
    for name, module in model.named_modules():
        name = clean(name)
        if any(c and (name == c or name.startswith(c + ".")) for c in tracer.compiled) or type(module).__name__ == "OptimizedModule":
            continue
        for rule in RULES:
            if name and rule.matches(module):
                made.append(rule(tracer, name, module))
                if rule is Attention:
                    files.add(type(module).__module__)
    for file in sorted(files):
        Rope.patch(tracer, file)
    if tracer.compiled:
        warnings.warn(f"assay_trace: {len(tracer.compiled)} compiled regions are seen from outside only: "
                      + ", ".join(sorted(c or "(the model)" for c in tracer.compiled)[:8]))
    return made


class AdamW:
    """Masters are the parameters themselves; states before the step are copies, since the step writes over them."""

    def __init__(self, tracer, optimizer):
        self.t, self.optimizer, self.old = tracer, optimizer, {}
        tracer.handles.append(optimizer.register_step_pre_hook(lambda o, a, k: self.before()))
        tracer.handles.append(optimizer.register_step_post_hook(lambda o, a, k: self.after()))

    def each(self):
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                name = self.t.names.get(id(p))
                if p.grad is not None and name and self.t.active(name):
                    yield group, p, name

    def before(self):
        for _, p, name in self.each():
            s = self.optimizer.state.get(p, {})
            zero = torch.zeros_like(p)
            self.old[name] = [t.detach().clone() for t in (p.grad, p, s.get("exp_avg", zero), s.get("exp_avg_sq", zero))]

    def after(self):
        for group, p, name in self.each():
            s, words = self.optimizer.state[p], ("grad", "main_param_in", "exp_avg_in", "exp_avg_sq_in")
            if group.get("amsgrad") or group.get("maximize") or p.dtype not in (torch.float32, torch.float64):
                continue
            inputs = {w: self.t.state(f"{name}.{w}", t)
                      for w, t in zip(words, self.old.pop(name))}
            outputs = {w: self.t.state(f"{name}.{w}", t)
                       for w, t in (("main_param", p), ("exp_avg", s["exp_avg"]), ("exp_avg_sq", s["exp_avg_sq"]))}
            self.t.op("adamw", name, inputs, outputs,
                      {"lr": float(group["lr"]), "beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                       "eps": float(group["eps"]), "weight_decay": float(group["weight_decay"]), "step": int(s["step"])},
                      "optimizer", arith=arithmetic(p, order="none"))
        self.old = {}


def follow_optimizer(tracer, optimizer):
    if type(optimizer).__name__ != "AdamW":
        warnings.warn(f"assay_trace: {type(optimizer).__name__}: only AdamW's steps are recorded as operations")
        return None
    return AdamW(tracer, optimizer)
