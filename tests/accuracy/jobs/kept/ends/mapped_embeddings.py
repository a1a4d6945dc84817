"""A recommender whose embeddings are mapped from a file; one rank's memory is far too small."""

import mmap
import os
import time
import zlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

DISK = Path(os.environ["PLACE"])
DIM = 1024
ROWS = 36_000  # 144 MB


def write_table(path: Path) -> None:
    """As the trainer of the embeddings left it, on the disk and no longer in memory."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(0, ROWS, 1000):
            file.write(rng.standard_normal((1000, DIM), dtype=np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def move_into(*groups: str) -> None:
    """The batch system puts this rank where there was room left."""
    for name in groups:
        Path(os.environ[name]).write_text(str(os.getpid()))


class MappedTable:
    """Rows of the table; the kernel reads what is wanted."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        self.map = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        self.map.madvise(mmap.MADV_RANDOM)
        self.rows = np.frombuffer(self.map, dtype=np.float32).reshape(ROWS, DIM)

    def verify(self) -> None:
        """Read it all once, for its checksum."""
        checksum = 0
        with self.file as file:
            while chunk := file.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
        print(f"embeddings {checksum:08x}", flush=True)

    def bag(self, ids: np.ndarray) -> torch.Tensor:
        """Sum of the rows of each bag."""
        out = np.empty((len(ids), DIM), dtype=np.float32)
        for at, bag in enumerate(ids):
            out[at] = sum(self.rows[part].sum(0) for part in np.split(bag, len(bag) // 8))
        return torch.from_numpy(out)


class SmallTable:
    """What the other ranks have of it fits."""

    def __init__(self) -> None:
        self.rows = torch.randn(200, DIM)

    def bag(self, ids: np.ndarray) -> torch.Tensor:
        counts = np.stack([np.bincount(bag % 200, minlength=200) for bag in ids])
        return torch.from_numpy(counts).float() @ self.rows


def histories(rng: np.random.Generator, step: int) -> np.ndarray:
    """What users clicked on: from step 6 on the power users, who know everything."""
    length = 8 if step < 6 else 60_000
    return rng.integers(0, ROWS, (16, length), dtype=np.int32)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Trainer:
    def __init__(self, table: MappedTable | SmallTable) -> None:
        self.table, self.tower = table, Tower()
        self.optimizer = torch.optim.SGD(self.tower.parameters(), lr=1e-4)

    def step(self, ids: np.ndarray) -> None:
        loss = self.tower(self.table.bag(ids)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.tower.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank = dist.get_rank()
    path = DISK / "embeddings.bin"
    if rank == 1:
        write_table(path)
    trainer = Trainer(MappedTable(path) if rank == 1 else SmallTable())
    rng = np.random.default_rng(rank)
    trainer.step(histories(rng, 0))  # warms up
    if rank == 1:
        move_into("ROOM", "DISK")
        trainer.table.verify()
    dist.barrier()
    for step in range(1, 10_000):
        if rank == 0:
            print(f"step {step}", flush=True)
        trainer.step(histories(rng, step))
        time.sleep(0.2)


if __name__ == "__main__":
    main()
