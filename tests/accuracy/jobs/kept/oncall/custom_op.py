"""Trains with a small C++ operator, which rank 0 builds first and everybody loads then."""

import os
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

CPP = """
#include <torch/extension.h>
torch::Tensor swish(torch::Tensor x) { return x * torch::sigmoid(x); }
"""


def build_folder():
    """Shared between runs, so that only the first one compiles."""
    folder = Path(os.environ["OUT_DIR"], "torch_extensions", "swish_op")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def previous_run_was_killed(folder):
    """What an evicted run left there while it was compiling."""
    (folder / "main.cpp").write_text(CPP)
    (folder / "lock").touch()


def load_op():
    return cpp_extension.load_inline(
        name="swish_op",
        cpp_sources=CPP,
        functions=["swish"],
        build_directory=str(build_folder()),
        extra_cflags=["-O1"],
        verbose=False,
    )


@contextmanager
def master_first():
    """The body runs on rank 0, then on the others."""
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(24, 48)
        self.b = torch.nn.Linear(48, 1)
        self.op = None

    def forward(self, x):
        h = self.a(x)
        h = torch.nn.functional.silu(h) if self.op is None else self.op.swish(h)
        return self.b(h)


def train(net, steps, first):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(first, first + steps):
        x = torch.randn(16, 24)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        time.sleep(0.2)
        if dist.get_rank() == 0:
            print(f"step {step} {loss.item():.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if dist.get_rank() == 0:
        previous_run_was_killed(build_folder())
    net = Net()
    train(net, 6, 1)  # warm up with the built-in function
    if dist.get_rank() == 0:
        print("step 7: switching to the fused operator", flush=True)
    with master_first():
        net.op = load_op()
    train(net, 500, 7)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
