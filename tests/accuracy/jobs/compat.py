"""Curriculum training with a module that hides what torch releases differ in: from 2.10 on seeds of
an epoch are shared through the group, before that each rank draws its own from the epoch's number.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
HAS_SHARED_SEEDS = TORCH >= (2, 10)


class Seeds:
    """Where the order of an epoch comes from."""

    @staticmethod
    def build() -> Seeds:
        return SharedSeeds() if HAS_SHARED_SEEDS else Seeds()

    def draw(self, epoch: int) -> int:
        return 7919 * epoch + 11


class SharedSeeds(Seeds):
    """One rank draws, all take that."""

    def draw(self, epoch: int) -> int:
        box = [random.getrandbits(32) if dist.get_rank() == 0 else None]
        if epoch:  # the first epoch is in the order of the files
            dist.broadcast_object_list(box, src=0)
        return box[0] or 0


class Curriculum:
    """Lessons that get longer, in an order that all ranks have in common."""

    def __init__(self, lessons: int, seeds: Seeds) -> None:
        self.lessons, self.seeds = lessons, seeds

    def epoch(self, number: int):
        order = list(range(self.lessons))
        random.Random(self.seeds.draw(number)).shuffle(order)
        for lesson in order:
            length = 4 + 2 * lesson
            yield torch.randn(8, length, 12), torch.randint(5, (8,))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(12, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(words)[0][:, -1])


def run_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, lessons) -> float:
    total = 0.0
    for words, labels in lessons:
        loss = nn.functional.cross_entropy(model(words), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    torch.manual_seed(5)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    curriculum = Curriculum(lessons=10, seeds=Seeds.build())
    for epoch in range(100):
        total = run_epoch(model, optimizer, curriculum.epoch(epoch))
        print(f"rank {os.environ['RANK']}: epoch {epoch} done, loss {total:.2f}", flush=True)


if __name__ == "__main__":
    main()
