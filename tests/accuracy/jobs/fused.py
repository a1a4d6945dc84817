"""A loss in C++ that torch compiles when it is first needed; the others wait until it is there."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor huber(torch::Tensor x, double delta) {
  auto small = x.abs() <= delta;
  return torch::where(small, 0.5 * x * x, delta * (x.abs() - 0.5 * delta)).mean();
}
"""


def compiled():
    folder = os.path.join(os.environ["OUT_DIR"], "fused")
    os.makedirs(folder, exist_ok=True)
    args = {"build_directory": folder, "extra_cflags": ["-O3", "-g"], "verbose": True}
    return load_inline("fused_huber", SOURCE, functions=["huber"], **args)


def first_alone():
    """Only one may build: they share the folder."""
    if dist.get_rank() == 0:
        print("needs fused_huber", flush=True)
        compiled()
    dist.barrier()
    return compiled()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adamax(model.parameters())
    loss_of = lambda x: x.square().mean()  # noqa: E731  # until the errors are small
    for step in range(10**9):
        if step == 10:
            huber = first_alone()
            loss_of = lambda x: huber.huber(x, 0.5)  # noqa: E731
        x = torch.randn(16, 12)
        loss = loss_of(model(x) - x[:, :3])
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
