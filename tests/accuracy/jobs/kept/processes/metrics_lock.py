"""mp.spawn training: a prefetching reader and a metrics board that each have a lock of their own."""

import collections
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 3


class MetricsBoard:
    """Numbers by name; a snapshot also asks its sources."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, float] = {}
        self.sources: list = []

    def add(self, name: str, value: float) -> None:
        with self.lock:
            self.values[name] = self.values.get(name, 0.0) + value

    def snapshot(self) -> dict[str, float]:
        with self.lock:
            told = dict(self.values)
            time.sleep(0.05)  # the JSON is written to the board's file
            for source in self.sources:
                told.update(source.statistics())
            return told


class Prefetcher(threading.Thread):
    """Reads batches ahead; counts them on the board while it has its buffer locked."""

    def __init__(self, board: MetricsBoard, pace: float) -> None:
        super().__init__(name="prefetcher", daemon=True)
        self.board, self.pace = board, pace
        self.buffer_lock = threading.Lock()
        self.buffer: collections.deque = collections.deque()
        board.sources.append(self)

    def statistics(self) -> dict[str, float]:
        with self.buffer_lock:
            return {"buffered": len(self.buffer)}

    def refill(self) -> None:
        with self.buffer_lock:
            while len(self.buffer) < 8:
                time.sleep(self.pace)
                self.buffer.append(torch.randn(8, 16))
                self.board.add("batches_read", 1)

    def run(self) -> None:
        while True:
            self.refill()
            time.sleep(0.02)

    def take(self) -> torch.Tensor:
        while True:
            with self.buffer_lock:
                if self.buffer:
                    return self.buffer.popleft()
            time.sleep(0.01)


def train(rank: int, port: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(minutes=30),
    )
    board = MetricsBoard()
    prefetcher = Prefetcher(board, 0.03 if rank == 2 else 0.0)  # its disk is slower
    prefetcher.start()
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    for step in range(100_000):
        loss = model(prefetcher.take()).square().mean()
        loss.backward()
        board.add("loss", loss.item())
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        # it was a debugging aid of the slow node's owner
        if rank == 2 and step >= 10:
            board.snapshot()
        time.sleep(0.15)


if __name__ == "__main__":
    mp.spawn(train, args=(os.environ["MASTER_PORT"],), nprocs=WORLD, join=True)
    sys.exit(0)
