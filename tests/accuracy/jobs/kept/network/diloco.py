"""Local steps on every site, an outer step over all of them now and then (DiLoCo).

diloco.py INNER PARAMETERS: local steps between outer ones, and how large the model is.
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PAUSE_S = 0.25


class Site:
    """One replica, and what the outer optimizer knows of it."""

    def __init__(self, parameters):
        torch.manual_seed(5)
        side = max(8, int(parameters**0.5))
        self.weight = torch.nn.Parameter(torch.randn(side, side) / side**0.5)
        self.anchor = self.weight.detach().clone()
        self.momentum = torch.zeros_like(self.anchor)
        self.inner = torch.optim.SGD([self.weight], lr=1e-3)

    def local_step(self, batch):
        hidden = torch.tanh(batch @ self.weight[:, : batch.shape[1]].T[: batch.shape[1]])
        loss = (hidden.sum(dim=1) - batch.sum(dim=1)).square().mean()
        self.inner.zero_grad()
        loss.backward()
        self.inner.step()
        return loss.item()

    def outer_gradient(self):
        return self.anchor - self.weight.detach()

    def apply(self, delta):
        self.momentum.mul_(0.9).add_(delta)
        self.anchor.sub_(0.7 * (delta + 0.9 * self.momentum))
        with torch.no_grad():
            self.weight.copy_(self.anchor)


class OuterLoop:
    """Counts local steps, and brings the sites together."""

    def __init__(self, site, every):
        self.site, self.every, self.rounds = site, every, 0

    def average(self, delta):
        dist.all_reduce(delta)
        return delta.div_(dist.get_world_size())

    def maybe_sync(self, step):
        if (step + 1) % self.every:
            return
        delta = self.average(self.site.outer_gradient())
        self.site.apply(delta)
        self.rounds += 1
        print(f"rank {dist.get_rank()} outer round {self.rounds} done", flush=True)


def main():
    every, parameters = int(sys.argv[1]), int(float(sys.argv[2]))
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank = dist.get_rank()
    source = torch.Generator().manual_seed(rank)
    site = Site(parameters)
    loop = OuterLoop(site, every)
    for step in range(1_000_000):
        loss = site.local_step(torch.randn(8, 8, generator=source))
        if rank == 0 and step % 4 == 0:
            print(f"local {step} loss {loss:.3f}", flush=True)
        loop.maybe_sync(step)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
