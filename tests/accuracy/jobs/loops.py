"""Fine-tuning in the manner of Lightning: modules with hooks, a trainer with loops in methods.

python loops.py TROUBLE
"""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OUT = Path(os.environ.get("OUT_DIR", "/tmp"))


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(32, 8)

    def forward(self, x):
        return self.net(x).square().mean()


class Loop:
    def __init__(self, trouble):
        self.trouble = trouble
        self.rank = dist.get_rank()
        self.is_global_zero = self.rank == 0
        self.module = DistributedDataParallel(Module())
        self.optimizer = torch.optim.SGD(self.module.parameters(), 0.01)
        self.global_step = 0

    def training_step(self, x):
        loss = self.module(x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def log_metrics(self, loss):
        print(f"step {self.global_step} loss {loss.item():.4f}", flush=True)
        if self.trouble == "zero-log" and self.global_step >= 7:
            dist.barrier()

    def on_step_end(self, loss):
        if self.is_global_zero:
            self.log_metrics(loss)
        if self.trouble == "nb-lock" and self.global_step == 7:
            self.guarded()
        if self.trouble == "pipe-log" and self.global_step == 7:
            if self.is_global_zero:
                self.follow()
            dist.barrier()

    def guarded(self):
        """One at a time writes a summary; the first one waits for all before it lets go."""
        with open(OUT / "summary.txt", "a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.5)
            file.write("x")
            dist.barrier()

    def follow(self):
        """The log of a tool that speaks once in a while."""
        code = "import time\nfor i in range(300): print('part', i, flush=True); time.sleep(3)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as tool:
            for line in tool.stdout:
                self.last = line

    def batches(self):
        count = 8 if self.trouble == "short" and self.rank == 1 else 10**6
        for _ in range(count):
            time.sleep(0.15)
            yield torch.randn(16, 32)

    def run_epoch(self):
        batches = iter(self.batches())
        while (x := next(batches, None)) is not None:
            loss = self.training_step(x)
            self.on_step_end(loss)
            self.global_step += 1

    def validate(self):
        with torch.no_grad():
            return dist.barrier()

    def fit(self):
        for self.epoch in range(100):
            self.run_epoch()
            self.validate()


def main():
    dist.init_process_group("gloo")
    Loop(sys.argv[1]).fit()


if __name__ == "__main__":
    main()
