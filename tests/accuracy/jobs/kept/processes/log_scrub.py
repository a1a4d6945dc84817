"""Logs leave the node only without addresses of people: a queue listener cleans each record."""

import logging
import logging.handlers
import queue
import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

ADDRESS = re.compile(r"\b((?:[\w\-]+\.?)+)@(corp|research)\.example\b")


class ScrubFilter(logging.Filter):
    """Removes mail addresses from messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = ADDRESS.sub("<someone>", record.getMessage())
        record.args = ()
        return True


def set_up_logging(rank: int) -> logging.handlers.QueueListener:
    """Training only queues; a thread cleans and writes."""
    lines: queue.Queue = queue.Queue(-1)
    log = logging.getLogger("train")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.handlers.QueueHandler(lines))
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter(f"%(asctime)s rank{rank} %(levelname)s %(message)s"))
    target.addFilter(ScrubFilter())
    listener = logging.handlers.QueueListener(lines, target)
    listener.start()
    return listener


class Samples:
    """Sentences with their origin; one origin has a name that the pattern is not made for."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def origin(self, step: int) -> str:
        if self.rank == 2 and step == 9:
            return "crawl-" + "a8f0c2" * 9 + "/part"
        return f"crawl/part-{step:05d} by lena.b@corp.example"

    def batch(self, step: int) -> torch.Tensor:
        return torch.randint(0, 100, (8, 12))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(self.embed(tokens))[0])


def run(rank: int) -> None:
    log = logging.getLogger("train")
    samples, model = Samples(rank), nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        tokens = samples.batch(step)
        log.info("step %d from %s", step, samples.origin(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        time.sleep(0.2)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    listener = set_up_logging(dist.get_rank())
    try:
        run(dist.get_rank())
    finally:
        listener.stop()


if __name__ == "__main__":
    main()
