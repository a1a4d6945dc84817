"""Trains, and every few steps saves model and optimizer with torch.distributed.checkpoint."""

import argparse
import datetime
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter

ROWS = 32_000


class Net(nn.Module):
    """Mostly embedding tables, as recommenders are."""

    def __init__(self, tables: int = 8, rows: int = ROWS, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        summed = sum(table(ids[:, i]) for i, table in enumerate(self.tables))
        return self.head(summed).squeeze(-1)


class Checkpointer:
    """Keeps one checkpoint; written durably, a file for each tensor."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def make_room(self) -> None:
        for old in self.folder.glob("step_*"):
            shutil.rmtree(old)

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.rank == 0:
            start = time.monotonic()
            print(f"saving checkpoint at step {step}", flush=True)
            self.make_room()
            writer = FileSystemWriter(
                self.folder / f"step_{step:06d}", single_file_per_rank=False, sync_files=True
            )
            dcp.save(self.state(model, optimizer), storage_writer=writer, no_dist=True)
            print(f"saved in {time.monotonic() - start:.0f} s", flush=True)
        dist.barrier()


def average_gradients(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(world)


def train(options: argparse.Namespace, rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkpointer = Checkpointer(options.checkpoints, rank)
    for step in range(1, options.steps + 1):
        ids = torch.randint(0, ROWS, (32, 8))
        target = (ids.sum(dim=1) % 2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), target)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % options.save_every == 0:
            checkpointer.save(step, model, optimizer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--checkpoints", type=Path, default=Path(os.environ["PLACE"]))
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=60))
    train(options, dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
