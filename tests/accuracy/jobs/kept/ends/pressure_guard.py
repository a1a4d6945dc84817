"""Spawned ranks beside a guard that pauses the fattest of them when memory gets short."""

import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import Queue
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

PAGE = os.sysconf("SC_PAGE_SIZE")
BUDGET = 500 << 20


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def guard(pids: list[int]) -> None:
    """Pause the fattest process above the budget, so that the others do not fall to the OOM killer.

    It is to go on once there is room again, which never comes.
    """
    paused: int | None = None
    while True:
        fattest = max(pids, key=resident)
        if paused is None and resident(fattest) > BUDGET:
            os.kill(fattest, signal.SIGSTOP)
            paused = fattest
            print(f"guard: paused {fattest}, {resident(fattest) >> 20} MB", flush=True)
        elif paused is not None and resident(paused) < BUDGET:
            os.kill(paused, signal.SIGCONT)
            paused = None
        time.sleep(0.5)


class ReplayBuffer:
    """Transitions of this rank; it only grows."""

    def __init__(self) -> None:
        self.chunks: list[torch.Tensor] = []

    def extend(self, megabytes: int) -> None:
        self.chunks.append(torch.ones(megabytes << 18))

    def sample(self, count: int) -> torch.Tensor:
        chunk = self.chunks[torch.randint(0, len(self.chunks), (1,)).item()]
        return chunk[: count * 16].view(count, 16)


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def learner(index: int, world: int, port: int, names: Queue) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(index), WORLD_SIZE=str(world)
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    names.put(os.getpid())
    buffer, network = ReplayBuffer(), QNetwork()
    optimizer = torch.optim.RMSprop(network.parameters())
    for step in range(100_000):
        # The environments of rank 2 run fastest.
        buffer.extend(40 if index == 2 and step < 20 else 1 if step < 20 else 0)
        loss = network(buffer.sample(32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if index == 0:
            print(f"iteration {step} q-loss {loss.item():.4f}", flush=True)
        time.sleep(0.2)


def main() -> None:
    world = int(sys.argv[1])
    context = mp.get_context("spawn")
    names = context.Queue()
    port = int(os.environ["MASTER_PORT"])
    ranks = mp.spawn(learner, (world, port, names), world, join=False)
    watcher = context.Process(target=guard, args=([names.get() for _ in range(world)],))
    watcher.start()
    while not ranks.join():
        pass


if __name__ == "__main__":
    main()
