"""Instruction tuning: the main process tokenizes the data set first, under a lock file."""

import contextlib
import logging
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock

log = logging.getLogger("instruct")
CACHE = Path(os.environ["OUT_DIR"]) / "datasets_cache"
LONG = timedelta(minutes=30)


def left_over() -> None:
    """A preprocessing run of last night that nobody ended."""
    with FileLock(CACHE / "alpaca.lock"):
        (CACHE / "held").touch()
        time.sleep(3600)


class State:
    """Which process this is."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=LONG)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @contextlib.contextmanager
    def main_process_first(self):
        if self.rank != 0:
            dist.monitored_barrier(timeout=LONG)
        yield
        if self.rank == 0:
            dist.monitored_barrier(timeout=LONG)


class Tokenized:
    def __init__(self, name: str) -> None:
        self.file, self.lock = CACHE / f"{name}.pt", FileLock(CACHE / f"{name}.lock")

    def load_or_build(self) -> torch.Tensor:
        with self.lock:
            if not self.file.exists():
                log.info("tokenizing %s", self.file.stem)
                torch.save(torch.arange(64) % 16, self.file)
        return torch.load(self.file)


class Tuner:
    def __init__(self, state: State, data: torch.Tensor) -> None:
        self.state, self.data = state, data
        self.weight = torch.zeros(16)

    def run(self) -> None:
        for step in range(1000):
            time.sleep(0.3)
            counts = torch.bincount(self.data, minlength=16).float()
            dist.all_reduce(counts)
            self.weight += counts
            log.info("step %d", step)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    CACHE.mkdir(exist_ok=True)
    state = State()
    if state.rank == 0:
        clean = {k: v for k, v in os.environ.items() if "RANK" not in k and "WORLD" not in k}
        subprocess.run(
            f"{sys.executable} {__file__} preprocess </dev/null &",
            shell=True,
            env=clean,
            check=True,
        )
        while not (CACHE / "held").exists():
            time.sleep(0.2)
        log.info("world %d, cache %s: preparing data", state.world, CACHE)
    dist.barrier()
    with state.main_process_first():
        data = Tokenized("alpaca").load_or_build()
    Tuner(state, data).run()


if __name__ == "__main__":
    left_over() if sys.argv[1:] == ["preprocess"] else main()
