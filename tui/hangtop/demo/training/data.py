"""Scenarios in which a rank waits for its data."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from .trainer import HANG_STEP, Batch, Samples, Trainer, announce

BATCH = 8


def shard_path() -> Path:
    """Return a FIFO without a writer: it blocks its readers as a dead file server does."""
    return Path(os.environ["HANGTOP_DEMO_DIR"]) / "shard-00017.bin"


class StuckSamples(Samples):
    """Samples, one of which cannot be read."""

    def __init__(self, bad_rank: int) -> None:
        self.is_bad = dist.get_rank() == bad_rank

    def __getitem__(self, index: int) -> Batch:
        """Draw a sample; one of them is read from a file that never answers."""
        if self.is_bad and index == HANG_STEP * BATCH:
            self.read_shard(shard_path())
        return super().__getitem__(index)

    def read_shard(self, path: Path) -> bytes:
        """Read a whole shard."""
        announce()
        with path.open("rb") as shard:
            return shard.read()


class WorkerStuck(Trainer):
    """A DataLoader worker of rank 1 blocks while it opens a file."""

    workers = 2

    def dataset(self) -> Samples:
        """Return samples with a bad one on rank 1."""
        return StuckSamples(bad_rank=1)


class Inline(WorkerStuck):
    """The same read without workers: it blocks the main thread of the rank."""

    workers = 0


class SlowSamples(Samples):
    """Samples, one of which takes for ever to prepare."""

    def __init__(self, slow_rank: int) -> None:
        self.is_slow = dist.get_rank() == slow_rank

    def __getitem__(self, index: int) -> Batch:
        """Draw a sample and augment it."""
        values, target = super().__getitem__(index)
        if self.is_slow and index >= HANG_STEP * BATCH:
            announce()
            values = self.augment(values)
        return values, target

    def augment(self, values: torch.Tensor) -> torch.Tensor:
        """Distort the values one by one, far too often."""
        distorted = values.tolist()
        for round_ in range(10**12):
            for position, value in enumerate(distorted):
                distorted[position] = value + 1e-9 * (round_ % 2)
        return torch.tensor(distorted)


class DataSlow(Trainer):
    """A DataLoader worker of rank 2 never stops computing; its rank starves."""

    workers = 1

    def dataset(self) -> Samples:
        """Return samples that are slow to prepare on rank 2."""
        return SlowSamples(slow_rank=2)


SCENARIOS: dict[str, type[Trainer]] = {
    "dataloader-worker": WorkerStuck,
    "data-inline": Inline,
    "data-slow": DataSlow,
}
