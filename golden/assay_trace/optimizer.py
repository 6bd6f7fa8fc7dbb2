"""Steps of torch.optim.AdamW."""
import warnings

import torch

from .rules import arithmetic


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
                if p.grad is None or not name or not self.t.active(name):
                    continue
                reason = next((w for w in ("amsgrad", "maximize") if group.get(w)), None)
                if reason or not p.is_floating_point() or p.dtype == torch.float16:
                    self.t.not_judged("AdamW", reason or f"parameters of {p.dtype}")
                    continue
                yield group, p, name

    def before(self):
        for _, p, name in self.each():
            s = self.optimizer.state.get(p, {})
            zero = torch.zeros_like(p)
            self.old[name] = [t.detach().clone() for t in (p.grad, p, s.get("exp_avg", zero), s.get("exp_avg_sq", zero))]

    def after(self):
        for group, p, name in self.each():
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
    if type(optimizer).__name__ != "AdamW":
        warnings.warn(f"assay_trace: {type(optimizer).__name__}: only AdamW's steps are recorded as operations")
        return None
    return AdamW(tracer, optimizer)
