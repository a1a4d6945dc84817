"""Scenarios about whole ranks: one exits, is stopped, or never starts; and healthy jobs."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor

from .trainer import HANG_STEP, Batch, Trainer


class Announced(Trainer):
    """A healthy job that announces when it runs; the fault comes from outside."""

    wrong_rank = 3

    def train_step(self, batch: Batch) -> Tensor:
        """Announce this process, once, and train on."""
        self.goes_wrong(rank=self.wrong_rank)
        return super().train_step(batch)


class Exited(Trainer):
    """Rank 2 believes it is done and exits; the others wait for its result in the store."""

    def train_step(self, batch: Batch) -> Tensor:
        """Exchange results through the store after a few steps."""
        if self.goes_wrong(rank=2):
            sys.exit(0)
        if self.step == HANG_STEP + 1:
            self.collect_results()
        return super().train_step(batch)

    def sync_gradients(self) -> None:
        """Train locally: gloo would fail, not hang, when a peer leaves a collective."""

    def collect_results(self) -> None:
        """Publish the result of this rank and wait for those of all others."""
        store = dist.distributed_c10d._get_default_store()
        store.set(f"result/{self.rank}", "0.5")
        store.wait([f"result/{rank}" for rank in range(dist.get_world_size())])


class SlowStep(Announced):
    """A slow job, not a hung one: rank 1 needs six seconds for each step."""

    wrong_rank = 1

    def load_batch(self, batches: object) -> Batch:
        """Wait for slow storage on one rank."""
        if self.rank == 1 and self.step > HANG_STEP:
            time.sleep(6.0)
        return super().load_batch(batches)


class SlowCompute(Announced):
    """A straggler, not a hang: rank 2 computes for seconds in each step."""

    wrong_rank = 2

    def forward_backward(self, batch: Batch) -> Tensor:
        """Do the arithmetic of a much larger model on one rank."""
        if self.rank == 2 and self.step >= HANG_STEP:
            self.extra_layers(until=time.monotonic() + 4.0)
        return super().forward_backward(batch)

    def extra_layers(self, until: float) -> None:
        """Multiply matrices until a given time of the monotonic clock."""
        matrix = torch.eye(64)
        while time.monotonic() < until:
            matrix = torch.tanh(matrix @ matrix)


SCENARIOS: dict[str, type[Trainer]] = {
    "stopped": Announced,
    "traced": Announced,
    "orphaned": Announced,
    "progressing": Announced,
    "exited": Exited,
    "slow-step": SlowStep,
    "slow-compute": SlowCompute,
    "never-joined": Trainer,
    "misconfigured": Trainer,
}
