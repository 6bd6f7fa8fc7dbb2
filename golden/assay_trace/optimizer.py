"""Steps of optimizers: what gradients they read, and torch.optim.AdamW's as an operation."""
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .placement import is_cut
from .rules import arithmetic


class Steps:
    """Any optimizer of the model's parameters, also one that nobody named: the gradients that it reads, behind whatever clipped them."""

    def __init__(self, tracer):
        self.t = tracer

    def mine(self, optimizer):
        """(group, parameter, name) of the model's parameters that are recorded; others of the optimizer are said."""
        strange = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                name = self.t.names.get(id(p))
                if name is None:
                    strange.append(p)
                elif self.t.filter.takes(name):
                    yield group, p, name
        if strange:
            n = sum(len(group["params"]) for group in optimizer.param_groups)
            self.t.note(f"{type(optimizer).__name__}: {len(strange)} of its {n} parameters are not the model's (masters of its own?), the "
                        f"first of shape {list(strange[0].shape)}: its steps with them, and what the model gets of them, are not recorded",
                        "not_judged")

    def step(self, optimizer, args, kwargs):
        """Whether this step is one of the model's, and can be followed."""
        if not self.t.recording:
            return False
        mine = list(self.mine(optimizer))
        if not mine:
            return False
        name = type(optimizer).__name__
        if len(args) > 1 or kwargs.get("closure") is not None:
            self.t.not_judged(name, "its step is given a closure, which makes the gradients anew")
            self.t.parameters.read.update(id(p) for _, p, _ in mine)
            return False
        self.t.parameters.stepped = True
        gone = [n for _, p, n in mine if p.grad is None and id(p) in self.t.parameters.kept]
        if gone:
            self.t.incomplete(f"{name} finds no gradient of {len(gone)} parameters that had one after the backward, the first {gone[0]}: "
                              "they are not updated")
        if getattr(optimizer, "grad_scale", None) is not None:  # a fused kernel, which divides there
            self.t.scaler.before_unscaling(optimizer)
        self.t.parameters.read.update(id(p) for _, p, n in mine if p.grad is not None or n in gone)
        return True

    def before(self, optimizer, args, kwargs):
        if self.step(optimizer, args, kwargs):
            for _, p, name in self.mine(optimizer):
                if p.grad is not None and p.grad.layout == torch.strided:
                    self.t.state(f"{name}.grad", self.read(optimizer, p))

    def read(self, optimizer, p):
        """The gradient behind a GradScaler's division, which fused kernels make themselves."""
        scale = getattr(optimizer, "grad_scale", None)
        g = p.grad if scale is None else p.grad / scale
        if is_cut(p) and g.placements != p.placements:  # an embedding by rows: its gradient comes whole
            g = g.redistribute(placements=p.placements)
        return g

    def before_any(self, optimizer, args, kwargs):
        """Of an optimizer that nobody named; one of another model is none of ours."""
        if any(id(p) in self.t.names for group in optimizer.param_groups for p in group["params"]):
            self.before(optimizer, args, kwargs)


class AdamW(Steps):
    """Masters are the parameters themselves; states before the step are copies, since the step writes over them."""

    def __init__(self, tracer, optimizer):
        super().__init__(tracer)
        self.optimizer, self.old = optimizer, {}
        list(self.mine(optimizer))
        tracer.handles.append(optimizer.register_step_pre_hook(self.before))
        tracer.handles.append(optimizer.register_step_post_hook(lambda o, a, k: self.after()))

    def each(self):
        for group, p, name in self.mine(self.optimizer):
            if p.grad is None or not self.t.active(name):
                continue
            reason = next((w for w in ("amsgrad", "maximize") if group.get(w)), None)
            if reason or not p.is_floating_point() or p.dtype == torch.float16:
                self.t.not_judged("AdamW", reason or f"parameters of {p.dtype}")
                continue
            yield group, p, name

    def before(self, optimizer, args, kwargs):
        self.old = {}
        if not self.step(optimizer, args, kwargs):
            return
        if getattr(optimizer, "found_inf", None) is not None and float(optimizer.found_inf):
            return  # a GradScaler skips this step inside the fused kernel
        for _, p, name in self.each():
            s = self.optimizer.state.get(p, {})
            zero, g = torch.zeros_like(p), self.read(optimizer, p)
            self.old[name] = [t.detach().clone() for t in (g, p, s.get("exp_avg", zero), s.get("exp_avg_sq", zero))]

    def after(self):
        for group, p, name in self.each() if self.old else ():
            s, words = self.optimizer.state[p], ("grad", "main_param_in", "exp_avg_in", "exp_avg_sq_in")
            if name not in self.old:
                continue
            inputs = {w: self.t.state(f"{name}.{w}", t)
                      for w, t in zip(words, self.old.pop(name))}
            outputs = {w: self.t.state(f"{name}.{w}", t)
                       for w, t in (("main_param", p), ("exp_avg", s["exp_avg"]), ("exp_avg_sq", s["exp_avg_sq"]))}
            more = {} if p.dtype in (torch.float32, torch.float64) else {"rounding": ["every"]}
            self.t.op("adamw", name, inputs, outputs,
                      {"lr": float(group["lr"]), "beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                       "eps": float(group["eps"]), "weight_decay": float(group["weight_decay"]), "step": int(s["step"])},
                      "optimizer", arith=arithmetic(p, order="none", **more))
        self.old = {}


def follow(tracer, optimizer):
    """optimizer: None where the user named none."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer  # accelerate's wraps the one that steps
    if type(optimizer).__name__ == "AdamW":
        return AdamW(tracer, optimizer)
    steps = Steps(tracer)
    if optimizer is None:
        tracer.handles.append(register_optimizer_step_pre_hook(steps.before_any))
        return steps
    tracer.note(f"{type(optimizer).__name__}: only AdamW's steps are recorded as operations", "not_judged")
    list(steps.mine(optimizer))
    tracer.handles.append(optimizer.register_step_pre_hook(steps.before))
    return steps
