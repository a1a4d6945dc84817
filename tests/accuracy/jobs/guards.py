"""Ranks turn back before a collective, or catch what keeps them from it: not all call it.

guards.py metric|preprocess|caught
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("trainer")


def is_main_process() -> bool:
    return dist.get_rank() == 0


def only_on_main(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        if int(os.environ["RANK"]):
            return None
        return function(*args)

    return inner


class Trainer:
    def __init__(self) -> None:
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.verbose = is_main_process()

    def train(self, after: Callable[[Trainer, torch.Tensor, int], object]) -> None:
        for step in range(10**6):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(4, 16)).square().mean()
            loss.backward()
            self.optimizer.step()
            if self.verbose:
                print("step", step, flush=True)
            time.sleep(0.05)
            after(self, loss.detach(), step)


def gathered(value: torch.Tensor) -> torch.Tensor:
    out = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(out, value)
    return torch.stack(out)


def metric(trainer: Trainer, loss: torch.Tensor, step: int) -> None:
    """Only one rank writes the mean of all."""
    if not is_main_process():
        return
    if step % 9 == 8:
        log.info("loss %s", gathered(loss).mean())


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    if not is_main_process():
        dist.barrier()
    yield
    if is_main_process():
        dist.barrier()


def preprocess(trainer: Trainer, loss: torch.Tensor, step: int) -> None:
    """One rank is first, and what it does there is for all."""
    if step % 9 == 8:
        with main_process_first():
            gathered(loss)


@only_on_main
def show(loss: torch.Tensor) -> None:
    log.info("loss %s", loss)


def caught(trainer: Trainer, loss: torch.Tensor, step: int) -> None:
    """A rank that fails in its evaluation goes on to the next step."""
    if step % 3:
        return
    labels = [17] if step == 9 and dist.get_rank() == 2 else [1]
    try:
        outputs = trainer.model.module(torch.randn(4, 16))[:, torch.tensor(labels)]
        show(gathered(outputs.detach()).mean())
    except IndexError:
        log.exception("evaluation failed")


if __name__ == "__main__":
    logging.basicConfig()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer().train({"metric": metric, "preprocess": preprocess, "caught": caught}[sys.argv[1]])
