"""Trains well, though its log does not look like it: telemetry fails and says so, a helper is gone."""

import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

log = logging.getLogger("noisy")


class Telemetry:
    """Sends counters to an agent that is not there; the training does not depend on it."""

    def __init__(self, rank):
        self.rank = rank
        threading.Thread(target=self._loop, name="telemetry", daemon=True).start()

    def _loop(self):
        while True:
            try:
                socket.create_connection(("127.0.0.1", 37497), timeout=2).close()
            except OSError:
                log.exception(
                    "rank %d: telemetry agent does not answer, NCCL counters lost", self.rank
                )
            time.sleep(4)


class CommandInbox:
    """Commands of an operator; there hardly ever are any."""

    def __init__(self):
        self.commands = queue.Queue()
        threading.Thread(target=self._serve, name="inbox", daemon=True).start()

    def _serve(self):
        while True:
            command = self.commands.get()
            log.info("command %s", command)


class GpuProbe:
    """Asks a tool once, and never looks after it again."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit('no device')"])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(24, 48, batch_first=True)
        self.head = torch.nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def accumulate(model, micro):
    """Gradients of several small batches before one exchange."""
    total = 0.0
    for i in range(micro):
        x, y = torch.randn(8, 60, 24), torch.randint(0, 4, (8,))
        loss = torch.nn.functional.cross_entropy(model(x), y) / micro
        loss.backward()
        total += loss.item()
        time.sleep(0.05)
    return total


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    Telemetry(rank)
    helpers = [CommandInbox(), GpuProbe()]
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100_000):
        # the ranks take turns with the larger share
        loss = accumulate(model, micro=30 if step % 3 == rank else 12)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            log.info("step %d loss %.4f", step, loss)
        if step % 5 == 4 and rank == 2:
            log.warning("rank 2: loss is not finite in %d of %d micro batches, skipped them", 0, 12)
    del helpers


if __name__ == "__main__":
    main()
