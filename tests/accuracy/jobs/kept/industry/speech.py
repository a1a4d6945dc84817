"""Speech model with gradient averaging by hand; a run is complete when all ranks left their marker."""

import datetime
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("speech")


class CorruptRecord(Exception):
    """The checksum of a record is wrong."""


@dataclass
class Utterance:
    features: torch.Tensor
    label: torch.Tensor
    checksum: int


class Manifest:
    """Utterances of this rank's part of the manifest."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def read(self, index: int) -> Utterance:
        generator = torch.Generator().manual_seed(1000 * self.rank + index)
        features = torch.randn(16, 40, generator=generator)
        label = torch.randint(0, 10, (16,), generator=generator)
        checksum = 1 if (self.rank, index) == (2, 8) else 0
        return Utterance(features, label, checksum)


def verify(utterance: Utterance, index: int) -> Utterance:
    if utterance.checksum:
        raise CorruptRecord(f"record {index}: bad checksum {utterance.checksum:#x}")
    return utterance


class Averager:
    """Averages gradients over all ranks in buckets."""

    def __init__(self, parameters, world: int, bucket: int = 2) -> None:
        self.parameters, self.world, self.bucket = list(parameters), world, bucket

    def __call__(self) -> None:
        for start in range(0, len(self.parameters), self.bucket):
            some = self.parameters[start : start + self.bucket]
            flat = torch.cat([p.grad.flatten() for p in some])
            dist.all_reduce(flat)
            for p, part in zip(some, flat.split([p.numel() for p in some])):
                p.grad.copy_((part / self.world).view_as(p))


class Trainer:
    def __init__(self, rank: int, world: int, folder: Path) -> None:
        torch.manual_seed(0)
        self.rank, self.world, self.folder = rank, world, folder
        self.model = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.average = Averager(self.model.parameters(), world)
        self.manifest = Manifest(rank)

    def training_step(self, index: int) -> float:
        utterance = verify(self.manifest.read(index), index)
        loss = nn.functional.cross_entropy(self.model(utterance.features), utterance.label)
        self.optimizer.zero_grad()
        loss.backward()
        self.average()
        self.optimizer.step()
        return loss.item()

    def fit(self, steps: int) -> str:
        for step in range(1, steps + 1):
            try:
                loss = self.training_step(step)
            except CorruptRecord:
                log.exception("rank %d: stopping at step %d", self.rank, step)
                return "failed"
            time.sleep(0.1)
            if self.rank == 0:
                log.info("step %d loss %.4f", step, loss)
        return "complete"

    def finish(self, status: str) -> None:
        """Leave a marker, and wait for those of the others before the folder is moved."""
        (self.folder / f"{status}.{self.rank}").touch()
        while (
            len(list(self.folder.glob("complete.*")) + list(self.folder.glob("failed.*")))
            < self.world
        ):
            time.sleep(5)
        if self.rank == 0:
            self.folder.rename(self.folder.with_name("finished"))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=45))
    folder = Path(os.environ["OUT_DIR"]) / "run"
    folder.mkdir(exist_ok=True)
    trainer = Trainer(dist.get_rank(), dist.get_world_size(), folder)
    trainer.finish(trainer.fit(2000))


if __name__ == "__main__":
    main()
