"""Snapshots written by a thread behind the training, on a scratch disk with little room.

keep N: how many are kept; 0 keeps all.
"""

import argparse
import logging
import os
import queue
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SCRATCH = Path(os.environ["PLACE"])
log = logging.getLogger("snapshots")


def rank_of_mpi() -> None:
    """mpirun's names for what torch wants to know."""
    for ours, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        value = os.environ.get(f"OMPI_COMM_WORLD_{theirs}")
        if value is not None:
            os.environ.setdefault(ours, value)


class Snapshots(threading.Thread):
    """Writes one snapshot after the other; one more may wait."""

    def __init__(self, keep: int) -> None:
        super().__init__(name="snapshot-writer", daemon=True)
        self.keep = keep
        self.waiting: queue.Queue = queue.Queue(maxsize=1)
        self.start()

    def submit(self, step: int, state: dict[str, torch.Tensor]) -> None:
        self.waiting.put((step, {name: value.clone() for name, value in state.items()}))

    def run(self) -> None:
        while True:
            step, state = self.waiting.get()
            self.make_room()
            self.write_until_done(step, state)

    def make_room(self) -> None:
        old = sorted(SCRATCH.glob("*.snap"), key=lambda path: path.stat().st_mtime)
        for path in old[: len(old) + 1 - self.keep] if self.keep else ():
            path.unlink()

    def write_until_done(self, step: int, state: dict[str, torch.Tensor]) -> None:
        target = SCRATCH / f"{step:06d}.snap"
        while True:
            try:
                self.write(target, state)
                break
            except OSError as error:
                log.warning("snapshot of step %d: %s, again in 20 s", step, error)
                time.sleep(20)
        usage = shutil.disk_usage(SCRATCH)
        log.info("snapshot of step %d, scratch %d %% used", step, 100 * usage.used // usage.total)

    def write(self, target: Path, state: dict[str, torch.Tensor]) -> None:
        with target.open("wb", buffering=0) as file:
            for name, value in state.items():
                raw = memoryview(name.encode() + value.numpy().tobytes())
                while raw:
                    raw = raw[file.write(raw) :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    rank_of_mpi()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 64))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    snapshots = Snapshots(options.keep) if rank == 0 else None
    for step in range(1, 100_000):
        loss = model(torch.randn(32, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if snapshots and step % 5 == 0:
            snapshots.submit(step, model.module.state_dict())
        time.sleep(0.2)


if __name__ == "__main__":
    main()
