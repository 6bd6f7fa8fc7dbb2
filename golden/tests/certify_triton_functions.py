"""Triton kernels for assay certify --python: RMSNorm with one mistake each, chosen by MISTAKE, and functions that compute in bfloat16."""
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(Y, RSTD, X, GAMMA, eps, T, H, MISTAKE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    if MISTAKE == "program id":
        program = program + 1
    row, column = program * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at = row[:, None] * H + column[None, :]
    inside = (row < T)[:, None] & (column < H)[None, :]
    if MISTAKE == "load":
        x = tl.load(X + at).to(tl.float32)
    elif MISTAKE == "load of one more":
        x = tl.load(X + at, mask=(row < T)[:, None] & (column <= H)[None, :], other=0.0).to(tl.float32)
    else:
        x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    if MISTAKE == "sum in bf16":
        total = tl.sum((x * x).to(tl.bfloat16), axis=1).to(tl.float32)
    else:
        total = tl.sum(x * x, axis=1)
    if MISTAKE == "eps":
        rstd = 1.0 / (tl.sqrt(total / H) + eps)
    elif MISTAKE == "block":
        rstd = 1.0 / tl.sqrt(total / BLOCK + eps)
    else:
        rstd = 1.0 / tl.sqrt(total / H + eps)
    tl.store(RSTD + row, rstd, mask=row < T)
    gamma = tl.load(GAMMA + column, mask=column < H, other=0.0).to(tl.float32)
    if MISTAKE == "store":
        tl.store(Y + at, x * rstd[:, None] * gamma[None, :], mask=(row < T)[:, None] & (column >= 0)[None, :])
    else:
        tl.store(Y + at, x * rstd[:, None] * gamma[None, :], mask=inside)


def rms(mistake):
    def function(x, gamma, eps):
        y = torch.empty_like(x)
        rstd = torch.empty(x.shape[:-1], dtype=torch.float32)
        rows = rstd.numel()
        if rows > 0:
            kernel[(triton.cdiv(rows, 16),)](y, rstd, x, gamma, eps, rows - (mistake == "last row"), x.shape[-1], mistake, 16,
                                             triton.next_power_of_2(x.shape[-1]))
        return y, rstd
    return function


honest, wrong_eps, wrong_block, wrong_id = rms(""), rms("eps"), rms("block"), rms("program id")
store, load, load_of_one, sum_in_bf16, last_row = rms("store"), rms("load"), rms("load of one more"), rms("sum in bf16"), rms("last row")


@triton.jit
def add_kernel(Y, A, B, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(A + i, mask=i < n) + tl.load(B + i, mask=i < n), mask=i < n)


def add(a, b):
    """Honest: adds in the type of its operands, which the interpreter as it comes adds as integers."""
    y = torch.empty_like(a)
    add_kernel[(triton.cdiv(a.numel(), 32),)](y, a, b, a.numel(), 32)
    return y


@triton.jit
def broken_kernel(Y, A, B, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(A + i, mask=i < n) + tl.load(B + i + None, mask=i < n), mask=i < n)


def broken(a, b):
    y = torch.empty_like(a)
    broken_kernel[(1,)](y, a, b, a.numel(), 32)
    return y
