"""Saves and loads of torch.distributed.checkpoint, of Megatron-LM's dist_checkpointing and of NeMo Automodel's storage (a folder of
safetensors under torch.distributed.checkpoint) on gloo ranks; golden/peers.py starts it.

    python golden/peers_torch.py torch|megatron|automodel all|load FOLDER LAYOUT RANK WORLD PORT

The state is three matrices and a scalar step, values of a formula; layouts: rows, columns (cut in that dimension over the ranks), whole
(every rank holds all).  `all` saves, loads, and loads again behind each damage.  Each line of rank 0: a cell and what the ranks said.
"""
import datetime
import json
import os
import pathlib
import shutil
import sys

import peers
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

SHAPES = {"embedding.weight": (360, 32), "layers.0.weight": (480, 32), "layers.0.weight.exp_avg": (480, 32)}


def value(name):
    n = SHAPES[name][0] * SHAPES[name][1]
    return (torch.arange(n, dtype=torch.float32) * 0.25 + len(name)).reshape(SHAPES[name])


def piece(tensor, layout, rank, world):
    if layout == "whole":
        return tensor
    return tensor.chunk(world, dim=0 if layout == "rows" else 1)[rank].contiguous()


def torch_state(layout, rank, world, empty):
    mesh = init_device_mesh("cpu", (world,))
    placement = [Replicate()] if layout == "whole" else [Shard(0 if layout == "rows" else 1)]
    state = {}
    for name, shape in SHAPES.items():
        local = piece(torch.full(shape, -7.0) if empty else value(name), layout, rank, world)
        state[name] = DTensor.from_local(local, mesh, placement, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1))
    state["step"] = torch.tensor(-1 if empty else 3)
    return state


def megatron_state(layout, rank, world, empty):
    from megatron.core.dist_checkpointing import ShardedTensor

    state = {}
    for name, shape in SHAPES.items():
        local = piece(torch.full(shape, -7.0) if empty else value(name), layout, rank, world)
        if layout == "whole":
            state[name] = ShardedTensor.from_rank_offsets(name, local, replica_id=rank)
        else:
            state[name] = ShardedTensor.from_rank_offsets(name, local, (0 if layout == "rows" else 1, rank, world))
    state["step"] = -1 if empty else 3
    return state


def storage(peer, folder, write):
    if peer != "automodel":
        return {"checkpoint_id": folder}
    from nemo_automodel.components.checkpoint._backports import hf_storage

    if write:
        return {"storage_writer": hf_storage._HuggingFaceStorageWriter(path=str(folder), save_sharded=True)}
    return {"storage_reader": hf_storage._HuggingFaceStorageReader(path=str(folder))}


def save(peer, folder, layout, rank, world):
    if peer == "megatron":
        from megatron.core import dist_checkpointing

        pathlib.Path(folder).mkdir(exist_ok=True)
        return dist_checkpointing.save(megatron_state(layout, rank, world, False), str(folder))
    state = torch_state(layout, rank, world, False)
    if peer == "automodel":
        state["step"] = state["step"].reshape(1)
    return dcp.save(state, **storage(peer, folder, True))


def load(peer, folder, layout, rank, world):
    """What this rank says."""
    try:
        if peer == "megatron":
            from megatron.core import dist_checkpointing

            found = dist_checkpointing.load(megatron_state(layout, rank, world, True), str(folder))
            local, step = {name: found[name] for name in SHAPES}, found["step"]
        else:
            found = torch_state(layout, rank, world, True)
            if peer == "automodel":
                found["step"] = found["step"].reshape(1)
            dcp.load(found, **storage(peer, folder, False))
            local, step = {name: found[name].to_local() for name in SHAPES}, int(found["step"])
    except BaseException as error:  # of any kind: what it says is the cell
        words = str(error).strip().splitlines() or [""]
        inner = [w for w in words if "Error" in w]
        return "refused: " + (inner[-1] if inner else type(error).__name__ + ": " + words[0]).strip()[:170]
    wrong = sum(int((local[n].view(torch.int32) != piece(value(n), layout, rank, world).view(torch.int32)).sum()) for n in SHAPES)
    return "bitwise" if wrong == 0 and step == 3 else f"{wrong} elements are wrong, step {step}"


def cell(name, rank, world, *what):
    said = [None] * world
    dist.all_gather_object(said, load(*what, rank, world))
    if rank == 0:
        print(json.dumps({name: "; ".join(sorted(set(said)))}), flush=True)


def run_all(peer, folder, rank, world):
    folder = pathlib.Path(folder)
    save(peer, folder, "rows", rank, world)
    dist.barrier()
    cell("load: same", rank, world, peer, folder, "rows")
    cell("load: other cut", rank, world, peer, folder, "columns")
    for word, act in peers.DAMAGES.items():
        damaged = folder.with_name(folder.name + ".damaged")
        if rank == 0:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(folder, damaged)
            files = sorted(p for p in damaged.iterdir() if p.suffix in (".distcp", ".safetensors"))
            act(files[-1])
        dist.barrier()
        cell(word, rank, world, peer, damaged, "rows")


def main():
    peer, act, folder, layout, rank, world, port = sys.argv[1:8]
    if peer == "megatron":  # it knows GPUs alone: names of torch.cuda get their CPU meaning, no arithmetic changes
        import megatron_cpu

        megatron_cpu._cuda_names()
        megatron_cpu._OnCpu().__enter__()
    rank, world = int(rank), int(world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120))
    if act == "all":
        run_all(peer, folder, rank, world)
    else:
        cell("load: other ranks" if world > 1 else "load: 1 rank", rank, world, peer, folder, layout)
    os._exit(0)  # some leave threads or children behind


if __name__ == "__main__":
    main()
