"""Lets the real Megatron core run on a CPU, over gloo processes, wholly in double.

`install()` must run before the first import of megatron.core. It changes names, not arithmetic: the
devices, streams and random states of torch.cuda get their CPU meaning, torch.float32 means float64,
torch.compile returns the function, and gloo gets the two reductions and the uneven lists that it lacks.
`install_modules()` runs after the import and replaces what exists only with TransformerEngine or Apex: an
RMSNorm that carries `sequence_parallel`, and for context parallelism an attention over gathered keys.
"""
import contextlib
import os

import torch

CPU = torch.device("cpu")


class Stream:
    """A stream or event of a CPU: everything has already happened."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, *args):
        pass

    wait_event = record = wait = synchronize = wait_stream

    def record_event(self, event=None):
        return event or Stream()


def _cuda_names():
    cuda = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.device_count = lambda: 1
    cuda.is_available = lambda: False
    cuda.synchronize = cuda.empty_cache = lambda *a, **k: None
    cuda.set_device = lambda *a, **k: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *a, **k: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = cuda.default_stream = lambda *a, **k: Stream()
    cuda.stream = lambda *a, **k: contextlib.nullcontext()
    cuda.get_device_capability = lambda *a, **k: (8, 0)
    cuda.nvtx.range_push = lambda *a, **k: None
    cuda.nvtx.range_pop = lambda *a, **k: None
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.Tensor.record_stream = lambda self, *a, **k: None


class _OnCpu(torch.overrides.TorchFunctionMode):
    """device="cuda" in a factory call means the CPU; Tensor.type() speaks of the CUDA type of single precision."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        out = func(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 1 and out == "torch.DoubleTensor":
            return "torch.cuda.FloatTensor"
        return out


def _doubles():
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)


def _gloo():
    """AVG = SUM and a division; sizes as Python ints; lists of uneven pieces as one broadcast or reduce each."""
    dist = torch.distributed
    all_reduce, all_gather, all_to_all = dist.all_reduce, dist.all_gather, dist.all_to_all_single

    def reduce_with_average(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op=op, group=group, async_op=async_op)
        all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        tensor /= dist.get_world_size(group)
        return _Done() if async_op else None

    def all_to_all_ints(output, input, output_split_sizes=None, input_split_sizes=None, **kwargs):
        ints = [None if s is None else [int(n) for n in s] for s in (output_split_sizes, input_split_sizes)]
        return all_to_all(output, input, ints[0], ints[1], **kwargs)

    def all_gather_uneven(outputs, input, group=None, async_op=False):
        if len({o.shape for o in outputs}) == 1:
            return all_gather(outputs, input.contiguous(), group=group, async_op=async_op)
        for i, o in enumerate(outputs):
            if i == dist.get_rank(group):
                o.copy_(input)
            dist.broadcast(o, dist.get_global_rank(group, i), group=group)
        return _Done() if async_op else None

    def reduce_scatter_uneven(output, inputs, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = torch.cat([i.contiguous() for i in inputs])
        reduce_with_average(whole, op=op, group=group)
        output.copy_(whole.split([i.shape[0] for i in inputs])[dist.get_rank(group)])
        return _Done() if async_op else None

    def all_gather_into(output, input, group=None, async_op=False):
        pieces = list(output.chunk(dist.get_world_size(group)))
        whole = [torch.empty_like(input) for _ in pieces]
        all_gather(whole, input.contiguous(), group=group)
        output.copy_(torch.cat([w.reshape(-1) for w in whole]).view_as(output))
        return _Done() if async_op else None

    def reduce_scatter_into(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = input.clone()
        reduce_with_average(whole, op=op, group=group)
        output.copy_(whole.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].view_as(output))
        return _Done() if async_op else None

    # Reductions of a group are run one by one, not gathered into one call.
    dist._coalescing_manager = lambda *a, **k: contextlib.nullcontext(_Done())
    dist.all_reduce = reduce_with_average
    dist.all_to_all_single = all_to_all_ints
    dist.all_gather, dist.reduce_scatter = all_gather_uneven, reduce_scatter_uneven
    dist.all_gather_into_tensor = dist._all_gather_base = all_gather_into
    dist.reduce_scatter_tensor = dist._reduce_scatter_base = reduce_scatter_into


class _Done:
    def wait(self):
        pass


def _ties():
    """Of equal integers the first: torch.topk leaves it open, and the drop policy `position` asks it for 0 and 1."""
    topk = torch.topk

    def ordered(x, k, dim=-1, largest=True, sorted=True):
        if x.dtype.is_floating_point or not largest:
            return topk(x, k, dim, largest, sorted)
        values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
        return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)

    torch.topk = ordered


