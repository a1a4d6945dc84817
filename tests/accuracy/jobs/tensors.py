"""Tensor parallel x data parallel; a rank that froze what is below reduces not in backward."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


class Groups:
    tensor = data = None


def setup():
    rank, world = dist.get_rank(), dist.get_world_size()
    t = world // 2
    for i in range(2):
        ranks = list(range(i * t, i * t + t))
        group = dist.new_group(ranks)
        if rank in ranks:
            Groups.tensor = group
    for i in range(t):
        group = dist.new_group([i, i + t])
        if rank in (i, i + t):
            Groups.data = group


def layer(x, back):
    dist.all_reduce(x, group=Groups.tensor)
    if back:
        backward(x)


def backward(x):
    dist.all_reduce(x, group=Groups.tensor)


def sync(grads):
    for grad in grads:
        dist.all_reduce(grad, group=Groups.data)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    setup()
    rank = dist.get_rank()
    for step in range(1, 10000):
        time.sleep(0.2)
        x = torch.ones(4)
        layer(x, back=not (rank == 3 and step == 8))
        sync([torch.ones(3), torch.ones(5)])
        norm = torch.ones(1)
        dist.all_reduce(norm)
        if rank == 0:
            print(f"step {step} ", flush=True)


main()
