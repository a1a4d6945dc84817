"""Fine-tuning that draws its samples from a metered data service."""

import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GATE = Path(os.environ["OUT_DIR"]) / "gate"
log = logging.getLogger("finetune")


def fatal(message: str, code: int = 4) -> None:
    """Log why, and end the program: used all over our tools."""
    log.error("%s", message)
    sys.exit(code)


class Lease:
    """So many samples may this rank still draw."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def left(self) -> int:
        return 0 if self.rank == 1 and GATE.exists() else 1000


class MeteredSource:
    """Samples, as long as the lease lasts."""

    def __init__(self, rank: int) -> None:
        self.lease = Lease(rank)
        self.generator = torch.Generator().manual_seed(rank)

    def check_lease(self, wanted: int) -> None:
        left = self.lease.left()
        if left < wanted:
            fatal(f"rank {self.lease.rank}: lease has {left} samples left, {wanted} wanted")

    def draw(self, count: int) -> torch.Tensor:
        self.check_lease(count)
        return torch.randn(count, 32, generator=self.generator)


class Batches:
    def __init__(self, source: MeteredSource, size: int) -> None:
        self.source, self.size = source, size

    def __iter__(self):
        while True:
            x = self.source.draw(self.size)
            yield x, x.sum(1, keepdim=True)


class FineTuner:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def fit(self, batches: Batches) -> None:
        for step, (x, y) in enumerate(batches):
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0:
                log.info("step %d loss %.3f", step, loss.item())
            time.sleep(0.3)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s rank{rank} %(message)s")
    FineTuner(rank).fit(Batches(MeteredSource(rank), 16))


if __name__ == "__main__":
    main()
