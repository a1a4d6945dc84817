"""Three ranks that hang, each with its own value of a variable; run by tests of settings.

settings_job.py LIBRARY NAME VALUE VALUE VALUE: starts the ranks. NCCL is not here: LIBRARY is a
double of it that only lies in their memory, beside a thread named as one of CUDA's. They talk by
gloo, and hang in one line, rank 1 in another group than the others.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

RANKS = 3
PR_SET_NAME = 15


def launch(library: str, name: str, *values: str) -> None:
    ranks = []
    for rank, value in enumerate(values):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
        env = {**os.environ, **{key: str(one) for key, one in told.items()}, name: value}
        ranks.append(subprocess.Popen([sys.executable, __file__, library], env=env))
    for one in ranks:
        one.wait()


def stand_in(library: str) -> None:
    ctypes.CDLL(library)
    threading.Thread(target=as_of_cuda, daemon=True).start()


def as_of_cuda() -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"cuda-EvtHandlr")
    threading.Event().wait()


def train() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = [dist.new_group() for _ in range(2)]
    dist.barrier()
    dist.all_reduce(torch.ones(4), group=groups[dist.get_rank() == 1])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        launch(*sys.argv[1:])
    else:
        stand_in(sys.argv[1])
        train()
