"""This rank among those of torch.distributed, and of a model whose ranks have batches of their own."""
import torch


def ranks():
    """(rank, world size) of torch.distributed, or of a run of one process."""
    d = torch.distributed
    return (d.get_rank(), d.get_world_size()) if d.is_available() and d.is_initialized() else (0, 1)


def data_parallel(model):
    """(rank, size) among ranks with batches of their own, as DDP and FSDP2 (over one dimension of ranks) arrange them; else (0, 1)."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return torch.distributed.get_rank(model.process_group), torch.distributed.get_world_size(model.process_group)
    sharded = getattr(getattr(torch.distributed, "fsdp", None), "FSDPModule", None)
    if sharded is not None and isinstance(model, sharded):
        meshes = {p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")}
        if len(meshes) == 1 and (mesh := meshes.pop()).ndim == 1:
            return mesh.get_local_rank(), mesh.size()
    return 0, 1
