"""Fully sharded training by hand over a data network of its own: each rank keeps a part of every
layer and gathers the layer when it needs it. `cold`: weights come from rank 0 first."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


class ShardedLinear:
    """A layer whose weight is spread over all ranks by rows."""

    def __init__(self, width):
        self.width = width
        rows = width // dist.get_world_size()
        self.shard = torch.randn(rows, width) / width**0.5

    def gather(self):
        """The whole weight."""
        whole = torch.empty(self.width, self.width)
        dist.all_gather_into_tensor(whole, self.shard)
        return whole

    def apply(self, gradient, rate):
        """Average a gradient of the whole weight, keep the own rows' part."""
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mine, gradient)
        self.shard -= rate * mine / dist.get_world_size()


class Network:
    """Layers, one after the other."""

    def __init__(self, width, depth):
        self.layers = [ShardedLinear(width) for _ in range(depth)]

    def step(self, batch):
        """Forward, backward, update; the loss."""
        weights = [layer.gather().requires_grad_() for layer in self.layers]
        x = batch
        for weight in weights:
            x = torch.tanh(x @ weight)
        loss = x.square().mean()
        for layer, gradient in zip(self.layers, torch.autograd.grad(loss, weights)):
            layer.apply(gradient, 0.1)
        return loss.item()


def cold_start(megabytes):
    """Only rank 0 can read the checkpoint: everybody gets the weights from it."""
    weights = torch.empty(megabytes << 18)
    if dist.get_rank() == 0:
        weights.normal_()
    print(f"rank {dist.get_rank()}: cold start, {megabytes} MB from rank 0", flush=True)
    dist.broadcast(weights, src=0)
    print(f"rank {dist.get_rank()}: weights are here", flush=True)
    return weights


def main():
    """Join over the data network and train."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ.get("DATA_INTERFACE", "wan0")
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    if sys.argv[1:2] == ["cold"]:
        cold_start(int(sys.argv[2]))
    network = Network(width=64, depth=2)
    for step in range(100_000):
        loss = network.step(torch.randn(8, 64))
        if dist.get_rank() == 0:
            print(f"step {step} {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
