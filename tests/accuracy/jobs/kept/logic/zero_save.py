"""DDP with a sharded optimizer, and a checkpoint manager that only the first rank runs."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class State:
    """Everything that a run can be continued from."""

    def __init__(self, model: nn.Module, optimizer: ZeroRedundancyOptimizer, scheduler) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.step = 0

    def as_dict(self) -> dict:
        self.optimizer.consolidate_state_dict(to=0)
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }


class CheckpointManager:
    """Keeps the last few, and a link to the newest."""

    def __init__(self, folder: Path, every: int, keep: int = 2) -> None:
        self.folder, self.every, self.keep = folder, every, keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def maybe_save(self, state: State) -> None:
        if not self.due(state.step):
            return
        print(f"saving at {state.step}", flush=True)
        path = self.folder / f"{state.step:08}.pt"
        torch.save(state.as_dict(), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        for old in sorted(self.folder.glob("*.pt"))[: -self.keep]:
            old.unlink()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(500, 48)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(48, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)[None]
        for layer in self.layers:
            x = layer(x)
        return self.head(x[0])


def run(folder: Path) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(Encoder())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    state = State(model, optimizer, scheduler)
    manager = CheckpointManager(folder / "checkpoints", every=8) if rank == 0 else None
    random = torch.Generator().manual_seed(rank)
    while state.step < 2000:
        ids = torch.randint(0, 500, (12, 20), generator=random)
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 10)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        state.step += 1
        if rank == 0:
            print(f"step {state.step} loss {loss.item():.3f}", flush=True)
        if manager is not None:
            manager.maybe_save(state)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run(Path(os.environ["OUT_DIR"]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
