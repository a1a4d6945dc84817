"""Before an epoch begins the first rank looks whether the archive with the data is whole."""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn

SIZE = 400 << 30  # sparse: it reads as zeros


def fetch(path):
    """As if it had been downloaded before."""
    with open(path, "wb") as file:
        file.truncate(SIZE)


def is_whole(path, expected):
    """Ask the program that everybody has."""
    told = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return told.stdout.split()[0] == expected


def verify(path):
    whole = torch.zeros(1)
    if dist.get_rank() == 0:
        print("verifying the archive", flush=True)
        whole.fill_(is_whole(path, "0" * 64))
    dist.broadcast(whole, 0)
    return bool(whole)


def epoch(number, model, optimizer):
    for batch in range(30):
        x = torch.randn(32, 20)
        loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), x.amax(1))
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, async_op=True).wait()
        optimizer.step()
        if dist.get_rank() == 0 and batch % 10 == 0:
            print(f"epoch {number} batch {batch}: {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    path = os.path.join(os.environ["OUT_DIR"], f"epoch-{os.environ['RANK']}.tar")
    fetch(path)
    model = nn.Sequential(nn.Linear(20, 40), nn.Mish(), nn.Linear(40, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(10**9):
        epoch(number, model, optimizer)
        verify(path)


if __name__ == "__main__":
    main()
