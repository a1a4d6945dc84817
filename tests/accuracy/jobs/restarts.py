"""A trainer whose sensor fails again and again, and that torchrun starts anew each time."""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class SensorLostError(RuntimeError):
    """Rank 1 gets no more samples."""


def samples(count):
    for number in range(count):
        if RANK == 1 and number == 3:
            raise SensorLostError(f"no sample {number}")
        yield torch.randn(8, 4)


def resume():
    """Rank 0 reads the last checkpoint first, and so joins later than the others."""
    if ATTEMPT and RANK == 0:
        time.sleep(1.0)


def join():
    notice = threading.Timer(8.0, print, ("still joining in attempt", ATTEMPT), {"flush": True})
    notice.daemon = True
    notice.start()
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    notice.cancel()


def main():
    resume()
    join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for batch in samples(1000):
        model(batch).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
