"""What the run computes in: its parameters' dtype, or what autocast makes of it."""
import torch

WORDS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def of_parameters(model):
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return WORDS.get(dtype, str(dtype))


class Autocast:
    """Counts the products (torch.nn.Linear) of the first recorded step, and how many of them autocast lowers."""

    def __init__(self, tracer, said):
        self.t, self.said = tracer, said  # said: the user has named the precision
        self.all, self.low, self.settled = set(), {}, False

    def see(self, name, module):
        if self.settled or not isinstance(module, torch.nn.Linear) or module.weight.dtype != torch.float32:
            return
        self.all.add(name)
        device = module.weight.device.type
        if torch.is_autocast_enabled(device):
            self.low[name] = torch.get_autocast_dtype(device)

    def product(self, name, weight, y):
        """A product that was seen itself: autocast may begin inside a module."""
        if not self.settled and weight.dtype == torch.float32 and y.dtype in (torch.bfloat16, torch.float16):
            self.all.add(name)
            self.low[name] = y.dtype

    def settle(self):
        """The precision of the run is that of most of its products; a part under autocast is said."""
        if self.settled or not self.all:
            return
        self.settled, n = True, len(self.low)
        if n == 0:
            return
        first, dtype = next(iter(self.low.items()))
        if 2 * n <= len(self.all):
            self.t.note(f"autocast to {str(dtype)[6:]} in {n} of {len(self.all)} products, the first {first}: the run is taken for one in "
                        f"{of_parameters(self.t.model)} (attach: precision)")
        elif not self.said:
            self.t.writer.change_index(precision=WORDS.get(dtype, str(dtype)))
