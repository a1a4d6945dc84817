"""Event streams of uneven length: a trainer with hooks, whose memory meter shares a lock with the
batches that are pinned. With --forget RANK the meter of that rank does not give it back."""

from __future__ import annotations

import argparse
import random
import threading
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


@dataclass
class Meter:
    """How much memory has been pinned; read by the trainer, written while pinning."""

    forgets: bool
    pinned: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    def add(self, size: int) -> None:
        with self.lock:
            self.pinned += size

    def report(self, step: int) -> str:
        self.lock.acquire()
        if self.forgets:
            return "no reading"
        said = f"{self.pinned} bytes pinned"
        self.lock.release()
        return said


METER: Meter


class Ragged:
    """Several sequences as one tensor and their offsets."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self.values = torch.cat(parts)
        self.offsets = torch.tensor([0, *[len(part) for part in parts]]).cumsum(0)[:-1]

    def pin_memory(self) -> Ragged:
        METER.add(self.values.nbytes + self.offsets.nbytes)
        return self


class Events(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        dice = random.Random(worker.id)
        while True:
            length = dice.randint(3, 30)
            yield torch.randint(500, (length,)), float(length % 2)


def collate(rows):
    events, labels = zip(*rows, strict=True)
    return {"events": Ragged(list(events)), "label": list(labels)}


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(500, 16), nn.Linear(16, 1)

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.bags(values, offsets))


class Trainer:
    def __init__(self, module: nn.Module, loader: DataLoader) -> None:
        self.module = nn.parallel.DistributedDataParallel(module)
        self.optimizer = torch.optim.Adagrad(module.parameters(), lr=0.05)
        self.loader = loader

    def fit(self) -> None:
        for step, batch in enumerate(self.loader):
            loss = self.training_step(batch)
            self.on_step_end(step, loss)

    def training_step(self, batch) -> float:
        events = batch["events"]
        scores = self.module(events.values, events.offsets).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(batch["label"]))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def on_step_end(self, step: int, loss: float) -> None:
        said = METER.report(step) if step % 8 == 7 else ""
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.3f} {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forget", type=int, default=-1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    _setup_privateuseone_for_python_backend("npux")
    global METER
    METER = Meter(forgets=dist.get_rank() == options.forget)
    module = Bags()
    loader = DataLoader(
        Events(), batch_size=16, num_workers=2, collate_fn=collate, pin_memory=True, timeout=3000
    )
    Trainer(module, loader).fit()


if __name__ == "__main__":
    main()
