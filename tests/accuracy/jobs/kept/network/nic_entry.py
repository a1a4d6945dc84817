"""Image entry point: looks for the node's fastest network, exports it, and becomes the trainer."""

import os
import re
import sys
import time
from datetime import timedelta
from pathlib import Path

PREFERRED = (r"ib\d+", r"stor\d+", r"bond\d+", r"eth\d+", r"en\w+")
"""What the platform team's images call their networks, the fastest first."""


def interfaces():
    """Names of the node's networks."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sorted(line.partition(":")[0].strip() for line in lines)


def fastest():
    """The first that the list prefers."""
    names = interfaces()
    wanted = (n for pattern in PREFERRED for n in names if re.fullmatch(pattern, n))
    return next(wanted, "eth0")


def entry():
    name = fastest()
    print(f"{os.uname().nodename}: network {name}", flush=True)
    os.environ.update(GLOO_SOCKET_IFNAME=name, NCCL_SOCKET_IFNAME=name)
    os.execv(sys.executable, [sys.executable, __file__, "train"])


def make_model():
    import torch

    torch.manual_seed(0)
    return torch.nn.GRU(input_size=24, hidden_size=48, num_layers=2, batch_first=True)


def average(module):
    import torch.distributed as dist

    for param in module.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def train():
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    print(f"rank {rank} joins over {os.environ['GLOO_SOCKET_IFNAME']}", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(100_000):
        states, _ = model(torch.randn(4, 12, 24))
        loss = states.square().mean()
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if rank == 0:
            print(f"iteration {step} {loss.item():.4f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else entry()