def install():
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    torch.set_num_threads(1)
    _cuda_names()
    _doubles()
    torch.compile = lambda f=None, *a, **k: f if f is not None else (lambda g: g)
    _gloo()
    _ties()
    mode = _OnCpu()
    mode.__enter__()
    return mode


def _norm(cls, config, hidden_size, eps=1e-5, **ignored):
    """RMSNorm of torch, in the place of the core's own wrapper of it, which refuses sequence parallelism."""
    assert config.normalization == "RMSNorm"
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    norm.weight.sequence_parallel = config.sequence_parallel
    return norm


class _Gather(torch.autograd.Function):
    """Pieces of all ranks of a group one after the other; backward: the sum over ranks of this rank's piece."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        pieces = [torch.empty_like(x.contiguous()) for _ in range(group.size())]
        torch.distributed.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, grad):
        whole = grad.contiguous().clone()
        torch.distributed.all_reduce(whole, group=ctx.group)
        return whole.chunk(ctx.group.size())[ctx.group.rank()], None


class GatheredAttention(torch.nn.Module):
    """Causal attention over context-parallel pieces: keys and values are gathered, positions make the mask."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, **kwargs):
        super().__init__()
        self.scale = config.kv_channels ** -0.5

    def forward(self, query, key, value, attention_mask, **kwargs):
        from megatron.core import parallel_state as ps

        group, size, rank = (ps.get_context_parallel_group(), ps.get_context_parallel_world_size(),
                             ps.get_context_parallel_rank())
        half, (s, b, heads, d) = query.shape[0] // 2, query.shape
        places = [torch.cat([torch.arange(c * half, (c + 1) * half) for c in (r, 2 * size - 1 - r)])
                  for r in range(size)]
        k, v = (_Gather.apply(t, group).repeat_interleave(heads // t.shape[2], 2)
                for t in (key, value))
        scores = torch.einsum("qbnd,kbnd->bnqk", query, k) * self.scale
        scores = scores.masked_fill(places[rank][:, None] < torch.cat(places)[None, :], float("-inf"))
        return torch.einsum("bnqk,kbnd->qbnd", scores.softmax(-1), v).reshape(s, b, heads * d)


class LatentAttention(torch.nn.Module):
    """Causal attention whose values have a width of their own, which the core's DotProductAttention does not take."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **kwargs):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **kwargs):
        s, b, heads, _ = query.shape
        scores = torch.einsum("qbnd,kbnd->bnqk", query, key) * self.scale
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        return torch.einsum("bnqk,kbnd->qbnd", scores.softmax(-1), value).reshape(s, b, -1)


def install_modules(context_parallel, latent=False):
    from megatron.core.models import backends
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import moe_utils

    random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    moe_utils.te_general_gemm = None
    torch_norm.WrappedTorchNorm.__new__ = _norm
    if latent:
        from megatron.core.transformer import multi_latent_attention

        multi_latent_attention.TELinear = type("TELinear", (), {})
        backends.LocalSpecProvider.core_attention = lambda self: LatentAttention
    elif context_parallel:
        backends.LocalSpecProvider.core_attention = lambda self: GatheredAttention
