"""A collector for the real Megatron core, under its names: one trace of all ranks of a run, whatever its layout.

    trace = assay_trace.megatron.attach(chunks, "DIR")      # the model, or the chunks of this rank, before they are wrapped
    with trace.step():
        forward_backward(...)

Operations: the products of ColumnParallelLinear, RowParallelLinear and the output layer as this rank makes them (before anything is
summed over ranks), norms, swiglu, DotProductAttention and the choice of the router.  Tensors are those of one rank (kind local)."""
import torch

from . import tracer as tracers
from .names import clean
from .norms import RMSNorm
from .rules import SUM, WORDS, Rule, arithmetic, children


class Torch:
    """The module torch for one file, with a product that is seen."""

    def __init__(self, seen):
        self.seen = seen

    def matmul(self, a, b):
        out = torch.matmul(a, b)
        self.seen(a, b, out)
        return out

    def __getattr__(self, name):
        return getattr(torch, name)


class Products:
    """The forward product of every parallel linear, behind its gathering and before its reduction, and the gradient of its weight."""

    def __init__(self, tracer):
        from megatron.core.tensor_parallel import layers
        self.t, self.inside = tracer, None
        plain = layers.torch
        layers.torch = Torch(self.product)
        tracer.undo.append(lambda: setattr(layers, "torch", plain))
        cls = layers.LinearWithGradAccumulationAndAsyncCommunication
        forward, backward = cls.forward, cls.backward

        def patched_forward(ctx, input, weight, *rest):
            name, word = self.t.owner(weight)
            seen = {"name": name, "weight": weight} if word and self.t.active(name) else None
            self.inside = seen
            out = forward(ctx, input, weight, *rest)
            ctx.assay, self.inside = seen, None
            return out

        def patched_backward(ctx, grad_output):
            seen = ctx.assay
            out = backward(ctx, grad_output)
            if seen and "x" in seen and self.t.active(seen["name"]) and out[1] is not None and grad_output is not None:
                self.weight(seen, grad_output, out[1])
            return out

        cls.forward, cls.backward = staticmethod(patched_forward), staticmethod(patched_backward)

        def undo():
            cls.forward, cls.backward = staticmethod(forward), staticmethod(backward)

        tracer.undo.append(undo)

    def product(self, a, b, out):
        seen, self.inside = self.inside, None
        if seen is None or not torch.equal(b.t(), seen["weight"]):
            return
        name = seen["name"]
        seen["x"] = self.t.copy(f"{name}.x", a)
        seen["microbatch"] = self.t.microbatch
        self.t.op("linear_fwd", name, {"x": seen["x"], "weight": self.t.parameter(seen["weight"], f"{name}.weight")},
                  {"y": self.t.copy(f"{name}.y", out)}, {}, arith=arithmetic(out))

    def weight(self, seen, dy, dweight):
        name = seen["name"]
        self.t.op("linear_bwd_weight", name,
                  {"dy": self.t.copy(f"{name}.dy", dy, "backward"), "x": seen["x"], "dweight_in": self.t.zeros(name, dweight)},
                  {"dweight": self.t.copy(f"{name}.dweight", dweight, "backward")}, {}, "backward", seen["microbatch"],
                  arith=arithmetic(dweight))


def first_of(out):
    return out[0] if isinstance(out, tuple) else out


class SwiGLU(Rule):
    """linear_fc1 gives [gate | up] of this rank, linear_fc2 takes silu(gate)·up."""

    @staticmethod
    def matches(m):
        config = getattr(m, "config", None)
        return (children(m, "linear_fc1", "linear_fc2") and getattr(config, "gated_linear_unit", False)
                and getattr(config, "activation_func", None) is torch.nn.functional.silu)

    def hook(self):
        self.before(self.module, lambda a, k: self.seen.__setitem__("probs", a[1] if len(a) > 1 else k.get("per_token_scale")))
        self.after(self.module.linear_fc1, lambda a, k, y: self.seen.__setitem__("x", first_of(y)))
        self.before(self.module.linear_fc2, self.forward)

    def forward(self, args, kwargs):
        x, probs, y, at = self.seen.pop("x", None), self.seen.pop("probs", None), args[0], self.name + ".activation"
        if x is None or x.shape[-1] != 2 * y.shape[-1]:
            return
        inputs, arith = {"x": self.t.tensor(at + ".x", x)}, arithmetic(y, rounding=["before_up"])
        if probs is not None:  # the weights of an expert's rows
            inputs["probs"] = self.t.tensor(at + ".probs", probs)
        self.t.op("swiglu_fwd", at, inputs, {"y": self.t.tensor(at + ".y", y)}, {}, arith=arith)
        parts = {"dx": x, "dy": y, **({} if probs is None else {"dprobs": probs})}
        if all(t.requires_grad for t in parts.values()):
            self.gather(parts, lambda g: self.t.op(
                "swiglu_bwd", at, {"dy": self.t.copy(at + ".dy", g["dy"], "backward"), **inputs},
                {w: self.t.copy(f"{at}.{w}", g[w], "backward") for w in parts if w != "dy"}, {}, "backward", g["microbatch"],
                arith=arith))


