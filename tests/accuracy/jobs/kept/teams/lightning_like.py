"""A trainer with callbacks and a sharded optimizer, in the style of the well-known one."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Callback:
    def on_train_batch_end(self, trainer: Trainer, loss: float): ...
    def on_validation_end(self, trainer: Trainer, score: float): ...


class Progress(Callback):
    def on_train_batch_end(self, trainer, loss):
        if trainer.is_global_zero:
            print(f"step {trainer.global_step} train_loss={loss:.4f}", flush=True)


class ModelCheckpoint(Callback):
    """Keeps the best one."""

    def __init__(self, folder: Path):
        self.folder, self.best = folder, float("inf")

    def on_validation_end(self, trainer, score):
        if not trainer.is_global_zero:
            return
        if score < self.best:
            self.best = score
            trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")


class ShardedStrategy:
    """DDP with a ZeRO-1 optimizer."""

    def setup(self, module: nn.Module):
        dist.init_process_group("gloo", timeout=timedelta(minutes=40))
        self.model = DistributedDataParallel(module)
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
        )

    def reduce(self, value: torch.Tensor) -> float:
        dist.all_reduce(value)
        return (value / dist.get_world_size()).item()

    def optimizer_state(self) -> dict:
        self.optimizer.consolidate_state_dict(to=0)
        return self.optimizer.state_dict()


class Trainer:
    def __init__(self, callbacks, strategy, val_check_interval=8, max_steps=2000):
        self.callbacks, self.strategy = callbacks, strategy
        self.val_check_interval, self.max_steps = val_check_interval, max_steps
        self.global_step = 0

    @property
    def is_global_zero(self):
        return dist.get_rank() == 0

    def _call(self, hook: str, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def save_checkpoint(self, path: Path):
        weights = self.strategy.model.module.state_dict()
        torch.save({"state_dict": weights, "optimizer": self.strategy.optimizer_state()}, path)

    def fit(self, module: LitAutoEncoder):
        self.strategy.setup(module)
        while self.global_step < self.max_steps:
            self._training_step(module)
            if self.global_step % self.val_check_interval == 0:
                self._validate(module)

    def _training_step(self, module):
        time.sleep(0.15)
        loss = module.loss(self.strategy.model, torch.randn(16, 20))
        self.strategy.optimizer.zero_grad()
        loss.backward()
        self.strategy.optimizer.step()
        self.global_step += 1
        self._call("on_train_batch_end", loss.item())

    @torch.no_grad()
    def _validate(self, module):
        loss = module.loss(module, torch.randn(64, 20))
        self._call("on_validation_end", self.strategy.reduce(loss))


class LitAutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 20))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def loss(self, model, x):
        return nn.functional.mse_loss(model(x), x)


if __name__ == "__main__":
    folder = Path(os.environ.get("OUT_DIR", "/tmp"))
    Trainer([Progress(), ModelCheckpoint(folder)], ShardedStrategy()).fit(LitAutoEncoder())
