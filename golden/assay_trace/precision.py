"""What the run computes in: its parameters' dtype, or what autocast or FSDP2's mixed precision makes of it."""
import torch

WORDS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def of_parameters(model):
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return WORDS.get(dtype, str(dtype))


class Autocast:
    """Counts the products (torch.nn.Linear) of the first recorded step, and how many of them run in less than the parameters are kept in:
    by autocast, or by a policy of FSDP2 that gathers them lowered."""

    def __init__(self, tracer, model, said):
        self.t, self.said = tracer, said  # said: the user has named the precision
        self.kept = of_parameters(model)  # before anything gathers them
        self.all, self.low, self.settled = set(), {}, False
        self.by = ""

    def lowers(self, dtype):
        return self.kept == "fp32" and dtype in (torch.bfloat16, torch.float16)

    def see(self, name, module):
        dtype = module.weight.dtype if isinstance(module, torch.nn.Linear) else None
        if self.settled or dtype != torch.float32 and not self.lowers(dtype):
            return
        self.all.add(name)
        device = module.weight.device.type
        if self.lowers(dtype):
            self.low[name] = dtype
        elif torch.is_autocast_enabled(device):
            self.low[name], self.by = torch.get_autocast_dtype(device), "autocast to "

    def product(self, name, weight, y):
        """A product that was seen itself: autocast may begin inside a module."""
        if not self.settled and self.lowers(y.dtype):
            self.all.add(name)
            self.low[name] = y.dtype
            if torch.is_autocast_enabled(y.device.type):
                self.by = "autocast to "

    def settle(self):
        """The precision of the run is that of most of its products; a part under autocast is said."""
        if self.settled or not self.all:
            return
        self.settled, n = True, len(self.low)
        if n == 0:
            return
        first, dtype = next(iter(self.low.items()))
        if 2 * n <= len(self.all):
            self.t.note(f"{self.by}{str(dtype)[6:]} in {n} of {len(self.all)} products, the first {first}: the run is taken for one in "
                        f"{of_parameters(self.t.model)} (attach: precision)")
        elif not self.said:
            self.t.writer.change_index(precision=WORDS.get(dtype, str(dtype)))
