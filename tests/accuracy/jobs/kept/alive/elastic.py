"""Elastic training: a rank fails now and then, torchrun starts all again from the checkpoint.

Without a launcher around it, it becomes torchrun itself.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PORT = 29140
FAILS_AT = {0: 11, 1: 34}
"""Step at which the second rank fails, by how often the job was restarted."""


class LossSpikeError(RuntimeError):
    """Training has to go back to the last checkpoint."""


class Checkpoint:
    """The state of a run, replaced in one go."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write beside it, then rename."""
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        beside = self.path.with_suffix(".new")
        torch.save(state, beside)
        beside.replace(self.path)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Step to go on with."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"] + 1


class Guard:
    """Looks for spikes of the loss, on each rank by itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    def check(self, step: int, loss: float) -> None:
        """Raise if this cannot go on."""
        if self.rank == 1 and step == FAILS_AT.get(self.restarts):
            raise LossSpikeError(f"loss {loss * 1e4:.1f} at step {step}")


def worker() -> None:
    """One rank, from its last checkpoint on."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank = dist.get_rank()
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-4)
    checkpoint, guard = Checkpoint(Path(os.environ["OUT_DIR"], "last.pt")), Guard(rank)
    first = checkpoint.load(model, optimizer)
    if rank == 0:
        print(f"training from step {first}, restarts: {guard.restarts}", flush=True)
    for step in range(first, 1000):
        until = time.monotonic() + 1.5
        optimizer.zero_grad()
        with parallel.no_sync():
            while time.monotonic() < until:
                loss = parallel(torch.randn(64, 256)).pow(2).mean()
                loss.backward()
        parallel(torch.randn(64, 256)).pow(2).mean().backward()
        optimizer.step()
        guard.check(step, loss.item())
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
            if step % 5 == 4:
                checkpoint.save(step, model, optimizer)
    dist.destroy_process_group()


def become_torchrun() -> None:
    """What the batch script does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=3"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{PORT}", "--rdzv-id=k4"]
    command += ["--max-restarts=30", "--monitor-interval=2", os.path.abspath(__file__)]
    # In the agents' own store gloo would find the addresses of before the restart.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.execv(sys.executable, command)


if __name__ == "__main__":
    if "RANK" in os.environ:
        worker()
    else:
        become_torchrun()
