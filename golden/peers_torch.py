"""Saves and loads of torch.distributed.checkpoint and Megatron-LM's dist_checkpointing on two gloo ranks (golden/peers.py starts it).

    python golden/peers_torch.py torch|megatron save FOLDER LAYOUT RANK WORLD PORT
    python golden/peers_torch.py torch|megatron load FOLDER LAYOUT RANK WORLD PORT

The state is two matrices and a scalar step, values of a formula; layouts: rows, columns (cut in that dimension over the ranks),
whole (every rank holds all).  A load says on its last line `bitwise`, or how many elements are wrong.
"""
import os
import sys

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


def load_torch(folder, layout, rank, world):
    state = torch_state(layout, rank, world, True)
    dcp.load(state, checkpoint_id=folder)
    return {name: state[name].to_local() for name in SHAPES}, int(state["step"])


def load_megatron(folder, layout, rank, world):
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load(megatron_state(layout, rank, world, True), folder)
    return {name: state[name] for name in SHAPES}, int(state["step"])


def main():
    if sys.argv[1] == "megatron":  # it knows GPUs alone: names of torch.cuda get their CPU meaning, no arithmetic changes
        import megatron_cpu

        megatron_cpu._cuda_names()
        megatron_cpu._OnCpu().__enter__()
    peer, act, folder, layout, rank, world, port = sys.argv[1:8]
    rank, world = int(rank), int(world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if act == "save" and peer == "torch":
        dcp.save(torch_state(layout, rank, world, False), checkpoint_id=folder)
    elif act == "save":
        from megatron.core import dist_checkpointing

        dist_checkpointing.save(megatron_state(layout, rank, world, False), folder)
    else:
        found, step = (load_torch if peer == "torch" else load_megatron)(folder, layout, rank, world)
        wrong = sum(int((found[name].view(torch.int32) != piece(value(name), layout, rank, world).view(torch.int32)).sum()) for name in SHAPES)
        print("bitwise" if wrong == 0 and step == 3 else f"{wrong} elements are wrong, step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
