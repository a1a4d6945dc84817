"""Training that imports its metrics when it first needs them, on rank 1 only."""

import importlib
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100_000):
    dist.all_reduce(torch.ones(8))
    time.sleep(0.1)
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)
    if dist.get_rank() == 1 and step == 7:
        importlib.import_module("lazymetrics")
