"""Trains from parts of an object store that DataLoader workers fetch over HTTP. stream_loader.py MODE PORT: stall, slow."""

import os
import sys
import time
import urllib.request
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MODE, PORT = sys.argv[1], int(sys.argv[2])
BATCHES_PER_PART = 4 if MODE == "stall" else 1


class Store:
    """Client of the object store."""

    def __init__(self, root: str) -> None:
        self.root = root

    def fetch(self, name: str) -> bytes:
        with urllib.request.urlopen(f"{self.root}/{name}") as answer:
            return answer.read()


class PartStream(IterableDataset):
    def __init__(self, store: Store, rank: int) -> None:
        self.store, self.rank = store, rank

    def parse(self, blob: bytes):
        raw = torch.frombuffer(bytearray(blob[: 8 * 9 * BATCHES_PER_PART]), dtype=torch.uint8)
        return raw.float().div(255).view(BATCHES_PER_PART * 8, 9)

    def __iter__(self):
        worker = get_worker_info()
        for part in range(100_000):
            blob = self.store.fetch(f"bucket/part-{self.rank}-{worker.id}-{part}")
            for row in self.parse(blob):
                yield row[:8], row[8:].round().long().squeeze()


def make_loader(rank: int) -> DataLoader:
    store = Store(f"http://127.0.0.1:{PORT}")
    return DataLoader(PartStream(store, rank), batch_size=8, num_workers=2, prefetch_factor=2)


class Loop:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def optimize(self, x, y) -> float:
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, loader) -> None:
        for i, (x, y) in enumerate(loader):
            loss = self.optimize(x, y)
            if self.rank == 0:
                print(f"step {i} loss {loss:.4f}", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank == 0:
        services.object_store(PORT, MODE)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    dist.barrier()
    Loop(rank).run(make_loader(rank))
