"""Halo exchange by isend and irecv, handles in a deque; gradients by handles, too."""

import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist


class Halo:
    def __init__(self, rank, world):
        self.left, self.right = (rank - 1) % world, (rank + 1) % world
        self.flying = deque()

    def start(self, edge):
        got = torch.empty_like(edge)
        self.flying.append(dist.irecv(got, self.left))
        self.flying.append(dist.isend(edge, self.right))
        return got

    def drain(self):
        while self.flying:
            self.flying.popleft().wait()


class Reducer:
    def __init__(self):
        self.handles = []

    def add(self, grad):
        self.handles.append(dist.all_reduce(grad, async_op=True))

    def finish(self):
        for handle in self.handles:
            handle.wait()
        self.handles.clear()


def relax(halo, field, rounds, tolerance):
    for k in range(rounds):
        got = halo.start(field[:4].contiguous())
        halo.drain()
        field = 0.5 * (field + got.mean())
        if field.std() < tolerance:
            return field
    return field


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    halo, reducer = Halo(rank, world), Reducer()
    for step in range(1, 10000):
        time.sleep(0.2)
        field = torch.randn(16)
        tolerance = 1e9 if rank == 2 and step == 8 else 0.0  # of one rank it is enough
        field = relax(halo, field, 4, tolerance)
        reducer.add(field)
        reducer.finish()
        print(f"step {step} ", flush=True)


main()
