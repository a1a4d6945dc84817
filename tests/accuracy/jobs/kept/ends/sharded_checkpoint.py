"""Trains in a container with a memory limit; every rank writes its shard of a checkpoint.

MODE oom: the embedding shard of rank 2 is serialised in memory first. MODE fits: it is not.
"""

import io
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

OUT = Path(os.environ["OUT_DIR"])
MODE = sys.argv[1]
ROWS = {"oom": 60_000, "fits": 60_000}[MODE]
DIM = 768


def enter_container() -> None:
    """All ranks are in the container, whose limit holds for them together."""
    (Path(os.environ["PLACE"]) / "cgroup.procs").write_text(str(os.getpid()))


class Shard(nn.Module):
    """The part of the model that lies on this rank: the last one has the embeddings."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        if rank == world - 1:
            table = torch.empty(ROWS, DIM).uniform_(-0.1, 0.1)
            self.register_buffer("embedding", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        if hasattr(self, "embedding"):
            rows = torch.randint(0, ROWS, (x.shape[0],))
            x = x + self.embedding[rows, :64]
        return x


class ShardedCheckpoint:
    """Every rank saves its own shard, then waits until all have."""

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world

    def serialise(self, state: dict[str, torch.Tensor]) -> bytes:
        copies = {name: tensor.clone() for name, tensor in state.items()}
        buffer = io.BytesIO()
        torch.save(copies, buffer)
        return buffer.getvalue()

    def save(self, step: int, module: nn.Module) -> None:
        print(f"[rank{self.rank}] checkpoint of step {step}", flush=True)
        if MODE == "oom":
            blob = self.serialise(module.state_dict())
            (OUT / f"shard{self.rank}.pt").write_bytes(blob)
        else:
            torch.save([p.detach() for p in module.parameters()], OUT / f"shard{self.rank}.pt")
        self.store.set(f"ckpt/{step}/{self.rank}", "saved")
        self.wait_for_all(step)

    def wait_for_all(self, step: int) -> None:
        keys = [f"ckpt/{step}/{rank}" for rank in range(self.world)]
        self.store.wait(keys, timedelta(minutes=30))


def average_gradients(module: nn.Module, world: int) -> None:
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    enter_container()
    module = Shard(rank, world)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    store = dist.PrefixStore("trainer", dist.distributed_c10d._get_default_store())
    checkpoint = ShardedCheckpoint(store, rank, world)
    for step in range(1, 100_000):
        loss = module(torch.randn(8, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(module, world)
        optimizer.step()
        print(f"[rank{rank}] step {step} loss {loss.item():.3f}", flush=True)
        if step % 12 == 0:
            checkpoint.save(step, module)
        time.sleep(0.3)


if __name__ == "__main__":
    main()
