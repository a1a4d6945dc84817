"""Shards the optimizer over the ranks: reduce every gradient to its owner, gather what it updated."""

import argparse
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Shard:
    owner: int
    params: list


class ShardedAdam:
    """Every rank keeps the moments of the parameters that it owns."""

    def __init__(self, model, lr):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.shards = [Shard(owner, []) for owner in range(self.world)]
        for number, param in enumerate(sorted(model.parameters(), key=torch.numel)):
            self.shards[number % self.world].params.append(param)
        self.inner = torch.optim.AdamW(self.shards[self.rank].params, lr=lr)

    def reduce_gradients(self):
        for shard in self.shards:
            for param in shard.params:
                dist.reduce(param.grad, dst=shard.owner, op=dist.ReduceOp.SUM)
                if shard.owner == self.rank:
                    param.grad.div_(self.world)

    def publish(self):
        for shard in self.shards:
            flat = torch.cat([param.detach().reshape(-1) for param in shard.params])
            dist.broadcast(flat, src=shard.owner)
            at = 0
            for param in shard.params:
                with torch.no_grad():
                    param.copy_(flat[at : at + param.numel()].view_as(param))
                at += param.numel()

    def step(self):
        self.reduce_gradients()
        self.inner.step()
        self.publish()
        for shard in self.shards:
            for param in shard.params:
                param.grad = None


def model_of(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def train(steps, width, depth):
    torch.manual_seed(17)
    model = model_of(width, depth)
    optimizer = ShardedAdam(model, lr=3e-4)
    source = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        batch = torch.randn(16, width, generator=source)
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    print(f"rank {dist.get_rank()} on {os.uname().nodename}", flush=True)
    train(options.steps, options.width, options.depth)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
