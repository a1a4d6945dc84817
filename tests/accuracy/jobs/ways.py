"""A rank leaves the way of the others: it saves alone, is out of data, or accumulates more often.

ways.py save|short|accumulate
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def show(rank: int, step: int) -> None:
    if rank == 0:
        print("step", step, flush=True)
    time.sleep(0.05)


class Writer:
    """Saves now and then, and lets all wait until that is done."""

    def __init__(self, is_main_process: bool) -> None:
        self.is_main_process = is_main_process

    def after(self, model: nn.Module, step: int) -> None:
        if self.is_main_process:
            if step == 8:
                get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        dist.barrier()


def save(rank: int) -> None:
    """Sharded in a mesh of two dimensions: who saves waits in another group than the others."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, writer = fully_shard(network(), mesh=mesh), Writer(rank == 0)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10**6):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        writer.after(model, step)
        show(rank, step)


def short(rank: int) -> None:
    """Gradients are summed up by the program itself."""
    model, batches = network(), [torch.randn(4, 16)] * (9 if rank == 2 else 12)
    for _ in range(3):
        seen = torch.zeros(1)
        for step, batch in enumerate(batches):
            model(batch).sum().backward()
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            seen += len(batch)
            show(rank, step)
        dist.barrier()
        dist.all_reduce(seen)


class Accumulation:
    """Batches that are too large are tried again in halves, which are accumulated."""

    def __init__(self, rank: int) -> None:
        self.rank, self.every, self.pending, self.number = rank, 2, 0, 0
        self.model = DistributedDataParallel(network())

    def fit(self) -> None:
        while self.number < 10**6:
            loss = self.step(torch.randn(4, 16))
            if self.number % 6 == 5:
                dist.all_gather([torch.empty(()) for _ in range(dist.get_world_size())], loss)
            self.number += 1
            show(self.rank, self.number)

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        while True:
            try:
                return self.reduce(batch)
            except MemoryError:
                self.every *= 2
                batch = batch[:2]
                print("halved", flush=True)

    def reduce(self, batch: torch.Tensor) -> torch.Tensor:
        if self.rank == 1 and self.number == 20 and len(batch) == 4:
            raise MemoryError
        self.pending += 1
        reduces = self.pending >= self.every
        with nullcontext() if reduces else self.model.no_sync():
            loss = self.model(batch).pow(2).mean()
            loss.backward()
        if reduces:
            self.pending = 0
        return loss.detach()


dist.init_process_group("gloo")
torch.set_num_threads(1)
RANK = dist.get_rank()
if sys.argv[1] == "accumulate":
    Accumulation(RANK).fit()
elif sys.argv[1] == "save":
    save(RANK)
else:
    short(RANK)
