"""Tensor and data parallel groups laid over one world, as in large-model frameworks."""

import sys
import time

import torch
import torch.distributed as dist

mode = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
me, size = dist.get_rank(), dist.get_world_size()


def initialize_model_parallel():
    row, column = None, None
    for start in range(0, size, 2):
        group = dist.new_group([start, start + 1])
        if me in (start, start + 1):
            row = group
    for start in range(2):
        members = list(range(start, size, 2))
        group = dist.new_group(members)
        if me in members:
            column = group
    return row, column


def reduce_loss(value, group):
    dist.all_reduce(value, group=group)
    return value


def exchange_embedding():
    """Sum the gradients of the embedding over everybody."""
    grad = torch.ones(1024 * 16)
    dist.all_reduce(grad)


def gather_parameters():
    """Every rank holds a slice of the parameters; put them together."""
    if mode == "wrong-verb" and me == 3 and step == 5:
        flat = torch.ones(32 * size)
        dist.reduce(flat, dst=0)
        return
    mine = torch.ones(32)
    parts = [torch.empty(32) for _ in range(size)]
    dist.all_gather(parts, mine)


tensor_group, data_group = initialize_model_parallel()
for step in range(10**9):
    first, second = tensor_group, data_group
    if mode == "crossed" and step == 5 and me in (0, 3):
        first, second = second, first
    reduce_loss(torch.ones(4), first)
    reduce_loss(torch.ones(4), second)
    exchange_embedding()
    gather_parameters()
    if mode == "late-group" and step == 5:
        if me < 2:
            experts = dist.new_group([0, 1, 2])
        else:
            dist.barrier()
    if me == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.05)
