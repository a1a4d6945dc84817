"""Two halves of a network, each on its own node, and each held twice: pipeline and data parallel.

halves.py [groups]: with `groups`, validation has groups of its own, made when it is first run.
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICRO = 256, 4
LONG = timedelta(minutes=40)


class Half(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.last = last

    def forward(self, x):
        return x + self.body(x)


class Pipeline:
    """One rank of it: the first half sends what it made and gets the gradient for it."""

    def __init__(self, rank, world):
        per = world // 2
        self.stage, self.replica = divmod(rank, per)
        self.peer = self.replica + per * (1 - self.stage)
        self.twins = [
            dist.new_group(list(range(s * per, (s + 1) * per)), timeout=LONG) for s in range(2)
        ][self.stage]
        self.half = Half(last=self.stage == 1)
        self.optimizer = torch.optim.SGD(self.half.parameters(), lr=1e-3, momentum=0.9)

    def exchange(self, kind, tensor):
        for work in dist.batch_isend_irecv([dist.P2POp(kind, tensor, self.peer)]):
            work.wait()
        return tensor

    def first(self):
        out = self.half(torch.randn(32, WIDTH))
        self.exchange(dist.isend, out.detach().contiguous())
        out.backward(self.exchange(dist.irecv, torch.empty(32, WIDTH)))

    def second(self):
        into = self.exchange(dist.irecv, torch.empty(32, WIDTH)).requires_grad_()
        loss = self.half(into).square().mean()
        loss.backward()
        self.exchange(dist.isend, into.grad.contiguous())
        return loss.item()

    def step(self):
        losses = [self.second() if self.half.last else self.first() for _ in range(MICRO)]
        for weight in self.half.parameters():
            dist.all_reduce(weight.grad, group=self.twins)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses


class Validation:
    """Pairs of ranks compare what they have; their groups are made when first needed."""

    def __init__(self):
        self.groups = None

    def pairs(self, world):
        half = world // 2
        return [[k, k + half] for k in range(half)]

    def run(self, pipeline, world):
        if self.groups is None:
            print("validation: making its groups", flush=True)
            self.groups = [dist.new_group(pair, timeout=LONG) for pair in self.pairs(world)]
        norm = torch.stack([w.detach().norm() for w in pipeline.half.parameters()]).sum()
        dist.all_reduce(norm, group=self.groups[pipeline.replica])
        return norm.item()


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    dist.init_process_group("gloo", timeout=LONG)
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    pipeline, validation = Pipeline(rank, world), Validation()
    for iteration in range(10**9):
        losses = pipeline.step()
        if rank == world - 1 and iteration % 5 == 0:
            print(f"iteration {iteration} loss {losses[-1]:.4f}", flush=True)
        if mode == "groups" and iteration == 25:
            print(f"norm {validation.run(pipeline, world):.3f}", flush=True)
        time.sleep(0.1)


main()
