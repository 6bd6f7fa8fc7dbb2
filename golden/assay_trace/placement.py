"""Where a rank's piece lies in the global tensor: DTensor placements (FSDP2, tensor parallelism) as members of a record."""
import warnings
import weakref

import torch

from .names import clean

try:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:  # a PyTorch without DTensor has none to place
    DTensor, compute_local_shape_and_global_offset = None, None

unplaced = set()


def is_strided(placement):
    return type(placement).__name__ == "_StridedShard"


def is_cut(t):
    """Whether a rank holds a piece of t, or a part of a sum, in place of t."""
    return DTensor is not None and isinstance(t, DTensor) and not all(p.is_replicate() for p in t.placements)


def local(t):
    """What this rank holds of t."""
    if DTensor is not None and isinstance(t, DTensor):
        t = t.to_local()
    return t.wait() if type(t).__name__ == "AsyncCollectiveTensor" else t


def local_of(t, name):
    """(local tensor, members for the record); members None: an ordinary tensor. None: a placement that cannot be said."""
    if type(t).__name__ == "AsyncCollectiveTensor":
        t = t.wait()
    if DTensor is None or not isinstance(t, DTensor):
        return t, None
    local = t.to_local()
    local = local.wait() if type(local).__name__ == "AsyncCollectiveTensor" else local
    return local, members_of(t.shape, t.device_mesh, t.placements, local, name)


def members_of(whole, mesh, placements, local, name):
    """Of a record of `local`, this rank's part of a DTensor of shape `whole`."""
    partial = [i for i, p in enumerate(placements) if p.is_partial()]
    if len(partial) > 1 or any(is_strided(p) for p in placements) or len(whole) > 4:
        if name not in unplaced:
            unplaced.add(name)
            warnings.warn(f"assay_trace: {name}: placements {placements} of {len(whole)} dimensions have no form in the trace; "
                          "recorded as local")
        return local_only(local)
    shape, offset = compute_local_shape_and_global_offset(whole, mesh, placements)
    segments = [[[int(o), int(n)]] if n else [] for o, n in zip(offset, shape)]
    members = {"global_shape": list(whole), "local_shape": list(local.shape), "segments": segments}
    if partial:
        names = mesh.mesh_dim_names
        members.update(kind="partial", partial_group=(names[partial[0]] if names else f"mesh{partial[0]}")[:15])
    return members


def local_only(t):
    return {"kind": "local", "global_shape": list(t.shape)}


class TensorParallel:
    """What plain tensors are where parallelize_module has cut projections: its hooks hand on local tensors (to_local), of which their
    DTensor says where they lie; what is made of them inside the module that has the projections is this rank's alone."""

    def __init__(self, tracer, model):
        self.t, self.of, modules = tracer, {}, dict(model.named_modules())
        parents = {name.rpartition(".")[0] for name, m in modules.items() if self.by_columns(m)}
        self.inside = {clean(p) + "." for p in parents
                       if p and not any(isinstance(m, torch.nn.ModuleList) for m in modules[p].modules())}
        if self.inside:
            self.remember()

    @staticmethod
    def by_columns(module):
        w = getattr(module, "weight", None)
        return (isinstance(module, torch.nn.Linear) and getattr(module, "_distribute_module_applied", False)
                and is_cut(w) and any(p.is_shard(0) for p in w.placements))

    def remember(self):
        plain = DTensor.to_local

        def to_local(t, *args, **kwargs):
            local = plain(t, *args, **kwargs)
            if not torch.compiler.is_compiling() and self.t.inside():
                self.of[id(local)] = (weakref.ref(local), t.shape, t.device_mesh, t.placements)
            return local

        DTensor.to_local = to_local
        self.t.undo.append(lambda: setattr(DTensor, "to_local", plain) if DTensor.to_local is to_local else None)

    def clear(self):
        self.of.clear()

    def place(self, name, t):
        """Members of a record of a plain tensor; None: all of it is here."""
        if not self.inside or id(t) in self.t.names:
            return None
        entry = self.of.get(id(t))
        if entry and entry[0]() is t:
            return members_of(*entry[1:], t, name)
        return local_only(t) if any(name.startswith(p) for p in self.inside) else None
