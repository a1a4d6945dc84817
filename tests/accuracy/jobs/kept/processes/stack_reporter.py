"""A callback takes native stacks with gdb where a step is far slower than the steps before."""

import os
import statistics
import subprocess
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Callback:
    def on_step_begin(self, step: int) -> None: ...

    def on_step_end(self, step: int) -> None: ...


class SlowStepReporter(Callback):
    """Watches the step from a thread; gdb stays open for further questions, which is the mistake."""

    def __init__(self, rank: int, factor: float = 4.0) -> None:
        self.rank, self.factor = rank, factor
        self.times: list[float] = []
        self.began: float | None = None
        self.gdb: subprocess.Popen | None = None
        threading.Thread(target=self._watch, name="slow-step", daemon=True).start()

    def on_step_begin(self, step: int) -> None:
        self.began = time.monotonic()

    def on_step_end(self, step: int) -> None:
        self.times.append(time.monotonic() - self.began)
        self.began = None

    def _watch(self) -> None:
        while self.gdb is None:
            time.sleep(0.1)
            began = self.began
            if began is None or len(self.times) < 5:
                continue
            took = time.monotonic() - began
            if took > max(2.0, self.factor * statistics.median(self.times)):
                print(
                    f"rank {self.rank}: slow step ({took:.1f} s), taking native stacks", flush=True
                )
                argv = ["gdb", "-q", "-p", str(os.getpid()), "-ex", "info threads", "-ex", "bt 12"]
                report = open(f"{os.environ['OUT_DIR']}/stacks-{self.rank}.txt", "wb")
                self.gdb = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=report, stderr=report
                )


class Corpus:
    """Batches; a cold shard takes its time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def batch(self, step: int) -> torch.Tensor:
        if self.rank == 1 and step == 9:
            time.sleep(25)
        return torch.randn(16, 48)


class Trainer:
    def __init__(self, callbacks: list[Callback], corpus: Corpus) -> None:
        self.callbacks, self.corpus = callbacks, corpus
        self.model = nn.parallel.DistributedDataParallel(nn.Linear(48, 48))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def _call(self, name: str, step: int) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(step)

    def fit(self, steps: int) -> None:
        for step in range(steps):
            self._call("on_step_begin", step)
            loss = self.model(self.corpus.batch(step)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self._call("on_step_end", step)
            time.sleep(0.2)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    reporters: list[Callback] = [SlowStepReporter(rank)] if rank == 1 else []  # a canary rank
    Trainer(reporters, Corpus(rank)).fit(100_000)


if __name__ == "__main__":
    main()
