"""RMSNorm in Triton, 16 rows a program: y = x / sqrt(mean(x^2) + eps) * gamma, rstd = 1 / sqrt(mean(x^2) + eps).

    assay certify --python rmsnorm_triton:rmsnorm --operation rmsnorm_fwd

with PYTHONPATH naming this folder and golden/ (or the package assay-trace installed).  Without a GPU it runs in Triton's interpreter.
"""
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(Y, RSTD, X, GAMMA, eps, T, H, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # rows times columns can be more than 2^31
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for begin in range(0, H, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < T)[:, None] & (column < H)[None, :]
        x = tl.load(X + row[:, None] * H + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(total, axis=1) / H + eps)
    tl.store(RSTD + row, rstd, mask=row < T)
    for begin in range(0, H, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < T)[:, None] & (column < H)[None, :]
        x = tl.load(X + row[:, None] * H + column[None, :], mask=inside, other=0.0).to(tl.float32)
        gamma = tl.load(GAMMA + column, mask=column < H, other=0.0).to(tl.float32)
        tl.store(Y + row[:, None] * H + column[None, :], x * rstd[:, None] * gamma[None, :], mask=inside)


def rmsnorm(x, gamma, eps):
    """x [T, H], gamma [H] -> y [T, H] as x, rstd F32 [T].  T may be several dimensions."""
    x = x.contiguous()
    y = torch.empty_like(x)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    if rstd.numel() > 0:
        rmsnorm_kernel[(triton.cdiv(rstd.numel(), 16),)](y, rstd, x, gamma.contiguous(), eps, rstd.numel(), x.shape[-1], ROWS=16, BLOCK=64)
    return y, rstd


# A row is summed in 64 lanes, which are added then: its bits do not depend on the other rows, nor on where it lies.
rmsnorm.batch_invariant = True
rmsnorm.row_strides = True
