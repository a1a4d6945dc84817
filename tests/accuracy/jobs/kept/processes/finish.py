"""End of a run: the tracker of experiments sends what is left when Python exits."""

import atexit
import json
import os
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Tracker:
    """Sends rows from a thread; `finish` waits until all are sent, as those of the services do."""

    def __init__(self, rank: int, folder: str) -> None:
        self.rows: queue.Queue = queue.Queue()
        self.file = open(f"{folder}/metrics-{rank}.jsonl", "w")
        self.sender = threading.Thread(target=self._send, name="tracker-sender", daemon=True)
        self.sender.start()
        atexit.register(self.finish)

    def log(self, **row: object) -> None:
        self.rows.put(row)

    def _send(self) -> None:
        while True:
            row = self.rows.get()
            self.file.write(json.dumps(row) + "\n")  # a row that is no JSON ends this thread
            self.rows.task_done()

    def finish(self) -> None:
        print("tracker: syncing rows ...", flush=True)
        self.rows.join()
        self.file.close()


class EarlyStop:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, loss: float) -> bool:
        self.bad = 0 if loss < self.best - 1.0 else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad > self.patience


class Run:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.tracker = Tracker(rank, os.environ["OUT_DIR"])
        self.model = nn.parallel.DistributedDataParallel(nn.Linear(20, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.stop = EarlyStop(12)

    def step(self, number: int) -> float:
        torch.manual_seed(number)  # the same everywhere: early stopping has to agree
        loss = self.model(torch.randn(16, 20)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        value = loss.detach()
        dist.all_reduce(value)
        # only one rank writes the weights' norm, and forgot .item()
        extra = {"norm": self.model.module.weight.norm()} if self.rank == 1 and number == 6 else {}
        self.tracker.log(step=number, loss=value.item(), **extra)
        return value.item()

    def fit(self) -> None:
        for number in range(1000):
            loss = self.step(number)
            if self.rank == 0:
                print(f"step {number} loss {loss:.3f}", flush=True)
            if self.stop(loss):
                break
            time.sleep(0.1)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    run = Run(dist.get_rank())
    run.fit()
    dist.barrier()
    print(f"rank {dist.get_rank()}: training done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
