"""Norms (RMSNorm and LayerNorm), SwiGLU and the residual additions."""
import torch

from .placement import is_cut
from .rules import SUM, Rule, arithmetic, children, is_silu

FLOAT = torch.float32  # also where a run makes torch.float32 mean another


class Norm(Rule):
    def hook(self):
        self.before(self.module, self.enter)
        self.after(self.module, self.forward)

    def enter(self, args, kwargs):
        """The norm's own share of the gradient: of its input under another name."""
        if not args or not self.t.gradients or not args[0].requires_grad or not torch.is_grad_enabled():
            return None
        self.seen["x"] = args[0]
        self.seen["alias"] = args[0].view_as(args[0])
        return (self.seen["alias"], *args[1:]), kwargs


class RMSNorm(Norm):
    """Hugging Face's RMSNorms round x·rstd to the input's dtype and multiply by the weight then; torch.nn.RMSNorm does not, nor do
    Gemma's, whose factor is 1 + weight."""

    @staticmethod
    def matches(m):
        return type(m).__name__.endswith("RMSNorm") and isinstance(getattr(m, "weight", None), torch.nn.Parameter)

    def eps(self, x):
        config = self.t.model_config()  # what the model says of itself, not what this module happens to hold
        if type(self.module).__name__.startswith(("DeepseekV2", "DeepseekV3")) and self.name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            return 1e-6  # the inner norms of latent attention keep the default of their class
        if getattr(config, "rms_norm_eps", None) is not None:
            return float(config.rms_norm_eps)
        own = self.own_eps()
        return float(torch.finfo(x.dtype).eps) if own is None else own

    def own_eps(self):
        """What this module happens to hold."""
        for word in ("variance_epsilon", "eps", "epsilon"):
            if getattr(self.module, word, None) is not None:
                return float(getattr(self.module, word))
        return None

    def attributes(self, x):
        """Another eps in the module is recorded beside: too small for what a narrow dtype shows, it is wrong all the same."""
        eps, own = self.eps(x), self.own_eps()
        if own is not None and own != eps:
            self.t.copy(f"{self.name}.eps", torch.tensor(own, dtype=torch.float64))
        return {"eps": eps}

    def forward(self, args, kwargs, y):
        x = self.seen.pop("x", args[0] if args else next(iter(kwargs.values())))
        weight, gemma = self.module.weight, "Gemma" in type(self.module).__name__
        if (x.dtype != weight.dtype and not gemma) or is_cut(weight) or is_cut(x):
            self.seen.clear()
            return self.t.not_judged(self.name, "input and weight of different dtypes, or cut over ranks")
        arith = dict(SUM)  # in float32, whatever x is
        if isinstance(self.module, getattr(torch.nn, "RMSNorm", ())):
            arith = arithmetic(x)
        elif not gemma:
            arith["rounding"] = ["before_gamma"]
        if gemma:  # multiplies by 1 + weight, which is made in float32
            gamma = self.t.copy(f"{self.name}.one_plus_weight", 1.0 + weight.detach().to(torch.promote_types(weight.dtype, FLOAT)))
        else:
            gamma = self.t.parameter(weight, f"{self.name}.weight")
        inputs, attrs = {"x": self.input(x), "gamma": gamma}, self.attributes(x)
        self.t.op("rmsnorm_fwd", self.name, inputs, {"y": self.t.tensor(self.name, y)}, attrs, arith=arith, internal=["rstd"])
        alias = self.seen.pop("alias", None)
        if alias is None or not y.requires_grad:
            return
        if not weight.requires_grad:
            return self.t.not_judged(self.name, "the weight is frozen: no backward operation")
        self.gather({"dy": y, "dx": alias, "dgamma": weight}, lambda g: self.t.op(
            "rmsnorm_bwd", self.name,
            {**inputs, "dy": self.t.copy(f"{self.name}.dy", g["dy"], "backward"), "dgamma_in": self.t.zeros(self.name, g["dgamma"])},
            {"dx": self.t.copy(f"{self.name}.dx", g["dx"], "backward"),
             "dgamma": self.t.copy(f"{self.name}.dgamma", g["dgamma"], "backward")},
            attrs, "backward", g["microbatch"], arith=arith, internal=["rstd"]))


