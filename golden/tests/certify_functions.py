"""Callables for assay certify --python: honest ones, and what differs from them in one way each."""
import os

import torch


def rms(x, gamma, eps):
    r = torch.rsqrt(x.float().pow(2).mean(-1) + eps)
    return (x.float() * r[..., None] * gamma.float()).to(x.dtype), r


def rms_of_no_order(x, gamma, eps):
    return rms(x, gamma, eps)


rms_of_no_order.arithmetic = {"order": "sideways"}


def rms_with_eps_outside(x, gamma, eps):
    r = 1 / (x.float().pow(2).mean(-1).sqrt() + eps)
    return (x.float() * r[..., None] * gamma.float()).to(x.dtype), r


def add(a, b):
    return a + b


def add_in_place(a, b):
    return a.add_(b)


def add_without_nan(a, b):
    return torch.nan_to_num(a + b, posinf=float("inf"), neginf=float("-inf"))


def add_of_a_thread(a, b):
    """Other bits with another number of threads."""
    return a + b if torch.get_num_threads() == 1 else (a.double() + b.double() * (1 + 2.0 ** -7)).to(a.dtype)


def add_of_no_empty(a, b):
    if a.numel() == 0:
        raise ValueError("nothing to add")
    return a + b


def add_of_two(a, b):
    return a + b, a


def add_that_exits(a, b):
    if a.numel() > 5:
        os._exit(7)
    return a + b


add.arithmetic = {"order": "none", "math_ulp": 0}
class Holder:
    wide = staticmethod(lambda a, b: (a.float() + b.float()).to(a.dtype))


# --- what a function does to its process -----------------------------------------------------------------------------------------------
held = []


def add_that_hangs(a, b):
    while a.numel() > 5:
        pass
    return a + b


def add_that_sleeps_in_c(a, b):
    if a.numel() > 5:
        import ctypes
        ctypes.CDLL(None).sleep(1000)
    return a + b


def add_that_raises_exit(a, b):
    if a.numel() > 5:
        raise SystemExit(0)
    return a + b


def add_that_exits_well(a, b):
    if a.numel() > 5:
        os._exit(0)
    return a + b


def add_that_kills_itself(a, b):
    if a.numel() > 5:
        os.kill(os.getpid(), 9)
    return a + b


def add_that_takes_all_memory(a, b):
    if a.numel() > 5:
        while True:
            held.append(bytearray(1 << 26))
    return a + b


def add_that_takes_all_tensors(a, b):
    if a.numel() > 5:
        while True:
            held.append(torch.ones(1 << 26, dtype=torch.uint8))
    return a + b


def add_that_prints(a, b):
    print('{"end": {"accepts": 1}}')
    print("all tried", flush=True)
    return a + b


def add_that_forks(a, b):
    if a.numel() == 7:
        os.fork()
    return a + b


def add_with_default_dtype(a, b):
    torch.set_default_dtype(torch.float64)
    return a + b


def add_with_threads(a, b):
    torch.set_num_threads(2)
    return a + b


def add_with_deterministic(a, b):
    torch.use_deterministic_algorithms(True)
    return a + b


def add_with_grad(a, b):
    torch.set_grad_enabled(True)
    return a + b


def add_with_random(a, b):
    torch.rand(1)
    return a + b


def add_with_flush(a, b):
    torch.set_flush_denormal(True)
    return a + b


def add_with_matmul_precision(a, b):
    torch.set_float32_matmul_precision("medium")
    return a + b


# --- what a function returns -----------------------------------------------------------------------------------------------------------
def add_in_float(a, b):
    return a.float() + b.float()


def add_in_one_row(a, b):
    return (a + b).reshape(-1)


def add_as_text(a, b):
    return "a + b"


def add_in_the_memory_of_a(a, b):
    c = a + b
    kept = a.clone()
    a.copy_(c)
    held.append(kept)
    return a


def add_declared_in_place(a, b):
    return a.add_(b)


add_declared_in_place.in_place = "y=a"
buffer = {}


def add_into_one_buffer(a, b):
    """Returns the same memory at every call of a shape."""
    y = buffer.setdefault((a.shape, a.dtype), torch.empty(a.shape, dtype=a.dtype))
    torch.add(a, b, out=y)
    return y


def add_not_contiguous(a, b):
    """Honest: rows with gaps are a tensor like any other."""
    y = torch.empty((*a.shape, 2), dtype=a.dtype)
    y[..., 0] = a + b
    return y[..., 0]


def add_with_graph(a, b):
    """Honest: autograd records what it does."""
    with torch.enable_grad():
        return a.clone().requires_grad_() + b


def add_of_the_second_call(a, b):
    held.append(0)
    return a + b if len(held) < 200 else a + b + 2.0 ** -4


def add_of_an_address(a, b):
    return a + b if a.numel() < 3 or a.data_ptr() % 4096 != 0 else a + b + 2.0 ** -4


def add_all_but_the_last(a, b):
    y = torch.empty_like(a)
    y.reshape(-1)[:-1] = (a + b).reshape(-1)[:-1]
    return y


def write(t, at, value):
    import ctypes
    ctypes.memset(t.data_ptr() + at, value, 1)


def add_behind(a, b):
    y = torch.empty_like(a)
    y.copy_(a + b)
    if y.numel() > 0:
        write(y, y.numel() * y.element_size(), 1)
    return y


def add_before(a, b):
    y = torch.empty_like(a)
    y.copy_(a + b)
    if y.numel() > 0:
        write(y, -1, 1)
    return y


def add_with_reads_behind(a, b):
    import ctypes
    if a.numel() > 0:
        ctypes.string_at(a.data_ptr() + a.numel() * a.element_size(), 4)
    return a + b


def rms_of_rows(x, gamma, eps):
    """Rows one at a time: they cannot depend on each other."""
    out = [rms(row[None], gamma, eps) for row in x.unbind(0)]
    if not out:
        return rms(x, gamma, eps)
    return torch.cat([y for y, _ in out]), torch.cat([r for _, r in out])


def rms_of_the_batch(x, gamma, eps):
    y, r = rms(x, gamma, eps)
    return (y, r) if x.shape[0] < 3 or x.shape[-1] < 2 else (y, r * (1 + 2.0 ** -23))


def rms_of_whole_rows(x, gamma, eps):
    """Reads x as if its rows had no gaps."""
    return rms(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()), gamma, eps)


rms_of_rows.batch_invariant = rms_of_the_batch.batch_invariant = True
rms_of_rows.row_strides = rms_of_whole_rows.row_strides = True
