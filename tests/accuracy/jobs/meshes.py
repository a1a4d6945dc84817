"""A device mesh, dp x tp: activations, gradients and a global norm; MODE says what goes wrong."""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mode = sys.argv[1]
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.set_num_threads(1)
rank = dist.get_rank()


def activations():
    dist.all_reduce(torch.ones(32), group=mesh["tp"].get_group())


def gradients(step):
    if mode == "frozen" and rank in (0, 3) and step == 6:
        return
    dist.all_reduce(torch.ones(128), group=mesh["dp"].get_group())


def norm():
    dist.all_reduce(torch.ones(1))


for step in range(10**6):
    if mode == "norm-first" and rank == 3 and step == 6:
        norm()
        activations()
        gradients(step)
        continue
    if mode == "crossed" and rank in (0, 3) and step == 6:
        gradients(step)
        activations()
    else:
        activations()
        gradients(step)
    norm()
    if rank == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.05)
