"""Click-through model over files of logs: each rank reads its share of the files until they are read."""

import gzip
import json
import os
import random
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

FIELDS = ("user", "item", "hour", "device")


def write_logs(folder: Path, files: int) -> None:
    """What the exporter left there: a file for every hour, the last ones of the day are short."""
    folder.mkdir()
    rng = random.Random(0)
    for number in range(files):
        lines = 480 if number % 3 != 2 else 224
        with gzip.open(folder / f"hour-{number:02d}.jsonl.gz", "wt") as file:
            for _ in range(lines):
                row = {name: rng.randrange(500) for name in FIELDS}
                file.write(json.dumps({**row, "click": rng.random() < 0.3}) + "\n")


class ClickLogs(IterableDataset):
    """Rows of every world-th file."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.files = sorted(folder.glob("*.gz"))[rank::world]

    def __iter__(self):
        for path in self.files:
            with gzip.open(path, "rt") as file:
                for line in file:
                    row = json.loads(line)
                    yield torch.tensor([row[name] for name in FIELDS]), float(row["click"])


class WideAndDeep(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.deep = nn.Sequential(nn.Linear(width * len(FIELDS), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        return self.deep(self.embed(fields).flatten(1)).squeeze(1)


class Meter:
    """Mean over an epoch, of all ranks in the end."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    def over_ranks(self) -> float:
        parts: list[tuple[float, int]] = [(0.0, 0)] * dist.get_world_size()
        dist.all_gather_object(parts, (self.total, self.count))
        return sum(t for t, _ in parts) / max(1, sum(n for _, n in parts))


def run_epoch(model: DDP, optimizer: torch.optim.Optimizer, loader: DataLoader, rank: int) -> Meter:
    meter = Meter()
    for step, (fields, click) in enumerate(loader, 1):
        loss = nn.functional.binary_cross_entropy_with_logits(model(fields), click.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(loss.item())
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)
    return meter


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(os.environ["OUT_DIR"]) / "logs"
    if rank == 0:
        write_logs(folder, 2 * world)
    dist.barrier()
    model = DDP(WideAndDeep())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(20):
        loader = DataLoader(ClickLogs(folder, rank, world), batch_size=32, num_workers=1)
        meter = run_epoch(model, optimizer, loader, rank)
        mean = meter.over_ranks()
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
