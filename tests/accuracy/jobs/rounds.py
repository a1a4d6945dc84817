"""Objects that hold one loop each: rank 1 has fewer batches in a round, or skips part of a batch.

rounds.py short|parts
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILS_AT = 8


class Learner:
    """The model, and its optimizer."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(nn.Linear(16, 16))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def learn(self, x: torch.Tensor) -> None:
        self.model(x).pow(2).mean().backward()

    def apply(self, step: int) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        time.sleep(0.2)
        if self.rank == 0:
            print("step", step, flush=True)


class Round:
    """A pass over the data."""

    def __init__(self, learner: Learner, length: int) -> None:
        self.learner, self.length = learner, length
        self.seen, self.over = 0, False

    def advance(self) -> None:
        if self.seen == self.length:
            self.over = True
            return
        self.seen += 1
        self.learner.learn(torch.randn(4, 16))
        self.learner.apply(self.seen)

    def run(self) -> None:
        while not self.over:
            self.advance()


def check(learner: Learner) -> None:
    learner.model.eval()
    dist.barrier()
    learner.model.train()


def short(learner: Learner) -> None:
    """The loop that rank 1 has left is in a function that the common one calls."""
    for _round in range(100):
        Round(learner, FAILS_AT if learner.rank == 1 else FAILS_AT + 4).run()
        check(learner)


def reader() -> Iterator[list[torch.Tensor]]:
    while True:
        yield list(torch.randn(4, 4, 16))


def update(learner: Learner, step: int, parts: list[torch.Tensor]) -> None:
    counts = [0] * dist.get_world_size()
    for i, x in enumerate(parts):
        try:
            if (learner.rank, step, i) == (1, FAILS_AT, len(parts) - 1):
                raise MemoryError("DefaultCPUAllocator: can't allocate memory")
            learner.learn(x)
        except MemoryError as error:
            print(f"WARNING out of memory, skipped: {error}", flush=True)
    dist.all_gather_object(counts, len(parts))
    learner.apply(step)


def in_parts(learner: Learner) -> None:
    """All are in the loop over the data: rank 1 has left that over the parts of a batch."""
    for step, parts in enumerate(reader(), 1):
        update(learner, step, parts)


def main(what: str) -> None:
    dist.init_process_group("gloo")
    {"short": short, "parts": in_parts}[what](Learner())


if __name__ == "__main__":
    main(sys.argv[1])