class LayerNorm(Norm):
    """torch.nn.LayerNorm over its last axis, and Hugging Face's own (Cohere's: no bias, made of single operations in float32).
    The kernels sum in float32 (float64 for doubles); the CPU's keep mean and rstd in the dtype of a bfloat16 or float16 input for the
    backward, and add weight gradients row by row in it."""

    @staticmethod
    def matches(m):
        if isinstance(m, torch.nn.LayerNorm):
            return len(m.normalized_shape) == 1
        weight = getattr(m, "weight", None)
        return type(m).__name__.endswith("LayerNorm") and hasattr(m, "variance_epsilon") and weight is not None and weight.dim() == 1

    def forward(self, args, kwargs, y):
        x, alias = self.seen.pop("x", args[0] if args else next(iter(kwargs.values()))), self.seen.pop("alias", None)
        weight, bias = self.module.weight, getattr(self.module, "bias", None)
        if is_cut(x) or (weight is not None and (is_cut(weight) or weight.dtype != x.dtype)):
            return self.t.not_judged(self.name, "input and weight of different dtypes, or cut over ranks")
        gamma = (self.t.parameter(weight, f"{self.name}.weight") if weight is not None
                 else self.t.copy(f"{self.name}.ones", torch.ones(x.shape[-1:], dtype=x.dtype)))
        inputs, attrs = {"x": self.input(x), "gamma": gamma}, {"eps": self.eps()}
        offset = {} if bias is None else {"beta": self.t.parameter(bias, f"{self.name}.bias")}
        self.t.op("layernorm_fwd", self.name, {**inputs, **offset}, {"y": self.t.tensor(self.name, y)}, attrs, arith=self.arithmetic(x),
                  internal=["mean", "rstd"])
        if alias is None or not y.requires_grad:
            return
        if weight is None or not weight.requires_grad or (bias is not None and not bias.requires_grad):
            return self.t.not_judged(self.name, "no weight, or weight or bias frozen: no backward operation")
        self.backward(x, y, alias, weight, bias, inputs, attrs)

    def arithmetic(self, x):
        return arithmetic(x) if isinstance(self.module, torch.nn.LayerNorm) else SUM

    def eps(self):
        return float(self.module.eps if hasattr(self.module, "eps") else self.module.variance_epsilon)

    def backward(self, x, y, alias, weight, bias, inputs, attrs):
        narrow = x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cpu" and isinstance(self.module, torch.nn.LayerNorm)
        arith = {**self.arithmetic(x), **({"rounding": ["statistics", "partial_sums"]} if narrow else {})}
        parts = {"dy": y, "dx": alias, "dgamma": weight, **({} if bias is None else {"dbeta": bias})}

        def record(g):
            starts = {f"{k}_in": self.t.zeros(self.name, g[k]) for k in ("dgamma", "dbeta") if k in g}
            outputs = {k: self.t.copy(f"{self.name}.{k}", g[k], "backward") for k in ("dx", "dgamma", "dbeta") if k in g}
            self.t.op("layernorm_bwd", self.name, {**inputs, "dy": self.t.copy(f"{self.name}.dy", g["dy"], "backward"), **starts},
                      outputs, attrs, "backward", g["microbatch"], arith=arith, internal=["mean", "rstd"])

        self.gather(parts, record)


class SwiGLU(Rule):
    """gate_proj, up_proj, act_fn, down_proj: silu(gate)·up; silu's result is stored in the input's dtype."""

    @staticmethod
    def matches(m):
        return children(m, "gate_proj", "up_proj", "down_proj") and is_silu(getattr(m, "act_fn", None))

    def hook(self):
        self.after(self.module.gate_proj, lambda a, k, y: self.seen.__setitem__("gate", y))
        self.after(self.module.up_proj, lambda a, k, y: self.seen.__setitem__("up", y))
        self.before(self.module.down_proj, self.forward)

    def forward(self, args, kwargs):
        gate, up = self.seen.pop("gate", None), self.seen.pop("up", None)
        if gate is None or up is None:
            return
        if type(gate) is not torch.Tensor:
            return self.t.not_judged(self.name, "gate and up are cut over ranks as DTensors")
        y, at = args[0], self.name + ".activation"
        x = self.t.copy(at + ".x", torch.cat([gate.detach(), up.detach()], -1))
        arith = arithmetic(y, order="none", rounding=["before_up"])
        self.t.op("swiglu_fwd", at, {"x": x}, {"y": self.t.tensor(at, y)}, {}, arith=arith)
        if not (y.requires_grad and gate.requires_grad and up.requires_grad):
            return
        self.gather({"dy": y, "gate": gate, "up": up}, lambda g: self.t.op(
            "swiglu_bwd", at, {"dy": self.t.copy(at + ".dy", g["dy"], "backward"), "x": x},
            {"dx": self.t.copy(at + ".dx", torch.cat([g["gate"], g["up"]], -1), "backward")}, {}, "backward", g["microbatch"],
            arith=arith))


class DecoderLayer(Rule):
    """The two residual additions of a pre-norm layer; what is added is what the last product of a block made."""

    @staticmethod
    def matches(m):
        return (children(m, "input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
                and not children(m, "pre_feedforward_layernorm"))

    def hook(self):
        self.before(self.module.input_layernorm, lambda a, k: self.seen.__setitem__("x", a[0]))
        self.last(self.module.self_attn, "o_proj", "attention")
        self.before(self.module.post_attention_layernorm, self.middle)
        self.last(self.module.mlp, "down_proj", "mlp")
        self.after(self.module, self.end)

    def last(self, block, child, word):
        block = getattr(block, child) if children(block, child) else block
        self.after(block, lambda a, k, y: self.seen.__setitem__(word, y[0] if isinstance(y, tuple) else y))

    def add(self, instance, a, b, y, name):
        if a is not None and b is not None and a.shape == b.shape == y.shape:
            def operand(word, t):  # autocast leaves a product in its own dtype; the sum is made in the wider one
                return self.t.copy(f"{instance}.{word}", t.to(y.dtype)) if t.dtype != y.dtype else self.t.tensor(
                    f"{self.name}.input" if word == "a" else f"{instance}.{word}", t)

            self.t.op("add", instance, {"a": operand("a", a), "b": operand("b", b)},
                      {"y": self.t.tensor(name, y)}, {}, arith=arithmetic(y, order="none"))

    def middle(self, args, kwargs):
        self.seen["middle"] = args[0]
        if not is_cut(args[0]):
            self.add(self.name + ".self_attn.residual", self.seen.get("x"), self.seen.get("attention"), args[0],
                     self.name + ".self_attn.residual")

    def end(self, args, kwargs, out):
        self.add(self.name + ".mlp.residual", self.seen.get("middle"), self.seen.get("mlp"),
                 out[0] if isinstance(out, tuple) else out, self.name)
        self.seen = {}
