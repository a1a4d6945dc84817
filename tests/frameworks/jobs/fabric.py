"""Lightning Fabric: rank 1 spins over its batches, the others are in the backward pass."""

from __future__ import annotations

import os

import lightning
import torch


def count_tokens():
    print("HANGS", os.getpid(), flush=True)
    tokens = 1
    while tokens:
        tokens = tokens % 1000003 + 1


def main():
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(8, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(20):
        if fabric.global_rank == 1 and step == 2:
            count_tokens()
        fabric.backward(model(torch.randn(4, 8)).sum())
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
