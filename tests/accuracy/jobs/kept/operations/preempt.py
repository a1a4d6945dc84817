"""Training that saves itself when its node is to be drained."""

import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import nn


class PreemptionGuard:
    """On SIGTERM: everybody meets, rank 0 saves, all leave."""

    def __init__(self, trainer: "Trainer", folder: Path):
        self.trainer, self.folder = trainer, folder
        signal.signal(signal.SIGTERM, self.on_signal)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        print(f"rank {dist.get_rank()}: {signal.Signals(number).name} received, saving", flush=True)
        self.save_and_leave()

    def save_and_leave(self) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(self.trainer.model.state_dict(), self.folder / "preempted.pt")
        dist.barrier()
        raise SystemExit(0)


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.step = 0

    def augment(self, batch: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            time.sleep(0.02)
            batch = batch + 0.01 * torch.randn_like(batch)
        return batch

    def sync(self) -> None:
        grads = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(grads)

    def run_step(self) -> None:
        batch = self.augment(torch.randn(8, 16))
        self.optimizer.zero_grad()
        self.model(batch).mean().backward()
        self.sync()
        self.optimizer.step()
        self.step += 1


def drain_notice() -> None:
    """The scheduler on the node of rank 3 tells its processes."""
    subprocess.run(["setsid", "-f", "sh", "-c", f"sleep 4; kill -TERM {os.getpid()}"])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    trainer = Trainer()
    PreemptionGuard(trainer, Path(os.environ["OUT_DIR"]))
    if dist.get_rank() == 3:
        drain_notice()
    while trainer.step < 100000:
        trainer.run_step()
        if dist.get_rank() == 0:
            print(f"step {trainer.step}", flush=True)


main()
