"""What a call of `assay certify --python` must leave as it was: settings of the process, generators of random numbers, processes."""
import os
import pathlib
import random

import torch


def _flushes():
    return (torch.tensor(1e-40) * torch.tensor(1.0)).item() == 0.0


def _same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# name, what it is now, how it is set again
SETTINGS = (
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the default device", torch.get_default_device, torch.set_default_device),
    ("the number of threads", torch.get_num_threads, torch.set_num_threads),
    ("deterministic algorithms",
     lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
     lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1])),
    ("the grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("the precision of float32 products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("flushing of subnormals", _flushes, torch.set_flush_denormal),
    ("autocast", lambda: torch.is_autocast_enabled("cpu"), lambda v: torch.set_autocast_enabled("cpu", v)),
    ("torch's random state", torch.get_rng_state, torch.set_rng_state),
    ("Python's random state", random.getstate, random.setstate),
    ("the current folder", os.getcwd, os.chdir),
)


class State:
    """Taken once, compared behind every call; what differs is said and set again, so that the next call is tried on its own."""

    def __init__(self):
        self.before = [get() for _, get, _ in SETTINGS]
        self.command = pathlib.Path("/proc/self/cmdline").read_bytes()
        self.ours = self.children()

    def children(self):
        """Processes of this one that no other program runs in: a copy of this process, or one that ended and was not waited for."""
        out = set()
        for task in pathlib.Path("/proc/self/task").iterdir():
            try:
                found = (task / "children").read_text().split()
            except OSError:  # the thread ended, or the kernel has no such file
                continue
            for child in found:
                try:
                    if pathlib.Path(f"/proc/{child}/cmdline").read_bytes() in (self.command, b""):
                        out.add(child)
                except OSError:
                    pass
        return out

    def changed(self):
        for i, (name, get, put) in enumerate(SETTINGS):
            now = get()
            if _same(now, self.before[i]):
                continue
            put(self.before[i])
            yield f"changes {name}" + ("" if "random" in name else f" from {self.before[i]} to {now}")
        left = self.children() - self.ours
        if left:
            self.ours |= left
            yield f"leaves {len(left)} forked process{'es' if len(left) > 1 else ''} behind"
