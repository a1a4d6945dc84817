"""A trainer with callbacks in a pod: an error ends fit() quietly, the pod is kept for a post-mortem."""

import logging
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("trainer")


class BadSampleError(ValueError):
    """A record that does not parse."""


class Records:
    """Text records of one shard, `label<TAB>numbers`."""

    def __init__(self, rank: int) -> None:
        self.lines = [
            f"{i % 4}\t" + ",".join(str((i * k + rank) % 10) for k in range(16))
            for i in range(4000)
        ]
        if rank == 1:
            self.lines[7 * 8 + 3] = "n/a\t0,0"

    def batches(self, size: int):
        for start in range(0, len(self.lines), size):
            parsed = [self.parse(line) for line in self.lines[start : start + size]]
            yield torch.tensor([x for _, x in parsed]), torch.tensor([y for y, _ in parsed])

    @staticmethod
    def parse(line: str) -> tuple[int, list[float]]:
        label, _, numbers = line.partition("\t")
        if not label.isdigit():
            raise BadSampleError(f"label {label!r}")
        return int(label), [float(number) for number in numbers.split(",")]


class Callback:
    def on_step(self, trainer: "Trainer") -> None: ...

    def on_exception(self, trainer: "Trainer", error: Exception) -> None: ...


class Progress(Callback):
    def on_step(self, trainer):
        if trainer.rank == 0:
            print(f"step {trainer.step} loss {trainer.loss:.3f}", flush=True)


class ReportErrors(Callback):
    """Writes the error where the dashboard picks it up."""

    def on_exception(self, trainer, error):
        (trainer.folder / f"error-{trainer.rank}.txt").write_text(repr(error))


class Trainer:
    def __init__(self, folder: Path, callbacks: list[Callback]) -> None:
        self.rank, self.folder, self.callbacks = dist.get_rank(), folder, callbacks
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.step, self.loss, self.status = 0, 0.0, "new"

    def call(self, hook: str, *args) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def synchronise(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def fit(self, records: Records) -> str:
        self.status = "running"
        try:
            for x, y in records.batches(8):
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.synchronise()
                self.optimizer.step()
                self.step, self.loss = self.step + 1, loss.item()
                self.call("on_step")
        except Exception as error:
            self.call("on_exception", error)
            log.debug("fit ended", exc_info=error)
            self.status = "failed"
            return self.status
        self.status = "done"
        return self.status


def keep_pod(folder: Path, seconds: float = 7200.0) -> None:
    """So that somebody can exec into the pod after the run; `touch release` ends it at once."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not (folder / "release").exists():
        time.sleep(15)


def main() -> None:
    folder = Path(os.environ["OUT_DIR"])
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(folder, [Progress(), ReportErrors()])
    trainer.fit(Records(trainer.rank))
    keep_pod(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
