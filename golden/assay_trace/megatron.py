"""A collector for the real Megatron core, under its names: one trace of all ranks of a run, whatever its layout.

    trace = assay_trace.megatron.attach(chunks, "DIR")      # the model, or the chunks of this rank, before they are wrapped
    with trace.step():
        forward_backward(...)

Tensors say where they lie (megatron_places), microbatches have the number that they have in the step, and gradients of parameters are
recorded before the reductions and behind them where the run goes through finalize_model_grads, so that `assay diff` lays runs of
different layouts beside each other.

Operations: the products of ColumnParallelLinear, RowParallelLinear and the output layer as this rank makes them (before anything is
summed over ranks), norms, swiglu, DotProductAttention and the choice of the router; their operands are those of one rank (kind local)."""
import torch

from . import tracer as tracers
from .megatron_places import Places, local
from .norms import RMSNorm
from .rules import SUM, WORDS, Rule, arithmetic, children

SINGLE = torch.float32  # also where a run makes torch.float32 mean another


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


class Auxiliary:
    """The auxiliary losses as autograd gets them (MoEAuxLossAutoScaler): a rank's part of a sum over tp_cp, and their gradients."""

    WORDS = {"load_balancing_loss": "aux_loss", "seq_load_balancing_loss": "seq_aux_loss", "global_load_balancing_loss": "global_aux_loss"}

    def __init__(self, tracer):
        from megatron.core.transformer.moe import router
        self.t, self.word = tracer, "z_loss"
        plain, attach_loss = router.MoEAuxLossAutoScaler, router.TopKRouter.attach_and_log_load_balancing_loss

        def named(module, activation, coeff, loss, name, *args, **kwargs):
            self.word = self.WORDS.get(name, name)
            out = attach_loss(module, activation, coeff, loss, name, *args, **kwargs)
            self.word = "z_loss"
            return out

        class Scaler:
            @staticmethod
            def apply(activation, loss):
                self.loss(loss)
                return plain.apply(activation, loss)

        router.MoEAuxLossAutoScaler, router.TopKRouter.attach_and_log_load_balancing_loss = Scaler, named

        def undo():
            router.MoEAuxLossAutoScaler, router.TopKRouter.attach_and_log_load_balancing_loss = plain, attach_loss

        tracer.undo.append(undo)

    def loss(self, loss):
        name = f"{self.t.here()}.{self.word}"
        if self.t.active(name) and loss.numel() == 1:
            self.t.put(name, loss, self.t.places.scalar("tp_cp"), {"global_shape": []})


class Rotary:
    """Queries and keys behind the rotation; of MLA the positional parts in front of it: the key's is one for all heads, on every rank of
    tp, and so is its gradient."""

    def __init__(self, tracer):
        from megatron.core.transformer import attention, multi_latent_attention
        for file, words, behind in ((attention, ("query", "key"), True), (multi_latent_attention, ("q_pos_emb", "k_pos_emb"), False)):
            self.patch(tracer, file, words, behind)

    @staticmethod
    def patch(tracer, file, words, behind):
        plain, calls = file.apply_rotary_pos_emb, {}

        def rotated(t, *args, **kwargs):
            out = plain(t, *args, **kwargs)
            at = (tracer.here(), tracer.microbatch, tracer.step_number)
            word, seen = words[calls.get(at, 0) % 2], out if behind else t
            calls[at] = calls.get(at, 0) + 1
            name = f"{at[0]}.{word}"
            if tracer.active(name):
                place = tracer.places.heads(seen, cut=word != "k_pos_emb")
                tracer.put(name, seen, place, place)
            return out

        file.apply_rotary_pos_emb = rotated
        tracer.undo.append(lambda: setattr(file, "apply_rotary_pos_emb", plain))


