"""Training that undoes an update when the loss explodes, taking the good weights from rank 0."""

import collections
import math
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class SpikeDetector:
    """Says when a loss is far above what the last ones were."""

    def __init__(self, window=16, factor=8.0):
        self.recent = collections.deque(maxlen=window)
        self.factor = factor

    def __call__(self, loss):
        usual = sum(self.recent) / len(self.recent) if self.recent else math.inf
        if loss > self.factor * usual:
            return True
        self.recent.append(loss)
        return False


class WeightExchange:
    """What is done with weights and gradients between the ranks."""

    @staticmethod
    def flat(tensors):
        return torch.cat([t.reshape(-1) for t in tensors])

    @staticmethod
    def spread(flat, tensors):
        for t, piece in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(piece.view_as(t))

    def average_gradients(self, model):
        grads = [p.grad for p in model.parameters()]
        flat = self.flat(grads)
        dist.all_reduce(flat)
        self.spread(flat / dist.get_world_size(), grads)

    @torch.no_grad()
    def fetch_weights(self, model, source=0):
        params = list(model.parameters())
        flat = self.flat(params)
        dist.broadcast(flat, src=source)
        self.spread(flat, params)


class Loop:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.exchange = WeightExchange()
        self.spike = SpikeDetector()

    def batch(self, step):
        x = torch.randn(64, 12)
        y = x.sum(1, keepdim=True)
        if step == 7 and self.rank == 1:
            y = y * 1e4  # a shard with unnormalised targets
        return x, y

    def one(self, step):
        x, y = self.batch(step)
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        if self.spike(loss.item()):
            print(
                f"rank {self.rank}: loss spike at step {step} ({loss.item():.3g}), rolling back",
                flush=True,
            )
            self.exchange.fetch_weights(self.model)
            return loss
        self.optimizer.zero_grad()
        loss.backward()
        self.exchange.average_gradients(self.model)
        self.optimizer.step()
        return loss

    def run(self, steps):
        for step in range(steps):
            loss = self.one(step)
            if self.rank == 0:
                print(f"step {step}: {loss.item():.4f}", file=sys.stderr, flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Loop(dist.get_rank()).run(50_000)
