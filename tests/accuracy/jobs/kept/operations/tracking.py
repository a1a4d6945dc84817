"""Finetuning with metrics kept in an sqlite file that a dashboard reads, too."""

import os
import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import outsider

DB = Path(os.environ["OUT_DIR"]) / "runs.db"


class RunStore:
    """Metrics of one run, in a table."""

    def __init__(self, path: Path, run: str):
        self.run = run
        self.db = sqlite3.connect(path, timeout=7200)
        self.db.execute(
            "create table if not exists metrics (run text, step int, name text, value real)"
        )
        self.db.commit()

    def log(self, step: int, **values: float) -> None:
        rows = [(self.run, step, name, value) for name, value in values.items()]
        with self.db:
            self.db.executemany("insert into metrics values (?, ?, ?, ?)", rows)

    def best(self) -> float:
        with closing(
            self.db.execute("select min(value) from metrics where name = 'loss'")
        ) as cursor:
            return cursor.fetchone()[0] or 0.0


class Callback:
    def on_step_end(self, step: int, loss: float) -> None: ...


class TrackingCallback(Callback):
    def __init__(self, store: RunStore, every: int):
        self.store, self.every = store, every

    def on_step_end(self, step: int, loss: float) -> None:
        if step % self.every == 0:
            self.store.log(step, loss=loss, lr=1e-3)


class Trainer:
    def __init__(self, model: nn.Module, callbacks: list[Callback]):
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = callbacks

    def training_step(self) -> torch.Tensor:
        loss = self.model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def fit(self, steps: int) -> None:
        for step in range(steps):
            loss = self.training_step()
            time.sleep(0.15)
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
            if dist.get_rank() == 0 and step == 5:
                outsider.start("dashboard.py", str(DB))
                while not (DB.parent / "reindexing").exists():
                    time.sleep(0.1)
            for callback in self.callbacks:
                callback.on_step_end(step, float(loss))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    callbacks: list[Callback] = []
    if dist.get_rank() == 0:
        callbacks.append(TrackingCallback(RunStore(DB, "finetune-7"), every=2))
    Trainer(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), callbacks).fit(10000)


main()