class Collector(tracers.Tracer):
    """A Tracer that has Megatron-LM's rules, names and places; layers are numbered over all stages, experts over all ranks."""

    whole = False

    def __init__(self, model, folder, places, microbatches=None, single=False, **options):
        self.places, self.spots, self.partial_over_tp, self.single = places, {}, set(), single
        options.setdefault("layout", places.layout())
        per_token = getattr(places.config, "calculate_per_token_loss", False)
        if single:
            options.setdefault("precision", "fp32")
        options.setdefault("precision", {SINGLE: "fp32", torch.bfloat16: "bf16"}.get(next(model.parameters()).dtype, "fp64"))
        super().__init__(model, folder, names="megatron", gradient_scale=1.0 if per_token else 1.0 / (places.dp * places.cp),
                         short=single, **options)
        if single:
            self.writer = Single(self.writer)
        self.first_microbatch = places.dp_rank * (microbatches or 0)
        if microbatches is None and places.dp > 1:
            self.not_judged("microbatches", "their number on a rank is not known: data-parallel ranks share names (attach: microbatches)")
        layers = self.layer_numbers(model)
        for name, p in model.named_parameters():
            self.names[id(p)] = places.global_name(name, layers)
            self.spots[self.names[id(p)]] = places.parameter(self.names[id(p)], p)
        Rotary(self)
        if places.config.num_moe_experts:
            Auxiliary(self)

    def follow_operations(self, model):
        Products(self)
        for name, module in self.visible:
            for rule in (RMSNorm, SwiGLU, Attention, Router):
                if name and rule.matches(module):
                    self.rules.append(rule(self, name, module))

    @staticmethod
    def layer_numbers(model):
        number = {}
        for name, module in model.named_modules():
            if isinstance(getattr(module, "layer_number", None), int) and name.split(".")[-1].isdigit():
                number[name] = ".".join(name.split(".")[:-1] + [str(module.layer_number - 1)])
        return number

    def outside(self, model):
        number, self.modules = self.layer_numbers(model), {}
        for name, module in super().outside(model):
            name = self.places.global_name(name, number)
            if type(module).__name__ in ("IdentityOp", "IdentityFuncOp"):
                continue  # nothing is there
            self.modules[name] = module
            yield name, module

    # --- places -------------------------------------------------------------------------------------------------

    def place(self, name, t):
        return t, self.spots.get(name) or local(t)

    def put(self, name, t, place, gradient_place):
        """A record of t, and of its gradient when it comes."""
        self.spots[name], self.spots[name + ".grad"] = place, gradient_place
        super().one_output(name, t)

    def one_output(self, name, out):
        module = self.modules.get(name)
        place = self.places.output(name, module, out) if module is not None or name == "loss" else local(out)
        if module is not None and place.get("kind") != "local" and self.places.cut_over_tp(out):
            self.partial_over_tp.update(id(p) for p in module._parameters.values())
        self.put(name, out, place, place)

    def begin_forward(self, module, args, kwargs):
        tokens = args[0] if args else kwargs.get("input_ids")
        if isinstance(tokens, torch.Tensor) and tokens.dim() == 2:
            self.places.rows, self.places.sequence = tokens.shape
        super().begin_forward(module, args, kwargs)

    # --- gradients of parameters --------------------------------------------------------------------------------

    def finalizing(self, function):
        """finalize_model_grads of the run, with the gradients before it (`grad`) and behind it (`reduced_grad`)."""
        def wrapped(model, *args, **kwargs):
            self.parameter_gradients("grad")
            out = function(model, *args, **kwargs)
            self.parameter_gradients("reduced_grad")
            return out

        return wrapped

    def scalar(self, name, value):
        """What a run logs: of every rank, the same on all of them."""
        self.writer.tensor(name, value.reshape(-1), "optimizer", self.step_number, -1, {"global_shape": [value.numel()]})

    def parameter_gradients(self, phase):
        if not self.recording:
            return
        for _, p in self.model.named_parameters():
            name, g = self.names[id(p)], getattr(p, "main_grad", None)
            if g is None or not self.filter.takes(name):
                continue
            place = self.places.parameter(name, p)
            if phase == "grad":
                cut = id(p) in self.partial_over_tp and self.places.tp > 1
                place = self.places.gradient(name, p, cut)
            self.writer.tensor(name + ".grad", g, phase, self.step_number, -1, place)

    def end_step(self):
        """Without finalize_model_grads: what autograd left, of this rank."""
        for _, p in self.model.named_parameters():
            if p.grad is not None and getattr(p, "main_grad", None) is None and self.filter.takes(self.names[id(p)]):
                self.tensor(self.names[id(p)] + ".grad", p.grad, "grad", -1)


class Single:
    """A Writer that keeps doubles in single precision, and of what is local nothing: small traces to keep."""

    def __init__(self, writer):
        self.writer = writer

    def tensor(self, name, t, phase, step, microbatch=-1, place=None, extra=None):
        if place and place.get("kind") == "local":
            return -1
        single = SINGLE if t.dtype == torch.float64 else t.dtype
        return self.writer.tensor(name, t.to(single), phase, step, microbatch, place, extra)

    def __getattr__(self, name):
        return getattr(self.writer, name)


class Chunks(torch.nn.Module):
    """The chunks of a rank as one model, for its names and parameters."""

    def __init__(self, chunks):
        super().__init__()
        self.chunks = torch.nn.ModuleList(chunks)

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        return self.chunks.named_modules(memo, prefix, remove_duplicate)

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        for i, chunk in enumerate(self.chunks):
            yield from chunk.named_parameters(str(i), recurse, remove_duplicate)


def attach(chunks, folder, **options):
    """A Collector on the chunks of this rank; options: Tracer, and microbatches: how many of them a data-parallel rank runs in a step.
    Each forward of the first chunk is a microbatch.  single: doubles are kept in single precision.  config.finalize_model_grads_func = trace.finalizing(finalize_model_grads) adds the
    gradients of parameters."""
    chunks = list(chunks) if isinstance(chunks, (list, tuple)) else [chunks]
    out = Collector(Chunks(chunks), folder, Places(chunks[0].config), **options)
    out.handles.append(chunks[0].register_forward_pre_hook(out.begin_forward, with_kwargs=True))
    if getattr(chunks[-1], "post_process", False):
        out.handles.append(chunks[-1].register_forward_hook(
            lambda m, a, y: out.one_output("loss", y) if isinstance(y, torch.Tensor) and y.dim() == 2 and out.active("loss") else None))
    return out
