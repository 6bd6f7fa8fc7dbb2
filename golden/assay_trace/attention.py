"""Rotary embedding and attention of Hugging Face's modules.  Tensors go in Megatron-LM's order of axes [s,b,heads,d]."""
import math
import sys

import torch

from .placement import local
from .rules import SUM, WORDS, Rule, arithmetic, children, lowered

# families whose scores are multiplied by 1/sqrt(head_dim), whatever a module happens to hold
PLAIN_SCALE = ("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "olmo", "olmo2", "olmoe", "phi3", "gemma",
               "stablelm", "starcoder2")


def ours(t):
    """[b,heads,s,d] -> [s,b,heads,d]"""
    return t.detach().permute(2, 0, 1, 3).contiguous()


def halves(t):
    """Pairs (x0, x1), (x2, x3), ... as two halves (x0, x2, ... | x1, x3, ...)."""
    return torch.cat([t[..., 0::2], t[..., 1::2]], -1)


class RotaryEmbedding(Rule):
    """cos and sin of a Hugging Face model: of every position of the first row, the two equal halves once."""

    TYPES = ("default", "linear", "llama3", "yarn")

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
        for word in ("factor", "low_freq_factor", "high_freq_factor"):
            if p.get(word) is not None and kind != "default":
                attrs[word] = float(p[word])
        if kind in ("llama3", "yarn"):
            attrs["original_max_position_embeddings"] = int(p["original_max_position_embeddings"])
        if kind == "yarn":
            attrs.update(self.yarn(p))
        return attrs if kind != "yarn" or "factor" in attrs else None

    @staticmethod
    def yarn(p):
        """Of the configuration: what the module has computed may be wrong."""
        def grown(mscale):
            return 0.1 * mscale * math.log(p["factor"]) + 1.0 if p["factor"] > 1 else 1.0

        times, both = p.get("attention_factor"), p.get("mscale") and p.get("mscale_all_dim")
        if times is None and p.get("factor") is not None:
            times = grown(p["mscale"]) / grown(p["mscale_all_dim"]) if both else grown(1.0)
        return {"beta_fast": float(p.get("beta_fast") or 32), "beta_slow": float(p.get("beta_slow") or 1),
                "truncate": bool(p.get("truncate", True)), "attention_factor": float(times or 1.0)}

    def forward(self, args, kwargs, out):
        position = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(out, torch.Tensor) and out.is_complex():  # of every pair once; others hold two equal halves
            out = tuple(torch.cat([t, t], -1) for t in (out.real, out.imag))
        if not isinstance(position, torch.Tensor) or not isinstance(out, tuple) or position.dim() != 2:
            return self.t.not_judged(self.name, "a rope without positions [batch, sequence]")
        first, dim = position[0].tolist(), out[0].shape[-1]
        attrs, rows = self.attributes(dim), {}
        for row, p in enumerate(first):  # documents in a row: each position once
            rows.setdefault(p, row)
        if attrs is None or sorted(rows) != list(range(len(rows))):
            return self.t.not_judged(self.name, "a kind of rope that is not known, or positions that are not 0, 1, 2, ...")
        order = torch.tensor([rows[p] for p in range(len(rows))], device=out[0].device)
        if len(rows) < len(first) and not all(torch.equal(t[0], t[0][order][position[0].to(t.device)]) for t in out):
            self.t.incomplete(f"{self.name}: of one position another angle in each document: no operation record")
            return
        cos, sin = (self.t.copy(f"{self.name}.{w}", t[0, order, :dim // 2]) for w, t in zip(("cos", "sin"), out))
        self.t.op("rope_table", self.name, {}, {"cos": cos, "sin": sin}, {**attrs, "positions": len(rows)},
                  arith={**SUM, "order": "none", "rounding": ["angles"]})


class Attention(Rule):
    """q_proj, k_proj, v_proj, o_proj: rope through the model's own apply_rotary_pos_emb, then causal attention, whoever computes it."""

    @staticmethod
    def matches(m):
        return (children(m, "q_proj", "k_proj", "v_proj", "o_proj") and getattr(m, "config", None) is not None
                and getattr(m, "is_causal", False))

    def hook(self):
        m = self.module
        self.before(m, self.enter)
        self.after(m.v_proj, lambda a, k, y: self.seen.__setitem__("v", y))
        self.limit = getattr(self.t.model_config(), "clip_qkv", None)
        for letter in "qkv" if self.limit is not None else "":
            # OLMo's: in place, on what the norm or the projection gave
            self.after(getattr(m, letter + "_norm", getattr(m, letter + "_proj")), lambda a, k, y, letter=letter: self.clip(letter, y))
        self.before(m.o_proj, self.forward)
        self.after(m, lambda a, k, y: self.seen.clear())

    def enter(self, args, kwargs):
        self.seen = {}
        Rope.current = self

    def scale(self, dim):
        config = self.module.config
        if getattr(config, "model_type", "") in PLAIN_SCALE:
            return dim ** -0.5
        return float(self.module.scaling)

    def clip(self, letter, x):
        """x [b,s,heads d] before the config's clip_qkv; `clipped` is told of what came out, whoever clipped it or did not."""
        at = f"{self.name}.clip_{letter}"
        attrs, given = {"limit": float(self.limit)}, {"x": self.t.copy(at + ".x", x)}
        take = self.t.collect(("dx", "dy"), lambda g: self.t.op(
            "clamp_bwd", at, {"dy": self.t.copy(at + ".dy", g["dy"].reshape(x.shape), "backward"), **given},
            {"dx": self.t.copy(at + ".dx", g["dx"], "backward")}, attrs, "backward", g["microbatch"], arith=dict(SUM, order="none")))
        if self.t.gradients and x.requires_grad:
            self.t.when_gradient(x, at, lambda g: take("dx", g))  # before it changes in place
        self.seen["clip_" + letter] = (at, given, attrs, take, x.shape)

    def clipped(self, letter, y, arranged):
        """y: a tensor that the gradient of the clipped values reaches; arranged(of its shape) is [b,s,heads,d]."""
        if "clip_" + letter not in self.seen:
            return
        at, given, attrs, take, shape = self.seen.pop("clip_" + letter)
        self.t.op("clamp_fwd", at, given, {"y": self.t.copy(at + ".y", arranged(y.detach()).reshape(shape))}, attrs,
                  arith=dict(SUM, order="none"))
        if self.t.gradients and y.requires_grad:
            self.t.when_gradient(y, at, lambda g: take("dy", arranged(g)))

    def rotated(self, q, k, cos, sin, q_out, k_out, pairs=False):
        """cos, sin [b or 1,s,d/2].  pairs: neighbours are rotated, and come out as halves ("halves", DeepSeek-V3's) or as neighbours
        ("pairs", V2's); what is of neighbours is recorded as halves."""
        def arranged(t):
            return halves(ours(t)) if pairs else ours(t)

        def results(t):
            return halves(ours(t)) if pairs == "pairs" else ours(t)

        b, _, s, d = q.shape
        self.seen["q"], self.seen["k"] = q_out, k_out
        for letter, x in (("q", q), ("k", k)):
            self.clipped(letter, x, lambda t: t.transpose(1, 2))
        if not ((cos.shape[0] == 1 or bool((cos == cos[:1]).all())) and cos.shape[1] == s):
            return self.t.not_judged(self.name, "positions that differ from row to row: no rope operation")
        table = [self.t.copy(f"{self.name}.rope.{w}", t[0]) for w, t in (("cos", cos), ("sin", sin))]
        position = self.t.copy(f"{self.name}.rope.position", torch.arange(s).repeat_interleave(b))
        for letter, x, y in (("q", q, q_out), ("k", k, k_out)):
            at = f"{self.name}.rope_{letter}"
            inputs = {"cos": table[0], "sin": table[1], "position": position}
            # a product of complex numbers is made in float32, of doubles, too
            arith = dict(SUM, order="none") if pairs == "pairs" else arithmetic(y, order="none", rounding=["products"])
            self.t.op("rope_fwd", at, {"x": self.t.copy(at + ".x", arranged(x).to(y.dtype)), **inputs},
                      {"y": self.t.copy(at + ".y", results(y))}, {}, arith=arith)
            if x.dtype != y.dtype:
                self.t.not_judged(at, "a rope that changes the dtype: no backward operation")
            elif x.requires_grad and y.requires_grad:
                self.gather({"dx": x, "dy": y}, lambda g, at=at, inputs=inputs, arith=arith: self.t.op(
                    "rope_bwd", at, {"dy": self.t.copy(at + ".dy", results(g["dy"]), "backward"), **inputs},
                    {"dx": self.t.copy(at + ".dx", arranged(g["dx"]), "backward")}, {}, "backward", g["microbatch"], arith=arith))

    @staticmethod
    def value(t, b, s, groups):
        """[b,s,groups,d] of what v_proj gave."""
        return t.reshape(b, s, groups, -1)

    def visible_from(self, b, s):
        """The first key of every query [s·b] that a padding mask and documents leave, or None; False: not of that form."""
        first, start = self.behind_padding(s), self.of_document(b, s)
        return first if start is None or first is False else start if first is None else torch.maximum(first, start)

    def of_document(self, b, s):
        """Positions that do not go on by one begin a document, which sees itself alone; None: each row is one."""
        p = self.t.positions
        if not isinstance(p, torch.Tensor) or p.dim() != 2 or p.shape[1] != s or p.shape[0] not in (1, b):
            return None
        p = p.detach().cpu().long()
        new = torch.cat([torch.zeros_like(p[:, :1]), (p[:, 1:] != p[:, :-1] + 1).long()], 1)
        start = torch.cummax(new * torch.arange(s), 1).values
        return start.expand(b, s).t().reshape(-1).contiguous() if bool(new.any()) else None

    def behind_padding(self, s):
        mask = self.t.padding
        if mask is None or mask.dim() != 2 or bool((mask != 0).all()):
            return None
        first = (mask != 0).long().argmax(-1)
        if not bool(((mask != 0) == (torch.arange(mask.shape[1], device=mask.device)[None] >= first[:, None])).all()):
            return False
        return first.cpu().repeat(s)

    def refusal(self, first):
        config = self.module.config
        if first is False:
            return "the padding mask hides more than the beginning of a row"
        if self.module.training and (getattr(config, "attention_dropout", 0.0) or 0.0) > 0:
            return "attention dropout is on, and declared"
        if getattr(config, "attn_logit_softcapping", None) or hasattr(self.module, "sinks"):
            return "softcapping or sinks have no operation"
        return None

    def forward(self, args, kwargs):
        q, k, v = (self.seen.get(letter) for letter in "qkv")
        if q is None or k is None or v is None or q.shape[2] != k.shape[2] or type(v) is not torch.Tensor:
            return
        self.clipped("v", v, lambda t: t)
        b, heads, s, d = q.shape
        groups, out, width = k.shape[1], args[0], self.value(v, b, s, k.shape[1]).shape[-1]
        first = self.visible_from(b, s)
        reason = self.refusal(first)
        if reason:
            return self.t.not_judged(self.name, reason)
        at, low = self.name + ".core_attention", lowered(q) or q.dtype

        def as_keys(t):
            return self.value(t.detach(), b, s, groups).transpose(0, 1).contiguous()

        def as_queries(t):
            return local(t).detach().reshape(b, s, heads, -1).transpose(0, 1).contiguous()

        def copy(word, t, phase="forward"):
            return self.t.copy(f"{at}.{word}", t.to(low), phase)

        where = self.t.copy(at + ".position", torch.arange(s).repeat_interleave(b))
        inputs = {"q": copy("q", ours(q)), "k": copy("k", ours(k)), "v": copy("v", as_keys(v)),
                  "q_position": where, "k_position": where}
        if first is not None:
            inputs["first_key"] = self.t.copy(at + ".first_key", first)
        eager = getattr(self.module.config, "_attn_implementation", "eager") == "eager"
        window = int(getattr(self.module, "sliding_window", getattr(self.module.config, "sliding_window", None)) or 0)
        attrs = {"batch": b, "seq_q": s, "seq_k": s, "heads": heads, "groups": groups, "head_dim": d,
                 "head_dim_v": width, "scale": self.scale(d), "window": window, "p_dtype": WORDS.get(low, "F32")}
        o = copy("o", as_queries(out))
        eager = eager or width != d  # the fused kernels take one width: scores in one piece
        arith = {**SUM, "rounding": ["scores"]} if eager else arithmetic(q, tile=16)  # eager: softmax in float32, also of float64
        self.t.op("attention_fwd", at, inputs, {"o": o}, attrs, arith=arith, internal=["lse"])
        if not (out.requires_grad and q.requires_grad and k.requires_grad and v.requires_grad):
            return
        back = {**arith, "rounding": arith.get("rounding", []) + ["heads"]}
        self.gather({"do": out, "dq": q, "dk": k, "dv": v}, lambda g: self.t.op(
            "attention_bwd", at, {**inputs, "o": o, "do": copy("do", as_queries(g["do"]), "backward")},
            {"dq": copy("dq", ours(g["dq"]), "backward"), "dk": copy("dk", ours(g["dk"]), "backward"),
             "dv": copy("dv", as_keys(g["dv"]), "backward")}, attrs, "backward", g["microbatch"], arith=back, internal=["lse"]))


class LatentAttention(Attention):
    """DeepSeek's (MLA): queries, keys and values as the attention function gets them, with a width of their own for values."""

    @staticmethod
    def matches(m):
        return children(m, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj") and getattr(m, "config", None) is not None

    def hook(self):
        m, file = self.module, sys.modules[type(self.module).__module__]
        functions = getattr(file, "ALL_ATTENTION_FUNCTIONS", None)
        self.before(m, self.enter)
        self.before(m.o_proj, self.forward)
        self.after(m, lambda a, k, y: self.seen.clear())
        if functions is None or not hasattr(functions, "get_interface") or self.t.__dict__.setdefault("latent", {}).setdefault(id(functions), self) is not self:
            return
        plain, rules = functions.get_interface, self.t.rules

        def get_interface(*args, **kwargs):
            function = plain(*args, **kwargs)

            def attend(module, query, key, value, *more, **options):
                rule = next((r for r in rules if isinstance(r, LatentAttention) and r.module is module), None)
                if rule is not None and rule.t.active(rule.name):
                    rule.seen.update(q=query, k=key, v=value)
                return function(module, query, key, value, *more, **options)

            return attend

        functions.get_interface = get_interface
        self.t.undo.append(lambda: functions.__dict__.pop("get_interface", None))

    def scale(self, dim):
        rope = getattr(self.module.config, "rope_parameters", None) or {}
        return dim ** -0.5 if rope.get("rope_type", "default") == "default" else float(self.module.scaling)

    @staticmethod
    def value(t, b, s, groups):
        return t.transpose(1, 2)


class Rope:
    """The rotations of a modeling file (apply_rotary_pos_emb, and DeepSeek's of neighbours), seen from the attention module that is
    running."""

    current = None

    @classmethod
    def patch(cls, tracer, module_name):
        """Functions of a modeling file that rotate q and k, with how they are told the angles: cos and sin of every pair once, and how
        pairs lie (Attention.rotated)."""
        file = sys.modules.get(module_name)

        def equal_halves(pairs):
            return lambda rule, cos, sin: (cos[..., :cos.shape[-1] // 2], sin[..., :sin.shape[-1] // 2], pairs)

        def of_complex(rule, turns):
            return (turns.real, turns.imag, "pairs") if turns.is_complex() and isinstance(rule, LatentAttention) else None

        for name, count, angles in (("apply_rotary_pos_emb", 2, equal_halves(None)),
                                    ("apply_rotary_pos_emb_interleave", 2, equal_halves("halves")), ("apply_rotary_emb", 1, of_complex)):
            if getattr(file, name, None) is not None:
                cls.patch_one(tracer, file, name, count, angles)

    @classmethod
    def patch_one(cls, tracer, module, name, count, angles):
        plain = getattr(module, name)

        def rotate(q, k, *args, **kwargs):
            out = plain(q, k, *args, **kwargs)
            rule = cls.current
            if torch.compiler.is_compiling() or rule is None or not tracer.active(rule.name):
                return out
            known = (not kwargs and len(args) == count and isinstance(out, tuple) and q.dim() == 4
                     and all(isinstance(t, torch.Tensor) and t.dim() == 3 for t in args))
            found = angles(rule, *args) if known else None
            if found is None:
                tracer.not_judged(rule.name, f"{name} called in a way that is not known: no rope operation")
            else:
                rule.rotated(q, k, found[0], found[1], *out, pairs=found[2])
            return out

        rotate.__name__ = name
        setattr(module, name, rotate)
        tracer.undo.append(lambda: setattr(module, name, plain))
