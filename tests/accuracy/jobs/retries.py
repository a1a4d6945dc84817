"""What a rank needs is given by a thread that tries again, or was not forked: retries.py MODE.

upload: a thread of rank 1 sends what it takes from a queue, is refused, and tries for ever.
limited: rank 1 is told to come later three times, every few steps, and gets on.
forked: the DataLoader worker of rank 1 asks a pool whose thread was started before the fork.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
CLOSED = "http://127.0.0.1:9/metrics"


class Tracker:
    """Sends metrics from a thread."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[int] = queue.Queue(8)
        threading.Thread(target=self.send, name="tracker", daemon=True).start()

    def send(self) -> None:
        while True:
            step = self.waiting.get()
            for attempt in itertools.count():
                try:
                    urllib.request.urlopen(CLOSED, data=b"%d" % step, timeout=5).close()
                    break
                except OSError as error:
                    print(f"metrics of step {step}: {error}, attempt {attempt}", flush=True)
                    time.sleep(min(2.0**attempt, 8.0))


def limited(step: int) -> None:
    for attempt in range(3 if step % 20 == 0 else 0):
        print(f"429 Too Many Requests, attempt {attempt}", flush=True)
        time.sleep(4.0)


class Pooled(Dataset[Tensor]):
    """Reads in a thread."""

    def __init__(self, started: bool) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="read")
        if started:
            self.pool.submit(int).result()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        return self.pool.submit(torch.ones, 8).result()


def batches(rank: int) -> itertools.count[int] | DataLoader[Tensor]:
    if MODE != "forked":
        return itertools.count()
    data = Pooled(rank == 1)
    return DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork")


def train(rank: int, world: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=30))
    tracker = Tracker() if rank == 1 and MODE == "upload" else None
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    print("step 0", rank, flush=True)
    for step, _ in enumerate(batches(rank)):
        if rank == 1 and MODE == "limited":
            limited(step)
        model(torch.ones(2, 8)).sum().backward()
        if tracker is not None:
            tracker.waiting.put(step)
        time.sleep(0.1)


if __name__ == "__main__":
    mp.start_processes(train, (3,), nprocs=3, start_method="spawn")
