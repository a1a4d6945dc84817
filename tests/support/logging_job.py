"""A rank that logs, and fails or waits the way its argument says; run by tests of logs.

logging_job.py raise GO   steps with gloo until the file GO is there; then rank 1 has a KeyError;
                          rank 2 has caught and logged an exception before
logging_job.py init S     only tries to come to its process group, for S seconds
logging_job.py apart DIR  all hang in the same line, rank 1 in another group; meanwhile a thread of
                          every rank prints what is written to the FIFO DIR/RANK, as the watchdog
                          of NCCL prints from a thread of its own; at the line `load` that thread
                          loads a batch of 16 MB with a DataLoader
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


def checked(number: int) -> None:
    """An exception that a rank catches and logs before it goes on."""
    try:
        raise ValueError(f"batch {number} is empty")
    except ValueError:
        log.exception("left out a batch")


def step(number: int, go: str) -> None:
    if number == 1 and dist.get_rank() == 2:
        checked(number)
    if os.path.exists(go) and dist.get_rank() == 1:
        batch = {"inputs": number}
        log.info("batch has %s", batch["labels"])
    dist.all_reduce(torch.ones(4))


class Large(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1 << 22)


def load() -> None:
    try:
        list(DataLoader(Large(), num_workers=1))
    except RuntimeError:
        traceback.print_exc()


def apart(folder: str) -> None:
    def echo() -> None:
        while True:
            with open(f"{folder}/{dist.get_rank()}") as lines:
                for line in lines:
                    if line == "load\n":
                        load()
                    sys.stderr.write(line)
                    sys.stderr.flush()

    threading.Thread(target=echo, daemon=True).start()
    groups = [dist.new_group() for _ in range(2)]
    dist.barrier()
    dist.all_reduce(torch.ones(4), group=groups[dist.get_rank() == 1])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    torch.set_num_threads(1)
    wait = float(sys.argv[2]) if sys.argv[1] == "init" else 1800.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=wait))
    if sys.argv[1] == "apart":
        apart(sys.argv[2])
    for number in range(100_000):
        log.info("step %d", number)
        sys.stdout.write(f"progress {number}\r")
        sys.stdout.flush()
        step(number, sys.argv[2])
        time.sleep(0.1)


if __name__ == "__main__":
    main()
