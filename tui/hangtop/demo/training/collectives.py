"""Scenarios in which the ranks disagree about a collective."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .trainer import HANG_STEP, Batch, Trainer, announce


class Skip(Trainer):
    """Each rank judges its own loss; the rank that finds it spiking leaves the step early."""

    def train_step(self, batch: Batch) -> Tensor:
        """Skip the gradient exchange on the rank whose loss looks bad."""
        loss = self.forward_backward(batch)
        if self.loss_is_spiking():
            self.cool_down()
            return loss
        self.sync_gradients()
        self.update()
        return loss

    def loss_is_spiking(self) -> bool:
        """Return True on one rank only: the condition differs between ranks."""
        return self.goes_wrong(rank=2)

    def cool_down(self) -> None:
        """Wait for the loss to settle, while the other ranks wait for this one."""
        time.sleep(3600)


class SkipSilent(Trainer):
    """One rank drops one gradient exchange; the sequences are shifted until the epoch ends."""

    def train_step(self, batch: Batch) -> Tensor:
        """Leave out one all_reduce on rank 2; the next one matches in its place."""
        loss = self.forward_backward(batch)
        if self.rank == 2 and self.step == HANG_STEP:
            return loss
        if self.step == HANG_STEP + 5:
            self.end_epoch()
        self.sync_gradients()
        self.update()
        return loss

    def end_epoch(self) -> None:
        """Join all ranks; rank 2 arrives one all_reduce early."""
        if self.rank == 2:
            announce()
        dist.barrier()


class Mismatched(Trainer):
    """One rank broadcasts the model while the others average gradients."""

    def sync_gradients(self) -> None:
        """Broadcast on rank 1, whose model is stale, where the others all_reduce."""
        if self.is_stale:
            self.restore_model()
        super().sync_gradients()

    @property
    def is_stale(self) -> bool:
        """Return whether this rank's model is stale; each rank decides alone, which is the bug."""
        return self.goes_wrong(rank=1)

    def restore_model(self) -> None:
        """Take the parameters from rank 0 again."""
        dist.broadcast(torch.cat([p.detach().flatten() for p in self.model.parameters()]), src=0)


class Recorder(Skip):
    """`Skip` in a job whose flight recorder can be read through a unix socket."""

    def __init__(self) -> None:
        from torch._C._distributed_c10d import _WorkerServer

        super().__init__()
        path = Path(os.environ["HANGTOP_DEMO_DIR"]) / f"rank{self.rank}.sock"
        self.server = _WorkerServer(str(path), -1)


class Ddp(Trainer):
    """Training with DistributedDataParallel."""

    def build_model(self) -> nn.Module:
        """Wrap the model, so that the exchange happens inside backward."""
        return nn.parallel.DistributedDataParallel(super().build_model())

    def sync_gradients(self) -> None:
        """Do nothing: backward has averaged the gradients."""


class DdpSkip(Ddp):
    """One rank never starts its backward pass."""

    def forward_backward(self, batch: Batch) -> Tensor:
        """Stay behind on rank 3, between forward and backward."""
        inputs, targets = batch
        self.model.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        if self.goes_wrong(rank=3):
            self.inspect_outlier()
        loss.backward()
        return loss.detach()

    def inspect_outlier(self) -> None:
        """Inspect an unusual batch for a very long time."""
        time.sleep(3600)


class DdpUneven(Ddp):
    """The shard of one rank is shorter than those of the others."""

    def train(self) -> None:
        """Train on this rank's shard, then evaluate."""
        batches = iter(self.loader)
        while self.step < self.shard_batches():
            self.train_step(self.load_batch(batches))
            self.step += 1
        if self.rank == 1:
            announce()
        self.evaluate()

    def shard_batches(self) -> int:
        """Return the number of batches: three fewer on the rank with the last, shorter shard."""
        return HANG_STEP if self.rank == 1 else HANG_STEP + 3

    def evaluate(self) -> None:
        """Wait for all ranks, to evaluate on held-out data."""
        dist.barrier()


SCENARIOS: dict[str, type[Trainer]] = {
    "skip": Skip,
    "skip-silent": SkipSilent,
    "mismatched": Mismatched,
    "recorder": Recorder,
    "ddp-skip": DdpSkip,
    "ddp-uneven": DdpUneven,
}
