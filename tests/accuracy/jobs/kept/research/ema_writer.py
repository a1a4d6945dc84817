"""Diffusion training by mp.spawn; rank 0 keeps an EMA and writes it in the background."""

import os
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 3


class EMA:
    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        self.decay, self.shadow = decay, {k: v.clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


class BackgroundSaver:
    """A thread that writes shards; the state lock keeps the EMA from moving while one is taken."""

    def __init__(self, folder: str, ema: EMA) -> None:
        self.folder, self.ema = folder, ema
        self.state_lock = threading.Lock()
        self.pending: queue.Queue[tuple[int, list[str]]] = queue.Queue(maxsize=1)
        self.thread = threading.Thread(target=self._loop, name="ckpt-writer", daemon=True)
        self.thread.start()

    def _loop(self) -> None:
        while True:
            step, names = self.pending.get()
            self._write_shard(step, names)

    def _write_shard(self, step: int, names: list[str]) -> None:
        with self.state_lock:
            tensors = {n: self.ema.shadow[n].clone() for n in names}
        torch.save(tensors, os.path.join(self.folder, f"ema-{step}-{names[0]}.pt"))

    def update(self, model: nn.Module) -> None:
        with self.state_lock:
            self.ema.update(model)

    def save(self, step: int, max_shard: int = 2) -> None:
        names = list(self.ema.shadow)
        with self.state_lock:  # all shards of one step
            for at in range(0, len(names), max_shard):
                self.pending.put((step, names[at : at + max_shard]))


class DiffusionTrainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.unet = nn.Sequential(
            nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)
        )
        self.ddp = nn.parallel.DistributedDataParallel(self.unet)
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4)
        self.saver = BackgroundSaver(os.environ["OUT_DIR"], EMA(self.unet)) if rank == 0 else None

    def loss(self) -> torch.Tensor:
        x, noise = torch.randn(4, 8), torch.randn(4, 8)
        return nn.functional.mse_loss(self.ddp(x + noise), noise)

    def train_step(self) -> float:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.saver:
            self.saver.update(self.unet)
        return loss.item()

    def fit(self) -> None:
        for step in range(1, 1000):
            time.sleep(0.2)
            loss = self.train_step()
            if self.rank == 0:
                print(f"step {step}: mse {loss:.4f}", flush=True)
                if step % 6 == 0:
                    self.saver.save(step)


def worker(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(minutes=30))
    DiffusionTrainer(rank).fit()


if __name__ == "__main__":
    mp.spawn(worker, nprocs=WORLD)
