"""Full-parameter training with a consolidated checkpoint: shards are gathered, rank 0 writes them."""

import os
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass
class Config:
    dim: int = 64
    layers: int = 3
    save_interval: int = 10
    keep: int = 2
    scratch: Path = Path(os.environ.get("PLACE", "/tmp"))


class Shard:
    """A layer's parameter, of which every rank keeps a part."""

    def __init__(self, name: str, full: torch.Tensor):
        self.name, self.shape = name, full.shape
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        padded = torch.nn.functional.pad(full.flatten(), (0, -full.numel() % self.world))
        self.local = padded.chunk(self.world)[self.rank].clone()

    def unshard(self) -> torch.Tensor:
        full = torch.empty(self.local.numel() * self.world)
        dist.all_gather_into_tensor(full, self.local)
        size = self.shape.numel()
        return full[:size].view(self.shape)

    def reduce_and_step(self, grad: torch.Tensor, lr: float) -> None:
        flat = torch.nn.functional.pad(
            grad.flatten(), (0, self.local.numel() * self.world - grad.numel())
        )
        mine = torch.empty_like(self.local)
        dist.reduce_scatter_tensor(mine, flat)
        self.local -= lr * mine / self.world


class Model:
    def __init__(self, config: Config):
        torch.manual_seed(0)
        self.layers = [
            Shard(f"layers.{i}", torch.randn(config.dim, config.dim) * 0.05)
            for i in range(config.layers)
        ]

    def step(self, x: torch.Tensor, lr: float) -> float:
        weights = [layer.unshard().requires_grad_() for layer in self.layers]
        hidden = x
        for weight in weights:
            hidden = torch.tanh(hidden @ weight) + hidden
        loss = hidden.square().mean()
        loss.backward()
        for layer, weight in zip(reversed(self.layers), reversed(weights)):
            layer.reduce_and_step(weight.grad, lr)
        return loss.item()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        return {layer.name: layer.unshard() for layer in self.layers}


class CheckpointManager:
    def __init__(self, config: Config):
        self.config = config

    def save(self, step: int, model: Model) -> None:
        state = model.full_state_dict()
        if dist.get_rank() == 0:
            print(f"saving step {step} to {self.config.scratch}", flush=True)
            self._write(step, state)
            self._prune()

    def _write(self, step: int, state: dict[str, torch.Tensor]) -> None:
        target = self.config.scratch / f"step-{step:07d}.pt"
        with target.open("wb") as file:
            torch.save({"step": step, "model": state}, file)

    def _prune(self) -> None:
        for old in sorted(self.config.scratch.glob("step-*.pt"))[: -self.config.keep]:
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    config = Config()
    model, checkpoints = Model(config), CheckpointManager(config)
    for step in range(1, 100_000):
        loss = model.step(torch.randn(4, config.dim), lr=1e-3)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"[{step}] loss={loss:.4f}", flush=True)
        if step % config.save_interval == 0:
            checkpoints.save(step, model)


if __name__ == "__main__":
    main()
