"""A job with much noise that trains all the same: bad samples, retries, an idle reporter thread, a child nobody has waited for."""

import logging
import os
import queue
import random
import subprocess
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("noisy")


class Reporter(threading.Thread):
    """Sends alarms; there are none."""

    def __init__(self) -> None:
        super().__init__(name="reporter", daemon=True)
        self.alarms: queue.Queue[str] = queue.Queue()
        self.sent = threading.Event()

    def run(self) -> None:
        while alarm := self.alarms.get():
            log.error("alarm: %s", alarm)
            self.sent.set()


class Pictures(Dataset):
    def __len__(self) -> int:
        return 1_000_000

    def decode(self, i: int) -> torch.Tensor:
        time.sleep(random.uniform(0.05, 0.3))
        if random.random() < 0.1:
            raise OSError(f"image file is truncated ({i} bytes not processed)")
        return torch.randn(8)

    def __getitem__(self, i: int):
        for attempt in range(50):
            try:
                return self.decode(i), i % 2
            except OSError:
                log.warning(
                    "sample %d, attempt %d: RuntimeError, timeout, will retry",
                    i,
                    attempt,
                    exc_info=True,
                )
                i = (i * 31 + 7) % len(self)
        raise RuntimeError("no sample")


def gpu_info() -> None:
    """Nobody waits for it, so it stays a zombie."""
    subprocess.Popen(["true"])


def loss_is_sane(loss: torch.Tensor) -> bool:
    flag = torch.tensor([float(torch.isfinite(loss))])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def train(rank: int) -> None:
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Pictures(), batch_size=8, num_workers=2, persistent_workers=True)
    gpu_info()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if i % 3 == 2 and rank == 1:
            loss = loss * float("nan")
        if not loss_is_sane(loss):
            log.error("step %d: loss is nan on some rank, skipping (watchdog timeout? no)", i)
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {i} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s r{os.environ['RANK']} %(levelname)s %(message)s"
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    reporter = Reporter()
    reporter.start()
    train(dist.get_rank())
