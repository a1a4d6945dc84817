"""Two ranks train; a third one looks for new checkpoints and evaluates them, and has nothing to do in between."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)
    )


class CheckpointFolder:
    """Checkpoints by step; complete once they have their name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)

    def save(self, step: int, model: nn.Module) -> None:
        temporary = self.path / f".{step}.tmp"
        torch.save(model.state_dict(), temporary)
        temporary.rename(self.path / f"step-{step:08d}.pt")

    def newest(self) -> Path | None:
        found = sorted(self.path.glob("step-*.pt"))
        return found[-1] if found else None


class TrainingRole:
    def __init__(self, folder: CheckpointFolder, group: dist.ProcessGroup) -> None:
        self.folder = folder
        self.model = DDP(make_model(), process_group=group)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.leader = dist.get_rank() == 0

    def accumulate(self, parts: int) -> float:
        total = 0.0
        with self.model.no_sync():
            for _ in range(parts - 1):
                total += self.backward()
        return (total + self.backward()) / parts

    def backward(self) -> float:
        data = torch.randn(512, 128)
        loss = nn.functional.cross_entropy(self.model(data), data[:, :10].argmax(dim=1))
        loss.backward()
        return loss.item()

    def run(self) -> None:
        for step in range(1, 1_000_000):
            self.optimizer.zero_grad()
            loss = self.accumulate(parts=64)
            self.optimizer.step()
            if self.leader:
                print(f"step {step} loss {loss:.4f}", flush=True)
                if step % 40 == 0:
                    self.folder.save(step, self.model.module)


class EvaluatingRole:
    """Polls for a checkpoint, evaluates it, writes the score beside it."""

    def __init__(self, folder: CheckpointFolder, poll_seconds: float) -> None:
        self.folder, self.poll_seconds = folder, poll_seconds
        self.seen: Path | None = None

    def wait_for_new_checkpoint(self) -> Path:
        while True:
            newest = self.folder.newest()
            if newest and newest != self.seen:
                return newest
            time.sleep(self.poll_seconds)

    @torch.no_grad()
    def evaluate(self, path: Path) -> float:
        model = make_model()
        model.load_state_dict(torch.load(path))
        data = torch.randn(20_000, 128)
        return float((model(data).argmax(dim=1) == data[:, :10].argmax(dim=1)).float().mean())

    def run(self) -> None:
        while True:
            self.seen = self.wait_for_new_checkpoint()
            score = self.evaluate(self.seen)
            self.seen.with_suffix(".score").write_text(f"{score:.4f}\n")
            print(f"evaluated {self.seen.name}: accuracy {score:.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = CheckpointFolder(Path(os.environ["OUT_DIR"]) / "checkpoints")
    trainers = dist.new_group(list(range(world - 1)))
    role = EvaluatingRole(folder, 20.0) if rank == world - 1 else TrainingRole(folder, trainers)
    role.run()


if __name__ == "__main__":
    main()
