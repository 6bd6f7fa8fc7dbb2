"""Where a rank's piece lies in the global tensor: DTensor placements (FSDP2, tensor parallelism) as members of a record."""
import warnings

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
    mesh, placements = t.device_mesh, t.placements
    local = t.to_local()
    local = local.wait() if type(local).__name__ == "AsyncCollectiveTensor" else local
    partial = [i for i, p in enumerate(placements) if p.is_partial()]
    if len(partial) > 1 or any(is_strided(p) for p in placements) or t.dim() > 4:
        if name not in unplaced:
            unplaced.add(name)
            warnings.warn(f"assay_trace: {name}: placements {placements} of {t.dim()} dimensions have no form in the trace; "
                          "recorded as local")
        return local, {"kind": "local", "global_shape": list(local.shape)}
    shape, offset = compute_local_shape_and_global_offset(t.shape, mesh, placements)
    segments = [[[int(o), int(n)]] if n else [] for o, n in zip(offset, shape)]
    members = {"global_shape": list(t.shape), "local_shape": list(local.shape), "segments": segments}
    if partial:
        names = mesh.mesh_dim_names
        members.update(kind="partial", partial_group=(names[partial[0]] if names else f"mesh{partial[0]}")[:15])
    return local, members
