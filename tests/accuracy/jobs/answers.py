"""Rank 0 generates answers between steps, or polls for a file; the others wait in a barrier.

answers.py generate|quiet|look: with lines in its log, without any, and `look` for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

PAUSE_S = 0.03


def generate(model: nn.Module, quiet: bool) -> None:
    """Sample tokens one by one, in the pace of whoever reads them."""
    with torch.no_grad():
        for prompt in range(1000):
            state = torch.randn(4, 16)
            for _ in range(60):
                best = model(state).softmax(-1).topk(2).indices
                state = torch.roll(state, int(best[0, 0]), 1)
                time.sleep(PAUSE_S)
            if not quiet:
                print(f"generated {prompt}", flush=True)


def look() -> None:
    """Wait for a file that nobody writes, and say so; a thread says that all is well."""

    def beat() -> None:
        while True:
            time.sleep(1.0)
            print("alive", flush=True)

    threading.Thread(target=beat, daemon=True).start()
    tries = 0
    while not os.path.exists(os.path.join(os.environ["OUT_DIR"], "answers.json")):
        tries += 1
        if tries % 100 == 0:
            print(f"no answers yet, {tries} tries", flush=True)
        time.sleep(PAUSE_S)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    for step in range(9):
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 0:
            print("step", step, flush=True)
    if dist.get_rank() == 0:
        look() if sys.argv[1] == "look" else generate(model, sys.argv[1] == "quiet")
    dist.barrier()


main()
