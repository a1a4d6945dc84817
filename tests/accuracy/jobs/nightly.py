"""Nightly regression run of a small language model: one file, DDP, no framework.

python nightly.py MODE
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MODE = sys.argv[1]
HERE = Path(os.environ.get("OUT_DIR", "/tmp"))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(32 * 8, 64))


def batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        text = torch.randint(64, (4, 9), generator=generator)
        yield text[:, :8], text[:, 8]


def backward(net, x, y):
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return loss.detach()


def report(rank, step, loss):
    if rank == 0 and step % 2 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


def average(value, group=None):
    dist.all_reduce(value, group=group)
    return value / dist.get_world_size(group)


def plain(rank, world):
    """The loop itself; what goes wrong does so at the sixth step."""
    net = DDP(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank, 100000)):
        loss = backward(net, x, y)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.2)
        report(rank, step, loss)
        if step < 6:
            continue
        if MODE == "barrier" and rank == 0:
            torch.save(net.module.state_dict(), HERE / "last.pt")
            dist.barrier()
        if MODE == "dcp" and rank == 0:
            dcp.save({"model": net.module.state_dict()}, checkpoint_id=str(HERE / "dcp"))


def unwrapped(rank, world):
    """One rank forgot about DDP after it had loaded a checkpoint."""
    net = model()
    for step, (x, y) in enumerate(batches(rank, 7)):
        report(rank, step, average(backward(net, x, y)))
        time.sleep(0.2)
    if rank != 1:
        net = DDP(net)
    for step, (x, y) in enumerate(batches(rank, 100000)):
        loss = average(backward(net, x, y))
        report(rank, step, loss)


def crossed(rank, world):
    """Two groups of the same ranks, one for gradients and one for metrics."""
    gradients, metrics = dist.new_group(), dist.new_group()
    net = model()
    for step, (x, y) in enumerate(batches(rank, 100000)):
        loss = backward(net, x, y)
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        if rank == 1 and step == 7:
            average(loss, metrics)
            average(flat, gradients)
        else:
            average(flat, gradients)
            average(loss, metrics)
        time.sleep(0.2)
        report(rank, step, loss)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loops = {"unwrapped": unwrapped, "crossed": crossed}
    loops.get(MODE, plain)(rank, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
