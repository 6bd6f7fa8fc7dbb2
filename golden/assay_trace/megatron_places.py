"""Where a tensor of a Megatron rank lies in the whole one, from sizes and coordinates of the groups: members of a record (docs/TRACE.md).

An extent tells what a rank holds of the sequence: all of its context-parallel chunks, or sequence parallelism's part of them.  What is
not known is `local`: recorded, replayed, never laid beside another layout's."""
from .names import clean


def whole(n):
    return [[0, n]] if n else []


def runs(positions):
    """[start, length] pairs of ascending neighbours."""
    out = []
    for p in positions:
        if out and out[-1][0] + out[-1][1] == p:
            out[-1][1] += 1
        else:
            out.append([p, 1])
    return out


def local(t):
    n = list(t.shape)
    if len(n) > 4:
        last = n[-3:]
        n = [t.numel() // max(1, last[0] * last[1] * last[2])] + last
    return {"kind": "local", "global_shape": n}


class Places:
    """Sizes and coordinates of this rank; `rows` and `sequence`: of the microbatch that runs, [b, s] of this rank."""

    def __init__(self, config):
        from megatron.core import parallel_state as ps
        self.tp, self.tp_rank = ps.get_tensor_model_parallel_world_size(), ps.get_tensor_model_parallel_rank()
        self.cp, self.cp_rank = ps.get_context_parallel_world_size(), ps.get_context_parallel_rank()
        self.dp, self.dp_rank = ps.get_data_parallel_world_size(), ps.get_data_parallel_rank()
        self.pp, self.ep, self.ep_rank = (ps.get_pipeline_model_parallel_world_size(), ps.get_expert_model_parallel_world_size(),
                                          ps.get_expert_model_parallel_rank())
        self.etp, self.etp_rank = ps.get_expert_tensor_parallel_world_size(), ps.get_expert_tensor_parallel_rank()
        self.edp = self.tp * self.cp * self.dp // (self.etp * self.ep)
        self.config, self.rows, self.sequence = config, 0, 0

    def layout(self):
        """The layout's short form (docs/LAYOUTS.md)."""
        c = self.config
        sizes = [(word, n) for word, n in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("dp", self.dp)) if n > 1]
        if c.num_moe_experts:
            sizes += [(word, n) for word, n in (("ep", self.ep), ("etp", self.etp)) if n > 1]
        words = [f"{word}{n}" for word, n in sizes] + (["sp"] if c.sequence_parallel and self.tp > 1 else [])
        return ",".join(words) or "1"

    # --- activations --------------------------------------------------------------------------------------------

    def positions(self):
        """Of the sequence on this rank: chunks cp_rank and 2·cp - 1 - cp_rank of 2·cp."""
        if self.cp == 1:
            return list(range(self.sequence))
        half = self.sequence // 2
        return [c * half + i for c in (self.cp_rank, 2 * self.cp - 1 - self.cp_rank) for i in range(half)]

    def tokens(self, n, each=1):
        """(extent of the whole, segments) of a dimension of n positions, `each` rows per position; None: it is none."""
        at, total = self.positions(), self.sequence * self.cp * each
        if n == self.sequence * each:
            pass
        elif self.config.sequence_parallel and n * self.tp == self.sequence * each:
            part = len(at) // self.tp
            at = at[self.tp_rank * part:(self.tp_rank + 1) * part]
        else:
            return None
        return total, [[p * each, k * each] for p, k in runs(at)]

    def cut(self, n, blocks=1):
        """A dimension of which tp rank r holds piece r of each of its blocks."""
        each = n // blocks
        return n * self.tp, [[b * each * self.tp + self.tp_rank * each, each] for b in range(blocks)]

    def members(self, t, dims):
        segments = [s for _, s in dims]
        shape = [n for n, _ in dims]
        if shape == list(t.shape) or any(len(s) > 8 for s in segments):
            return {"global_shape": shape} if shape == list(t.shape) else local(t)
        return {"global_shape": shape, "local_shape": list(t.shape), "segments": segments}

    def heads(self, t, cut=True):
        """[s, b, heads, d]."""
        first = self.tokens(t.shape[0]) if t.dim() == 4 and t.shape[1] == self.rows else None
        if first is None:
            return local(t)
        middle = self.cut(t.shape[2]) if cut else (t.shape[2], whole(t.shape[2]))
        return self.members(t, [first, (self.rows, whole(self.rows)), middle, (t.shape[3], whole(t.shape[3]))])

    def output(self, name, module, t):
        """Of a module's output under its clean name."""
        kind, words = type(module).__name__, name.split(".")
        if "experts" in words or name.startswith("embedding.") or "rotary_pos_emb" in words:
            return local(t)
        if t.dim() == 4:
            return self.heads(t) if words[-1].endswith("layernorm") else local(t)
        if t.dim() == 2 and words[-1] == "loss":
            second = self.tokens(t.shape[1])
            return local(t) if second is None else self.members(t, [(t.shape[0], whole(t.shape[0])), second])
        if t.dim() == 2 and "router" in words:
            first = self.tokens(t.shape[0], self.rows)
            return local(t) if first is None else self.members(t, [first, (t.shape[1], whole(t.shape[1]))])
        first = self.tokens(t.shape[0]) if t.dim() == 3 and t.shape[1] == self.rows else None
        if first is None:
            return local(t)
        last = t.shape[2], whole(t.shape[2])
        if kind == "ColumnParallelLinear" and not module.gather_output:
            gated = words[-1] == "linear_fc1" and self.config.gated_linear_unit
            last = self.cut(t.shape[2], 2 if gated else 1)
        elif words[-1] == "core_attention":
            last = self.cut(t.shape[2])
        return self.members(t, [first, (self.rows, whole(self.rows)), last])

    def cut_over_tp(self, t):
        """Whether the ranks of tp hold other tokens or heads of an output."""
        rows = self.rows if t.dim() == 2 else 1
        return self.tp > 1 and (t.dim() == 4 or t.shape[0] < self.sequence * rows)

    def scalar(self, group):
        """A number that is the sum of the ranks' numbers over a group."""
        size = {"tp_cp": self.tp * self.cp}[group]
        return {"global_shape": [], "kind": "partial", "partial_group": group} if size > 1 else {"global_shape": []}

    # --- parameters ---------------------------------------------------------------------------------------------

    def parameter(self, name, p):
        """Of a parameter, or of its gradient after every reduction."""
        shape, expert = list(p.shape), "local_experts" in name
        size, rank = (self.etp, self.etp_rank) if expert else (self.tp, self.tp_rank)
        if not getattr(p, "tensor_model_parallel", False) or size == 1 or len(shape) > 2:
            return {"global_shape": shape}
        d, n = p.partition_dim, shape[p.partition_dim]
        blocks = 2 if "linear_fc1" in name and self.config.gated_linear_unit else 1
        segments = [whole(k) for k in shape]
        segments[d] = [[b * (n // blocks) * size + rank * (n // blocks), n // blocks] for b in range(blocks)]
        shape[d] = n * size
        return {"global_shape": shape, "local_shape": list(p.shape), "segments": segments}

    def gradient(self, name, p, cut_output):
        """Of its gradient before the reductions: a part of a sum, over data-parallel ranks and, where the ranks of tp saw different tokens
        or heads (cut_output), over them."""
        place = self.parameter(name, p)
        if "local_experts" in name:
            group, size = "edp", self.edp
        elif cut_output and not getattr(p, "tensor_model_parallel", False):
            group, size = "tp_dp_cp", self.tp * self.dp * self.cp
        else:
            group, size = "dp_cp", self.dp * self.cp
        return {**place, "kind": "partial", "partial_group": group} if size > 1 else place

    # --- names --------------------------------------------------------------------------------------------------

    def global_name(self, name, layers):
        """Numbers of layers (layers: local name of a layer -> its number) and experts of the whole model, without the number of a chunk."""
        short = max((n for n in layers if name == n or name.startswith(n + ".")), key=len, default=None)
        parts = (layers[short] + name[len(short):] if short else name).split(".")
        if parts[0].isdigit():
            parts = parts[1:]
        if "local_experts" in parts and parts.index("local_experts") + 1 < len(parts):
            at = parts.index("local_experts") + 1
            parts[at] = str(int(parts[at]) + self.config.num_moe_experts // self.ep * self.ep_rank)
        return clean(".".join(parts))
