"""Mixture of experts: tokens travel to the ranks of their experts and back. Functions only."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

BAD_STEP = 5


def make_groups(rank, world):
    """Neighbours share experts; every second rank holds the same replica."""
    expert = replica = None
    for first in range(0, world, 2):
        ranks = [first, first + 1]
        group = dist.new_group(ranks)
        expert = group if rank in ranks else expert
    for first in range(2):
        ranks = list(range(first, world, 2))
        group = dist.new_group(ranks)
        replica = group if rank in ranks else replica
    return expert, replica


def dispatch(tokens, group):
    """Send half of the tokens to the other rank of the group; asynchronous, as overlap wants it."""
    received = torch.empty_like(tokens)
    work = dist.all_to_all_single(received, tokens, group=group, async_op=True)
    return received, work


def average_router(router, group):
    work = dist.all_reduce(router, group=group, async_op=True)
    work.wait()
    router /= dist.get_world_size(group)


def load_of_experts(kind, rank, wrong):
    """One number per slot; how many slots there are is the capacity."""
    slots = 3 << 19
    if kind == "capacity" and rank == 2 and wrong:
        slots = 64
    load = torch.ones(slots)
    if kind == "autocast" and rank == 1 and wrong:
        load = load.to(torch.bfloat16)
    return load


def begins(kind, rank):
    """Whether all of them go on to what goes wrong: rank 0 tells when there is a file."""
    there = torch.tensor(float(os.path.exists(os.path.join(os.environ["OUT_DIR"], "gate"))))
    dist.broadcast(there, 0)
    return bool(there)


def grow_experts(kind, rank, world):
    """From now on there are twice as many experts."""
    from torch.distributed.device_mesh import init_device_mesh

    if kind == "mesh" and rank == 3:
        wait_for_experts()
    return init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))


def wait_for_experts():
    """The weights of the new experts come from somebody else, through the store."""
    dist.distributed_c10d._get_default_store().wait(["experts of 3"])


def save(kind, rank, world, weights):
    """Rank 0 puts the state of all together, and tells when it is on disk."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        print("consolidating", flush=True)
        states = [None] * world
        dist.all_gather_object(states, {"experts": weights})
        store.set("saved", "1")
    store.wait(["saved"])


def main():
    kind = sys.argv[1]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    expert_group, replica_group = make_groups(rank, world)
    weights, router = torch.randn(32, 32), torch.zeros(8)
    for step in range(10**9):
        tokens = torch.randn(4, 32)
        if kind == "crossed" and step == BAD_STEP and rank in (1, 2):
            average_router(router, replica_group)
            received, work = dispatch(tokens, expert_group)
            work.wait()
        else:
            received, work = dispatch(tokens, expert_group)
            work.wait()
            average_router(router, replica_group)
        back, work = dispatch(received @ weights, expert_group)
        work.wait()
        if kind in ("capacity", "autocast"):
            dist.all_reduce(load_of_experts(kind, rank, begins(kind, rank)))
        if kind == "mesh" and step == BAD_STEP:
            grow_experts(kind, rank, world)
        if kind == "save" and step == BAD_STEP:
            save(kind, rank, world, weights)
        if rank == 0:
            print(f"step {step}: {back.norm().item():.2f} ({os.getpid()})", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
