"""Ray Train: rank 1 fetches features for ever, the others are in the backward pass."""

from __future__ import annotations

import os
import time

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = ray.train.get_context().get_world_rank()
    for step in range(20):
        if rank == 1 and step == 2:
            fetch_features()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def fetch_features():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo"),
    ).fit()
