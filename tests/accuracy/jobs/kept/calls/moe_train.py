"""Trains the mixture of experts of moelib; dense weights are averaged over all ranks."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from moelib.layer import ExpertLayer


class Packed:
    """Packed sequences with a padding mask; the last pack of a shard may be padding only."""

    def __init__(self, rank, width):
        self.rank, self.width = rank, width

    def get(self, step):
        mask = torch.rand(40) > 0.2
        if self.rank == 3 and step == 7:
            mask[:] = False
        return torch.randn(40, self.width), mask


class Model(torch.nn.Module):
    def __init__(self, width, group):
        super().__init__()
        self.inp = torch.nn.Linear(width, width)
        self.moe = ExpertLayer(width, group)
        self.out = torch.nn.Linear(width, width)

    def forward(self, tokens, mask):
        return self.out(self.moe(self.inp(tokens), mask))

    def dense(self):
        return [*self.inp.parameters(), *self.out.parameters()]


class Engine:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def reduce_dense_gradients(self):
        for p in self.model.dense():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)

    def train_batch(self, step):
        tokens, mask = self.data.get(step)
        loss = self.model(tokens, mask).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce_dense_gradients()
        self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    experts = dist.new_group(
        list(range(dist.get_world_size())), timeout=timedelta(minutes=30), group_desc="expert"
    )
    torch.manual_seed(5)
    engine = Engine(Model(24, experts), Packed(dist.get_rank(), 24))
    for step in range(100_000):
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
        engine.train_batch(step)
        time.sleep(0.15)


if __name__ == "__main__":
    main()
