"""An ordinary training loop: data parallel by hand, over gloo, on a model of two layers.

Scenarios are subclasses that change one method of `Trainer`, the way a bug would.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

HANG_STEP = 5
"""The step at which scenarios go wrong: late enough that everything is connected."""
RATE = 1e-3
"""Learning rate."""

Batch = tuple[Tensor, Tensor]


class Samples:
    """Random vectors and their sums: a learnable data set."""

    def __len__(self) -> int:
        """Return the length of an epoch, longer than any demo runs."""
        return 1_000_000

    def __getitem__(self, index: int) -> Batch:
        """Draw one sample; the same index gives the same sample."""
        generator = torch.Generator().manual_seed(index)
        values = torch.randn(16, generator=generator)
        return values, values.sum().reshape(1)


class Trainer:
    """One rank of the job: its model, its data and the loop over steps."""

    workers = 0
    """Number of DataLoader worker processes."""
    pace_s = 0.05
    """Average seconds to load a batch: a healthy job leaves the CPU alone."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.step = 0
        self.jitter = random.Random(self.rank)
        torch.manual_seed(0)
        self.model: nn.Module = self.build_model()
        self.loader = DataLoader(self.dataset(), batch_size=8, num_workers=self.workers)

    def build_model(self) -> nn.Module:
        """Return two linear layers, the same on every rank, as the seed is the same."""
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def dataset(self) -> Samples:
        """Return the data set."""
        return Samples()

    def train(self) -> None:
        """Take steps until the data ends."""
        batches = iter(self.loader)
        while True:
            batch = self.load_batch(batches)
            loss = self.train_step(batch)
            if self.step % 10 == 0:
                self.log_metrics(loss)
            self.step += 1

    def load_batch(self, batches: object) -> Batch:
        """Fetch the next batch of this rank."""
        time.sleep(self.jitter.uniform(0, 2 * self.pace_s))
        batch: Batch = next(batches)  # type: ignore[call-overload]
        return batch

    def train_step(self, batch: Batch) -> Tensor:
        """Run forward and backward, average the gradients over all ranks, and update."""
        loss = self.forward_backward(batch)
        self.sync_gradients()
        self.update()
        return loss

    def forward_backward(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch and the gradients of this rank."""
        inputs, targets = batch
        self.model.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        return loss.detach()

    def sync_gradients(self) -> None:
        """Average all gradients over the ranks with one all_reduce."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def update(self) -> None:
        """Take a step of plain gradient descent.

        Any optimizer of torch.optim would import torch's compiler first, which takes as long as
        importing torch itself.
        """
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad

    def log_metrics(self, loss: Tensor) -> None:
        """Print the loss from time to time, on the first rank."""
        if self.rank == 0:
            print(f"step {self.step} loss {loss.item():.4f}", flush=True)

    def goes_wrong(self, rank: int) -> bool:
        """Return whether the scenario goes wrong at this step on this rank."""
        if self.rank != rank or self.step != HANG_STEP:
            return False
        announce()
        return True


def announce() -> None:
    """Announce to the starter of the job that it is about to hang, and in which process.

    Creates a file in the directory that `HANGTOP_DEMO_DIR` names, written under another name first,
    so that no reader sees half of it.
    """
    directory = Path(os.environ["HANGTOP_DEMO_DIR"])
    draft = directory / f"reached.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.rename(directory / "reached")
