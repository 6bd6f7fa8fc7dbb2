"""Routers and experts of Hugging Face's mixtures of experts, whichever implementation of the experts runs.

What a token's experts are follows from the router's indices, and the weights of expert e are row e of the parameters: rows of the
products are brought into one order (experts ascending, tokens ascending within) and judged against that."""
import sys

import torch

from .placement import is_cut, local
from .rules import SUM, Rule, arithmetic, is_silu


class Scores(torch.overrides.TorchFunctionMode):
    """The softmax or sigmoid in a router's forward: what it reads, under another name with a gradient of its own, and what it gives."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ("softmax", "sigmoid") or "scores" in self.seen or not args or args[0].dim() != 2:
            return func(*args, **kwargs)
        x = args[0].view_as(args[0])
        self.seen["x"], self.seen["scores"] = x, func(x, *args[1:], **kwargs)
        return self.seen["scores"]


class Router(Rule):
    """A module of weight [E,H] that gives (logits, weights of the chosen, indices of the chosen)."""

    mode = None

    @staticmethod
    def matches(m):
        return type(m).__name__.lower().endswith("topkrouter") and isinstance(getattr(m, "weight", None), torch.nn.Parameter)

    def hook(self):
        self.before(self.module, self.enter)
        self.t.handles.append(self.module.register_forward_hook(self.leave, always_call=True))
        self.after(self.module, self.forward)

    def enter(self, args, kwargs):
        self.seen = {}
        self.mode = Scores(self.seen)
        self.mode.__enter__()

    def leave(self, module, args, out):
        mode, self.mode = self.mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    def attributes(self, experts):
        """What the config says, not what the module holds; None: no such operation."""
        config, bias = self.t.model_config(), getattr(self.module, "e_score_correction_bias", None)

        def of(word, otherwise):
            value = getattr(config, word, None)
            return getattr(self.module, word, otherwise) if value is None else value

        sigmoid = bias is not None
        attrs = {"topk": int(of("num_experts_per_tok", 0) or of("top_k", 0)), "score_function": "sigmoid" if sigmoid else "softmax",
                 "pre_softmax": not sigmoid, "norm_topk_prob": bool(of("norm_topk_prob", True)),
                 "scaling_factor": float(of("routed_scaling_factor", 1.0) or 1.0)}
        groups, best = int(of("n_group", 0) or 0), int(of("topk_group", 0) or 0)
        limited = of("topk_method", None) == "group_limited_greedy"
        if type(config).__name__ == "DeepseekV2Config":
            attrs["norm_topk_prob"] = False  # the class does not read it
        if (sigmoid or limited) and groups > 1:
            if attrs["topk"] // max(best, 1) != (1 if limited else 2):
                return None  # Hugging Face takes the best key of a group, or adds two, whatever the number of experts
            attrs.update(num_groups=groups, group_topk=best)
        return attrs

    def forward(self, args, kwargs, out):
        if not (isinstance(out, tuple) and len(out) == 3) or any(is_cut(t) for t in out):
            return self.t.not_judged(self.name, "a router that does not give logits, weights and indices, or one cut over ranks")
        logits, weights, indices = out
        attrs = self.attributes(logits.shape[-1])
        if attrs is None or indices.shape[-1] != attrs["topk"]:
            return self.t.not_judged(self.name, "groups of experts whose score is not the sum of the best K/q")
        order = indices.argsort(-1)
        inputs = {"logits": self.t.tensor(self.name, logits)}
        bias = getattr(self.module, "e_score_correction_bias", None)
        if bias is not None:
            inputs["expert_bias"] = self.t.tensor(f"{self.name}.e_score_correction_bias", bias.float())
        chosen = self.t.copy(f"{self.name}.indices", indices.gather(-1, order).long())
        self.t.op("router_fwd", f"{self.name}.router", inputs,
                  {"indices": chosen, "probs": self.t.copy(f"{self.name}.probs", weights.detach().gather(-1, order))}, attrs,
                  arith={**SUM, "rounding": ["ties"]}, internal=["scores"])
        x, scores = self.seen.pop("x", None), self.seen.pop("scores", None)
        if x is None or not (x.requires_grad and weights.requires_grad):
            return self.t.not_judged(self.name, "scores that are no softmax or sigmoid of the logits, or no gradient: no backward operation")
        stored = self.t.copy(f"{self.name}.scores", scores)
        self.gather({"dprobs": weights, "dlogits": x}, lambda g: self.t.op(
            "router_bwd", f"{self.name}.router",
            {"dprobs": self.t.copy(f"{self.name}.dprobs", g["dprobs"].gather(-1, order), "backward"), "indices": chosen, "scores": stored,
             "logits": self.t.copy(f"{self.name}.logits_in", x, "backward")},
            {"dlogits": self.t.copy(f"{self.name}.dlogits", g["dlogits"], "backward")}, attrs, "backward", g["microbatch"], arith=dict(SUM)))


class Experts(Rule):
    """gate_up_proj [E,2F,H], down_proj [E,H,F] and SiLU: two grouped products, swiglu between, and the weighted sum of the rows."""

    @staticmethod
    def matches(m):
        return (isinstance(getattr(m, "gate_up_proj", None), torch.nn.Parameter) and m.gate_up_proj.dim() == 3
                and isinstance(getattr(m, "down_proj", None), torch.nn.Parameter) and is_silu(getattr(m, "act_fn", None)))

    def hook(self):
        self.before(self.module, self.enter)
        self.t.handles.append(self.module.register_forward_hook(self.leave, with_kwargs=True, always_call=True))
        self.patch()

    def patch(self):
        """The products of the implementations that do not call torch.nn.functional.linear."""
        file = sys.modules.get("transformers.integrations.moe")
        for name in ("_grouped_linear", "_batched_linear"):
            plain = getattr(file, name, None)
            if plain is None or hasattr(plain, "assay"):
                continue

            def patched(input, weight, *args, plain=plain, name=name, **kwargs):
                t = None if torch.compiler.is_compiling() else patched_tracer(name)
                if t is None or t.experts is None:
                    return plain(input, weight, *args, **kwargs)
                return t.experts.rows(name, input, plain(input, weight, *args, **kwargs))

            patched.assay = True
            self.t.products[name] = self.t
            TRACERS[name] = self.t
            setattr(file, name, patched)
            self.t.undo.append(lambda name=name, plain=plain: setattr(file, name, plain))

    def enter(self, args, kwargs):
        given = dict(zip(("hidden_states", "top_k_index", "top_k_weights"), args))
        given.update(kwargs)
        self.seen = {**given, "rows": [], "kind": None}
        self.t.experts = self

    def product(self, plain, input, weight, bias):
        return self.rows("eager", input, plain(input, weight, bias))

    def rows(self, kind, x, y):
        self.seen["kind"] = kind
        self.seen["rows"].append((x, y))
        return y

    def leave(self, module, args, kwargs, out):
        if self.t.experts is not self:
            return
        self.t.experts = None
        seen, self.seen = self.seen, {}
        if isinstance(out, torch.Tensor):
            self.forward(seen, out)

    def pairs(self, kind, indices, rows):
        """The assignment (token·K + slot) of every row of the products, in the order in which this implementation has them."""
        k, flat = indices.shape[1], indices.reshape(-1)
        if kind == "_grouped_linear":
            return torch.sort(flat)[1]
        if kind == "_batched_linear":
            return torch.arange(flat.numel())
        mask = torch.nn.functional.one_hot(indices, self.module.gate_up_proj.shape[0]).permute(2, 1, 0)
        out = []
        for expert in mask.flatten(1).any(-1).nonzero().flatten().tolist():
            slot, token = torch.where(mask[expert])
            out.append(token * k + slot)
        return torch.cat(out) if out else torch.empty(0, dtype=torch.long)

    def forward(self, seen, out):
        indices, weights, hidden = seen.get("top_k_index"), seen.get("top_k_weights"), seen.get("hidden_states")
        gate_up, down = self.module.gate_up_proj, self.module.down_proj
        first, second = seen["rows"][0::2], seen["rows"][1::2]
        reason = None
        if indices is None or weights is None or hidden is None or len(first) != len(second) or not first:
            reason = "products in an order that is not known"
        elif any(is_cut(t) for t in (gate_up, down, hidden)) or getattr(self.module, "_is_expert_parallel", False):
            reason = "experts cut over ranks"
        elif getattr(self.module, "has_bias", False) or getattr(self.module, "is_transposed", False):
            reason = "experts with a bias, or transposed"
        if reason is None:
            pair = self.pairs(seen["kind"], indices, first)
            if sum(x.shape[0] for x, _ in first) != pair.numel():
                reason = "products of another number of rows"
        if reason:
            return self.t.not_judged(self.name, reason)
        Rows(self, seen, out, first, second, pair).record()


TRACERS = {}


def patched_tracer(name):
    return TRACERS.get(name)


class Rows:
    """One forward of the experts in one order of rows, and its backward."""

    def __init__(self, rule, seen, out, first, second, pair):
        self.rule, self.t, self.name = rule, rule.t, rule.name
        self.first, self.second, self.out = first, second, out
        self.indices, self.weights, self.hidden = seen["top_k_index"], seen["top_k_weights"], seen["hidden_states"]
        self.eager, self.scattered = seen["kind"] == "eager", seen["kind"] == "_batched_linear"
        flat = self.indices.reshape(-1)
        self.assignment = flat.argsort(stable=True)  # row -> token·K + slot
        place = torch.empty_like(pair)
        place[pair] = torch.arange(pair.numel())
        self.place = place[self.assignment]  # row -> where the implementation has it
        self.counts = torch.bincount(flat, minlength=rule.module.gate_up_proj.shape[0])
        k = self.indices.shape[1]
        self.token = self.assignment // k
        self.token_row = torch.empty_like(flat)
        self.token_row[self.assignment] = torch.arange(flat.numel())
        self.token_row = self.token_row.reshape(-1, k)

    def ordered(self, parts):
        return torch.cat([local(p.detach()) for p in parts])[self.place]

    def copy(self, word, t, phase="forward"):
        return self.t.copy(f"{self.name}.{word}", t, phase)

    def record(self):
        m, x1, y1 = self.rule.module, [x for x, _ in self.first], [y for _, y in self.first]
        x2, y2 = [x for x, _ in self.second], [y for _, y in self.second]
        ids = {"counts": self.copy("tokens_per_expert", self.counts), "token": self.copy("row_token", self.token),
               "token_row": self.copy("token_row", self.token_row), "x1": self.copy("permuted", self.ordered(x1)),
               "y1": self.copy("gate_up", self.ordered(y1)), "x2": self.copy("activation", self.ordered(x2)),
               "y2": self.copy("down", self.ordered(y2)), "probs": self.copy("probs", self.weights.detach()),
               "gate_up": self.t.parameter(m.gate_up_proj, f"{self.name}.gate_up_proj"),
               "down": self.t.parameter(m.down_proj, f"{self.name}.down_proj")}
        exact, product = arithmetic(y1[0], order="none"), arithmetic(y1[0])
        self.t.op("gather_rows", f"{self.name}.permute", {"x": self.t.tensor(f"{self.name}.input", self.hidden), "index": ids["token"]},
                  {"y": ids["x1"]}, {}, arith=exact)
        self.t.op("grouped_linear_fwd", f"{self.name}.gate_up_proj",
                  {"x": ids["x1"], "weight": ids["gate_up"], "tokens_per_expert": ids["counts"]}, {"y": ids["y1"]}, {}, arith=product)
        swiglu = {**exact, "rounding": ["before_up"]}
        self.t.op("swiglu_fwd", f"{self.name}.activation", {"x": ids["y1"]}, {"y": ids["x2"]}, {}, arith=swiglu)
        self.t.op("grouped_linear_fwd", f"{self.name}.down_proj",
                  {"x": ids["x2"], "weight": ids["down"], "tokens_per_expert": ids["counts"]}, {"y": ids["y2"]}, {}, arith=product)
        combine = {**product, "rounding": ["products", "partial_sums"] if self.eager else ["products"]}
        self.t.op("weighted_combine_fwd", f"{self.name}.combine", {"x": ids["y2"], "probs": ids["probs"], "token_row": ids["token_row"]},
                  {"y": self.t.tensor(self.name, self.out)}, {}, arith=combine)
        if self.out.requires_grad and m.gate_up_proj.requires_grad and m.down_proj.requires_grad and self.weights.requires_grad:
            self.gather(ids, (x1, y1, x2, y2), product, swiglu, combine)

    def gather(self, ids, lists, product, swiglu, combine):
        m = self.rule.module
        parts = {"out": self.out, "weights": self.weights, "gate_up": m.gate_up_proj, "down": m.down_proj}
        for word, tensors in zip(("x1", "y1", "x2", "y2"), lists):
            parts.update({(word, i): t for i, t in enumerate(tensors) if t.requires_grad})
        if sum(isinstance(p, tuple) for p in parts) != sum(len(x) for x in lists):
            return self.t.not_judged(self.name, "rows without a gradient: no backward operation")

        def emit(g):
            back = {word: self.copy(f"{word}.grad", self.ordered([g[word, i] for i in range(len(tensors))]), "backward")
                    for word, tensors in zip(("x1", "y1", "x2", "y2"), lists)}
            micro = g["microbatch"]
            weights = {**product, "rounding": ["partial_sums"]} if self.scattered else product
            self.t.op("weighted_combine_bwd", f"{self.name}.combine",
                      {"dy": self.copy("dy", g["out"], "backward"), "x": ids["y2"], "probs": ids["probs"], "token_row": ids["token_row"]},
                      {"dx": back["y2"], "dprobs": self.copy("dprobs", g["weights"], "backward")}, {}, "backward", micro, arith=combine)
            for word, x, dx, dy in (("down", "x2", "x2", "y2"), ("gate_up", "x1", "x1", "y1")):
                at = f"{self.name}.{word}_proj"
                if word == "gate_up":
                    self.t.op("swiglu_bwd", f"{self.name}.activation", {"dy": back["x2"], "x": ids["y1"]}, {"dx": back["y1"]}, {},
                              "backward", micro, arith=swiglu)
                self.t.op("grouped_linear_bwd_weight", at,
                          {"dy": back[dy], "x": ids[x], "tokens_per_expert": ids["counts"], "dweight_in": self.t.zeros(at, g[word])},
                          {"dweight": self.copy(f"{word}_proj.dweight", g[word], "backward")}, {}, "backward", micro, arith=weights)
                self.t.op("grouped_linear_bwd_input", at,
                          {"dy": back[dy], "weight": ids[word], "tokens_per_expert": ids["counts"]}, {"dx": back[dx]}, {},
                          "backward", micro, arith=product)

        self.t.gather(self.name, parts, emit)
