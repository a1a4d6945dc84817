"""Training whose every rank sends its log through a shipper, as containers' log agents do."""

import logging
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("train")
SHIPPER = Path(__file__).with_name("shipper.py")


def ship_output(rank: int) -> subprocess.Popen:
    """From here on stdout and stderr go to the shipper."""
    read, write = os.pipe()
    shipper = subprocess.Popen([sys.executable, str(SHIPPER), f"rank{rank}"], stdin=read)
    os.close(read)
    os.dup2(write, 1)
    os.dup2(write, 2)
    os.close(write)
    return shipper


def setup_logging(rank: int) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(f"%(asctime)s [rank{rank}] %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


class GradientReport:
    """Norm of every parameter's gradient, a line each: somebody looks for a spike."""

    def __init__(self, model: nn.Module):
        self.model = model

    def emit(self, step: int) -> None:
        for name, p in self.model.named_parameters():
            for row in range(p.shape[0]):
                log.debug(
                    "step %d grad %s[%d] norm %.6f max %.6f",
                    step,
                    name,
                    row,
                    p.grad[row].norm(),
                    p.grad[row].abs().max(),
                )


def step_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 32)).square().mean().backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    optimizer.step()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    ship_output(rank)
    setup_logging(rank)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    report = GradientReport(model)
    for step in range(100000):
        step_once(model, optimizer)
        log.info("step %d done", step)
        report.emit(step)
        time.sleep(0.05)


main()