class Attention(Rule):
    """DotProductAttention of query, key and value [s,b,heads,d] of this rank's heads, causal; its pieces of context are not judged."""

    @staticmethod
    def matches(m):
        return type(m).__name__ == "DotProductAttention"

    def hook(self):
        self.after(self.module, self.forward)

    def forward(self, args, kwargs, o):
        q, k, v = (args[i] if i < len(args) else kwargs.get(word) for i, word in enumerate(("query", "key", "value")))
        if q is None or q.dim() != 4 or q.shape[0] != k.shape[0] or getattr(self.module.config, "context_parallel_size", 1) > 1:
            return self.t.not_judged(self.name, "attention over documents, or over pieces of context")
        s, b, heads, d = q.shape
        where = self.t.copy(self.name + ".position", torch.arange(s).repeat_interleave(b))
        inputs = {w: self.t.tensor(f"{self.name}.{w}", t) for w, t in (("q", q), ("k", k), ("v", v))}
        inputs.update(q_position=where, k_position=where)
        attrs = {"batch": b, "seq_q": s, "seq_k": s, "heads": heads, "groups": k.shape[2], "head_dim": d, "head_dim_v": v.shape[-1],
                 "scale": d ** -0.5, "p_dtype": WORDS.get(q.dtype, "F32")}
        arith = arithmetic(q, rounding=["scores"])

        def out(t):
            return t.detach().reshape(s, b, heads, -1)

        ids = {"o": self.t.copy(self.name + ".o", out(o))}
        self.t.op("attention_fwd", self.name, inputs, ids, attrs, arith=arith, internal=["lse"])
        if not all(t.requires_grad for t in (q, k, v, o)):
            return
        self.gather({"do": o, "dq": q, "dk": k, "dv": v}, lambda g: self.t.op(
            "attention_bwd", self.name, {**inputs, **ids, "do": self.t.copy(self.name + ".do", out(g["do"]), "backward")},
            {w: self.t.copy(f"{self.name}.{w}", g[w], "backward") for w in ("dq", "dk", "dv")}, attrs, "backward", g["microbatch"],
            arith={**arith, "rounding": ["scores", "heads"]}, internal=["lse"]))


class Router(Rule):
    """TopKRouter.routing: logits of this rank's tokens, the map of the chosen and their weights."""

    @staticmethod
    def matches(m):
        return type(m).__name__ == "TopKRouter"

    def hook(self):
        plain = self.module.routing

        def routing(logits, *args, **kwargs):
            out = plain(logits, *args, **kwargs)
            if self.t.active(self.name):
                self.routed(logits, *out[:2])
            return out

        self.module.routing = routing
        self.t.undo.append(lambda: self.module.__dict__.pop("routing", None))

    def routed(self, logits, probs, chosen):
        c, bias = self.module.config, getattr(self.module, "expert_bias", None)
        flat = logits.detach().reshape(-1, logits.shape[-1])
        if c.moe_expert_capacity_factor is not None or not bool((chosen.sum(-1) == c.moe_router_topk).all()):
            return self.t.not_judged(self.name, "tokens that were dropped, or another number of experts")
        indices = chosen.nonzero()[:, 1].reshape(-1, c.moe_router_topk)
        attrs = {"topk": c.moe_router_topk, "score_function": c.moe_router_score_function, "pre_softmax": bool(c.moe_router_pre_softmax),
                 "norm_topk_prob": c.moe_router_score_function == "sigmoid", "scaling_factor": float(c.moe_router_topk_scaling_factor or 1)}
        if c.moe_router_num_groups:
            attrs.update(num_groups=c.moe_router_num_groups, group_topk=c.moe_router_group_topk)
        inputs = {"logits": self.t.copy(self.name + ".logits", flat)}
        if bias is not None:
            inputs["expert_bias"] = self.t.copy(self.name + ".expert_bias", bias)
        self.t.op("router_fwd", self.name, inputs,
                  {"indices": self.t.copy(self.name + ".indices", indices),
                   "probs": self.t.copy(self.name + ".probs", probs.detach().gather(-1, indices))}, attrs,
                  arith={**SUM, "accumulate": "F64" if probs.dtype == torch.float64 else "F32", "rounding": ["ties"]},
                  internal=["scores"])


class Collector(tracers.Tracer):
    """A Tracer that has Megatron-LM's rules and names; layers are numbered over all stages."""

    def follow_operations(self, model):
        Products(self)
        for name, module in self.visible:
            for rule in (RMSNorm, SwiGLU, Attention, Router):
                if name and rule.matches(module):
                    self.rules.append(rule(self, name, module))

    def outside(self, model):
        number = {}
        for name, module in model.named_modules():
            if isinstance(getattr(module, "layer_number", None), int) and name.split(".")[-1].isdigit():
                number[name] = ".".join(name.split(".")[:-1] + [str(module.layer_number - 1)])
        for name, module in super().outside(model):
            short = max((n for n in number if name == n or name.startswith(n + ".")), key=len, default=None)
            parts = (number[short] + name[len(short):] if short else name).split(".")
            if parts[0].isdigit():
                parts = parts[1:]  # which of the chunks
            yield clean(".".join(parts)), module


class Chunks(torch.nn.Module):
    """The chunks of a rank as one model, for its names and parameters."""

    def __init__(self, chunks):
        super().__init__()
        self.chunks = torch.nn.ModuleList(chunks)

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        return self.chunks.named_modules(memo, prefix, remove_duplicate)

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        for chunk in self.chunks:
            yield from chunk.named_parameters(prefix, recurse, remove_duplicate)


def attach(chunks, folder, **options):
    """A Collector on the chunks of this rank; options: Tracer.  Each forward of the first chunk is a microbatch."""
    chunks = list(chunks) if isinstance(chunks, (list, tuple)) else [chunks]
    out = Collector(Chunks(chunks), folder, names="megatron", **options)
    out.handles.append(chunks[0].register_forward_pre_hook(out.begin_forward, with_kwargs=True))
    return out
