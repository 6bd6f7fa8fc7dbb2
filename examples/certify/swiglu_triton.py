"""SwiGLU in Triton: x [T, 2F] = [gate | up], y = gate * sigmoid(gate) * up, times probs[t] where it is given.

    assay certify --python swiglu_triton:swiglu --operation swiglu_fwd
"""
import torch
import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(Y, X, PROBS, n, F, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // F, i % F
    gate = tl.load(X + row * 2 * F + column, mask=i < n, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * F + F + column, mask=i < n, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    if SCALED:
        y *= tl.load(PROBS + row, mask=i < n, other=0.0)
    tl.store(Y + i, y, mask=i < n)


def swiglu(x, probs=None):
    """x [T, 2F], probs F32 [T] or None -> y [T, F] as x.  T may be several dimensions."""
    x = x.contiguous()
    width = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        swiglu_kernel[(triton.cdiv(y.numel(), 256),)](y, x, x if probs is None else probs.contiguous(), y.numel(), width,
                                                      SCALED=probs is not None, BLOCK=256)
    return y


swiglu.batch_invariant = True
