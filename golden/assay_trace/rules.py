"""What every rule has: hooks of one kind of module, and the arithmetic that PyTorch's CPU and CUDA kernels keep to: sums in float32
(float64 for double tensors) in an order that nobody promises, elementary functions within 4 units in the last place."""
import torch

SUM = {"accumulate": "F32", "order": "unknown", "fma": True, "math_ulp": 4}
WORDS = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def arithmetic(t, **more):
    return {**SUM, "accumulate": "F64" if t.dtype == torch.float64 else "F32", **more}


def children(module, *names):
    return all(isinstance(getattr(module, n, None), torch.nn.Module) for n in names)


def is_silu(act):
    return isinstance(act, torch.nn.SiLU) or type(act).__name__ in ("SiLUActivation", "SiLU") or act is torch.nn.functional.silu


def lowered(t):
    """What autocast makes of an operand of a product before the product sees it; a gradient of it came from that dtype."""
    if t is None or t.dtype != torch.float32 or not torch.is_autocast_enabled(t.device.type):
        return None
    return torch.get_autocast_dtype(t.device.type)


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

    def input(self, x):
        return self.t.tensor(f"{self.name}.input", x)

    def gather(self, parts, function):
        """Calls function({word: gradient}) when the gradients of all tensors in `parts` (word -> tensor) have come."""
        self.t.gather(self.name, parts, function)
