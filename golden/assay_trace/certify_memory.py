"""Memory of a call of `assay certify --python`: every tensor between guards, so that what is touched beside it is seen.

On the CPU a tensor ends (or begins) at a page that nobody may touch; the rest of its own pages holds a pattern that is looked at behind the
call.  On a device it is a slice of a larger tensor that holds the pattern.
"""
import ctypes
import math
import mmap

import torch
from torch.overrides import TorchFunctionMode

PAGE = mmap.PAGESIZE
WALL = 256 * PAGE  # a stride of the largest rows and blocks lands in it
MARGIN = 4096      # bytes before and behind a slice on a device

EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted, torch.Tensor.new_empty, torch.Tensor.new_empty_strided}
FILLED = {torch.zeros, torch.zeros_like, torch.Tensor.new_zeros, torch.ones, torch.ones_like, torch.Tensor.new_ones, torch.full,
          torch.full_like, torch.Tensor.new_full}

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def span(size, stride):
    """Elements from the first one to the last one."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride)) if math.prod(size) > 0 else 0


class Pages:
    """`count` bytes of the CPU with their last one (at_end) or their first one beside a wall."""

    def __init__(self, count, at_end, fill):
        self.count, self.fill = count, bytes([fill])
        self.inner = -(-count // PAGE) * PAGE
        self.memory = mmap.mmap(-1, self.inner + 2 * WALL)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.memory[WALL:WALL + self.inner] = self.fill * self.inner
        for wall in (base, base + WALL + self.inner):
            if _mprotect(wall, WALL, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.begin = WALL + (self.inner - count if at_end else 0)
        self.address = base + self.begin

    def tensor(self, dtype):
        return torch.frombuffer(self.memory, dtype=dtype, count=self.count // dtype.itemsize, offset=self.begin)

    def beside(self):
        """(before, behind): how many bytes are written there, counted to the farthest one."""
        before = self.memory[WALL:self.begin]
        behind = self.memory[self.begin + self.count:WALL + self.inner]
        return len(before) - (len(before) - len(before.lstrip(self.fill))), len(behind.rstrip(self.fill))


class Slice:
    """`count` bytes within a larger tensor of a device."""

    def __init__(self, count, fill, device):
        self.count, self.fill = count, fill
        self.whole = torch.empty(count + 2 * MARGIN, dtype=torch.uint8, device=device)
        self.whole.fill_(fill)
        self.address = self.whole.data_ptr() + MARGIN

    def tensor(self, dtype):
        return self.whole[MARGIN:MARGIN + self.count].view(dtype)

    def beside(self):
        before, behind = (self.whole[:MARGIN] != self.fill).nonzero(), (self.whole[MARGIN + self.count:] != self.fill).nonzero()
        return (MARGIN - int(before[0]) if before.numel() else 0), (int(behind[-1]) + 1 if behind.numel() else 0)


class Memory:
    """The tensors of one call: its inputs, and what it makes with torch.empty, torch.zeros and their kin."""

    def __init__(self, at_end, fill, device="cpu"):
        self.at_end, self.fill, self.device = at_end, fill, torch.device(device)
        self.regions = []  # (region, what it is)

    def place(self, like, what, size=None, stride=None):
        """An empty tensor as `like` between guards, of another size and stride where they are given."""
        size, stride = tuple(like.shape if size is None else size), tuple(like.stride() if stride is None else stride)
        n = span(size, stride)
        if n == 0:
            return torch.empty(size, dtype=like.dtype, device=self.device)
        region = (Pages(n * like.dtype.itemsize, self.at_end, self.fill) if self.device.type == "cpu" else
                  Slice(n * like.dtype.itemsize, self.fill, self.device))
        self.regions.append((region, what))
        return region.tensor(like.dtype).as_strided(size, stride)

    def region_of(self, t):
        """Index of the region that a tensor lies in; None: in none."""
        if t.numel() > 0:
            for i, (region, _) in enumerate(self.regions):
                if region.address <= t.data_ptr() < region.address + region.count:
                    return i
        return None

    def touched(self, names):
        """What was written beside a tensor; `names`: of regions by index, where they have one by now."""
        for i, (region, what) in enumerate(self.regions):
            before, behind = region.beside()
            name = names.get(i, what)
            if before > 0:
                yield f"{name}: written up to {before} bytes before its first element"
            if behind > 0:
                yield f"{name}: written up to {behind} bytes behind its last element"

    def unwritten(self, t):
        """Which elements hold the pattern alone; None: of none is that known."""
        if t.numel() == 0 or self.region_of(t) is None:
            return None
        flat = t.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        same = (flat.view(torch.uint8).reshape(-1, t.element_size()) == self.fill).all(-1)
        return same if bool(same.any()) else None


class Guarding(TorchFunctionMode):
    """While it is active, tensors that a call makes empty or filled lie between guards, too."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func not in EMPTY and func not in FILLED:
            return made
        if kwargs.get("out") is not None or type(made) is not torch.Tensor or made.layout is not torch.strided or made.numel() == 0:
            return made
        if made.device.type != self.memory.device.type or made.is_quantized:
            return made
        placed = self.memory.place(made, f"a tensor of {func.__name__} {list(made.shape)}")
        if func in FILLED:
            placed.copy_(made.detach())
        return placed.requires_grad_(made.requires_grad)
