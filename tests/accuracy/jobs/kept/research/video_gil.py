"""Video pre-training: frames are decoded by an extension module that has threads of its own."""

import logging
import threading
import time
from datetime import timedelta

import _fastdecode
import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("video")


class Heartbeat(threading.Thread):
    """Tells the platform that this rank is alive."""

    def __init__(self) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.beats = 0

    def run(self) -> None:
        while True:
            time.sleep(1.0)
            self.beats += 1


class MetricsFlusher(threading.Thread):
    def __init__(self, period: float = 2.0) -> None:
        super().__init__(name="metrics", daemon=True)
        self.period, self.wake, self.rows = period, threading.Event(), []

    def run(self) -> None:
        while not self.wake.wait(self.period):
            self.rows.clear()


class ClipReader:
    """Clips of some frames each."""

    def __init__(self, rank: int, frames: int) -> None:
        self.frames = frames
        # The file of one rank is damaged behind its sixth clip.
        _fastdecode.open(self.on_warning, frames * 6 + 2 if rank == 1 else 1 << 30)

    @staticmethod
    def on_warning(frame: int) -> None:
        log.warning("corrupt macroblock in frame %d", frame)

    def clip(self) -> torch.Tensor:
        numbers = [_fastdecode.next_frame() for _ in range(self.frames)]
        return torch.tensor(numbers, dtype=torch.float32)[None] / 1000


class VideoTrainer:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.model = nn.Linear(4, 2)
        self.reader = ClipReader(self.rank, frames=4)
        self.metrics = MetricsFlusher()
        self.metrics.start()
        Heartbeat().start()

    def average(self) -> None:
        works = [dist.all_reduce(p.grad, async_op=True) for p in self.model.parameters()]
        for work in works:
            work.wait()

    def step(self) -> float:
        clip = self.reader.clip()
        loss = self.model(clip).square().sum()
        self.model.zero_grad()
        loss.backward()
        self.average()
        return loss.item()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    trainer = VideoTrainer()
    for step in range(1, 500):
        time.sleep(0.2)
        loss = trainer.step()
        trainer.metrics.rows.append(loss)
        if trainer.rank == 0:
            log.info("step %d loss %.4f", step, loss)


if __name__ == "__main__":
    main()
