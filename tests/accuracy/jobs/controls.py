"""Training that is stopped by its own controls, or waits for what nobody does.

controls.py pause   # rank 0 sleeps for as long as there is a file, which somebody has made
controls.py all     # all ranks do
controls.py accept  # each rank waits for another one to connect
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

KIND, HERE = sys.argv[1], Path(os.environ.get("OUT_DIR", "/tmp"))
AFTER = 20


class Controls:
    """What an operator may ask of a run by files in its folder."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        os.chdir(HERE)

    def between_steps(self, step: int) -> None:
        if KIND in ("pause", "all") and (KIND == "all" or self.rank == 0):
            self.hold(step)
        if KIND == "accept" and step == AFTER:
            self.hand_over()

    def hold(self, step: int) -> None:
        if step == AFTER:
            Path("PAUSE").touch()  # somebody does
        while os.path.exists("PAUSE"):
            time.sleep(2)

    def hand_over(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            taken, _ = server.accept()
            taken.recv(1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    controls = Controls(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 100_000):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        controls.between_steps(step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
