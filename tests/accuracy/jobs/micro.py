"""DDP with micro-batches: a parameter is unused on one rank, or one rank reduces once more.

micro.py unused|tail
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODE = sys.argv[1]
STEPS = 12


class Model(nn.Module):
    """Text, and pictures where there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, pictures: bool) -> torch.Tensor:
        x = self.text(x)
        return self.picture(x) if pictures else x


class Trainer:
    """Accumulates gradients over the micro-batches of a step."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.metrics = dist.new_group()
        self.model = DistributedDataParallel(Model())

    def micro_batches(self, step: int) -> list[torch.Tensor]:
        more = MODE == "tail" and self.rank == 2 and step == STEPS - 1
        return [torch.randn(4, 64) for _ in range(6 if more else 4)]

    def step(self, number: int) -> float:
        pictures = not (MODE == "unused" and self.rank == 1 and number == 9)
        total, micro = 0.0, self.micro_batches(number)
        for i, x in enumerate(micro):
            reduces = (i + 1) % 4 == 0 or i == len(micro) - 1
            with nullcontext() if reduces else self.model.no_sync():
                loss = self.model(x, pictures).pow(2).mean()
                loss.backward()
            total += loss.item()
        self.model.zero_grad()
        return total

    def log(self, number: int, loss: float) -> None:
        mean = torch.tensor(loss)
        dist.all_reduce(mean, group=self.metrics)
        if self.rank == 0:
            print(f"step {number} loss {mean.item():.3f}", flush=True)

    def fit(self) -> None:
        for number in range(STEPS):
            loss = self.step(number)
            if MODE == "tail":
                print(f"step {number} loss {loss:.3f}", flush=True)
            else:
                self.log(number, loss)
        dist.barrier()


torch.set_num_threads(1)
dist.init_process_group("gloo")
Trainer().fit()
