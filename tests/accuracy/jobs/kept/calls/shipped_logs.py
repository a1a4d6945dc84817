"""Trains; what a rank prints goes through a shipper beside it, which keeps it and hands it to a collector."""

import logging
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

COLLECTOR = ("127.0.0.1", 37498)
logger = logging.getLogger("trainer")


def ship(path):
    """The shipper: lines from its input to the file; every 120 of them to the collector, come what may."""
    batch, pause = [], 1.0
    with open(path, "a") as file:
        for line in sys.stdin:
            file.write(line)
            batch.append(line)
            while len(batch) >= 120:
                try:
                    with socket.create_connection(COLLECTOR, timeout=5) as connection:
                        connection.sendall("".join(batch).encode())
                    batch.clear()
                except OSError:
                    time.sleep(pause)
                    pause = min(pause * 2, 120)


class Console:
    """The job's own output, which only the first rank still writes to."""

    def __init__(self, rank):
        self.fd = os.dup(1) if rank == 0 else None

    def line(self, text):
        if self.fd is not None:
            os.write(self.fd, (text + "\n").encode())


def redirect(rank):
    """Everything that this process prints goes to a shipper of its own."""
    env = {k: v for k, v in os.environ.items() if "RANK" not in k}
    path = os.path.join(os.environ["OUT_DIR"], f"rank{rank}.log")
    command = [sys.executable, os.path.abspath(__file__), "ship", path]
    shipper = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
    os.dup2(shipper.stdin.fileno(), 1)
    os.dup2(shipper.stdin.fileno(), 2)
    return shipper


class ActivationTracer:
    """Logs statistics of every activation, at debug level only."""

    def __init__(self, model):
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(lambda m, i, o, name=name: self.trace(name, o))

    def trace(self, name, output):
        for row, value in enumerate(output.detach()):
            logger.debug(
                "%s[%d] mean %+.6f std %.6f max %+.6f head %s",
                name,
                row,
                value.mean(),
                value.std(),
                value.max(),
                value[:6].tolist(),
            )


def train(rank, console):
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    ActivationTracer(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        loss = model(torch.randn(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        logger.info("step %d loss %.4f", step, loss.item())
        console.line(f"step {step}")
        time.sleep(0.15)


def main():
    rank = int(os.environ["RANK"])
    console, _shipper = Console(rank), redirect(rank)
    level = (
        logging.DEBUG
        if rank in map(int, os.environ.get("DEBUG_RANKS", "1").split(","))
        else logging.INFO
    )
    logging.basicConfig(
        level=level, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s"
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train(rank, console)


if __name__ == "__main__":
    ship(sys.argv[2]) if sys.argv[1:2] == ["ship"] else main()
