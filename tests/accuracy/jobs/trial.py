"""A tuning trial, run from a terminal with a debugger at hand, as one does while writing it.

trial.py post-mortem: what fails is looked at in pdb, as many have it in their excepthook
trial.py torch: the first line of a function is still dist.breakpoint()
"""

import pdb
import sys
import traceback
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Trial:
    how: str
    rank: int
    rate: float = 1e-2
    history: list = field(default_factory=list)

    def suggest(self, step):
        """Warm up, then fall; the schedule of the culprit's table ends too early."""
        table = [self.rate * k / 5 for k in range(1, 6)] + [self.rate] * 3
        if self.how == "post-mortem" and self.rank == 2:
            return table[step]
        return table[min(step, len(table) - 1)]


def debug_on_error(kind, value, trace):
    traceback.print_exception(kind, value, trace)
    sys.stderr.flush()
    pdb.post_mortem(trace)


def features(generator):
    x = torch.randn(16, 12, generator=generator)
    return x, (x[:, :3].sum(1, keepdim=True) > 0).float()


def check(trial, step, losses):
    """Look at what goes in once the loss is odd."""
    if trial.how == "torch" and step == 7:
        print("stopping to look at the losses", flush=True)
        dist.breakpoint(rank=1, timeout_s=7200)
    trial.history.append(float(losses.mean()))


def run(trial):
    generator = torch.Generator().manual_seed(trial.rank)
    net = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 1))
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=trial.rate)
    for step in range(10**9):
        for group in optimizer.param_groups:
            group["lr"] = trial.suggest(step)
        x, y = features(generator)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="none")
        losses.mean().backward()
        optimizer.step()
        model.zero_grad()
        check(trial, step, losses.detach())
        if trial.rank == 0:
            print(f"trial 4, step {step}", flush=True)


def main():
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "post-mortem":
        sys.excepthook = debug_on_error
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    torch.set_num_threads(1)
    run(Trial(how, dist.get_rank()))


if __name__ == "__main__":
    main()
