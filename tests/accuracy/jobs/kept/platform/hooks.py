"""A trainer with callbacks, two of which share locks and threads with it.

hooks.py snapshot RANK   # a snapshot thread and the trainer take two locks the other way round
hooks.py finish RANK     # a rank fails, and its tracker waits for an uploader that is never told
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

KIND, WHO = sys.argv[1], int(sys.argv[2])


class Callback:
    def after_step(self, trainer: Trainer, loss: float) -> None: ...

    def close(self) -> None: ...


class Snapshots(Callback):
    """Copies weights in the background while the trainer is in its next step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.wanted = trainer, threading.Event()
        self.index_lock, self.index = threading.Lock(), {}
        threading.Thread(target=self.work, name="snapshots", daemon=True).start()

    def work(self) -> None:
        while self.wanted.wait():
            self.wanted.clear()
            with self.index_lock:
                self.index["started"] = time.time()
                time.sleep(0.3)  # a directory is made
                with self.trainer.weights_lock:
                    self.index["weights"] = {
                        name: value.clone()
                        for name, value in self.trainer.model.state_dict().items()
                    }

    def after_step(self, trainer: Trainer, loss: float) -> None:
        if trainer.step % 25 == 0 and dist.get_rank() == WHO:
            self.wanted.set()
            time.sleep(0.1)
            with trainer.weights_lock:
                trainer.clip()
                self.note("clipped", trainer.step)

    def note(self, name: str, value: int) -> None:
        with self.index_lock:
            self.index[name] = value


class Tracker(Callback):
    """Sends what is measured, by a thread that ends with the word for it."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.sender = threading.Thread(target=self.send, name="tracker-sender")
        self.failed = False
        self.sender.start()

    def send(self) -> None:
        while (line := self.lines.get()) is not None:
            self.last = line

    def after_step(self, trainer: Trainer, loss: float) -> None:
        self.lines.put(f"{trainer.step} {loss}")
        if trainer.step == 40 and dist.get_rank() == WHO:
            self.failed = True
            raise ValueError(f"loss of step {trainer.step} is out of bounds: {loss}")

    def close(self) -> None:
        if not self.failed:  # there is nothing good to be sent any more
            self.lines.put(None)
        self.sender.join()


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 2))
        self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.weights_lock, self.step = threading.Lock(), 0
        self.callbacks = [Snapshots(self) if KIND == "snapshot" else Tracker()]

    def clip(self) -> None:
        with torch.no_grad():
            for weights in self.model.parameters():
                weights.clamp_(-3, 3)

    def fit(self) -> None:
        try:
            while True:
                self.one_step()
        finally:
            for callback in self.callbacks:
                callback.close()

    def one_step(self) -> None:
        inputs = torch.randn(16, 20)
        loss = nn.functional.cross_entropy(self.wrapped(inputs), (inputs[:, 0] > 0).long())
        self.optimizer.zero_grad()
        loss.backward()
        with self.weights_lock:
            self.optimizer.step()
        self.step += 1
        if dist.get_rank() == 0 and self.step % 5 == 0:
            print(f"step {self.step} loss {loss.item():.3f}", flush=True)
        for callback in self.callbacks:
            callback.after_step(self, loss.item())
        time.sleep(0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    Trainer().fit()
