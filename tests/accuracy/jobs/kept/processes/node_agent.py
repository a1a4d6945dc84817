"""A node agent of our own: starts the ranks as two pods, and freezes the one of low priority."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

PODS = {"reserved": (0, 2), "spot": (1, 3)}


class Pod:
    """The ranks of one tenant's share, in a cgroup if they may be frozen."""

    def __init__(self, name: str, ranks: tuple[int, ...], control: Path | None) -> None:
        self.name, self.control = name, control
        self.processes = [self._start(rank) for rank in ranks]

    def _start(self, rank: int) -> subprocess.Popen:
        told = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "4",
        }
        process = subprocess.Popen([sys.executable, __file__, "train"], env={**os.environ, **told})
        if self.control:
            (self.control.parent / "cgroup.procs").write_text(str(process.pid))
        return process

    def freeze(self) -> None:
        word = "FROZEN" if self.control.name == "freezer.state" else "1"
        self.control.write_text(word)
        print(f"agent: pod {self.name} yields to a job of higher priority", flush=True)


def agent() -> None:
    control = Path(os.environ["PLACE"])
    pods = [Pod(n, r, control if n == "spot" else None) for n, r in PODS.items()]
    while not Path(os.environ["OUT_DIR"], "warm").exists():
        time.sleep(0.5)
    pods[1].freeze()
    for pod in pods:
        for process in pod.processes:
            process.wait()


def train() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(40, 80), torch.nn.Linear(80, 8))
    )
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    for step in range(100_000):
        loss = model(torch.randn(8, 40)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step} {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0 and step == 12:
            Path(os.environ["OUT_DIR"], "warm").touch()
        time.sleep(0.15)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else agent()
