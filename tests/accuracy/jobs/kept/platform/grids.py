"""Ranks in a grid: rows split a layer's width between them, columns have other data.

grids.py order   # half of the ranks, as on a chessboard, begin with their column to spread the load
grids.py ring    # attention passes keys around a ring, everybody sends before receiving
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Grid:
    row: dist.ProcessGroup
    column: dist.ProcessGroup

    @staticmethod
    def build() -> Grid:
        rank, found = dist.get_rank(), {}
        for name, members in (
            ("row", [0, 1]),
            ("row", [2, 3]),
            ("column", [0, 2]),
            ("column", [1, 3]),
        ):
            group = dist.new_group(members, group_desc=name, timeout=timedelta(minutes=40))
            if rank in members:
                found[name] = group
        return Grid(**found)


class Schedule:
    """What is reduced after a step, in turn: norms along rows, gradients along columns."""

    def __init__(self, grid: Grid, eager_from: int | None) -> None:
        self.grid, self.eager_from = grid, eager_from

    def finish(self, step: int, weights: Tensor) -> float:
        norm = weights.grad.square().sum()
        if self.eager_from is not None and step >= self.eager_from:
            self.average(weights)
            self.total(norm)
        else:
            self.total(norm)
            self.average(weights)
        return norm.sqrt().item()

    def total(self, norm: Tensor) -> None:
        dist.all_reduce(norm, group=self.grid.row)

    def average(self, weights: Tensor) -> None:
        dist.all_reduce(weights.grad, group=self.grid.column)
        weights.grad /= 2


def order() -> None:
    white = sum(divmod(dist.get_rank(), 2)) % 2 == 0
    schedule = Schedule(Grid.build(), eager_from=60 if white else None)
    half = nn.Linear(32, 16, bias=False)
    optimizer = torch.optim.Adagrad(half.parameters())
    for step in range(10**6):
        inputs = torch.randn(8, 32)
        optimizer.zero_grad()
        (half(inputs) - inputs[:, ::2]).square().mean().backward()
        norm = schedule.finish(step, half.weight)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1} norm {norm:.3f}", flush=True)


class RingAttention(nn.Module):
    """Attention to the keys of all ranks, of which one block is here at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys = self.query(tokens), self.key(tokens).detach()
        seen = torch.zeros_like(queries)
        for turn in range(dist.get_world_size()):
            seen = seen + (queries @ keys.T).softmax(-1) @ keys
            if turn + 1 < dist.get_world_size():
                keys = self.rotate(keys)
        return seen

    def rotate(self, keys: Tensor) -> Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        incoming = torch.empty_like(keys)
        dist.send(keys.contiguous(), (rank + 1) % world)
        dist.recv(incoming, (rank - 1) % world)
        return incoming


def ring() -> None:
    attention = RingAttention(64)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
    dist.barrier()
    print("first step", flush=True)
    for _ in range(100):
        optimizer.zero_grad()
        attention(torch.randn(128, 64)).square().mean().backward()
        for weights in attention.parameters():
            if weights.grad is not None:
                dist.all_reduce(weights.grad)
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    {"ring": ring, "order": order}[sys.argv[1]]()
