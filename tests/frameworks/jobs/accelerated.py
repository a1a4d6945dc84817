"""Accelerate: rank 1 waits for a file that never comes, the others gather metrics."""

from __future__ import annotations

import os
import time

import torch
from accelerate import Accelerator


def wait_for_shard():
    print("HANGS", os.getpid(), flush=True)
    while not os.path.exists("/nowhere/shard-00017.tar"):
        time.sleep(0.5)


def main():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(20):
        if accelerator.process_index == 1 and step == 2:
            wait_for_shard()
        loss = model(torch.randn(4, 8)).sum()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.gather(loss.detach())


if __name__ == "__main__":
    main()
