"""Elastic training: saves often, and goes on from what was saved when torchrun starts it again.

elastic.py [fail]: once, a rank fails in step 6.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Saved:
    """The newest state on disk, in pieces."""

    def __init__(self, folder: str):
        self.path = Path(folder) / "elastic.pt"

    def save(self, model: nn.Module, step: int) -> None:
        if dist.get_rank() == 0:
            new = self.path.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": step}, new)
            new.replace(self.path)
        dist.barrier()

    def restore(self, model: nn.Module) -> int:
        if not self.path.exists():
            return 0
        for piece in range(8):
            print(f"[{dist.get_rank()}] restored piece {piece} of 8", flush=True)
            time.sleep(1.2)  # a slow store of objects
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        return state["step"]


def join() -> None:
    """The agent's store outlives an attempt: each attempt has keys of its own."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    patience = timedelta(minutes=30)
    store, rank, world = next(dist.rendezvous("env://", timeout=patience))
    own = dist.PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world, timeout=patience)


def fail_once(step: int) -> None:
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and step == 6 and dist.get_rank() == 1:
        print("rank 1: CUDA error: uncorrectable ECC error encountered", flush=True)
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def main(fails: bool) -> None:
    join()
    rank = dist.get_rank()
    model = nn.Linear(32, 32)
    saved = Saved(os.environ["OUT_DIR"])
    begin = saved.restore(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    for step in range(begin, 100_000):
        if fails:
            fail_once(step)
        optimizer.zero_grad()
        wrapped(torch.randn(8, 32)).pow(2).mean().backward()
        optimizer.step()
        if rank == 0:
            print(f"attempt {attempt} step {step}", flush=True)
        if step % 3 == 2:
            saved.save(model, step + 1)
        time.sleep(0.5)


if __name__ == "__main__":
    main("fail" in sys.argv[1:])
