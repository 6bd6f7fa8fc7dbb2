"""Rotary embedding and attention of Hugging Face's modules.  Tensors go in Megatron-LM's order of axes [s,b,heads,d]."""
import sys

import torch

from .placement import local
from .rules import SUM, WORDS, Rule, arithmetic, children, lowered

# families whose scores are multiplied by 1/sqrt(head_dim), whatever a module happens to hold
PLAIN_SCALE = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "olmo", "olmo2", "olmoe", "phi3", "gemma",
               "stablelm", "starcoder2")


def ours(t):
    """[b,heads,s,d] -> [s,b,heads,d]"""
    return t.detach().permute(2, 0, 1, 3).contiguous()


def halves(t):
    """Pairs (x0, x1), (x2, x3), ... as two halves (x0, x2, ... | x1, x3, ...)."""
    return torch.cat([t[..., 0::2], t[..., 1::2]], -1)


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
        for word in ("factor", "low_freq_factor", "high_freq_factor"):
            if p.get(word) is not None and kind != "default":
                attrs[word] = float(p[word])
        if kind == "llama3":
            attrs["original_max_position_embeddings"] = int(p["original_max_position_embeddings"])
        return attrs

    def forward(self, args, kwargs, out):
        position = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if not isinstance(position, torch.Tensor) or not isinstance(out, tuple) or position.dim() != 2:
            return self.t.not_judged(self.name, "a rope without positions [batch, sequence]")
        first, dim = position[0].tolist(), out[0].shape[-1]
        attrs = self.attributes(dim)
        if attrs is None or first != list(range(len(first))):
            return self.t.not_judged(self.name, "a kind of rope that is not known, or positions that are not 0, 1, 2, ...")
        cos, sin = (self.t.copy(f"{self.name}.{w}", t[0, :, :dim // 2]) for w, t in zip(("cos", "sin"), out))
        self.t.op("rope_table", self.name, {}, {"cos": cos, "sin": sin}, {**attrs, "positions": len(first)},
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

    def rotated(self, q, k, cos, sin, q_out, k_out, pairs=False):
        """pairs: neighbours are rotated, and come out as halves (DeepSeek's); x and dx are recorded as halves, too."""
        def arranged(t):
            return halves(ours(t)) if pairs else ours(t)

        b, _, s, d = q.shape
        self.seen["q"], self.seen["k"] = q_out, k_out
        half = cos.shape[-1] // 2
        if not ((cos.shape[0] == 1 or bool((cos == cos[:1]).all())) and cos.shape[1] == s):
            return self.t.not_judged(self.name, "positions that differ from row to row: no rope operation")
        table = [self.t.copy(f"{self.name}.rope.{w}", t[0, :, :half]) for w, t in (("cos", cos), ("sin", sin))]
        position = self.t.copy(f"{self.name}.rope.position", torch.arange(s).repeat_interleave(b))
        for letter, x, y in (("q", q, q_out), ("k", k, k_out)):
            at = f"{self.name}.rope_{letter}"
            inputs = {"cos": table[0], "sin": table[1], "position": position}
            arith = arithmetic(y, order="none", rounding=["products"])
            self.t.op("rope_fwd", at, {"x": self.t.copy(at + ".x", arranged(x).to(y.dtype)), **inputs}, {"y": self.t.copy(at + ".y", ours(y))}, {},
                      arith=arith)
            if x.dtype != y.dtype:
                self.t.not_judged(at, "a rope that changes the dtype: no backward operation")
            elif x.requires_grad and y.requires_grad:
                self.gather({"dx": x, "dy": y}, lambda g, at=at, inputs=inputs, arith=arith: self.t.op(
                    "rope_bwd", at, {"dy": self.t.copy(at + ".dy", ours(g["dy"]), "backward"), **inputs},
                    {"dx": self.t.copy(at + ".dx", arranged(g["dx"]), "backward")}, {}, "backward", g["microbatch"], arith=arith))

    @staticmethod
    def value(t, b, s, groups):
        """[b,s,groups,d] of what v_proj gave."""
        return t.reshape(b, s, groups, -1)

    def visible_from(self, b, s):
        """The first key of every query [s·b] that a padding mask leaves, or None; False: not of that form."""
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
    FUNCTIONS = {"apply_rotary_pos_emb": False, "apply_rotary_pos_emb_interleave": True}

    @classmethod
    def patch(cls, tracer, module_name):
        for name, pairs in cls.FUNCTIONS.items():
            cls.patch_one(tracer, sys.modules.get(module_name), name, pairs)

    @classmethod
    def patch_one(cls, tracer, module, name, pairs):
        plain = getattr(module, name, None)
        if plain is None:
            return

        def rotate(q, k, cos, sin, *args, **kwargs):
            out = plain(q, k, cos, sin, *args, **kwargs)
            rule = cls.current
            if (not torch.compiler.is_compiling() and rule is not None and tracer.active(rule.name) and isinstance(out, tuple)
                    and q.dim() == 4 and cos.dim() == 3 and not args and not kwargs):
                rule.rotated(q, k, cos, sin, *out, pairs=pairs)
            return out

        rotate.__name__ = name
        setattr(module, name, rotate)
        tracer.undo.append(lambda: setattr(module, name, plain))
