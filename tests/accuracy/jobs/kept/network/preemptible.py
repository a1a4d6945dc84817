"""Elastic training that is started again by its agents, and goes on from its last snapshot."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


class LeaseLostError(RuntimeError):
    """The data service gave this rank's shard to somebody else."""


class DataLease:
    """A shard of the data, leased for a time; the very first lease of the last rank is short."""

    def __init__(self, rank, fresh):
        self.short, self.rank, self.taken = fresh and rank == 3, rank, 0

    def batch(self):
        self.taken += 1
        if self.short and self.taken > 9:
            raise LeaseLostError(f"rank {self.rank} lost its lease after {self.taken} batches")
        return torch.randn(16, 10)


class Snapshot:
    def __init__(self, path):
        self.path = Path(path)

    def load(self, model):
        if not self.path.exists():
            return 0
        kept = torch.load(self.path, weights_only=True)
        model.load_state_dict(kept["model"])
        return int(kept["step"]) + 1

    def save(self, model, step):
        new = self.path.with_suffix(".new")
        torch.save({"model": model.state_dict(), "step": step}, new)
        new.rename(self.path)


def describe(rank, attempt, start):
    told = {"rank": rank, "attempt": attempt, "from_step": start, "node": os.uname().nodename}
    print(json.dumps(told), flush=True)


@record
def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    local = torch.nn.Linear(10, 1)
    snapshot = Snapshot(f"/tmp/snapshot{os.environ['LOCAL_RANK']}.pt")
    started = torch.tensor([snapshot.load(local)])
    dist.all_reduce(started, op=dist.ReduceOp.MIN)
    model = torch.nn.parallel.DistributedDataParallel(local)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    lease = DataLease(rank, fresh=int(started) == 0)
    describe(rank, attempt, int(started))
    for step in range(int(started), 100_000):
        inputs = lease.batch()
        loss = (model(inputs) - inputs.mean(dim=1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            snapshot.save(local, step)
        if rank == 0:
            print(f"attempt {attempt} step {step} {loss.item():.4f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
