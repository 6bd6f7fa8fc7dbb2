"""Triton's interpreter (TRITON_INTERPRET=1) under `assay certify --python` on a machine without a GPU.

The interpreter keeps bfloat16 as bits in uint16: it casts to it by truncation, where the language rounds to nearest even, and adds, multiplies
and compares the bits as integers.  Here bfloat16 is widened to float32 (exact), computed, and rounded to nearest even; for +, -, *, / that is
the correctly rounded result, because 24 bits are more than twice 8 and two.  `check` holds the result to torch's before anything is certified.
"""
import sys

import torch
import triton
import triton.language as tl

ARITHMETIC = ("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "precise_divf", "approx_divf", "minimumf", "minnumf", "maximumf", "maxnumf",
              "clampf", "fma", "cos", "sin", "exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "erf", "floor", "ceil")
COMPARISONS = tuple(f"fcmp{o}{how}" for o in "OU" for how in ("LT", "GT", "LE", "GE", "EQ", "NE"))

launches = 0  # of kernels in the interpreter


def _is_bf16(handle):
    return getattr(handle, "dtype", None) is not None and hasattr(handle, "data") and handle.dtype.scalar == tl.bfloat16


def install():
    """Corrects the interpreter that is loaded, and counts its launches."""
    import numpy as np
    from triton.runtime import interpreter
    Handle, Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder

    def widen(h):
        if not _is_bf16(h):
            return h
        return Handle((h.data.astype(np.uint32) << np.uint32(16)).view(np.float32), tl.float32)

    def narrow_bits(x):
        bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        return np.where((bits & np.uint32(0x7FFFFFFF)) > 0x7F800000, quiet, rounded).astype(np.uint16).reshape(np.shape(x))

    def narrow(h):
        return Handle(narrow_bits(h.data), tl.bfloat16)

    def computed(original, compares):
        def method(self, *args, **kwargs):
            if not any(_is_bf16(a) for a in args):
                return original(self, *args, **kwargs)
            out = original(self, *map(widen, args), **kwargs)
            if compares:
                return Handle(out.data, tl.int1)
            return narrow(out) if out.dtype.scalar == tl.float32 else out
        return method

    for word in ARITHMETIC + COMPARISONS:
        original = getattr(Builder, "create_" + word, None)
        if original is not None:
            setattr(Builder, "create_" + word, computed(original, word in COMPARISONS))

    dot = Builder.create_dot

    def create_dot(self, a, b, d, *more):  # the third operand says what the sum is kept in
        out = dot(self, widen(a), widen(b), widen(d), *more)
        return narrow(out) if _is_bf16(d) else out
    Builder.create_dot = create_dot

    cast, to = Builder.cast_impl, Builder.create_fp_to_fp

    def cast_impl(self, src, dst_type):
        if dst_type.scalar == tl.bfloat16:
            return src if _is_bf16(src) else narrow(cast(self, src, tl.float32))
        return widen(src) if dst_type.scalar == tl.float32 and _is_bf16(src) else cast(self, widen(src), dst_type)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar == tl.float32 and rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ:
            return to(self, src, dst_type, None)
        return cast_impl(self, src, dst_type) if tl.bfloat16 in (dst_type.scalar, src.dtype.scalar) else to(self, src, dst_type, rounding_mode)

    Builder.cast_impl, Builder.create_fp_to_fp = cast_impl, create_fp_to_fp
    _correct_reductions(interpreter, widen, narrow)

    run = interpreter.GridExecutor.__call__

    def counted(self, *args, **kwargs):
        global launches
        launches += 1
        return run(self, *args, **kwargs)
    interpreter.GridExecutor.__call__ = counted


def _correct_reductions(interpreter, widen, narrow):
    import numpy as np
    Reduce, Scan = interpreter.ReduceOps, interpreter.ScanOps
    total, least, sums, products = Reduce.sum, Reduce.min_max, Scan.cumsum, Scan.cumprod

    def in_float(t):
        return tl.tensor(widen(t.handle), tl.block_type(tl.float32, list(t.shape))) if _is_bf16(t.handle) else t

    def out_of_float(t, was):
        if not _is_bf16(was.handle) or t.dtype != tl.float32:
            return t
        return tl.tensor(narrow(t.handle), tl.block_type(tl.bfloat16, list(t.shape)) if t.type.is_block() else tl.bfloat16)

    def tree(self, input):
        """Halves are added, each sum rounded, as a warp adds its lanes."""
        if not _is_bf16(input.handle):
            return total(self, input)
        x = narrow(widen(input.handle)).data
        axis = 0 if self.axis is None else self.axis
        x = np.moveaxis(x.reshape(-1) if self.axis is None else x, axis, 0)
        while x.shape[0] > 1:
            half = x.shape[0] // 2
            a, b = (widen(interpreter.TensorHandle(np.ascontiguousarray(part), tl.bfloat16)).data for part in (x[:half], x[half:2 * half]))
            x = np.concatenate([narrow(interpreter.TensorHandle(a + b, tl.float32)).data, x[2 * half:]])
        x = x[0]
        if self.keep_dims:
            x = x.reshape([1] * input.handle.data.ndim) if self.axis is None else np.expand_dims(x, axis)
        return self.to_tensor(x, input.dtype)

    def min_max(self, input, val_reduce_op, idx_reduce_op=None):
        was = input[0] if isinstance(input, tuple) else input
        out = least(self, in_float(was), val_reduce_op, idx_reduce_op)
        return tuple(out_of_float(t, was) for t in out) if isinstance(out, tuple) else out_of_float(out, was)

    Reduce.sum, Reduce.min_max = tree, min_max
    Scan.cumsum = lambda self, input: self.generic_scan((input,)) if _is_bf16(input.handle) else sums(self, input)
    Scan.cumprod = lambda self, input: self.generic_scan((input,)) if _is_bf16(input.handle) else products(self, input)


# --- what the corrected interpreter has to compute -----------------------------------------------------------------------------------------
@triton.jit
def _probe(X, Y, Rounded, Sum, Product, Larger, Total, Best, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(X + i), tl.load(Y + i)
    a, b = x.to(tl.bfloat16), y.to(tl.bfloat16)
    tl.store(Rounded + i, a)
    tl.store(Sum + i, a + b)
    tl.store(Product + i, a * b)
    tl.store(Larger + i, tl.where(a > b, a, b))
    tl.store(Total, tl.sum(a))
    tl.store(Best, tl.max(a))


def _values(n):
    """Float32 numbers about every kind of boundary of bfloat16: ties, subnormals, the largest, infinities, no NaN."""
    high = (torch.arange(n, dtype=torch.int64) * 65521 // 8) % 0x7F80
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])[torch.arange(n) % 6]
    sign = (torch.arange(n, dtype=torch.int64) // 3 % 2) << 31
    bits = (high << 16 | low | sign)
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def check():
    """None, or what the interpreter computes otherwise than torch on the CPU."""
    import numpy as np
    with np.errstate(all="ignore"):
        return _check()


def _check():
    n = 2048
    x, y = _values(n), _values(n).flip(0)
    made = {k: torch.zeros(n, dtype=torch.bfloat16) for k in ("cast", "sum", "product", "comparison")}
    total, best = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    small = (torch.arange(n) % 5 - 2).float()  # 256 and less is exact in any order of the sum
    _probe[(1,)](x, y, *made.values(), total, best, n)
    a, b = x.bfloat16(), y.bfloat16()
    wanted = {"cast": a, "sum": a + b, "product": a * b, "comparison": torch.where(a > b, a, b)}
    for word, t in wanted.items():
        if not torch.equal(t.isnan(), made[word].isnan()) or not torch.equal(t.nan_to_num(0.5), made[word].nan_to_num(0.5)):
            return f"a {word} of bfloat16"
    if not torch.equal(best, a.max().reshape(1)):
        return "a maximum of bfloat16"
    _probe[(1,)](small, small, *made.values(), total, best, n)
    return None if total.item() == small.sum().item() else "a sum of bfloat16"


def prepare():
    """What the certificate says of Triton where the callable's module has loaded it; None: it has not.  An interpreter that is not what it
    is corrected for is refused."""
    if "triton" not in sys.modules or not getattr(triton.knobs.runtime, "interpret", False):
        return None
    install()
    wrong = check()
    if wrong:
        raise RuntimeError(f"Triton {triton.__version__}: its interpreter computes {wrong} otherwise than the language says")
    return f"Triton {triton.__version__}, its interpreter with bfloat16 rounded to nearest even"
