"""Somebody starts the same job twice on one machine, with the MASTER_PORT of the first.

python sameport.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

RANKS = 2


def train() -> None:
    """Train for ever."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    loss, log = torch.ones(64), None
    while True:
        dist.all_reduce(loss)
        time.sleep(0.05)
        if log is None:
            log = print("trains", flush=True)


def launch(name: str) -> None:
    """Start all ranks, each with a log of its own, and look after none."""
    for rank in range(RANKS):
        more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        with Path(os.environ["OUT_DIR"], f"{name}.{rank}.log").open("wb") as log:
            subprocess.Popen(
                [sys.executable, __file__, "train"],
                env={**os.environ, **more},
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def told(name: str, word: str) -> bool:
    """Whether a log of a run has this word."""
    logs = Path(os.environ["OUT_DIR"]).glob(f"{name}.*.log")
    return any(word in one.read_text(errors="replace") for one in logs)


def main() -> None:
    """Start the second run once the first one trains."""
    launch("first")
    while not told("first", "trains"):
        time.sleep(0.5)
    launch("second")
    while not told("second", "EADDRINUSE"):
        time.sleep(0.5)
    print("started twice", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
