"""Linear, embedding and cross entropy where every module calls them: torch.nn.functional, while a tracer is attached.

The operands go in under another name (a view of all of them), so that their gradients are those of this one call."""
import torch
import torch.nn.functional as F

from .placement import is_cut
from .rules import arithmetic, lowered


def alias(t):
    return t.view_as(t) if t is not None and t.requires_grad and torch.is_grad_enabled() else t


class Functions:
    """The functions of torch.nn.functional as `tracer` sees them; undone by the tracer's undo list."""

    NAMES = ("linear", "embedding", "cross_entropy")

    def __init__(self, tracer):
        self.t, self.plain = tracer, {name: getattr(F, name) for name in self.NAMES}
        for name in self.NAMES:
            self.patch(name)

    def patch(self, name):
        plain, own = self.plain[name], getattr(self, name)

        def patched(*args, **kwargs):
            if torch.compiler.is_compiling() or not self.t.inside():
                return plain(*args, **kwargs)
            return own(*args, **kwargs)

        patched.__name__ = name
        setattr(F, name, patched)
        self.t.undo.append(lambda: setattr(F, name, plain) if getattr(F, name) is patched else None)

    # --- products -----------------------------------------------------------------------------------------------

    def linear(self, input, weight, bias=None):
        plain = self.plain["linear"]
        if self.t.experts is not None:
            return self.t.experts.product(plain, input, weight, bias)
        name, attribute = self.t.owner(weight)
        if attribute is None or not self.t.active(name):
            if attribute is None:
                self.t.not_judged(name, "a product with something that is not a parameter of the module")
            return plain(input, weight, bias)
        name = name if attribute == "weight" else f"{name}.{attribute}"
        x, w, b = alias(input), alias(weight), alias(bias)
        y = plain(x, w, b)
        self.t.autocast.product(name, weight, y)
        if bias is not None and is_cut(y) and any(p.is_partial() for p in y.placements):
            self.t.not_judged(name, "row-parallel with a bias: nobody says which rank adds it")
            return y
        declared = self.t.declared_weight(name, weight)
        inputs = {"x": self.operand(f"{name}.input", input), "weight": self.operand(f"{name}.weight", declared, True)}
        if bias is not None:
            inputs["bias"] = self.operand(f"{name}.bias", bias, True)
        self.t.op("linear_fwd", name, inputs, {"y": self.t.tensor(name, y)}, {}, arith=arithmetic(y))
        if self.t.gradients and y.requires_grad:
            self.linear_gradients(name, inputs, (x, w, b), y)
        return y

    def operand(self, name, t, parameter=False):
        dtype = lowered(t)
        if dtype is not None:
            return self.t.copy(f"{name}.{str(dtype)[6:]}", t.to(dtype))
        return self.t.parameter(t, name) if parameter else self.t.tensor(name, t)

    def linear_gradients(self, name, inputs, operands, y):
        x, w, b = operands
        low, microbatch = y.dtype, self.t.microbatch

        def emit(op, slot, g, more, start=None):
            dy = self.t.backward_of(y, name + ".dy")
            if dy is None:
                return
            g = g.to(low) if g.dtype != low and g.dtype == torch.float32 else g
            given = {"dy": dy, **more}
            if start:
                given[start] = self.t.zeros(name, g)
            self.t.op(op, name, given, {slot: self.t.copy(f"{name}.{slot}", g, "backward")}, {}, "backward", microbatch,
                      arith=arithmetic(g))

        self.t.keep_gradient(y, name)
        for t, function in ((x, lambda g: emit("linear_bwd_input", "dx", g, {"weight": inputs["weight"]})),
                            (w, lambda g: emit("linear_bwd_weight", "dweight", g, {"x": inputs["x"]}, "dweight_in")),
                            (b, lambda g: emit("linear_bwd_bias", "dbias", g, {}, "dbias_in"))):
            if t is not None and t.requires_grad:
                self.t.when_gradient(t, name, function)

    # --- embedding ----------------------------------------------------------------------------------------------

    def embedding(self, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
        plain = self.plain["embedding"]
        name, attribute = self.t.owner(weight)
        rest = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if attribute is None or not self.t.active(name):
            return plain(input, weight, *rest)
        if max_norm is not None or is_cut(weight):
            self.t.not_judged(name, "an embedding with max_norm, or cut over ranks")
            return plain(input, weight, *rest)
        w = alias(weight)
        y = plain(input, w, *rest)
        ids = input.long()
        inputs = {"ids": self.t.tensor(f"{name}.input", ids), "weight": self.t.parameter(weight, f"{name}.weight")}
        self.t.op("embedding_fwd", name, inputs, {"y": self.t.tensor(name, y)}, {"vocab_start": 0}, arith=arithmetic(y))
        if self.t.gradients and y.requires_grad and not scale_grad_by_freq and not sparse:
            padding = {} if padding_idx is None else {"padding_idx": padding_idx % weight.shape[0]}
            self.embedding_gradient(name, inputs["ids"], w, y, padding)
        return y

    def embedding_gradient(self, name, ids, w, y, padding):
        microbatch = self.t.microbatch
        self.t.keep_gradient(y, name)

        def weight(g):
            dy = self.t.backward_of(y, name + ".dy")
            if dy is not None:
                self.t.op("embedding_bwd", name, {"dy": dy, "ids": ids, "dweight_in": self.t.zeros(name, g)},
                          {"dweight": self.t.copy(f"{name}.dweight", g, "backward")}, {"vocab_start": 0, **padding}, "backward", microbatch,
                          arith=arithmetic(g, rounding=["partial_sums"]))

        self.t.when_gradient(w, name, weight)

    # --- cross entropy ------------------------------------------------------------------------------------------

    def cross_entropy(self, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                      label_smoothing=0.0):
        plain = self.plain["cross_entropy"]
        rest = (weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        name = ".".join(p for p in (self.t.here(), "loss_function") if p)
        if not self.t.active(name):
            return plain(input, target, *rest)
        if (weight is not None or label_smoothing != 0.0 or size_average is not None or reduce is not None
                or input.dim() != 2 or target.dim() != 1 or target.is_floating_point() or is_cut(input)):
            self.t.not_judged(name, "a cross entropy with weights, smoothing, target probabilities, or cut over ranks")
            return plain(input, target, *rest)
        x = alias(input)
        loss = plain(x, target, *rest)
        targets = self.t.declared_targets(target)
        targets = torch.where(targets == ignore_index, -100, targets.long())
        inputs = {"logits": self.t.tensor(f"{name}.logits", input), "targets": self.t.copy(f"{name}.targets", targets)}
        self.t.op("cross_entropy_fwd", name, inputs, {"loss": self.t.tensor(name, loss)}, {"reduction": reduction},
                  arith=arithmetic(loss))
        if self.t.gradients and loss.requires_grad and reduction != "none":
            divisor = int((targets != -100).sum()) if reduction == "mean" else 1
            self.loss_gradient(name, inputs, x, loss, divisor)
        return loss

    def loss_gradient(self, name, inputs, x, loss, divisor):
        microbatch, scale = self.t.microbatch, {}
        self.t.when_gradient(loss, name, lambda g: scale.__setitem__("g", float(g)))

        def logits(g):
            self.t.op("cross_entropy_bwd", name, inputs, {"dlogits": self.t.copy(f"{name}.dlogits", g, "backward")},
                      {"vocab_start": 0, "scale": scale.get("g", 1.0) / max(divisor, 1)}, "backward", microbatch,
                      arith=arithmetic(g), internal=["lse"])

        self.t.when_gradient(x, name, logits)
