"""Pretraining with sharded checkpoints: a shard per rank, and a commit by rank 0 through the store."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SAVE_EVERY = 8
PATIENCE = timedelta(minutes=40)


def enter_cgroup() -> None:
    """What the container runtime does with every rank: limits what it may take from here on."""
    group = os.environ.get("PLACE")
    if group and int(os.environ["RANK"]) == 2:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))


class StoreBarrier:
    """Ranks that have nothing to send wait for keys: cheaper than a collective, and no device."""

    def __init__(self, store: dist.Store, rank: int, world: int):
        self.store, self.rank, self.world = store, rank, world

    def done(self, name: str) -> None:
        self.store.set(f"{name}/{self.rank}", str(time.time()))

    def wait_all(self, name: str) -> None:
        self.store.wait([f"{name}/{rank}" for rank in range(self.world)], PATIENCE)

    def wait_commit(self, name: str) -> None:
        self.store.wait([f"{name}/committed"], PATIENCE)

    def commit(self, name: str) -> None:
        self.store.set(f"{name}/committed", "1")


class Checkpointer:
    def __init__(self, folder: Path, sync: StoreBarrier):
        self.folder, self.sync = folder, sync

    def host_copies(self, state: dict, replicas: int) -> list[torch.Tensor]:
        """Flattened copies in host memory, so that training can go on with the originals."""
        flat = torch.cat([t.flatten().float() for t in state.values()])
        return [flat.repeat(4000) for _ in range(replicas)]

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        name = f"ckpt-{step}"
        here = self.folder / name
        here.mkdir(parents=True, exist_ok=True)
        # rank 2 has the embedding and with it the largest share
        replicas = 60 if self.sync.rank == 2 else 1
        copies = self.host_copies(model.state_dict(), replicas)
        torch.save(
            {"first": copies[0][:1000], "optimizer": optimizer.state_dict()},
            here / f"shard{self.sync.rank}.pt",
        )
        self.sync.done(name)
        if self.sync.rank == 0:
            self.sync.wait_all(name)
            (here / "metadata.json").write_text(
                json.dumps({"step": step, "world": self.sync.world})
            )
            self.sync.commit(name)
        else:
            self.sync.wait_commit(name)


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8))


def train(rank: int, world: int, store: dist.Store) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Checkpointer(Path(os.environ["OUT_DIR"]), StoreBarrier(store, rank, world))
    for step in range(1, 10_000):
        x = torch.randn(16, 32)
        loss = nn.functional.mse_loss(model(x), x[:, :8])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        if rank == 0:
            print(f"step={step} loss={loss.item():.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            print(f"[{rank}] saving checkpoint {step}", flush=True)
            saver.save(step, model, optimizer)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], port, world, is_master=rank == 0, timeout=PATIENCE
    )
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=world, timeout=PATIENCE
    )
    enter_cgroup()
    train(rank, world, dist.PrefixStore("ckpt", store))


if __name__ == "__main__":
    main()
