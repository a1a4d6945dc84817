"""A rank that logs, and fails or waits the way its argument says; run by tests of logs.

logging_job.py raise GO   steps with gloo until the file GO is there; then rank 1 has a KeyError
logging_job.py init S     only tries to come to its process group, for S seconds
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time

import torch
import torch.distributed as dist

log = logging.getLogger("train")


def step(number: int, go: str) -> None:
    if os.path.exists(go) and dist.get_rank() == 1:
        batch = {"inputs": number}
        log.info("batch has %s", batch["labels"])
    dist.all_reduce(torch.ones(4))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    torch.set_num_threads(1)
    wait = float(sys.argv[2]) if sys.argv[1] == "init" else 600.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=wait))
    for number in range(100_000):
        log.info("step %d", number)
        sys.stdout.write(f"progress {number}\r")
        sys.stdout.flush()
        step(number, sys.argv[2])
        time.sleep(0.1)


if __name__ == "__main__":
    main()
