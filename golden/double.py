"""Runs Hugging Face models wholly in double precision.

The modelling code casts to float32 in places (norms, rope tables, softmax, router). Inside
`doubles()` the names torch.float32, torch.float and Tensor.float mean float64, so that each of
these casts is a double; `Float32Counter` proves it by counting results that are float32 all the
same: the count must stay zero, forward and backward.
"""
import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FLOAT32 = torch.float32
FLOAT64 = torch.float64


@contextlib.contextmanager
def doubles():
    """float32 means float64 between entry and exit."""
    tensor_float = torch.Tensor.float
    torch.float32 = torch.float = FLOAT64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(FLOAT64)
    try:
        yield
    finally:
        torch.float32 = torch.float = FLOAT32
        torch.Tensor.float = tensor_float
        torch.set_default_dtype(FLOAT32)


class Float32Counter(TorchDispatchMode):
    """Counts the real float32 (or half) tensors that operations return; `doubles` counts the float64 ones."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.doubles = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.count += leaf.dtype in (FLOAT32, torch.bfloat16, torch.float16)
                self.doubles += leaf.dtype == FLOAT64
        return out


def deterministic():
    """One thread and deterministic kernels: the same bits at every run on one kind of machine."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
