"""Starts a sweep's ranks by a pool of slots, one per processor, and is one of those ranks, too.

slots.py WORLD: starts all;  slots.py rank: is one.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta

SLOTS = 2
"""Devices of this machine."""


def launch(rank: int, world: int) -> int:
    """Run one rank to its end, in a slot."""
    told = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    argv = [sys.executable, os.path.abspath(__file__), "rank"]
    return subprocess.run(argv, env={**os.environ, **told}, check=False).returncode


def run_all(world: int) -> None:
    """Run every rank, as many at a time as there are slots."""
    with ThreadPoolExecutor(max_workers=SLOTS, thread_name_prefix="slot") as slots:
        jobs = {slots.submit(launch, rank, world): rank for rank in range(world)}
        print(f"submitted {world} ranks to {SLOTS} slots", flush=True)
        for job in as_completed(jobs):
            print(f"rank {jobs[job]} ended with {job.result()}", flush=True)


def evaluate(model, rank: int):
    import torch
    import torch.distributed as dist

    hits = torch.tensor([float(rank), 1.0])
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def be_rank() -> None:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    print(f"rank {rank} starts", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for trial in range(100_000):
        model(torch.randn(2, 8)).sum().backward()
        score = evaluate(model, rank)
        if rank == 0:
            print(f"step {trial} score {score:.2f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        be_rank()
    else:
        run_all(int(sys.argv[1]))
